"""``--where`` for files that are read in batches: the values of each column that the conditions keep."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from surrogate.cli.datasets import filtered
from surrogate.dataset.normalise import normalise
from surrogate.streaming.shards import open_parquet


def kept_values(paths: Sequence[Path], where: Sequence[str]) -> dict[str, set[Any]]:
    """Column → the values that all its conditions keep, over all files.

    Raises `InputError` as `filtered` does: for a condition that is not readable, an unknown column, or one that keeps
    nothing of a file.
    """
    kept: dict[str, set[Any]] = {}
    for column in dict.fromkeys(condition.partition("=")[0] for condition in where):
        conditions = [condition for condition in where if condition.partition("=")[0] == column]
        kept[column] = set()
        for path in paths:
            kept[column] |= set(filtered(_distinct(path, column), conditions, str(path))[column])
    return kept


def _distinct(path: Path, column: str) -> pd.DataFrame:
    """The distinct values of one column of a parquet file, normalised; no rows where it lacks the column."""
    file = open_parquet(path)
    names = file.schema_arrow.names
    if column not in names:
        return pd.DataFrame(columns=names)
    parts = [batch.to_pandas().drop_duplicates() for batch in file.iter_batches(columns=[column])]
    return normalise(pd.concat(parts, ignore_index=True).drop_duplicates(), str(path))
