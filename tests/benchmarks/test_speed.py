"""How fast the predictor answers: ``pytest tests/benchmarks -m slow`` with pytest-benchmark; no time is asserted."""

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import pandas as pd
import pytest

from surrogate.features.conv import Conv
from surrogate.models.boosted import BoostedTerms
from surrogate.prediction.predictor import Predictor
from tests.prediction.conftest import bundle_of

pytest.importorskip("pytest_benchmark")
pytestmark = pytest.mark.slow

CONVS = [
    Conv(n=n, c=c, h=h, k=k, r=3, pad_h=1)
    for n in (1, 8, 32, 128)
    for c in (16, 64, 256)
    for h in (7, 14, 28, 56)
    for k in (32, 128, 512)
]


@pytest.fixture(scope="module")
def served(table: Callable[..., pd.DataFrame]) -> Predictor:
    """300 trees of depth 8 on invented times of six algorithms; the setting is ready."""
    algorithms = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "FFT", "WINOGRAD", "WINOGRAD_NONFUSED")
    frame = table(200, batches=(1, 8, 32), algorithms=algorithms, noise=0.3)
    predictor = Predictor(
        bundle_of(frame, BoostedTerms(rounds=300, learning_rate=0.08, max_depth=8)), gpu="t4"
    )
    predictor.select(CONVS[0])
    return predictor


@pytest.fixture
def fresh(served: Predictor) -> Callable[[], tuple[tuple[Conv], dict[str, Any]]]:
    """The next problem, and nothing remembered."""
    problems: Iterator[Conv] = cycle(CONVS)

    def setup() -> tuple[tuple[Conv], dict[str, Any]]:
        served.forget()
        return (next(problems),), {}

    return setup


def test_predict(benchmark: Any, served: Predictor, fresh: Any) -> None:
    found = benchmark.pedantic(lambda conv: served.predict(conv, "GEMM"), setup=fresh, rounds=300)
    assert found.time_us > 0


def test_select(benchmark: Any, served: Predictor, fresh: Any) -> None:
    assert benchmark.pedantic(served.select, setup=fresh, rounds=300).estimates


def test_repeated(benchmark: Any, served: Predictor) -> None:
    assert benchmark(served.select, CONVS[0]) is served.select(CONVS[0])


def test_network(benchmark: Any, served: Predictor) -> None:
    network = (CONVS[:23] * 3)[:56]

    def setup() -> tuple[tuple[list[Conv]], dict[str, Any]]:
        served.forget()
        return (network,), {}

    assert len(benchmark.pedantic(served.select_many, setup=setup, rounds=20)) == 56


def test_batch(benchmark: Any, served: Predictor) -> None:
    rows = pd.DataFrame([conv.to_dict() for conv in CONVS for _ in range(6)])
    rows["algorithm"] = [
        "IMPLICIT_GEMM",
        "IMPLICIT_PRECOMP_GEMM",
        "GEMM",
        "FFT",
        "WINOGRAD",
        "WINOGRAD_NONFUSED",
    ] * len(CONVS)
    frame = pd.concat([rows.assign(n=n) for n in range(1, 101)], ignore_index=True)
    assert len(benchmark.pedantic(served.predict, args=(frame,), rounds=3, warmup_rounds=1)) == len(frame)
