"""Tables on disk and in pipes: parquet, which also holds our metadata, or CSV and JSON, which hold rows alone.

What is read tells its form by its content, what is written by its name: ``.csv``, ``.tsv``, ``.json`` (a list of
objects), ``.jsonl`` (an object a line), ``.parquet`` or no ending for parquet; standard output gets CSV.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd

from surrogate.dataset.columns import SCHEMA_VERSION
from surrogate.dataset.files import STDOUT, atomic_path
from surrogate.features.errors import InputError, require_regular
from surrogate.features.gpu import Gpu, cpu_device

METADATA_KEY = b"seer_surrogate"
MAX_BYTES = 64 << 30
"""Values that a table may declare: beyond it the file is damaged, or too large for one process."""
MAX_TEXT_BYTES = 2 << 30
_LOG = (b'{"kind":"seer-collect"', b"\x1f\x8b")
"""What the log of a run begins with, as written and packed."""


def devices_in(metadata: Mapping[str, Any]) -> dict[str, Gpu]:
    """Devices described in a dataset's metadata, also in that of the parts it was merged from."""
    devices: dict[str, Gpu] = {}
    for part in metadata.get("parts", []):
        devices |= devices_in(part)
    for run in metadata.get("runs", []):
        device = run["device"]
        if device["library"] == "reference":
            devices[device["gpu"]] = cpu_device(device["gpu"], device["properties"])
    return devices


def read_table(path: str | Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The raw frame of a table and our metadata in it (empty for text and for a foreign file).

    Raises `InputError` for a missing, unreadable, empty or too new file.
    """
    path = Path(path)
    require_regular(path, streams=True)
    if path.is_dir() or not path.exists():
        what = "a folder, no file" if path.is_dir() else "no such file"
        raise InputError(f"{path}: {what}; give a dataset; `seer import` and `seer collect` make some")
    try:
        with path.open("rb") as file:  # Arrow refuses names that are no UTF-8
            head = file.peek()
            if head.startswith(_LOG):
                raise InputError(f"{path}: a run's log; make it a dataset: `seer data merge {path} -o DATA.parquet`")
            is_text = path.suffix in WRITERS or (path.suffix != ".parquet" and _looks_like_text(head))
            frame, stored = _read_text(file, path) if is_text else _read_parquet(file, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); fetch or write it again") from None
    if frame.empty:
        raise InputError(f"{path}: the table has no rows; nothing to work on")
    return frame, _metadata(stored, path)


def is_log(path: Path) -> bool:
    """True where ``path`` is the log of a run of `seer collect` by its first bytes."""
    require_regular(path)
    if not path.is_file():
        return path.name.endswith((".jsonl", ".jsonl.gz"))
    with path.open("rb") as file:
        return file.read(32).startswith(_LOG)


def _looks_like_text(head: bytes) -> bool:
    """Letters alone at the start, as in a CSV table's header or a JSON text; parquet has a bracket of "PAR1"."""
    return not head.startswith(b"PAR1") and head[:4].isascii() and head[:4].decode("ascii").isprintable()


def _read_parquet(file: BinaryIO, path: Path) -> tuple[pd.DataFrame, bytes | None]:
    """The columns, and our metadata as stored. Raises `InputError` for a damaged file or one that is no parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(file if file.seekable() else io.BytesIO(file.read()))
        declared = parquet.metadata.num_rows * parquet.metadata.num_columns * 8
        if declared > MAX_BYTES:
            raise InputError(f"{path}: declares {declared:,} bytes; at most {MAX_BYTES:,} are read")
        table = parquet.read()
        names = [name for name in table.column_names if not name.startswith("__index_level_")]
        if len(set(names)) < len(names):
            raise InputError(f"{path}: two columns have one name; give each another")
        return table.select(names).to_pandas(ignore_metadata=True), (table.schema.metadata or {}).get(METADATA_KEY)
    except InputError:
        raise
    except (pa.ArrowException, MemoryError, OSError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        raise InputError(f"{path}: cannot be read as parquet ({reason}); fetch or write it again") from None


def _read_text(file: BinaryIO, path: Path) -> tuple[pd.DataFrame, None]:
    """CSV with a header (commas, semicolons or tabs), a JSON list of objects, or an object a line."""
    content = file.read(MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        raise InputError(f"{path}: larger than {MAX_TEXT_BYTES:,} bytes; write such a table as parquet")
    try:
        text = content.decode("utf-8-sig").lstrip()
        if text.startswith(("[", "{")):
            one_a_line = text.startswith("{")
            rows = [json.loads(line) for line in text.splitlines() if line] if one_a_line else json.loads(text)
            if not all(isinstance(row, dict) for row in rows):
                raise ValueError("a row is an object of columns")
            return pd.DataFrame(rows), None
        separator = max(",;\t", key=text.partition("\n")[0].count)
        return pd.read_csv(io.StringIO(text), sep=separator), None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(
            f"{path}: cannot be read as CSV or JSON ({str(error).splitlines()[0][:120]}); a table is parquet, CSV with"
            " a header, a JSON list of objects, or an object a line; `seer import` reads other formats"
        ) from None


def _metadata(stored: bytes | None, path: Path) -> dict[str, Any]:
    if stored is None:
        return {}
    try:
        metadata = json.loads(stored)
        version = int(metadata["schema"])
        devices_in(metadata)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise InputError(f"{path}: unreadable metadata; write it again with `seer data merge`") from None
    if version > SCHEMA_VERSION:
        raise InputError(
            f"{path}: written with schema {version}, this release reads up to {SCHEMA_VERSION}; upgrade seer-surrogate"
        )
    return metadata


def write_table(frame: pd.DataFrame, path: Path, metadata: dict[str, Any]) -> None:
    """One table in the form that its name asks for, atomically; ``metadata`` goes into parquet alone."""
    with atomic_path(path) as temporary:
        write_form(frame, temporary, metadata, form_of(path))


def form_of(path: Path) -> str:
    """The ending that says in which form a table is written to ``path``. Raises `InputError` for one of no table."""
    form = ".csv" if path == STDOUT else path.suffix.lower()
    if form not in ("", ".parquet", *WRITERS):
        raise InputError(f"{path}: a table is written as .parquet, {', '.join(WRITERS)}; end its name in one of them")
    return form


def write_form(frame: pd.DataFrame, path: Path, metadata: dict[str, Any], suffix: str = ".parquet") -> None:
    """``frame`` at ``path`` in the form of ``suffix``, whatever the path's own."""
    if suffix in WRITERS:
        path.write_text(WRITERS[suffix](frame), encoding="utf-8")
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame, preserve_index=False)
    merged = {**(table.schema.metadata or {}), METADATA_KEY: json.dumps(metadata, sort_keys=True).encode()}
    with path.open("wb") as file:  # Arrow refuses names that are no UTF-8
        pq.write_table(table.replace_schema_metadata(merged), file, compression="zstd")


WRITERS = {
    ".csv": lambda frame: frame.to_csv(index=False),
    ".tsv": lambda frame: frame.to_csv(index=False, sep="\t"),
    ".json": lambda frame: frame.to_json(orient="records", indent=1) + "\n",
    ".jsonl": lambda frame: frame.to_json(orient="records", lines=True),
}
"""How a table is written as text, by the ending of its name."""
