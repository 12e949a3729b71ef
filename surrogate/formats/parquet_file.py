"""Parquet tables of any origin, read as columns alone: nothing in a file's metadata decides what happens here.

pandas would rebuild indexes and types from metadata that anybody can write, extension types bring a decoding of their
own, and a few bytes of dictionary or run-length pages may stand for terabytes. So the footer is judged first, and texts
are read as dictionaries whose full size is known before they are written out.
"""

import re
import weakref
from pathlib import Path
from typing import Any

import pandas as pd

from surrogate.features.errors import InputError

FREE_BYTES = 256 << 20
"""Values may always take so many bytes of memory (a dataset of 500,000 rows takes 150 MB) …"""
MAX_EXPANSION = 200
"""… and beyond that so many times the file's own size; measured tables expand 10 to 50 times."""
MAX_COLUMNS = 10_000
_VALUE_BYTES = 8
_INDEX = re.compile(r"__index_level_\d+__")


def read_columns(path: str | Path) -> tuple[pd.DataFrame, dict[bytes, bytes]]:
    """The whole table as a frame with a plain index, and the key-value metadata of its schema, not interpreted.

    Raises `InputError` for a file that is missing, damaged or no parquet, that expands beyond `FREE_BYTES` and
    `MAX_EXPANSION`, or has two columns of one name, nested ones or ones of an extension type.
    """
    import pyarrow as pa

    path = Path(path)
    file = open_file(path)
    size = path.stat().st_size
    declared = file.metadata.num_rows * file.metadata.num_columns * _VALUE_BYTES
    _check_size(path, declared, size)
    texts = [
        f.name for f in file.schema_arrow if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)
    ]
    metadata = dict(file.schema_arrow.metadata or {})
    try:
        with _opened(path, read_dictionary=texts) as file:
            table = file.read(use_threads=True)
            table.validate(full=True)  # texts that are no UTF-8, offsets that lead elsewhere
        _check_size(path, declared + sum(map(_text_bytes, table.columns)), size)
        return frame_of(table), metadata
    except InputError:
        raise
    except (pa.ArrowException, MemoryError, OSError, OverflowError, TypeError, ValueError) as error:
        raise _unreadable(path, error) from None


def open_file(path: str | Path) -> Any:
    """A `pyarrow.parquet.ParquetFile` whose columns were judged; errors as in `read_columns`, but for the expansion."""
    import pyarrow as pa

    path = Path(path)
    try:
        file = _opened(path)
        schema, footer = file.schema_arrow, file.metadata
    except (pa.ArrowException, MemoryError, OSError, OverflowError, TypeError, ValueError) as error:
        raise _unreadable(path, error) from None
    _check_columns(path, schema)
    rows = sum(footer.row_group(i).num_rows for i in range(footer.num_row_groups))
    if rows != footer.num_rows or footer.num_rows < 0:
        raise InputError(
            f"{path}: its footer declares {footer.num_rows:,} rows, its row groups {rows:,}; fetch it again"
        )
    return file


def frame_of(table: Any) -> pd.DataFrame:
    """A table or batch as a frame, whatever pandas' metadata in it says; an index that pandas stored is left out."""
    import pyarrow as pa

    columns = {}
    for field in table.schema:
        if _INDEX.fullmatch(field.name):
            continue
        column = table.column(field.name)
        if pa.types.is_dictionary(column.type) and _is_text(column.type.value_type):
            column = column.cast(pa.large_string())
        column = column.to_pandas()
        has_gaps = pa.types.is_boolean(field.type) and column.isna().any()
        columns[field.name] = column.astype("boolean") if has_gaps else column
    return pd.DataFrame(columns)


def _opened(path: Path, read_dictionary: list[str] | None = None) -> Any:
    """The file, opened by Python: Arrow refuses names that are no UTF-8."""
    import pyarrow.parquet as pq

    raw = path.open("rb")
    try:
        file = pq.ParquetFile(raw, read_dictionary=read_dictionary)
    except BaseException:
        raw.close()
        raise
    weakref.finalize(file, raw.close)
    return file


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _text_bytes(column: Any) -> int:
    """Bytes of a dictionary column's texts, each counted as often as it stands there; 0 for other columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_dictionary(column.type) and _is_text(column.type.value_type)):
        return 0
    total = 0
    for chunk in column.chunks:
        lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())  # pyright: ignore[reportAttributeAccessIssue]
        total += pc.sum(lengths.take(chunk.indices)).as_py() or 0  # pyright: ignore[reportAttributeAccessIssue]
    return total


def _check_columns(path: Path, schema: Any) -> None:

    names = schema.names
    if len(names) > MAX_COLUMNS:
        raise InputError(f"{path}: {len(names):,} columns; tables of up to {MAX_COLUMNS:,} are read")
    seen: set[str] = set()
    for field in schema:
        if field.name in seen:
            raise InputError(f"{path}: column {field.name!r} is there twice; give each another name")
        seen.add(field.name)
        kind = _refused(field)
        if kind:
            raise InputError(f"{path}: column {field.name!r} holds {kind}; write it as numbers or text")


def _refused(field: Any) -> str:
    """What a column holds that no table of measurements does, or nothing."""
    import pyarrow as pa

    if isinstance(field.type, pa.BaseExtensionType) or b"ARROW:extension:name" in (field.metadata or {}):
        return "an extension type"
    if pa.types.is_nested(field.type):
        return "lists or records"
    is_bytes = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return "bytes" if any(test(field.type) for test in is_bytes) else ""


def _check_size(path: Path, bytes_needed: int, file_bytes: int) -> None:
    if bytes_needed > max(FREE_BYTES, MAX_EXPANSION * file_bytes):
        raise InputError(
            f"{path}: {file_bytes:,} bytes that would expand to {bytes_needed / 2**30:,.1f} GiB; this is no measured"
            " table: fetch it again, or write it in parts"
        )


def _unreadable(path: Path, error: BaseException) -> InputError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return InputError(f"{path}: not a readable parquet file ({reason}); a dataset is parquet")
