"""How fast the predictor answers: ``pytest tests/benchmarks -m slow`` with pytest-benchmark; no time is asserted."""

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import pandas as pd
import pytest

from surrogate.bundle.bundle import Bundle
from surrogate.dataset.rows import rows_of
from surrogate.features.conv import Conv
from surrogate.models import Support
from surrogate.models.boosted import BoostedTerms
from surrogate.prediction.predictor import Predictor
from surrogate.uncertainty.conformal import ALL, Widths
from surrogate.uncertainty.domain import Domain

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
def bundle(table: Callable[..., pd.DataFrame]) -> Bundle:
    """300 trees of depth 8 on invented times of six algorithms."""
    algorithms = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "FFT", "WINOGRAD", "WINOGRAD_NONFUSED")
    frame = table(200, batches=(1, 8, 32), algorithms=algorithms, noise=0.3)
    rows = rows_of(frame)
    fitted = BoostedTerms(rounds=300, learning_rate=0.08, max_depth=8).fit(rows)
    return Bundle(fitted, Support.fit(rows), Widths({ALL: 0.3}), Domain.of(frame))


@pytest.fixture(scope="module", params=["numpy", "onnx", "xgboost"])
def served(bundle: Bundle, request: pytest.FixtureRequest) -> Predictor:
    """A predictor whose setting is ready."""
    if request.param == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
    predictor = Predictor(bundle, gpu="t4", backend=request.param)
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
