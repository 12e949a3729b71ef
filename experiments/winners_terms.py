"""Exact tile counts of 3×3 stride-1 convolutions on cuDNN's kernels, for telling which class wins.

Block tiles are those of the kernels that the table of winners names; a grid follows from the sizes, so a class loses
where its tiles overhang and wins where they fit.
"""

import numpy as np
import pandas as pd

WINOGRAD_TILES = ((1, 4, 8), (4, 4, 2), (2, 4, 4), (2, 2, 8), (4, 2, 4), (4, 1, 8))
"""Images × rows × columns of 2×2 outputs that one block of cuDNN's fused Winograd kernel computes for 32 channels.

Source: the names ``…_winograd_128x128_…_tile148t…`` and their grids."""
WINOGRAD_CHANNELS = 32
SGEMM_TILES = ((128, 128), (128, 64), (64, 64), (64, 32), (128, 32), (32, 128), (32, 32), (64, 128))
"""Rows × columns of a block of the SGEMM kernels."""
GCGEMM_TILES = ((64, 64), (64, 32), (32, 32))
"""Rows × columns of a block of the complex GEMM kernels that FFT_TILING multiplies with."""
FFT_TILE = 32
NUMBERS = (("c", (4, 8, 16, 32)), ("k", (16, 32, 64, 128)), ("n", (16, 32)), ("pixels", (32, 64, 128, 256)))
"""Size → steps in which kernels walk it."""


Tiles = tuple[tuple[int, int], ...]
Size = dict[str, np.ndarray]
"""n, c, h, w, k → (rows,) float."""
Terms = tuple[np.ndarray, ...]
"""Arrays (tiles, rows): log2 of the busiest SM's multiply-adds, of the average SM's, of blocks per SM; then others."""


def tile_terms(frame: pd.DataFrame, sms: np.ndarray) -> np.ndarray:
    """(rows, columns) float32: work per SM of every class on every tile, their ratios, and remainders of the sizes.

    ``frame`` has n, c, h, w, k of 3×3, stride-1, padded problems; ``sms`` (rows,) the GPU's SMs.
    """
    size = {name: frame[name].to_numpy(dtype=float) for name in ("n", "c", "h", "w", "k")}
    classes = [
        winograd(size, sms),
        *(nonfused(size, sms, m) for m in (2, 4)),
        precomp(size, sms),
        fft_tiling(size, sms),
    ]
    least = [one[0].min(axis=0) for one in classes]
    ratios = [a - b for place, a in enumerate(least) for b in least[place + 1 :]]
    every = [values for one in classes for part in one for values in part]
    return np.column_stack([*every, *least, *ratios, *_remainders(size)]).astype(np.float32)


def _per_sm(blocks: np.ndarray, tile: float, depth: np.ndarray, sms: np.ndarray) -> tuple[np.ndarray, ...]:
    """log2 of the multiply-adds of the busiest SM, of the average SM, and of the blocks per SM; (rows,) each."""
    return (
        np.log2(np.ceil(blocks / sms) * tile * depth),
        np.log2(blocks * tile * depth / sms),
        np.log2(blocks / sms),
    )


def _stacked(parts: list[tuple[np.ndarray, ...]]) -> Terms:
    return tuple(np.array(column) for column in zip(*parts, strict=True))


def _products(
    tiles: Tiles,
    size: Size,
    rows: np.ndarray,
    depth: np.ndarray,
    sms: np.ndarray,
    count: int = 1,
    work: float = 1.0,
) -> Terms:
    """``count`` products of (rows × depth) by (depth × k) on every tile, ``work`` multiply-adds a term."""
    parts = []
    for m, n in tiles:
        blocks = np.ceil(rows / m) * np.ceil(size["k"] / n) * count
        parts.append(_per_sm(blocks, work * m * n, depth, sms))
    return _stacked(parts)


def winograd(size: Size, sms: np.ndarray) -> Terms:
    """F(2×2, 3×3) in one kernel: 16 multiply-adds per tile of 2×2 outputs, input and output channel."""
    parts = []
    for images, rows, columns in WINOGRAD_TILES:
        blocks = (
            np.ceil(size["n"] / images) * np.ceil(size["k"] / WINOGRAD_CHANNELS)
            * np.ceil(size["h"] / (2 * rows)) * np.ceil(size["w"] / (2 * columns))
        )  # fmt: skip
        parts.append(_per_sm(blocks, 16.0 * images * rows * columns * WINOGRAD_CHANNELS, size["c"], sms))
    return _stacked(parts)


def nonfused(size: Size, sms: np.ndarray, outputs: int) -> Terms:
    """F(m×m, 3×3) in kernels of its own: (m+2)² products of (tiles × c) by (c × k), and what the transforms move."""
    products = (outputs + 2) ** 2
    tiles = size["n"] * np.ceil(size["h"] / outputs) * np.ceil(size["w"] / outputs)
    pixels = size["n"] * size["h"] * size["w"]
    moved = (
        pixels * (size["c"] + size["k"])
        + 2 * products * tiles * (size["c"] + size["k"])
        + size["k"] * size["c"] * (9 + 2 * products)
    )
    used = pixels / (tiles * outputs**2)
    kernels = _products(SGEMM_TILES, size, tiles, size["c"], sms, products)
    return *kernels, np.array([np.log2(tiles), np.log2(moved), used])


def precomp(size: Size, sms: np.ndarray) -> Terms:
    """Implicit GEMM: (pixels × 9c) by (9c × k)."""
    pixels = size["n"] * size["h"] * size["w"]
    return _products(SGEMM_TILES, size, pixels, 9 * size["c"], sms)


def fft_tiling(size: Size, sms: np.ndarray) -> Terms:
    """Tiles of 32×32 in the frequency domain: 32·17 complex products (4 multiply-adds) of (tiles × c) by (c × k)."""
    inner = FFT_TILE - 2
    tiles = size["n"] * np.ceil(size["h"] / inner) * np.ceil(size["w"] / inner)
    spots = FFT_TILE * (FFT_TILE // 2 + 1)
    return _products(GCGEMM_TILES, size, tiles, size["c"], sms, spots, work=4.0)


def _remainders(size: Size) -> list[np.ndarray]:
    """Useful shares of sizes walked in steps, log2 of their greatest power of two up to 64, and the side modulo 16."""
    known = size | {"pixels": size["n"] * size["h"] * size["w"], "plane": size["h"] * size["w"]}
    shares = [known[name] / (np.ceil(known[name] / step) * step) for name, steps in NUMBERS for step in steps]
    powers = [
        np.log2(np.gcd(known[name].astype(np.int64), 64)) for name in ("n", "c", "k", "h", "pixels", "plane")
    ]
    return [*shares, *powers, *(np.mod(size["h"], step) for step in (2, 4, 8, 16))]
