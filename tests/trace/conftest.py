"""A small invented training step in both generations of Kineto's JSON, and the real traces where they are present."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from surrogate.trace.events.read import read_trace
from surrogate.trace.events.tables import Trace
from tests.known import known_answers


def step(start: float, first: int, number: int) -> list[dict[str, Any]]:
    """The events of one training step of 1000 µs, `step` of ``conftest.toml``: its ids and times filled in."""

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
    """A trace of several steps as the newer Kineto writes it."""
    events = [each for i in range(steps) for each in step(start + 1000 * i, 10 * (i + 1), i + 5)]
    gpu = {"id": 0, "name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "computeMinor": 0, "numSms": 80}
    return {
        "schemaVersion": 1,
        "deviceProperties": [gpu],
        "distributedInfo": {"rank": 3, "world_size": 8},
        "traceEvents": events,
    }


def aged(trace: dict[str, Any]) -> dict[str, Any]:
    """The same trace in the older generation: other categories, threads and streams as text, lower-case ids."""
    older = {
        "cpu_op": "Operator",
        "user_annotation": "Operator",
        "cuda_runtime": "Runtime",
        "kernel": "Kernel",
        "gpu_memcpy": "Memcpy",
    }
    events = []
    for each in json.loads(json.dumps(trace["traceEvents"])):
        category = each.get("cat")
        if category == "ac2g":
            each |= {"cat": "async"}
        elif category in older:
            each["cat"] = older[category]
            each["tid"] = f"stream {each['tid']}" if older[category] in ("Kernel", "Memcpy") else str(each["tid"])
            if each["cat"] != "Operator":
                each["args"]["external id"] = each["args"].pop("External id", -1)
        events.append(each)
    return {**trace, "traceEvents": events}


@pytest.fixture
def make_trace() -> Callable[..., dict[str, Any]]:
    """``make_trace(steps=2, start=…)``: the invented trace as a JSON object."""
    return trace_json


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The invented trace of two steps."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace_json(steps=2)), encoding="utf-8")
    return path


@pytest.fixture
def seer(seer: Callable[..., Any]) -> Callable[..., Any]:
    """``seer("summary", FILE)`` for ``seer trace summary FILE`` → status, standard output, standard error."""
    return partial(seer, "trace")


@pytest.fixture
def make_older() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Turns the invented trace into the older generation's layout."""
    return aged


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Trace]:
    """Write a JSON object to a file and read it as a trace."""

    def write_and_read(trace: Any, name: str = "trace.json") -> Trace:
        path = tmp_path / name
        path.write_text(json.dumps(trace), encoding="utf-8")
        return read_trace(path)

    return write_and_read


@pytest.fixture(scope="session")
def real(measurements: Path) -> Callable[[str], Trace]:
    """Real traces by file name, read once."""
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
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """The invented trace of three steps, read once."""
    path = tmp_path_factory.mktemp("trace") / "three.json"
    path.write_text(json.dumps(trace_json(steps=3)), encoding="utf-8")
    return read_trace(path)
