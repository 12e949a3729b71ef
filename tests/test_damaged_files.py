"""A damaged file is read or refused in one line by every reader of a user's file."""

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest

from surrogate import bundled
from surrogate.dataset.checks import normalise
from surrogate.dataset.store import Dataset
from surrogate.features.errors import InputError
from surrogate.features.gpu import registry
from surrogate.formats import FORMATS
from tests.damage import ODD, in_bytes, in_json, write

DAMAGED_FILES = 12
"""Per reader; each drawn from its number, so that a failure comes back."""
Files = dict[str, bytes]
"""Name → content; the first is the one that the reader is given."""
SAMPLES = Path(__file__).parent / "formats" / "samples"
TEXTS = {
    "miopen.txt": "64-56-56-3x3-32-56-56-16-1x1-1x1-1x1-0-NCHW-FP32-F=A:0.5,8,miopenConvolutionFwdAlgoGEMM\n",
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
TRITON = {
    "key": [512, "64", "torch.float16"],
    "configs_timings": [
        [{"kwargs": {"BLOCK": size}, "num_warps": 4, "maxnreg": None, "pre_hook": None}, times]
        for size, times in ((64, [0.5, 0.4, 0.6]), (128, [float("inf")] * 3))
    ],
}
INDUCTOR = [
    {"(512, 64, 1024)": [
        {"type": "cublas", "time": 0.25}, {"type": "triton", "time": 0.5, "BLOCK_M": 64, "num_warps": 4}, None,
    ]}
]  # fmt: skip
KINETO = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "Tesla T4", "numSms": 40}],
    "traceEvents": [
        {"ph": "X", "pid": 1, "cat": "cpu_op", "name": "aten::relu", "tid": 1, "ts": 5, "dur": 40,
         "args": {"External id": 1, "Input Dims": [[8, 16, 4, 4]], "Input type": ["float"], "Sequence number": 3}},
        {"ph": "X", "pid": 1, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "ts": 9, "dur": 4,
         "args": {"correlation": 7, "External id": 1}},
        {"ph": "X", "pid": 0, "cat": "kernel", "name": "relu_kernel", "tid": 7, "ts": 20, "dur": 8,
         "args": {"device": 0, "stream": 7, "correlation": 7, "External id": 1, "grid": [160, 1, 1],
                  "block": [256, 1, 1], "registers per thread": 32, "shared memory": 4096}},
    ],
}  # fmt: skip
SETTINGS = {"schema": 1, "model": "linear-terms", "params": {"alpha": 2.0}, "found": {"trials": 3}}
OVERHEADS = {
    "schema": 1, "overall": {"t1": [5.0, 3]}, "by_name": {"t4": {"cudaLaunchKernel": [4.0, 2]}}, "sources": ["x"],
}  # fmt: skip


def parquet(frame: pd.DataFrame) -> bytes:
    out = io.BytesIO()
    frame.to_parquet(out)
    return out.getvalue()


def wheel(folder: Path) -> Files:
    """One table of aiconfigurator's wheel, not packed, so that damage reaches the parquet file."""
    frame = pd.DataFrame({"m": [1, 2], "n": 64, "k": 64, "gemm_dtype": "bfloat16", "kernel_source": "a", "latency": 1})
    with zipfile.ZipFile(folder / "good.whl", "w") as file:
        file.writestr("h100_sxm/gemm/vllm/1.0/gemm_perf.parquet", parquet(frame))
    return {"a.whl": (folder / "good.whl").read_bytes()}


def t1_beside_a_cache(folder: Path) -> Files:
    files = {"T1.json": "convolution_milo.T1.json", "cache.json": "convolution_milo_A4000.cache.json"}
    return {name: (SAMPLES / sample).read_bytes() for name, sample in files.items()}


def onnx_graph(folder: Path) -> Files:
    return {"net.onnx": bundled.NETWORKS["alexnet"].read_bytes()}


def read_bundle(path: Path) -> object:
    from surrogate import load

    return load(path.parent, gpu="t4").select("n8c16h14k32r3p1")


def read_profile(path: Path) -> object:
    from surrogate.trace import profile, read_trace

    return profile(read_trace(path))


def imported(name: str, **options: Any) -> Callable[[Path], object]:
    return lambda path: FORMATS[name].read([path], **options)


def read_t1_and_cache(path: Path) -> object:
    return FORMATS["kernel-tuner"].read([path, path.with_name("cache.json")])


def called(module: str, function: str, **options: Any) -> Callable[[Path], object]:
    return lambda path: getattr(__import__(module, fromlist=[function]), function)(path, **options)


@dataclass(frozen=True)
class Reader:
    """A reader of a user's file: a good sample, made in an empty folder, and the call that reads it."""

    name: str
    sample: Callable[[Path], Files]
    read: Callable[[Path], object]
    needs: str = ""


def text(name: str, read: Callable[[Path], object], content: str, file: str = "file.json") -> Reader:
    return Reader(name, lambda folder: {file: content.encode()}, read)


_problems = called("surrogate.dataset.problem_list", "read_list")
READERS = (
    *(text(name, _problems, TEXTS[name], name) for name in ("problems.txt", "problems.csv", "problems.jsonl",
                                                            "test-set-ii.txt")),
    text("gpus", lambda path: registry().with_file(path), TEXTS["gpus.toml"], "gpus.toml"),
    text("import nvprof", imported("nvprof"), (SAMPLES / "nvprof_trace.csv").read_text()),
    text("import ncu", imported("ncu"), (SAMPLES / "ncu_raw.csv").read_text()),
    text("import miopen", imported("miopen", gpu="mi210"), TEXTS["miopen.txt"]),
    text("import lin-csv", imported("lin-csv", gpu="v100"), TEXTS["lin.csv"]),
    text("import cudnn-scope", imported("cudnn-scope"), json.dumps(SCOPE)),
    text("import kernel-tuner", imported("kernel-tuner"), (SAMPLES / "convolution_milo_A4000.cache.json").read_text()),
    text("import T4", imported("kernel-tuner", gpu="a4000"), (SAMPLES / "convolution_milo_A4000.T4.json").read_text()),
    Reader("import T1", t1_beside_a_cache, read_t1_and_cache),
    text("import triton", imported("triton", gpu="h100"), json.dumps(TRITON)),
    text("import inductor", imported("inductor", gpu="h100"), json.dumps(INDUCTOR)),
    Reader("import aiconfigurator", wheel, imported("aiconfigurator", family="gemm")),
    text("settings", called("surrogate.evaluation.settings", "read_settings"), json.dumps(SETTINGS)),
    text("overheads", called("surrogate.trace.iteration.overheads", "load_overheads"), json.dumps(OVERHEADS)),
    text("trace", read_profile, json.dumps(KINETO)),
    Reader("trace, gz", lambda _: {"t.json.gz": gzip.compress(json.dumps(KINETO).encode(), mtime=0)}, read_profile),
    Reader("ONNX", onnx_graph, called("surrogate.network.read", "read_network", batch=2), needs="onnx"),
)  # fmt: skip


def odd_json(data: bytes, random: Random) -> bytes:
    """A line's document (or the whole one) with one value of another kind, or gone."""
    lines = data.split(b"\n") if b"\n" in data.strip() else [data]
    number = random.randrange(len(lines))
    try:
        lines[number] = in_json(lines[number], random, (*ODD, 2**63, "\0", "x" * 3000, {"": None}, ["x"]))
    except ValueError:
        return in_bytes(data, random)
    return b"\n".join(lines)


def odd_column(data: bytes, random: Random) -> bytes:
    """A table with one column of another type, or gone, or without rows."""
    table = pd.read_parquet(io.BytesIO(data))
    name = random.choice(list(table.columns))
    odd = random.choice((None, "x", b"\xff", [1], {"a": 1}, True, -1, 2**63 - 1, float("nan"), pd.Timedelta(1), "gone"))
    if odd == "gone":
        return parquet(table.drop(columns=name) if random.random() < 0.5 else table.iloc[:0])
    return parquet(table.assign(**{name: [odd] * len(table)}))


def damaged(data: bytes, random: Random) -> bytes:
    """What the file holds is damaged more often than the file that holds it."""
    inside = random.random() < 0.6
    if inside and data.startswith(b"\x1f\x8b"):
        return gzip.compress(damaged(gzip.decompress(data), random), mtime=0)
    if inside and data.startswith(b"PAR1"):
        return odd_column(data, random)
    if inside and data.lstrip().startswith((b"{", b"[")):
        return odd_json(data, random)
    return in_bytes(data, random) if data else data


def is_refused(read: Callable[[Path], object], files: Files, folder: Path) -> bool:
    """False where the first file is read; anything but an `InputError` of one readable line goes on to the test."""
    try:
        read(write(files, folder) / next(iter(files)))
    except InputError as error:
        line = str(error)
        assert len(line) <= 1000 and line.isprintable(), line[:2000]
        return True
    return False


def try_damage(name: str, read: Callable[[Path], object], good: Files, folder: Path) -> None:
    """The good files are read; some of the damaged ones are refused, and none ends in a traceback."""
    assert not is_refused(read, good, folder / "good")
    refused = 0
    for number in range(DAMAGED_FILES):
        random = Random(f"{name} {number}")
        victim = random.choice(list(good))
        files = {**good, victim: damaged(good[victim], random)}
        refused += is_refused(read, files, folder / str(number))
    assert refused


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_good_file_is_read_and_a_damaged_one_is_read_or_refused(reader: Reader, tmp_path: Path) -> None:
    if reader.needs:
        pytest.importorskip(reader.needs)
    (tmp_path / "sample").mkdir()
    try_damage(reader.name, reader.read, reader.sample(tmp_path / "sample"), tmp_path)


@pytest.mark.parametrize("module", ["surrogate.dataset.store:read_dataset", "surrogate.dataset.problem_list:read_list"])
def test_a_damaged_table(module: str, table: Callable[..., pd.DataFrame], tmp_path: Path) -> None:
    try_damage(module, called(*module.split(":")), {"d.parquet": parquet(table(2))}, tmp_path)


def test_a_damaged_bundle(table: Callable[..., pd.DataFrame], tmp_path: Path) -> None:
    from surrogate.bundle.bundle import save
    from surrogate.bundle.train import train

    save(train(Dataset(normalise(table(12), "invented")), model="linear-terms"), tmp_path / "good bundle")
    paths = [path for path in (tmp_path / "good bundle").rglob("*") if path.is_file()]
    paths.sort(key=lambda path: path.name != "bundle.json")  # the index is the one that the reader is given
    good = {path.relative_to(tmp_path / "good bundle").as_posix(): path.read_bytes() for path in paths}
    try_damage("bundle", read_bundle, good, tmp_path)
