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
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import pandas as pd

from surrogate.features.analytical import TENSILE_TYPES
from surrogate.features.elementwise import MAX_INT32
from surrogate.features.errors import InputError
from surrogate.features.families import FAMILIES
from surrogate.features.gpu import gpu as gpu_named
from surrogate.features.roofline import peak_tflops
from surrogate.formats import Format
from surrogate.formats.foreign_file import Paths, ReadLimits, read_bytes, read_lines
from surrogate.formats.imported import Imported, family_rows, plural
from surrogate.formats.tuned import readable

ENDINGS = (".yaml", ".yml", ".dat", ".yaml.gz", ".dat.gz")
_CONTENT: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
BOARDS, LETTERS, DTYPES, _SIZES = (_CONTENT[name] for name in ("boards", "letters", "dtypes", "sizes"))
"""Names in the files → ours, as the table beside this module explains them."""
CLOCKS_MHZ = {"navi21": 2164.45}
"""Board → the clock at which its files count percents of the peak: sizes that stand in both kinds of file tell it."""
FLOORED, FLOOR_US = "gfx90a", 25.0
"""Tables of MI210 have no time below 30 to 40 µs, those of MI250 with the same architecture have."""
HALF_THROUGHOUT = "HB"
"""Its kernels run on the vector units: matrix cores sum half precision in fp32."""
MIN_PERCENT, MAX_PERCENT = 0.05, 100.0
_ITEMS = (1, 2, 4, 6, 7)
"""Items of a logic file's list: board, architecture, problem type, order of the sizes, sizes with their winners. The
solutions between them, most of the file, are skipped."""
_KIND = ["gpu", "library", "tensile_type", "transposes", "m", "n", "k", "batch"]


class TensileTable(NamedTuple):
    """The winners of one type and transposes on one board: rows of sizes in the order of ``names``, solution, speed."""

    library: str
    board: str
    architecture: str
    tensile_type: str
    transposes: str
    names: tuple[str, ...]
    rows: list[tuple[Any, Any, Any]]


def read(paths: Paths, *, gpu: str | None = None, **limits: Unpack[ReadLimits]) -> Imported:
    """The tables of the files, and of the folders with what lies below them; ``gpu`` replaces the board they name.

    Raises `InputError` naming the file, or where every table is refused.
    """
    frames: list[pd.DataFrame] = []
    unread: list[str] = []
    told = Counter[str]()
    for path, is_named in _files(paths):
        try:
            with readable(path, "give Tensile's logic or library; `seer import tensile --how` says where they are"):
                tables = _unpacked(path, limits) if ".dat" in path.suffixes else [_logic(path, limits)]
                frames += [_measured(table, gpu, told).assign(origin=path.name) for table in tables]
        except InputError as error:
            if is_named:
                raise
            unread.append(f"left out: {error}")
    notes = (*(f"{plural(count, 'row')} {why}" for why, count in (+told).items()), *unread)
    if not sum(map(len, frames)):
        raise InputError(f"{paths[0]}: no measured size; {'; '.join(notes[:3]) or 'it holds no table of sizes'}")
    rows = pd.concat(frames, ignore_index=True)
    fastest = rows.iloc[np.argsort(rows["time_us"].to_numpy(), kind="stable")].drop_duplicates(_KIND).sort_index()
    return Imported(family_rows(settings_of(fastest)), candidates="listed", notes=notes)


FORMAT = Format("tensile", "Tensile logic of rocBLAS and hipBLASLt, YAML or MessagePack", read, finds_files=True)


def settings_of(measured: pd.DataFrame) -> pd.DataFrame:
    """What `family_rows` takes, of a frame with ``gpu`` by any name, ``tensile_type`` and ``transposes``."""
    frame = measured.astype({"tensile_type": str, "transposes": str}).assign(operator="gemm")
    kinds = frame[["gpu", "tensile_type", "transposes"]].drop_duplicates()
    for name, tensile_type, transposes in kinds.itertuples(index=False):
        dtype = DTYPES[tensile_type[0]]
        own = "" if tensile_type in TENSILE_TYPES.values() else tensile_type
        variant = " ".join(filter(None, (own, transposes.replace("NN", ""))))
        kind = (frame["gpu"] == name) & (frame["tensile_type"] == tensile_type) & (frame["transposes"] == transposes)
        frame.loc[kind, ["dtype", "math", "variant"]] = dtype, _math(name, tensile_type), variant
    return frame.assign(gpu=frame["gpu"].map({name: gpu_named(name).name for name in kinds["gpu"]}))


def _math(gpu: str, tensile_type: str) -> str:
    """Matrix cores where the board has them for the type."""
    default = FAMILIES["gemm"].default_math(DTYPES[tensile_type[0]], gpu_named(gpu))
    return "fma" if tensile_type == HALF_THROUGHOUT else default


def _files(paths: Paths) -> Iterator[tuple[Path, bool]]:
    """The files, and those below folders in the order of their names; whether it is one that was named."""
    if not paths:
        raise InputError("no tensile file given; name files or folders, as /opt/rocm/lib/rocblas/library")
    for path in map(Path, paths):
        if not path.is_dir():
            yield path, True
            continue
        inside = sorted(each for each in path.rglob("*") if each.is_file() and each.name.endswith(ENDINGS))
        if not inside:
            raise InputError(f"{path}: a folder without a Tensile file; they end in {', '.join(ENDINGS)}")
        yield from ((each, False) for each in inside)


def _library(path: Path) -> str:
    return "hipblaslt" if "hipblaslt" in str(path).lower() else "rocblas"


def _logic(path: Path, limits: ReadLimits) -> TensileTable:
    """A YAML file: a list whose items begin at the start of a line; those of `_ITEMS` are parsed, one by one."""
    import yaml

    items: list[list[str]] = []
    for _, line in read_lines(path, **limits):
        if line.startswith("- "):
            items.append([])
        if len(items) - 1 in _ITEMS:
            items[-1].append(line)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        parsed = [yaml.load("\n".join(items[at]), Loader=loader)[0] for at in _ITEMS]  # noqa: S506  # a safe loader
    except yaml.YAMLError as error:
        raise InputError(f"{path}: no YAML ({' '.join(str(error).split())[:120]}); fetch it again") from None
    board, architecture, problem, order, rows = parsed
    if isinstance(architecture, dict):
        architecture = f"{architecture['Architecture']}/{architecture.get('CUCount')}"
    inputs = problem["DataType"]
    wide = 6 if LETTERS.get(str(inputs)) == "I8" else 0
    sums = problem.get("ComputeDataType", wide if problem.get("HighPrecisionAccumulate") else inputs)
    return TensileTable(
        "hipblaslt" if "UseBias" in problem else _library(path),
        str(board),
        str(architecture),
        _type(inputs, problem.get("DestDataType", inputs), sums),
        "".join("NT"[bool(problem[name])] for name in ("TransposeA", "TransposeB")),
        names=tuple(_SIZES[str(each)] for each in order),
        rows=[(sizes, *winner[:2]) for sizes, winner in rows or ()],
    )


def _unpacked(path: Path, limits: ReadLimits) -> Iterator[TensileTable]:
    """A compiled library: its nested tables, told apart by the solutions that their rows name."""
    try:
        import msgpack
    except ImportError:
        raise InputError(f"{path}: MessagePack needs the package msgpack; pip install msgpack") from None
    try:
        content = msgpack.unpackb(read_bytes(path, **limits), strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise InputError(f"{path}: no MessagePack ({error or type(error).__name__}); fetch it again") from None
    kinds = {each["index"]: _kind(each, path.name) for each in content["solutions"]}
    for matching, units in _matching(content["library"]):
        by_kind: dict[tuple[str, str, str], list[tuple[Any, Any, Any]]] = {}
        for row in matching["table"]:
            index = row["value"]["index"] if isinstance(row["value"], dict) else row["value"]
            by_kind.setdefault(kinds[index], []).append((row["key"], index, row["speed"]))
        names = tuple(_SIZES.get(each["type"], "") for each in matching["properties"])
        for (architecture, *kind), rows in by_kind.items():
            # What rocBLAS installs for RDNA 3 are the files of navi31 and navi32.
            board = {"gfx1100": "navi31", "gfx1101": "navi32"}.get(architecture, architecture)
            yield TensileTable(_library(path), board, f"{architecture}{units}", *kind, names=names, rows=rows)


def _matching(node: Any, units: str = "") -> Iterator[tuple[Mapping[str, Any], str]]:
    """Every table of measured sizes in a nested library, with the compute units that a condition around it names."""
    if isinstance(node, dict):
        named = re.search(r"'CUCount', 'value': (\d+)", str(node.get("predicate")))
        units = f"/{named[1]}" if named else units
    if isinstance(node, dict) and "table" in node and "properties" in node:
        yield node, units
    elif isinstance(node, dict | list):
        for each in node.values() if isinstance(node, dict) else node:
            yield from _matching(each, units)


def _kind(solution: Mapping[str, Any], file: str) -> tuple[str, str, str]:
    """Architecture (by the solution, else by the file's name), tensile type and transposes."""
    problem = solution["problemType"]
    inputs = problem["aType"]
    wide = "Int32" if inputs == "Int8" else "Float"
    operation = re.search(r"_A(ilk|lik)_B(ljk|jlk)_", problem["operationIdentifier"])
    transposes = "NT"[operation[1] == "lik"] + "NT"[operation[2] == "jlk"] if operation else "other"
    architecture = re.search(r"gfx[0-9a-f]+", f"{solution.get('hardwarePredicate')} {file}")
    sums = wide if problem.get("highPrecisionAccumulate") else inputs
    return architecture[0] if architecture else "", _type(inputs, problem["dType"], sums), transposes


def _type(*kinds: int | str) -> str:
    """The tensile type of inputs, outputs and sums; one letter and a B (for β) where all are alike."""
    letters = [LETTERS.get(str(each), "?") for each in kinds]
    return f"{letters[0]}B" if len(set(letters)) == 1 else "".join(letters)


def _measured(table: TensileTable, gpu: str | None, told: Counter[str]) -> pd.DataFrame:
    """The rows with a time; ``told`` counts the others by the reason."""
    of = {*table[:4], architecture := table.architecture.partition("/")[0]}
    reason = next((table["why"] for table in _CONTENT["refused"] if of.issuperset(table["of"])), "")
    known = gpu or next((BOARDS[n] for n in (table.architecture, table.board, architecture) if n in BOARDS), "")
    if "?" in table.tensile_type or table.transposes == "other":
        reason = "no matrix product here has such a type or operation"
    if reason or not known:
        refused = f"refused: {reason}" if reason else "its GPU is unknown, name it by --gpu"
        told[f"left out: {table.board} {table.tensile_type}, {refused}"] += len(table.rows)
        return pd.DataFrame()
    board = gpu_named(known)
    # 1. Sizes and speed, as numbers: (rows,) each.
    columns = zip(*(sizes for sizes, _, _ in table.rows), strict=True)
    sizes = {size: np.array(cells, dtype=np.float64) for size, cells in zip(table.names, columns, strict=False) if size}
    rows = pd.DataFrame({size: sizes.get(size, []) for size in _KIND[4:]})
    rows["solution"] = [solution for _, solution, _ in table.rows]
    speed = np.array([speed for _, _, speed in table.rows], dtype=np.float64)
    rules = {"the speed is no number above 0": np.isfinite(speed) & (speed > 0)}
    values = rows[_KIND[4:]].to_numpy(dtype=np.float64)
    rules["a size is out of range"] = np.asarray(((values >= 1) & (values <= MAX_INT32)).all(axis=1))
    # 2. Percents of the peak.
    if np.nanmax(speed, initial=0.0) <= MAX_PERCENT:
        rules["percents below 0.05 are rounding"] = ~(speed > 0) | (speed >= MIN_PERCENT)
        peak = peak_tflops(board, DTYPES[table.tensile_type[0]], _math(known, table.tensile_type) != "fma")
        speed = speed * 10 * peak * CLOCKS_MHZ.get(table.board, board.boost_mhz) / board.boost_mhz
        assumed = f"hold percents, taken as of the data sheet's peak of {board.name}"
        told[assumed] += len(rows) * (table.board not in CLOCKS_MHZ)
    usable = np.full(len(rows), True)
    for why, kept in rules.items():
        told[f"left out: {why}"] += int((usable & ~kept).sum())
        usable &= kept
    # 3. Times.
    rows = rows[usable].astype(dict.fromkeys(_KIND[4:], np.int64))
    time_us = 2.0 * values[usable].prod(axis=1) / speed[usable] / 1e3
    if architecture == FLOORED and len(rows) and time_us.min() >= FLOOR_US:
        told[f"left out: refused, a floor of the harness at {time_us.min():.0f} µs"] += len(rows)
        rows, time_us = rows[:0], time_us[:0]
    facts = {"gpu": board.name, "library": table.library, "tensile_type": table.tensile_type}
    return rows.assign(time_us=time_us, transposes=table.transposes, **facts)
