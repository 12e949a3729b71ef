"""Scripts of experiments and of shipped bundles: output, error lines, exit statuses and written files."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from experiments import all as everything, fit_bundles
from experiments.catalogue import experiment
from experiments.experiment import run_script
from experiments.sources import Sources
from surrogate.bundle.bundle import load


def test_a_script_reports_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The script prints one line on standard error and writes no file."""
    with pytest.raises(SystemExit) as ended:
        run_script(experiment("training_mpt"), ["--quick", "--data", str(tmp_path / "none"), "--out", str(tmp_path)])
    assert ended.value.code == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("training_mpt: skipped")
    assert not any(tmp_path.iterdir())


def test_a_script_writes_its_table_and_prints_the_pages_table(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        run_script(experiment("training_mpt"), ["--quick", "--out", str(tmp_path)])
    assert ended.value.code == 0
    for name in ("tables/training_mpt.csv", "figures/training_mpt.svg"):
        assert (tmp_path / name).is_file(), name
    assert capsys.readouterr().out.startswith("| steps | number |")


@pytest.mark.slow
def test_all_runs_each_experiment_in_a_process_and_records_it(sources: Sources, tmp_path: Path) -> None:
    """The row contains the command without the folders of this test."""
    options = ["--quick", "--only", "training_mpt", "--data", str(sources.folder), "--out", str(tmp_path)]
    done = CliRunner().invoke(everything.main, options)
    assert done.exit_code == 0, done.output
    runs = (tmp_path / "tables" / "run_times.csv").read_text()
    assert "training_mpt,python -m experiments.training_mpt --quick," in runs and str(tmp_path) not in runs


def test_another_dataset_is_relative_to_the_caller_and_named_in_the_row(sources, tmp_path, monkeypatch):
    """The row names the dataset, so that it differs from a row of the default source."""
    received: list[list[str]] = []

    def run_one(name: str, options: list[str]) -> everything.Finished:
        received.append(options)
        return everything.Finished(name, 0, "Yes, 1.", "", 0.0)

    monkeypatch.setattr(everything, "_run_one", run_one)
    monkeypatch.chdir(sources.folder)
    words = ["--only", "training_mpt", "--use", "cudnn=mine.parquet", "--out", str(tmp_path)]
    done = CliRunner().invoke(everything.main, words)
    assert done.exit_code == 0, done.output
    assert f"cudnn={sources.folder / 'mine.parquet'}" in received[0]
    runs = (tmp_path / "tables" / "run_times.csv").read_text()
    assert "training_mpt,python -m experiments.training_mpt --use cudnn=mine.parquet,0" in runs


@pytest.mark.slow
def test_shipped_bundles_are_fitted_from_their_tables(sources, effort, tmp_path, monkeypatch):
    """The card has the licence notices, and the bundle has a part for each family."""
    plan = replace(fit_bundles.PLANS["operators"], sources=("dense", "other_ops"))
    monkeypatch.setitem(fit_bundles.PLANS, "operators", plan)
    words = [str(sources.folder), str(tmp_path), "--only", "operators"]
    done = CliRunner().invoke(fit_bundles.main, words)
    assert done.exit_code == 0, done.output
    bundle = load(tmp_path / "operators")
    assert set(bundle.family_models) == {"gemm", "pointwise", "rowwise"}
    assert bundle.card["licence_notices"] == plan.notices
