"""Comparison of models on a synthetic table: every split, no leakage, the format of results.json."""

import json
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import SPLITS
from surrogate.dataset.store import Dataset, merge_datasets, write_dataset
from surrogate.evaluation import compare as evaluation
from surrogate.models.base import TimeModel
from surrogate.models.boosted import BoostedTerms
from surrogate.models.registry import DECLARED, ModelDeclaration
from tests.known import known_answers
from tests.tables import Table, every

compare = partial(evaluation.compare, seeds=1)
CHEAP = ("always-best-single", "roofline", "linear-dims")
REFERENCES = {"cudnn-heuristic", "oracle"}
ANSWERS = known_answers(__file__)


def _data(frame: pd.DataFrame, **options: Any) -> Dataset:
    return Dataset(normalise(frame, "test"), **options)


def _row(rows: list[dict[str, Any]], **where: Any) -> dict[str, Any]:
    where = {"stratum": "all", "gpu": "all"} | where
    found = [row for row in rows if all(row.get(key) == value for key, value in where.items())]
    assert len(found) == 1, where
    return found[0]


def _timeless(results: dict[str, Any]) -> dict[str, Any]:
    """Return the results that do not depend on a clock."""
    return {name: value for name, value in results.items() if name != "costs"}


SHAPE = ("c", "h", "k", "r", "groups", "stride_h")  # the columns that differ between synthetic shapes


def _shapes(frame: pd.DataFrame) -> set[tuple[Any, ...]]:
    return set(frame[list(SHAPE)].itertuples(index=False, name=None))


class MemorisingModel(TimeModel):
    """Predict the training time of every (shape, algorithm) and NaN for others.

    A prediction for a held-out row reveals a leak. The class records the training and test rows of each round."""

    name: ClassVar[str] = "memory"
    rounds: ClassVar[list[tuple[pd.DataFrame, pd.DataFrame]]] = []

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        self.train_ = rows.frame.copy()
        self.times_ = dict(zip(self._keys(rows.frame), time_us.tolist(), strict=True))

    def _keys(self, frame: pd.DataFrame) -> list[tuple[Any, ...]]:
        return list(frame[[*SHAPE, "algorithm"]].itertuples(index=False, name=None))

    def _predict(self, rows: Rows) -> np.ndarray:
        self.rounds.append((self.train_, rows.frame.copy()))
        return np.array([self.times_.get(key, np.nan) for key in self._keys(rows.frame)])


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> type[MemorisingModel]:
    monkeypatch.setitem(DECLARED, "memory", ModelDeclaration(__name__, MemorisingModel.__name__, "memory"))
    MemorisingModel.rounds.clear()
    return MemorisingModel


@pytest.mark.parametrize("by", SPLITS)
def test_every_split_gives_complete_results(table: Table, by: str) -> None:
    steps: list[tuple[int, int]] = []
    options: dict[str, Any] = {"by": by, "folds_count": 3, "models": CHEAP}
    options["progress"] = lambda done, total, text: steps.append((done, total))
    result = compare(_data(table(12)), [_data(table(4, gpus=("TITAN V",)))], **options)
    rows = result.results["choice_rows"]
    assert {(row["model"], row["split"]) for row in rows} == {(name, by) for name in (*CHEAP, *REFERENCES)}
    assert _row(rows, model="oracle")["slowdown_macro"] == 1
    for row in rows:
        assert row["n"] == 0 or 1 <= row["ci_low"] <= row["slowdown_macro"] <= row["ci_high"]
    assert steps[0][0] == 0 and steps[-1][0] == steps[-1][1] and steps == sorted(steps)
    assert {*result.predictions["model"]} == {*CHEAP} and len(result.folds) > 0
    assert {*result.choices["model"]} == {*CHEAP, *REFERENCES}


@pytest.mark.parametrize("seeds", [1, 2])
def test_held_out_shapes_are_never_trained_on(table: Table, memory: type[MemorisingModel], seeds: int) -> None:
    frame, other_gpu = table(12), table(16, batches=(4, 64), gpus=("TITAN V",))
    result = compare(_data(frame), [_data(other_gpu)], folds_count=4, seeds=seeds, models=["memory"])
    assert len(memory.rounds) == 4 * seeds
    for train, test in memory.rounds:
        seen, holdout = _shapes(train), _shapes(test)
        assert seen and holdout and not seen & holdout
        assert "TITAN V" in set(train["gpu"]) and "TITAN V" not in set(test["gpu"])
    # The memorised times never match a held-out row, so there is no prediction.
    assert _row(result.results["choice_rows"], model="memory")["n"] == len(result.predictions) == 0


def test_random_split_lets_a_memorising_model_predict(table: Table, memory: type[MemorisingModel]) -> None:
    """Random rows leak the same shape at another batch, so the memorised times match."""
    result = compare(_data(table(12, gpus=("Tesla T4",))), by="random", folds_count=5, models=["memory"])
    assert _row(result.results["choice_rows"], model="memory")["n"] > 0
    for train, test in memory.rounds:
        assert not set(train.index) & set(test.index)


def test_results_json_has_the_documented_keys(table: Table, tmp_path: Path) -> None:
    data = _data(table(8), name="invented.parquet")
    result = compare(data, folds_count=3, seeds=2, models=CHEAP)
    result.write(tmp_path / "out")
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"choices.parquet", "folds.csv", "predictions.parquet", "results.json"}
    text = (tmp_path / "out" / "results.json").read_text()
    assert "NaN" not in text and "Infinity" not in text
    results = json.loads(text)
    assert results == result.results
    assert {"schema", "dataset", "seeds", "folds", "time_rows", "choice_rows"} <= set(results)
    assert results["seeds"] == [0, 1] and results["folds"] == 3 and results["schema"] == evaluation.RESULTS_SCHEMA
    assert results["dataset"]["name"] == "invented.parquet" and results["dataset"]["problems"] == 8 * 2 * 2
    assert results["dataset"]["shapes"] == 8 and results["dataset"]["gpus"] == ["TITAN Xp", "Tesla T4"]
    for row in results["choice_rows"]:
        assert set(row) >= set(ANSWERS["choice_keys"]) or (row["n"] == 0 and row["reason"])
    for row in results["time_rows"]:
        assert set(row) >= set(ANSWERS["time_keys"]) or (row["n"] == 0 and row["reason"])
    assert {row["population"] for row in results["time_rows"] if row["n"]} == {"all", "within-2x", "best"}
    ranked = _row(results["time_rows"], model="always-best-single")
    assert ranked["n"] == 0 and "ranks" in ranked["reason"]
    low, mid, high = _row(results["choice_rows"], model="roofline")["paired_vs_heuristic"]
    assert low <= mid <= high
    folds = pd.read_csv(tmp_path / "out" / "folds.csv")
    assert (folds.groupby("seed").size() == 8).all()
    assert not folds.drop(columns="fold").duplicated().any()


def test_choices_and_predictions_agree_with_the_times_of_the_table(table: Table) -> None:
    frame = table(8)
    result = compare(_data(frame), folds_count=3, models=CHEAP)
    choices = result.choices
    assert (choices.groupby("model").size() == 8 * 2 * 2).all()
    key = ["gpu", "n", "c", "h", "k", "r", "groups", "stride_h"]
    times = frame.set_index([*key, "algorithm"])["time_us"].sort_index()
    for row in choices.to_dict("records"):
        problem = tuple(row[name] for name in key)
        best = times.loc[problem].min()
        assert times.loc[(*problem, row["best"])] == best
        if not row["infeasible"]:
            assert row["slowdown"] == pytest.approx(times.loc[(*problem, row["picked"])] / best)
    predictions = result.predictions
    assert (predictions.groupby("model").size() == len(frame)).all()
    assert predictions[predictions["model"] == "always-best-single"]["predicted_us"].isna().all()
    assert (predictions[predictions["model"] == "roofline"]["predicted_us"] > 0).all()


def test_boosted_terms_beat_the_constant_choice(table: Table) -> None:
    result = compare(_data(table(24, noise=0.02)), folds_count=2, models=["boosted-terms", "always-best-single"])
    rows = result.results["choice_rows"]
    learned, constant = (_row(rows, model=name)["slowdown_macro"] for name in ("boosted-terms", "always-best-single"))
    assert learned < constant
    assert _row(rows, model="boosted-terms")["infeasible_picks"] == 0
    assert result.results["settings"]["boosted-terms"]["rounds"] == BoostedTerms().rounds
    errors = _row(result.results["time_rows"], model="boosted-terms", population="all", algorithm="all")
    assert errors["median_ape"] < 0.25


def test_only_the_newest_version_is_evaluated_and_older_ones_train(table, memory):
    frame = pd.concat([table(4, version="7.5.0", seed=1), table(4, version="7.6.0")], ignore_index=True)
    result = compare(_data(frame), folds_count=2, models=["memory"])
    assert _row(result.results["choice_rows"], model="oracle")["n"] == 4 * 2 * 2
    for train, test in memory.rounds:
        assert set(test["library_version"]) == {"7.6.0"} and set(train["library_version"]) == {"7.5.0", "7.6.0"}


def test_solvers_may_be_the_candidates(table: Table) -> None:
    first, second = table(6), table(6, seed=1)
    solvers = [first.assign(solver=first["algorithm"] + "-a"), second.assign(solver=second["algorithm"] + "-b")]
    frame = pd.concat(solvers, ignore_index=True)
    by_solver = compare(_data(frame), folds_count=2, models=["roofline"], candidate="solver")
    by_algorithm = compare(_data(frame), folds_count=2, models=["roofline"])
    assert set(by_solver.choices["best"].str[-2:]) == {"-a", "-b"}
    assert "solver" not in by_algorithm.predictions and set(by_algorithm.choices["best"]) <= set(frame["algorithm"])
    assert len(by_algorithm.predictions) == len(frame) / 2


def test_table_without_a_heuristic_gives_the_reason(table: Table) -> None:
    data = _data(table(6).drop(columns="heuristic_algorithm"), name="mine")
    result = compare(data, folds_count=2, models=["roofline"])
    row = _row(result.results["choice_rows"], model="cudnn-heuristic")
    assert row["n"] == 0 and "mine names no heuristic_algorithm" in row["reason"]
    assert _row(result.results["choice_rows"], model="roofline")["paired_vs_heuristic"] is None


def test_table_of_one_candidate_is_evaluated_by_times_only(table: Table) -> None:
    data = _data(table(8, algorithms=("IMPLICIT_GEMM",)))
    comparison = compare(data, folds_count=2, models=["roofline", "linear-terms"])
    for row in comparison.results["choice_rows"]:
        assert row["n"] == 0 and "one candidate" in row["reason"]
    assert _row(comparison.results["time_rows"], model="linear-terms", population="all", algorithm="all")["n"] == 32


def test_tables_without_choices_or_folds_are_refused(refused, table: Table) -> None:
    censored = table(4)
    censored = censored[~((censored["algorithm"] == "GEMM") | (censored["algorithm"] == "FFT") & (censored["r"] == 3))]
    censored = censored[~((censored["algorithm"] == "WINOGRAD") & (censored["r"] == 1))]
    with refused("--candidates listed"):
        compare(_data(censored), models=["roofline"])
    with refused("shape"):
        compare(_data(table(1)), models=["roofline"])


def _products() -> pd.DataFrame:
    """Return matrix products of two libraries; the second library is always 3 % slower."""
    rows = every(n=(64, 128, 256, 512), m=(32, 128), library=("vllm", "sglang")).assign(family="gemm", operator="gemm")
    rows = rows.assign(gpu="Tesla T4", library_version="1", batch=1, k=512, dtype="fp16", algorithm="kernel")
    time_us = rows["library"].map({"vllm": 1.0, "sglang": 1.03}) * rows["m"] * rows["n"] / 1e3
    return rows.assign(time_us=time_us, status="ok")


def test_families_are_evaluated_separately_and_reported_together(table: Table, tmp_path: Path) -> None:
    """A table of two families gives each family's own results; candidates may come from several libraries."""
    convs, products = normalise(table(6), "convs"), normalise(_products(), "products")
    path = tmp_path / "both.parquet"
    both = merge_datasets([Dataset(convs, "listed"), Dataset(products, "listed")])
    write_dataset(both.frame, path, candidates="listed")
    options: dict[str, Any] = {"folds_count": 2, "models": ["roofline", "always-best-single"]}
    together = compare(path, **options)
    assert {row["family"] for row in together.results["choice_rows"]} == {"conv", "gemm"}
    assert together.results["dataset"]["families"] == ["conv", "gemm"]
    for kind, frame in (("conv", convs), ("gemm", products)):
        separate = compare(Dataset(frame, "listed", path.name), **options)
        for name in ("choice_rows", "time_rows"):
            of_family = [row for row in together.results[name] if row["family"] == kind]
            assert of_family == separate.results[name]
    noisy = compare(Dataset(products, "listed", metadata={"noise": 0.05}), **options).results
    assert noisy["dataset"]["noise"] == 0.05
    assert _row(noisy["choice_rows"], model="roofline")["slowdown_max"] == 1  # a loss of 3 % is within the noise of 5 %
    gemm = [row for row in together.results["choice_rows"] if row["family"] == "gemm"]
    assert {row["stratum"] for row in gemm} <= {"all", "gemm"}
    assert _row(gemm, model="always-best-single")["slowdown_macro"] == 1
    together.write(tmp_path / "out")
    assert set(pd.read_csv(tmp_path / "out" / "folds.csv")["family"]) == {"conv", "gemm"}


def test_interrupted_comparison_resumes_where_it_stopped(table, memory, tmp_path, monkeypatch):
    data, options = _data(table(8)), {"by": "random", "folds_count": 4, "models": ["memory", "roofline"]}
    uninterrupted = compare(data, **options)
    memory.rounds.clear()

    def stop(done: int, total: int, text: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(data, **options, progress=stop, keep=tmp_path / "fits")
    assert 0 < len(memory.rounds) < 4
    resumed = compare(data, **options, keep=tmp_path / "fits")
    assert len(memory.rounds) == 4 and _timeless(resumed.results) == _timeless(uninterrupted.results)
    pd.testing.assert_frame_equal(resumed.predictions, uninterrupted.predictions)
    compare(_data(table(8, seed=1)), **options, keep=tmp_path / "fits")
    assert len(memory.rounds) == 8  # other measurements are another comparison
    for file in (tmp_path / "fits").rglob("*.json"):
        file.write_text("{")
    repeated = compare(data, **options, keep=tmp_path / "fits")
    assert _timeless(repeated.results) == _timeless(uninterrupted.results)


@pytest.mark.usefixtures("few_rounds")
def test_results_compare_the_reported_model_with_every_reference(table: Table) -> None:
    """The results also contain coverage, importance and costs of the fitted models."""
    models = ["boosted-terms", "seer-time-only", "linear-dims", "linear-terms", "stacked-terms"]
    results = compare(_data(table(24, gpus=("Tesla T4",), noise=0.1)), folds_count=3, seeds=2, models=models).results
    assert results["reported"] == {"conv": "stacked-terms"}
    references = results["references"]["conv"]
    assert references["seer"] == "seer-time-only" and references["trees"] == "boosted-terms"
    rows = {row["model"]: row for row in results["choice_rows"] if (row["stratum"], row["gpu"]) == ("ungrouped", "all")}
    linear = min(("linear-terms", "linear-dims"), key=lambda name: rows[name]["slowdown_macro"])
    assert references["linear"] == linear and references["heuristic"] == "cudnn-heuristic"
    for kind, name in references.items():
        low, mid, high = rows["stacked-terms"][f"paired_vs_{kind}"]
        assert low <= mid <= high
        assert rows[name][f"paired_vs_{kind}"] == [0, 0, 0]
    ratio = rows["stacked-terms"]["slowdown_macro"] / rows["seer-time-only"]["slowdown_macro"] - 1
    assert rows["stacked-terms"]["paired_vs_seer"][1] == pytest.approx(ratio)
    time = _row(results["time_rows"], model="stacked-terms", stratum="ungrouped", population="all", algorithm="all")
    seer = _row(results["time_rows"], model="seer-time-only", stratum="ungrouped", population="all", algorithm="all")
    assert time["median_vs_seer"][1] == pytest.approx(time["median_ape"] - seer["median_ape"], abs=0.02)
    assert {row["model"] for row in results["costs"]} == set(models)
    assert all(row["fits"] == 6 and row["fit_s"] > 0 and row["predict_us"] > 0 for row in results["costs"])
    total, *parts = results["coverage"]
    assert total["gpu"] == "all" and total["claimed"] == 0.9
    assert 0 <= total["coverage_low"] <= total["coverage_high"] <= 1
    assert total["rows"] == sum(part["rows"] for part in parts if part["dtype"] == "all")
    increase = [row["increase"] for row in results["importance"]]
    assert increase == sorted(increase, reverse=True) and increase[0] > 0
    assert {row["model"] for row in results["importance"]} == {"boosted-terms"}


@pytest.mark.usefixtures("few_rounds")
def test_stack_reuses_the_fitted_models_of_the_fold(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[int] = []
    fit = BoostedTerms._fit

    def counted(self: BoostedTerms, rows: Rows, time_us: np.ndarray) -> None:
        fits.append(len(rows))
        fit(self, rows, time_us)

    monkeypatch.setattr(BoostedTerms, "_fit", counted)
    models = ["stacked-terms", "boosted-terms", "boosted-seer"]
    compare(_data(table(12)), folds_count=2, models=models)
    assert len(fits) == 2 * (2 + 2 * 3)  # each fold fits both models once, and both in each of three inner folds


def test_search_reports_its_progress(table: Table) -> None:
    steps: list[tuple[int, str]] = []
    options: dict[str, Any] = {"tune": "light", "folds_count": 2, "models": ["linear-dims"]}
    compare(_data(table(12)), **options, progress=lambda done, total, text: steps.append((done, text)))
    trials = [text for _, text in steps if "trial" in text]
    assert len(trials) >= 2 * 20 and "trial 20 of 20" in trials[-1]
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


@pytest.mark.usefixtures("few_rounds")
def test_resumed_stack_uses_the_stored_settings_of_its_parts(table: Table, tmp_path: Path) -> None:
    """The test changes the stored settings of a part; the resumed stack must then predict other times."""
    options: dict[str, Any] = {"folds_count": 2, "models": ["boosted-terms", "stacked-terms"]}
    data = _data(table(12, gpus=("Tesla T4",)))
    keep = tmp_path / "fits"
    compare(data, **options, keep=keep)
    for file in keep.rglob("stacked-terms-*.json"):
        file.unlink()
    kept = [*keep.rglob("boosted-terms-*.json")]
    for file in kept:
        content = json.loads(file.read_text())
        content["settings"]["rounds"] = 3
        file.write_text(json.dumps(content))
    changed = compare(data, **options, keep=keep).predictions
    unchanged = compare(data, **options).predictions
    stacks = [frame[frame["model"] == "stacked-terms"] for frame in (changed, unchanged)]
    of_stack = [frame["predicted_us"].to_numpy() for frame in stacks]
    assert len(kept) == 2 and len(of_stack[0]) and (of_stack[0] != of_stack[1]).any()
