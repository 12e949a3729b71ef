"""The cuDNN device over stand-ins for the library, the GPU and CUPTI: every status, warm-up, timers, faults."""

import json
from contextlib import contextmanager

import numpy as np
import pytest

from surrogate.collect.cpu.algorithms import direct
from surrogate.collect.cudnn.activity import Span
from surrogate.collect.cudnn.convolution import ALGORITHMS
from surrogate.collect.cudnn.device import CudnnDevice, forward_error
from surrogate.collect.cudnn.gpu import GpuFaultError
from surrogate.collect.cudnn.library import CudnnError
from surrogate.collect.device import DeviceLostError, Kernel
from surrogate.collect.protocol import RepeatPolicy
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError

CONV = Conv(n=2, c=8, h=9, k=4, r=3)
POLICY = RepeatPolicy()


class FakeLibrary:
    """Answers by function name; ``status`` maps (function, algorithm) to a code, ``length_us`` is a call's time."""

    version, version_number, path = "9.1.0", 90100, "libcudnn.so.9"

    def __init__(self, gpu):
        self.gpu, self.status, self.workspace, self.length_us, self.calls = gpu, {}, {}, {}, []
        self.ranking = [(6, 0, -1.0, 0, 1, 3), (1, 0, -1.0, 64, 1, 3), (4, 3000, -1.0, 0, 1, 3)]

    def call(self, name, *arguments):
        self.calls.append((name, arguments))
        algorithm = None
        if name.endswith("WorkspaceSize"):
            algorithm = arguments[5]
            arguments[6]._obj.value = self.workspace.get(algorithm, 64)
        elif name in (
            "cudnnConvolutionForward",
            "cudnnConvolutionBackwardData",
            "cudnnConvolutionBackwardFilter",
        ):
            algorithm = arguments[7]
            self.gpu.now_us += self.length_us.get(algorithm, 100.0)
        elif name.endswith(("_v7", "AlgorithmEx")):
            at = 6 if name.endswith("_v7") else 9
            arguments[at]._obj.value = len(self.ranking)
            for entry, values in zip(arguments[at + 1], self.ranking, strict=False):
                entry.algo, entry.status, entry.time, entry.memory, entry.determinism, entry.math_type = values
        return self.status.get((name, algorithm), 0)

    def check(self, name, *arguments):
        code = self.call(name, *arguments)
        if code:
            raise CudnnError(code, f"{name}: {code}")

    def create(self, kind, owner):
        return object()

    def runs(self):
        return [arguments[7] for name, arguments in self.calls if name == "cudnnConvolutionForward"]


class FakeGpu:
    """Events read a clock that calls advance."""

    name, pci_bus_id, stream, workspace, workspace_bytes = "NVIDIA Fake", "0000:01:00.0", 7, 8, 1 << 20

    def __init__(self):
        self.now_us, self.fault, self.flushes, self.placed = 0.0, None, 0, []

    def versions(self):
        return {"cuda_runtime": "13.0"}

    def properties(self):
        return {"sms": 4}

    def place(self, sizes, dtype):
        if sum(sizes) > 1 << 24:
            raise MemoryError("the tensors need too much")
        self.placed.append((list(sizes), dtype))
        return [100, 200, 300]

    def event(self):
        return self.now_us

    def elapsed_us(self, start, end):
        return end - start

    def flush(self):
        self.flushes += 1

    def synchronize(self):
        if self.fault:
            fault, self.fault = self.fault, None
            raise fault


class FakeActivity:
    """Two kernels of 30 and 40 µs, 5 µs apart, under every label; or none."""

    def __init__(self):
        self.kernels, self.labels, self.broken, self.lost = 2, [], "", 0

    @contextmanager
    def label(self, number):
        self.labels.append(number)
        yield

    def collect(self, labels):
        spans = [
            Span(0, 30_000, Kernel("first", 4, 1, 1, 128, 1, 1, 96, 0, 512, 30.0)),
            Span(35_000, 75_000, Kernel("second", 2, 2, 1, 256, 1, 1, 64, 16, 0, 40.0)),
        ]
        return [spans[: self.kernels] for _ in labels]

    def dropped(self):
        return self.lost

    def close(self):
        pass


@pytest.fixture
def parts():
    gpu = FakeGpu()
    return FakeLibrary(gpu), gpu


def device(parts, activity=None):
    library, gpu = parts
    told = {"sample": {"sm_clock_mhz": 1}, "load": {"sm_clock_mhz": 1755.0}, "facts": {"mig": False}}
    told["driver_version"] = "570"  # type: ignore[assignment]
    clocks = type("NoClocks", (), {name: lambda _, answer=answer: answer for name, answer in told.items()})()
    return CudnnDevice(library=library, gpu=gpu, activity=(activity, "not installed"), clocks=clocks)


def test_events_time_the_call_where_cupti_is_missing(parts):
    result = device(parts).measure(CONV, "GEMM", POLICY)
    assert (result.status, result.timer, result.times_us) == ("ok", "events", (100.0,) * 5)
    assert result.spans_us == result.times_us
    assert (result.workspace_bytes, result.deterministic, result.kernels) == (64, True, ())
    assert parts[0].runs() == [2] * 6  # one warm-up
    assert parts[1].flushes == 5


def test_kernels_are_summed_where_cupti_sees_them(parts):
    activity = FakeActivity()
    result = device(parts, activity).measure(CONV, "WINOGRAD_NONFUSED", POLICY)
    assert (result.timer, result.times_us, result.spans_us) == ("cupti", (70.0,) * 5, (75.0,) * 5)
    assert [(k.kernel_name, k.time_us, k.grid_y, k.static_shared_bytes) for k in result.kernels] == [
        ("first", 30.0, 1, 0), ("second", 40.0, 2, 16),
    ]  # fmt: skip
    assert activity.labels == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"kernels": 0}, "no kernel"), ({"lost": 3}, "dropped 3"), ({"broken": "CUPTI_ERROR"}, "CUPTI_ERROR")],
)
def test_what_cupti_lost_leaves_the_time_to_the_events(parts, changes, word):
    """Sums of kernels that CUPTI did not record would be too small."""
    activity = FakeActivity()
    vars(activity).update(changes)
    result = device(parts, activity).measure(CONV, "GEMM", POLICY)
    assert (result.status, result.timer, result.kernels) == ("ok", "events", ()) and word in result.reason


@pytest.mark.parametrize(("length_us", "runs"), [(100.0, 6), (30_000.0, 5), (200_000.0, 3)])
def test_long_calls_are_judged_by_a_second_warm_up(parts, length_us, runs):
    parts[0].length_us[2] = length_us
    device(parts).measure(CONV, "GEMM", POLICY)
    assert len(parts[0].runs()) == runs


@pytest.mark.parametrize(
    ("function", "code", "status"),
    [
        ("cudnnGetConvolutionForwardWorkspaceSize", 3000, "not_supported"),
        ("cudnnConvolutionForward", 3007, "not_supported"),
        ("cudnnConvolutionForward", 5000, "failed"),
        ("cudnnConvolutionForward", 4004, "failed"),
    ],
)
def test_refusals_become_statuses_with_their_reason(parts, function, code, status):
    parts[0].status[function, 2] = code
    cudnn = device(parts)
    result = cudnn.measure(CONV, "GEMM", POLICY)
    assert (result.status, result.reason) == (status, f"{function}: {code}")
    assert cudnn.measure(CONV, "FFT", POLICY).status == "ok"


def test_too_large_a_workspace_is_not_run(parts):
    parts[0].workspace[2] = 1 << 21
    result = device(parts).measure(CONV, "GEMM", POLICY)
    assert (result.status, result.workspace_bytes) == ("workspace_too_large", 1 << 21)
    assert parts[0].runs() == []


def test_a_passing_fault_fails_one_measurement_and_a_sticky_one_loses_the_device(parts):
    cudnn = device(parts)
    parts[1].fault = GpuFaultError("out of resources")
    assert cudnn.measure(CONV, "GEMM", POLICY).reason == "out of resources"
    assert cudnn.measure(CONV, "GEMM", POLICY).status == "ok"
    assert cudnn.measure(CONV.with_batch(60_000), "GEMM", POLICY).reason == "the tensors need too much"
    with pytest.raises(InputError, match="did you mean GEMM"):
        cudnn.measure(CONV, "GEM", POLICY)
    parts[0].status["cudnnConvolutionForward", 2] = 5000  # execution failed: CUDA itself is asked
    parts[1].fault = DeviceLostError("an illegal memory access")
    with pytest.raises(DeviceLostError):
        cudnn.measure(CONV, "GEMM", POLICY)


def test_the_ranking_keeps_cudnns_order(parts):
    ranking = device(parts).heuristic(CONV)
    assert [(c.algorithm, c.status, c.time_us, c.math) for c in ranking] == [
        ("WINOGRAD", "ok", None, "fma"), ("IMPLICIT_PRECOMP_GEMM", "ok", None, "fma"),
        ("FFT", "not_supported", None, "fma"),
    ]  # fmt: skip


def test_find_warms_what_was_not_run_and_reports_microseconds(parts):
    library, _ = parts
    library.ranking = [(6, 0, 0.5, 128, 0, 0), (1, 0, 0.75, 64, 1, 3)]
    library.status["cudnnGetConvolutionForwardWorkspaceSize", 3] = 3000
    cudnn = device(parts)
    cudnn.measure(CONV, "GEMM", POLICY)
    before = len(library.runs())
    found = cudnn.find(CONV)
    assert library.runs()[before:] == [0, 1, 4, 5, 6, 7]  # all but GEMM, warmed already, and DIRECT, refused
    assert [(c.algorithm, c.time_us, c.workspace_bytes, c.deterministic, c.math) for c in found] == [
        ("WINOGRAD", 500.0, 128, False, "default"), ("IMPLICIT_PRECOMP_GEMM", 750.0, 64, True, "fma"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("direction", "algorithm", "function", "sizes", "deterministic"),
    [
        ("fwd", "GEMM", "cudnnConvolutionForward", [5184, 1152, 1568], True),
        ("bwd_data", "ALGO_0", "cudnnConvolutionBackwardData", [1152, 1568, 5184], False),
        ("bwd_filter", "ALGO_3", "cudnnConvolutionBackwardFilter", [5184, 1568, 1152], False),
    ],
)
def test_directions_place_their_operands(parts, direction, algorithm, function, sizes, deterministic):
    conv = Conv(n=2, c=8, h=9, k=4, r=3, direction=direction)
    cudnn = device(parts)
    assert cudnn.candidates(conv) == tuple(ALGORITHMS[direction])
    result = cudnn.measure(conv, algorithm, POLICY)
    assert result.deterministic is deterministic
    assert parts[1].placed == [(sizes, "fp32")]
    arguments = next(arguments for name, arguments in parts[0].calls if name == function)
    assert (arguments[3], arguments[5], arguments[12]) == (100, 200, 300)


def test_alpha_is_double_for_doubles_alone(parts):
    cudnn = device(parts)
    for dtype, size in (("fp64", 8), ("fp32", 4), ("fp16", 4)):
        cudnn.measure(Conv(n=2, c=8, h=9, k=4, r=3, dtype=dtype), "GEMM", POLICY)
        alpha, beta = parts[0].calls[-1][1][1], parts[0].calls[-1][1][10]
        assert (alpha._obj.value, beta._obj.value) == (1.0, 0.0)
        assert type(alpha._obj).__name__ == ("c_double" if size == 8 else "c_float")


def test_the_header(parts):
    for number in range(8):
        parts[0].status["cudnnConvolutionForward", number] = 3000
    info = device(parts).describe()
    assert (info.gpu, info.library, info.library_version) == ("NVIDIA Fake", "cudnn", "9.1.0")
    assert info.versions == {"cuda_runtime": "13.0", "cudnn": "9.1.0", "driver": "570"}
    assert info.properties == {
        "sms": 4, "timer": "events", "cupti_missing": "not installed", "library_path": "libcudnn.so.9",
        "flush_bytes": 256 << 20, "mig": False, "relative_errors": {"fma": {}, "default": {}},
    }  # fmt: skip
    assert device(parts, FakeActivity()).describe().properties["timer"] == "cupti"


def test_the_self_check_tells_the_error_of_every_algorithm_that_runs(parts):
    library, gpu = parts
    library.status["cudnnGetConvolutionForwardWorkspaceSize", 3] = 3000
    library.workspace[4] = 1 << 30
    gpu.read = lambda pointer, size: np.zeros(size, np.uint8)  # operands and result of zeros: no error
    info = CudnnDevice(library=library, gpu=gpu, activity=(None, ""), clocks=None).describe()
    errors = info.properties["relative_errors"]
    assert set(errors) == {"fma", "default"}
    assert errors["fma"] == dict.fromkeys(set(ALGORITHMS["fwd"]) - {"DIRECT", "FFT"}, 0.0)
    assert library.calls[-1][0] == "cudnnConvolutionForward"


def test_a_result_that_is_not_finite_leaves_a_header_that_can_be_written(parts):
    library, gpu = parts
    gpu.read = lambda pointer, size: np.full(size // 4, np.nan, np.float32).view(np.uint8)
    info = CudnnDevice(library=library, gpu=gpu, activity=(None, ""), clocks=None).describe()
    assert set(info.properties["relative_errors"]["fma"].values()) == {None}
    json.dumps(info.to_dict(), allow_nan=False)


def test_errors_tell_the_arithmetic():
    """Operands of 10 mantissa bits show as TF32's 3e-4."""
    conv = Conv(n=2, c=6, h=9, k=4, r=3, pad_h=1, groups=2)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 6, 9, 9), (4, 3, 3, 3)))
    coarse = direct(x.astype(np.float16), w.astype(np.float16), conv)
    for y, low, high in ((direct(x, w, conv), 0, 1e-6), (coarse, 1e-4, 1e-3)):
        raw = {"x": x, "w": w, "y": y.astype(np.float32)}
        assert low < forward_error(conv, {role: a.ravel().view(np.uint8) for role, a in raw.items()}) < high


def test_what_cannot_start_is_an_input_error(parts):
    library, gpu = parts
    library.status["cudnnCreate", None] = 1001
    with pytest.raises(InputError, match="does not start here: cudnnCreate: 1001"):
        device(parts)
    library.version, gpu.properties = "9.11.0", lambda: {"compute_capability": "7.0"}
    with pytest.raises(InputError, match=r"pip install 'nvidia-cudnn-cu12<9\.11'"):
        device(parts)
