"""A damaged file is read or refused in one line by every reader of a user's file."""

import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pandas as pd
import pytest

from surrogate.features.errors import InputError
from surrogate.features.gpu import registry
from surrogate.formats import FORMATS

DAMAGED_FILES = 25
"""Per reader; each drawn from its number, so that a failure comes back."""
Files = dict[str, bytes]
"""Name → content; the first is the one that the reader is given."""

SIZES = {
    "n": 8, "c": 16, "h": 14, "w": 14, "k": 32, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1, "stride_h": 1, "stride_w": 1,
    "dilation_h": 1, "dilation_w": 1, "groups": 1,
}  # fmt: skip
TEXTS = {
    "nvprof.csv": (
        '==1== Profiling result:\n"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z",'
        '"Registers Per Thread","Static SMem","Dynamic SMem","Device","Stream","Name"\nms,us,,,,,,,,KB,B,,,\n'
        '4.21,4.992,64,2,1,256,1,1,16,1.5,2048,"Xp (0)","7","sgemm(int) [130]"\n'
    ),
    "ncu.csv": (
        '==PROF== x\n"ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum","dram__bytes_read.sum"\n'
        '"","","","","us","Kbyte"\n"0","sgemm","(256, 1, 1)","(8, 2, 1)","1,234.5","61.5"\n'
    ),
    "miopen.txt": (
        "64-56-56-3x3-32-56-56-16-1x1-1x1-1x1-0-NCHW-FP32-F=A:0.5,8,miopenConvolutionFwdAlgoGEMM;B:1,0,xAlgoDirect\n"
        "8-7-9-3x3-4-14-18-32-1x1-2x2-1x1-0-NHWC-NHWC-NHWC-FP16-B_g4=xAlgoGEMM:G,1.5,72,xAlgoGEMM,<unused>\n"
    ),
    "lin.csv": "kernel_name,kernel_runtime,batch_size,M,N,K\nsgemm,345.5,1,1024,1024,2048\nsgemm,99,8,64,64,64\n",
    "test-set-ii.txt": "2\n128 64 56 128 0 3 1 1\n1 2 8 4 0 3 1 1\n",
    "problems.txt": "# two layers\nn32c256h14w14k256r3s3p1u1\ngemm:m64n64k64\n",
    "problems.csv": "n,c,h,k,r,pad_h,dtype,networks\n32,64,56,64,3,1,fp32,Net\n1,3,8,4,3,0,fp16,\n",
    "problems.jsonl": '{"problem": "n1c3h8k4r3", "networks": "Net"}\n{"n": 1, "c": 3, "h": 8, "k": 4, "r": 3}\n',
    "gpus.toml": (
        'schema = 1\n[gpu.my-gpu]\narchitecture = "volta"\naliases = ["Mine"]\nsms = 80\nboost_mhz = 1530\n'
        'fp16_tensor_tflops = 125.0\ndram_gbs = 900.0\nl2_mib = 6\nmemory_gib = 16\nsource = "invented"\n'
    ),
}
"""Small good files; their numbers are invented."""
SCOPE = {
    "benchmarks": [
        {
            "name": "LAYER_CUDNN_CONV_FORWARD_HALF<CUDNN_CONVOLUTION_FWD_ALGO_GEMM>/W:30/H:28/C:64/N:2/K:8"
            "/filter_w(s):5/filter_h(r):3/pad_w:2/pad_h:1/wstride:1/hstride:2/manual_time",
            "real_time": 5.5, "time_unit": "us", "advised_time": 0.1, "advised_convolution_algorithm": 1.0,
            "gpu_name:Tesla T4": 1.0, "cudnn_version:7.6": 1.0,
        }
    ]
}  # fmt: skip
KINETO = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "Tesla T4", "numSms": 40}],
    "traceEvents": [
        {"ph": "X", "pid": 1, "cat": "user_annotation", "name": "ProfilerStep#1", "tid": 1, "ts": 0, "dur": 90,
         "args": {}},
        {"ph": "X", "pid": 1, "cat": "cpu_op", "name": "aten::relu", "tid": 1, "ts": 5, "dur": 40,
         "args": {"External id": 1, "Input Dims": [[8, 16, 4, 4]], "Input type": ["float"], "Sequence number": 3}},
        {"ph": "X", "pid": 1, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "ts": 9, "dur": 4,
         "args": {"correlation": 7, "External id": 1}},
        {"ph": "X", "pid": 0, "cat": "kernel", "name": "relu_kernel", "tid": 7, "ts": 20, "dur": 8,
         "args": {"device": 0, "stream": 7, "correlation": 7, "External id": 1, "grid": [160, 1, 1],
                  "block": [256, 1, 1], "registers per thread": 32, "shared memory": 4096}},
    ],
}  # fmt: skip
EXECUTION = {
    "schema": "1.0.1",
    "nodes": [
        {"id": 2, "name": "aten::relu", "tid": 1, "input_shapes": [[8, 4]], "input_types": ["Tensor(float)"],
         "inputs": [[1]], "output_shapes": [[8, 4]], "rf_id": 1, "parent": 1}
    ],
}  # fmt: skip
_JUDGED = {"model": "roofline", "split": "shape", "stratum": "all", "gpu": "all", "direction": "fwd", "dtype": "fp32",
           "math": "fma", "n": 10, "shapes": 4}  # fmt: skip
RESULTS = {
    "schema": 1, "dataset": {"name": "invented", "rows": 16, "gpus": ["Tesla T4"]}, "seeds": [0], "folds": 4,
    "choice_rows": [
        {**_JUDGED, "slowdown_macro": 1.02, "ci_low": 1.01, "ci_high": 1.04, "slowdown_geomean": 1.02,
         "slowdown_p95": 1.2, "slowdown_max": 2.0, "top1": 0.8, "within_10pct": 0.9, "top2_slowdown": 1.0,
         "infeasible_picks": 0, "paired_vs_heuristic": [-0.1, -0.05, 0.0]}
    ],
    "time_rows": [{**_JUDGED, "population": "all", "algorithm": "all", "median_ape": 0.1, "mape": 0.2,
                   "p90_ape": 0.5, "rmspe": 0.4, "gmae": 1.1, "spearman": 0.9}],
}  # fmt: skip
SETTINGS = {"schema": 1, "model": "linear-terms", "params": {"alpha": 2.0}, "found": {"trials": 3}}
OVERHEADS = {
    "schema": 1, "overall": {"t1": [5.0, 3]}, "by_name": {"t4": {"cudaLaunchKernel": [4.0, 2]}}, "sources": ["x"],
}  # fmt: skip


def dataset_frame(shapes: int = 2) -> pd.DataFrame:
    """An invented dataset on two GPUs, three algorithms each."""
    return pd.DataFrame(
        {"gpu": gpu, "library": "cudnn", "library_version": "7.6.3", "direction": "fwd", "dtype": "fp32",
         "math": "fma", "layout": "NCHW", **SIZES, "c": 16 * (i + 1), "algorithm": algorithm, "status": "ok",
         "time_us": slower * (5.0 + 10 * (i + 1) / (j + 1)), "workspace_bytes": 64.0 * j,
         "heuristic_algorithm": "GEMM", "networks": "Net"}
        for gpu, slower in (("Tesla T4", 2.0), ("TITAN Xp", 1.0))
        for i in range(shapes)
        for j, algorithm in enumerate(("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM"))
    )  # fmt: skip


def parquet(frame: pd.DataFrame) -> bytes:
    out = io.BytesIO()
    frame.to_parquet(out)
    return out.getvalue()


def workbook(folder: Path) -> Files:
    """SEER's workbook of a variant with counters."""
    import xlwt

    book, out = xlwt.Workbook(), io.BytesIO()
    counters = [128, 64, 56, 128, 54, 3, 1, 0, 0, 5.5, 2e8, 1e6, 3e5, 240, 46656, 195, 9, 3]
    for name in ("train", "test"):
        sheet = book.add_sheet(name)
        for i, row in enumerate((["x"] * len(counters), counters)):
            for j, value in enumerate(row):
                sheet.write(i, j, value)
    book.save(out)
    return {"algo0_32x32.xls": out.getvalue()}


def onnx_graph(folder: Path) -> Files:
    from onnx import TensorProto, helper

    weight = helper.make_tensor("weight", TensorProto.FLOAT, [4, 3, 3, 3], [0.5] * 108)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "weight"], ["y"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["y"], ["z"])],
        "net", [value("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [value("z", TensorProto.FLOAT, ["batch", 4, 8, 8])], [weight],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return {"net.onnx": model.SerializeToString()}


def nsight(folder: Path) -> Files:
    """A sqlite export of one launch and its kernel."""
    import sqlite3

    path = folder / "good.sqlite"
    thread = (42 << 24) | 7
    connection = sqlite3.connect(path)
    connection.executescript(
        f"""CREATE TABLE StringIds (id INTEGER, value TEXT);
        INSERT INTO StringIds VALUES (0, 'cudaLaunchKernel_v7000'), (1, 'my_kernel');
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId);
        INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (0, 100, {thread}, 1, 0);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid,
         demangledName, gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread, staticSharedMemory,
         dynamicSharedMemory);
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
         (50, 90, 0, 7, 1, {42 << 24}, 1, 8, 1, 1, 256, 1, 1, 32, 0, 0);
        """
    )
    connection.close()
    return {"trace.sqlite": path.read_bytes()}


def wheel(folder: Path) -> Files:
    """One table of aiconfigurator's wheel, not packed, so that damage reaches the parquet file."""
    table = pd.DataFrame(
        {"m": [1, 2], "n": 64, "k": 64, "gemm_dtype": "bfloat16", "kernel_source": "a", "latency": 1.0}
    )
    with zipfile.ZipFile(folder / "good.whl", "w") as file:
        file.writestr("h100_sxm/gemm/vllm/1.0/gemm_perf.parquet", parquet(table))
    return {"a.whl": (folder / "good.whl").read_bytes()}


def run_log(folder: Path) -> Files:
    """What the collector writes of one problem on the CPU."""
    plan = folder / "plan.txt"
    plan.write_text("n1c16h16k16r3p1\n")
    words = ["collect", "--device", "reference", "--plan", plan, "-o", folder / "run.jsonl"]
    subprocess.run([sys.executable, "-m", "surrogate", *words], check=True, capture_output=True)
    return {"run.jsonl": (folder / "run.jsonl").read_bytes()}


def bundle(folder: Path, model: str) -> Files:
    """A bundle fitted on an invented table; ``bundle.json`` first."""
    from surrogate.bundle.bundle import save
    from surrogate.bundle.train import train
    from surrogate.dataset.checks import normalise
    from surrogate.dataset.store import Dataset

    save(train(Dataset(normalise(dataset_frame(12), "invented")), model=model), folder / "good")
    paths = sorted(
        (path for path in (folder / "good").rglob("*") if path.is_file()),
        key=lambda p: p.name != "bundle.json",
    )
    return {path.relative_to(folder / "good").as_posix(): path.read_bytes() for path in paths}


def with_hashes(files: Files) -> Files:
    """A bundle whose index has the hashes of its files as they are, so that damage reaches what reads them."""
    try:
        index = json.loads(files["bundle.json"])
        index["sha256"] = {name: hashlib.sha256(files[name]).hexdigest() for name in index["sha256"]}
    except (ValueError, KeyError, TypeError):
        return files
    return {**files, "bundle.json": json.dumps(index).encode()}


def read_bundle(path: Path) -> object:
    from surrogate import load

    return load(path.parent, gpu="t4").select("n8c16h14k32r3p1")


def read_run_log(path: Path) -> object:
    from surrogate.collect.merge import merge_runs
    from surrogate.collect.replay import ReplayDevice

    device = ReplayDevice(path)
    return merge_runs([path]), [device.candidates(planned.conv) for planned in device.problems()]


def read_trace_page(path: Path) -> object:
    """Everything that a command makes of a trace."""
    from surrogate.trace import profile, read_trace
    from surrogate.trace.page import trace_page

    return trace_page(profile(read_trace(path)))


def read_report(path: Path) -> object:
    from surrogate.report.page import report_page
    from surrogate.report.results import read_results

    return report_page(read_results(path.parent), {}, {})


def imported(name: str, **options: Any) -> Callable[[Path], object]:
    return lambda path: FORMATS[name].read([path], **options)


def called(module: str, function: str, **options: Any) -> Callable[[Path], object]:
    return lambda path: getattr(__import__(module, fromlist=[function]), function)(path, **options)


@dataclass(frozen=True)
class Reader:
    """A reader of a user's file: a good sample, made in an empty folder, and the call that reads it."""

    name: str
    sample: Callable[[Path], Files]
    read: Callable[[Path], object]
    needs: str = ""
    mended: Callable[[Files], Files] = lambda files: files


def texts(name: str, read: Callable[[Path], object], sample: str) -> Iterator[Reader]:
    """A reader of text, and of the same text packed."""
    content = TEXTS[sample].encode() if sample in TEXTS else sample.encode()
    suffix = Path(sample).suffix if sample in TEXTS else ".json"
    yield Reader(name, lambda folder: {f"file{suffix}": content}, read)
    if name.startswith(("import", "trace")):
        yield Reader(f"{name}, gz", lambda folder: {f"file{suffix}.gz": gzip.compress(content, mtime=0)}, read)


_problems = called("surrogate.dataset.problem_list", "read_list")
READERS = (
    Reader("dataset", lambda folder: {"d.parquet": parquet(dataset_frame())},
           called("surrogate.dataset.store", "read_dataset")),
    Reader("problems (parquet)", lambda folder: {"p.parquet": parquet(dataset_frame())}, _problems),
    *(reader for name in ("problems.txt", "problems.csv", "problems.jsonl", "test-set-ii.txt")
      for reader in texts(name, _problems, name)),
    *texts("gpus.toml", lambda path: registry().with_file(path), "gpus.toml"),
    *texts("import nvprof", imported("nvprof"), "nvprof.csv"),
    *texts("import ncu", imported("ncu"), "ncu.csv"),
    *texts("import miopen", imported("miopen", gpu="mi210"), "miopen.txt"),
    *texts("import lin-csv", imported("lin-csv", gpu="v100"), "lin.csv"),
    *texts("import cudnn-scope", imported("cudnn-scope"), json.dumps(SCOPE)),
    Reader("import seer-xls", workbook, imported("seer-xls", gpu="v100"), needs="xlwt"),
    Reader("import aiconfigurator", wheel, imported("aiconfigurator", family="gemm")),
    *texts("settings", called("surrogate.evaluation.settings", "read_settings"), json.dumps(SETTINGS)),
    *texts("overheads", called("surrogate.trace.iteration.overheads", "load_overheads"), json.dumps(OVERHEADS)),
    *texts("trace", read_trace_page, json.dumps(KINETO)),
    *texts("execution trace", called("surrogate.trace.events.execution", "read_execution_trace"),
           json.dumps(EXECUTION)),
    Reader("trace (nsys sqlite)", nsight, read_trace_page),
    Reader("results.json", lambda folder: {"results.json": json.dumps(RESULTS).encode()}, read_report),
    Reader("run log", run_log, read_run_log),
    Reader("ONNX", onnx_graph, called("surrogate.network.read", "read_network", batch=2), needs="onnx"),
    *(Reader(f"bundle of {model}", lambda folder, model=model: bundle(folder, model), read_bundle,
             mended=with_hashes) for model in ("linear-terms", "boosted-terms")),
)  # fmt: skip


def flipped(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.randint(1, 8)):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def truncated(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data))]


def without_a_piece(data: bytes, random: Random) -> bytes:
    start = random.randrange(len(data))
    return data[:start] + data[start + random.choice((1, 8, 100)) :]


def with_a_piece(data: bytes, random: Random) -> bytes:
    start = random.randrange(len(data))
    piece = random.choice(
        (
            b"\n",
            b",",
            b'"',
            b"\0",
            b"\x1b[31m",
            b"\xff",
            b"\xed\xa0\x80",
            b"-1",
            b"nan",
            b"1e999",
            b"9" * 400,
            b"[" * 5000,
        )
    )
    return data[:start] + piece + data[start + random.choice((0, len(piece))) :]


def reencoded(data: bytes, random: Random) -> bytes:
    content = data.decode("utf-8", "replace")
    return random.choice((content.encode("utf-16"), b"\xef\xbb\xbf" + data, data.replace(b"\n", b"\r"), b""))


ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 0.5, 2**63, 10**400, 1e308, float("nan"), float("inf"), "", "x", "nan", "\0", "\x1b[31m",
    "\ud800", "x" * 3000, "../../x", [], [[]], {}, {"": None}, ["x"],
)  # fmt: skip


def odd_json(data: bytes, random: Random) -> bytes:
    """A line's document (or the whole one) with one value of another kind, or gone."""
    lines = data.split(b"\n") if b"\n" in data.strip() else [data]
    number = random.randrange(len(lines))
    try:
        document = json.loads(lines[number])
    except ValueError:
        return flipped(data, random)
    place: Any = {"document": document}
    key: Any = "document"
    while isinstance(place[key], dict | list) and place[key] and random.random() < 0.9:
        place = place[key]
        key = random.choice(list(place) if isinstance(place, dict) else range(len(place)))
    if random.random() < 0.2 and key != "document":
        del place[key]
    else:
        place[key] = random.choice(ODD_VALUES)
    lines[number] = json.dumps(document if key != "document" else place[key]).encode()
    return b"\n".join(lines)


def odd_column(data: bytes, random: Random) -> bytes:
    """A table with one column of another type, twice, or gone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(data))
    at = random.randrange(table.num_columns)
    name, rows = table.column_names[at], table.num_rows
    odd: list[Any] = [
        pa.nulls(rows), pa.array(["x"] * rows), pa.array([b"\xff"] * rows), pa.array([[1]] * rows),
        pa.array([{"a": 1}] * rows), pa.array([True] * rows), pa.array([-1] * rows), pa.array([2**63 - 1] * rows),
        pa.array([float("nan")] * rows), pa.array([float("inf")] * rows), pa.array([0.5] * rows),
        pa.array([2**62] * rows, pa.timestamp("s")), pa.array([5] * rows, pa.duration("ns")),
        pa.array([None] * rows, pa.decimal128(38, 2)), pa.array(["x" * 3000] * rows),
    ]  # fmt: skip
    changed = random.choice(
        [table.set_column(at, name, random.choice(odd)), table.remove_column(at), table.slice(0, 0),
         table.append_column(name, table.column(at)),
         table.replace_schema_metadata({b"pandas": b"[", b"seer_surrogate": b'{"schema": 1e400}'})]
    )  # fmt: skip
    out = io.BytesIO()
    pq.write_table(changed, out)
    return out.getvalue()


def damaged(data: bytes, random: Random) -> bytes:
    """What the file holds is damaged more often than the file that holds it."""
    inside = random.random() < 0.6
    if inside and data.startswith(b"\x1f\x8b"):
        return gzip.compress(damaged(gzip.decompress(data), random), mtime=0)
    if inside and data.startswith(b"PAR1"):
        return odd_column(data, random)
    if inside and data.lstrip().startswith((b"{", b"[")):
        return odd_json(data, random)
    return random.choice((flipped, truncated, without_a_piece, with_a_piece, reencoded))(data, random) if data else data


def write(files: Files, folder: Path) -> Path:
    """The path that the reader is given."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / next(iter(files))


def is_refused(reader: Reader, path: Path) -> bool:
    """False where it is read; anything but an `InputError` of one readable line goes on to the test."""
    try:
        reader.read(path)
    except InputError as error:
        line = str(error)
        assert len(line) <= 1000 and line.isprintable(), line[:2000]
        return True
    return False


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Reader], Files]:
    """A reader's good files, made once."""
    made: dict[str, Files] = {}

    def get(reader: Reader) -> Files:
        if reader.needs:
            pytest.importorskip(reader.needs)
        if reader.name not in made:
            made[reader.name] = reader.sample(tmp_path_factory.mktemp("sample"))
        return made[reader.name]

    return get


def test_every_format_has_a_sample() -> None:
    names = {reader.name for reader in READERS}
    assert {f"import {name}" for name in FORMATS} <= names


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_good_file_is_read_and_a_damaged_one_is_read_or_refused(
    reader: Reader, sample: Callable[[Reader], Files], tmp_path: Path
) -> None:
    good = sample(reader)
    assert not is_refused(reader, write(good, tmp_path / "good"))
    refused = 0
    for number in range(DAMAGED_FILES):
        random = Random(f"{reader.name} {number}")
        name = random.choice(list(good))
        files = reader.mended({**good, name: damaged(good[name], random)})
        refused += is_refused(reader, write(files, tmp_path / str(number)))
    assert refused


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """A reader that waits for a pipe's writer fails."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise AssertionError("the reader waits")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    yield
    signal.alarm(0)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.skipif(sys.platform != "linux", reason="named pipes and devices")
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_pipe_and_a_device_are_refused_without_waiting(
    reader: Reader, sample: Callable[[Reader], Files], tmp_path: Path
) -> None:
    path = write(sample(reader), tmp_path)
    for make in (os.mkfifo, lambda target: Path(target).symlink_to("/dev/zero")):
        path.unlink()
        make(path)
        assert is_refused(reader, path)
