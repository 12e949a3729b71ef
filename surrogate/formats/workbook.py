"""Excel workbooks (.xls, .xlsx) as sheets of checked numbers under one header row."""

import io
import math
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surrogate.features.errors import InputError
from surrogate.formats.foreign_file import DEFAULT_MAX_BYTES, MAX_EXPANSION, read_bytes
from surrogate.formats.imported import Progress

_XLS = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
MAX_ROWS, MAX_COLUMNS = 1 << 16, 64
"""Of an .xlsx sheet: the rows that .xls has, and more columns than any workbook of ours; one cell at the far right
would otherwise cost a row of 16,384."""
FREE_XML_BYTES = 32 << 20
"""What an .xlsx may always unpack to; sheets of real measurements take a few MB, and XML is slow to read."""
_BIFF2_TO_4 = (b"\x09\x00", b"\x09\x02", b"\x09\x04", b"\x09\x08")


@dataclass(frozen=True, slots=True)
class Sheet:
    """One sheet: its header's texts and its rows of cells (float, text, or None where empty), widths as they
    came.
    """

    path: Path
    name: str
    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @property
    def width(self) -> int:
        """Columns of the widest row, header included."""
        return max([len(self.header), *map(len, self.rows)])

    def numbers(self, columns: int) -> Iterator[tuple[str, list[float]]]:
        """(where, the first ``columns`` cells as numbers) of each row; `InputError` names the first cell that
        is none.
        """
        for index, row in enumerate(self.rows, 2):
            where = f"{self.path}, sheet {self.name!r}, row {index}"
            cells = (*row, *[None] * (columns - len(row)))[:columns]
            yield where, [_number(cell, where, column) for column, cell in enumerate(cells, 1)]


def read_sheets(
    path: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES, progress: Progress | None = None
) -> tuple[Sheet, ...]:
    """All sheets of a workbook, empty ones left out. Raises `InputError` for anything that is no readable
    workbook.
    """
    path = Path(path)
    data = read_bytes(path, max_bytes=max_bytes, progress=progress)
    if data[:8] == _XLS or data[:2] in _BIFF2_TO_4:
        tables = _xls(path, data)
    elif data[:2] == b"PK":
        tables = _xlsx(path, data, max_bytes)
    else:
        raise InputError(f"{path}: begins with {data[:8]!r}; an Excel workbook (.xls or .xlsx) is needed")
    sheets = [_sheet(path, name, table) for name, table in tables]
    return tuple(sheet for sheet in sheets if sheet.header)


def _xls(path: Path, data: bytes) -> list[tuple[str, list[tuple[Any, ...]]]]:
    try:
        import xlrd
    except ImportError:
        raise InputError(
            f"{path}: reading .xls needs the package xlrd; install it with pip install xlrd"
        ) from None
    try:
        book = xlrd.open_workbook(file_contents=data, logfile=io.StringIO(), ragged_rows=True)
        return [
            (sheet.name, [_trimmed(sheet.row_values(i)) for i in range(sheet.nrows)])
            for sheet in book.sheets()
        ]
    except Exception as error:  # a damaged file makes xlrd raise whatever its parser trips over
        raise InputError(f"{path}: damaged workbook ({_first_line(error)}); save it again as .xls") from None


def _xlsx(path: Path, data: bytes, max_bytes: int) -> list[tuple[str, list[tuple[Any, ...]]]]:
    try:
        import openpyxl
    except ImportError:
        raise InputError(
            f"{path}: reading .xlsx needs the package openpyxl; install it, or save the file as .xls"
        ) from None
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        usual = max(FREE_XML_BYTES, MAX_EXPANSION * len(data))
        if unpacked > (usual if max_bytes == DEFAULT_MAX_BYTES else max_bytes):
            raise InputError(
                f"{path}: unpacks to {unpacked:,} bytes; raise the limit with --max-bytes if you trust it"
            )
        book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
        return [(sheet.title, _xlsx_rows(path, sheet)) for sheet in book.worksheets]
    except InputError:
        raise
    except Exception as error:  # as above: openpyxl, zipfile and the XML parser each have their own errors
        raise InputError(f"{path}: damaged workbook ({_first_line(error)}); save it again as .xls") from None


def _xlsx_rows(path: Path, sheet: Any) -> list[tuple[Any, ...]]:
    cells = sheet.iter_rows(max_row=MAX_ROWS + 1, max_col=MAX_COLUMNS, values_only=True)
    rows = [_trimmed(row) for row in cells]
    if len(rows) > MAX_ROWS:
        raise InputError(
            f"{path}, sheet {sheet.title!r}: more than {MAX_ROWS:,} rows; delete what holds no measurement, or split it"
        )
    return rows


def _sheet(path: Path, name: str, rows: list[tuple[Any, ...]]) -> Sheet:
    while rows and not rows[-1]:
        rows.pop()
    header = tuple("" if cell is None else str(cell).strip() for cell in rows[0]) if rows else ()
    return Sheet(path, name, header, tuple(rows[1:]))


def _trimmed(row: Sequence[Any]) -> tuple[Any, ...]:
    cells = [None if cell == "" else cell for cell in row]
    while cells and cells[-1] is None:
        cells.pop()
    return tuple(cells)


def _number(cell: Any, where: str, column: int) -> float:
    try:
        value = float(cell)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        shown = "empty" if cell is None else repr(cell)
        raise InputError(f"{where}, column {column}: {shown}; a finite number is needed")
    return value


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
