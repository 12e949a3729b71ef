"""SEER's Excel workbooks: kernel variants with counters, FFT times, pre/post kernels, algorithm picks, other
operators.

How to get them: run the data collection of the public repository Vamix/seer-performance-model on an NVIDIA
GPU with cuDNN 7 and nvprof (its two collection scripts, about a day on a Titan Xp); the workbooks lie in
``data/profiled``. Or ask the paper's authors for theirs. Give all of one GPU's workbooks in one call: the
main kernels of GEMM and WINOGRAD_NONFUSED lie in other workbooks than their pre/post kernels, and a row's
time is the sum of both. The ``Other-ops-*`` workbooks go into a table of their own.
"""

import re
from dataclasses import dataclass, field
from math import ceil, nan
from pathlib import Path
from typing import Any, Unpack

import pandas as pd

from surrogate.dataset.columns import KERNEL_NUMBERS
from surrogate.dataset.problem_list import square_conv
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.formats import imported
from surrogate.formats.foreign_file import Limits, Paths
from surrogate.formats.seer_other_ops import is_other_ops, other_ops_rows
from surrogate.formats.workbook import Sheet, read_sheets

_WITH_PRE = ("GEMM", "WINOGRAD_NONFUSED")
_ORIGIN = "seer_xls"


def read(
    paths: Paths, *, gpu: str, numbering: str = "enum", library_version: str = "7.x", **limits: Unpack[Limits]
) -> imported.Imported:
    """All workbooks of one GPU as dataset rows and a kernel table; ``Other-ops-*`` as rows of their families.

    ``numbering``: how the files number algorithms 4 … 7, see `algorithm_names`. Raises `InputError` naming the file,
    sheet and row.
    """
    names = imported.algorithm_names(numbering)
    content = _Content()
    for path in map(Path, paths):
        sheets = read_sheets(path, **limits)
        if not sheets:
            raise InputError(f"{path}: every sheet is empty; a SEER workbook has a header and measurements")
        if is_other_ops(path):
            content.other_ops += other_ops_rows(path, sheets)
        elif _is_pick(sheets):
            rows, notes = _pick_rows(sheets[0], names)
            content.picks += rows
            content.notes += notes
        elif "ctree" in path.stem.lower():  # the kernel classes of FFT_TILING
            content.classes += _variant_rows(path, sheets, names, holds_classes=True)
        elif path.stem.lower().endswith("_pre"):  # kernels before and after the main one: im2col, transforms
            content.pre += _variant_rows(path, sheets, names)
        else:
            content.variants += _variant_rows(path, sheets, names)
    if content.other_ops:
        if content.picks or content.kernel_rows:
            raise InputError("Other-ops workbooks share no table with algorithms; import them apart")
        return _other_ops(content.other_ops, gpu, library_version)
    return _assemble(content, imported.cudnn_settings(gpu, library_version))


@dataclass(frozen=True, slots=True)
class _VariantRow:
    """One measured row: problem, algorithm, time in µs, and what the workbook says of the kernel."""

    conv: Conv
    algorithm: str
    time_us: float
    part: str
    kernel: dict[str, Any]


@dataclass(slots=True)
class _Content:
    """What the workbooks hold: main kernels, kernels before and after them, kernel classes, picks, other operators."""

    variants: list[_VariantRow] = field(default_factory=list)
    pre: list[_VariantRow] = field(default_factory=list)
    classes: list[_VariantRow] = field(default_factory=list)
    picks: list[dict[str, Any]] = field(default_factory=list)
    other_ops: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def kernel_rows(self) -> list[tuple[int, _VariantRow]]:
        """(kernel index, row): main kernels are kernel 0, the others kernel 1."""
        return [(0, row) for row in self.variants] + [(1, row) for row in (*self.classes, *self.pre)]


def _other_ops(rows: list[dict[str, Any]], gpu: str, library_version: str) -> imported.Imported:
    """TensorFlow runs cuDNN for convolutions, and kernels of its own choice for the rest."""
    frame = pd.DataFrame(rows).assign(gpu=gpu, origin=_ORIGIN)
    is_conv = frame["operator"] == "conv"
    frame["library"] = is_conv.map({True: "cudnn", False: "tensorflow"})
    frame["library_version"] = is_conv.map({True: library_version, False: imported.UNKNOWN_VERSION})
    return imported.Imported(imported.family_rows(frame), candidates="listed")


def _assemble(content: _Content, settings: dict[str, Any]) -> imported.Imported:
    """Variants and picks as rows, everything about kernels as kernels."""
    notes = content.notes
    kernels = _kernels(content, settings)
    rows = pd.concat([_variant_frame(content), pd.DataFrame(content.picks)], ignore_index=True)
    if rows.empty:
        notes.append("no main kernel's workbook among the files: a kernel table only")
        return imported.Imported(imported.no_rows(), kernels, notes=tuple(notes))
    distinct = rows.assign(**settings, origin=_ORIGIN).drop_duplicates(list(imported.KEY_COLUMNS), ignore_index=True)
    if len(distinct) < len(rows):
        repeated = imported.plural(len(rows) - len(distinct), "repeated measurement")
        notes.append(f"{repeated} left out: the first of a key counts")
    variants, pre = ({row.algorithm for row in rows} for rows in (content.variants, content.pre))
    without_pre = variants & set(_WITH_PRE) - pre
    notes += [
        f"{name}: no pre/post workbook given, so its times are the main kernel's alone" for name in sorted(without_pre)
    ]
    first = [*imported.KEY_COLUMNS, "status", "time_us"]
    return imported.Imported(distinct[[*first, *(c for c in distinct if c not in first)]], kernels, notes=tuple(notes))


def _variant_frame(content: _Content) -> pd.DataFrame:
    """Rows of the main kernels; the time of a pre/post workbook joins that of its problem and algorithm."""
    pre_us = {(row.conv, row.algorithm): row.time_us for row in content.pre}
    records = [
        {
            **imported.conv_sizes(row.conv),
            "algorithm": row.algorithm,
            "status": "ok" if row.time_us > 0 else "failed",
            "time_us": row.time_us + pre_us.get((row.conv, row.algorithm), 0.0) if row.time_us > 0 else nan,
            "seer_part": row.part,
        }
        for row in content.variants
    ]
    return pd.DataFrame(records)


def _kernels(content: _Content, settings: dict[str, Any]) -> pd.DataFrame | None:
    records = [
        {**imported.conv_sizes(row.conv), "algorithm": row.algorithm, "kernel_index": index, **row.kernel}
        for index, row in content.kernel_rows
    ]
    if not records:
        return None
    key = [*imported.KEY_COLUMNS, "kernel_index"]
    frame = pd.DataFrame(records).assign(**settings).drop_duplicates(key, ignore_index=True)
    columns = [*key, "kernel_name", *KERNEL_NUMBERS]
    frame = frame.reindex(columns=[*columns, *(c for c in frame if c not in columns)])
    return frame.astype(dict.fromkeys(KERNEL_NUMBERS, "float64"))


# A kernel variant's workbook: 18 columns with counters (a nineteenth with a type is dropped), or ten for FFT, pre/post
# kernels and classes.
_COUNTERS = 18
_TIMES = 10
_TILE = re.compile(r"algo\d+_(\d+x\d+|148|228|418)", re.IGNORECASE)
_LEVELS = 10


def _variant_rows(
    path: Path, sheets: tuple[Sheet, ...], names: tuple[str, ...], *, holds_classes: bool = False
) -> list[_VariantRow]:
    """All rows of a workbook: sheets ``train`` and ``test``, or one sheet (Test-set-II's measured form).

    ``names``: algorithm names by number. ``holds_classes``: the tenth column is a class and no time. Raises
    `InputError` naming file, sheet and row.
    """
    wrong = [sheet.name for sheet in sheets if sheet.name.lower() not in ("train", "test")]
    if wrong and len(sheets) > 1:
        raise InputError(f"{path}: sheet {wrong[0]!r}; a variant's workbook has the sheets train and test")
    match = _TILE.search(path.stem)
    tile = "" if not match else match[1] if "x" in match[1] else "x".join(match[1])  # 148 is Winograd's 1x4x8
    rows: list[_VariantRow] = []
    for sheet in sheets:
        if sheet.width not in (_TIMES, _COUNTERS, _COUNTERS + 1):
            raise InputError(
                f"{path}, sheet {sheet.name!r}: {sheet.width} columns; a variant has 18 (19 with a type),"
                f" an FFT or pre/post workbook 10"
            )
        part = "train" if sheet.name.lower() == "train" else "test"
        for where, cells in sheet.numbers(min(sheet.width, _COUNTERS)):
            conv, algorithm = square_conv(cells, where), names[_whole(cells[8], 0, 7, f"{where}: algorithm")]
            kernel: dict[str, Any] = {"kernel_name": path.stem, "tile": tile}
            time_us = nan if holds_classes else cells[9] * 1000
            if holds_classes:
                kernel["kernel_class"] = _whole(cells[9], 0, 2, f"{where}, column 10: class")
            else:
                kernel["time_us"] = time_us
            if time_us > 0:
                _check_possible(conv, algorithm, where)
            if len(cells) == _COUNTERS:
                kernel |= _counters(cells[10:], where)
            rows.append(_VariantRow(conv, algorithm, time_us, part, kernel))
    if not rows:
        raise InputError(f"{path}: no rows under its header; the sheets train and test hold the measurements")
    return rows


def _counters(cells: list[float], where: str) -> dict[str, float]:
    """Columns 11–18. Waves are computed anew, as the original does: ⌈launched blocks / B_max⌉."""
    instructions, reads, writes, b_max, blocks, _, fp32_level, dram_level = cells
    if b_max < 1 or blocks < 1:
        raise InputError(f"{where}: B_max {b_max:g} and {blocks:g} launched blocks; both must be at least 1")
    for name, level in (("fp32", fp32_level), ("dram", dram_level)):
        if not 0 <= level <= _LEVELS:
            raise InputError(f"{where}: {name} utilisation {level:g}; nvprof's levels go from 0 to 10")
    return {
        "blocks": blocks,
        "b_max": b_max,
        "waves": ceil(blocks / b_max),
        "fp32_instructions": instructions,
        "dram_read_transactions": reads,
        "dram_write_transactions": writes,
        "fp32_utilization_pct": fp32_level * 100 / _LEVELS,
        "dram_utilization_pct": dram_level * 100 / _LEVELS,
    }


# The algorithm-pick workbook (and Test-set-II's): the times of all eight algorithms of each problem.
_PROBLEM = 8
_ALGORITHMS = 8


def _is_pick(sheets: tuple[Sheet, ...]) -> bool:
    """True for the one sheet ``test`` with a time per algorithm: 16 columns, or 18 with the picks."""
    if len(sheets) != 1 or sheets[0].name.lower() != "test":
        return False
    header = sheets[0].header
    is_named = len(header) > _PROBLEM and "algo0" in re.sub("[ _]", "", header[_PROBLEM].lower())
    return is_named or sheets[0].width == _PROBLEM + _ALGORITHMS


def _pick_rows(sheet: Sheet, names: tuple[str, ...]) -> tuple[list[dict[str, Any]], list[str]]:
    """One row per (problem, algorithm), and notes.

    A time ≤ 0 is a failed algorithm. Column 18 is cuDNN's pick (−1: none). Times have a resolution of 0.01 ms.
    """
    if sheet.width not in (16, 18):
        raise InputError(f"{sheet.path}, sheet {sheet.name!r}: {sheet.width} columns; a pick workbook has 16 or 18")
    rows: list[dict[str, Any]] = []
    disagreeing = 0
    for where, cells in sheet.numbers(sheet.width):
        conv = square_conv(cells, where)
        times_ms = cells[_PROBLEM : _PROBLEM + _ALGORITHMS]
        heuristic = None
        if sheet.width == 18:
            best, picked = (_whole(cells[i], -1, 7, f"{where}, column {i + 1}: algorithm") for i in (16, 17))
            heuristic = names[picked] if picked >= 0 else None
            least = min((time for time in times_ms if time > 0), default=None)
            disagreeing += least is not None and (best < 0 or times_ms[best] != least)
        for name, time_ms in zip(names, times_ms, strict=True):
            if time_ms > 0:
                _check_possible(conv, name, where)
            rows.append(
                {
                    **imported.conv_sizes(conv),
                    "algorithm": name,
                    "status": "ok" if time_ms > 0 else "failed",
                    "time_us": time_ms * 1000 if time_ms > 0 else nan,
                    "heuristic_algorithm": heuristic,
                }
            )
    if not rows:
        raise InputError(f"{sheet.path}: no rows under its header; a row per problem is needed")
    notes = [f"{sheet.path.name}: times have a resolution of 0.01 ms"]
    if disagreeing:
        problems = imported.plural(disagreeing, "problem")
        notes.append(f"{sheet.path.name}: in {problems} the stated best is not the least time; times count")
    return rows, notes


def _whole(cell: float, least: int, most: int, what: str) -> int:
    """The cell as a whole number in range; ``what`` begins the `InputError` otherwise."""
    if cell != int(cell) or not least <= cell <= most:
        raise InputError(f"{what} {cell:g}; a whole number from {least} to {most} is needed")
    return int(cell)


def _check_possible(conv: Conv, algorithm: str, where: str) -> None:
    """Refuse a timed row that its algorithm cannot have run: the other numbering of 4 … 7 is then the likely cause.

    Source: cuDNN API reference, cudnnConvolutionForward: Winograd 3×3 (non-fused also 5×5) stride 1, FFT stride 1 and
    at most 256 padded elements a side.
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
