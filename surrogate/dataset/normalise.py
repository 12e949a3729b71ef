"""Foreign spellings brought to the dataset's own, and sizes widened: the first step of every read."""

import numpy as np
import pandas as pd

from surrogate.dataset.schema import (
    LAYOUT_ALIASES,
    OPTIONAL_NUMBERS,
    OPTIONAL_TEXTS,
    SETTING_COLUMNS,
    SIZE_COLUMNS,
)
from surrogate.features.errors import InputError, nearest

TEXT_COLUMNS = (*SETTING_COLUMNS, "algorithm", "status")


def require_columns(frame: pd.DataFrame, columns: tuple[str, ...], name: str) -> None:
    """Raise `InputError` naming every missing column (and the nearest present one)."""
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise InputError(
            f"{name}: column{'s' if len(missing) > 1 else ''} {', '.join(missing)} missing;"
            f" `seer data columns --table dataset` tells what each holds{nearest(missing[0], map(str, frame.columns))}"
        )


def normalise(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """A copy with int64 sizes, float64 numbers, plain text columns and the dataset's layout names.

    Unknown columns survive. Raises `InputError` where a size is no whole number.
    """
    out = frame.reset_index(drop=True).copy()
    for column in SIZE_COLUMNS:
        if column in out:
            out[column] = _whole(out[column], column, name)
    for column in ("time_us", *OPTIONAL_NUMBERS):
        if column in out:
            out[column] = _number(out[column], column, name)
    for column in TEXT_COLUMNS:
        if column in out:
            values = out[column]
            out[column] = values.where(values.isna(), values.astype(str)).astype(object)
    for column in OPTIONAL_TEXTS:
        if column in out:
            values = out[column].astype(object)
            out[column] = values.where(values.notna(), None)
    if "layout" in out:
        out["layout"] = out["layout"].replace(LAYOUT_ALIASES)
    return out


def _number(values: pd.Series, column: str, name: str) -> pd.Series:
    if values.dtype.kind in "mM":  # pandas would count nanoseconds
        raise InputError(f"{name}: {column} holds dates or durations ({values.dtype}); a number is needed")
    try:
        return pd.to_numeric(values).astype(np.float64)
    except (TypeError, ValueError):
        numbers = pd.to_numeric(values, errors="coerce")
        row = int(np.flatnonzero((numbers.isna() & values.notna()).to_numpy())[0])
        raise InputError(
            f"{name}: row {row}: {column} is {values.tolist()[row]!r}; a number is needed"
        ) from None


def _whole(values: pd.Series, column: str, name: str) -> pd.Series:
    """Sizes as int64, whatever their width, so that products cannot overflow."""
    numbers = _number(values, column, name).to_numpy()
    with np.errstate(invalid="ignore"):
        wrong = ~np.isfinite(numbers) | (numbers != np.floor(numbers)) | (np.abs(numbers) > 2**53)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InputError(f"{name}: row {row}: {column} is {values.tolist()[row]!r}; a whole number is needed")
    return pd.Series(numbers.astype(np.int64), index=values.index)
