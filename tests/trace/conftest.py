"""A small invented training step in both generations of Kineto's JSON, and the real traces where they are present."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from surrogate.trace.events.read import read_trace
from surrogate.trace.events.tables import Trace
from tests.trace.events import device, event

CONV, GRADIENT = [[8, 3, 32, 32], [16, 3, 3, 3], [16]], [[8, 16, 30, 30], [8, 3, 32, 32], [16, 3, 3, 3]]
MAIN, ENGINE = 100, 200


LAUNCH = {
    "registers per thread": 32, "shared memory": 4096, "grid": [160, 1, 1], "block": [256, 1, 1],
    "est. achieved occupancy %": 50,
}  # fmt: skip


def _range(name: str, start: float, length: float, thread: int, number: int, **args: Any) -> dict[str, Any]:
    """An operator, or the program's own annotation."""
    category = "user_annotation" if "Step" in name or "step" in name else "cpu_op"
    return event(category, name, start, length, thread, **{"External id": number, **args})


def _call(name: str, start: float, length: float, thread: int, correlation: int) -> dict[str, Any]:
    both = {"correlation": correlation, "External id": correlation}
    return event("cuda_runtime", name, start, length, thread, **both)


def _kernel(name: str, start: float, length: float, correlation: int) -> dict[str, Any]:
    return device(name, start, length, correlation, **{"External id": correlation}, **LAUNCH)


def step(start: float, first: int, number: int) -> list[dict[str, Any]]:
    """The events of one training step of 1000 µs: a convolution and a relu, forward and backward, SGD, a copy."""
    sequence, floats = {"Sequence number": first, "Fwd thread id": 0}, ["float", "float", "float"]
    relu = {"Sequence number": first + 1, "Fwd thread id": 0}
    ids = [first * 10 + i for i in range(8)]
    convolution = {"Input Dims": [*CONV, [], [], [], []], "Input type": [*floats, "", "", "", ""]}
    cudnn = {"Input Dims": [*CONV[:2], [], [], []], "Input type": ["float", "float", "", "", ""]}
    return [
        _range(f"ProfilerStep#{number}", start, 990, MAIN, ids[0] * 10),
        _range("aten::conv2d", start + 10, 100, MAIN, ids[1] * 10, **convolution, **sequence),
        _range("aten::cudnn_convolution", start + 20, 80, MAIN, ids[1] * 10 + 1, **cudnn),
        _call("cudaLaunchKernel", start + 30, 10, MAIN, ids[1]),
        _kernel("volta_scudnn_128x64_relu_interior_nn_v1", start + 50, 100, ids[1]),
        _range("aten::relu", start + 120, 30, MAIN, ids[2] * 10, **relu, **{"Input Dims": [[8, 16, 30, 30]],
                  "Input type": ["float"]}),
        _call("cudaLaunchKernel", start + 125, 10, MAIN, ids[2]),
        _kernel("relu_kernel", start + 160, 20, ids[2]),
        _range("ReluBackward0", start + 200, 50, ENGINE, ids[3] * 10, **relu | {"Fwd thread id": 1}),
        _call("cudaLaunchKernel", start + 210, 10, ENGINE, ids[3]),
        _kernel("relu_backward_kernel", start + 230, 30, ids[3]),
        _range("ConvolutionBackward0", start + 260, 100, ENGINE, ids[4] * 10, **sequence | {"Fwd thread id": 1}),
        _range("aten::convolution_backward", start + 270, 80, ENGINE, ids[4] * 10 + 1,
                  **{"Input Dims": [*GRADIENT, [], []], "Input type": [*floats, "", ""]}),
        _call("cudaLaunchKernel", start + 280, 10, ENGINE, ids[4]),
        _kernel("cudnn_wgrad_kernel", start + 300, 200, ids[4]),
        _range("Optimizer.step#SGD.step", start + 400, 100, MAIN, ids[5] * 10),
        _range("aten::add_", start + 410, 50, MAIN, ids[5] * 10 + 1,
                  **{"Input Dims": [[16, 3, 3, 3], [16, 3, 3, 3], []], "Input type": ["float", "float", "Scalar"]}),
        _call("cudaLaunchKernel", start + 420, 10, MAIN, ids[5]),
        _kernel("add_kernel", start + 510, 10, ids[5]),
        _range("aten::copy_", start + 600, 100, MAIN, ids[6] * 10),
        _call("cudaMemcpyAsync", start + 610, 80, MAIN, ids[6]),
        device("Memcpy DtoH (Device -> Pageable)", start + 640, 40, ids[6], category="gpu_memcpy", bytes=400000),
        {
            "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": MAIN,
            "ts": start + 25, "s": "t",
            "args": {"Device Type": 1, "Device Id": 0, "Bytes": 460800, "Addr": 1, "Total Allocated": 460800}
        },
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": ids[1], "pid": 1, "tid": MAIN, "ts": start + 30}
    ]  # fmt: skip


def whole(steps: int = 2, start: float = 1_700_000_000_000_000) -> dict[str, Any]:
    """A trace of several steps as the newer Kineto writes it."""
    events = [each for i in range(steps) for each in step(start + 1000 * i, 10 * (i + 1), i + 5)]
    gpu = {"id": 0, "name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "computeMinor": 0, "numSms": 80}
    return {"schemaVersion": 1, "deviceProperties": [gpu], "distributedInfo": {"rank": 3, "world_size": 8},
            "traceEvents": events}  # fmt: skip


def aged(trace: dict[str, Any]) -> dict[str, Any]:
    """The same trace in the older generation: other categories, threads and streams as text, lower-case ids."""
    older = {"cpu_op": "Operator", "user_annotation": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel",
             "gpu_memcpy": "Memcpy"}  # fmt: skip
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
    return whole


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The invented trace of two steps."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(whole(steps=2)), encoding="utf-8")
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
    known: dict[str, Trace] = {}

    def get(name: str) -> Trace:
        if name not in known:
            known[name] = read_trace(measurements / "traces" / name)
        return known[name]

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
    path.write_text(json.dumps(whole(steps=3)), encoding="utf-8")
    return read_trace(path)
