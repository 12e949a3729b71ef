"""Times of matrix products from a GPU's specification: for AMD's boards whose products nobody has published.

A tuned library runs the fastest of many kernels: the law takes the least time over output tiles and over the parts that
the sums may be split into. Of a tile it counts the arithmetic, the operands that reach the compute unit, and the
latency of the steps along the sum, which waves of tiles share; of a product its traffic. The constants are fitted by
`python -m experiments.tiled_products`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..families.gemm import Gemm
from ..gpu import Gpu
from ..roofline import compute_us, memory_us

TENSILE_TYPES = {"fp32": "SB", "fp16": "HHS", "bf16": "BBS", "fp64": "DB", "int8": "I8II"}
"""Element type → the tensile type of a product that names none: sums in fp32, or as wide as the inputs."""
TRANSPOSES = ("NN", "NT", "TN", "TT")
TILES = np.array(
    [
        (16, 16),
        (32, 32),
        (64, 32),
        (32, 64),
        (64, 64),
        (128, 64),
        (64, 128),
        (128, 128),
        (256, 128),
        (128, 256),
        (16, 64),
        (64, 16),
        (16, 128),
        (128, 16),
    ],
    dtype=np.float64,
)
"""Rows and columns of the macro tiles that most of Tensile's winners have."""
SPLITS = np.array([1.0, 4.0, 16.0])
"""Parts of a sum that tiles of their own work on (Tensile's GlobalSplitU)."""
STEP = 16.0
"""Products of a sum between two loads."""
AT_ONCE = 4.0
"""Tiles that a compute unit works on at a time, so that they share the latency."""
LOADS = 32.0
"""Bytes a clock that reach a compute unit: half of the 64 of its L1. Source: AMD, Vega ISA and CDNA 3 whitepaper."""
BLEND = 4.0
"""p of the norm of arithmetic and traffic: the longer one rules, and the shorter one still counts where both are."""


@dataclass(frozen=True, slots=True)
class TiledProductLaw:
    """``shares`` tensile type → what tiles reach of the peak; ``matrix`` stands there for all on matrix cores, ``SB``
    for a type that was not fitted. ``latency`` in clocks, ``bandwidth`` the share of the DRAM's, ``split_us`` what a
    split sum costs besides the traffic of its parts, ``start_us`` the time
    without any tile.
    """

    shares: Mapping[str, float]
    latency: float
    bandwidth: float
    split_us: float
    start_us: float

    def product_us(self, op: Gemm, gpu: Gpu) -> np.ndarray:
        """(problems,) times in µs; sizes are numbers, or arrays of one length."""
        sizes = np.broadcast_arrays(*(np.atleast_1d(size) for size in (op.batch, op.m, op.n, op.k)))
        batch, m, n, k = (size.astype(np.float64)[:, None, None] for size in sizes)  # (problems, tiles, splits)
        rows, columns, splits = TILES[None, :, :1], TILES[None, :, 1:], SPLITS[None, None, :]
        clocks_per_us = gpu.boost_mhz
        # 1. A tile's share of the sum, and its arithmetic and loads on one compute unit.
        depth = np.ceil(k / splits / STEP) * STEP
        peak = op.peak_tflops(gpu, op.dtype, op.math)
        arithmetic_us = compute_us(2 * rows * columns * depth * gpu.sms, peak * self._share(op))
        loads_us = (rows + columns) * depth * op.element.activation_bytes / (LOADS * clocks_per_us)
        # 2. Whole waves of tiles; few of them wait for each step's loads.
        waves = np.ceil(m / rows) * np.ceil(n / columns) * batch * splits / gpu.sms
        waiting_us = np.ceil(waves / AT_ONCE) * depth / STEP * self.latency / clocks_per_us + arithmetic_us
        tiles_us = np.maximum(np.ceil(waves) * (arithmetic_us + loads_us), waiting_us)
        # 3. Traffic, and what the power of the board allows over all of the product.
        traffic_us = memory_us(1.0 * op.dram_bytes, self.bandwidth * gpu.dram_gbs)
        joules = gpu.tensor_pj_per_flop * 1e-12 * op.flops if op.uses_tensor_cores else 0.0
        least_us = np.maximum(traffic_us, joules / (gpu.board_watts or np.inf) * 1e6) + np.zeros(len(m))
        split_us = np.where(splits > 1, self.split_us + memory_us(8.0 * splits * m * n * batch, gpu.dram_gbs), 0.0)
        blended_us = (tiles_us**BLEND + least_us[:, None, None] ** BLEND) ** (1 / BLEND) + split_us
        return blended_us.min(axis=(1, 2)) + self.start_us

    def _share(self, op: Gemm) -> float:
        """The share of the peak for the tensile type that the variant names, or the element type's own."""
        if op.uses_tensor_cores:
            return self.shares["matrix"]
        named = [word for word in op.variant.split() if word not in TRANSPOSES]
        tensile_type = named[0] if named else TENSILE_TYPES.get(op.dtype, "")
        return self.shares.get(tensile_type, self.shares["SB"])
