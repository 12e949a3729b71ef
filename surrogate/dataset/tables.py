"""Read and write tables: parquet, which also holds our metadata, or CSV and JSON, which hold only rows.

The content decides the format of a file that is read. The name decides the format of a file that is written: ``.csv``,
``.tsv``, ``.json`` (a list of objects), ``.jsonl`` (an object a line), ``.parquet`` or no ending for parquet. Standard
output gets CSV.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import pandas as pd

from surrogate.dataset.columns import SCHEMA_VERSION
from surrogate.dataset.files import STDOUT, atomic_path, require_readable
from surrogate.features.errors import InputError, check_node_count, require_regular
from surrogate.features.gpu import Gpu, cpu_device

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

METADATA_KEY = b"seer_surrogate"
MAX_BYTES = 64 << 30
"""Largest size that a table may declare. With more, the file is damaged or too large for one process."""
FREE_BYTES = 1 << 30
"""Every table may declare this size."""
MAX_FOLD = 500
"""A larger table may declare this multiple of its file's size. Real tables declare up to 80 times their file's size."""
MAX_TEXT_BYTES = 2 << 30
MAX_COLUMNS, FREE_CELLS = 10_000, 10_000_000
"""Maximum columns of a table as text. It may have as many cells as bytes, and this number of empty cells more."""
PART_ROWS = 131_072
"""Largest number of rows of a part, if a table is read in parts."""
NO_ROWS = "the table has no rows; give a table with rows"
_WORKBOOK = (b"PK", b"\xd0\xcf\x11\xe0")
_LOG = (b'{"kind":"seer-collect"', b"\x1f\x8b")
"""First bytes of a run's log, as written and packed."""


def devices_in(metadata: Mapping[str, Any]) -> dict[str, Gpu]:
    """Return name → device for the devices in a dataset's metadata, and in the metadata of its merged parts."""
    devices: dict[str, Gpu] = {}
    for part in metadata.get("parts", []):
        devices |= devices_in(part)
    for run in metadata.get("runs", []):
        device = run["device"]
        if device["library"] == "reference":
            devices[device["gpu"]] = cpu_device(device["gpu"], device["properties"])
    return devices


class TableParts(NamedTuple):
    """A table of ``rows`` rows in order, as ``frames`` of at most `PART_ROWS` rows, with our ``metadata``.

    Columns of parquet keep their Arrow types. Text is always one frame.
    """

    rows: int
    metadata: dict[str, Any]
    frames: Iterator[pd.DataFrame]


def read_table(path: str | Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the raw frame of a table and our metadata (empty for text and for a foreign file).

    Raises `InputError` for a missing, unreadable, empty or too new file.
    """
    path = Path(path)
    with _opened(path) as (file, is_text):
        if is_text:
            return _read_text(file, path), {}
        parquet = _parquet(file, path)
        with _readable_parquet(path):
            return parquet.read(_columns(parquet)).to_pandas(ignore_metadata=True), _metadata(parquet, path)


@contextmanager
def table_parts(path: str | Path) -> Iterator[TableParts]:
    """Yield a table that is read in parts inside the block. Raises `InputError` as `read_table` does."""
    path = Path(path)
    with _opened(path) as (file, is_text):
        if is_text:
            frame = _read_text(file, path)
            yield TableParts(len(frame), {}, iter([frame]))
        else:
            parquet = _parquet(file, path)
            yield TableParts(parquet.metadata.num_rows, _metadata(parquet, path), _frames(parquet, path))


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, bool]]:
    """Yield the file, and whether it is text. Raises `InputError` if it is missing, unreadable, or a run's log."""
    require_regular(path, streams=True)
    if path.is_dir() or not path.exists():
        reason = "a folder, no file" if path.is_dir() else "no such file"
        raise InputError(f"{path}: {reason}; give a dataset; `seer import` and `seer collect` write datasets")
    try:
        file = path.open("rb")  # Arrow refuses names that are no UTF-8
        head = file.peek()
    except OSError as error:
        raise _unreadable(path, error) from None
    with file:
        if head.startswith(_WORKBOOK):
            raise InputError(f"{path}: an Excel workbook or an archive; save the sheet as CSV")
        if head.startswith(_LOG):
            raise InputError(f"{path}: a run's log; turn it into a dataset: `seer data merge {path} -o DATA.parquet`")
        yield file, path.suffix in WRITERS or (path.suffix != ".parquet" and _looks_like_text(head))


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read ({error.strerror or error}); fetch or write it again")


def is_log(path: Path) -> bool:
    """Return True if ``path`` is the log of a run of `seer collect`, by its first bytes."""
    require_regular(path)
    if not path.is_file():
        return path.name.endswith((".jsonl", ".jsonl.gz"))
    with path.open("rb") as file:
        return file.read(32).startswith(_LOG)


def _looks_like_text(head: bytes) -> bool:
    """Return True if the file begins with printable characters, as CSV and JSON do, but not with parquet's "PAR1"."""
    return not head.startswith(b"PAR1") and head[:4].isascii() and head[:4].decode("ascii").isprintable()


@contextmanager
def _readable_parquet(path: Path) -> Iterator[None]:
    """Turn Arrow's errors for a damaged file, or for a file that is no parquet, into an `InputError`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, MemoryError, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        raise InputError(f"{path}: cannot be read as parquet ({reason}); fetch or write it again") from None


def _parquet(file: BinaryIO, path: Path) -> "ParquetFile":
    """Return the opened file. Raises `InputError` if it is damaged, declares too many bytes, or has no rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _readable_parquet(path):
        source = file if file.seekable() else io.BytesIO(file.read())
        maximum = min(MAX_BYTES, max(FREE_BYTES, MAX_FOLD * source.seek(0, io.SEEK_END)))
        source.seek(0)
        parquet = pq.ParquetFile(source)
    declared = parquet.metadata.num_rows * parquet.metadata.num_columns * 8
    if declared > maximum:
        raise InputError(f"{path}: declares {declared:,} bytes; at most {maximum:,} are read of such a file")
    names = _columns(parquet)
    if nested := [each.name for each in parquet.schema_arrow if pa.types.is_nested(each.type)]:
        raise InputError(f"{path}: column {nested[0]} holds lists or structs; give numbers and texts")
    if len(set(names)) < len(names):
        raise InputError(f"{path}: two columns have the same name; rename one")
    if not names or not parquet.metadata.num_rows:
        raise InputError(f"{path}: {NO_ROWS}")
    return parquet


def _columns(parquet: "ParquetFile") -> list[str]:
    """Return the names of the columns, without an index that pandas may have stored."""
    return [name for name in parquet.schema_arrow.names if not name.startswith("__index_level_")]


def _frames(parquet: "ParquetFile", path: Path) -> Iterator[pd.DataFrame]:
    """Yield the rows in order, `PART_ROWS` at a time."""
    with _readable_parquet(path):
        batches = parquet.iter_batches(PART_ROWS, columns=_columns(parquet))
    while True:
        with _readable_parquet(path):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch.to_pandas(ignore_metadata=True, types_mapper=pd.ArrowDtype)


def _read_text(file: BinaryIO, path: Path) -> pd.DataFrame:
    """Return the table of a CSV with a header (commas, semicolons or tabs), a JSON list of objects, or JSON lines."""
    try:
        content = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(content) > MAX_TEXT_BYTES:
        raise InputError(f"{path}: larger than {MAX_TEXT_BYTES:,} bytes; write such a table as parquet")
    try:
        text = content.decode("utf-8-sig").lstrip()
        if not text:
            raise InputError(f"{path}: {NO_ROWS}")
        if text.startswith(("[", "{")):
            is_json_lines = text.startswith("{")
            check_node_count(content)
            rows = [json.loads(line) for line in text.splitlines() if line] if is_json_lines else json.loads(text)
            flat = (isinstance(row, dict) and not any(isinstance(v, dict | list) for v in row.values()) for row in rows)
            if not all(flat):
                raise ValueError("a row is an object of columns, each a number or a text")
            _check_cells(len(rows), len({name for row in rows for name in row}), len(content))
            frame = pd.DataFrame(rows)
        else:
            separator = max(",;\t", key=text.partition("\n")[0].count)
            frame = csv_frame(text, sep=separator).rename(columns=str.strip)
    except InputError:
        raise
    except UnicodeDecodeError:
        raise InputError(f"{path}: is no UTF-8 text; save the table as CSV in UTF-8, or as parquet") from None
    except (ValueError, RecursionError, MemoryError) as error:
        wrong = f"{path}: cannot be read as CSV or JSON ({str(error).splitlines()[0][:120]})"
        forms = "a table is parquet, CSV with a header, a JSON list of objects, or an object a line"
        raise InputError(f"{wrong}; {forms}; `seer import` reads other formats") from None
    if frame.empty:
        raise InputError(f"{path}: {NO_ROWS}")
    return frame


def csv_frame(text: str, sep: str, **options: Any) -> pd.DataFrame:
    """Return the rows of a CSV with a header. Raises `ValueError` if it is none, or needs far more memory than a file
    of its size."""
    try:
        first = [row for row in islice(csv.reader(io.StringIO(text), delimiter=sep), 3) if row]
    except csv.Error as error:
        raise ValueError(error) from None
    _check_cells(text.count("\n") + text.count("\r"), max(map(len, first), default=0), len(text))
    frame = pd.read_csv(io.StringIO(text), sep=sep, skipinitialspace=True, **options)
    if not isinstance(frame.index, pd.RangeIndex):
        raise ValueError("line 2: more values than columns")
    return frame


def _check_cells(rows: int, columns: int, size: int) -> None:
    """Raise `ValueError` if a table of ``size`` bytes has many more cells than bytes, or over `MAX_COLUMNS`."""
    if columns > MAX_COLUMNS or rows * columns > FREE_CELLS + size:
        raise ValueError(f"{rows:,} rows × {columns:,} columns are too many for {size:,} bytes")


def _metadata(parquet: "ParquetFile", path: Path) -> dict[str, Any]:
    """Return the metadata that `write_table` stored. Raises `InputError` if it is damaged or of a later release."""
    stored = (parquet.schema_arrow.metadata or {}).get(METADATA_KEY)
    if stored is None:
        return {}
    try:
        metadata = json.loads(stored)
        version = int(metadata["schema"])
        devices_in(metadata)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise InputError(f"{path}: unreadable metadata; write it again with `seer data merge`") from None
    require_readable(path, version, SCHEMA_VERSION)
    return metadata


def write_table(frame: pd.DataFrame, path: Path, metadata: Mapping[str, object]) -> None:
    """Write a table atomically, in the format of its name. Only parquet stores ``metadata``."""
    with table_writer(path, metadata) as write:
        write(frame)


@contextmanager
def table_writer(path: Path, metadata: Mapping[str, object]) -> Iterator[Callable[[pd.DataFrame], None]]:
    """Yield a function that writes a table frame by frame, atomically, with the types of the first frame.

    Parquet is written at once; text is kept in memory until the block ends.
    """
    form = form_of(path)
    with atomic_path(path) as temporary:
        if form not in WRITERS:
            with _parquet_writer(temporary, metadata) as write:
                yield write
        else:
            frames: list[pd.DataFrame] = []
            yield frames.append
            temporary.write_text(WRITERS[form](pd.concat(frames, ignore_index=True)), encoding="utf-8")


def form_of(path: Path) -> str:
    """Return the ending of ``path``, which is the format of a table. Raises `InputError` for an unknown ending."""
    form = ".csv" if path == STDOUT else path.suffix.lower()
    if form not in ("", ".parquet", *WRITERS):
        raise InputError(f"{path}: a table is written as .parquet, {', '.join(WRITERS)}; use one of these endings")
    return form


@contextmanager
def _parquet_writer(path: Path, metadata: Mapping[str, object]) -> Iterator[Callable[[pd.DataFrame], None]]:
    """Yield a function that appends frames to a parquet file at ``path``, each as a row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    stored = {METADATA_KEY: json.dumps(metadata, sort_keys=True).encode()}
    writer: pq.ParquetWriter | None = None
    with ExitStack() as stack:
        file = stack.enter_context(path.open("wb"))  # Arrow refuses names that are no UTF-8

        def write(frame: pd.DataFrame) -> None:
            nonlocal writer
            table = pa.Table.from_pandas(frame, schema=writer and writer.schema, preserve_index=False)
            if writer is None:  # pandas' own metadata is left out: readers use the types of the columns
                schema = table.schema.with_metadata(stored)
                writer = stack.enter_context(pq.ParquetWriter(file, schema, compression="zstd"))
            writer.write_table(table.replace_schema_metadata(writer.schema.metadata))

        yield write


WRITERS = {
    ".csv": lambda frame: frame.to_csv(index=False),
    ".tsv": lambda frame: frame.to_csv(index=False, sep="\t"),
    ".json": lambda frame: frame.to_json(orient="records", indent=1) + "\n",
    ".jsonl": lambda frame: frame.to_json(orient="records", lines=True),
}
"""Ending of a file's name → function that returns a table as text."""
