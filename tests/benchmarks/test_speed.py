"""Benchmarks of answers in groups, with a reference to compare with if there is one.

``python -m pytest tests/benchmarks`` prints a table per group, with ratios in parentheses; times are not asserted.
`experiments.speed` times other predictors on the same questions.
"""

import gzip
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from experiments import speed
from surrogate.bundle.train import train
from surrogate.bundled import DATASET, TRACES
from surrogate.collect.plan_source import networks
from surrogate.dataset.rows import rows_of
from surrogate.dataset.store import Dataset, read_dataset
from surrogate.features.conv import Conv
from surrogate.features.families import CONV
from surrogate.models.boosted import BoostedTerms
from surrogate.prediction.predictor import Predictor
from surrogate.prediction.shipped import load
from surrogate.trace import read_trace
from surrogate.trace.profiling import profile

ALGORITHM = "IMPLICIT_PRECOMP_GEMM"
TRAINED_ROWS = 10_000
TRACE = TRACES["vgg13_h100"]


@pytest.fixture(scope="module")
def measured() -> Dataset:
    return read_dataset(DATASET)


@pytest.fixture(scope="module")
def convs(measured: Dataset) -> list[Conv]:
    return speed.problems(measured, 300, seed=0)


@pytest.fixture(scope="module")
def served(convs: list[Conv]) -> Predictor:
    predictor = load(speed.GPU)
    predictor.select(convs[0])  # builds the ranker of the setting
    return predictor


def benchmark_each(benchmark, served, answer, questions) -> None:
    """Time one question a round, without cached answers."""
    following = itertools.cycle(questions)

    def next_uncached() -> tuple[tuple[object], dict[str, object]]:
        served.forget()
        return (next(following),), {}

    benchmark.pedantic(answer, setup=next_uncached, rounds=len(questions), warmup_rounds=3)


@pytest.mark.benchmark(group="one problem")
def test_predict_one_problem(benchmark: BenchmarkFixture, served: Predictor, convs: list[Conv]) -> None:
    benchmark_each(benchmark, served, lambda conv: served.predict(conv, ALGORITHM), convs)


@pytest.mark.benchmark(group="one problem")
def test_select_one_problem(benchmark: BenchmarkFixture, served: Predictor, convs: list[Conv]) -> None:
    benchmark_each(benchmark, served, served.select, convs)


@pytest.mark.benchmark(group="one problem")
def test_select_a_cached_answer(benchmark: BenchmarkFixture, served: Predictor, convs: list[Conv]) -> None:
    benchmark(served.select, convs[0])


@pytest.mark.benchmark(group="a network of 56 convolutions")
def test_select_a_network(benchmark: BenchmarkFixture, served: Predictor) -> None:
    layers = networks()[speed.NETWORK]
    layers = list(itertools.islice(itertools.cycle(layers), 56))
    benchmark_each(benchmark, served, served.select_many, [layers] * 20)


@pytest.fixture(scope="module")
def big_table(convs: list[Conv]) -> pd.DataFrame:
    return speed.big_table(convs)


@pytest.mark.benchmark(group="a table")
def test_predict_a_table(benchmark: BenchmarkFixture, served: Predictor, big_table: pd.DataFrame) -> None:
    benchmark.extra_info["rows"] = len(big_table)
    benchmark.pedantic(served.predict, args=(big_table,), rounds=3, warmup_rounds=1)


@pytest.mark.benchmark(group="a table")
def test_score_a_table_by_xgboost_alone(benchmark, served, big_table) -> None:
    """The same trees score columns that were computed before."""
    part = served.bundle.family_models["conv"]
    assert isinstance(part.model, BoostedTerms)
    design = part.model.design(rows_of(big_table, CONV))
    booster = part.model.boosted_arrays().trees.booster(design.shape[1])
    booster.set_param({"nthread": 2})
    scores = benchmark.pedantic(booster.inplace_predict, args=(design,), rounds=3, warmup_rounds=1)
    assert np.isfinite(scores).all()


@pytest.mark.benchmark(group="cold start")
@pytest.mark.parametrize("words", speed.COLD.values(), ids=speed.COLD)
def test_start_a_command(benchmark: BenchmarkFixture, words: Sequence[str]) -> None:
    benchmark.pedantic(speed.start, args=(words,), rounds=3, warmup_rounds=1)


@pytest.mark.benchmark(group="cold start")
def test_start_python_with_numpy_alone(benchmark: BenchmarkFixture) -> None:
    words = [sys.executable, "-c", "import numpy"]
    benchmark.pedantic(subprocess.run, args=(words,), kwargs={"check": True}, rounds=3, warmup_rounds=1)


@pytest.fixture(scope="module")
def small_dataset(measured: Dataset) -> Dataset:
    frame = measured.frame.sample(TRAINED_ROWS, random_state=0).reset_index(drop=True)
    return measured.with_frame(frame)


@pytest.mark.benchmark(group="training")
def test_train_with_cross_validation(benchmark: BenchmarkFixture, small_dataset: Dataset) -> None:
    benchmark.pedantic(train, args=(small_dataset,), rounds=1)


@pytest.mark.benchmark(group="training")
def test_fit_one_model(benchmark: BenchmarkFixture, small_dataset: Dataset) -> None:
    rows = rows_of(small_dataset.frame, CONV)
    benchmark.pedantic(lambda: BoostedTerms().fit(rows), rounds=1)


@pytest.mark.benchmark(group="trace")
def test_profile_a_trace(benchmark: BenchmarkFixture) -> None:
    benchmark.pedantic(lambda: profile(read_trace(TRACE)), rounds=3)


@pytest.mark.benchmark(group="trace")
def test_parse_the_json_of_a_trace(benchmark: BenchmarkFixture) -> None:
    benchmark.pedantic(lambda: json.loads(gzip.decompress(TRACE.read_bytes())), rounds=3)
