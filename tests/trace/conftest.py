"""Fixtures: an invented training step in both generations of Kineto's JSON, and the real traces."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from surrogate.trace.events.read import read_trace
from surrogate.trace.events.tables import Trace
from tests.known import known_answers
from tests.trace.events import built


def step(start: float, first: int, number: int) -> list[dict[str, Any]]:
    """Return the events of one training step of 1000 µs: `step` of ``conftest.toml`` with ids and times."""

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: inner + start if key == "ts" else filled(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return list(map(filled, value))
        if not isinstance(value, str) or value[:1] not in ("@", "+"):
            return value.format(number=number) if isinstance(value, str) and "{" in value else value
        slot, _, part = value[1:].partition(".")
        ident = int(slot) + (10 * first if value[0] == "@" else first)
        return 10 * ident + int(part) if part else ident

    return filled(known_answers(__file__)["step"])


def trace_json(steps: int = 2, start: float = 1_700_000_000_000_000) -> dict[str, Any]:
    """Return a trace of several steps as the newer Kineto writes it."""
    events = [event for i in range(steps) for event in step(start + 1000 * i, 10 * (i + 1), i + 5)]
    gpu = {"id": 0, "name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "computeMinor": 0, "numSms": 80}
    return {
        "schemaVersion": 1,
        "deviceProperties": [gpu],
        "distributedInfo": {"rank": 3, "world_size": 8},
        "traceEvents": events,
    }


def older_generation(trace: dict[str, Any]) -> dict[str, Any]:
    """Return the trace in the older generation: other categories, threads as text, lower-case ids."""
    older = known_answers(__file__)["older"]
    events = []
    for event in json.loads(json.dumps(trace["traceEvents"])):
        category = event.get("cat")
        if category == "ac2g":
            event |= {"cat": "async"}
        elif category in older:
            event["cat"] = older[category]
            event["tid"] = f"stream {event['tid']}" if older[category] in ("Kernel", "Memcpy") else str(event["tid"])
            if event["cat"] != "Operator":
                event["args"]["external id"] = event["args"].pop("External id", -1)
        events.append(event)
    return {**trace, "traceEvents": events}


@pytest.fixture
def make_trace() -> Callable[..., dict[str, Any]]:
    """Return ``make_trace(steps=2, start=…)``, which builds the invented trace as a JSON object."""
    return trace_json


@pytest.fixture
def table_events(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Return the events in the test's table beside its module."""
    return built(known_answers(request.module.__file__)[request.function.__name__]["events"])


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a JSON object, or its text, to a file and returns its path."""

    def save(trace: Any, name: str = "trace.json") -> Path:
        path = tmp_path / name
        path.write_text(trace if isinstance(trace, str) else json.dumps(trace), encoding="utf-8")
        return path

    return save


@pytest.fixture
def file(saved: Callable[..., Path]) -> Path:
    """Write the invented trace of two steps."""
    return saved(trace_json(steps=2))


@pytest.fixture
def seer(seer: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``seer("summary", FILE)``, which runs ``seer trace summary FILE``."""
    return partial(seer, "trace")


@pytest.fixture
def make_older() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that converts the invented trace into the older generation."""
    return older_generation


@pytest.fixture
def read(saved: Callable[..., Path]) -> Callable[..., Trace]:
    """Return a function that writes a JSON object to a file and reads it as a trace."""
    return lambda trace, name="trace.json": read_trace(saved(trace, name))


@pytest.fixture(scope="session")
def real(measurements: Path) -> Callable[[str], Trace]:
    """Return a function that reads a real trace by file name, once."""
    traces: dict[str, Trace] = {}

    def get(name: str) -> Trace:
        if name not in traces:
            traces[name] = read_trace(measurements / "traces" / name)
        return traces[name]

    return get


RESNET = "resnet50_b32_training_v100.json.gz"


@pytest.fixture(scope="session")
def resnet(real: Callable[[str], Trace]) -> Trace:
    """ResNet-50, batch 32, training on a V100: six steps with shapes."""
    return real(RESNET)


@pytest.fixture(scope="session")
def invented_trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Read the invented trace of three steps once."""
    path = tmp_path_factory.mktemp("trace") / "three.json"
    path.write_text(json.dumps(trace_json(steps=3)), encoding="utf-8")
    return read_trace(path)
