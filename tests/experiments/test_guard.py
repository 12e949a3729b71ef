"""Accuracy compared with stored figures: verdicts, the exit status, and the figures of a small fit and of passes."""

from pathlib import Path

import pandas as pd
from click.testing import CliRunner

from experiments import guard
from experiments.guard import COVERAGE, ERROR, SLOWDOWN, Figure
from tests.known import cases

GEMM = Figure("gemm", ERROR, 900, 10.0, 2.0), Figure("gemm", SLOWDOWN, 90, 4.0, 1.0)
CURRENT = (*GEMM, Figure("conv", COVERAGE, 400, 92.0, 3.0))


@cases(__file__)
def test_a_worse_figure_fails_and_is_named(index, changes, verdict, tmp_path: Path, monkeypatch) -> None:
    stored = str(tmp_path / "guard.csv")
    monkeypatch.setattr(guard, "figures", lambda: iter(CURRENT))
    assert CliRunner().invoke(guard.main, ["--stored", stored, "--store"]).output == "3 figures stored\n"
    moved = [*CURRENT]
    moved[index] = moved[index]._replace(**changes)
    monkeypatch.setattr(guard, "figures", lambda: iter(moved))
    done = CliRunner().invoke(guard.main, ["--stored", stored])
    assert done.exit_code == (verdict in ("worse", "missing"))
    line = f"{verdict}: {CURRENT[index].set}: {CURRENT[index].figure}"
    assert (line in done.stderr.splitlines()) == bool(done.exit_code)
    assert f"noise {CURRENT[index].noise:g}: {verdict}" in done.stdout


def test_a_fit_and_its_passes_have_the_stored_kinds_of_figures(monkeypatch) -> None:
    """The attention table is small enough to fit; the passes are made up."""
    fits = {(each.set, each.figure) for each in guard.fitted("cuDNN 9")}
    assert {ERROR, COVERAGE} == {figure for _, figure in fits}  # one kernel a problem: no choice
    assert fits <= set(pd.read_csv(guard.STORED).set_index(guard.KEY).index)
    passes = pd.DataFrame({"set": "a", "shape": [0, 1], "measured_ms": [1.0, 2.0], "predicted_ms": [1.1, 2.6]})
    monkeypatch.setattr(guard, "SHIPPED", {"a": lambda: passes.assign(lower_ms=0.9, upper_ms=1.5)})
    error, coverage = guard.shipped("a")
    assert (error.n, round(error.value, 6), coverage.value) == (2, 20.0, 50.0)


def test_every_set_of_the_settings_has_stored_figures() -> None:
    """A set that the loop does not reach would judge nothing."""
    stored = pd.read_csv(guard.STORED)
    assert len(stored) > 40 and stored["value"].notna().all() and (stored["noise"] >= 0).all()
    for name in guard.SETTINGS["fits"]:
        assert stored["set"].str.contains(f", {name}, ", regex=False).any(), name
    assert {"programs, level1", "training steps, MPT"} <= set(stored["set"])
