"""Overlapping input tiles, each of which yields ``step_h × step_w`` outputs (stride 1, dilation 1)."""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from surrogate.collect.reference.blocks import Block, block_shape
from surrogate.features.conv import Conv
from surrogate.features.elementwise import ceil_div


@dataclass(frozen=True, slots=True)
class TileGrid:
    """Tiles of ``tile_h × tile_w`` inputs, ``step_h × step_w`` apart; ``rows × columns`` per image."""

    tile_h: int
    tile_w: int
    step_h: int
    step_w: int
    rows: int
    columns: int

    @classmethod
    def of(cls, conv: Conv, tile_h: int, tile_w: int) -> "TileGrid":
        """The grid that covers all outputs of ``conv``; a tile yields tile − filter + 1 outputs per axis."""
        step_h, step_w = tile_h - conv.r + 1, tile_w - conv.s + 1
        return cls(tile_h, tile_w, step_h, step_w, ceil_div(conv.out_h, step_h), ceil_div(conv.out_w, step_w))

    def count(self, conv: Conv) -> int:
        """Tiles of the whole batch."""
        return conv.n * self.rows * self.columns

    def strip_shape(self, conv: Conv, block: tuple[int, int, int]) -> tuple[int, int, int, int]:
        """Shape (images, c, height, width) of the padded input under (images, rows, columns) tiles."""
        images, rows, columns = block
        height = (rows - 1) * self.step_h + self.tile_h
        return images, conv.c, height, (columns - 1) * self.step_w + self.tile_w

    def largest_block(self, conv: Conv, limit: int) -> tuple[int, int, int]:
        """Shape of the largest block of at most ``limit`` tiles."""
        return block_shape(conv.n, self.rows, self.columns, limit)


def fill_strip(x: np.ndarray, conv: Conv, grid: TileGrid, block: Block, strip: np.ndarray) -> None:
    """Copy the input under ``block`` (in tiles) to ``strip`` (images, c, height, width), zeros around it."""
    top, left = block.p0 * grid.step_h - conv.pad_h, block.q0 * grid.step_w - conv.pad_w
    height, width = strip.shape[2:]
    y0, y1 = max(top, 0), min(top + height, conv.h)
    x0, x1 = max(left, 0), min(left + width, conv.w)
    if (y1 - y0, x1 - x0) != (height, width):
        strip.fill(0.0)
    if y0 < y1 and x0 < x1:
        strip[:, :, y0 - top : y1 - top, x0 - left : x1 - left] = x[block.n0 : block.n1, :, y0:y1, x0:x1]


def tile_view(strip: np.ndarray, grid: TileGrid, block: Block) -> np.ndarray:
    """The strip's overlapping tiles as a read-only view (tile_h, tile_w, c, images, rows, columns)."""
    image, channel, row, column = strip.strides
    return as_strided(
        strip,
        shape=(grid.tile_h, grid.tile_w, strip.shape[1], *block.shape),
        strides=(row, column, channel, image, grid.step_h * row, grid.step_w * column),
        writeable=False,
    )
