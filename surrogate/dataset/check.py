"""The rules that a dataset keeps; every violation is named with its row."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.schema import ROW_KEY, SIZE_COLUMNS, STATUSES
from surrogate.features.conv import MAX_SIZE
from surrogate.features.problem import DIRECTIONS, DTYPES, LAYOUTS, MATHS, ConvColumns
from surrogate.features.shape import fits

Mask = np.ndarray
MAX_WORK = 2.0**58
"""Products of sizes beyond this would not fit the int64 columns that features are computed in."""
_CHOICES = {
    "direction": DIRECTIONS,
    "dtype": tuple(DTYPES),
    "math": MATHS,
    "layout": LAYOUTS,
    "status": STATUSES,
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: the row's position, the column, the value that came, and the rule."""

    row: int
    column: str
    value: Any
    rule: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.column} is {self.value!r}; {self.rule}"


def check(frame: pd.DataFrame, *, unique: bool = True) -> list[Violation]:
    """Every violation in a normalised frame (see `surrogate.dataset.normalise`), in the order of rows.

    ``status`` and ``time_us`` are checked where the frame has them; ``unique``: a key may stand in one row only.
    """
    found = [
        Violation(int(row), column, _plain(frame[column].iloc[row]), rule)
        for column, mask, rule in _rules(frame, unique)
        for row in np.flatnonzero(mask)
    ]
    return sorted(found, key=lambda v: v.row)


def _rules(frame: pd.DataFrame, unique: bool) -> Iterator[tuple[str, Mask, str]]:
    """(column, rows that break the rule, the rule) for each rule."""
    for column in SIZE_COLUMNS:
        least = 0 if column.startswith("pad") else 1
        values = frame[column].to_numpy()
        yield column, (values < least) | (values > MAX_SIZE), f"it must be between {least} and {MAX_SIZE}"
    for column, known in _CHOICES.items():
        if column in frame:
            yield column, ~frame[column].isin(known).to_numpy(), f"known: {', '.join(known)}"
    for column in ("gpu", "library", "library_version", "algorithm"):
        yield column, frame[column].isna().to_numpy() | (frame[column] == "").to_numpy(), "a name is needed"
    yield from _geometry(frame)
    if "status" in frame and "time_us" in frame:
        yield from _times(frame)
    if unique:
        key = [*ROW_KEY, *(["solver"] if "solver" in frame else [])]
        yield "algorithm", frame.duplicated(key).to_numpy(), "the same row stands above; one row per key"


def _geometry(frame: pd.DataFrame) -> Iterator[tuple[str, Mask, str]]:
    """Sizes that do not fit one another; rows with a size out of range are left to the rule that names it.

    MIOpen takes, and times, problems whose filter exceeds the padded input: its rows are let be.
    """
    sizes = frame[list(SIZE_COLUMNS)]
    least = np.array([0 if c.startswith("pad") else 1 for c in SIZE_COLUMNS])
    sane = ((sizes >= least) & (sizes <= MAX_SIZE)).all(axis=1).to_numpy()
    p = ConvColumns.of([frame[c].where(sane, 1) for c in SIZE_COLUMNS])
    uneven = (p.c % p.groups != 0) | (p.k % p.groups != 0)
    yield "groups", sane & uneven, "it must divide c and k"
    with np.errstate(over="ignore"):
        work = np.prod([sizes[c].to_numpy(dtype=float) for c in ("n", "c", "h", "w", "k", "r", "s")], axis=0)
    yield "n", sane & (work >= MAX_WORK), f"n·c·h·w·k·r·s must stay below {MAX_WORK:.1e}"
    strict = sane & (frame["library"] != "miopen").to_numpy()
    for column, fit in (
        ("r", fits(p.h, p.r, p.pad_h, p.dilation_h)),
        ("s", fits(p.w, p.s, p.pad_w, p.dilation_w)),
    ):
        yield column, strict & ~fit, "the filter (dilation included) exceeds the padded input"


def _times(frame: pd.DataFrame) -> Iterator[tuple[str, Mask, str]]:
    ok = (frame["status"] == "ok").to_numpy()
    time_us = frame["time_us"].to_numpy()
    with np.errstate(invalid="ignore"):
        yield (
            "time_us",
            ok & ~(np.isfinite(time_us) & (time_us > 0)),
            "a row with status ok needs a time above 0 µs",
        )
        for column, wrong, rule in (
            ("time_us_min", lambda v: v > time_us, "the least repeat cannot exceed the median"),
            ("time_us_max", lambda v: v < time_us, "the greatest repeat cannot lie below the median"),
            ("workspace_bytes", lambda v: v < 0, "it must be at least 0"),
        ):
            if column in frame:
                yield column, ok & wrong(frame[column].to_numpy()), rule


def _plain(value: Any) -> Any:
    """A NumPy scalar as the Python number it holds, for the message."""
    return value.item() if isinstance(value, np.generic) else value
