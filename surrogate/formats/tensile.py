"""Tensile logic of rocBLAS and hipBLASLt: of each tuned size the fastest kernel and the speed that AMD measured.

How to get them: the YAML files lie below library/src/blas3/Tensile/Logic of ROCm/rocBLAS and below
tensilelite/Tensile/Logic (older releases: library/src/amd_detail/rocblaslt/src/Tensile/Logic) of ROCm/hipBLASLt; ROCm
installs them compiled, as MessagePack: /opt/rocm/lib/rocblas/library/*.dat and /opt/rocm/lib/hipblaslt/library/*.dat.
Give files or folders; .gz is read. MessagePack needs `pip install msgpack`. The reader of it follows Tensile's sources
and was tried on a small file made by hand, not on an installed one.

- A table is in GFLOP/s, or in percent of the board's peak where none of its speeds passes 100. What a percent is worth
  is known of Navi 21 (80 CUs at 2.164 GHz); elsewhere the data sheet's peak is assumed, and a note says so.
- Percents below 0.05 are rounding, and are left out. Of a size that stands there twice, the fastest counts, as it does
  for Tensile.
- The tensile type says what inputs, outputs and sums are: HHS has fp16 inputs and outputs and fp32 sums, HSS fp32
  outputs, HB is fp16 throughout. Column ``variant`` holds it, where it is not the one that a question without one means
  (HHS, BBS, SB, DB, I8II), and the transposes, where they are not NN, as in ``HB TN``. Sizes are column-major.
- Tables that repeat another board's figures, or hold a floor of the harness, are refused with the reason.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import pandas as pd

from surrogate.features.errors import InputError
from surrogate.features.families import FAMILIES
from surrogate.features.gpu import Gpu
from surrogate.features.gpu import gpu as gpu_named
from surrogate.features.roofline import peak_tflops
from surrogate.features.whole import MAX_INT32
from surrogate.formats import Format
from surrogate.formats.foreign_file import Limits, Paths, read_bytes, read_lines
from surrogate.formats.imported import Imported, family_rows, plural

ENDINGS = (".yaml", ".yml", ".dat", ".yaml.gz", ".dat.gz")
BOARDS = {
    "vega10": "mi25", "gfx900": "mi25", "vega20": "mi60", "gfx906": "mi60", "arcturus": "mi100", "gfx908": "mi100",
    "aldebaran": "mi250", "gfx90a": "mi250", "gfx90a/110": "mi250x", "aquavanjaram": "mi300x", "gfx942": "mi300x",
    "navi21": "rx-6900-xt", "gfx1030": "rx-6900-xt", "gfx1100": "rx-7900-xtx", "gfx1101": "rx-7800-xt",
    "gfx1201": "rx-9070-xt",
}  # fmt: skip
"""Tensile's name of a board, its architecture, or that and its CUs → the registry's name. vega20 is the MI60: its fp16
kernels pass the MI50's peak."""
CLOCKS_MHZ = {"navi21": 2164.45}
"""Board → the clock at which its files count percents of the peak: sizes that stand in both kinds of file tell it."""
_OF_NAVI21 = "repeats Navi 21's figures"
REFUSED = {
    ("navi31", ""): _OF_NAVI21, ("navi32", ""): _OF_NAVI21, ("gfx941", ""): "repeats Aldebaran's figures",
    ("gfx1200", ""): "repeats gfx1201's figures", ("gfx90a", "HSS"): "HSS repeats the HHS figures of MI250",
    ("gfx942", "HHS"): "HHS repeats the figures of MI250",
}  # fmt: skip
"""(board or architecture, tensile type or "" for all) → why its figures are no measurements."""
FLOORED, FLOOR_US = "gfx90a", 25.0
"""Tables of MI210 have no time below 30 to 40 µs, those of MI250 with the same architecture have."""
LETTERS = {0: "S", 1: "D", 4: "H", 6: "I", 7: "B", 8: "I8"}
"""Number of a data type → its letter in a tensile type. Source: Tensile, DataType.py."""
NAMES = {"Float": "S", "Double": "D", "Half": "H", "Int32": "I", "BFloat16": "B", "Int8": "I8"}
"""The same of MessagePack's names."""
DTYPES = {"S": "fp32", "D": "fp64", "H": "fp16", "B": "bf16", "I8": "int8"}
DEFAULTS = ("HHS", "BBS", "SB", "DB", "I8II")
"""Tensile types that a question without one means: sums in fp32, or as wide as the inputs."""
HALF_THROUGHOUT = "HB"
"""Its kernels run on the vector units: matrix cores sum half precision in fp32."""
LEAST_PERCENT, MOST_PERCENT = 0.05, 100.0
_ITEMS = {"device": 1, "architecture": 2, "problem": 4, "order": 6, "table": 7}
"""Items of a logic file's list; the solutions between them, most of the file, are skipped."""
_CONTRACTION = re.compile(r"Contraction_l_A(ilk|lik)_B(ljk|jlk)_Cijk_Dijk")
_SIZES = {"FreeSizeA": "m", "FreeSizeB": "n", "BatchSize": "batch", "BoundSize": "k"}
_ORDER = {2: "m", 3: "n", 0: "batch", 1: "k"}


class Table(NamedTuple):
    """The winners of one type and transposes on one board: rows (size of each of ``names``, …; solution; speed)."""

    board: str
    architecture: str
    units: int | None
    library: str
    tensile_type: str
    transposes: str
    names: tuple[str, ...]
    rows: list[tuple[Any, Any, Any]]


def read(paths: Paths, *, gpu: str | None = None, **limits: Unpack[Limits]) -> Imported:
    """The tables of the files, and of the folders with what lies below them; ``gpu`` replaces the board they name.

    Raises `InputError` naming the file, or where every table is refused.
    """
    frames: list[pd.DataFrame] = []
    left_out = Counter[str]()
    refused = Counter[str]()
    for path, is_named in _files(paths):
        try:
            tables = [*_tables(path, limits)]
        except InputError as error:
            if is_named:
                raise
            refused[str(error)] += 1
            continue
        for table in tables:
            try:
                frames.append(_measured(table, gpu, left_out).assign(origin=path.name))
            except InputError as error:
                refused[f"{table.board} {table.tensile_type}: {error}"] += 1
    notes = [f"{plural(count, 'table')} of {why}" for why, count in refused.items()]
    if not sum(map(len, frames)):
        raise InputError(f"{paths[0]}: no measured size; {'; '.join(notes[:3]) or 'it holds no table of sizes'}")
    notes += [f"{plural(count, 'row')} left out: {why}" for why, count in (+left_out).items()]
    measured = pd.concat(frames, ignore_index=True)
    if (assumed := measured.pop("assumed")).any():
        boards = ", ".join(sorted(measured.loc[assumed, "gpu"].unique()))
        notes.append(f"percents are taken as of the data sheet's peak on {boards}")
    return Imported(tensile_rows(measured), candidates="listed", notes=tuple(notes))


FORMAT = Format("tensile", "Tensile logic of rocBLAS and hipBLASLt, YAML or MessagePack", read, finds_files=True)


def tensile_rows(measured: pd.DataFrame) -> pd.DataFrame:
    """Dataset rows of a frame with ``gpu`` (any name), ``library``, ``tensile_type``, ``transposes``, sizes and
    ``time_us``; of equal problems the fastest."""
    key = ["gpu", "library", "tensile_type", "transposes", "m", "n", "k", "batch"]
    fastest = measured.iloc[np.argsort(measured["time_us"].to_numpy(), kind="stable")].drop_duplicates(key)
    return family_rows(settings_of(fastest.sort_index()))


def settings_of(measured: pd.DataFrame) -> pd.DataFrame:
    """The frame with the settings of matrix products: GPUs by the registry's name, dtype, math and variant."""
    types, transposes = (measured[name].astype(str) for name in ("tensile_type", "transposes"))
    own = types.where(~types.isin(DEFAULTS), "")
    variant = (own + " " + transposes.where(transposes != "NN", "")).str.strip()
    gpus = measured["gpu"].map({name: gpu_named(name).name for name in measured["gpu"].unique()})
    dtype = types.map({name: DTYPES[_letter(name)] for name in types.unique()})
    pairs = pd.Series(list(zip(gpus, dtype, types, strict=True)), index=measured.index)
    math = pairs.map({pair: _math(*pair) for pair in pairs.unique()})
    return measured.assign(operator="gemm", gpu=gpus, dtype=dtype, math=math, variant=variant)


def _math(gpu: str, dtype: str, tensile_type: str) -> str:
    """Matrix cores where the board has them for the type."""
    return "fma" if tensile_type == HALF_THROUGHOUT else FAMILIES["gemm"].default_math(dtype, gpu_named(gpu))


def _letter(tensile_type: str) -> str:
    return "I8" if tensile_type.startswith("I8") else tensile_type[0]


def _files(paths: Paths) -> Iterator[tuple[Path, bool]]:
    """The files, and those below folders in the order of their names; whether it is one that was named."""
    if not paths:
        raise InputError("no tensile file given; name files or folders, as /opt/rocm/lib/rocblas/library")
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.is_file() and each.name.endswith(ENDINGS))
            if not inside:
                raise InputError(f"{path}: no Tensile file below it; they end in {', '.join(ENDINGS)}")
            yield from ((each, False) for each in inside)
        else:
            yield path, True


def _tables(path: Path, limits: Limits) -> Iterator[Table]:
    """The tables of one file. Raises `InputError` for another kind of file."""
    is_packed = ".dat" in path.suffixes
    try:
        yield from _unpacked(path, limits) if is_packed else [_logic(path, limits)]
    except InputError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        kind = "library (solutions and library)" if is_packed else "logic (a list with problem type and sizes)"
        raise InputError(f"{path}: no Tensile {kind}: {type(error).__name__} {error}"[:300]) from None


def _logic(path: Path, limits: Limits) -> Table:
    """A YAML file: a list whose items begin at the start of a line; those of `_ITEMS` are parsed, one by one."""
    import yaml

    items: list[list[str]] = []
    for _, line in read_lines(path, **limits):
        if line.startswith("- "):
            items.append([])
        if items and len(items) - 1 in _ITEMS.values():
            items[-1].append(line)
    if len(items) <= max(_ITEMS.values()):
        raise InputError(f"{path}: {plural(len(items), 'item')} at the start of lines, Tensile logic has 8 or more")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        (device, architecture, problem, order, rows) = (
            yaml.load("\n".join(items[at]), Loader=loader)[0]  # noqa: S506  # the safe loader, in C
            for at in _ITEMS.values()
        )
    except yaml.YAMLError as error:
        raise InputError(f"{path}: no YAML ({' '.join(str(error).split())[:120]}); fetch it again") from None
    units = None
    if isinstance(architecture, dict):
        architecture, units = architecture["Architecture"], architecture.get("CUCount")
    inputs = problem["DataType"]
    wide = 6 if inputs == 8 else 0
    sums = problem.get("ComputeDataType", wide if problem.get("HighPrecisionAccumulate") else inputs)
    letters = [LETTERS.get(number, f"type {number}") for number in (inputs, problem.get("DestDataType", inputs), sums)]
    library = "hipblaslt" if "UseBias" in problem or "hipblaslt" in str(path).lower() else "rocblas"
    return Table(
        str(device), str(architecture), units, library, _type(letters),
        "".join("NT"[bool(problem[name])] for name in ("TransposeA", "TransposeB")),
        tuple(_ORDER[each] for each in order), [(row[0], row[1][0], row[1][1]) for row in rows or ()],
    )  # fmt: skip


def _unpacked(path: Path, limits: Limits) -> Iterator[Table]:
    """A compiled library: its nested tables, told apart by the solutions that their rows name."""
    try:
        import msgpack
    except ImportError:
        raise InputError(f"{path}: MessagePack needs the package msgpack; pip install msgpack") from None
    try:
        content = msgpack.unpackb(read_bytes(path, **limits), strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise InputError(f"{path}: no MessagePack ({error or type(error).__name__}); fetch it again") from None
    solutions = {each["index"]: each for each in content["solutions"]}
    library = "hipblaslt" if "hipblaslt" in str(path).lower() else "rocblas"
    found = re.search(r"gfx[0-9a-f]+", path.name)
    for matching in _matching(content["library"]):
        by_kind: dict[tuple[Any, ...], list[tuple[Any, Any, Any]]] = {}
        for row in matching["table"]:
            index = row["value"]["index"] if isinstance(row["value"], dict) else row["value"]
            kind = _kind(solutions.get(index, {}), found[0] if found else "")
            by_kind.setdefault(kind, []).append((row["key"], index, row["speed"]))
        names = tuple(_SIZES.get(each["type"], "") for each in matching["properties"])
        for (architecture, units, tensile_type, transposes), rows in by_kind.items():
            # What rocBLAS installs for RDNA 3 are the files of navi31 and navi32.
            copied = {"gfx1100": "navi31", "gfx1101": "navi32"} if library == "rocblas" else {}
            board = copied.get(architecture, architecture)
            yield Table(board, architecture, units, library, tensile_type, transposes, names=names, rows=rows)


def _matching(node: Any) -> Iterator[Mapping[str, Any]]:
    """Every table of measured sizes in a nested library."""
    if isinstance(node, dict) and "table" in node and "properties" in node:
        yield node
    elif isinstance(node, dict | list):
        for each in node.values() if isinstance(node, dict) else node:
            yield from _matching(each)


def _kind(solution: Mapping[str, Any], architecture: str) -> tuple[str, int | None, str, str]:
    """Architecture, CUs, tensile type and transposes of a solution."""
    problem = solution.get("problemType", {})
    letters = [NAMES.get(str(problem.get(name)), f"type {problem.get(name)}") for name in ("aType", "dType")]
    sums = {"I8": "I"}.get(letters[0], "S") if problem.get("highPrecisionAccumulate") else letters[0]
    match = _CONTRACTION.fullmatch(str(problem.get("operationIdentifier")))
    transposes = f"{'NT'[match[1] == 'lik']}{'NT'[match[2] == 'jlk']}" if match else "another contraction"
    facts: dict[str, Any] = {}
    queue = [solution.get("hardwarePredicate")]
    while queue:
        predicate = queue.pop()
        if isinstance(predicate, list):
            queue += predicate
        elif isinstance(predicate, dict):
            facts[str(predicate.get("type"))] = predicate.get("value")
            queue.append(predicate.get("value"))
    return facts.get("Processor", architecture), facts.get("CUCount"), _type([*letters, sums]), transposes


def _type(letters: list[str]) -> str:
    """Inputs, outputs and sums; one letter and a B (for β) where all are alike."""
    return f"{letters[0]}B" if len(set(letters)) == 1 else "".join(letters)


def _refusal(table: Table) -> str:
    """Why the table is no measurement of its board, "" where it may be."""
    if not re.fullmatch(r"(I8|[SDHB])\w*", table.tensile_type) or not re.fullmatch("[NT]{2}", table.transposes):
        return "it is of a type or an operation that no matrix product here has"
    names = (table.board, table.architecture)
    reasons = (REFUSED.get((name, kind)) for name in names for kind in ("", table.tensile_type))
    return next(filter(None, reasons), "")


def _measured(table: Table, gpu: str | None, left_out: Counter[str]) -> pd.DataFrame:
    """The rows with time, in the columns of `settings_of`. Raises `InputError` for a table that is refused."""
    if reason := _refusal(table):
        raise InputError(f"refused: {reason}; import other files")
    names = (f"{table.architecture}/{table.units}", table.board, table.architecture)
    known = gpu or next((BOARDS[name] for name in names if name in BOARDS), None)
    if known is None:
        raise InputError(f"the board ({table.architecture}) is unknown; name its GPU by --gpu")
    board = gpu_named(known)
    speed = np.array([speed for _, _, speed in table.rows], dtype=np.float64)
    sizes = {size: np.array([row[0][at] for row in table.rows]) for at, size in enumerate(table.names) if size}
    sizes = {size: sizes[size].astype(np.float64) for size in ("m", "n", "k", "batch")}
    usable = np.isfinite(speed) & (speed > 0)
    left_out["the speed is 0, below, or no number"] += int((~usable).sum())
    gflops = speed
    is_percent = speed[usable].max(initial=0.0) <= MOST_PERCENT
    if is_percent:
        rounded = usable & (speed < LEAST_PERCENT)
        left_out[f"below {LEAST_PERCENT} percent of the peak, which is rounding"] += int(rounded.sum())
        usable &= ~rounded
        gflops = speed * _percent_gflops(table, board)
    for size in sizes.values():
        within = (size >= 1) & (size <= MAX_INT32)
        left_out["a size is out of range"] += int((usable & ~within).sum())
        usable &= within
    flops = 2.0 * sizes["m"] * sizes["n"] * sizes["k"] * sizes["batch"]
    columns = {size: values[usable].astype(np.int64) for size, values in sizes.items()}
    facts = {"gpu": board.name, "library": table.library, "tensile_type": table.tensile_type}
    solution = [row[1] for row, is_usable in zip(table.rows, usable, strict=True) if is_usable]
    frame = pd.DataFrame({**columns, "time_us": flops[usable] / gflops[usable] / 1e3, "solution": solution})
    if table.architecture == FLOORED and (least_us := frame["time_us"].min()) >= FLOOR_US:
        raise InputError(f"refused: no time is below {least_us:.0f} µs, a floor of the harness; import other files")
    assumed = is_percent and table.board not in CLOCKS_MHZ
    return frame.assign(**facts, transposes=table.transposes, assumed=assumed)


def _percent_gflops(table: Table, board: Gpu) -> float:
    """What a percent of the board's peak is worth."""
    dtype = DTYPES[_letter(table.tensile_type)]
    peak = peak_tflops(board, dtype, _math(board.name, dtype, table.tensile_type) != "fma")
    return 10 * peak * CLOCKS_MHZ.get(table.board, board.boost_mhz) / board.boost_mhz
