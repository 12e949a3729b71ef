"""Blocks cover the grid exactly once within their limit; windows find the padding."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from surrogate.collect.reference.blocks import blocks
from surrogate.collect.reference.window import inside

small = st.integers(1, 9)


@given(small, small, small, st.integers(1, 200))
def test_blocks_cover_the_grid_once(images: int, rows: int, columns: int, limit: int) -> None:
    seen = np.zeros((images, rows, columns), int)
    for block in blocks(images, rows, columns, limit):
        seen[block.n0 : block.n1, block.p0 : block.p1, block.q0 : block.q1] += 1
        assert 1 <= block.size <= limit
        assert block.size == np.prod(block.shape)
    assert (seen == 1).all()


@given(st.integers(0, 9), st.integers(0, 9), st.integers(-30, 30), st.integers(1, 4), st.integers(1, 12))
def test_inside_is_exactly_what_lies_within(
    start: int, more: int, offset: int, stride: int, size: int
) -> None:
    stop = start + more
    lo, hi = inside(start, stop, offset, stride, size)
    assert start <= lo <= hi <= stop
    assert list(range(lo, hi)) == [o for o in range(start, stop) if 0 <= o * stride + offset < size]
