"""Fixtures of all tests: ``seer`` in this process, the folder of measurements, random problems, invented tables."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

if "PYTEST_XDIST_WORKER" in os.environ:  # one thread per worker, because more threads would wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, settings, strategies as st

from surrogate.features.algorithms import unsupported_reason
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError, as_parameters
from surrogate.features.problem import DIRECTIONS, DTYPES, LAYOUTS, MATHS, SIZE_COLUMNS, ConvColumns
from surrogate.features.terms import fits

# The suite draws the same few examples each time, so a failure has its cause in the change and is repeatable. Search
# for new examples with `pytest --hypothesis-profile explore`. There is no deadline, because machines may be busy.
settings.register_profile("seer", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("explore", deadline=None, derandomize=False, max_examples=200, print_blob=True)
settings.load_profile("seer")

MEASUREMENTS = Path(__file__).resolve().parents[1] / "experiments" / "data"
ALGORITHMS = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "FFT", "WINOGRAD")
SPEED = {"IMPLICIT_GEMM": 1.0, "IMPLICIT_PRECOMP_GEMM": 0.8, "GEMM": 1.1, "FFT": 1.3}
SPEED |= {"WINOGRAD": 0.5, "WINOGRAD_NONFUSED": 0.6}
NETWORKS = ("AlphaNet", "BetaNet", "AlphaNet, GammaNet", "GammaNet", "")


@pytest.fixture(autouse=True)
def _no_report_in_default_folder() -> Iterator[None]:
    """Fail if a test writes a report to the default folder `out`, which may contain the user's own report."""
    report = Path("out", "results.json").absolute()
    before = report.stat().st_mtime_ns if report.is_file() else 0
    yield
    assert (report.stat().st_mtime_ns if report.is_file() else 0) == before, f"the test wrote {report}"


@st.composite
def _convs(draw: st.DrawFn) -> Conv:
    """Draw any valid problem of moderate size, of every dtype, math, layout and direction."""
    size = {name: draw(st.integers(1, 70)) for name in ("h", "w")}
    filters = {name: draw(st.integers(1, 7)) for name in ("r", "s")}
    pads = {name: draw(st.integers(0, 6)) for name in ("pad_h", "pad_w")}
    steps = {name: draw(st.integers(1, 4)) for name in ("stride_h", "stride_w")}
    spread = {name: draw(st.integers(1, 3)) for name in ("dilation_h", "dilation_w")}
    assume(fits(size["h"], filters["r"], pads["pad_h"], spread["dilation_h"]))
    assume(fits(size["w"], filters["s"], pads["pad_w"], spread["dilation_w"]))
    groups, n = draw(st.integers(1, 8)), draw(st.integers(1, 64))
    channels = {name: groups * draw(st.integers(1, 40)) for name in ("c", "k")}
    choices = {"dtype": DTYPES, "math": MATHS, "layout": LAYOUTS, "direction": DIRECTIONS}
    texts = {name: draw(st.sampled_from(list(values))) for name, values in choices.items()}
    return Conv(n=n, groups=groups, **channels, **texts, **size, **filters, **pads, **steps, **spread)


st.register_type_strategy(Conv, _convs())  # `@given(st.from_type(Conv))` in any test


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test an empty cache, so that no test reads or changes the developer's measurements, and no width."""
    monkeypatch.setenv("SEER_CACHE", str(tmp_path_factory.getbasetemp() / "no cache here"))
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it


class CommandResult(NamedTuple):
    """The result of a command: exit status and both streams."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return standard output as JSON."""
        return json.loads(self.out)

    def succeeded(self) -> "CommandResult":
        """Return this outcome; fail with standard error if the exit status is not 0."""
        assert self.code == 0, self.err
        return self

    def is_refusal(self, *words: str) -> bool:
        """Return True for exit status 2 with one line on standard error that contains these words."""
        return self.code == 2 and self.err.count("\n") == 1 and all(word in self.err for word in words)


@pytest.fixture
def seer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:
    """Run a command in this process and return its `CommandResult`: ``seer("gpus", "--json")``."""
    from surrogate.cli import main

    def run(*words: object) -> CommandResult:
        monkeypatch.setattr("sys.argv", ["seer", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        return CommandResult(int(stop.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def refused() -> Callable[..., AbstractContextManager[None]]:
    """Return a context that expects an `InputError` of one line with these words: ``with refused("n is 0"):``.

    A word that is an option also matches the name of the Python parameter.
    """

    @contextmanager
    def check(*words: str) -> Iterator[None]:
        with pytest.raises(InputError) as caught:
            yield
        line = str(caught.value)
        assert "\n" not in line and all(word in line or as_parameters(word) in line for word in words), line

    return check


@pytest.fixture
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit boosted trees of 20 rounds by default, which tests of other properties need no more of."""
    from surrogate.models.stacked import BoostedSeer, BoostedTerms

    for cls in (BoostedTerms, BoostedSeer):
        defaults = cls.__init__.__defaults__
        assert defaults and cls().rounds == defaults[0]
        monkeypatch.setattr(cls.__init__, "__defaults__", (20, *defaults[1:]))


@pytest.fixture(scope="session")
def measurements() -> Path:
    """Return the folder of the public measurements."""
    return MEASUREMENTS


@pytest.fixture(scope="session")
def columns_of() -> Callable[[Sequence[Conv]], ConvColumns]:
    """Return a function from a list of problems to `ConvColumns`."""

    def make(convs: Sequence[Conv]) -> ConvColumns:
        sizes = np.array([conv.sizes for conv in convs]).T
        names = ("dtype", "math", "layout", "direction")
        texts = {name: np.array([getattr(conv, name) for conv in convs], dtype=object) for name in names}
        return ConvColumns.of(list(sizes), **texts)

    return make


def _shapes(count: int) -> list[Conv]:
    """Return distinct shapes in turn: 3×3, 1×1, 1×1 with stride 2, and grouped 3×3."""
    shapes = []
    for i in range(count):
        c, h = 16 * (1 + i // 4), (7, 14, 28, 56)[(i // 4) % 4]
        kind = i % 4
        square = {"k": c, "r": 3, "pad_h": 1, "groups": c if kind else 1}
        pointwise = {"k": 2 * c, "r": 1, "stride_h": kind}
        shapes.append(Conv(n=1, c=c, h=h, **(square if kind in (0, 3) else pointwise)))
    return shapes


@pytest.fixture(scope="session")
def table() -> Callable[..., pd.DataFrame]:
    """Return a function that builds an invented dataset with every algorithm of every problem.

    Times follow from FLOPs and an invented speed.
    """

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
        setting = {"library": "cudnn", "library_version": version, "direction": "fwd", "dtype": "fp32"}
        setting |= {"math": "fma", "layout": "NCHW"}
        rows = []
        for place, gpu in enumerate(gpus):
            for i, shape in enumerate(_shapes(shapes)):
                for batch in batches:
                    conv = shape.with_batch(batch)
                    for name in algorithms:
                        refused = unsupported_reason(name, conv) is not None
                        launch_us = 5.0 + 20.0 * (name == "FFT")
                        time_us = launch_us + SPEED[name] * (1 + place) * conv.flops / 2e6
                        time_us = np.nan if refused else time_us * np.exp(noise * random.normal())
                        measured = {"status": "not_supported" if refused else "ok", "time_us": time_us}
                        picked = {"heuristic_algorithm": algorithms[0], "networks": NETWORKS[i % len(NETWORKS)]}
                        sizes = dict(zip(SIZE_COLUMNS, conv.sizes, strict=True))
                        rows.append({"gpu": gpu, **setting, **sizes, "algorithm": name, **measured, **picked})
        return pd.DataFrame(rows)

    return make
