"""cuDNN's binary interface agrees with its header and, if it is installed, with the real library."""

import ctypes
import re
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from surrogate.collect import operators
from surrogate.collect.cudnn import library as abi
from surrogate.collect.cudnn.device import CudnnDevice
from surrogate.collect.cudnn.library import Convolutions, CudnnError, Library, library_paths, status_of
from surrogate.collect.device import DeviceLostError, RepeatPolicy
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from tests.known import known_answers


def load():
    try:
        return Library.load(), ""
    except InputError as error:
        return None, str(error)


LIBRARY, WHY = load()
needs_cudnn = pytest.mark.skipif(LIBRARY is None, reason=WHY)


def header_text():
    """Return the installed headers of cuDNN 9 without comments; "" if there are none."""
    folder = Path(LIBRARY.path).parent.parent / "include" if LIBRARY else Path("no-folder")
    text = "\n".join(path.read_text() for path in sorted(folder.glob("cudnn_*_v9.h")))
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


HEADER = header_text()
needs_header = pytest.mark.skipif(not HEADER, reason="needs the headers of cuDNN 9 next to its library")


def test_algo_perf_has_the_layout_of_the_header():
    """cudnnConvolutionFwdAlgoPerf_t on 64-bit systems: int, int, float, size_t, int, int, int[3]."""
    offsets = {name: getattr(abi.AlgoPerf, name).offset for name, _ in abi.AlgoPerf._fields_}
    assert ctypes.sizeof(abi.AlgoPerf) == 48
    names = ("algo", "status", "time", "memory", "determinism", "math_type", "reserved")
    assert offsets == dict(zip(names, (0, 4, 8, 16, 24, 28, 32), strict=True))


def test_status_of_maps_codes_to_statuses():
    assert status_of(0) == "ok"
    assert {status_of(code) for code in (3000, 3007, 3014, 9, 6)} == {"not_supported"}
    assert {status_of(code) for code in (1001, 2000, 4003, 5000, 1, 3, 4, 8)} == {"failed"}
    codes = (0, 2000, 3000, 4000, 4004, 5000, 5003, 3, 4, 8, 9)
    assert [code for code in codes if CudnnError(code, "").may_be_sticky] == [4000, 4004, 5000, 5003, 4, 8]
    assert CudnnError(3002, "shape").status == "not_supported"


def test_numbers_have_their_names(refused):
    assert abi.algorithm_name("fwd", 6) == "WINOGRAD"
    assert abi.algorithm_name("bwd_data", 2) == "FFT"
    assert abi.algorithm_name("bwd_filter", 6) == "FFT_TILING"
    assert abi.algorithm_name("fwd", 99) == "ALGO_99"
    assert [abi.math_name(number) for number in (0, 3, 8)] == ["default", "fma", "8"]
    with refused("int8"):
        abi.data_type("int8")


def test_the_environment_variable_selects_the_library(refused, monkeypatch):
    monkeypatch.setenv("SEER_CUDNN", "some/where/libcudnn.so")
    assert library_paths() == (["some/where/libcudnn.so"], [])
    with refused("SEER_CUDNN"):
        Library.load()
    monkeypatch.delenv("SEER_CUDNN")
    assert "libcudnn.so.9" in library_paths()[0]


def test_the_wheel_is_searched_if_cuda_pathfinder_fails(refused, monkeypatch, tmp_path):
    """The error has pathfinder's reason, and then the loader's for the file of the wheel."""

    def fail(name):
        raise RuntimeError(f"{name}:\n  no known folder")

    monkeypatch.delenv("SEER_CUDNN", raising=False)
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", SimpleNamespace(load_nvidia_dynamic_lib=fail))
    monkeypatch.setattr(abi, "SONAMES", ())
    monkeypatch.setattr(abi.ctypes.util, "find_library", lambda name: None)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("__init__.py", "lib/libcudnn.so.9", "lib/libcudnn_ops.so.9"):
        path = tmp_path / "nvidia" / "cudnn" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    paths, reasons = library_paths()
    assert [Path(path).relative_to(tmp_path).as_posix() for path in paths] == ["nvidia/cudnn/lib/libcudnn.so.9"]
    assert reasons == ["cuda-pathfinder: cudnn: no known folder"]
    with refused("cudnn: no known folder", "libcudnn.so.9: file too short"):
        Library.load()


@pytest.mark.parametrize("version", ["91900", "8907"])
def test_a_cuda_error_behind_an_internal_error_loses_the_device(chain, version):
    """Otherwise the next algorithm would have the error."""
    chain.setenv("FAKE_CUDNN_VERSION", version)
    with closing(CudnnDevice(max_workspace_bytes=1 << 25, max_tensor_bytes=1 << 24)) as device:
        chain.setenv("FAKE_FAULTS", "internal cudnnConvolutionForward 2 1")
        with pytest.raises(DeviceLostError, match="illegal memory access"):
            device.measure(Conv(n=1, c=16, h=8, k=8, r=3), "GEMM", RepeatPolicy())


def c_type(declared):
    """Return the ctypes type of a parameter that the header declares."""
    text = re.sub(r"\s+", " ", declared.replace("const ", " ")).strip()
    pointer, name = "*" in text, text.split(" ")[0].rstrip("*")
    if name.endswith("AlgoPerf_t"):
        return ctypes.POINTER(abi.AlgoPerf)
    if name == "void":
        return ctypes.c_void_p
    if name in ("double", "int64_t"):
        number = {"double": ctypes.c_double, "int64_t": ctypes.c_int64}[name]
        return ctypes.POINTER(number) if pointer else number
    if name.endswith("Descriptor_t") or name in ("cudnnHandle_t", "cudaStream_t"):
        return ctypes.POINTER(ctypes.c_void_p) if pointer else ctypes.c_void_p
    number = ctypes.c_size_t if name == "size_t" else ctypes.c_int  # all other types are int or an enumeration
    return ctypes.POINTER(number) if pointer else number


@needs_header
def test_prototypes_agree_with_the_header():
    for name, argument_types in {**abi.PROTOTYPES, **operators.PROTOTYPES}.items():
        declared = re.search(rf"\n(?:CUDNN_DEPRECATED )?cudnnStatus_t CUDNNWINAPI\s+{name}\(([^)]*)\);", HEADER)
        assert declared, name
        assert argument_types == tuple(c_type(parameter) for parameter in declared[1].split(",")), name


@needs_header
def test_enumerations_agree_with_the_header():
    values = dict(re.findall(r"\b(CUDNN_\w+)(?:\s+CUDNN_DEPRECATED_ENUM)?\s*=\s*(\d+)", HEADER))
    stems = {"fwd": "FWD", "bwd_data": "BWD_DATA", "bwd_filter": "BWD_FILTER"}
    for direction, algorithms in abi.ALGORITHMS.items():
        prefix = f"CUDNN_CONVOLUTION_{stems[direction]}_ALGO_"
        numbers = {name: int(v) for name, v in values.items() if name.startswith(prefix) and "COUNT" not in name}
        assert sorted(numbers.values()) == list(range(len(algorithms)))
        for number, name in enumerate(algorithms):
            suffixes = (name, name.removeprefix("ALGO_"))
            assert number in {numbers.get(prefix + suffix) for suffix in suffixes}, name
    for name, (table, key) in known_answers(__file__)["header"].items():
        assert int(values[name]) == getattr(abi, table)[key], name
    assert int(values["CUDNN_CROSS_CORRELATION"]) == abi.CROSS_CORRELATION


@needs_cudnn
def test_the_library_reports_its_version_and_errors():
    assert LIBRARY is not None
    assert re.fullmatch(r"[89]\.\d+\.\d+", LIBRARY.version)
    code = 3000 if LIBRARY.version.startswith("9") else 9
    assert LIBRARY.reason(code).startswith("CUDNN_STATUS_NOT_SUPPORTED")
    assert "\n" not in LIBRARY.reason(code)


@needs_cudnn
@given(st.from_type(Conv).filter(lambda conv: conv.dtype in abi.DTYPES))
def test_output_sizes_agree_with_cudnn(conv):
    assert LIBRARY is not None
    convolutions = Convolutions(LIBRARY, None)
    try:
        convolutions.set_problem(conv)
        d, dims = convolutions.descriptors, [ctypes.c_int() for _ in range(4)]
        references = [ctypes.byref(dim) for dim in dims]
        LIBRARY.check("cudnnGetConvolution2dForwardOutputDim", d["conv"], d["x"], d["w"], *references)
        assert [dim.value for dim in dims] == [conv.n, conv.k, conv.out_h, conv.out_w]
        for function, expected in {"MathType": abi.MATHS[conv.math], "GroupCount": conv.groups}.items():
            value = ctypes.c_int(-1)
            LIBRARY.check(f"cudnnGetConvolution{function}", convolutions.descriptors["conv"], ctypes.byref(value))
            assert value.value == expected
    finally:
        convolutions.close()


@needs_cudnn
def test_a_cudnn_error_contains_the_status_name():
    assert LIBRARY is not None
    with ExitStack() as owned:
        descriptor = LIBRARY.create("Tensor", owned)
        with pytest.raises(CudnnError, match="cudnnSetTensor4dDescriptor: CUDNN_STATUS_BAD_PARAM") as caught:
            LIBRARY.check("cudnnSetTensor4dDescriptor", descriptor, 0, 0, -1, 1, 1, 1)
    assert caught.value.status == "failed"
