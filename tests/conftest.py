"""Shared by all tests: ``seer`` in this process, the folder of measured data, random problems, invented tables."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

if "PYTEST_XDIST_WORKER" in os.environ:  # one thread each: more would wait for one another
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st

from surrogate.features.algorithms import unsupported_reason
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError, as_parameters
from surrogate.features.problem import DIRECTIONS, DTYPES, LAYOUTS, MATHS, SIZE_COLUMNS, ConvColumns
from surrogate.features.terms import fits

# The suite draws the same few examples every time, so that a failure is the change's own and comes back; search for new
# ones with `pytest --hypothesis-profile explore`. No deadline: a busy machine is no failure.
settings.register_profile("seer", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("explore", deadline=None, derandomize=False, max_examples=200, print_blob=True)
settings.load_profile("seer")

MEASUREMENTS = Path(__file__).resolve().parents[1] / "experiments" / "data"
ALGORITHMS = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "FFT", "WINOGRAD")
SPEED = {
    "IMPLICIT_GEMM": 1.0,
    "IMPLICIT_PRECOMP_GEMM": 0.8,
    "GEMM": 1.1,
    "FFT": 1.3,
    "WINOGRAD": 0.5,
    "WINOGRAD_NONFUSED": 0.6,
}
NETWORKS = ("AlphaNet", "BetaNet", "AlphaNet, GammaNet", "GammaNet", "")


@pytest.fixture(autouse=True)
def writes_no_report_here() -> Iterator[None]:
    """A report goes to a temporary folder: the default one, `out` here, may be the user's own."""
    report = Path("out", "results.json").absolute()
    before = report.stat().st_mtime_ns if report.is_file() else 0
    yield
    assert (report.stat().st_mtime_ns if report.is_file() else 0) == before, f"the test wrote {report}"


@st.composite
def _convs(draw: st.DrawFn) -> Conv:
    """Any valid problem of moderate size, of every dtype, math, layout and direction."""
    size = {name: draw(st.integers(1, 70)) for name in ("h", "w")}
    filters = {name: draw(st.integers(1, 7)) for name in ("r", "s")}
    pads = {name: draw(st.integers(0, 6)) for name in ("pad_h", "pad_w")}
    steps = {name: draw(st.integers(1, 4)) for name in ("stride_h", "stride_w")}
    spread = {name: draw(st.integers(1, 3)) for name in ("dilation_h", "dilation_w")}
    assume(fits(size["h"], filters["r"], pads["pad_h"], spread["dilation_h"]))
    assume(fits(size["w"], filters["s"], pads["pad_w"], spread["dilation_w"]))
    groups = draw(st.integers(1, 8))
    return Conv(
        n=draw(st.integers(1, 64)),
        c=groups * draw(st.integers(1, 40)),
        k=groups * draw(st.integers(1, 40)),
        groups=groups,
        dtype=draw(st.sampled_from(list(DTYPES))),
        math=draw(st.sampled_from(MATHS)),
        layout=draw(st.sampled_from(LAYOUTS)),
        direction=draw(st.sampled_from(DIRECTIONS)),
        **size,
        **filters,
        **pads,
        **steps,
        **spread,
    )


st.register_type_strategy(Conv, _convs())  # `@given(st.from_type(Conv))` in any test


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads, or adds to, what the developer measured on this machine."""
    monkeypatch.setenv("SEER_CACHE", str(tmp_path_factory.getbasetemp() / "no cache here"))


class Outcome(NamedTuple):
    """What a command left: exit status and both streams."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)

    def succeeded(self) -> "Outcome":
        """Itself; where the exit status is not 0, the test fails with what the command said."""
        assert self.code == 0, self.err
        return self

    def is_refusal(self, *named: str) -> bool:
        """Exit status 2, and one line on standard error that names this."""
        return self.code == 2 and self.err.count("\n") == 1 and all(word in self.err for word in named)


@pytest.fixture
def seer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """``seer("gpus", "--json")``, through the entry point in this process → `Outcome`."""
    from surrogate.cli import main

    def run(*words: object) -> Outcome:
        monkeypatch.setattr("sys.argv", ["seer", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        return Outcome(int(stop.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def refused() -> Callable[..., AbstractContextManager[None]]:
    """``with refused("n is 0"):`` — what is inside ends in an `InputError` of one line that names this, an option as
    Python's parameter."""

    @contextmanager
    def check(*named: str) -> Iterator[None]:
        with pytest.raises(InputError) as caught:
            yield
        line = str(caught.value)
        assert "\n" not in line and all(word in line or as_parameters(word) in line for word in named), line

    return check


@pytest.fixture(scope="session")
def measurements() -> Path:
    """The folder of public measurements that ships with the sources."""
    return MEASUREMENTS


@pytest.fixture(scope="session")
def columns_of() -> Callable[[Sequence[Conv]], ConvColumns]:
    """`ConvColumns` of a list of problems."""

    def make(convs: Sequence[Conv]) -> ConvColumns:
        sizes = np.array([conv.sizes for conv in convs]).T
        texts = {
            name: np.array([getattr(conv, name) for conv in convs], dtype=object)
            for name in ("dtype", "math", "layout", "direction")
        }
        return ConvColumns.of(list(sizes), **texts)

    return make


def _shapes(count: int) -> list[Conv]:
    """Distinct shapes in turn 3×3, 1×1, 1×1 at stride 2, and grouped 3×3."""
    shapes = []
    for i in range(count):
        c, h = 16 * (1 + i // 4), (7, 14, 28, 56)[(i // 4) % 4]
        kind = i % 4
        shapes.append(
            Conv(n=1, c=c, h=h, k=c, r=3, pad_h=1, groups=1 if kind == 0 else c)
            if kind in (0, 3)
            else Conv(n=1, c=c, h=h, k=2 * c, r=1, stride_h=kind)
        )
    return shapes


@pytest.fixture(scope="session")
def table() -> Callable[..., pd.DataFrame]:
    """Make an invented dataset: every algorithm of every problem; times follow from FLOPs and an invented speed."""

    def make(
        shapes: int = 12,
        *,
        batches: Sequence[int] = (1, 8),
        gpus: Sequence[str] = ("Tesla T4", "TITAN Xp"),
        algorithms: Sequence[str] = ALGORITHMS,
        version: str = "7.6.3",
        noise: float = 0.05,
        seed: int = 0,
    ) -> pd.DataFrame:
        random = np.random.default_rng(seed)
        rows = []
        for place, gpu in enumerate(gpus):
            for i, shape in enumerate(_shapes(shapes)):
                for batch in batches:
                    conv = shape.with_batch(batch)
                    for name in algorithms:
                        refused = unsupported_reason(name, conv) is not None
                        launch_us = 5.0 + 20.0 * (name == "FFT")
                        time_us = launch_us + SPEED[name] * (1 + place) * conv.flops / 2e6
                        rows.append(
                            {
                                "gpu": gpu,
                                "library": "cudnn",
                                "library_version": version,
                                "direction": "fwd",
                                "dtype": "fp32",
                                "math": "fma",
                                "layout": "NCHW",
                                **dict(zip(SIZE_COLUMNS, conv.sizes, strict=True)),
                                "algorithm": name,
                                "status": "not_supported" if refused else "ok",
                                "time_us": np.nan if refused else time_us * np.exp(noise * random.normal()),
                                "heuristic_algorithm": algorithms[0],
                                "networks": NETWORKS[i % len(NETWORKS)],
                            }
                        )
        return pd.DataFrame(rows)

    return make
