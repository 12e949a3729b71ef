"""Tiny valid files of every kind that the package reads: what the damage starts from. Their numbers are invented."""

import bz2
import gzip
import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.fuzz.files import Files

NVPROF = (
    b'==1== Profiling result:\n"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z",'
    b'"Registers Per Thread","Static SMem","Dynamic SMem","Device","Stream","Name"\nms,us,,,,,,,,KB,B,,,\n'
    b'4.21,4.992,64,2,1,256,1,1,16,1.5,2048,"Xp (0)","7","sgemm(int) [130]"\n'
)
NVPROF_TEXT = (
    b"   Start  Duration   Grid Size   Block Size  Regs*  SSMem*  DSMem*  Device  Context  Stream  Name\n"
    b"466.21ms  4.9920us  (64 2 1)  (256 1 1)  16  1.5KB  0B  Xp (0)  1  7  sgemm(int) [130]\n\n"
    b"==9== Metric result:\nInvocations  Metric Name  Metric Description  Min  Max  Avg\n"
    b'Device "Xp (0)"\n    Kernel: sgemm(int)\n   2  dram_utilization  Memory Utilization  Low (1)  Low (3)  Low (2)\n'
)
NVPROF_METRICS = (
    b'"Device","Context","Stream","Kernel","Correlation_ID","inst_fp_32","dram_utilization"\n'
    b',,,,,,\n"Xp (0)","1","7","sgemm(int) [1]","130","2000","Low (2)"\n'
)
NCU = (
    b'==PROF== x\n"ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum","dram__bytes_read.sum"\n'
    b'"","","","","us","Kbyte"\n"0","sgemm","(256, 1, 1)","(8, 2, 1)","1,234.5","61.5"\n'
)
NCU_LONG = (
    b'"ID","Kernel Name","Block Size","Grid Size","Metric Name","Metric Unit","Metric Value"\n'
    b'"0","sgemm","(256, 1, 1)","(8, 2, 1)","Duration","ns","1,234.5"\n'
    b'"0","sgemm","(256, 1, 1)","(8, 2, 1)","# SMs","","30"\n'
)
MIOPEN = (
    b"64-56-56-3x3-32-56-56-16-1x1-1x1-1x1-0-NCHW-FP32-F=A:0.5,8,miopenConvolutionFwdAlgoGEMM;B:1,0,xAlgoDirect\n"
    b"8-7-9-3x3-4-14-18-32-1x1-2x2-1x1-0-NHWC-NHWC-NHWC-FP16-B_g4=xAlgoGEMM:G,1.5,72,xAlgoGEMM,<unused>\n"
)
LIN = b"kernel_name,kernel_runtime,batch_size,M,N,K\nsgemm,345.5,1,1024,1024,2048\nsgemm,99,8,64,64,64\n"
TEST_SET = b"2\n128 64 56 128 0 3 1 1\n1 2 8 4 0 3 1 1\n"
PLAN_TEXT = b"# two layers\nn32c256h14w14k256r3s3p1u1\nn1c3h8k4r3\n"
PLAN_CSV = b"n,c,h,k,r,pad_h,dtype,networks\n32,64,56,64,3,1,fp32,Net\n1,3,8,4,3,0,fp16,\n"
PLAN_LINES = b'{"problem": "n1c3h8k4r3", "networks": "Net"}\n{"n": 1, "c": 3, "h": 8, "k": 4, "r": 3}\n'
PARAMS = json.dumps(
    {"schema": 1, "model": "boosted-terms", "params": {"max_depth": 4}, "found": {"trials": 3}}
).encode()
GPUS = (
    b'schema = 1\n[gpu.my-gpu]\narchitecture = "volta"\naliases = ["Mine"]\nsms = 80\nboost_mhz = 1530\n'
    b'fp16_tensor_tflops = 125.0\ndram_gbs = 900.0\nl2_mib = 6\nmemory_gib = 16\nsource = "invented"\n'
)
SCOPE = json.dumps(
    {
        "benchmarks": [
            {
                "name": "LAYER_CUDNN_CONV_FORWARD_HALF<CUDNN_CONVOLUTION_FWD_ALGO_GEMM>/W:30/H:28/C:64/N:2/K:8"
                "/filter_w(s):5/filter_h(r):3/pad_w:2/pad_h:1/wstride:1/hstride:2/manual_time",
                "real_time": 5.5, "time_unit": "us", "advised_time": 0.1, "advised_convolution_algorithm": 1.0,
                "gpu_name:Tesla T4": 1.0, "cudnn_version:7.6": 1.0,
            }
        ]
    }
).encode()  # fmt: skip
OVERHEADS = json.dumps(
    {
        "schema": 1, "overall": {"t1": [5.0, 3]}, "by_name": {"t4": {"cudaLaunchKernel": [4.0, 2]}}, "sources": ["x"],
    }
).encode()  # fmt: skip
SIZES = {
    "n": 8, "c": 16, "h": 14, "w": 14, "k": 32, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1, "stride_h": 1, "stride_w": 1,
    "dilation_h": 1, "dilation_w": 1, "groups": 1,
}  # fmt: skip


def texts(suffix: str, *contents: bytes, pack: bool = False) -> list[Files]:
    """Each content as a file; with ``pack`` also as .gz and .bz2."""
    plain = [{f"file{suffix}": content} for content in contents]
    if not pack:
        return plain
    return [*plain, {"file.gz": gzip.compress(contents[0], mtime=0)}, {"file.bz2": bz2.compress(contents[0])}]


def rows(shapes: int = 2) -> Any:
    """An invented dataset of ``shapes`` problems on two GPUs, four algorithms each."""
    import pandas as pd

    found = []
    for gpu, slower in (("Tesla T4", 2.0), ("TITAN Xp", 1.0)):
        for i in range(shapes):
            for j, algorithm in enumerate(("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "WINOGRAD")):
                found.append(
                    {
                        "gpu": gpu, "library": "cudnn", "library_version": "7.6.3", "direction": "fwd", "dtype": "fp32",
                        "math": "fma", "layout": "NCHW", **SIZES, "c": 16 * (i + 1), "algorithm": algorithm,
                        "status": "ok", "time_us": slower * (5.0 + 10 * (i + 1) / (j + 1)), "workspace_bytes": 64.0 * j,
                        "heuristic_algorithm": "GEMM", "networks": "Net",
                    }
                )  # fmt: skip
    return pd.DataFrame(found)


def dataset() -> list[Files]:
    """Our own parquet, and one that pandas wrote, dictionary-encoded and in several row groups."""
    from surrogate.dataset.store import write_dataset

    with TemporaryDirectory() as folder:
        write_dataset(rows(), Path(folder) / "data.parquet")
        own = (Path(folder) / "data.parquet").read_bytes()
    foreign = io.BytesIO()
    rows(4).astype({"gpu": "category"}).to_parquet(foreign, row_group_size=5)
    return [{"data.parquet": own}, {"data.parquet": foreign.getvalue()}]


def run_log() -> list[Files]:
    """A run of one problem, with a kernel, clocks and a failure."""
    from surrogate.collect.device import Choice, DeviceInfo, Kernel, Measurement
    from surrogate.collect.log import Header, done_record, measure_record, problem_record
    from surrogate.collect.plan import PlannedProblem
    from surrogate.features.conv import Conv

    planned = PlannedProblem(Conv(**SIZES), "plan", ("Net",))
    choice = Choice("GEMM", "ok", 7.5, 64, True, "fma")
    kernel = Kernel("sgemm", 8, 2, 1, 256, 1, 1, 32, 0, 1024, 5.0)
    good = Measurement("ok", "", (5.0, 6.0, 5.5), (6.0, 7.0, 6.5), "cupti", 64, True, (kernel,))
    records = [
        Header(DeviceInfo("Tesla T4", "cudnn", "7.6.3"), "0" * 64, (1, 1), created_s=1.0).to_dict(),
        problem_record(planned, ("GEMM", "FFT"), (choice,)),
        measure_record(planned, "GEMM", good, 2.0),
        measure_record(planned, "FFT", Measurement("not_supported", "stride"), 3.0),
        done_record(planned, (choice,), {"sm_clock_mhz": 1500.0, "throttle_reasons": 0}),
    ]
    return [{"run.jsonl": b"".join(json.dumps(record).encode() + b"\n" for record in records)}]


def workbook() -> list[Files]:
    """SEER's workbooks as xls: a variant with counters, and a pick."""
    import xlwt

    def book(sheets: dict[str, list[list[Any]]]) -> bytes:
        made, out = xlwt.Workbook(), io.BytesIO()
        for name, table in sheets.items():
            sheet = made.add_sheet(name)
            for i, row in enumerate(table):
                for j, value in enumerate(row):
                    sheet.write(i, j, value)
        made.save(out)
        return out.getvalue()

    variant = [["x"] * 18, _VARIANT]
    sizes = ["n", "c", "w", "k", "out_w", "r", "stride", "pad"]
    header = [*sizes, *(f"algo{i}" for i in range(8)), "best", "heuristic"]
    pick = [header, [128, 64, 56, 128, 54, 3, 1, 0, 5, 4, 3, -1, -1, -1, 2, 1, 7, 6]]
    return [
        {"algo0_32x32.xls": book({"train": variant, "test": variant})},
        {"pick.xls": book({"test": pick})},
    ]


_VARIANT = [128, 64, 56, 128, 54, 3, 1, 0, 0, 5.5, 2e8, 1e6, 3e5, 240, 46656, 195, 9, 3]


def workbook_xlsx() -> list[Files]:
    """The variant's workbook as xlsx."""
    import openpyxl

    made, out = openpyxl.Workbook(), io.BytesIO()
    for name in ("train", "test"):
        sheet = made.create_sheet(name)
        sheet.append(["x"] * 18)
        sheet.append(_VARIANT)
    del made["Sheet"]
    made.save(out)
    return [{"algo0_32x32.xlsx": out.getvalue()}]


def bundle(model: str) -> list[Files]:
    """A bundle of ``model``, fitted on an invented table."""
    from surrogate.bundle.training import train
    from surrogate.dataset.normalise import normalise

    from surrogate.bundle.bundle import save
    from surrogate.dataset.store import Dataset

    with TemporaryDirectory() as folder:
        save(train(Dataset(normalise(rows(12), "invented")), model=model), Path(folder) / "bundle")
        return [files_in(Path(folder) / "bundle")]


def operators() -> list[Files]:
    """The operator bundle that ships with the package."""
    import surrogate.bundled

    return [files_in(Path(surrogate.bundled.__file__).parent / "operators")]


def files_in(folder: Path) -> Files:
    """The content of a folder, by relative name."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def onnx_graph() -> list[Files]:
    """A convolution and a relu."""
    import onnx
    from onnx import helper

    float_ = onnx.TensorProto.FLOAT
    weight = helper.make_tensor("weight", float_, [4, 3, 3, 3], [0.5] * 108)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "weight"], ["y"], pads=[1, 1, 1, 1], strides=[1, 1]),
            helper.make_node("Relu", ["y"], ["z"]),
        ],
        "net",
        [helper.make_tensor_value_info("x", float_, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("z", float_, ["batch", 4, 8, 8])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return [{"net.onnx": model.SerializeToString()}]


def exported_program() -> list[Files]:
    """The same as a program exported by PyTorch."""
    import torch

    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU())
    out = io.BytesIO()
    torch.export.save(torch.export.export(module, (torch.zeros(2, 3, 8, 8),)), out)
    return [{"net.pt2": out.getvalue()}]


def kineto() -> list[Files]:
    """A profiler's trace of one operator and its kernel."""
    shared = {"ph": "X", "pid": 1}
    events = [
        {**shared, "cat": "user_annotation", "name": "ProfilerStep#1", "tid": 1, "ts": 0, "dur": 90, "args": {}},
        {**shared, "cat": "cpu_op", "name": "aten::relu", "tid": 1, "ts": 5, "dur": 40,
         "args": {"External id": 1, "Input Dims": [[8, 16, 4, 4]], "Input type": ["float"], "Sequence number": 3}},
        {**shared, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "ts": 9, "dur": 4,
         "args": {"correlation": 7, "External id": 1}},
        {**shared, "cat": "kernel", "name": "relu_kernel", "pid": 0, "tid": 7, "ts": 20, "dur": 8,
         "args": {"device": 0, "stream": 7, "correlation": 7, "External id": 1, "grid": [160, 1, 1],
                  "block": [256, 1, 1], "registers per thread": 32, "shared memory": 4096}},
    ]  # fmt: skip
    device = {"id": 0, "name": "Tesla T4", "numSms": 40}
    whole = json.dumps({"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events}).encode()
    return texts(".json", whole, json.dumps(events).encode(), pack=True)


def nsys() -> list[Files]:
    """A sqlite export of one launch and its kernel."""
    import sqlite3

    thread = (42 << 24) | 7
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.sqlite"
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
        return [{"trace.sqlite": path.read_bytes()}]


def execution_trace() -> list[Files]:
    """An execution trace in both its schemas."""
    flat = {"id": 2, "name": "aten::relu", "tid": 1, "input_shapes": [[8, 4]], "input_types": ["Tensor(float)"],
            "inputs": [[1]], "output_shapes": [[8, 4]], "rf_id": 1, "parent": 1}  # fmt: skip
    chakra = {"id": 2, "name": "aten::relu", "ctrl_deps": 1, "inputs": {"values": [1], "shapes": [[8, 4]],
              "types": ["Tensor(float)"]}, "outputs": {"values": [1], "shapes": [[8, 4]], "types": ["Tensor(float)"]},
              "attrs": [{"name": "rf_id", "value": 1}, {"name": "tid", "value": 1}]}  # fmt: skip
    whole = [{"schema": s, "nodes": [n]} for s, n in (("1.0.1", flat), ("1.1.0-chakra.0.0.4", chakra))]
    return texts(".json", *(json.dumps(each).encode() for each in whole))


def results() -> list[Files]:
    """A comparison's folder with one row of each kind."""
    judged = {"model": "boosted-terms", "split": "shape", "stratum": "all", "gpu": "all", "direction": "fwd",
              "dtype": "fp32", "math": "fma", "n": 10, "shapes": 4}  # fmt: skip
    choice = {**judged, "slowdown_macro": 1.02, "ci_low": 1.01, "ci_high": 1.04, "slowdown_geomean": 1.02,
              "slowdown_p95": 1.2, "slowdown_max": 2.0, "top1": 0.8, "within_10pct": 0.9, "top2_slowdown": 1.0,
              "infeasible_picks": 0, "paired_vs_heuristic": [-0.1, -0.05, 0.0]}  # fmt: skip
    time = {**judged, "population": "all", "algorithm": "all", "median_ape": 0.1, "mape": 0.2, "p90_ape": 0.5,
            "rmspe": 0.4, "gmae": 1.1, "spearman": 0.9}  # fmt: skip
    whole = {"schema": 1, "dataset": {"name": "invented", "rows": 16, "gpus": ["Tesla T4"]}, "seeds": [0], "folds": 4,
             "choice_rows": [choice, {**choice, "model": "oracle"}], "time_rows": [time]}  # fmt: skip
    return [{"results.json": json.dumps(whole).encode()}]


def tuning_cache() -> list[Files]:
    """A cache of one measurement."""
    from surrogate.collect.device import DeviceInfo
    from surrogate.features.conv import Conv
    from surrogate.prediction.cache import Tuning, TuningCache

    with TemporaryDirectory() as folder:
        path = Path(folder) / "tuning.jsonl"
        cache = TuningCache(path)
        cache.put(DeviceInfo("Tesla T4", "cudnn", "7.6.3"), Conv(**SIZES), "GEMM", Tuning("ok", 5.0))
        return [{"tuning.jsonl": path.read_bytes()}]
