"""Can a changed bundle or a hostile archive do harm?

Can a changed bundle or a hostile archive do harm? Parts of shipped bundles are changed, their hashes renewed, and
questions asked; archives that unpack to far more than they hold are read. Nothing but a refusal in one line or finite
times may follow.
"""

import bz2
import gzip
import hashlib
import io
import json
import resource
import shutil
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from click.testing import CliRunner

from experiments.experiment import Effort, Outcome, program
from experiments.sources import Sources
from surrogate import bundled, load
from surrogate.bundle.bundle import INDEX, index_file
from surrogate.cli.info import command
from surrogate.collect import log
from surrogate.features.errors import InputError
from surrogate.features.families import AnyProblem
from surrogate.formats import FORMATS
from surrogate.network.exported import read_exported
from surrogate.prediction.export import export, picks_for
from surrogate.trace.events.read import read_trace, trace_files

BUNDLES = {
    "cudnn7": ("v100", "n8c16h14k32r3p1"), "miopen": ("mi100", "n8c16h14k32r3p1"),
    "operators": ("v100", "softmax:n64c100"), "language_quantise": ("b200", "quantise:n64c4096"),
    "language_mla": ("h100", "mla:b8h32q1k2048"),
}  # fmt: skip
"""Shipped bundle → a GPU and a problem that it is asked about."""
TRIES, QUICK_TRIES = 2000, 120
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 0.5, 7, 2**70, 1e308, -1e30, float("nan"), float("inf"), "", "x", "1|2", [], [[]], {}, [0.5],
    {"x": 1},
)  # fmt: skip
Files = dict[str, bytes]


def in_json(content: bytes, random: Random) -> bytes:
    """One value, at any depth, gone, doubled, under another name, of another kind, or nested deeply."""
    document = {"": json.loads(content)}
    holder: Any = document
    key: Any = ""
    while isinstance(holder[key], dict | list) and holder[key] and random.random() < 0.85:
        holder = holder[key]
        key = random.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    value = holder[key]
    how = random.randrange(6)
    if how < 3:
        number = isinstance(value, int | float) and random.random() < 0.5
        holder[key] = value * random.choice((-1, 0, 1e9, 1e300)) if number else random.choice(ODD)
    elif how == 3 and key != "":
        del holder[key]
    elif how == 4 and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    else:
        holder[key] = [value, value]
    text = json.dumps(next(iter(document.values()), None))
    return (f"{'[' * 900}{text}{']' * 900}" if random.random() < 0.02 else text).encode()


def in_array(array: np.ndarray, random: Random) -> np.ndarray:
    """Another type, length or shape, or other values at some places."""
    odd = random.choice((-1, 0, 1, len(array), 2**31 - 1, -(2**31), float("nan"), float("inf"), 1e38))
    values = array.copy()
    with np.errstate(invalid="ignore"):
        values[random.sample(range(len(array)), random.choice((1, len(array))))] = np.float64(odd).astype(array.dtype)
    changed = (
        array.astype(random.choice(("f8", "i8", "i2", "U8", "?", "c8"))), array[: len(array) // 2],
        np.concatenate([array, array]), array[:, None], values, values,
    )  # fmt: skip
    return random.choice(changed)


def in_arrays(content: bytes, random: Random) -> bytes:
    """One of a NumPy archive's arrays changed, or in the place of another; or gone."""
    arrays = dict(np.load(io.BytesIO(content)))
    name, other = random.choices(list(arrays), k=2)
    arrays[name] = arrays[other] if random.random() < 0.2 else in_array(arrays[name], random)
    if random.random() < 0.05:
        del arrays[name]
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def in_columns(content: bytes, random: Random) -> bytes:
    """One of a table's columns changed, empty, gone, or under another name; no rows; columns in another order."""
    frame = pd.read_parquet(io.BytesIO(content))
    name = random.choice(list(frame.columns))
    values = in_array(frame[name].to_numpy(), random)
    fits = values.shape == (len(frame),) and values.dtype.kind != "c"
    changed = (
        frame.assign(**{name: values if fits else None}), frame.assign(**{name: values if fits else "x"}),
        frame.drop(columns=name), frame.rename(columns={name: "x"}), frame.iloc[:0], frame.iloc[:, ::-1],
    )  # fmt: skip
    out = io.BytesIO()
    random.choice(changed).to_parquet(out)
    return out.getvalue()


def in_bytes(content: bytes, random: Random) -> bytes:
    """The file cut short, or with some bits the other way round."""
    if random.random() < 0.4:
        return content[: random.randrange(len(content))]
    changed = bytearray(content)
    for _ in range(random.randint(1, 8)):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


INSIDE: dict[str, Callable[[bytes, Random], bytes]] = {"json": in_json, "npz": in_arrays, "parquet": in_columns}


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


def archives(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is hostile, and the call that reads it."""
    blanks = b" " * (300 << 20)
    packed = {f"blanks.{name}": gzip.compress(blanks, 9) for name in ("trace.json.gz", "log.jsonl.gz")}
    packed |= {"blanks.fdb.txt.bz2": bz2.compress(blanks)}
    true_size, small_size = (size.to_bytes(4, "little") for size in (len(blanks), 10))
    for name in ("whl", "pt2", "xlsx"):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
            for member in ("h/gemm/vllm/1.0/gemm_perf.parquet", "m/models/model.json", "xl/workbook.xml"):
                file.writestr(member, blanks)
        packed[f"blanks.{name}"] = out.getvalue()
        packed[f"blanks, said to be 10 bytes.{name}"] = out.getvalue().replace(true_size, small_size)
    kinds = {"links": (tarfile.SYMTYPE, 0, 1), "devices": (tarfile.CHRTYPE, 0, 1)}
    kinds |= {"20,000 members": (tarfile.REGTYPE, 0, 20_000), "a long name": (tarfile.XHDTYPE, 200 << 20, 1)}
    kinds |= {"blanks": (tarfile.REGTYPE, 300 << 20, 1)}
    for name, (kind, size, count) in kinds.items():
        out = io.BytesIO()
        with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as file:
            for number in range(count):
                header = tarfile.TarInfo(f"/{number}.json")
                header.type, header.size, header.linkname = kind, size, "/etc/passwd"
                file.write(header.tobuf())
            file.write(blanks[:size] + bytes(1024))
        packed[f"{name}.tar.gz"] = out.getvalue()
    for name, content in packed.items():
        path = folder / name
        path.write_bytes(content)
        reader = next(read for ending, read in READERS.items() if name.endswith(ending))
        yield name, partial(reader, path)


def ranks(path: Path) -> None:
    """The traces in an archive."""
    with trace_files([path]) as files:
        for file in files:
            file.read()


READERS: dict[str, Callable[[Path], object]] = {
    "trace.json.gz": read_trace, "log.jsonl.gz": log.read, "tar.gz": ranks, "pt2": read_exported,
    "fdb.txt.bz2": lambda path: FORMATS["miopen"].read([path], gpu="mi210"),
    "whl": lambda path: FORMATS["aiconfigurator"].read([path], family="gemm"),
    "xlsx": lambda path: FORMATS["seer-xls"].read([path], gpu="titan-xp"),
}  # fmt: skip


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


def write(files: Files, folder: Path) -> Path:
    """The folder, with these files in it."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def bundle_files(name: str) -> Files:
    """A shipped bundle's files by their paths."""
    folder = bundled.FOLDER / name
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(sources: Sources, effort: Effort) -> Outcome:
    """Tries by fault: how many were answered, refused, or ended otherwise; the slowest, and the process's memory."""
    records = []
    with TemporaryDirectory() as folder:
        for number in range(QUICK_TRIES if effort.quick else TRIES):
            random = Random(f"{effort.seed} {number}")
            name = random.choice(list(BUNDLES))
            fault, files = changed(bundle_files(name), BUNDLES[name][0], random)
            place = write(files, Path(folder) / str(number))
            begun = time.process_time()
            records.append({"fault": fault, "outcome": outcome_of(partial(ask, place, *BUNDLES[name]))})
            records[-1] |= {"seconds": time.process_time() - begun, "try": number}
            shutil.rmtree(place)
            effort.tick(fault)
        for fault, call in archives(Path(folder)):
            begun = time.process_time()
            records.append({"fault": f"archive: {fault}", "outcome": outcome_of(call)})
            records[-1] |= {"seconds": time.process_time() - begun, "try": 0}
    tries = pd.DataFrame(records)
    failed = ~tries["outcome"].isin(("answered", "refused"))
    kinds = tries.assign(
        tries=1, answered=tries["outcome"] == "answered", refused=tries["outcome"] == "refused", failures=failed
    ).groupby("fault", sort=False)
    table = kinds[["tries", "answered", "refused", "failures"]].sum().assign(most_cpu_s=kinds["seconds"].max())
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    wrong = tries[failed].drop_duplicates("outcome")
    listed = "".join(f"\n{row['fault']} (try {row['try']}): {row['outcome']}" for _, row in wrong.iterrows())
    answer = f"{failed.sum()} of {len(tries):,} faults did more than be refused or answered with finite times;"
    return Outcome(table.reset_index(), None, f"{answer} the process took {peak_mib:,.0f} MiB at most.{listed}")


EXPERIMENT = program(run)
