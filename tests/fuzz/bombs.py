"""Small files that stand for huge ones; each must be refused in bounded memory and time, or be read within them."""

import bz2
import gzip
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.fuzz.readers import READERS

UNPACKED_BYTES = 3 << 30


@dataclass(frozen=True, slots=True)
class Bomb:
    """``make`` writes the file named ``file`` into a folder; ``reader`` is given it."""

    name: str
    reader: str
    file: str
    make: Callable[[Path], object]


def _gz(line: bytes) -> Callable[[Path], object]:
    """3 GB of one repeated block in members of a few kB each: gzip's members follow one another."""

    def make(path: Path) -> None:
        block = gzip.compress((line * ((1 << 20) // len(line) + 1))[: 1 << 20], 6, mtime=0)
        path.write_bytes(block * (UNPACKED_BYTES >> 20))

    return make


def _bz2(line: bytes) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        block = bz2.compress((line * ((32 << 20) // len(line) + 1))[: 32 << 20])
        path.write_bytes(block * (UNPACKED_BYTES // (32 << 20)))

    return make


def _xlsx(sheet: bytes, times: int, declared: int | None = None) -> Callable[[Path], object]:
    """A workbook whose sheet repeats ``sheet``; ``declared`` is the size that its directory tells instead."""

    def make(path: Path) -> None:
        from tests.fuzz import seeds

        whole = io.BytesIO(next(iter(seeds.workbook_xlsx()[0].values())))
        with zipfile.ZipFile(whole) as good, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bad:
            for member in good.namelist():
                if member != "xl/worksheets/sheet1.xml":
                    bad.writestr(member, good.read(member))
                    continue
                with bad.open(member, "w", force_zip64=True) as out:
                    out.write(
                        b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
                    )
                    for _ in range(times):
                        out.write(sheet)
                    out.write(b"</sheetData></worksheet>")
        if declared is not None:
            data = path.read_bytes()
            at = data.rindex(b"xl/worksheets/sheet1.xml") - 46
            path.write_bytes(data[: at + 24] + declared.to_bytes(4, "little") + data[at + 28 :])

    return make


def _entities(path: Path) -> None:
    """Entities of entities in a sheet's XML: 10^9 characters."""
    names = "abcdefghij"
    inner = "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in pairwise(names))
    text = f'<?xml version="1.0"?><!DOCTYPE w [<!ENTITY a "{"x" * 10}">{inner}]><worksheet>&j;</worksheet>'
    from tests.fuzz import seeds

    whole = io.BytesIO(next(iter(seeds.workbook_xlsx()[0].values())))
    with zipfile.ZipFile(whole) as good, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bad:
        for member in good.namelist():
            bad.writestr(member, text if member == "xl/worksheets/sheet1.xml" else good.read(member))


def _parquet_runs(path: Path) -> None:
    """Half a billion equal rows in a few hundred kB."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("n", pa.int64()), ("c", pa.int64())])
    part = np.ones(5_000_000, dtype=np.int64)
    table = pa.table({"n": part, "c": part}, schema)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for _ in range(20):
            writer.write_table(table, row_group_size=5_000_000)


def _parquet_texts(path: Path) -> None:
    """One text of a megabyte, 100,000 times: 100 GB."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    indices = pa.array([0] * 100_000, pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * (1 << 20)]))
    pq.write_table(pa.table({"gpu": column}), path, compression="zstd")


def _parquet_wide(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({f"column {i}": [1] for i in range(20_000)}), path)


def _parquet_rows(path: Path) -> None:
    """A footer that declares 10^12 rows: the varint of its row counts, made longer in place of a spare field."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 34_359_738_367  # its zigzag varint has six bytes, as that of 10^12
    few = 12345
    out = io.BytesIO()
    pq.write_table(
        pa.table({"n": [1] * few}), out, compression="none", use_dictionary=False, write_statistics=False
    )
    data = out.getvalue()
    footer_length = int.from_bytes(data[-8:-4], "little")
    body, footer = data[: -8 - footer_length], data[-8 - footer_length : -8]
    footer = footer.replace(_varint(few), _varint(rows * 29))
    path.write_bytes(body + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def _varint(value: int) -> bytes:
    value <<= 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _xls(path: Path) -> None:
    """A compound document whose header declares 2^31 sectors of its allocation table and of its directory."""
    header = bytearray(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 16 + b"\x3e\0\x03\0\xfe\xff\x09\0\x06\0")
    header += b"\0" * (512 - len(header))
    header[44:48] = (2**31 - 1).to_bytes(4, "little")
    header[72:76] = (2**31 - 1).to_bytes(4, "little")
    path.write_bytes(bytes(header) + b"\0" * 4096)


def _xls_rows(path: Path) -> None:
    """A BIFF sheet whose one cell lies in the last row and column: a rectangle of 16 million empty cells."""
    import xlwt

    book = xlwt.Workbook()
    for i in range(8):
        book.add_sheet(f"s{i}").write(65535, 255, 1)
    book.save(str(path))


def _deep(opening: bytes, closing: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(opening * 2_000_000 + b"1" + closing * 2_000_000)


_ROW = b'<row><c t="n"><v>1</v></c></row>' * 10_000

BOMBS = (
    Bomb("gz of 3 GB of lines", "import miopen", "file.gz", _gz(b"x" * 1000 + b"\n")),
    Bomb("gz of 3 GB without a line end", "import ncu", "file.gz", _gz(b"x" * 1024)),
    Bomb("gz of 3 GB of JSON", "import cudnn-scope", "file.gz", _gz(b'{"benchmarks": [' + b" " * 1000)),
    Bomb("gz of 3 GB of NULs for a workbook", "import seer-xls (.xls)", "x.xls", _gz(b"\0" * 1024)),
    Bomb("gz of 3 GB of UTF-16", "import nvprof", "file.gz", _gz(b"\xff\xfe" + b"x\0" * 1023)),
    Bomb("bz2 of 3 GB", "import lin-csv", "file.bz2", _bz2(b"kernel_name\n")),
    Bomb("gz of 3 GB of problems", "Test-set-II text", "file.gz", _gz(b"# " + b"x" * 1000 + b"\n")),
    Bomb("xlsx of 3 GB", "import seer-xls (.xlsx)", "x.xlsx", _xlsx(_ROW, 10_000)),
    Bomb("xlsx of 10 million empty rows", "import seer-xls (.xlsx)", "x.xlsx", _xlsx(b"<row></row>" * 10_000, 1000)),
    Bomb("xlsx that tells a wrong size", "import seer-xls (.xlsx)", "x.xlsx", _xlsx(_ROW, 1000, declared=1000)),
    Bomb("xlsx with a cell far right", "import seer-xls (.xlsx)", "x.xlsx",
         _xlsx(b'<row><c r="XFD1"><v>1</v></c></row>', 100_000)),
    Bomb("xlsx of entities", "import seer-xls (.xlsx)", "x.xlsx", _entities),
    Bomb("xls of 2^31 sectors", "import seer-xls (.xls)", "x.xls", _xls),
    Bomb("xls of 8 sheets of 16 million empty cells", "import seer-xls (.xls)", "x.xls", _xls_rows),
    Bomb("parquet of 10^8 equal rows", "dataset (parquet)", "x.parquet", _parquet_runs),
    Bomb("parquet of 100 GB of texts", "dataset (parquet)", "x.parquet", _parquet_texts),
    Bomb("parquet of 20,000 columns", "dataset (parquet)", "x.parquet", _parquet_wide),
    Bomb("parquet that declares 10^12 rows", "dataset (parquet)", "x.parquet", _parquet_rows),
    Bomb("parquet that declares 10^12 rows, streamed", "streamed dataset (parquet)", "x.parquet", _parquet_rows),
    Bomb("parquet of 100 GB of texts, as problems", "problems (parquet)", "x.parquet", _parquet_texts),
    Bomb("JSON 2,000,000 lists deep", "import cudnn-scope", "file.json", _deep(b"[", b"]")),
    Bomb("JSON 2,000,000 objects deep", "import cudnn-scope", "file.json", _deep(b'{"a":', b"}")),
    Bomb("settings 2,000,000 lists deep", "settings (JSON)", "file.json", _deep(b"[", b"]")),
    Bomb("TOML 2,000,000 lists deep", "gpus.toml", "file.toml", _deep(b"a=[", b"]")),
    Bomb("a number of 3 million digits", "import cudnn-scope", "file.json",
         lambda path: path.write_bytes(json.dumps({"benchmarks": [0]}).encode().replace(b"0", b"9" * 3_000_000))),
)  # fmt: skip

assert {bomb.reader for bomb in BOMBS} <= set(READERS)
