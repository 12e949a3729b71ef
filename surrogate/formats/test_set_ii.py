"""SEER's text lists of problems: Test-set-II (real networks' layers) and its ``prof-ops`` files.

How to get one: write it by hand or with a script. The first line is the number of problems; each further line
holds, separated by blanks, tabs, commas or semicolons: batch, in channels, in width, out channels, out width
(0: computed), filter width, stride, padding, and in ``prof-ops`` files the algorithm's number (0–7) as a
ninth. Square problems only.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from surrogate.features.algorithms import algorithms
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError, nearest
from surrogate.formats.foreign_file import DEFAULT_MAX_BYTES, read_lines

NUMBERINGS = ("enum", "readme")
_README = {4: "WINOGRAD", 5: "WINOGRAD_NONFUSED", 6: "FFT", 7: "FFT_TILING"}
_NUMBER = re.compile(r"[+-]?\d{1,18}(\.0*)?")


@dataclass(frozen=True, slots=True)
class ListedProblem:
    """One line: the problem, and the algorithm's number where the line has one."""

    conv: Conv
    algorithm: int | None


def read_test_set_ii(path: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> list[Conv]:
    """The problems of ``path`` in its order (fp32, FMA, NCHW, fwd). Raises `InputError` naming the line."""
    return [listed.conv for listed in read_listed(path, max_bytes=max_bytes)]


def read_listed(path: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> list[ListedProblem]:
    """As `read_test_set_ii`, with the algorithm of each line.

    The count line may be missing; where it stands it must be right. Blank lines and lines beginning with # are skipped.
    """
    declared: int | None = None
    problems: list[ListedProblem] = []
    for number, line in read_lines(path, max_bytes=max_bytes):
        words = re.split(r"[\s,;]+", line.split("#")[0].strip().strip(",;"))
        if words == [""]:
            continue
        where = f"{path}, line {number}"
        values = [_whole(word, where) for word in words]
        if len(values) == 1 and declared is None and not problems:
            declared = values[0]
        else:
            problems.append(_listed(values, where))
    if not problems:
        raise InputError(
            f"{path}: holds no problem; each line needs 8 numbers: batch, C, W, K, out W, filter, stride, pad"
        )
    if declared is not None and declared != len(problems):
        raise InputError(
            f"{path}: its first line counts {declared}, but {len(problems)} problems follow; correct the count"
        )
    return problems


def _listed(values: list[int], where: str) -> ListedProblem:
    if len(values) not in (8, 9):
        raise InputError(
            f"{where}: {len(values)} numbers; 8 are needed: batch, C, W, K, out W, filter, stride, pad (and"
            " 9: algorithm)"
        )
    code = values[8] if len(values) == 9 else None
    if code is not None and not 0 <= code <= 7:
        raise InputError(f"{where}: algorithm {code}; a number from 0 to 7 is needed")
    return ListedProblem(square_conv([float(v) for v in values], where), code)


def _whole(word: str, where: str) -> int:
    if not _NUMBER.fullmatch(word):
        raise InputError(f"{where}: {word[:40]!r}; a whole number is needed")
    return int(word.split(".")[0])


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
