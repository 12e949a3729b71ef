"""Damaged files give a result or an `InputError`, never another exception."""

import json
from pathlib import Path

import pytest
import xlwt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from features.errors import InputError
from surrogate.dataset.check import check
from surrogate.dataset.normalise import normalise
from surrogate.formats import FORMATS, Imported
from surrogate.formats.test_set_ii import read_test_set_ii

OPTIONS = {"seer-xls": {"gpu": "v100"}, "lin-csv": {"gpu": "v100"}, "miopen": {"gpu": "mi210"}}
_NVPROF = (
    b'==1== Profiling result:\n"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z",'
    b'"Registers Per Thread","Static SMem","Dynamic SMem","Device","Stream","Name"\nms,us,,,,,,,,KB,B,,,\n'
    b'4.21,4.992,64,2,1,256,1,1,16,1.5,2048,"Xp (0)","7","sgemm(int) [130]"\n'
)
_NVPROF_TEXT = (
    b"   Start  Duration   Grid Size   Block Size  Regs*  SSMem*  DSMem*  Device  Context  Stream  Name\n"
    b"466.21ms  4.9920us  (64 2 1)  (256 1 1)  16  1.5KB  0B  Xp (0)  1  7  sgemm(int) [130]\n\n"
    b"==9== Metric result:\nInvocations  Metric Name  Metric Description  Min  Max  Avg\n"
    b'Device "Xp (0)"\n    Kernel: sgemm(int)\n   2  dram_utilization  Memory Utilization  Low (1)  Low (3)  Low (2)\n'
)
_NCU = (
    b'==PROF== x\n"ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum","dram__bytes_read.sum"\n'
    b'"","","","","us","Kbyte"\n"0","sgemm","(256, 1, 1)","(8, 2, 1)","1,234.5","61.5"\n'
)
_NCU_LONG = (
    b'"ID","Kernel Name","Block Size","Grid Size","Metric Name","Metric Unit","Metric Value"\n'
    b'"0","sgemm","(256, 1, 1)","(8, 2, 1)","Duration","ns","1,234.5"\n'
)
_MIOPEN = (
    b"64-56-56-3x3-32-56-56-16-1x1-1x1-1x1-0-NCHW-FP32-F=A:0.5,8,miopenConvolutionFwdAlgoGEMM;B:1,0,xAlgoDirect\n"
    b"8-7-9-3x3-4-14-18-32-1x1-2x2-1x1-0-NHWC-NHWC-NHWC-FP16-B_g4=xAlgoGEMM:G,1.5,72,xAlgoGEMM,<unused>\n"
)
_SCOPE = json.dumps(
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
_LIN = b"kernel_name,kernel_runtime,batch_size,M,N,K\nsgemm,345.5,1,1024,1024,2048\n"
_SET = b"2\n128 64 56 128 0 3 1 1\n1 2 8 4 0 3 1 1\n"
TEXTS = [
    ("nvprof", _NVPROF), ("nvprof", _NVPROF_TEXT), ("ncu", _NCU), ("ncu", _NCU_LONG), ("miopen", _MIOPEN),
    ("cudnn-scope", _SCOPE), ("lin-csv", _LIN),
]  # fmt: skip

edits = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 8), st.one_of(st.binary(max_size=6), st.sampled_from([
        b"\n", b",", b'"', b"-", b"0", b"1e999", b"nan", b"99999999999999999999", b"\0", b"{", b"]", b"=", b"(", b"  ",
    ]))),
    min_size=1, max_size=5,
)  # fmt: skip


def mutate(data: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    """``data`` with pieces cut out and put in."""
    for place, cut, put in changes:
        at = int(place * len(data))
        data = data[:at] + put + data[at + cut :]
    return data


def read_or_refuse(name: str, path: Path) -> None:
    try:
        imported = FORMATS[name].read([path], **OPTIONS.get(name, {}))
    except InputError as error:
        assert "\n" not in str(error) and str(path) in str(error)
    else:
        assert isinstance(imported, Imported)
        assert len(imported.rows) or imported.kernels is not None
        if imported.table == "problems":
            assert not check(normalise(imported.rows, name))


@pytest.mark.parametrize(("name", "good"), TEXTS)
def test_the_seeds_are_good(tmp_path: Path, name: str, good: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(good)
    FORMATS[name].read([path], **OPTIONS.get(name, {}))


@pytest.mark.parametrize(("name", "good"), TEXTS)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=edits)
def test_damaged_text(
    tmp_path: Path, name: str, good: bytes, changes: list[tuple[float, int, bytes]]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(mutate(good, changes))
    read_or_refuse(name, path)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=edits)
def test_damaged_list(tmp_path: Path, changes: list[tuple[float, int, bytes]]) -> None:
    path = tmp_path / "file"
    path.write_bytes(mutate(_SET, changes))
    try:
        assert read_test_set_ii(path)
    except InputError as error:
        assert "\n" not in str(error)


@pytest.fixture(scope="module")
def workbook(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("xls") / "algo0_32x32.xls"
    book = xlwt.Workbook()
    for name in ("train", "test"):
        sheet = book.add_sheet(name)
        for i, row in enumerate(
            [["x"] * 18, [128, 64, 56, 128, 54, 3, 1, 0, 0, 5.5, 2e8, 1e6, 3e5, 240, 46656, 195, 9, 3]]
        ):
            for j, value in enumerate(row):
                sheet.write(i, j, value)
    book.save(str(path))
    return path.read_bytes()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=edits)
def test_damaged_workbook(tmp_path: Path, workbook: bytes, changes: list[tuple[float, int, bytes]]) -> None:
    path = tmp_path / "algo0_32x32.xls"
    path.write_bytes(mutate(workbook, changes))
    read_or_refuse("seer-xls", path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
@pytest.mark.parametrize("name", FORMATS)
def test_anything_at_all(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    read_or_refuse(name, path)
