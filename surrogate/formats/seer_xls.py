"""SEER's Excel workbooks: kernel variants with counters, FFT times, pre/post kernels, algorithm picks, other
operators.

How to get them: run the data collection of the public repository Vamix/seer-performance-model on an NVIDIA
GPU with cuDNN 7 and nvprof (its two collection scripts, about a day on a Titan Xp); the workbooks lie in
``data/profiled``. Or ask the paper's authors for theirs. Give all of one GPU's workbooks in one call: the
main kernels of GEMM and WINOGRAD_NONFUSED lie in other workbooks than their pre/post kernels, and a row's
time is the sum of both.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from surrogate.features.errors import InputError
from surrogate.formats.foreign_file import DEFAULT_MAX_BYTES
from surrogate.formats.imported import (
    KERNEL_NUMBERS,
    KEY_COLUMNS,
    Imported,
    Progress,
    cudnn_settings,
    no_rows,
    plural,
)
from surrogate.formats.seer_numbering import algorithm_names
from surrogate.formats.seer_other_ops import is_other_ops, other_ops_rows
from surrogate.formats.seer_pick import is_pick, pick_rows
from surrogate.formats.seer_variant import VariantRow, is_classes, is_pre, variant_rows
from surrogate.formats.workbook import read_sheets

_WITH_PRE = ("GEMM", "WINOGRAD_NONFUSED")


def read(
    paths: Sequence[str | Path],
    *,
    gpu: str,
    numbering: str = "enum",
    library_version: str = "7.x",
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Progress | None = None,
) -> Imported:
    """All workbooks of one GPU as dataset rows and a kernel table (or, for ``Other-ops-*`` only, an operator
    table).

    ``numbering``: how the files number algorithms 4 … 7, see `algorithm_names`. Raises `InputError` naming
    the file, sheet and row.
    """
    names = algorithm_names(numbering)
    found: dict[str, list[Any]] = {"variant": [], "pre": [], "class": [], "pick": [], "other": []}
    notes: list[str] = []
    for path in map(Path, paths):
        sheets = read_sheets(path, max_bytes=max_bytes, progress=progress)
        if not sheets:
            raise InputError(
                f"{path}: every sheet is empty; a SEER workbook has a header row and measurements"
            )
        if is_other_ops(path):
            found["other"] += other_ops_rows(path, sheets)
        elif is_pick(sheets):
            rows, disagreeing = pick_rows(sheets[0], names)
            found["pick"] += rows
            notes += _pick_notes(path, disagreeing)
        else:
            kind = "class" if is_classes(path) else "pre" if is_pre(path) else "variant"
            found[kind] += variant_rows(path, sheets, names)
    if found["other"]:
        if any(found[kind] for kind in found if kind != "other"):
            raise InputError(
                "Other-ops workbooks cannot share a table with convolutions; import them by themselves"
            )
        return Imported(pd.DataFrame(found["other"]).assign(gpu=gpu, origin="seer_xls"), table="operators")
    return _assemble(found, cudnn_settings(gpu, library_version), notes)


def _assemble(found: dict[str, list[Any]], settings: dict[str, Any], notes: list[str]) -> Imported:
    """Variants and picks as rows, everything about kernels as kernels."""
    kernels = _kernels(found, settings)
    rows = pd.concat([_variant_frame(found), pd.DataFrame(found["pick"])], ignore_index=True)
    if rows.empty:
        notes.append("no main kernel's workbook among the files: a kernel table only")
        return Imported(no_rows(), kernels, notes=tuple(notes), table="launches")
    rows = rows.assign(**settings, origin="seer_xls")
    kept = rows.drop_duplicates(list(KEY_COLUMNS), keep="first", ignore_index=True)
    if len(kept) < len(rows):
        notes.append(
            f"{plural(len(rows) - len(kept), 'repeated measurement')} left out: the first of a key counts"
        )
    if kernels is not None:
        kernels = kernels.drop_duplicates([*KEY_COLUMNS, "kernel_index"], ignore_index=True)
    if found["variant"]:
        missing = sorted(
            {r.algorithm for r in found["variant"]} & set(_WITH_PRE) - {r.algorithm for r in found["pre"]}
        )
        notes += [
            f"{name}: no pre/post workbook given, so its times are the main kernel's alone"
            for name in missing
        ]
    first = [*KEY_COLUMNS, "status", "time_us"]
    return Imported(kept[[*first, *(c for c in kept if c not in first)]], kernels, notes=tuple(notes))


def _variant_frame(found: dict[str, list[Any]]) -> pd.DataFrame:
    """Rows of the main kernels; the time of a pre/post workbook joins that of its problem and algorithm."""
    pre = {(row.conv, row.algorithm): row.time_us for row in found["pre"]}
    records = []
    for row in found["variant"]:
        ok = row.time_us > 0
        records.append(
            {
                **{name: getattr(row.conv, name) for name in row.conv.__slots__},
                "algorithm": row.algorithm,
                "status": "ok" if ok else "failed",
                "time_us": row.time_us + pre.get((row.conv, row.algorithm), 0.0) if ok else float("nan"),
                "seer_part": row.part,
            }
        )
    return pd.DataFrame(records)


def _kernels(found: dict[str, list[Any]], settings: dict[str, Any]) -> pd.DataFrame | None:
    """Main kernels as kernel 0; pre/post kernels and FFT_TILING's classes as kernel 1."""
    records = [
        _kernel(row, index)
        for kind, index in (("variant", 0), ("class", 1), ("pre", 1))
        for row in found[kind]
    ]
    if not records:
        return None
    frame = pd.DataFrame(records).assign(**settings)
    columns = [*KEY_COLUMNS, "kernel_index", "kernel_name", *KERNEL_NUMBERS]
    frame = frame.reindex(columns=[*columns, *(c for c in frame if c not in columns)])
    return frame.astype(dict.fromkeys(KERNEL_NUMBERS, "float64"))


def _kernel(row: VariantRow, index: int) -> dict[str, Any]:
    sizes = {name: getattr(row.conv, name) for name in row.conv.__slots__}
    return {**sizes, "algorithm": row.algorithm, "kernel_index": index, **row.kernel}


def _pick_notes(path: Path, disagreeing: int) -> list[str]:
    notes = [f"{path.name}: times have a resolution of 0.01 ms"]
    if disagreeing:
        notes.append(
            f"{path.name}: in {plural(disagreeing, 'problem')} the stated best is not the least time; times"
            " count"
        )
    return notes
