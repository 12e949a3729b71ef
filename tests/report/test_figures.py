"""Tests of figures: their numbers, labels, models and input files."""

import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from surrogate.report import figures
from surrogate.report.results import drawn_models
from surrogate.report.style import looks, time_tick
from tests.known import cases, known_answers


def _times(rows: int = 200, model: str = "stacked-terms") -> pd.DataFrame:
    random = np.random.default_rng(5)
    time_us = 10 ** random.uniform(1, 5, rows)
    predicted = time_us * np.exp(random.normal(0, 0.2, rows))
    family = random.choice(["GEMM", "FFT"], rows)
    return pd.DataFrame({"model": model, "algorithm": family, "time_us": time_us, "predicted_us": predicted})


def _words(svg: str) -> str:
    return " ".join(ElementTree.fromstring(svg).itertext())


@given(st.lists(st.floats(1, 100), min_size=1), st.lists(st.floats(0, 100), min_size=2))
def test_exceedance_decreases_and_starts_at_the_share_above_the_minimum(slowdown, over) -> None:
    share = np.nan_to_num(figures.exceedance(np.array(slowdown), np.sort(over)))
    assert (np.diff(share) <= 0).all()
    assert share[0] == pytest.approx(np.mean(np.array(slowdown) > 1 + min(over)))


def test_exceedance_gives_a_known_answer() -> None:
    shares = figures.exceedance(np.array([1.0, 1.05, 1.2, np.inf]), np.array([0.001, 0.1, 5.0]))
    assert shares.tolist() == [0.75, 0.5, 0.25]
    assert np.isnan(figures.exceedance(np.array([1.0]), np.array([0.1]))).all()


def test_thinning_keeps_the_ends_and_the_limit() -> None:
    rows = _times(5000)
    few = figures.thinned(rows)
    assert len(few) == figures.MAX_POINTS and len(figures.thinned(rows.head(7))) == 7
    assert few["time_us"].min() == rows["time_us"].min() and few["time_us"].max() == rows["time_us"].max()
    assert few.equals(figures.thinned(rows.sample(frac=1, random_state=1)))


def test_many_families_share_a_panel() -> None:
    names = figures.panels(pd.Series([f"f{i:02d}" for i in range(30)] + ["f29"]))
    assert len(names) == figures.MAX_PANELS
    assert (names[0], names[-1]) == ("f29", figures.OTHERS)
    assert figures.panels(pd.Series(["a", "b", "b"])) == ["b", "a"]


def test_the_predicted_figure_names_algorithms_and_counts_their_rows() -> None:
    frame = _times(1000)
    words = _words(figures.predicted_figure(frame) or "")
    assert frame["algorithm"].nunique() > 1
    for family, rows in frame.groupby("algorithm"):
        assert str(family) in words and f"{len(rows)} rows" in words


@pytest.mark.slow
def test_few_rows_and_extreme_values_can_be_drawn() -> None:
    for rows in (1, 20):
        frame = _times(rows)
        frame.loc[0, "predicted_us"] = 1e30
        frame.loc[rows - 1, "predicted_us"] = 1e-30
        assert figures.predicted_figure(frame)
    slowdowns = pd.DataFrame({"model": ["a", "a", "a", "b"], "slowdown": [1.0, np.inf, 1e9, 1.0]})
    assert figures.slowdown_figure(slowdowns, ["a", "b"]) and figures.slowdown_figure(slowdowns, ["b"])


@pytest.mark.slow
def test_odd_and_long_names_are_drawn_as_they_are() -> None:
    """The legend has a full line for a long name and cuts a very long one."""
    names = ["_hidden", "$x_1$", "<b>&\"'", "模型", "", "boosted trees on terms and sizes of the problem"]
    frame = pd.concat([_times(5, name).assign(algorithm=name, slowdown=1.5) for name in [*names, "x" * 200]])
    words = _words(figures.slowdown_figure(frame, [*names, "x" * 200]) or "")
    assert all(name in words for name in [*names, "x" * 50])
    for name in names[1:4]:
        assert name[:25] in _words(figures.predicted_figure(frame[frame["model"] == name]) or "")


def test_the_gpu_figure_has_every_gpu_and_model_except_the_oracle(results: dict[str, Any]) -> None:
    words = _words(figures.gpu_figure(results, drawn_models(results)) or "")
    assert all(part in words for gpu in results["dataset"]["gpus"] for part in gpu.split(" "))
    assert "stacked-terms" in words and "cudnn-heuristic" in words
    assert "oracle" not in words


def test_figures_include_the_reported_model_and_its_references(results: dict[str, Any]) -> None:
    """They stay if other models are better."""
    rows = results["choice_rows"]
    better = [{**row, "model": f"better-{i}", "slowdown_macro": 1.001} for i in range(4) for row in rows]
    results["choice_rows"] = better + results["choice_rows"]
    names = drawn_models(results)
    assert names[:4] == ["stacked-terms", "seer-time-only", "linear-terms", "better-0"]
    words = _words(figures.gpu_figure(results, names) or "")
    for name in ("stacked-terms", "seer-time-only", "linear-terms", "cudnn-heuristic"):
        assert name in words


def test_the_predicted_figure_shows_the_reported_model(results: dict[str, Any], written: Path, monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(figures, "predicted_figure", lambda frame: seen.append(set(frame["model"])))
    results["reported"] = {"conv": "seer-time-only"}
    figures.draw(results, written)
    assert seen == [{"seer-time-only"}]


def test_thirteen_series_and_two_references_all_look_different() -> None:
    names = [f"m{i}" for i in range(13)]
    chosen = list(looks([*names, "cudnn-heuristic", "always-best-single"]).values())
    assert len({look.marker for look in chosen}) == len(chosen)
    assert len({(look.colour, str(look.dashes)) for look in chosen}) == len(chosen)
    near = pairwise(chosen)
    assert all(a.colour != b.colour and a.dashes != b.dashes for a, b in near)


@cases(__file__)
def test_a_time_tick_has_a_suitable_unit(time_us: float, text: str) -> None:
    assert time_tick(time_us) == text


def _predictions(**changes: object) -> pd.DataFrame:
    columns = {"model": "m", "seed": 0, "algorithm": "GEMM", "status": "ok", "supported": True}
    columns |= {"time_us": 10.0, "predicted_us": 11.0}
    return pd.DataFrame([{**columns, **changes}])


def test_only_usable_rows_of_the_first_seed_count(tmp_path: Path) -> None:
    """Tables use the same rows, including algorithms that the model calls unsupported."""
    rows = [_predictions(**row) for row in known_answers(__file__)["rows"]]
    pd.concat(rows).to_parquet(tmp_path / "predictions.parquet")
    frame = figures.read_predictions(tmp_path, ["m"])
    assert frame.values.tolist() == 2 * [["m", "GEMM", 10.0, 11.0]]


def test_predictions_are_read_by_family_and_missing_algorithms_are_unnamed(tmp_path: Path) -> None:
    rows = [_predictions(family="conv"), _predictions(family="gemm", algorithm=None)]
    pd.concat(rows).to_parquet(tmp_path / "predictions.parquet")
    assert len(figures.read_predictions(tmp_path, ["m"])) == 2
    assert figures.read_predictions(tmp_path, ["m"], "gemm")["algorithm"].tolist() == ["unnamed"]


def test_choices_are_read_by_stratum(tmp_path: Path) -> None:
    choices = {"slowdown": [9.0, 1.5, np.nan, np.nan], "infeasible": [False, False, True, False]}
    frame = pd.DataFrame({"model": "m", "stratum": ["grouped", "1x1s1", "other", "other"], **choices})
    frame.to_parquet(tmp_path / "choices.parquet")
    for stratum, expected in {"ungrouped": [1.5, np.inf], "all": [9.0, 1.5, np.inf]}.items():
        results = {"choice_rows": [{"model": "m", "n": 1, "stratum": stratum}]}
        assert figures.read_choices(tmp_path, results, ["m"])["slowdown"].tolist() == expected


def test_damaged_files_and_missing_columns_are_named(refused, tmp_path: Path) -> None:
    path = tmp_path / "predictions.parquet"
    path.write_bytes(b"PAR1 nothing")
    with refused("is not readable as parquet"):
        figures.read_predictions(tmp_path, ["m"])
    _predictions().drop(columns=["algorithm", "time_us"]).to_parquet(path)
    with refused("lacks algorithm, time_us"):
        figures.read_predictions(tmp_path, ["m"])
    choices = tmp_path / "choices.parquet"
    _predictions().to_parquet(choices)
    choices.write_bytes(choices.read_bytes()[:-40])
    with refused("is not readable as parquet"):
        figures.read_choices(tmp_path, {"choice_rows": []}, ["m"])
