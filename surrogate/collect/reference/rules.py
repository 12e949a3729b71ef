"""Which problems each algorithm takes: a short reason, or None where it runs (after cuDNN's rules)."""

from surrogate.collect.reference.fft import MAX_PADDED
from surrogate.collect.reference.fft_tiling import TILE
from surrogate.features.conv import Conv


def everywhere(conv: Conv) -> str | None:
    """What the reference device takes at all: fp32, FMA math, NCHW, forward."""
    if conv.direction != "fwd":
        return f"direction {conv.direction}: the reference device runs fwd only"
    if conv.dtype != "fp32":
        return f"dtype {conv.dtype}: the reference device runs fp32 only"
    if conv.layout != "NCHW":
        return f"layout {conv.layout}: the reference device runs NCHW only"
    if conv.math not in ("fma", "default"):
        return f"math {conv.math}: the reference device has no tensor cores"
    return None


def fft(conv: Conv) -> str | None:
    """Whole-image FFT: unit stride and dilation, no groups, filter larger than the padding, image ≤ 256."""
    height, width = conv.h + 2 * conv.pad_h, conv.w + 2 * conv.pad_w
    if height > MAX_PADDED or width > MAX_PADDED:
        return f"padded input {height}x{width}: at most {MAX_PADDED} per axis"
    return _fourier(conv)


def fft_tiling(conv: Conv) -> str | None:
    """Tiled FFT: unit stride and dilation, no groups, filter larger than the padding, at most 32."""
    if max(conv.r, conv.s) > TILE:
        return f"filter {conv.r}x{conv.s}: at most {TILE} per axis"
    return _fourier(conv)


def winograd(conv: Conv) -> str | None:
    """Fused Winograd: 3×3, unit stride and dilation."""
    if (conv.r, conv.s) != (3, 3):
        return f"filter {conv.r}x{conv.s}: only 3x3"
    return _unit(conv)


def winograd_nonfused(conv: Conv) -> str | None:
    """Non-fused Winograd: 3×3 or 5×5, unit stride and dilation."""
    if (conv.r, conv.s) not in ((3, 3), (5, 5)):
        return f"filter {conv.r}x{conv.s}: only 3x3 and 5x5"
    return _unit(conv)


def _fourier(conv: Conv) -> str | None:
    if conv.groups != 1:
        return f"groups {conv.groups}: only 1"
    if conv.r <= conv.pad_h or conv.s <= conv.pad_w:
        return f"pad {conv.pad_h}x{conv.pad_w}: it must be smaller than the filter {conv.r}x{conv.s}"
    return _unit(conv)


def _unit(conv: Conv) -> str | None:
    if conv.stride_h != 1 or conv.stride_w != 1:
        return f"stride {conv.stride_h}x{conv.stride_w}: only 1"
    if conv.dilation_h != 1 or conv.dilation_w != 1:
        return f"dilation {conv.dilation_h}x{conv.dilation_w}: only 1"
    return None
