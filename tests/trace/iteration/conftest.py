"""Builders of steps and calls from times in µs."""

from collections.abc import Callable

import numpy as np
import pytest

from surrogate.trace import events
from surrogate.trace.iteration.overheads import Action, HostStep, Mean, Overheads
from surrogate.trace.iteration.predict import StreamClocks


def make_action(start, end, rows=(), name="cudaLaunchKernel", **settings) -> Action:
    """Return a call from ``start`` to ``end`` µs that launches activities ``rows``."""
    kind = settings.pop("kind", events.LAUNCH)
    return Action(name, kind, round(start * 1e3), round(end * 1e3), tuple(rows), **settings)


def make_step(name, start, end, *actions, thread=0, events=(), **settings) -> HostStep:
    """Return an operator from ``start`` to ``end`` µs with traced sub-events at ``events``."""
    given = {"parent": -1, "iteration": 0, "is_input": False, "is_operator": True, **settings}
    given["events_ns"] = tuple(round(event * 1e3) for event in events)
    return HostStep(name, thread, round(start * 1e3), round(end * 1e3), actions=actions, **given)


@pytest.fixture(scope="session")
def action() -> Callable[..., Action]:
    return make_action


@pytest.fixture(scope="session")
def step() -> Callable[..., HostStep]:
    return make_step


def fixed(**us: float) -> Overheads:
    """Return the same overheads for every operator."""
    given = {"t1": 10.0, "t2": 20.0, "t3": 30.0, "t4": 4.0, "t5": 5.0}
    given |= {"alone": 7.0, "edge": 50.0, "handover": 100.0}
    return Overheads({(kind, ""): Mean(value, 1) for kind, value in (given | us).items()})


def make_clocks(times, streams=(), collective=(), **settings) -> StreamClocks:
    """Return clocks at 0 over activities of these times (µs), by default on stream 0 with `fixed` overheads."""
    count = len(times)
    joined = [row in collective for row in range(count)]
    given = settings.pop("overheads", fixed())
    return StreamClocks(given, np.array(times, dtype=float), list(streams) or [0] * count, joined, **settings)


@pytest.fixture(scope="session")
def clocks() -> Callable[..., StreamClocks]:
    return make_clocks


@pytest.fixture(scope="session")
def overheads() -> Callable[..., Overheads]:
    return fixed
