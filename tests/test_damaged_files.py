"""Tests that every reader of a user's file reads a damaged file or refuses it in one line."""

import gzip
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest

from surrogate import bundled
from surrogate.features.errors import InputError
from surrogate.features.gpu import registry
from surrogate.formats import FORMATS
from surrogate.formats.recognise import recognised
from tests.damage import ODD, damaged_bytes, damaged_json, write

DAMAGED_FILES = [8, pytest.param(1000, marks=pytest.mark.slow)]
"""Numbers of damaged files of a format; each number seeds its damage, so that a failure can be repeated."""
Files = dict[str, bytes]
"""Name → content; the reader gets the first file."""
SAMPLES = Path(__file__).parent / "formats" / "samples"
"""Small good files; the numbers in most of them are invented."""


def parquet(frame: pd.DataFrame) -> bytes:
    out = io.BytesIO()
    frame.to_parquet(out)
    return out.getvalue()


def wheel(folder: Path) -> Files:
    """Return an aiconfigurator wheel with one uncompressed table, so that damage reaches the parquet file."""
    frame = pd.DataFrame({"m": [1, 2], "n": 64, "k": 64, "gemm_dtype": "bfloat16", "kernel_source": "a", "latency": 1})
    with zipfile.ZipFile(folder / "good.whl", "w") as file:
        file.writestr("h100_sxm/gemm/vllm/1.0/gemm_perf.parquet", parquet(frame))
    return {"a.whl": (folder / "good.whl").read_bytes()}


def t1_and_cache(folder: Path) -> Files:
    files = {"T1.json": "convolution_milo.T1.json", "cache.json": "convolution_milo_A4000.cache.json"}
    return {name: (SAMPLES / sample).read_bytes() for name, sample in files.items()}


def workbook(folder: Path) -> Files:
    """Return one of SEER's workbooks with one measured convolution."""
    problem = ["batch_size", "in_chan", "in_wid", "out_chan", "out_wid", "ker_wid", "stride", "padding"]
    columns = [*problem, *"0123456789"]
    sheet = pd.DataFrame([[128, 64, 56, 128, 54, 3, 1, 0, 0, 5.5, 2.5e8, 1.2e6, 3.4e5, 240, 46656, 195, 9, 3]])
    with pd.ExcelWriter(folder / "good.xlsx") as file:
        sheet.to_excel(file, sheet_name="train", header=columns, index=False)
    return {"algo0_32x32.xlsx": (folder / "good.xlsx").read_bytes()}


def tensile_library(folder: Path) -> Files:
    import msgpack

    return {"a.dat": msgpack.packb(json.loads((SAMPLES / "tensile_library.json").read_bytes()))}


def onnx_graph(folder: Path) -> Files:
    return {"net.onnx": bundled.NETWORKS["alexnet"].read_bytes()}


def read_profile(path: Path) -> object:
    from surrogate.trace import profile, read_trace

    return profile(read_trace(path))


def importer_of(name: str, **options: Any) -> Callable[[Path], object]:
    return lambda path: FORMATS[name].read([path], **options)


def read_t1_and_cache(path: Path) -> object:
    return FORMATS["kernel-tuner"].read([path, path.with_name("cache.json")])


def reader_of(module: str, function: str, **options: Any) -> Callable[[Path], object]:
    return lambda path: getattr(__import__(module, fromlist=[function]), function)(path, **options)


@dataclass(frozen=True)
class Reader:
    """A reader of a user's file, with a function that makes a valid sample in an empty folder."""

    name: str
    sample: Callable[[Path], Files]
    read: Callable[[Path], object]
    needs: str = ""
    samples: int = 1


def sample(name: str, read: Callable[[Path], object], file: str) -> Reader:
    return Reader(name, lambda folder: {file: (SAMPLES / file).read_bytes()}, read)


def _samples_of_formats() -> Iterator[Reader]:
    """Yield a reader of each sample of each format; the samples that need more are made above."""
    kinds = {path: kind.readers for path in sorted(SAMPLES.iterdir()) if (kind := recognised(path))}
    needs = {"gpu": "7900xtx", "dtype": "bf16"}
    made = ("convolution_milo.T1.json", "tensile_library.json")
    for name, each in FORMATS.items():
        options = {option: value for option, value in needs.items() if option in each.parameters}
        options.pop("gpu" if name == "aiter" else "", None)  # its rows name other boards
        paths = [path for path, readers in kinds.items() if f"import {name}" in readers and path.name not in made]
        for path in paths:
            reader = sample(f"import {path.name}", importer_of(name, **options), path.name)
            yield replace(reader, samples=len(paths))


LISTS = ("problems.txt", "problems.csv", "problems.jsonl", "test-set-ii.txt")
READERS = (
    *(sample(name, reader_of("surrogate.dataset.problem_list", "read_list"), name) for name in LISTS),
    sample("gpus", lambda path: registry().with_file(path), "gpus.toml"),
    Reader("import T1", t1_and_cache, read_t1_and_cache),
    Reader("import aiconfigurator", wheel, importer_of("aiconfigurator", family="gemm")),
    Reader("import seer-xls", workbook, importer_of("seer-xls", gpu="titan-xp"), needs="openpyxl"),
    Reader("import tensile library", tensile_library, importer_of("tensile"), needs="msgpack"),
    *_samples_of_formats(),
    sample("settings", reader_of("surrogate.evaluation.hyperparameter_study", "read_settings"), "settings.json"),
    sample("overheads", reader_of("surrogate.trace.iteration.overheads", "load_overheads"), "overheads.json"),
    sample("trace", read_profile, "kineto.json"),
    Reader(
        "trace, gz",
        lambda _: {"t.json.gz": gzip.compress((SAMPLES / "kineto.json").read_bytes(), mtime=0)},
        read_profile,
    ),
    Reader("ONNX", onnx_graph, reader_of("surrogate.network.read", "read_network", batch=2), needs="onnx"),
)


def odd_json(data: bytes, random: Random) -> bytes:
    """Return JSON or JSON lines with one value of one document removed or replaced."""
    lines = data.split(b"\n") if b"\n" in data.strip() else [data]
    number = random.randrange(len(lines))
    try:
        lines[number] = damaged_json(lines[number], random, (*ODD, 2**63, "\0", "x" * 3000, {"": None}, ["x"]))
    except ValueError:
        return damaged_bytes(data, random)
    return b"\n".join(lines)


def odd_column(data: bytes, random: Random) -> bytes:
    """Return a table with one column of another type or removed, or without rows."""
    table = pd.read_parquet(io.BytesIO(data))
    name = random.choice(list(table.columns))
    odd = random.choice(
        (None, "x", b"\xff", [1], {"a": 1}, True, -1, 2**63 - 1, float("nan"), pd.Timedelta(1), "removed")
    )
    if odd == "removed":
        return parquet(table.drop(columns=name) if random.random() < 0.5 else table.iloc[:0])
    return parquet(table.assign(**{name: [odd] * len(table)}))


def damaged(data: bytes, random: Random) -> bytes:
    """Return the data damaged, more often inside its format than in its bytes."""
    inside = random.random() < 0.6
    if inside and data.startswith(b"\x1f\x8b"):
        return gzip.compress(damaged(gzip.decompress(data), random), mtime=0)
    if inside and data.startswith(b"PAR1"):
        return odd_column(data, random)
    if inside and data.lstrip().startswith((b"{", b"[")):
        return odd_json(data, random)
    return damaged_bytes(data, random) if data else data


def is_refused(read: Callable[[Path], object], files: Files, folder: Path) -> bool:
    """Return whether the first file is refused by an `InputError` of one printable line; other errors propagate."""
    try:
        read(write(files, folder) / next(iter(files)))
    except InputError as error:
        line = str(error)
        assert len(line) <= 1000 and line.isprintable(), line[:2000]
        return True
    return False


def try_damage(name: str, read: Callable[[Path], object], good: Files, folder: Path, count: int = 12) -> None:
    """Assert that valid files are read, some damaged ones are refused, and none ends in a traceback."""
    assert not is_refused(read, good, folder / "good")
    refused = 0
    for number in range(count):
        random = Random(f"{name} {number}")
        victim = random.choice(list(good))
        files = {**good, victim: damaged(good[victim], random)}
        refused += is_refused(read, files, folder / str(number))
    assert refused


def test_every_format_has_a_sample() -> None:
    kinds = [recognised(path) for path in SAMPLES.iterdir()]
    sampled = {reader for kind in kinds if kind for reader in kind.readers} | {reader.name for reader in READERS}
    assert [name for name in FORMATS if f"import {name}" not in sampled] == []


@pytest.mark.filterwarnings("ignore:.* not read; the columns of:UserWarning")
@pytest.mark.parametrize("count", DAMAGED_FILES)
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_good_file_is_read_and_a_damaged_one_is_read_or_refused(reader: Reader, count: int, tmp_path: Path) -> None:
    if reader.needs:
        pytest.importorskip(reader.needs)
    (tmp_path / "sample").mkdir()
    try_damage(reader.name, reader.read, reader.sample(tmp_path / "sample"), tmp_path, max(count // reader.samples, 8))


@pytest.mark.parametrize("module", ["surrogate.dataset.store:read_dataset", "surrogate.dataset.problem_list:read_list"])
def test_a_damaged_table_is_read_or_refused(module: str, table: Callable[..., pd.DataFrame], tmp_path: Path) -> None:
    try_damage(module, reader_of(*module.split(":")), {"d.parquet": parquet(table(2))}, tmp_path)
