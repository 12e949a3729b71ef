"""Shipped bundles that somebody changed, all hashes renewed, and every kind of question that may be asked of them."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from click.testing import CliRunner

from surrogate import bundled, load
from surrogate.bundle.bundle import INDEX, index_file
from surrogate.cli.info import command
from surrogate.features.errors import InputError
from surrogate.features.families import AnyProblem
from surrogate.prediction.export import export, picks_for
from tests.damage import INSIDE, in_bytes

BUNDLES = {
    "cudnn7": ("v100", "n8c16h14k32r3p1"), "miopen": ("mi100", "n8c16h14k32r3p1"),
    "operators": ("v100", "softmax:n64c100"), "language_quantise": ("b200", "quantise:n64c4096"),
    "language_mla": ("h100", "mla:b8h32q1k2048"),
}  # fmt: skip
"""Shipped bundle → a GPU and a problem that it is asked about."""
Files = dict[str, bytes]


def bundle_files(name: str) -> Files:
    """A shipped bundle's files by their paths."""
    folder = bundled.FOLDER / name
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def changed(good: Files, gpu: str, random: Random) -> tuple[str, Files]:
    """The kind of fault, and the files of a bundle with it, all hashes renewed; tables are those of the GPU."""
    read = [name for name in good if ".parquet" not in name or f"grid.{gpu}" in name]
    name = random.choice([INDEX, INDEX, *read])
    kind = name.rpartition(".")[2]
    files = dict(good)
    if random.random() < 0.05:
        fault = "a file in the place of another"
        files[name] = good[random.choice(list(good))]
    elif random.random() < 0.75:
        fault = f"values in {name if name == INDEX else f'.{kind}'}"
        files[name] = INSIDE[kind](good[name], random)
    else:
        fault = f"bytes of {name if name == INDEX else f'.{kind}'}"
        files[name] = in_bytes(good[name], random)
    with suppress(ValueError, TypeError, KeyError, RecursionError):  # of an index that is none any more
        index = json.loads(files[INDEX])
        if name != INDEX:
            index["sha256"][name] = hashlib.sha256(files[name]).hexdigest()
        files[INDEX] = index_file(index)
    return fault, files


def ask(folder: Path, gpu: str, problem: str) -> None:
    """Every kind of question. Raises `InputError`, and `ValueError` for an answer that is no time."""
    predictor = load(folder, gpu=gpu)
    selection = predictor.select(problem)
    asked: list[str | AnyProblem] = [problem] * 20
    rows = predictor.predict(asked)
    export(picks_for(predictor, [selection.problem]), "json")
    info = CliRunner().invoke(command, [str(folder)])
    if info.exception and not isinstance(info.exception, InputError):
        raise info.exception
    for each in (*selection.candidates, *rows):
        ends = each.lower_us, each.time_us, each.upper_us
        if not 0 < ends[0] <= ends[1] <= ends[2] < float("inf"):
            raise ValueError(f"{ends} µs")


def outcome_of(call: Callable[[], object]) -> str:
    """``answered``, ``refused``, or the fault."""
    try:
        call()
    except InputError as error:
        line = str(error)
        return "refused" if len(line) <= 1000 and line.isprintable() else "more than a line"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return "answered"
