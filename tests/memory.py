"""Memory of a process that answers many different questions: ``python -m tests.memory [KIND…]``.

A kind of question is a function of a number. Every number gives another question. The caches of predictors are made
small, so that few questions fill them. The command prints the memory that each further question leaves.
"""

import gc
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import numpy as np

from surrogate import InputError, Predictor, gpu as gpu_by_name, load, select
from surrogate.features import Conv
from surrogate.features.families import operator, parse_problem
from surrogate.features.kernels import identify, resident_blocks, uses_tensor_cores
from surrogate.features.roofline import machine
from surrogate.prediction.shipped import load_operators

WARM_UP, QUESTIONS = 200, 800
NUMBERS = {
    "gpu_names": (1200, 2000),
    "own_gpus": (1200, 2000),
    "gpus_by_name": (100, 200),
    "routings": (100, 250),
    "tables": (50, 150),
}
"""Kind → its numbers of questions, where a cache has more entries than `WARM_UP`, or where a question is slow."""
SMALL = {
    "resolve.MAX_RANKER_BYTES": 4 << 20,
    "predictor.MAX_ESTIMATES": 150,
    "kernel_times.MAX_ANSWERS": 150,
    "kernel_times.MAX_CHOICES": 50,
    "ranking.MAX_REASONS": 1000,
}
"""Weights of a predictor's caches that `WARM_UP` questions fill."""
MAX_GROWTH_KB = 1.0
"""Maximum growth per question after `WARM_UP`. Entries of the caches that are not yet full take up to 0.5 KB."""
CONV = Conv(n=1, c=8, h=14, k=16, r=3, pad_h=1)
LONG = "0" * 20_000


@cache
def predictor(name: str) -> Predictor:
    """Return the predictor of a GPU."""
    return load(name)


@cache
def _operators() -> Predictor:
    return load_operators("h200")


def ask_own_gpu(i: int) -> Any:
    """Ask for the peaks of a board with another clock."""
    device = replace(gpu_by_name("v100"), boost_mhz=1000.0 + i)
    return machine(device, "fp16", True), resident_blocks(device, "GEMM", 64, 64)


def ask_kernel_name(i: int) -> Any:
    """Ask for the facts in a kernel's name. Every second name is long."""
    name = f"volta_scudnn_128x{i}_relu_{LONG if i % 2 else ''}"
    return identify(name), uses_tensor_cores(name)


def ask_routing(i: int) -> Any:
    """Ask for experts with an invented routing."""
    sizes = {"tokens": 4, "hidden": 64, "inter": 64, "topk": 2, "experts": 8}
    return predictor("h200").predict(operator("moe", **sizes, routing=f"power_law_1.{i}"))


BOARDS = ("v100", "t4", "p100-pcie-16gb", "k80", "m60")
KINDS: dict[str, Callable[[int], object]] = {
    "gpu_names": lambda i: gpu_by_name(f"h100-sxm{'-' * i}"),
    "unknown_gpus": lambda i: gpu_by_name(f"board {i}"),
    "mig_instances": lambda i: gpu_by_name(f"NVIDIA H100 80GB HBM3 MIG 1g.{i + 1}gb"),
    "own_gpus": ask_own_gpu,
    "kernel_names": ask_kernel_name,
    "texts": lambda i: parse_problem(f"gemm:m{i + 1}n64k64"),
    "problems": lambda i: predictor("v100").predict(CONV.with_batch(i + 1)),
    "selections": lambda i: predictor("v100").select(CONV.with_batch(i + 1)),
    "filters": lambda i: predictor("v100").select(replace(CONV, h=200, w=200, r=i % 100 + 1, s=i // 100 + 1)),
    "problem_texts": lambda i: predictor("h200").select(f"gemm:m{i + 1}n256k256", dtype="bf16"),
    "versions": lambda i: predictor("v100").select(CONV, library_version=f"7.6.{i}{'' if i % 10 else LONG}"),
    "operator_versions": lambda i: predictor("h200").select("relu:n1c8h8w8", library_version=f"9.{i}"),
    "algorithms": lambda i: predictor("v100").predict(CONV, f"ALGORITHM_{i}"),
    "limits": lambda i: predictor("v100").select(CONV, workspace_limit=i, top=i % 7 + 1, deterministic=i % 2 == 0),
    "types": lambda i: predictor("v100").select(CONV, dtype=f"fp{i}"),
    "variants": lambda i: predictor("h200").select("gemm:m8n64k64", dtype="bf16", variant=f"variant{i}"),
    "routings": ask_routing,
    "kernel_times": lambda i: _operators().kernel_times([operator("relu", n=i + 1, c=8, h=8, w=8)]),
    "tables": lambda i: predictor("v100").predict(
        {"n": np.arange(1, i % 50 + 3), "c": i + 1, "h": 14, "k": 16, "r": 3}
    ),
    "gpus_by_name": lambda i: select(CONV, gpu=BOARDS[i % 5] + " " * (i % 100)),
}
"""Name of a kind → its question of a number."""


def growth_kb(name: str) -> float:
    """Return the memory in KB that each question of a kind leaves after the first ``warm_up``, with `SMALL` caches."""
    ask, used = KINDS[name], []
    warm_up, questions = NUMBERS.get(name, (WARM_UP, QUESTIONS))
    with ExitStack() as stack:
        for path, weight in SMALL.items():
            stack.enter_context(mock.patch(f"surrogate.prediction.{path}", weight))
        stack.callback(predictor.cache_clear)
        stack.callback(_operators.cache_clear)
        predictor.cache_clear()
        _operators.cache_clear()
        tracemalloc.start()  # from the first question on, because each entry replaces an older one
        stack.callback(tracemalloc.stop)
        for start, end in ((0, warm_up), (warm_up, questions)):
            for i in range(start, end):
                with suppress(InputError):
                    ask(i)
            gc.collect()
            used.append(tracemalloc.get_traced_memory()[0] / 1e3)
    return (used[1] - used[0]) / (questions - warm_up)


if __name__ == "__main__":
    for each in sys.argv[1:] or KINDS:
        print(f"{each:20}{growth_kb(each):10.3f} KB per question")
