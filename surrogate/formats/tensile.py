"""Tensile logic of rocBLAS and hipBLASLt: the fastest kernel of each tuned size, and its speed as AMD measured it.

How to get them: the YAML files are below library/src/blas3/Tensile/Logic of ROCm/rocBLAS, and below
tensilelite/Tensile/Logic (older releases: library/src/amd_detail/rocblaslt/src/Tensile/Logic) of ROCm/hipBLASLt. ROCm
installs them compiled, as MessagePack: /opt/rocm/lib/rocblas/library/*.dat and /opt/rocm/lib/hipblaslt/library/*.dat.
Give files or folders; files may be packed as .gz. MessagePack needs `pip install msgpack`. Its reader follows Tensile's
sources. It was tried on a small file made by hand, not on an installed one.

- A table is in GFLOP/s, or in percent of the board's peak if no speed exceeds 100. The clock of the peak is known for
  Navi 21 (80 CUs at 2.164 GHz). For other boards the datasheet peak is assumed, and a note says so.
- Percents below 0.05 are rounded too coarsely and are skipped. If a size occurs twice, the fastest kernel counts, as in
  Tensile.
- The tensile type names the types of inputs, outputs and sums. HHS has fp16 inputs and outputs and fp32 sums, HSS has
  fp32 outputs, HB is fp16 throughout. Column ``variant`` holds the type if it is not the default of its element type
  (HHS, BBS, SB, DB, I8II), and the transposes if they are not NN, as in ``HB TN``. Sizes are column-major.
- Tables that repeat another board's figures, or hold a floor of the harness, are refused with the reason.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import pandas as pd

from surrogate.features import MAX_INT32, TENSILE_TYPES, InputError, peak_tflops, read_toml
from surrogate.features.errors import MAX_JSON_NODES
from surrogate.features.families import FAMILIES
from surrogate.features.gpu import gpu as gpu_by_name
from surrogate.formats import Format
from surrogate.formats.foreign_file import Paths, ReadLimits, files_of, read_bytes, read_lines, readable
from surrogate.formats.imported import Imported, family_rows, fastest, plural, rows_within

ENDINGS = (".yaml", ".yml", ".dat", ".yaml.gz", ".dat.gz")
_CONTENT: dict[str, Any] = read_toml(__file__)
BOARDS, LETTERS, DTYPES, _SIZES = (_CONTENT[name] for name in ("boards", "letters", "dtypes", "sizes"))
"""Names in the files → names of this package. The TOML file of this module explains them."""
CLOCKS_MHZ = {"navi21": 2164.45}
"""Board → clock of the peak in its percents. It follows from sizes that occur in both kinds of file."""
FLOORED, FLOOR_US = "gfx90a", 25.0
"""Tables of MI210 have no time below 30 to 40 µs. Tables of MI250, of the same architecture, have such times."""
HALF_THROUGHOUT = "HB"
"""A type of the vector units: matrix cores sum half precision in fp32."""
MIN_PERCENT, MAX_PERCENT = 0.05, 100.0
_ITEMS = (1, 2, 4, 6, 7)
"""Items of a logic file: board, architecture, problem type, order of the sizes, sizes with the fastest solutions. The
other items, the solutions, are most of the file and are skipped."""
MAX_VALUES = 1_000_000
"""Maximum values of a YAML file's items, each of 400 to 700 bytes in memory."""
_LONG_WORD = re.compile(r"[^\s,\[\]{}]{1001}")
"""A word that takes the parser a time that grows with the square of its length: ``1:59:59:…`` is a number."""
_KIND = ["gpu", "library", "tensile_type", "transposes", "m", "n", "k", "batch"]


class TensileTable(NamedTuple):
    """The fastest solutions of one type and transposes on one board.

    A row of ``rows`` holds sizes in the order of ``names``, the solution and its speed.
    """

    library: str
    board: str
    architecture: str
    tensile_type: str
    transposes: str
    names: tuple[str, ...]
    rows: list[tuple[Any, Any, Any]]


def read(paths: Paths, *, gpu: str | None = None, **limits: Unpack[ReadLimits]) -> Imported:
    """Read the tables of files, and of folders with their subfolders. ``gpu`` overrides the board in the files.

    Raises `InputError` with the file, or if every table is refused.
    """
    frames: list[pd.DataFrame] = []
    unread: list[str] = []
    row_counts = Counter[str]()
    for path, is_given in files_of(paths, ENDINGS, "tensile"):
        try:
            with readable(path, "give Tensile's logic or library; `seer import tensile --how` says where they are"):
                tables = _unpacked(path, limits) if ".dat" in path.suffixes else [_logic(path, limits)]
                frames += [_measured(table, gpu, row_counts).assign(origin=path.name) for table in tables]
        except InputError as error:
            if is_given:
                raise
            unread.append(f"left out: {error}")
    notes = (*(f"{plural(count, 'row')} {why}" for why, count in (+row_counts).items()), *unread)
    if not sum(map(len, frames)):
        raise InputError(f"{paths[0]}: no measured size; {'; '.join(notes[:3]) or 'it has no table of sizes'}")
    rows = pd.concat(frames, ignore_index=True)
    return Imported(family_rows(settings_of(fastest(rows, _KIND))), candidates="listed", notes=notes)


FORMAT = Format("tensile", "Tensile logic of rocBLAS and hipBLASLt, YAML or MessagePack", read, finds_files=True)


def settings_of(measured: pd.DataFrame) -> pd.DataFrame:
    """Return a frame for `family_rows`, from one with ``gpu`` (any name), ``tensile_type`` and ``transposes``."""
    frame = measured.astype({"tensile_type": str, "transposes": str}).assign(operator="gemm")
    kinds = frame[["gpu", "tensile_type", "transposes"]].drop_duplicates()
    for name, tensile_type, transposes in kinds.itertuples(index=False):
        dtype = DTYPES[tensile_type[0]]
        own = "" if tensile_type in TENSILE_TYPES.values() else tensile_type
        variant = " ".join(filter(None, (own, transposes.replace("NN", ""))))
        kind = (frame["gpu"] == name) & (frame["tensile_type"] == tensile_type) & (frame["transposes"] == transposes)
        frame.loc[kind, ["dtype", "math", "variant"]] = dtype, _math(name, tensile_type), variant
    return frame.assign(gpu=frame["gpu"].map({name: gpu_by_name(name).name for name in kinds["gpu"]}))


def _math(gpu: str, tensile_type: str) -> str:
    """Return the math of a type: matrix cores if the board has them for the type."""
    default = FAMILIES["gemm"].default_math(DTYPES[tensile_type[0]], gpu_by_name(gpu))
    return "fma" if tensile_type == HALF_THROUGHOUT else default


def _library(path: Path) -> str:
    return "hipblaslt" if "hipblaslt" in str(path).lower() else "rocblas"


def _logic(path: Path, limits: ReadLimits) -> TensileTable:
    """Read a YAML file, a list. Its items begin at the start of a line; the items in `_ITEMS` are parsed one by one."""
    import yaml

    items: list[list[str]] = []
    for _, line in read_lines(path, **limits):
        if line.startswith("- "):
            items.append([])
        if len(items) - 1 in _ITEMS:
            items[-1].append(line)
    if len(items) <= max(_ITEMS):
        raise ValueError(f"a list of {len(items)} items, a table of sizes is item {max(_ITEMS) + 1}")
    text = "\n".join("\n".join(items[at]) for at in _ITEMS)
    if len(re.findall(r"[\[{,:]|^ *-", text, re.MULTILINE)) > MAX_VALUES or _LONG_WORD.search(text):
        raise ValueError(f"it has over {MAX_VALUES:,} values, or a word of over 1,000 characters")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        parsed = [yaml.load("\n".join(items[at]), Loader=loader)[0] for at in _ITEMS]  # noqa: S506  # a safe loader
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML ({' '.join(str(error).split())[:120]}); fetch it again") from None
    if _leaves(parsed, {}) > len(text):
        raise ValueError("its aliases repeat more values than it has characters")
    board, architecture, problem, order, rows = parsed
    if isinstance(architecture, dict):
        architecture = f"{architecture['Architecture']}/{architecture.get('CUCount')}"
    inputs = problem["DataType"]
    wide = 6 if LETTERS.get(str(inputs)) == "I8" else 0
    sums = problem.get("ComputeDataType", wide if problem.get("HighPrecisionAccumulate") else inputs)
    library = "hipblaslt" if "UseBias" in problem else _library(path)
    kind = _type(inputs, problem.get("DestDataType", inputs), sums)
    transposes = "".join("NT"[bool(problem[name])] for name in ("TransposeA", "TransposeB"))
    names = tuple(_SIZES[str(each)] for each in order)
    rows = [(sizes, *winner[:2]) for sizes, winner in rows or ()]
    return TensileTable(library, str(board), str(architecture), kind, transposes, names, rows)


def _leaves(node: Any, counts: dict[int, float]) -> float:
    """Return the number of values in a nested list, in which aliases repeat; ``counts`` is of the nodes by identity."""
    if not isinstance(node, dict | list):
        return 1
    if id(node) not in counts:
        counts[id(node)] = math.inf  # a node may hold itself
        counts[id(node)] = sum(_leaves(each, counts) for each in (node.values() if isinstance(node, dict) else node))
    return counts[id(node)]


def _unpacked(path: Path, limits: ReadLimits) -> Iterator[TensileTable]:
    """Read a compiled library. The solutions in the rows of its nested tables decide the type of a table."""
    try:
        import msgpack
    except ImportError:
        raise InputError(f"{path}: reading MessagePack needs the package msgpack; pip install msgpack") from None
    try:
        counter = count(1)

        def counted(node: Any) -> Any:
            if next(counter) > MAX_JSON_NODES:
                raise ValueError(f"over {MAX_JSON_NODES:,} maps and lists")
            return node

        packed = read_bytes(path, **limits)
        content = msgpack.unpackb(packed, strict_map_key=False, object_hook=counted, list_hook=counted)
    except (ValueError, msgpack.UnpackException) as error:
        raise InputError(f"{path} is not MessagePack ({error or type(error).__name__}); fetch it again") from None
    kinds = {each["index"]: _kind(each, path.name) for each in content["solutions"]}
    for matching, units in _nested_tables(content["library"]):
        by_kind: dict[tuple[str, str, str], list[tuple[Any, Any, Any]]] = {}
        for row in matching["table"]:
            index = row["value"]["index"] if isinstance(row["value"], dict) else row["value"]
            by_kind.setdefault(kinds[index], []).append((row["key"], index, row["speed"]))
        names = tuple(_SIZES.get(each["type"], "") for each in matching["properties"])
        for (architecture, *kind), rows in by_kind.items():
            # For RDNA 3, rocBLAS installs the files of navi31 and navi32.
            board = {"gfx1100": "navi31", "gfx1101": "navi32"}.get(architecture, architecture)
            yield TensileTable(_library(path), board, f"{architecture}{units}", *kind, names=names, rows=rows)


def _nested_tables(node: Any, units: str = "") -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield every table of measured sizes in a nested library, with the compute units in the condition around it."""
    if isinstance(node, dict):
        unit_count = re.search(r"'CUCount', 'value': (\d+)", str(node.get("predicate")))
        units = f"/{unit_count[1]}" if unit_count else units
    if isinstance(node, dict) and "table" in node and "properties" in node:
        yield node, units
    elif isinstance(node, dict | list):
        for each in [node[key] for key in node if key != "predicate"] if isinstance(node, dict) else node:
            yield from _nested_tables(each, units)


def _kind(solution: Mapping[str, Any], file: str) -> tuple[str, str, str]:
    """Return architecture (from the solution, otherwise from the file's name), tensile type and transposes."""
    problem = solution["problemType"]
    inputs = problem["aType"]
    wide = "Int32" if inputs == "Int8" else "Float"
    operation = re.search(r"_A(ilk|lik)_B(ljk|jlk)_", problem["operationIdentifier"])
    transposes = "NT"[operation[1] == "lik"] + "NT"[operation[2] == "jlk"] if operation else "other"
    architecture = re.search(r"gfx[0-9a-f]+", f"{solution.get('hardwarePredicate')} {file}")
    sums = wide if problem.get("highPrecisionAccumulate") else inputs
    return architecture[0] if architecture else "", _type(inputs, problem["dType"], sums), transposes


def _type(*kinds: int | str) -> str:
    """Return the tensile type of inputs, outputs and sums: one letter and a B (for β) if all are equal."""
    letters = [LETTERS.get(str(each), "?") for each in kinds]
    return f"{letters[0]}B" if len(set(letters)) == 1 else "".join(letters)


def _measured(table: TensileTable, gpu: str | None, row_counts: Counter[str]) -> pd.DataFrame:
    """Return the rows with a time. ``row_counts`` counts the skipped rows by reason."""
    identity = {*table[:4], architecture := table.architecture.partition("/")[0]}
    reason = next((table["why"] for table in _CONTENT["refused"] if identity.issuperset(table["of"])), "")
    name = gpu or next((BOARDS[n] for n in (table.architecture, table.board, architecture) if n in BOARDS), "")
    if "?" in table.tensile_type or table.transposes == "other":
        reason = "the package has no matrix product of this type or operation"
    if reason or not name:
        refused = f"refused: {reason}" if reason else "its GPU is unknown, give it with --gpu"
        row_counts[f"left out: {table.board} {table.tensile_type}, {refused}"] += len(table.rows)
        return pd.DataFrame()
    board = gpu_by_name(name)
    # 1. Sizes and speed, as numbers: (rows,) each.
    columns = zip(*(sizes for sizes, _, _ in table.rows), strict=True)
    sizes = {size: np.array(cells, dtype=np.float64) for size, cells in zip(table.names, columns, strict=False) if size}
    rows = pd.DataFrame({size: sizes.get(size, []) for size in _KIND[4:]})
    rows["solution"] = [solution for _, solution, _ in table.rows]
    speed = np.array([speed for _, _, speed in table.rows], dtype=np.float64)
    rules = {"left out: the speed is not a number above 0": np.isfinite(speed) & (speed > 0)}
    values = rows[_KIND[4:]].to_numpy(dtype=np.float64)
    rules["left out: a size is out of range"] = np.asarray(((values >= 1) & (values <= MAX_INT32)).all(axis=1))
    # 2. Percents of the peak.
    if np.nanmax(speed, initial=0.0) <= MAX_PERCENT:
        rules["left out: percents below 0.05 are rounded too coarsely"] = ~(speed > 0) | (speed >= MIN_PERCENT)
        peak = peak_tflops(board, DTYPES[table.tensile_type[0]], _math(name, table.tensile_type) != "fma")
        speed = speed * 10 * peak * CLOCKS_MHZ.get(table.board, board.boost_mhz) / board.boost_mhz
        assumed = f"hold percents, read as percents of the datasheet peak of {board.name}"
        row_counts[assumed] += len(rows) * (table.board not in CLOCKS_MHZ)
    usable = rows_within(rules, row_counts)
    # 3. Times.
    rows = rows[usable].astype(dict.fromkeys(_KIND[4:], np.int64))
    time_us = 2.0 * values[usable].prod(axis=1) / speed[usable] / 1e3
    if architecture == FLOORED and len(rows) and time_us.min() >= FLOOR_US:
        row_counts[f"left out: refused, a floor of the harness at {time_us.min():.0f} µs"] += len(rows)
        rows, time_us = rows[:0], time_us[:0]
    facts = {"gpu": board.name, "library": table.library, "tensile_type": table.tensile_type}
    return rows.assign(time_us=time_us, transposes=table.transposes, **facts)
