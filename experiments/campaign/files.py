"""The files of a slice: the log packed when the slice ends and unpacked when it goes on; tables of bounded
size.
"""

import gzip
from pathlib import Path
from typing import Any

import pandas as pd

from surrogate.dataset.columns import SCHEMA_VERSION
from surrogate.dataset.files import atomic_path
from surrogate.dataset.store import write_parquet

MAX_PARQUET_BYTES = 10 * 10**6
"""Largest table; a larger one is halved into numbered parts."""


def unpack(log: Path, earlier: Path | None = None) -> None:
    """Make ``log`` from its packed form, beside it or in the folder ``earlier``, unless it is there."""
    if log.exists():
        return
    for folder in (log.parent, earlier or log.parent):
        packed = folder / f"{log.name}.gz"
        if packed.is_file():
            with atomic_path(log) as temporary:
                temporary.write_bytes(gzip.decompress(packed.read_bytes()))
            return


def pack(log: Path) -> Path:
    """``log`` as ``log.gz``, and the log itself gone; the same bytes give the same file."""
    packed = log.with_name(f"{log.name}.gz")
    with atomic_path(packed) as temporary:
        temporary.write_bytes(gzip.compress(log.read_bytes(), mtime=0))
    log.unlink()
    return packed


def write_parts(
    frame: pd.DataFrame, path: Path, metadata: dict[str, Any], max_bytes: int = MAX_PARQUET_BYTES
) -> list[Path]:
    """``frame`` at ``path``, or in halves (``NAME-1.parquet``, ``NAME-2.parquet`` …) where it is too large."""
    metadata = {**metadata, "schema": SCHEMA_VERSION}
    write_parquet(frame, path, metadata)
    if path.stat().st_size <= max_bytes or len(frame) < 2:
        return [path]
    path.unlink()
    middle = len(frame) // 2
    halves = (frame.iloc[:middle], frame.iloc[middle:])
    return [
        part
        for number, half in enumerate(halves, 1)
        for part in write_parts(
            half.reset_index(drop=True), path.with_name(f"{path.stem}-{number}.parquet"), metadata, max_bytes
        )
    ]
