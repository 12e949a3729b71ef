"""FFT_TILING: overlap-save with 32×32 tiles, in blocks of tiles, as cuDNN's algorithm 5."""

import numpy as np

from surrogate.collect.reference import spectral
from surrogate.collect.reference.blocks import Block, blocks
from surrogate.collect.reference.buffers import Buffer, Buffers, part
from surrogate.collect.reference.spectral import Size
from surrogate.collect.reference.tiles import TileGrid, fill_strip, tile_view
from surrogate.features.conv import Conv

TILE = 32
"""Inputs per tile and axis; no filter may be larger."""
SIZE = Size(TILE, TILE)
BLOCK_TILES = 32
"""Tiles per block: enough rows for the GEMMs to use the filter's spectrum well."""


def grid(conv: Conv) -> TileGrid:
    """The grid of tiles; each yields 33 − r by 33 − s outputs."""
    return TileGrid.of(conv, TILE, TILE)


def buffers(conv: Conv) -> Buffers:
    """The stages of the filter, and those of one block of tiles."""
    tiling = grid(conv)
    block = tiling.largest_block(conv, BLOCK_TILES)
    tiles = block[0] * block[1] * block[2]
    return {
        **spectral.filter_buffers(conv, SIZE),
        "strip": Buffer(tiling.strip_shape(conv, block)),
        "tiles": Buffer((TILE, TILE, tiles, conv.c)),
        "spectrum": Buffer((TILE, SIZE.frequencies, tiles, conv.c), "complex64"),
        "product": Buffer((TILE, SIZE.frequencies, tiles, conv.k), "complex64"),
        "output": Buffer((tiling.step_h, TILE, tiles, conv.k)),
    }


def kernel(x: np.ndarray, w: np.ndarray, y: np.ndarray, conv: Conv) -> None:
    """Write the convolution of ``x`` (n, c, h, w) and ``w`` (k, c, r, s) to ``y`` (n, k, p, q)."""
    tiling, planned = grid(conv), buffers(conv)
    stages = spectral.filter_spectrum(w, conv, SIZE)
    work = {name: planned[name].empty() for name in ("strip", "tiles", "product")}
    for block in blocks(conv.n, tiling.rows, tiling.columns, BLOCK_TILES):
        strip = part(work["strip"], tiling.strip_shape(conv, block.shape))
        fill_strip(x, conv, tiling, block, strip)
        output = _correlate(strip, stages[-1], tiling, block, work)
        _scatter(output, y, tiling, block)
        del output  # or the next block's would be allocated beside it


def _correlate(
    strip: np.ndarray, spectrum: np.ndarray, tiling: TileGrid, block: Block, work: dict[str, np.ndarray]
) -> np.ndarray:
    """A block's outputs, (step_h, 32, images, rows, columns, k); columns ≥ step_w have wrapped around."""
    c, k = spectrum.shape[2:]
    tiles = part(work["tiles"], (TILE, TILE, *block.shape, c))
    tiles[...] = np.moveaxis(tile_view(strip, tiling, block), 2, -1)
    rows = spectral.rfft(tiles.reshape(TILE, TILE, block.size, c))
    frequencies = spectral.fft(rows, overwrite=True)
    product = part(work["product"], (TILE, SIZE.frequencies, block.size, k))
    np.matmul(frequencies, spectrum, out=product)
    return spectral.inverse(product, SIZE, tiling.step_h).reshape(tiling.step_h, TILE, *block.shape, k)


def _scatter(output: np.ndarray, y: np.ndarray, tiling: TileGrid, block: Block) -> None:
    """Copy each tile's valid outputs to ``y``, leaving out what lies beyond its edge."""
    out_h, out_w = y.shape[2:]
    for row in range(block.p0, block.p1):
        p0, p1 = row * tiling.step_h, min((row + 1) * tiling.step_h, out_h)
        for column in range(block.q0, block.q1):
            q0, q1 = column * tiling.step_w, min((column + 1) * tiling.step_w, out_w)
            tile = output[: p1 - p0, : q1 - q0, :, row - block.p0, column - block.q0]
            y[block.n0 : block.n1, :, p0:p1, q0:q1] = tile.transpose(2, 3, 0, 1)
