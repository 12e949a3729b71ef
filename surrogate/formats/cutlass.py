"""CUTLASS's profiler: the time of every kernel of its library for each problem.

How to get one: ``cutlass_profiler --operation=Gemm --m=… --n=… --k=… --output=NAME.csv`` writes NAME.gemm.csv. The
printed output, which ends with "CSV Results", can be given instead. The files do not name the GPU: give --gpu.

Each kind of operation with its types, layouts and accumulator is a kernel of its own, such as
cutlass_gemm_f16n_f16t_f16n_f32: A and C are column-major (n), B is row-major (t), sums are f32. If the files hold
several, choose one with --name. Sizes are the profiler's (m, n, k, batch_count …). Parameters are the operation's name,
the tile (cta_m, cta_n, cta_k), warps, instruction, stages, splits, and further columns. Formulas of products are part
of the description. Rows of other providers, such as cuBLAS, have no parameters.

A status such as not_supported makes a row without a time, and so does a result that is incorrect. Successful runs
without a time were not profiled; they are counted and skipped.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack

from surrogate.features import RESERVED, InputError, checked_int, read_toml
from surrogate.formats import Format
from surrogate.formats.foreign_file import Paths, ReadLimits, read_lines
from surrogate.formats.imported import Imported, left_out_notes
from surrogate.formats.printed import NumberStyle, cells_of, delimiter_of
from surrogate.formats.tuned import TunedKernel, TunedRow, is_time, number, one_kernel, outcome, tuned

_NAMES: dict[str, Any] = read_toml(__file__)
"""Columns of the profiler. The TOML file of this module explains them."""
_NEEDED = {"operationkind", "operation", "status", "runtime"}
_OPERANDS: list[str] = _NAMES["operands"]
"""Columns with the types and layouts of the operands. C is another column than c, the channels."""
_OTHERS = {*_NAMES["sizes"], *_NAMES["settings"], *_NAMES["ignored"], *_OPERANDS, *RESERVED}
"""Columns that are no parameters."""
_NAME = re.compile(r"[a-z_]\w*", re.ASCII)
_Row = dict[str, str]
"""Column → text. Columns other than operands are in lower case."""


def read(paths: Paths, *, gpu: str, name: str | None = None, **limits: Unpack[ReadLimits]) -> Imported:
    """Read the rows of one kernel. ``name`` chooses among kernels. Raises `InputError` with the file."""
    left_out = Counter[str]()
    notes = list[str]()
    rows = [(_kernel(row), path, row) for path in map(Path, paths) for row in _rows(path, left_out, notes, limits)]
    kernel = one_kernel({each for each, _, _ in rows}, name, paths[0])
    chosen = [(path, row) for each, path, row in rows if each == kernel]
    values = {each: {row.get(each, "") for _, row in chosen} for each in (*_NAMES["sizes"], *_NAMES["settings"])}
    batches = {each for each in _NAMES["batches"] if values[each] <= {"", "1"}}  # one product or group each
    sizes = [size for size in _NAMES["sizes"] if any(values[size]) and size not in batches]
    settings = [setting for setting in _NAMES["settings"] if len(values[setting]) > 1]
    outcomes: list[TunedRow] = []
    for path, row in chosen:
        element = next(filter(None, map(row.get, _OPERANDS)), "unknown").partition(":")[0]
        problem = {"gpu": gpu, "origin": path.name, "dtype": _NAMES["types"].get(element, [element])[0]}
        problem |= {setting: row.get(setting) or "none" for setting in settings}
        problem |= {size: checked_int(str(path), size, number(row.get(size) or "1"), 0) for size in sizes}
        outcomes += _outcome(problem, row, left_out)
    notes += left_out_notes(left_out, "row")
    described = TunedKernel(kernel, sizes, ["dtype", *settings], formulas=_formulas(chosen[0][1], sizes))
    return tuned(described, outcomes, paths[0], notes)


FORMAT = Format("cutlass", "CUTLASS's profiler: kernels of its library and their tiles", read)


def _rows(path: Path, left_out: Counter[str], notes: list[str], limits: ReadLimits) -> list[_Row]:
    """Return the rows below each header of a table or of the profiler's printed output."""
    header: list[str] = []
    rows: list[_Row] = []
    delimiter = ","
    for _, line in read_lines(path, **limits):
        delimiter = delimiter_of(line) if "operationkind" in line.lower() else delimiter
        cells = cells_of(line, delimiter)
        names = [cell if cell in _OPERANDS else cell.lower() for cell in cells]
        if {*names} >= _NEEDED:
            header = names
        elif header and len(cells) == len(header):
            rows.append(dict(zip(header, cells, strict=True)))
        elif header and len(cells) > 1:
            left_out[f"they do not have the {len(header)} columns of the header"] += 1
    if not rows:
        needed = "no row below a header with OperationKind, Operation, Status and Runtime"
        raise InputError(f"{path}: {needed}; give the file of `cutlass_profiler --output=NAME.csv`")
    style = NumberStyle(str(path), delimiter=delimiter)
    rows = style.of_rows(rows)
    notes += style.notes
    return rows


def _kernel(row: _Row) -> str:
    """Return the name of a row's kernel: kind of operation, operands with their layouts, and the accumulator."""
    operands = [row.get(name, "") for name in _OPERANDS]
    if operands[-1] == operands[-2]:  # D is mostly of C's type
        operands.pop()
    layouts = [each.replace(":column", "n").replace(":row", "t").replace(":", "_") for each in operands]
    parts = (row["operationkind"].lower(), row.get("conv_kind"), *layouts, row.get("accum"))
    return "_".join(filter(None, ("cutlass", *parts)))


def _outcome(problem: dict[str, Any], row: _Row, left_out: Counter[str]) -> Iterator[TunedRow]:
    """Yield the outcome of a row, unless it was not profiled. Another provider's row has no configuration."""
    provider = row.get("provider", "cutlass").lower()
    is_own = provider == "cutlass"
    problem |= {"library": provider, "algorithm": None if is_own else provider}
    names = [name for name in row if is_own and name not in _OTHERS and _NAME.fullmatch(name)]
    time_ms = number(row["runtime"])
    status, disposition = row["status"].lower(), row.get("disposition", "").lower()
    failure = status if status != "success" else disposition if disposition in _NAMES["failed"] else ""
    if not failure and not is_time(time_ms):
        left_out["they were not profiled"] += 1
        return
    made, configuration = outcome(problem, {name: number(row[name] or None) for name in names}, failure or time_ms)
    if failure in _NAMES["not_supported"]:
        made["status"] = "not_supported"
    yield made, configuration


def _formulas(row: _Row, sizes: list[str]) -> dict[str, str]:
    """Return the costs of a dense product. Other operations have none."""
    types = [_NAMES["types"].get(row.get(name, "").partition(":")[0]) for name in "ABC"]
    if row["operationkind"].lower() != "gemm" or None in types:
        return {}
    words = dict(zip("abc", (each[1] for each in types if each), strict=True))
    words["batch"] = "batch_count" if "batch_count" in sizes else "1"
    filled = {name for name, cell in row.items() if cell}
    formulas = {cost: formula.format(**words) for cost, formula in _NAMES["formulas"].items()}
    return {cost: text for cost, text in formulas.items() if filled.issuperset(re.findall(r"[a-z]+_\w+", text))}
