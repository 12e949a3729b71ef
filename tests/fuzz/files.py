"""Damage to files with an inside: parquet tables, workbooks, packed text, bundles with hashes."""

import bz2
import gzip
import hashlib
import io
import json
import zipfile
from random import Random
from typing import Any

from tests.fuzz.mutations import ODD_VALUES, Mutation, damaged

Files = dict[str, bytes]
"""Name in its folder → content."""


def packed(inside: Mutation) -> Mutation:
    """``inside`` applied to what a .gz or .bz2 holds, which is packed again."""

    def mutate(data: bytes, random: Random) -> bytes:
        module = gzip if data[:2] == b"\x1f\x8b" else bz2
        return module.compress(inside(module.decompress(data), random))

    return mutate


def text_bytes(data: bytes, random: Random) -> bytes:
    """`damaged` without a second file, to be used inside a packed one."""
    return damaged(data, (), random)


def zip_structure(data: bytes, random: Random) -> bytes:
    """A zip with one member damaged, missing, or there twice."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = random.choice(list(members))
    kind = random.random()
    if kind < 0.8:
        members[name] = damaged(members[name], list(members.values()), random)
    elif kind < 0.9:
        del members[name]
    else:
        members[f"x/{name}"] = members[name]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return out.getvalue()


def xls_structure(data: bytes, random: Random) -> bytes:
    """A workbook with the cells of ``data`` and one to three of them odd, or a row or column more or less."""
    import xlrd
    import xlwt

    book = xlrd.open_workbook(file_contents=data, logfile=io.StringIO())
    made = xlwt.Workbook()
    for sheet in book.sheets():
        rows: list[list[Any]] = [list(sheet.row_values(i)) for i in range(sheet.nrows)]
        for _ in range(random.choice((0, 1, 1, 3))):
            row = random.choice(rows) if rows else []
            if random.random() < 0.7 and row:
                row[random.randrange(len(row))] = _cell(random)
            elif random.random() < 0.5:
                row.append(_cell(random))
            elif rows:
                rows.pop(random.randrange(len(rows)))
        name = sheet.name if random.random() < 0.9 else f"{sheet.name}é"
        target = made.add_sheet(name, cell_overwrite_ok=True)
        for i, row in enumerate(rows):
            for j, cell in enumerate(row[:250]):
                target.write(i, j, cell)
    out = io.BytesIO()
    try:
        made.save(out)
    except Exception:  # two sheets of one name, a text that xls cannot hold: no such workbook can exist
        return damaged(data, (), random)
    return out.getvalue()


def _cell(random: Random) -> Any:
    value = random.choice(ODD_VALUES)
    if isinstance(value, list | dict) or (isinstance(value, int) and abs(value) > 2**60):
        return float(2**60)
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return "inf"
    return value.replace("\ud800", "?") if isinstance(value, str) else value


def parquet_structure(data: bytes, random: Random) -> bytes:
    """A parquet file with one to three of its columns, or its metadata, changed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(data))
    for _ in range(random.choice((1, 1, 2, 3))):
        table = _changed_table(table, random)
    out = io.BytesIO()
    try:
        pq.write_table(table, out, compression=random.choice(("none", "snappy", "zstd")))
    except (pa.ArrowException, ValueError, TypeError):
        return damaged(data, (), random)
    return out.getvalue()


def _changed_table(table: Any, random: Random) -> Any:
    if table.num_columns == 0:
        return table
    at = random.randrange(table.num_columns)
    name = table.column_names[at]
    kind = random.random()
    if kind < 0.5:
        return table.set_column(at, name, _odd_column(table.num_rows, table.column(at), random))
    if kind < 0.6:
        return table.remove_column(at)
    if kind < 0.7:
        return table.append_column(random.choice(table.column_names), table.column(at))
    if kind < 0.75:
        return table.slice(0, random.choice((0, 1)))
    if kind < 0.8:
        return table.rename_columns(
            [
                *table.column_names[:at],
                random.choice(("", "\0", "x" * 3000, "n")),
                *table.column_names[at + 1 :],
            ]
        )
    return table.replace_schema_metadata(_odd_metadata(dict(table.schema.metadata or {}), random))


def _odd_column(rows: int, column: Any, random: Random) -> Any:
    import pyarrow as pa

    makers = (
        lambda: pa.nulls(rows),
        lambda: pa.array(["x"] * rows),
        lambda: pa.array([""] * rows),
        lambda: pa.array(["\x1b[31m\n"] * rows),
        lambda: pa.array([str(value) for value in column.to_pylist()]),
        lambda: pa.array([b"\xff\xfe"] * rows),
        lambda: pa.array([[1, 2]] * rows),
        lambda: pa.array([{"a": 1}] * rows),
        lambda: pa.array([True] * rows),
        lambda: pa.array([-1] * rows),
        lambda: pa.array([0] * rows),
        lambda: pa.array([2**63 - 1] * rows),
        lambda: pa.array([2**64 - 1] * rows, pa.uint64()),
        lambda: pa.array([float("nan")] * rows),
        lambda: pa.array([float("inf")] * rows),
        lambda: pa.array([1e308] * rows),
        lambda: pa.array([0.5] * rows, pa.float32()),
        lambda: pa.array([5] * rows, pa.timestamp("us")),
        lambda: pa.array([2**62] * rows, pa.timestamp("s")),
        lambda: pa.array([5] * rows, pa.duration("ns")),
        lambda: pa.array([5] * rows, pa.time32("s")),
        lambda: pa.array([5] * rows, pa.date32()),
        lambda: pa.array([-(2**31)] * rows, pa.date32()),
        lambda: pa.array([None] * rows, pa.decimal128(38, 2)),
        lambda: pa.array([3] * rows).cast(pa.decimal128(20, 1)),
        lambda: pa.array([[("a", 1)]] * rows, pa.map_(pa.string(), pa.int64())),
        lambda: column.combine_chunks().dictionary_encode(),
        lambda: pa.array(["x" * 3000] * rows),
        lambda: pa.concat_arrays([column.combine_chunks()[: rows - 1], pa.nulls(min(rows, 1), column.type)]),
    )  # fmt: skip
    try:
        return random.choice(makers)()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # a date of year 10^9 is no Python date
        return pa.nulls(rows)


def _odd_metadata(metadata: dict[bytes, bytes], random: Random) -> dict[bytes, bytes]:
    key = random.choice((*metadata, b"pandas", b"seer_surrogate", b"ARROW:schema"))
    if random.random() < 0.5:
        from tests.fuzz.mutations import json_structure

        return {**metadata, key: json_structure(metadata.get(key, b"{}"), random)}
    return {
        **metadata,
        key: random.choice(
            (b"", b"{", b"[]", b"null", b"\xff", b'{"schema": 1}', b'{"schema": 1e400}', b"[" * 3000)
        ),
    }


def rehashed(files: Files, index: str) -> Files:
    """A bundle whose index tells the hashes of the files as they are, so that damage reaches the parsers behind it."""
    try:
        told = json.loads(files[index])
        hashes = told["sha256"]
        for name in hashes:
            if name in files:
                hashes[name] = hashlib.sha256(files[name]).hexdigest()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return files
    return {**files, index: json.dumps(told).encode()}
