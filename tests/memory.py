"""Memory of a process that answers many different questions: ``python -m tests.memory [KIND…]``.

A kind of question is a function of a number. Every number gives another question. The command prints each kind's memory
after 1,000 questions and after all of them.
"""

import gc
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from surrogate import InputError, Predictor, load, select
from surrogate import gpu as gpu_by_name
from surrogate.features import Conv
from surrogate.features.families import operator, parse_problem
from surrogate.features.kernels import identify, resident_blocks, uses_tensor_cores
from surrogate.features.roofline import machine
from surrogate.prediction.shipped import load_operators

WARM_UP = 1000
QUESTIONS = 10_000
Kind = Callable[[int], object]
KINDS: dict[str, Kind] = {}
"""Name → the function of a number."""
MAX_GROWTH_MB = 4
"""Maximum growth from `WARM_UP` to `QUESTIONS` questions: the largest caches hold 8,192 entries of 0.5 KB."""
CONV = Conv(n=1, c=8, h=14, k=16, r=3, pad_h=1)
LONG = "0" * 20_000


def kind(function: Kind) -> Kind:
    """Register a kind of question under its function's name."""
    KINDS[function.__name__] = function
    return function


@cache
def predictor(name: str) -> Predictor:
    """Return the predictor of a GPU."""
    return load(name)


@kind
def gpu_names(i: int) -> Any:
    return gpu_by_name(f"h100-sxm{'-' * i}")


@kind
def unknown_gpus(i: int) -> Any:
    return gpu_by_name(f"board {i}")


@kind
def mig_instances(i: int) -> Any:
    return gpu_by_name(f"NVIDIA H100 80GB HBM3 MIG 1g.{i + 1}gb")


@kind
def own_gpus(i: int) -> Any:
    device = replace(gpu_by_name("v100"), boost_mhz=1000.0 + i)
    return machine(device, "fp16", True), resident_blocks(device, "GEMM", 64, 64)


@kind
def kernel_names(i: int) -> Any:
    name = f"volta_scudnn_128x{i}_relu_{LONG if i % 2 else ''}"
    return identify(name), uses_tensor_cores(name)


@kind
def texts(i: int) -> Any:
    return parse_problem(f"gemm:m{i + 1}n64k64")


@kind
def problems(i: int) -> Any:
    return predictor("v100").predict(CONV.with_batch(i + 1))


@kind
def selections(i: int) -> Any:
    return predictor("v100").select(CONV.with_batch(i + 1))


@kind
def filters(i: int) -> Any:
    return predictor("v100").select(replace(CONV, h=200, w=200, r=i % 100 + 1, s=i // 100 + 1))


@kind
def problem_texts(i: int) -> Any:
    return predictor("h200").select(f"gemm:m{i + 1}n256k256", dtype="bf16")


@kind
def versions(i: int) -> Any:
    return predictor("v100").select(CONV, library_version=f"7.6.{i}{LONG if i % 10 == 0 else ''}")


@kind
def operator_versions(i: int) -> Any:
    return predictor("h200").select("relu:n1c8h8w8", library_version=f"9.{i}")


@kind
def algorithms(i: int) -> Any:
    return predictor("v100").predict(CONV, f"ALGORITHM_{i}")


@kind
def limits(i: int) -> Any:
    return predictor("v100").select(CONV, workspace_limit=i, top=i % 7 + 1, deterministic=i % 2 == 0)


@kind
def types(i: int) -> Any:
    return predictor("v100").select(CONV, dtype=f"fp{i}")


@kind
def variants(i: int) -> Any:
    return predictor("h200").select("gemm:m8n64k64", dtype="bf16", variant=f"variant{i}")


@kind
def routings(i: int) -> Any:
    return predictor("h200").predict(
        operator("moe", tokens=4, hidden=64, inter=64, topk=2, experts=8, routing=f"power_law_1.{i}")
    )


@kind
def kernel_times(i: int) -> Any:
    return _operators().kernel_times([operator("relu", n=i + 1, c=8, h=8, w=8)])


@kind
def tables(i: int) -> Any:
    return predictor("v100").predict({"n": np.arange(1, i % 50 + 3), "c": i + 1, "h": 14, "k": 16, "r": 3})


@kind
def gpus_by_name(i: int) -> Any:
    return select(CONV, gpu=("v100", "t4", "p100-pcie-16gb", "k80", "m60")[i % 5] + " " * (i % 100))


@cache
def _operators() -> Predictor:
    return load_operators("h200")


def measured_mb(name: str, questions: int = QUESTIONS, warm_up: int = WARM_UP) -> tuple[float, float]:
    """Return the memory in MB that the first ``warm_up`` questions of a kind leave, and that all of them leave."""
    ask = KINDS[name]
    tracemalloc.start()
    try:
        used = []
        for start, end in ((0, 1), (1, warm_up), (warm_up, questions)):
            for i in range(start, end):
                with suppress(InputError):
                    ask(i)
            gc.collect()
            used.append(tracemalloc.get_traced_memory()[0] / 1e6)
    finally:
        tracemalloc.stop()
    return used[1] - used[0], used[2] - used[0]


if __name__ == "__main__":
    for each in sys.argv[1:] or KINDS:
        first_mb, all_mb = measured_mb(each)
        print(f"{each:20}{QUESTIONS:8,}{first_mb:10.2f} MB{all_mb:10.2f} MB")
