"""SEER's Excel workbooks: kernel variants with counters, FFT times, pre/post kernels, algorithm picks, other operators.

How to get them: run the two collection scripts of the public repository Vamix/seer-performance-model on an NVIDIA GPU
with cuDNN 7 and nvprof (about a day on a Titan Xp). They write the workbooks to ``data/profiled``. Or ask the paper's
authors for theirs. Give all workbooks of one GPU in one call. The main kernels of GEMM and WINOGRAD_NONFUSED and their
pre/post kernels are in different workbooks, and the time of a row is the sum of both. Import the ``Other-ops-*``
workbooks into a separate table.
"""

import io
import math
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, nan
from pathlib import Path
from typing import Any, Unpack

import pandas as pd

from surrogate.dataset.columns import KERNEL_NUMBERS
from surrogate.dataset.problem_list import square_conv
from surrogate.features import Conv, InputError, check_choice, checked_int, output_size
from surrogate.features.families import OPERATORS
from surrogate.formats import Format, imported
from surrogate.formats.foreign_file import DEFAULT_MAX_BYTES, Allowance, Paths, ReadLimits, read_bytes, unpacked

_WITH_PRE = ("GEMM", "WINOGRAD_NONFUSED")
_ORIGIN = "seer_xls"


def read(
    paths: Paths, *, gpu: str, numbering: str = "enum", library_version: str = "7.x", **limits: Unpack[ReadLimits]
) -> imported.Imported:
    """Read all workbooks of one GPU as dataset rows and a kernel table, or ``Other-ops-*`` as rows of their families.

    ``numbering`` is the files' numbering of algorithms 4 … 7, see `algorithm_names`. Raises `InputError` with file,
    sheet and row.
    """
    names = imported.algorithm_names(numbering)
    content: dict[str, list[Any]] = defaultdict(list)
    for path in map(Path, paths):
        sheets = read_sheets(path, **limits)
        if not sheets:
            raise InputError(f"{path}: every sheet is empty; give a SEER workbook with a header and measurements")
        if path.stem.lower().startswith("other-ops"):
            content["other_ops"] += _other_ops_rows(path, sheets)
        elif _is_pick(sheets):
            rows, notes = _pick_rows(sheets[0], names)
            content["picks"] += rows
            content["notes"] += notes
        elif "ctree" in path.stem.lower():  # the kernel classes of FFT_TILING
            content["classes"] += _variant_rows(path, sheets, names, holds_classes=True)
        elif path.stem.lower().endswith("_pre"):  # kernels before and after the main one: im2col, transforms
            content["pre"] += _variant_rows(path, sheets, names)
        else:
            content["variants"] += _variant_rows(path, sheets, names)
    if content["other_ops"]:
        if len(content) > 1:
            raise InputError("Other-ops workbooks and algorithms cannot share a table; import them separately")
        return _other_ops(content["other_ops"], gpu, library_version)
    return _assemble(content, imported.cudnn_settings(gpu, library_version))


FORMAT = Format("seer-xls", "SEER's Excel workbooks", read)


_Rows = list[dict[str, Any]]
"""Rows of a variant's workbook: ``problem`` (convolution, algorithm), ``time_us``, the sheet's ``part``, and the
columns of ``kernel``."""


def _other_ops(rows: list[dict[str, object]], gpu: str, library_version: str) -> imported.Imported:
    """Return the rows of other operators. TensorFlow runs cuDNN for convolutions, and its own choice otherwise."""
    frame = pd.DataFrame(rows).assign(gpu=gpu, origin=_ORIGIN)
    is_conv = frame["operator"] == "conv"
    frame["library"] = is_conv.map({True: "cudnn", False: "tensorflow"})
    frame["library_version"] = is_conv.map({True: library_version, False: imported.UNKNOWN_VERSION})
    return imported.Imported(imported.family_rows(frame), candidates="listed")


def _assemble(content: Mapping[str, list[Any]], settings: dict[str, str]) -> imported.Imported:
    """Return variants and picks as rows, and their kernels as a kernel table."""
    notes = content["notes"]
    kernels = _kernels(content, settings)
    rows = pd.concat([_variant_frame(content), pd.DataFrame(content["picks"])], ignore_index=True)
    if rows.empty:
        notes.append("no workbook of a main kernel given: the result is a kernel table only")
        return imported.Imported(imported.no_rows(), kernels, notes=tuple(notes))
    distinct = rows.assign(**settings, origin=_ORIGIN).drop_duplicates(list(imported.KEY_COLUMNS), ignore_index=True)
    if len(distinct) < len(rows):
        repeated = imported.plural(len(rows) - len(distinct), "repeated measurement")
        notes.append(f"{repeated} left out: the first row of a key counts")
    variants, pre = ({row["problem"][1] for row in rows} for rows in (content["variants"], content["pre"]))
    without_pre = variants & set(_WITH_PRE) - pre
    main_only = "no pre/post workbook given, so its times contain only the main kernel"
    notes += [f"{name}: {main_only}" for name in sorted(without_pre)]
    first = [*imported.KEY_COLUMNS, "status", "time_us"]
    return imported.Imported(distinct[[*first, *(c for c in distinct if c not in first)]], kernels, notes=tuple(notes))


def _variant_frame(content: Mapping[str, _Rows]) -> pd.DataFrame:
    """Return the rows of the main kernels. The time in a pre/post workbook is added to its problem and algorithm."""
    pre_us = {row["problem"]: row["time_us"] for row in content["pre"]}
    rows = []
    for row in content["variants"]:
        ran = row["time_us"] > 0
        time_us = row["time_us"] + pre_us.get(row["problem"], 0.0) if ran else nan
        outcome = {"status": "ok" if ran else "failed", "seer_part": row["part"], "time_us": time_us}
        rows.append({**_columns(row), **outcome})
    return pd.DataFrame(rows)


def _columns(row: Mapping[str, Any]) -> dict[str, object]:
    conv, algorithm = row["problem"]
    return {**imported.conv_sizes(conv), "algorithm": algorithm}


def _kernels(content: Mapping[str, _Rows], settings: dict[str, str]) -> pd.DataFrame | None:
    """Return the kernel table. ``kernel_index`` is 0 for main kernels and 1 for the others."""
    kinds = {"variants": 0, "classes": 1, "pre": 1}
    indexed = [(index, row) for kind, index in kinds.items() for row in content[kind]]
    records = [{**_columns(row), "kernel_index": index, **row["kernel"]} for index, row in indexed]
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
    path: Path, sheets: "tuple[Sheet, ...]", names: tuple[str, ...], *, holds_classes: bool = False
) -> _Rows:
    """Return all rows of a workbook with the sheets ``train`` and ``test``, or with one sheet (Test-set-II's form).

    ``names`` are the algorithm names by number. With ``holds_classes``, the tenth column is a class instead of a time.
    Raises `InputError` with file, sheet and row.
    """
    wrong = [sheet.name for sheet in sheets if sheet.name.lower() not in ("train", "test")]
    if wrong and len(sheets) > 1:
        raise InputError(f"{path}: the sheet is named {wrong[0]!r}; a variant's workbook has the sheets train and test")
    match = _TILE.search(path.stem)
    tile = "" if not match else match[1] if "x" in match[1] else "x".join(match[1])  # 148 is Winograd's 1x4x8
    rows: _Rows = []
    for sheet in sheets:
        if sheet.width not in (_TIMES, _COUNTERS, _COUNTERS + 1):
            rule = "a variant's workbook has 18 or 19 columns, an FFT or pre/post workbook has 10"
            raise InputError(f"{path}, sheet {sheet.name!r}: {sheet.width} columns; {rule}")
        part = "train" if sheet.name.lower() == "train" else "test"
        for where, cells in sheet.numbers(min(sheet.width, _COUNTERS)):
            conv = square_conv(cells, where)
            algorithm = names[checked_int(where, "algorithm", cells[8], minimum=0, maximum=len(names) - 1)]
            kernel: dict[str, object] = {"kernel_name": path.stem, "tile": tile}
            time_us = nan if holds_classes else cells[9] * 1000
            if holds_classes:
                kernel["kernel_class"] = checked_int(f"{where}, column 10", "class", cells[9], minimum=0, maximum=2)
            else:
                kernel["time_us"] = time_us
            if time_us > 0:
                _check_possible(conv, algorithm, where)
            if len(cells) == _COUNTERS:
                kernel |= _counters(cells[10:], where)
            rows.append({"problem": (conv, algorithm), "time_us": time_us, "part": part, "kernel": kernel})
    if not rows:
        raise InputError(f"{path}: no row below the header; give measurements in the sheets train and test")
    return rows


def _counters(cells: list[float], where: str) -> dict[str, float]:
    """Return columns 11–18. Waves are computed again, as in the original: ⌈launched blocks / B_max⌉."""
    instructions, reads, writes, b_max, blocks, _, fp32_level, dram_level = cells
    if b_max < 1 or blocks < 1:
        raise InputError(f"{where}: B_max {b_max:g} and {blocks:g} launched blocks; both must be at least 1")
    for name, level in (("fp32", fp32_level), ("dram", dram_level)):
        if not 0 <= level <= _LEVELS:
            raise InputError(f"{where}: {name} utilisation is {level:g}; nvprof's levels go from 0 to 10")
    percents = (level * 100 / _LEVELS for level in (fp32_level, dram_level))
    counted = (blocks, b_max, ceil(blocks / b_max), instructions, reads, writes, *percents)
    return dict(zip(KERNEL_NUMBERS[KERNEL_NUMBERS.index("blocks") :], counted, strict=False))


# The algorithm-pick workbook (and Test-set-II's): the times of all eight algorithms of each problem.
_PROBLEM = 8
_ALGORITHMS = 8


def _is_pick(sheets: "tuple[Sheet, ...]") -> bool:
    """Return True for a single sheet ``test`` with a time per algorithm: 16 columns, or 18 with the picks."""
    if len(sheets) != 1 or sheets[0].name.lower() != "test":
        return False
    header = sheets[0].header
    has_algorithms = len(header) > _PROBLEM and "algo0" in re.sub("[ _]", "", header[_PROBLEM].lower())
    return has_algorithms or sheets[0].width == _PROBLEM + _ALGORITHMS


def _pick_rows(sheet: "Sheet", names: tuple[str, ...]) -> tuple[list[dict[str, object]], list[str]]:
    """Return one row per (problem, algorithm), and notes.

    A time ≤ 0 marks a failed algorithm. Column 18 is cuDNN's pick, or −1. Times have a resolution of 0.01 ms.
    """
    if sheet.width not in (16, 18):
        raise InputError(f"{sheet.path}, sheet {sheet.name!r}: {sheet.width} columns; a pick workbook has 16 or 18")
    rows: list[dict[str, object]] = []
    disagreeing = 0
    for where, cells in sheet.numbers(sheet.width):
        conv = square_conv(cells, where)
        times_ms = cells[_PROBLEM : _PROBLEM + _ALGORITHMS]
        heuristic = None
        if sheet.width == 18:
            best, picked = (checked_int(f"{where}, column {i + 1}", "algorithm", cells[i], -1, 7) for i in (16, 17))
            heuristic = names[picked] if picked >= 0 else None
            minimum = min((time for time in times_ms if time > 0), default=None)
            disagreeing += minimum is not None and (best < 0 or times_ms[best] != minimum)
        for name, time_ms in zip(names, times_ms, strict=True):
            measured = {"status": "failed", "time_us": nan}
            if time_ms > 0:
                _check_possible(conv, name, where)
                measured = {"status": "ok", "time_us": time_ms * 1000}
            identity = {**imported.conv_sizes(conv), "algorithm": name}
            rows.append({**identity, **measured, "heuristic_algorithm": heuristic})
    if not rows:
        raise InputError(f"{sheet.path}: no row below the header; give one row per problem")
    doubt = f"in {imported.plural(disagreeing, 'problem')} the stated best has not the shortest time; the times count"
    notes = ["times have a resolution of 0.01 ms", *[doubt] * bool(disagreeing)]
    return rows, [f"{sheet.path.name}: {note}" for note in notes]


def _check_possible(conv: Conv, algorithm: str, where: str) -> None:
    """Refuse a timed row that its algorithm cannot run. The likely cause is the other numbering of 4 … 7.

    Source: cuDNN API reference, cudnnConvolutionForward. Winograd needs a 3×3 filter (non-fused also 5×5) and stride 1.
    FFT needs stride 1 and at most 256 padded elements per side.
    """
    filters = {"WINOGRAD": (3,), "WINOGRAD_NONFUSED": (3, 5)}
    is_too_wide = algorithm == "FFT" and conv.h + 2 * conv.pad_h > 256
    needs_stride_1 = algorithm in ("FFT", *filters)
    if is_too_wide or conv.r not in filters.get(algorithm, (conv.r,)) or (needs_stride_1 and conv.stride_h != 1):
        problem = f"which cannot run filter {conv.r}, stride {conv.stride_h}, width {conv.h}, padding {conv.pad_h}"
        raise InputError(f"{where}: a time for {algorithm}, {problem}; try the other --numbering (enum, readme)")


# The ``Other-ops-*`` workbooks: pooling, 1×1 convolution, layout transform, convolution gradients in TensorFlow.
# The first column (an operator number) is dropped. The others are: batch, C, W, K, out W, filter, stride, padding (sum
# of both sides), forward time, input or pool gradient, filter gradient, their sum, the two ratios. Times are in ms.
_OTHER_COLUMNS = {"maxpool": 10, "avgpool": 10, "conv_1x1": 9, "data_layout": 10, "layout": 9, "conv_grad": 14}
"""Operator of a workbook → number of columns after the dropped one."""
_OTHER_TIME = 8
"""Number of columns before the times."""


def _other_ops_rows(path: Path, sheets: "tuple[Sheet, ...]") -> list[dict[str, object]]:
    """Return rows for `family_rows`: one per timed pass of each measurement.

    ``Other-ops-data_layout`` has no column to drop: the original writes it with the ten columns of a variant. Raises
    `InputError` with sheet and row.
    """
    name = re.sub(r"^other-ops-?", "", path.stem, flags=re.IGNORECASE).lower()
    check_choice(f"{path}: operator", name, _OTHER_COLUMNS)
    dropped = 0 if name == "data_layout" else 1
    needed = _OTHER_COLUMNS[name] + dropped
    rows: list[dict[str, object]] = []
    for sheet in sheets:
        if sheet.rows and sheet.width < needed:
            raise InputError(f"{path}, sheet {sheet.name!r}: {sheet.width} columns; {name} needs {needed}")
        for where, cells in sheet.numbers(needed):
            try:
                rows += _passes(name, cells[dropped:])
            except InputError as error:
                raise InputError(f"{where}: {error}") from None
    if not rows:
        raise InputError(f"{path}: no row below the header; give one row per measurement")
    return rows


def _passes(name: str, cells: list[float]) -> Iterator[dict[str, object]]:
    """Yield each pass of a measurement with a time above 0. Raises `InputError` if the forward pass has none."""
    n, c, w, k, _, r, stride, pad_total = cells[:_OTHER_TIME]
    if name in ("maxpool", "avgpool"):
        kind = name.replace("pool", "_pool")
        window = {"window": r, "stride": stride, "pad": _pad(w, r, stride, pad_total)}
        pool = OPERATORS[kind](n=n, c=c, h=w, w=w, **window).sizes  # type: ignore[arg-type]  # the class checks
        passes = [{"operator": f"{kind}{ending}", **pool} for ending in ("", "_backward")]
        times_ms = cells[_OTHER_TIME : _OTHER_TIME + 2]
    elif name in ("layout", "data_layout"):
        passes = [{"operator": "layout_transform", "n": n, "c": c, "h": w, "w": w}]
        times_ms = cells[-1:]
    else:
        pad = _pad(w, r, stride, pad_total)
        conv = imported.conv_sizes(Conv(n=n, c=c, h=w, k=k, r=r, pad_h=pad, stride_h=stride))  # type: ignore[arg-type]
        directions = ("fwd", "bwd_data", "bwd_filter") if name == "conv_grad" else ("fwd",)
        passes = [{"operator": "conv", "direction": direction, **conv} for direction in directions]
        times_ms = cells[_OTHER_TIME : _OTHER_TIME + len(passes)]
    if times_ms[0] <= 0:
        raise InputError(f"the time is {times_ms[0]:g} ms; give a time above 0")
    for row, time_ms in zip(passes, times_ms, strict=True):
        if time_ms > 0:
            yield {**row, "time_us": time_ms * 1000}


def _pad(width: float, window: float, stride: float, total: float) -> float:
    """Return the symmetric padding of a side that gives the same output width as ``total``, the sum of both sides.

    TensorFlow pads an odd total by one more on the right. Symmetric padding reaches the same width with the larger or
    the smaller half. Raises `InputError` if neither does: an even window with stride 1.
    """
    if stride < 1:
        raise InputError(f"stride is {stride:g}; give at least 1")
    out = (width + total - window) // stride + 1
    for pad in (-(-total // 2), total // 2):
        if output_size(width, window, pad, stride, 1) == out:
            return pad
    raise InputError(f"the total padding is {total:g}; no equal padding of both sides gives the width {out:g}")


# Excel workbooks (.xls, .xlsx) as sheets of checked numbers under one header row.
_XLS = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_MAX_SHEETS = 256
_MAX_ROWS, _MAX_COLUMNS = 1 << 16, 64
"""Maximum rows (as in .xls) and columns of an .xlsx sheet."""
SheetRow = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """One sheet: the texts of its header, and rows of cells (float, text, or None if empty) of any width."""

    path: Path
    name: str
    header: tuple[str, ...]
    rows: tuple[SheetRow, ...]

    @property
    def width(self) -> int:
        """Number of columns of the widest row, header included."""
        return max([len(self.header), *map(len, self.rows)])

    def numbers(self, columns: int) -> Iterator[tuple[str, list[float]]]:
        """Yield (place, the first ``columns`` cells as numbers) of each row. Raises `InputError` for another cell."""
        for index, row in enumerate(self.rows, 2):
            where = f"{self.path}, sheet {self.name!r}, row {index}"
            cells = (*row, *[None] * (columns - len(row)))[:columns]
            yield where, [_number(cell, where, column) for column, cell in enumerate(cells, 1)]


def read_sheets(path: str | Path, **limits: Unpack[ReadLimits]) -> tuple[Sheet, ...]:
    """Read all sheets of a workbook that are not empty. Raises `InputError` for another or a damaged file."""
    path = Path(path)
    data = read_bytes(path, **limits)
    if data[:8] != _XLS and data[:2] != b"PK":
        raise InputError(f"{path}: no workbook by its first bytes; give an Excel workbook (.xls or .xlsx)")
    try:
        allowance = Allowance(path, len(data), limits.get("max_bytes", DEFAULT_MAX_BYTES))
        tables = _xls(data) if data[:8] == _XLS else _xlsx(data, allowance)
    except InputError:
        raise
    except ImportError as error:
        raise InputError(f"{path}: reading it needs the package {error.name}; pip install {error.name}") from None
    except Exception as error:  # a damaged file makes the parsers raise any exception
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path}: the workbook is damaged ({reason}); save it again as .xls") from None
    sheets = [_sheet(path, name, [_trimmed(row) for row in rows]) for name, rows in tables]
    return tuple(sheet for sheet in sheets if sheet.header)


def _xls(data: bytes) -> list[tuple[str, list[Sequence[object]]]]:
    import xlrd

    book = xlrd.open_workbook(file_contents=data, logfile=io.StringIO(), ragged_rows=True)
    return [(sheet.name, [sheet.row_values(i) for i in range(sheet.nrows)]) for sheet in book.sheets()]


def _xlsx(data: bytes, allowance: Allowance) -> list[tuple[str, list[Sequence[object]]]]:
    import openpyxl

    # openpyxl unpacks without a limit, so it gets an archive of unpacked members.
    uncompressed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(uncompressed, "w") as copy:
        for name in archive.namelist():
            copy.writestr(name, unpacked(archive, name, allowance))
    book = openpyxl.load_workbook(uncompressed, read_only=True, data_only=True)
    if len(book.worksheets) > _MAX_SHEETS:
        raise ValueError(f"{len(book.worksheets)} sheets, more than {_MAX_SHEETS}")
    bounds = {"max_row": _MAX_ROWS, "max_col": _MAX_COLUMNS}
    return [(sheet.title, [*sheet.iter_rows(**bounds, values_only=True)]) for sheet in book.worksheets]


def _sheet(path: Path, name: str, rows: list[SheetRow]) -> Sheet:
    while rows and not rows[-1]:
        rows.pop()
    header = tuple("" if cell is None else str(cell).strip() for cell in rows[0]) if rows else ()
    return Sheet(path, name, header, tuple(rows[1:]))


def _trimmed(row: Sequence[object]) -> SheetRow:
    """Return the cells without the empty ones at the end."""
    cells = [None if cell == "" else cell for cell in row]
    while cells and cells[-1] is None:
        cells.pop()
    return tuple(cells)


def _number(cell: object, where: str, column: int) -> float:
    try:
        value = float(cell) if isinstance(cell, str | int | float) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        value_text = "empty" if cell is None else repr(cell)
        raise InputError(f"{where}, column {column}: the cell is {value_text}; give a finite number")
    return value
