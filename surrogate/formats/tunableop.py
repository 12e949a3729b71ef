"""PyTorch's TunableOp: for each matrix product the fastest solution of rocBLAS, hipBLASLt or the default path.

How to get them: run the program with PYTORCH_TUNABLEOP_ENABLED=1 and PYTORCH_TUNABLEOP_TUNING=1. When it ends, each
process writes tunableop_results0.csv, tunableop_results1.csv and so on (PYTORCH_TUNABLEOP_FILENAME renames them). Give
all files of one board at once; repeated times of a product become their median.

- The line GCN_ARCH_NAME names an architecture, which a note takes as its commonest board. For another board, or if the
  line is missing, give --gpu.
- Signatures of a product differ by leading dimensions and scales (``_ld_…``, ``_rw_1``). The fastest one counts.
- Sizes are column-major, as in the file and as for `tensile`: tn_M_N_K is C (M × N) = Aᵀ · B. Column ``variant`` has
  the transposes if they are not NN, as in `seer select … --variant TN`. Products with bias are `linear`, batched
  products are `bmm`, the others `gemm`.
- ``library`` is rocblas, hipblaslt or another prefix of the solution's name; ``pytorch`` is the solution Default. Its
  version is in the Validator lines. Column ``solution`` has the full name.
- Only the fastest solution of a product is known: a table has times, but no choice. Lines without a time, times of 0
  and inf, and element types without a counterpart, such as complex ones, are counted and skipped.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack

import pandas as pd

from surrogate.features import MAX_INT32, InputError, canonical, gpus, read_toml, registry
from surrogate.features.families import FAMILIES
from surrogate.features.gpu import gpu as gpu_by_name
from surrogate.formats import Format
from surrogate.formats.foreign_file import Paths, ReadLimits, read_lines
from surrogate.formats.imported import UNKNOWN_VERSION, Imported, family_rows, left_out_notes
from surrogate.formats.printed import compiled
from surrogate.formats.tuned import is_time, number

_TABLE = read_toml(__file__)
_OPERATOR, _PARAMETERS, _SOLUTION = compiled(_TABLE["patterns"])
_PRODUCT = ["gpu", "operator", "dtype", "math", "variant", "batch", "m", "n", "k"]
_DTYPES: dict[str, list[str]] = _TABLE["dtypes"]
"""Beginning of a type's name in lower case → element type, and the math if it is not the default of the board."""


def read(paths: Paths, *, gpu: str | None = None, **limits: Unpack[ReadLimits]) -> Imported:
    """Read result files. ``gpu`` chooses among the boards of the architecture in the files.

    Raises `InputError` with the file for a board that is not determined, and for files without a time.
    """
    left_out = Counter[str]()
    notes = dict[str, None]()
    rows = pd.DataFrame([row for path in map(Path, paths) for row in _rows(path, gpu, left_out, notes, limits)])
    if not rows.empty:  # repeats of a product have one signature
        best = rows.groupby(_PRODUCT)["time_us"].transform("idxmin")
        is_best = rows.pop("signature").pipe(lambda signatures: signatures == signatures[best].to_numpy())
        left_out["the product is faster with other leading dimensions or scales"] = int((~is_best).sum())
        rows = rows[is_best]
    notes |= dict.fromkeys(left_out_notes(left_out, "line"))
    if rows.empty:
        raise InputError(f"{paths[0]}: no measurement; {'; '.join(notes) or 'give tunableop_results*.csv'}")
    return Imported(family_rows(rows), candidates="listed", notes=tuple(notes))


FORMAT = Format("tunableop", "PyTorch's TunableOp results of rocBLAS and hipBLASLt", read)


def _rows(
    path: Path, gpu: str | None, left_out: Counter[str], notes: dict[str, None], limits: ReadLimits
) -> Iterator[dict[str, Any]]:
    """Yield the measurements of a file as input of `family_rows`. ``left_out`` counts the other lines by reason."""
    lines = [[cell.strip() for cell in line.split(",")] for _, line in read_lines(path, **limits)]
    facts = {cells[1]: cells[2] for cells in lines if cells[0] == "Validator" and len(cells) > 2}
    products = [(match, cells) for cells in lines if (match := _OPERATOR.fullmatch(cells[0])) and len(cells) > 1]
    is_tuned = any(is_time(number(cells[3])) for _, cells in products if len(cells) > 3)
    board = _board(path, facts.get("GCN_ARCH_NAME", "").partition(":")[0], gpu, notes) if is_tuned else ""
    for (operator, types, transposes), cells in ((match.groups(), cells) for match, cells in products):
        dtype, *math_type = next((row for name, row in _DTYPES.items() if types.lower().startswith(name)), [""])
        sizes = _PARAMETERS.fullmatch(cells[1])
        m, n, k, *batches = (int(size or 0) for size in sizes.groups()[:5]) if sizes else (0, 0, 0)
        batch = max(batches, default=0) or 1
        time_ms = number([*cells, "", ""][3])
        if not is_time(time_ms):
            left_out["no time above 0: untuned or failed"] += 1
        elif not dtype:
            left_out[f"the package has no products of {types[:40]}"] += 1
        elif sizes is None or not all(1 <= size <= MAX_INT32 for size in (m, n, k, batch)):
            left_out["the sizes are not readable or out of range"] += 1
        else:
            solver = _SOLUTION.match(cells[2])
            library = solver[1].lower() if solver else "pytorch"
            has_bias = "bias" in operator.lower() or (sizes[6] or "None") != "None"
            yield {
                "operator": "bmm" if "batched" in operator.lower() else "linear" if has_bias else "gemm",
                **{"batch": batch, "m": m, "n": n, "k": k, "dtype": dtype, "gpu": board},
                "math": (math_type or [FAMILIES["gemm"].default_math(dtype, gpu_by_name(board))])[0],
                "variant": transposes.upper().replace("NN", ""),
                "library": library,
                "library_version": facts.get(f"{'pt' if solver is None else library}_VERSION".upper(), UNKNOWN_VERSION),
                **{"solution": cells[2], "time_us": 1e3 * time_ms, "origin": path.name, "signature": cells[1].lower()},
            }


def _board(path: Path, architecture: str, gpu: str | None, notes: dict[str, None]) -> str:
    """Return the board of a file, or the commonest one of its architecture.

    Raises `InputError` if the architecture contradicts ``gpu``, or has several boards and no commonest one.
    """
    boards = [board.name for board in gpus() if board.architecture == architecture]
    chosen = gpu or canonical(architecture)
    if chosen in boards or (gpu and not boards):
        if not gpu and (note := registry().ambiguity_note(architecture)):
            notes[note] = None
        return chosen
    fitting = ", ".join(boards) or "no registered GPU"
    fits = f"the architecture {architecture} fits {fitting}{f', not {gpu}' if gpu else ''}"
    raise InputError(f"{path}: {fits if architecture else 'the file names no GPU'}; give its board with --gpu")
