"""Times of tensor-core kernels from a GPU's specification: for GPUs whose convolutions nobody has published.

An implicit GEMM on tensor cores takes the p-norm of its arithmetic's time, of one tile's alone on its SM, and of its
traffic's, so that the longest rules and the others still count where they are near. The shares are fitted to whole
networks: those of half precision to large batches (`experiments/image_networks.py`), those of TF32 to small programs,
too (`experiments/small_networks.py`).
"""

from dataclasses import dataclass

from ..elementwise import Number, round_up, where
from ..families import OPERATORS, Operator
from ..gpu import Gpu
from ..problem import DTYPES
from ..roofline import compute_us, memory_us, peak_tflops
from .kernel import Sized

CHANNEL_BYTES = 16
"""Channels of a group are padded to it. Source: NVIDIA, cuDNN Developer Guide, Tensor Core Operations."""
GATHERED_BYTES = 128
"""Channels that a strided filter's data gradient sums for each tap are padded to it: taps are gathered one by one, so
that no step of a tile's depth spans two."""
NARROW_PIPE = 1024.0
"""Bytes of operands that one SM's tensor cores multiply a clock on the GPUs that the law of half precision is fitted
on (GeForce, fp32 sums): 512 operations."""
WIDE_PIPE_EXPONENT = 0.25
"""A share of the peak falls with this power of a wider pipe: large bf16 GEMM of cuBLAS reaches 0.8 of RTX PRO 6000's
and A100's peaks, 0.73 of H100's, 0.7 of B200's (aiconfigurator's tables)."""
FILTER_GRADIENT = 1.5
"""How many times as long as the forward pass a filter's gradient takes: the least of four networks by cuDNN 7's
tensor-core kernels on a V100 (ResNet-50 2.8, VGG-16 1.5, Inception 3.2, DenseNet-121 2.9), as c3sr/scope timed them."""
TILE = 128 * 64
"""Pixels × channels of the result that a block computes."""
L2_BYTES = 32.0
"""What an SM reads from L2 in a clock: A100's 5,120 bytes a clock are 47 for each of 108 SMs (NVIDIA's white paper), of
which copies reach two thirds."""
LAUNCH_US = 2.0
"""From one kernel's last block to the next one's first in a busy stream."""
STREAMING = {kind: f"{cls.BANDWIDTH}_bandwidth" for kind, cls in OPERATORS.items() if cls.BANDWIDTH} | {
    "streamed": "streaming_bandwidth"
}
"""Kind of an operator that memory bounds → the share of the bandwidth that it reaches."""


@dataclass(frozen=True, slots=True)
class TensorCoreLaw:
    """Shares of a specification's peaks that kernels reach.

    ``peak_share`` of the tensor peak for many channels and a long sum, half of it at ``half_width`` channels and at
    ``half_depth`` products a sum; ``grouped_share`` the same for grouped filters. ``blend`` is p. ``transform`` and
    ``transform_1x1`` are passes over input and output that NCHW adds, for filters of several taps and of one. Depthwise
    filters run on the vector units. All ``…bandwidth`` are shares of the DRAM bandwidth. ``start_us`` is what every
    dense convolution takes, however small, and ``tile_time`` the time of one tile in those of its SM's peak: sums are
    split among SMs where tiles are few. A strided filter's data gradient, which a transposed convolution runs, reaches
    ``gathered_share`` of the others' peak: kernels multiply the zeros between the gathered pixels, too.
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

    def convolution_us(self, z: Sized, gpu: Gpu, dtype: str) -> Number:
        """Time in µs of one convolution; numbers or arrays."""
        traffic_us = memory_us(1.0 * z.tensor_bytes, gpu.dram_gbs)
        # 1. Dense and grouped: arithmetic on padded channels, the peak's share by the width and the depth of a product.
        peak = peak_tflops(gpu, dtype, uses_tensor_cores=True)
        pipe = peak * 1e6 / (gpu.sms * gpu.boost_mhz) * DTYPES[dtype] / NARROW_PIPE
        share = where(z.groups > 1, self.grouped_share, self.peak_share) / max(pipe, 1.0) ** WIDE_PIPE_EXPONENT
        step = CHANNEL_BYTES // DTYPES[dtype]
        wide = round_up(z.channels_out, step)
        gathers = z.is_bwd_data & (z.stride_h * z.stride_w > 1)
        deep = round_up(z.channels_in, where(gathers, GATHERED_BYTES // DTYPES[dtype], step))
        padded = 1.0 * z.flops * wide / z.channels_out * deep / z.channels_in
        depth = 1.0 * deep * z.r * z.s
        share = share * where(gathers, self.gathered_share, 1.0)
        share = share * wide / (wide + self.half_width) * depth / (depth + self.half_depth)
        tile_us = self.tile_time * compute_us(2.0 * TILE * depth, peak / gpu.sms)
        arithmetic_us = self._blended(compute_us(padded, peak * share), tile_us)
        dense_us = self._blended(arithmetic_us, traffic_us / self.bandwidth)
        # 2. NCHW: kernels read and write NHWC, so that tensors are transformed before and after.
        passes = where(z.r * z.s > 1, self.transform, self.transform_1x1)
        weights = z.k * z.c_per_group * z.r * z.s * z.itemsize
        images_us = memory_us(z.tensor_bytes - weights, gpu.dram_gbs)
        dense_us = dense_us + where(z.is_nhwc, 0.0, 2.0 * passes) * images_us + self.start_us
        dense_us = dense_us * where(z.is_bwd_filter, FILTER_GRADIENT, 1.0)
        # 3. Depthwise.
        vector_us = compute_us(1.0 * z.flops, peak_tflops(gpu, "fp32") * self.depthwise_share)
        bandwidth = where(z.is_nhwc, self.depthwise_nhwc_bandwidth, self.depthwise_bandwidth)
        depthwise_us = self._blended(vector_us, traffic_us / bandwidth)
        # Its filter's gradient: a block for every tap reads its channel of both images, whoever else has read it.
        read = where(z.is_bwd_filter, 1.0 * z.r * z.s * (z.tensor_bytes - weights), 0.0)
        depthwise_us = self._blended(depthwise_us, read / (L2_BYTES * gpu.sms * gpu.boost_mhz))
        return where((z.groups > 1) & (z.c_per_group == 1), depthwise_us, dense_us) + LAUNCH_US

    def streamed_us(self, work: Operator, gpu: Gpu) -> Number | None:
        """Time in µs of an operator that memory bounds; None for one that the law does not describe."""
        share = STREAMING.get(work.kind)
        return share and memory_us(1.0 * work.dram_bytes, gpu.dram_gbs) / getattr(self, share) + LAUNCH_US

    def _blended(self, compute: Number, memory: Number) -> Number:
        """(cᵖ + mᵖ)^(1/p)."""
        return (compute**self.blend + memory**self.blend) ** (1.0 / self.blend)
