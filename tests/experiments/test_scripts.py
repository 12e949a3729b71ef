"""Command lines: answers on standard output, one line for what is wrong, exit statuses; and the bundles that ship."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from experiments import all as everything
from experiments import fit_bundles
from experiments.catalogue import BEGIN, END, experiment
from experiments.experiment import run_script
from experiments.sources import Sources
from surrogate.bundle.bundle import load


def test_a_script_says_that_a_file_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on standard error, exit status 1, nothing written."""
    with pytest.raises(SystemExit) as ended:
        run_script(experiment("versions"), ["--quick", "--data", str(tmp_path / "none"), "--out", str(tmp_path)])
    assert ended.value.code == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("versions: skipped")
    assert not any(tmp_path.iterdir())


def test_a_script_writes_its_table_and_answers(sources, tmp_path, effort, capsys):
    with pytest.raises(SystemExit) as ended:
        run_script(experiment("versions"), ["--quick", "--data", str(sources.folder), "--out", str(tmp_path)])
    assert ended.value.code == 0
    assert (tmp_path / "tables" / "versions.csv").is_file() and (tmp_path / "figures" / "versions.svg").is_file()
    assert capsys.readouterr().out.startswith("The largest step is 7.6.3 → 7.6.4")


@pytest.mark.slow
def test_all_runs_processes_and_writes_the_page(sources: Sources, tmp_path: Path) -> None:
    """One experiment in its own process; the command in the row is the one that was run."""
    (tmp_path / "README.md").write_text(f"{BEGIN}\n{END}\n")
    options = ["--quick", "--only", "versions", "--data", str(sources.folder), "--out", str(tmp_path)]
    done = CliRunner().invoke(everything.main, options)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "README.md").read_text()
    assert "`python -m experiments.versions --quick`" in page
    assert "[versions.svg](figures/versions.svg)" in page
    assert str(tmp_path) not in page


def test_another_dataset_is_found_from_anywhere_and_named_in_the_row(sources, tmp_path, monkeypatch):
    """A relative file belongs to the caller's folder; a row of other data must not pass for one of the sources'."""
    (tmp_path / "README.md").write_text(f"{BEGIN}\n{END}\n")
    seen: list[list[str]] = []

    def run_one(name: str, options: list[str]) -> everything.Finished:
        seen.append(options)
        return everything.Finished(name, 0, "Yes, 1.", "", 0.0)

    monkeypatch.setattr(everything, "_run_one", run_one)
    monkeypatch.chdir(sources.folder)
    words = ["--only", "versions", "--use", "cudnn=mine.parquet", "--out", str(tmp_path)]
    done = CliRunner().invoke(everything.main, words)
    assert done.exit_code == 0, done.output
    assert f"cudnn={sources.folder / 'mine.parquet'}" in seen[0]
    assert "`python -m experiments.versions --use cudnn=mine.parquet`" in (tmp_path / "README.md").read_text()


@pytest.mark.slow
def test_the_bundles_that_ship_are_fitted_from_their_tables(sources, effort, tmp_path, monkeypatch):
    """One command; the notices are in the card, and operators make a part for each family."""
    plan = replace(fit_bundles.PLANS["operators"], sources=("dense", "other_ops"))
    monkeypatch.setitem(fit_bundles.PLANS, "operators", plan)
    words = [str(sources.folder), str(tmp_path), "--only", "operators"]
    done = CliRunner().invoke(fit_bundles.main, words)
    assert done.exit_code == 0, done.output
    bundle = load(tmp_path / "operators")
    assert set(bundle.parts) == {"gemm", "pointwise", "rowwise"}
    assert bundle.card["licence_notices"] == plan.notices
