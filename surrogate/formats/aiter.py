"""Tuned kernels of AMD's aiter: for each size the fastest of its matrix products or fused experts.

How to get them: AMD's own tables are below aiter/configs of ROCm/aiter, such as a8w8_blockscale_tuned_gemm.csv,
bf16_tuned_gemm.csv and tuned_fmoe.csv. The tuners of aiter (gradlib/gradlib/gemm_tuner.py, csrc/*/gemm_*_tune.py) write
files of the same columns.

- The columns gfx and cu_num name the board. If a file lacks one, give --gpu. With --gpu, only its rows are read.
- The columns q_dtype_w or dtype, or the name of the file, have the element type (a8w8_blockscale: fp8_block, a4w4:
  mxfp4). If neither has it, give --dtype.
- The fastest row of a size counts, whether its weights are shuffled or it adds a bias. A time of 0 is no measurement.
- Only the fastest kernel of a size is known: a table has times, but no choice. Column ``maker`` has the library of the
  kernel (ck, asm, triton and so on), and ``kernel`` its name.
"""

from collections import Counter
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd

from surrogate.features import ELEMENTS, MAX_INT32, InputError, canonical, check_choice, read_toml, registry, setting
from surrogate.features.families.moe import NONGATED
from surrogate.features.gpu import gpu as gpu_by_name
from surrogate.formats import Format, Option, imported
from surrogate.formats.foreign_file import Paths, ReadLimits

_NAMES: dict[str, Any] = read_toml(__file__)
"""Names in the files → names of this package. The TOML file of this module explains them."""
SIZES: dict[str, list[str]] = _NAMES["sizes"]
"""Operator → its sizes. Sizes that a file lacks are 1."""

_UNREGISTERED = "no registered GPU has such an architecture and number of compute units"


def read(
    paths: Paths, *, gpu: str | None = None, dtype: str | None = None, **limits: Unpack[ReadLimits]
) -> imported.Imported:
    """Read tables of matrix products or of fused experts; ``gpu`` and ``dtype`` are of the files that lack them.

    Raises `InputError` with the file for a column, a board or an element type that is missing.
    """
    left_out = Counter[str]()
    notes = list[str]()
    if dtype:
        dtype = setting("dtype", dtype)
        check_choice("dtype", dtype, ELEMENTS)
    rows = pd.concat([_frame(Path(path), gpu, dtype, (left_out, notes), limits) for path in paths], ignore_index=True)
    notes += imported.left_out_notes(left_out, "row")
    if rows.empty:
        raise InputError(f"{paths[0]}: no measurement; {'; '.join(notes) or 'it has no rows'}")
    key = ["gpu", "operator", "dtype", "variant", *(name for sizes in SIZES.values() for name in sizes if name in rows)]
    return imported.Imported(imported.family_rows(imported.fastest(rows, key)), candidates="listed", notes=tuple(notes))


_DTYPE = Option("Element type of aiter's products, if neither a column nor the file's name has it.", "D")
FORMAT = Format("aiter", "tuned matrix products and experts of AMD's aiter", read, extra_options={"dtype": _DTYPE})


def _frame(
    path: Path, gpu: str | None, dtype: str | None, omissions: tuple[Counter[str], list[str]], limits: ReadLimits
) -> pd.DataFrame:
    """Return the measurements of a file as input of `family_rows`. ``omissions`` count other rows, and note doubts."""
    left_out, notes = omissions
    table = imported.csv_table(path, "aiter's table", _NAMES["numbers"], notes, limits)
    operator = "moe" if "token" in table else "gemm"
    if operator == "moe" and "us" not in table and {"us1", "us2"} <= {*table}:
        table["us"] = table[["us1", "us2"]].apply(pd.to_numeric, errors="coerce").sum(axis=1, skipna=False)
    imported.check_columns(table, path, _NAMES["needed"][operator])
    table["types"] = _element_types(table, path, operator, dtype)
    table["board"] = _boards(table, path, gpu, notes)
    frame = table.rename(columns=_NAMES["columns"])
    for name in {"gemm": ("batch",), "moe": ("tensor_parallel", "expert_parallel")}[operator]:
        frame[name] = frame.get(name, "1")
    sizes = SIZES[operator]
    numbers = frame[[*sizes, "time_us"]].apply(pd.to_numeric, errors="coerce")
    in_range = numbers[sizes].ge(1) & numbers[sizes].le(MAX_INT32) & (numbers[sizes] % 1 == 0)
    kept = imported.rows_within(
        {
            "a time of 0 is no measurement": (numbers["time_us"] > 0).to_numpy(),
            "a size is no whole number above 0": in_range.all(axis=1).to_numpy(),
            "the package has no such element type": (frame["types"] != "").to_numpy(),
            f"they are of another board than {gpu}" if gpu else _UNREGISTERED: (frame["board"] != "").to_numpy(),
        },
        left_out,
    )
    columns = {name for name in _NAMES["columns"].values() if name in frame} - {*numbers}
    labels: dict[str, Any] = {"operator": operator, "gpu": frame["board"], "dtype": frame["types"], "math": "default"}
    labels["variant"] = np.where(frame.get("use_g1u1", "1") == "0", NONGATED, "")
    labels |= {"library": "aiter", "file": path.name, "origin": "aiter"}
    measured = pd.concat([frame[sorted(columns)], numbers], axis=1).assign(**labels)[kept]
    return measured.astype(dict.fromkeys(sizes, np.int64))


def _element_types(table: pd.DataFrame, path: Path, operator: str, dtype: str | None) -> Any:
    """Return the element type of each row, "" if the package has none; or one for all rows."""
    if operator == "moe":
        inputs, weights, scales = (table[name].str.rpartition(".")[2] for name in ("q_dtype_a", "q_dtype_w", "q_type"))
        return (inputs + " " + weights + " " + scales).map(_NAMES["experts"]).fillna("")
    by_name = next((dtype for part, dtype in _NAMES["files"].items() if part in path.name), None)
    column = next((name for name in ("q_dtype_w", "dtype") if name in table), None)
    if by_name is None and column is not None:
        return table[column].str.rpartition(".")[2].map(_NAMES["types"]).fillna("")
    chosen = by_name or ("bf16" if "bf16" in path.name else dtype)
    if chosen is None:
        raise InputError(f"{path}: neither a column nor the file's name has an element type; give --dtype")
    return chosen


def _boards(table: pd.DataFrame, path: Path, gpu: str | None, notes: list[str]) -> pd.Series:
    """Return the registry name of each row's GPU; "" for an unregistered one, or another one than ``gpu``."""
    facts = {"gfx": gpu_by_name(gpu).architecture, "cu_num": str(gpu_by_name(gpu).sms)} if gpu else {}
    missing = {"gfx", "cu_num"} - {*table}
    if missing and not gpu:
        raise InputError(f"{path}: the columns gfx and cu_num, which name the board, are missing; give --gpu")
    filled = table.assign(**{name: facts[name] for name in missing})
    pairs = filled["gfx"] + "_" + filled["cu_num"]
    names = {pair: "" if canonical(pair) == pair else canonical(pair) for pair in pairs.unique()}
    if gpu:
        names = {pair: gpu if name and not registry().contradicts(gpu, pair) else "" for pair, name in names.items()}
    else:
        doubts = [registry().ambiguity_note(pair) for pair, name in names.items() if name]
        notes += [note for note in doubts if note and note not in notes]
    return pairs.map(names)
