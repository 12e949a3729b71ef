"""Fake predictors whose times follow from sizes, small ONNX graphs, and bundles fitted on invented tables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from surrogate.bundle.bundle import save
from surrogate.bundle.train import train
from surrogate.dataset.checks import normalise
from surrogate.dataset.store import Dataset
from surrogate.features.algorithms import algorithms, unsupported_reason
from surrogate.features.conv import Conv
from surrogate.features.families import Operator
from surrogate.features.gpu import gpu
from surrogate.network.predict import Predictors
from surrogate.prediction.results import Estimate, KernelTime, Selection
from surrogate.prediction.sources.source import LibraryCandidate

WORKSPACE = {"GEMM": 1000, "FFT": 50_000, "WINOGRAD_NONFUSED": 9000}
SPEED = {"IMPLICIT_GEMM": 1.0, "IMPLICIT_PRECOMP_GEMM": 0.8, "WINOGRAD": 0.5, "ALGO_1": 0.9, "ALGO_3": 0.7}


@dataclass
class FakeAlgorithms:
    """Rank algorithms by an invented formula and count the queries."""

    query_count: int = 0
    min_workspace: int = 0
    bundle = SimpleNamespace(family_models={})

    def network_selections(
        self, problems: Sequence[Conv], *, workspace_limit: int | None = None, deterministic: bool = False
    ) -> list[Selection]:
        """Return one selection per problem."""
        self.query_count += len(problems)
        return [self._ranked(conv, workspace_limit, deterministic) for conv in problems]

    def _ranked(self, conv: Conv, limit: int | None, deterministic: bool) -> Selection:
        found = []
        for algorithm in algorithms("cudnn", conv.direction):
            name = algorithm.name
            workspace = max(WORKSPACE.get(name, 0) * conv.n, self.min_workspace)
            if unsupported_reason(name, conv, direction=conv.direction):
                continue
            if (limit is not None and workspace > limit) or (deterministic and not algorithm.deterministic):
                continue
            candidate = LibraryCandidate(name, "cudnn", name, mechanism=algorithm.mechanism)
            time_us = 5.0 + SPEED.get(name, 1.2) * conv.flops / 1e6
            found.append(Estimate(candidate, time_us, time_us / 2, 2 * time_us, log(2), workspace, "model"))
        found.sort(key=lambda estimate: estimate.time_us)
        reason = "dtype fp64 was never measured" if conv.dtype == "fp64" else None
        return Selection(conv, "t4", "cudnn", "7.6.4", tuple(found), (), reason)


@dataclass
class FakeKernels:
    """Predict 3 µs plus the roofline and count the queries."""

    device: Any
    query_count: int = 0

    def kernel_times(self, ops: Sequence[Operator]) -> list[Any]:
        """Return one prediction per operator."""
        self.query_count += len(ops)
        times = [3.0 + float(op.roofline_us(self.device)) for op in ops]
        ends = zip(ops, times, strict=True)
        return [KernelTime(op, "t4", "", "", us, us / 2, 2 * us, us, "roofline", False) for op, us in ends]


@pytest.fixture
def predictors() -> Callable[..., Predictors]:
    """Return a function: GPU name → fake predictors."""

    def make(name: str = "t4", bundle: object = None) -> Predictors:
        device = gpu(name)
        return Predictors(device, FakeAlgorithms(), FakeKernels(device))  # type: ignore[arg-type]

    return make


@pytest.fixture
def onnx_file(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a graph: ``onnx_file([node…], {"x": [1, 3, 8, 8]}, {"w": array})`` → path."""
    onnx = pytest.importorskip("onnx")

    def write(
        nodes: list[Any],
        inputs: dict[str, list[Any] | None],
        weights: dict[str, Any] | None = None,
        *,
        name: str = "net.onnx",
        elem_type: int = 1,
        functions: Sequence[Any] = (),
        **graph: Any,
    ) -> Path:
        onnx_graph = onnx.helper.make_graph(
            nodes,
            "g",
            [onnx.helper.make_tensor_value_info(key, elem_type, shape) for key, shape in inputs.items()],
            [onnx.helper.make_tensor_value_info(nodes[-1].output[0], elem_type, None)],
            [onnx.numpy_helper.from_array(value, key) for key, value in (weights or {}).items()],
            **graph,
        )
        opsets = [onnx.helper.make_opsetid(*each) for each in (("", 20), *((f.domain, 1) for f in functions[:1]))]
        model = onnx.helper.make_model(onnx_graph, opset_imports=opsets, functions=list(functions), ir_version=9)
        path = tmp_path / name
        path.write_bytes(model.SerializeToString())
        return path

    return write


@pytest.fixture(scope="session")
def bundle(table: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a linear model fitted on an invented table of three directions."""
    forward = table(12, gpus=("Tesla T4",))
    parts = [forward]
    for direction in ("bwd_data", "bwd_filter"):
        names = {"IMPLICIT_GEMM": "ALGO_0", "IMPLICIT_PRECOMP_GEMM": "ALGO_1", "FFT": "FFT"}
        back = forward[forward["algorithm"].isin(list(names))]
        renamed = back["algorithm"].map(names)
        parts.append(back.assign(direction=direction, algorithm=renamed, heuristic_algorithm="ALGO_1"))
    path = tmp_path_factory.mktemp("bundles") / "all"
    data = Dataset(normalise(pd.concat(parts, ignore_index=True), "table"))
    save(train(data, model="linear-terms"), path)
    return path
