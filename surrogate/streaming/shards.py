"""Parquet files dealt into shards by shape, so that each shard is a small dataset that holds whole problems.

Files are read in batches and every row goes to the shard that its shape's hash names: what needs all rows of a problem
(its fastest solver, a key that stands twice) or all rows of a shape (held-out folds) then needs one shard only.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.check import check
from surrogate.dataset.merge import merge
from surrogate.dataset.normalise import normalise, require_columns
from surrogate.dataset.schema import REQUIRED_COLUMNS, SHAPE_COLUMNS, SIZE_COLUMNS
from surrogate.dataset.store import Dataset, devices_in, read_dataset
from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu
from surrogate.features.regular_file import require_regular

BATCH_ROWS = 32_768
"""Rows read at once."""
SHARD_ROWS = 32_768
"""Rows per shard aimed at: some 100 MB while its features are computed."""
LEAST_SHARDS = 8
OPTIONAL_TEXTS = ("solver", "heuristic_algorithm", "origin")
KEPT_COLUMNS = (*REQUIRED_COLUMNS, *OPTIONAL_TEXTS)
"""Columns that training, its intervals and its card read; others are left behind."""
COMBINATION = ("library", "direction", "algorithm", "solver")
"""Columns that name a candidate."""


@dataclass(frozen=True)
class Shards:
    """The parts of a dealt dataset: ``parts`` holds, for each shard, one file per source that has rows in it.

    ``measured`` has an ok row for every combination of library, direction, algorithm and solver in any of them.
    """

    parts: tuple[tuple[Path, ...], ...]
    sources: tuple[Path, ...]
    candidates: str | None
    rows: int
    measured: pd.DataFrame

    def __len__(self) -> int:
        return len(self.parts)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The sources' own metadata, as a merged dataset has it, and the first one's kind of candidate list."""
        heads = [self._read_file(self._head(number)) for number in range(len(self.sources))]
        return {
            "candidates": heads[0].candidates,
            "parts": [
                {"name": path.name, **head.metadata} for path, head in zip(self.sources, heads, strict=True)
            ],
        }

    @property
    def devices(self) -> dict[str, Gpu]:
        """Devices that the sources bring with them."""
        return devices_in(self.metadata)

    @property
    def name(self) -> str:
        """The sources' names, as a merged dataset has them."""
        return "+".join(source.name for source in self.sources)

    def read(self, place: int) -> Dataset:
        """One shard as a checked dataset; a row that stands in several sources is that of the last."""
        kind = self.metadata["candidates"]
        loaded = [self._read_file(file) for file in self.parts[place]]
        return merge([replace(part, candidates=kind) for part in loaded])

    def _head(self, number: int) -> Path:
        """A file of the source of that number; the smallest, since only its metadata is looked at."""
        own = [file for files in self.parts for file in files if file.name == f"{number}.parquet"]
        return min(own, key=lambda file: file.stat().st_size)

    def _read_file(self, file: Path) -> Dataset:
        try:
            return read_dataset(file, candidates=self.candidates)
        except InputError as error:
            source = self.sources[int(file.stem)]
            raise InputError(str(error).replace(str(file), str(source))) from None

    def __iter__(self) -> Iterator[Dataset]:
        return map(self.read, range(len(self)))


def deal(
    sources: Sequence[Path],
    folder: Path,
    *,
    candidates: str | None = None,
    keep: Mapping[str, Collection[Any]] = MappingProxyType({}),
    shard_rows: int = SHARD_ROWS,
) -> Shards:
    """Deal parquet datasets into shards under ``folder``, in bounded memory.

    ``keep``: column → the values whose rows are kept. Raises `InputError` for what `read_dataset` refuses, naming file
    and row, and where no row is left.
    """
    if not sources:
        raise InputError("no dataset given; name at least one parquet file")
    files = [open_parquet(Path(path)) for path in sources]
    total = sum(file.metadata.num_rows for file in files)
    count = max(LEAST_SHARDS, -(-total // shard_rows))
    parts: list[list[Path]] = [[] for _ in range(count)]
    measured = []
    for number, (path, file) in enumerate(zip(map(Path, sources), files, strict=True)):
        names = tuple(file.schema_arrow.names)
        require_columns(pd.DataFrame(columns=names), tuple(keep), str(path))
        with _Dealer(folder, number, count, file) as dealer:
            for frame in _batches(path, file, keep):
                dealer.deal(frame)
        if not dealer.written:
            raise InputError(f"{path}: no row of it is kept; loosen a condition, or leave the file out")
        measured.append(dealer.measured)
        for place, written in dealer.written.items():
            parts[place].append(written)
    filled = tuple(tuple(each) for each in parts if each)
    return Shards(
        filled, tuple(map(Path, sources)), candidates, total, pd.concat(measured, ignore_index=True)
    )


def open_parquet(path: Path) -> Any:
    """The open file. Raises `InputError` where it is missing, not parquet, or lacks a required column."""
    from surrogate.formats.parquet_file import open_file

    require_regular(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a parquet dataset")
    file = open_file(path)
    require_columns(pd.DataFrame(columns=file.schema_arrow.names), REQUIRED_COLUMNS, str(path))
    return file


def _batches(path: Path, file: Any, keep: Mapping[str, Collection[Any]]) -> Iterator[pd.DataFrame]:
    """The kept rows and columns of one file, batch by batch, normalised and checked."""
    from surrogate.formats.parquet_file import frame_of

    columns = _kept_columns(file)
    first = 0
    for batch in file.iter_batches(BATCH_ROWS, columns=sorted({*columns, *keep})):
        frame = _checked(frame_of(batch), path, first)
        first += len(frame)
        for column, values in keep.items():
            frame = frame[frame[column].isin(values)]
        if len(frame):
            yield frame[columns]


def _kept_columns(file: Any) -> list[str]:
    return [name for name in KEPT_COLUMNS if name in file.schema_arrow.names]


def _checked(frame: pd.DataFrame, path: Path, first: int) -> pd.DataFrame:
    """A batch, normalised; a violation is named with its row in the file. Keys are compared later, within shards."""
    frame = normalise(frame, str(path))
    for violation in check(frame, unique=False)[:1]:
        raise InputError(f"{path}: {replace(violation, row=violation.row + first)}")
    for name in OPTIONAL_TEXTS:
        if name in frame:  # a shard holds text, whatever the source had
            frame[name] = frame[name].map(str, na_action="ignore").astype(object)
    return frame


def _shard_of(frame: pd.DataFrame, count: int) -> np.ndarray:
    """(rows,) shard of each row, by its shape alone."""
    hashes = pd.util.hash_pandas_object(frame[list(SHAPE_COLUMNS)], index=False).to_numpy()
    return (hashes % np.uint64(count)).astype(np.int64)


class _Dealer:
    """Writes one source's rows to its file in each shard; ``written`` shard → file, ``measured`` as in `Shards`."""

    def __init__(self, folder: Path, number: int, count: int, file: Any) -> None:
        self._folder, self._number, self._count = folder, number, count
        self._schema = _schema(_kept_columns(file), file.schema_arrow.metadata)
        self._writers: dict[int, Any] = {}
        self.written: dict[int, Path] = {}
        self.measured = pd.DataFrame(columns=self._schema.names)

    def __enter__(self) -> "_Dealer":
        return self

    def __exit__(self, *error: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def deal(self, frame: pd.DataFrame) -> None:
        """Append each row to its shard."""
        import pyarrow as pa

        shard = _shard_of(frame, self._count)
        for place in np.unique(shard).tolist():
            part = pa.Table.from_pandas(frame[shard == place], schema=self._schema, preserve_index=False)
            self._writer(place).write_table(part)
        key = [name for name in COMBINATION if name in frame]
        new = frame[frame["status"] == "ok"].drop_duplicates(key)
        known = pd.concat([self.measured, new], ignore_index=True) if len(self.measured) else new
        self.measured = known.drop_duplicates(key)

    def _writer(self, place: int) -> Any:
        import pyarrow.parquet as pq

        if place not in self._writers:
            path = self._folder / str(place) / f"{self._number}.parquet"
            path.parent.mkdir(exist_ok=True)
            self._writers[place] = pq.ParquetWriter(path, self._schema, compression="zstd")
            self.written[place] = path
        return self._writers[place]


def _schema(columns: Sequence[str], metadata: Any) -> Any:
    """Column types that every batch has, with the source's own metadata."""
    import pyarrow as pa

    def kind(name: str) -> Any:
        return (
            pa.int64() if name in SIZE_COLUMNS else pa.float64() if name == "time_us" else pa.large_string()
        )

    ours = {key: value for key, value in (metadata or {}).items() if key != b"pandas"}
    return pa.schema([(name, kind(name)) for name in columns], metadata=ours)
