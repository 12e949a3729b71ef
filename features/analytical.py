"""Analytical models of kernel times from a GPU's datasheet, for GPUs without published convolutions or products.

- `TensorCoreModel`: an implicit GEMM on tensor cores. Its time is the p-norm of three times: its arithmetic, one tile
  on its SM, and its traffic. The longest dominates, and the others count if they are close. The shares of half
  precision are fitted to whole networks with large batches (`experiments/image_networks.py`). The shares of TF32, and
  the start and the tile of both, are fitted to small programs (`experiments/small_networks.py`).
- `TiledProductModel`: matrix products of AMD's boards. A tuned library runs the fastest of many kernels, so the model
  takes the minimum time over output tiles and over splits of the sums. A wave of tiles costs the arithmetic of a tile
  and the latency of the steps along its sum, which tiles of one compute unit share. A product also costs its traffic.
  The constants are fitted by `python -m experiments.tiled_products`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .elementwise import Number, maximum, minimum, round_up, where
from .errors import read_toml
from .families import OPERATORS, Operator
from .families.gemm import Gemm
from .families.rowwise import CHANNELS_LAST
from .gpu import Gpu
from .problem import DTYPES, HALF, QUANTISED
from .roofline import compute_us, memory_us, peak_tflops
from .terms import Sized

CHANNEL_BYTES = 16
"""Channels of a group are padded to a multiple of this many bytes.

Source: NVIDIA, cuDNN Developer Guide, Tensor Core Operations.
"""
GATHERED_BYTES = 128
"""The data gradient of a strided filter pads the channels of each tap to a multiple of this many bytes.

It gathers the taps one by one, so that a step along the sum never covers two taps.
"""
NARROW_PIPE_BYTES = 1024.0
"""Operand bytes that one SM's tensor cores multiply per clock on the GPUs of the half-precision fit: 512 operations.

These GPUs are GeForce boards with fp32 sums.
"""
WIDE_PIPE_EXPONENT = 0.25
"""The reached share of the peak falls with this power of a wider pipe.

Large bf16 GEMMs of cuBLAS reach 0.8 of the peaks of RTX PRO 6000 and A100, 0.73 of H100's and 0.7 of B200's
(aiconfigurator's tables).
"""
INTERLEAVED_GROUPS = 32
INTERLEAVED_WIDTHS = (4, 8, 16, 32)
"""Multiple of the number of groups, and channels of a group, with half-precision tensor-core kernels for gradients in
NHWC.

The model takes all other grouped gradients in NHWC to run on the vector units, like depthwise filters. Source: timm's
training steps, in which 32 groups (ResNeXt) are ten times as fast as 2 to 24 groups of the same width (RegNet).
"""
TILE_OUTPUTS = 128 * 64
"""Pixels × channels of the result that a block computes."""
L2_BYTES_PER_CLOCK = 32.0
"""Bytes that an SM reads from L2 per clock.

A100's 5,120 bytes per clock are 47 for each of 108 SMs (NVIDIA's white paper); copies reach two thirds of it.
"""
KERNEL_GAP_US = 2.0
"""Time in µs from the last block of a kernel to the first block of the next one in a busy stream."""
BANDWIDTH_FIELDS = {
    kind: f"{cls.BANDWIDTH_SHARE}_bandwidth" for kind, cls in OPERATORS.items() if cls.BANDWIDTH_SHARE
} | {"streamed": "streaming_bandwidth"}
"""Kind of a memory-bound operator → the name of its share of the bandwidth."""
BATCH_FIELDS = ("batch_norm_bandwidth", "batch_norm_gradient_bandwidth")
"""Shares of norms by the batch's statistics in NCHW; in NHWC they reach ``norm_bandwidth``."""
AUTOCAST_FIELDS = {"layer_norm_backward": "norm_gradient_bandwidth"}
"""Kind of an operator that autocast runs in fp32 → the name of its share."""
MAX_AUTOCAST_ROW = 1024.0
"""Values of a row up to which the fitted share holds.

PyTorch sums the weights' gradients with a block for each 32 columns (``layer_norm_kernel.cu``, up to release 2.7), so
that the blocks of wider rows fill more of the GPU. The fitted networks have rows up to this size.
"""


def bandwidth_field(op: Operator) -> str | None:
    """Return the name of an operator's share of the bandwidth; None if the model does not cover it."""
    field = BANDWIDTH_FIELDS.get(op.kind) if op.dtype in HALF else AUTOCAST_FIELDS.get(op.kind)
    return "norm_bandwidth" if field in BATCH_FIELDS and op.variant == CHANNELS_LAST else field


@dataclass(frozen=True, slots=True)
class TensorCoreModel:
    """Time of kernels as shares of a datasheet's peaks.

    ``peak_share`` is the share of the tensor peak for many channels and a long sum. It falls to half at ``half_width``
    channels and at ``half_depth`` products per sum. ``grouped_share`` is the same share for grouped filters. ``blend``
    is the p of the p-norm. ``transform`` and ``transform_1x1`` are passes over input and output that NCHW adds, for
    filters of several taps and of one tap. Depthwise filters run on the vector units. All ``…bandwidth`` are shares of
    the DRAM bandwidth. ``start_us`` is a constant time of every dense convolution. ``tile_time`` is the time of one
    tile, divided by its time at the SM's peak; sums are split among SMs if there are few tiles. The data gradient of a
    strided filter, which a transposed convolution runs, reaches ``gathered_share`` of the other kernels' peak, because
    it also multiplies the zeros between the gathered pixels. ``rms_norm_bandwidth`` is estimated from the measurements
    that `families/rowwise.toml` states: no table has RMS norms on the GPUs of the fit.

    Training steps determine the rest. ``filter_gradient`` is the time of a filter's gradient / the time of the forward
    pass. ``gradient_transform`` is the minimum of the passes that NCHW adds to a gradient; ``padding_passes`` are added
    to gradients in NHWC whose channels need padding. ``batch_norm_…`` holds for statistics of the batch in NCHW. Layer
    norm's gradient in fp32, to which autocast casts, reaches ``norm_gradient_bandwidth``: its kernels read the row and
    its gradient several times, and few blocks sum the weights' gradients.
    """

    peak_share: float
    half_width: float
    half_depth: float
    grouped_share: float
    blend: float
    bandwidth: float
    transform: float
    transform_1x1: float
    depthwise_share: float
    depthwise_bandwidth: float
    depthwise_nhwc_bandwidth: float
    streaming_bandwidth: float
    norm_bandwidth: float
    pool_bandwidth: float
    start_us: float = 0.0
    tile_time: float = 0.0
    gathered_share: float = 1.0
    rms_norm_bandwidth: float = 0.95
    filter_gradient: float = 1.5
    gradient_transform: float = 0.0
    padding_passes: float = 0.0
    depthwise_gradient_bandwidth: float = 0.95
    batch_norm_bandwidth: float = 0.95
    batch_norm_gradient_bandwidth: float = 0.95
    norm_gradient_bandwidth: float = 0.0

    def convolution_us(self, z: Sized, gpu: Gpu, dtype: str) -> Number:
        """Return the time in µs of one convolution; numbers or arrays."""
        traffic_us = memory_us(1.0 * z.tensor_bytes, gpu.dram_gbs)
        # 1. Dense and grouped: arithmetic on padded channels. A product's width and depth set the share of the peak.
        peak = peak_tflops(gpu, dtype, uses_tensor_cores=True)
        pipe = peak * 1e6 / (gpu.sms * gpu.boost_mhz) * DTYPES[dtype] / NARROW_PIPE_BYTES
        share = where(z.groups > 1, self.grouped_share, self.peak_share) / max(pipe, 1.0) ** WIDE_PIPE_EXPONENT
        step = CHANNEL_BYTES // DTYPES[dtype]
        padded_out = round_up(z.channels_out, step)
        gathers = z.is_bwd_data & (z.stride_h * z.stride_w > 1)
        padded_in = round_up(z.channels_in, where(gathers, GATHERED_BYTES // DTYPES[dtype], step))
        padded = 1.0 * z.flops * padded_out / z.channels_out * padded_in / z.channels_in
        sum_length = 1.0 * padded_in * z.r * z.s
        share = share * where(gathers, self.gathered_share, 1.0)
        share = share * padded_out / (padded_out + self.half_width) * sum_length / (sum_length + self.half_depth)
        tile_us = self.tile_time * compute_us(2.0 * TILE_OUTPUTS * sum_length, peak / gpu.sms)
        arithmetic_us = self._blended(compute_us(padded, peak * share), tile_us)
        vector_us = compute_us(1.0 * z.flops, peak_tflops(gpu, "fp32") * self.depthwise_share)
        is_gradient = z.is_bwd_data | z.is_bwd_filter
        arithmetic_us = where(self._is_vectorised(z, dtype), vector_us, arithmetic_us)
        dense_us = self._blended(arithmetic_us, traffic_us / self.bandwidth)
        # 2. NCHW: kernels read and write NHWC, so tensors are transformed before and after.
        passes = where(z.r * z.s > 1, self.transform, self.transform_1x1)
        weights = z.k * z.c_per_group * z.r * z.s * z.itemsize
        images_us = memory_us(z.tensor_bytes - weights, gpu.dram_gbs)
        passes = maximum(passes, where(is_gradient, self.gradient_transform, 0.0))
        is_padded = ((z.c > step) & (z.c % step > 0)) | ((z.k > step) & (z.k % step > 0))
        padding = where(is_gradient & is_padded & (z.groups == 1), self.padding_passes, 0.0)
        dense_us = dense_us + 2.0 * where(z.is_nhwc, padding, passes) * images_us + self.start_us
        dense_us = dense_us * where(z.is_bwd_filter, self.filter_gradient, 1.0)
        # 3. Depthwise.
        bandwidth = where(z.is_nhwc, self.depthwise_nhwc_bandwidth, self.depthwise_bandwidth)
        bandwidth = minimum(bandwidth, where(is_gradient, self.depthwise_gradient_bandwidth, 1.0))
        depthwise_us = self._blended(vector_us, traffic_us / bandwidth)
        # Filter's gradient: the block of each tap reads its channel of both images again.
        read = where(z.is_bwd_filter, 1.0 * z.r * z.s * (z.tensor_bytes - weights), 0.0)
        depthwise_us = self._blended(depthwise_us, read / (L2_BYTES_PER_CLOCK * gpu.sms * gpu.boost_mhz))
        return where((z.groups > 1) & (z.c_per_group == 1), depthwise_us, dense_us) + KERNEL_GAP_US

    def _is_vectorised(self, z: Sized, dtype: str) -> Number:
        """Return where a grouped gradient runs on the vector units: in half precision and NHWC, unless interleaved."""
        width = z.c_per_group
        has_kernel = (z.groups % INTERLEAVED_GROUPS == 0) & (z.dilation_h == 1)
        has_kernel = has_kernel & np.logical_or.reduce([width == each for each in INTERLEAVED_WIDTHS])
        return (dtype in HALF) & (z.is_bwd_data | z.is_bwd_filter) & z.is_nhwc & (z.groups > 1) & ~has_kernel

    def streamed_us(self, op: Operator, gpu: Gpu) -> Number | None:
        """Return the time in µs of a memory-bound operator; None if the model does not cover it."""
        share = getattr(self, bandwidth_field(op) or "", 0.0)
        if share and op.kind in AUTOCAST_FIELDS and op.dtype not in HALF:
            share = minimum(share * maximum(op.sizes["c"] / MAX_AUTOCAST_ROW, 1.0), self.streaming_bandwidth)
        return memory_us(1.0 * op.dram_bytes, gpu.dram_gbs) / share + KERNEL_GAP_US if share else None

    def _blended(self, compute: Number, memory: Number) -> Number:
        """Return (cᵖ + mᵖ)^(1/p)."""
        return (compute**self.blend + memory**self.blend) ** (1.0 / self.blend)


_TABLE = read_toml(__file__)
TENSILE_TYPES: dict[str, str] = _TABLE["tensile_types"]
"""Element type → the tensile type of a product that names none: sums in fp32, or as wide as the inputs."""
TRANSPOSES = ("NN", "NT", "TN", "TT")
TILES = np.array(_TABLE["tiles"], dtype=np.float64)
"""Rows and columns of the macro tiles of most of Tensile's and aiter's winners."""
SPLITS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
"""Parts of a sum that separate tiles compute (Tensile's GlobalSplitU)."""
DEPTH = 64.0
"""Multiple to which the length of a sum is padded."""
STEP = 256.0
"""Products of a sum between two waits for memory. Steps of equal bytes predicted boards left out worse."""
CONCURRENT_TILES = 2.0
"""Tiles that a compute unit processes at a time; they share the latency."""


@dataclass(frozen=True, slots=True)
class TiledProductModel:
    """Time of AMD's matrix products. ``shares`` maps a type to the share of the peak that tiles reach.

    Types are element types on matrix cores, and tensile types of everything else. Both half-precision types have the
    key ``bf16`` on boards with fp8 units, and ``fp16`` on older ones, whose slower matrix cores reach more of the peak.
    If a type was not fitted, ``bf16`` holds for quantised values, and ``SB`` for the rest. ``latency`` is in clocks.
    ``bandwidth`` is a share of the DRAM bandwidth. ``split_us`` is the cost of a split sum, besides the traffic of its
    parts. ``start_us`` is the time without any tile.
    """

    shares: Mapping[str, float]
    latency: float
    bandwidth: float
    split_us: float
    start_us: float

    def product_us(self, op: Gemm, gpu: Gpu) -> np.ndarray:
        """Return (problems,) times in µs; sizes are numbers, or arrays of one length."""
        sizes = np.broadcast_arrays(*(np.atleast_1d(size) for size in (op.batch, op.m, op.n, op.k)))
        batch, m, n, k = (size.astype(np.float64)[:, None, None] for size in sizes)  # (problems, tiles, splits)
        rows, columns, splits = TILES[None, :, :1], TILES[None, :, 1:], SPLITS[None, None, :]
        # 1. A tile's part of the sum: its arithmetic on one compute unit, and its waits for memory.
        depth = np.ceil(k / splits / DEPTH) * DEPTH
        peak = op.peak_tflops(gpu, op.dtype, op.math)
        arithmetic_us = compute_us(2 * rows * columns * depth * gpu.sms, peak * self.share(op, gpu))
        waits_us = depth / STEP * self.latency / gpu.boost_mhz
        # 2. Complete waves of tiles, the sums of their parts, and the traffic of the product.
        waves = np.ceil(m / rows) * np.ceil(n / columns) * batch * splits / gpu.sms
        tiles_us = np.ceil(waves) * arithmetic_us + np.ceil(waves / CONCURRENT_TILES) * waits_us
        split_us = np.where(splits > 1, self.split_us + memory_us(8.0 * splits * m * n * batch, gpu.dram_gbs), 0.0)
        traffic_us = memory_us(1.0 * op.dram_bytes, self.bandwidth * gpu.dram_gbs)
        time_us = (tiles_us + split_us).min(axis=(1, 2)) + traffic_us
        # 3. The energy of half precision at the board's power.
        joules = gpu.tensor_pj_per_flop * 1e-12 * op.flops if op.uses_tensor_cores and op.dtype in HALF else 0.0
        return np.maximum(time_us, joules / (gpu.board_watts or np.inf) * 1e6) + self.start_us

    def share(self, op: Gemm, gpu: Gpu) -> float:
        """Return the share of the peak for the type of a product."""
        types = [word for word in op.variant.split() if word not in TRANSPOSES] or [TENSILE_TYPES.get(op.dtype, "")]
        if op.uses_tensor_cores and op.dtype in HALF:
            types = ["bf16" if gpu.fp8_tensor_tflops else "fp16"]
        elif op.uses_tensor_cores and op.dtype in QUANTISED:
            types = [op.dtype, op.element.unit, "bf16"]
        return next(self.shares[name] for name in (*types, "SB") if name in self.shares)


PRODUCTS: dict[str, Any] = json.loads(Path(__file__).with_name("tiled_products.json").read_bytes())
"""The fitted models of products with their errors, as `python -m experiments.tiled_products` writes them."""
_MODELS = {name: TiledProductModel(**constants) for name, constants in PRODUCTS["laws"].items()}
MATRIX_CORES = "matrix"
"""Name of the model of boards with matrix cores for fp32. The other models have the beginnings of architectures."""


def tiled_product_us(op: Gemm, gpu: Gpu) -> np.ndarray:
    """Return (problems,) times in µs of an AMD GPU's matrix products, by the model of boards of its kind."""
    start = "" if gpu.fp32_matrix_tflops else gpu.architecture
    return _MODELS[next((name for name in _MODELS if start.startswith(name)), MATRIX_CORES)].product_us(op, gpu)
