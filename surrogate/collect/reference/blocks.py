"""Cutting a grid of output positions (images × rows × columns) into blocks of bounded size."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """The half-open ranges of images, rows and columns that one step works on."""

    n0: int
    n1: int
    p0: int
    p1: int
    q0: int
    q1: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """(images, rows, columns)."""
        return self.n1 - self.n0, self.p1 - self.p0, self.q1 - self.q0

    @property
    def size(self) -> int:
        """Positions in the block."""
        images, rows, columns = self.shape
        return images * rows * columns


def block_shape(images: int, rows: int, columns: int, limit: int) -> tuple[int, int, int]:
    """The largest (images, rows, columns) of at most ``limit`` ≥ 1 positions: columns first, then rows."""
    if columns >= limit:
        return 1, 1, limit
    if rows * columns > limit:
        return 1, limit // columns, columns
    return min(images, limit // (rows * columns)), rows, columns


def blocks(images: int, rows: int, columns: int, limit: int) -> Iterator[Block]:
    """Blocks of at most ``limit`` positions that cover the grid exactly once."""
    step_n, step_p, step_q = block_shape(images, rows, columns, limit)
    for n0 in range(0, images, step_n):
        for p0 in range(0, rows, step_p):
            for q0 in range(0, columns, step_q):
                yield Block(
                    n0, min(n0 + step_n, images), p0, min(p0 + step_p, rows), q0, min(q0 + step_q, columns)
                )  # fmt: skip
