"""Measured operators as one table, whatever file they came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.problems import joined, version_number
from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu, gpu
from surrogate.features.operators import OPERATORS, Operator, operator_class

SIZE_NAMES = tuple(dict.fromkeys(name for cls in OPERATORS.values() for name in cls.size_names()))
"""Every size that some operator has."""
SETTING_NAMES = ("kind", "variant", "dtype", "math")
COLUMNS = ("gpu", "library", "library_version", *SETTING_NAMES, *SIZE_NAMES, "time_us")


@dataclass(frozen=True)
class OperatorTable:
    """``frame``: a row per (GPU, library, problem), columns `COLUMNS`; 0 where an operator has no such size.

    ``dropped`` counts what was left out, by reason; ``name`` is the file's. GPUs carry their registry names.
    """

    frame: pd.DataFrame
    dropped: Mapping[str, int] = field(default_factory=dict)
    name: str = "operators"

    def __len__(self) -> int:
        return len(self.frame)

    def take(self, rows: Any) -> "OperatorTable":
        """The rows at these positions, or under this mask."""
        return OperatorTable(self.frame[rows] if _is_mask(rows) else self.frame.iloc[rows], {}, self.name)

    @property
    def time_us(self) -> np.ndarray:
        """(rows,) measured times in µs."""
        return self.frame["time_us"].to_numpy(dtype=np.float64)

    def groups(self) -> list[tuple[str, Operator, np.ndarray]]:
        """GPU, operator of array sizes, its rows' positions: one for each GPU, kind, variant, dtype and math."""
        columns = [self.frame[name].to_numpy(dtype=object) for name in ("gpu", *SETTING_NAMES)]
        places: dict[tuple[str, ...], list[int]] = {}
        for place, key in enumerate(zip(*columns, strict=True)):
            places.setdefault(key, []).append(place)
        sizes = {name: self.frame[name].to_numpy() for name in SIZE_NAMES}
        found = []
        for (device, kind, variant, dtype, math), rows in places.items():
            positions, cls = np.array(rows), operator_class(kind)
            own = {name: sizes[name][positions] for name in cls.size_names()}
            found.append((device, cls(dtype=dtype, math=math, variant=variant, **own), positions))
        return found

    def shape_names(self) -> np.ndarray:
        """(rows,) text naming each row's sizes without its batch, whatever the kind.

        Folds by this name keep a shape together over batches, GPUs, dtypes and kinds: x + y and x·y of one shape take
        nearly one time.
        """
        sizes = self.frame[list(SIZE_NAMES)].to_numpy(copy=True)
        for kind in self.frame["kind"].unique():
            batch = OPERATORS[kind].BATCH
            if batch:
                sizes[(self.frame["kind"] == kind).to_numpy(), SIZE_NAMES.index(batch)] = 0
        return np.array([" ".join(map(str, row)) for row in sizes.tolist()], dtype=object)


def _is_mask(rows: Any) -> bool:
    return getattr(getattr(rows, "dtype", None), "kind", "") == "b"


def table_of(device: Gpu, ops: Sequence[tuple[Operator, str]]) -> OperatorTable:
    """A table to predict from: one row per (operator, library) on a GPU; times are NaN."""
    columns: dict[str, Any] = {name: [op.sizes.get(name, 0) for op, _ in ops] for name in SIZE_NAMES}
    for name in ("kind", "variant", "dtype", "math"):
        columns[name] = [getattr(op, name) for op, _ in ops]
    frame = pd.DataFrame(columns).assign(
        gpu=device.name, library=[library for _, library in ops], library_version="", time_us=np.nan
    )
    return OperatorTable(frame[list(COLUMNS)], name=device.name)


def make_table(parts: Sequence[pd.DataFrame], dropped: Mapping[str, int], name: str) -> OperatorTable:
    """A table from frames of some of `COLUMNS`: defaults filled in, GPUs named canonically, repeats merged.

    Of several library versions of a problem the newest counts, of several times of that the median. Rows of devices
    that no registry knows are dropped and counted. Raises `InputError` where nothing is left.
    """
    counted = dict(dropped)
    frame = pd.concat([_complete(part) for part in parts], ignore_index=True) if parts else pd.DataFrame()
    if len(frame):
        frame, unknown = _known_devices(frame)
        counted |= unknown
    if frame.empty:
        reasons = "; ".join(f"{reason}: {count}" for reason, count in counted.items())
        raise InputError(f"{name}: no row is left ({reasons}); give a table of measured operators")
    return OperatorTable(_merged(frame), counted, name)


def _complete(part: pd.DataFrame) -> pd.DataFrame:
    """All columns, in order and of one type each."""
    texts = {"library_version": "", "variant": "", "dtype": "fp32", "math": "fma"}
    out = pd.DataFrame(index=part.index)
    for column in COLUMNS:
        if column in texts or column in ("gpu", "library", "kind"):
            values = part[column] if column in part else texts[column]
            out[column] = pd.Series(values, index=part.index).fillna(texts.get(column, "")).astype(str)
        elif column == "time_us":
            out[column] = part[column].astype(np.float64)
        else:
            values = part.get(column, 0)
            out[column] = pd.Series(values, index=part.index).fillna(0).astype(np.int64)
    return out


def _known_devices(frame: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    names: dict[str, str] = {}
    dropped: dict[str, int] = {}
    for raw, count in frame["gpu"].value_counts().items():
        try:
            names[str(raw)] = gpu(str(raw)).name
        except InputError:
            dropped[f"device {raw} unknown"] = int(count)
    known = frame[frame["gpu"].isin(names)]
    return known.assign(gpu=known["gpu"].map(names)), dropped


def _merged(frame: pd.DataFrame) -> pd.DataFrame:
    keys = [column for column in COLUMNS if column not in ("library_version", "time_us")]
    versions = {text: version_number(text) for text in frame["library_version"].unique()}
    rank = {text: place for place, text in enumerate(sorted(versions, key=lambda text: versions[text]))}
    ranks = frame["library_version"].map(rank)
    names = joined(frame.astype(dict.fromkeys(keys, str)), tuple(keys))
    newest = ranks == ranks.groupby(names.to_numpy()).transform("max")
    kept = frame[newest.to_numpy()]
    merged = kept.groupby([*keys, "library_version"], sort=False, as_index=False)["time_us"].median()
    return merged[list(COLUMNS)]


def read_operators(paths: Sequence[str | Path]) -> OperatorTable:
    """Measured operators of the public tables that `surrogate.formats.operator_tables` reads."""
    from surrogate.formats.operator_tables import read

    if not paths:
        raise InputError("no table of operators given; name at least one parquet file")
    imported = read(paths)
    name = ", ".join(Path(path).name for path in paths)
    table = make_table([imported.rows.rename(columns={"operator": "kind"})], {}, name)
    return OperatorTable(table.frame, dict.fromkeys(imported.notes, 1), name)
