"""Excel workbooks (.xls, .xlsx) as sheets of checked numbers under one header row."""

import io
import math
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from surrogate.features.errors import InputError
from surrogate.formats.foreign_file import DEFAULT_MAX_BYTES, Allowance, Limits, read_bytes, unpacked

_XLS = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_MAX_SHEETS = 256
_MAX_ROWS, _MAX_COLUMNS = 1 << 16, 64
"""Of an .xlsx sheet: the rows that .xls has, and more columns than any workbook of ours."""
Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """One sheet: its header's texts and its rows of cells (float, text, or None where empty), widths as they came."""

    path: Path
    name: str
    header: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def width(self) -> int:
        """Columns of the widest row, header included."""
        return max([len(self.header), *map(len, self.rows)])

    def numbers(self, columns: int) -> Iterator[tuple[str, list[float]]]:
        """(where, the first ``columns`` cells as numbers) of each row. Raises `InputError` for a cell that is none."""
        for index, row in enumerate(self.rows, 2):
            where = f"{self.path}, sheet {self.name!r}, row {index}"
            cells = (*row, *[None] * (columns - len(row)))[:columns]
            yield where, [_number(cell, where, column) for column, cell in enumerate(cells, 1)]


def read_sheets(path: str | Path, **limits: Unpack[Limits]) -> tuple[Sheet, ...]:
    """All sheets of a workbook that are not empty. Raises `InputError` for anything that is no readable workbook."""
    path = Path(path)
    data = read_bytes(path, **limits)
    if data[:8] != _XLS and data[:2] != b"PK":
        raise InputError(f"{path}: begins with {data[:8]!r}; an Excel workbook (.xls or .xlsx) is needed")
    try:
        allowance = Allowance(path, len(data), limits.get("max_bytes", DEFAULT_MAX_BYTES))
        tables = _xls(data) if data[:8] == _XLS else _xlsx(data, allowance)
    except InputError:
        raise
    except ImportError as error:
        raise InputError(f"{path}: needs the package {error.name}; pip install {error.name}") from None
    except Exception as error:  # a damaged file makes the parsers raise whatever they trip over
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path}: damaged workbook ({reason}); save it again as .xls") from None
    sheets = [_sheet(path, name, [_trimmed(row) for row in rows]) for name, rows in tables]
    return tuple(sheet for sheet in sheets if sheet.header)


def _xls(data: bytes) -> list[tuple[str, list[Sequence[object]]]]:
    import xlrd

    book = xlrd.open_workbook(file_contents=data, logfile=io.StringIO(), ragged_rows=True)
    return [(sheet.name, [sheet.row_values(i) for i in range(sheet.nrows)]) for sheet in book.sheets()]


def _xlsx(data: bytes, allowance: Allowance) -> list[tuple[str, list[Sequence[object]]]]:
    import openpyxl

    # What openpyxl unpacks is not bounded: it gets the members as they are.
    plain = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(plain, "w") as copy:
        for name in archive.namelist():
            copy.writestr(name, unpacked(archive, name, allowance))
    book = openpyxl.load_workbook(plain, read_only=True, data_only=True)
    if len(book.worksheets) > _MAX_SHEETS:
        raise ValueError(f"{len(book.worksheets)} sheets, more than {_MAX_SHEETS}")
    return [
        (sheet.title, list(sheet.iter_rows(max_row=_MAX_ROWS, max_col=_MAX_COLUMNS, values_only=True)))
        for sheet in book.worksheets
    ]


def _sheet(path: Path, name: str, rows: list[Row]) -> Sheet:
    while rows and not rows[-1]:
        rows.pop()
    header = tuple("" if cell is None else str(cell).strip() for cell in rows[0]) if rows else ()
    return Sheet(path, name, header, tuple(rows[1:]))


def _trimmed(row: Sequence[object]) -> Row:
    """The cells without the empty ones at the end."""
    cells = [None if cell == "" else cell for cell in row]
    while cells and cells[-1] is None:
        cells.pop()
    return tuple(cells)


def _number(cell: object, where: str, column: int) -> float:
    try:
        value = float(cell) if isinstance(cell, str | int | float) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        shown = "empty" if cell is None else repr(cell)
        raise InputError(f"{where}, column {column}: {shown}; a finite number is needed")
    return value
