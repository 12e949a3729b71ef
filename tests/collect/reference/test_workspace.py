"""The workspace that is reported is what a run allocates beside its operands, as tracemalloc sees it."""

import tracemalloc

import numpy as np
import pytest

from surrogate.collect.reference import ALGORITHMS
from surrogate.collect.reference.implicit_gemm import TILE_BYTES
from surrogate.features.text import parse

SLACK_BYTES = 48 * 1024  # Python objects, transform matrices, NumPy's cast buffers
PROBLEMS = (
    "n4c32h56k48r3p1",
    "n3c16h61w33k16r5p2",
    "n2c32h30k16r3p1g4",
    "n2c24h57k32r3p1u2",
    "n8c64h14k96r1",
)
CASES = [
    pytest.param(name, text, id=f"{name}-{text}")
    for name, algorithm in ALGORITHMS.items()
    for text in PROBLEMS
    if algorithm.unsupported_reason(parse(text)) is None
]


@pytest.mark.parametrize(("name", "text"), CASES)
def test_a_run_allocates_its_workspace_and_no_more(name: str, text: str) -> None:
    conv = parse(text)
    algorithm = ALGORITHMS[name]
    x = np.ones((conv.n, conv.c, conv.h, conv.w), np.float32)
    w = np.ones((conv.k, conv.c // conv.groups, conv.r, conv.s), np.float32)
    algorithm.run(x, w, conv)  # fills caches
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        y = algorithm.run(x, w, conv)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    allocated = peak - y.nbytes
    reported = algorithm.workspace_bytes(conv)
    staging = TILE_BYTES if name == "IMPLICIT_GEMM" else 0
    # the gather's offsets need a few temporaries of one tap row or one block of positions
    slack = SLACK_BYTES + (2**18 if name == "IMPLICIT_PRECOMP_GEMM" else 0)
    assert reported + staging <= allocated <= reported + staging + slack


def test_known_sizes() -> None:
    conv = parse("n4c32h56k48r3p1")
    sizes = {name: algorithm.workspace_bytes(conv) for name, algorithm in ALGORITHMS.items()}
    assert sizes["IMPLICIT_GEMM"] == 0
    assert sizes["GEMM"] == 4 * 32 * 3 * 3 * 56 * 56 * 4
    # whole transformed tensors against one block of them
    assert sizes["WINOGRAD_NONFUSED"] > 5 * sizes["WINOGRAD"]
    # the index does not grow with the batch
    precomp = ALGORITHMS["IMPLICIT_PRECOMP_GEMM"]
    assert precomp.workspace_bytes(conv.with_batch(64)) == sizes["IMPLICIT_PRECOMP_GEMM"]


def test_grouped_gemm_has_the_im2col_buffer_of_all_groups() -> None:
    assert ALGORITHMS["GEMM"].workspace_bytes(parse("n2c32h30k16r3p1g4")) == 2 * 32 * 9 * 900 * 4
