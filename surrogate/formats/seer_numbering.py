"""SEER's algorithm numbers, square problems, and the check that a row can be what its number says."""

from surrogate.features.algorithms import algorithms
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError, nearest

NUMBERINGS = ("enum", "readme")
_README = {4: "WINOGRAD", 5: "WINOGRAD_NONFUSED", 6: "FFT", 7: "FFT_TILING"}


def algorithm_names(numbering: str) -> tuple[str, ...]:
    """Names of algorithms 0 … 7: cuDNN's enum, or as the original repository's README numbers 4 … 7."""
    if numbering not in NUMBERINGS:
        raise InputError(
            f"numbering {numbering!r} is unknown; known: enum, readme{nearest(numbering, NUMBERINGS)}"
        )
    names = {a.enum: a.name for a in algorithms("cudnn", "fwd")}
    if numbering == "readme":
        names.update(_README)
    return tuple(names[code] for code in range(8))


def algorithm_name(code: float, names: tuple[str, ...], where: str) -> str:
    """The algorithm that ``code`` numbers. Raises `InputError` unless it is a whole number from 0 to 7."""
    if code != int(code) or not 0 <= code < len(names):
        raise InputError(f"{where}: algorithm {code:g}; a whole number from 0 to 7 is needed")
    return names[int(code)]


def square_conv(cells: list[float], where: str) -> Conv:
    """The problem of columns 1–8: batch, channels, width, out channels, out width, filter, stride, padding.

    Out width 0 means "not given"; any other must follow from the rest. Raises `InputError` naming ``where``.
    """
    n, c, w, k, out_w, r, stride, pad = cells[:8]
    try:
        conv = Conv(n=n, c=c, h=w, k=k, r=r, pad_h=pad, stride_h=stride)  # type: ignore[arg-type]  # Conv checks
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if out_w not in (0, conv.out_w):
        raise InputError(
            f"{where}: out width {out_w:g}; ⌊(W + 2·pad − filter) / stride⌋ + 1 gives {conv.out_w}:"
            f" correct the row, or write 0 to have it computed"
        )
    return conv


def check_possible(conv: Conv, algorithm: str, where: str) -> None:
    """Refuse a timed row that its algorithm cannot have run: the other numbering of 4 … 7 is then the likely
    cause.

    Source: cuDNN API reference, cudnnConvolutionForward: Winograd 3×3 (non-fused also 5×5) stride 1, FFT
    stride 1 and at most 256 padded elements a side.
    """
    filters = {"WINOGRAD": (3,), "WINOGRAD_NONFUSED": (3, 5)}
    wrong = (algorithm in filters and (conv.r not in filters[algorithm] or conv.stride_h != 1)) or (
        algorithm == "FFT" and (conv.stride_h != 1 or conv.h + 2 * conv.pad_h > 256)
    )
    if wrong:
        raise InputError(
            f"{where}: a time for {algorithm}, which cannot run filter {conv.r}, stride {conv.stride_h},"
            f" width {conv.h}, padding {conv.pad_h}; is it the other --numbering (enum, readme)?"
        )
