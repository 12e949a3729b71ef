"""The cuDNN device with the fake CUDA libraries: results, timers, CUPTI's records, faults and misuse."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np
import pytest

from surrogate.collect.cpu import direct, relative_error
from surrogate.collect.cudnn import gpu as gpu_module, instruments
from surrogate.collect.cudnn.device import CudnnDevice
from surrogate.collect.cudnn.library import ALGORITHMS, Convolutions, Library
from surrogate.collect.device import DeviceLostError, RepeatPolicy, demangled
from surrogate.collect.log import read_log
from surrogate.collect.operators import GpuOperators
from surrogate.collect.plan import GPU_CAPS, tensor_shapes, tensor_sizes_bytes
from surrogate.collect.plan_source import PlanSource
from surrogate.collect.run import collect_heuristic
from surrogate.features.conv import Conv, parse
from surrogate.features.families import parse_problem
from surrogate.features.kernels import identify_call
from tests.known import cases, known_answers

CONV = Conv(n=2, c=8, h=9, k=4, r=3)
POLICY = RepeatPolicy()
DIRECTIONS = {"fwd": "Forward", "bwd_data": "BackwardData", "bwd_filter": "BackwardFilter"}
NON_DETERMINISTIC = {("bwd_data", "ALGO_0"), ("bwd_filter", "ALGO_0"), ("bwd_filter", "ALGO_3")}  # by cuDNN's header


@pytest.fixture(autouse=True)
def small_pool(chain: pytest.MonkeyPatch) -> None:
    """Reduce the pool of random operands, which a device fills when it opens."""
    chain.setattr(gpu_module, "POOL_ELEMENTS", 65_537)


@pytest.fixture
def opened(chain: pytest.MonkeyPatch) -> Iterator[Callable[..., CudnnDevice]]:
    """Return ``opened(gpu="v100")``, which opens the device with FAKE_GPU=v100, and so on for each variable."""
    with ExitStack() as stack:

        def make(**variables: str) -> CudnnDevice:
            for name, value in variables.items():
                chain.setenv(f"FAKE_{name.upper()}", value)
            device = CudnnDevice(max_workspace_bytes=1 << 25, max_tensor_bytes=1 << 24)
            stack.callback(device.close)
            return device

        yield make


def computed(device: CudnnDevice, conv: Conv, algorithm: int = 1) -> dict[str, np.ndarray]:
    """Run one call and return its operands and result as arrays."""
    convolutions = Convolutions(device.library, device.handle)
    with closing(convolutions):
        roles = convolutions.set_problem(conv).roles
        sizes, shapes = tensor_sizes_bytes(conv), tensor_shapes(conv)
        pointers = dict(zip(roles, device.gpu.place([sizes[role] for role in roles], conv.dtype), strict=True))
        convolutions.run(algorithm, pointers, (device.gpu.workspace, convolutions.workspace_bytes(algorithm)))
        device.gpu.synchronize()
        return {role: as_array(device.gpu.read(pointers[role], sizes[role]), shapes[role], conv) for role in pointers}


def as_array(raw: np.ndarray, shape: tuple[int, ...], conv: Conv) -> np.ndarray:
    """Convert bytes of the device to float64 in the order n, c, h, w."""
    if conv.dtype == "bf16":
        values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = raw.view({"fp32": np.float32, "fp64": np.float64, "fp16": np.float16}[conv.dtype])
    n, c, h, w = shape
    ordered = values.reshape(n, h, w, c).transpose(0, 3, 1, 2) if conv.layout == "NHWC" else values.reshape(shape)
    return ordered.astype(np.float64)


GENERAL = parse("n2c6h11w9k4r3s2p1q0u2v1l1j2g2")


@cases(__file__)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_results_agree_with_direct_convolution(opened, direction, dtype, layout, tolerance):
    """The gradients are adjoints of the forward pass: ⟨y, conv(x, w)⟩ = ⟨dx, x⟩ = ⟨dw, w⟩ for any x or w."""
    conv = replace(GENERAL, direction=direction, dtype=dtype, layout=layout)
    arrays = computed(opened(), conv)
    if direction == "fwd":
        assert relative_error(arrays["y"], direct(arrays["x"], arrays["w"], conv)) < tolerance
        return
    result = {"bwd_data": "x", "bwd_filter": "w"}[direction]
    probe = {**arrays, result: np.random.default_rng(0).standard_normal(arrays[result].shape)}
    forward = float(np.vdot(arrays["y"], direct(probe["x"], probe["w"], conv)))
    scale = float(np.linalg.norm(arrays[result]) * np.linalg.norm(probe[result]))
    assert abs(float(np.vdot(arrays[result], probe[result])) - forward) < tolerance * scale


@pytest.mark.parametrize(("number", "version"), [(8907, "8.9.7"), (8200, "8.2.0"), (90100, "9.1.0"), (91900, "9.19.0")])
def test_both_numberings_of_versions_are_read(chain, number, version):
    chain.setenv("FAKE_CUDNN_VERSION", str(number))
    assert Library.load().version == version


@cases(__file__)
def test_the_header_reports_errors_of_fma_and_default_math(opened, variables, low, high):
    """FMA has fp32's precision, TF32 ten bits; an error of NaN becomes None, which JSON can contain."""
    info = opened(**variables).device_info()
    errors = info.properties["relative_errors"]
    json.dumps(info.to_dict(), allow_nan=False)
    if low is None:
        assert set(errors["fma"].values()) == {None}
        return
    assert all(low < error < high for error in errors["default"].values()) and len(errors["default"]) > 4
    assert all(0 < error < 1e-6 for error in errors["fma"].values())
    facts = {"timer": "cupti", "mig": False, "power_limit_w": 700.0, "other_processes": 0}
    facts |= {"flush_bytes": gpu_module.FLUSH_BYTES}
    assert facts.items() <= info.properties.items() and info.properties["library_path"].endswith("cudnn_fake.so")
    assert info.versions["driver"] and info.versions["cuda_runtime"]


@cases(__file__)
def test_every_algorithm_is_timed_by_its_kernels_or_not_supported(opened, direction, cupti):
    """cupti-python 12 refuses the kind RUNTIME."""
    device = opened(cupti=cupti)
    conv = Conv(n=4, c=16, h=14, k=8, r=3, pad_h=1, direction=direction)
    assert device.candidates(conv) == ALGORITHMS[direction]
    results = {name: device.measure(conv, name, POLICY) for name in ALGORITHMS[direction]}
    assert {name for name, result in results.items() if result.status != "ok"} <= {"DIRECT", "WINOGRAD"}
    for name, result in results.items():
        if result.status != "ok":
            assert result.status == "not_supported" and "CUDNN_STATUS_NOT_SUPPORTED" in result.reason
            continue
        assert (result.timer, len(result.times_us), len(result.spans_us)) == ("cupti", 5, 5), name
        assert result.sm_clock_mhz == 1980 and result.throttle_reasons == 0
        assert result.deterministic is ((direction, name) not in NON_DETERMINISTIC)
        names = [kernel.kernel_name for kernel in result.kernels]
        kernels_us = sum(kernel.time_us for kernel in result.kernels)
        cleared_us = 1.0 if (direction, name) in NON_DETERMINISTIC else 0.0  # the memset of a gradient counts
        assert result.times_us[0] == pytest.approx(kernels_us + cleared_us, rel=0.03)
        assert all(span >= time for span, time in zip(result.spans_us, result.times_us, strict=True))
        assert all(launch.block_x and launch.registers_per_thread for launch in result.kernels)
        identified = identify_call(map(demangled, names))
        assert identified in {name, "IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM"}, names
    found_us = [entry.time_us or 0.0 for entry in device.find(conv) if entry.status == "ok"]
    assert found_us == sorted(found_us) and found_us[0]
    assert {entry.algorithm for entry in device.heuristic(conv)} == set(ALGORITHMS[direction])
    assert device.heuristic(conv)[0].time_us is None
    assert device.conditions()["sm_clock_mhz"] == 1980


@cases(__file__)
def test_one_fault_costs_one_measurement(opened, chain, order, status, words):
    """If CUPTI loses a record, events time the call and the row has the reason; a forced flush gets late records."""
    device = opened()
    chain.setenv("FAKE_FAULTS", order)
    result = device.measure(CONV, "GEMM", POLICY)
    assert result.status == status and words in result.reason and "\n" not in result.reason
    assert result.timer == ("" if status == "failed" else "events" if words else "cupti")
    chain.setenv("FAKE_FAULTS", "")
    after = device.measure(CONV, "FFT", POLICY)
    assert after.status == "ok" and after.timer == ("events" if "CUPTI_ERROR" in words else "cupti")


def test_flushes_separate_repeats_without_correlations(opened, chain):
    device = opened()
    labelled = device.measure(CONV, "WINOGRAD_NONFUSED", POLICY)
    chain.setenv("FAKE_FAULTS", "late record 39 0")
    result = device.measure(CONV, "WINOGRAD_NONFUSED", POLICY)
    assert result.timer == "cupti" and result.times_us == pytest.approx(labelled.times_us, rel=0.03)
    assert [kernel.kernel_name for kernel in result.kernels] == [kernel.kernel_name for kernel in labelled.kernels]


@pytest.mark.parametrize("launches", ["runtime", "driver", "mixed"])
@pytest.mark.parametrize("cupti", ["12", "13"])
def test_launches_without_labels_belong_to_their_call(opened, chain, cupti, launches):
    """cupti-python 12.8 records no runtime API, so a call's launches have labels only if the driver API made them."""
    chain.setenv("FAKE_CUPTI", cupti)
    device = opened(launches=launches)
    for name, count in (("GEMM", 2), ("WINOGRAD_NONFUSED", 4)):
        result = device.measure(CONV, name, POLICY)
        assert result.timer == "cupti" and len(result.kernels) == count
        assert result.times_us[0] == pytest.approx(sum(kernel.time_us for kernel in result.kernels), rel=0.03)
        assert result.labels_differ is (cupti == "12" and launches == "mixed")
        assert (f"labels {5 * count // 2} of {5 * count} launches" in result.reason) is result.labels_differ
        assert bool(result.reason) is result.labels_differ


@pytest.mark.parametrize(("cupti", "timer"), [("13", "cupti"), ("12", "events")])
def test_labels_separate_repeats_if_no_flush_is_recorded(opened, chain, cupti, timer):
    """Sums need a label for every kernel: cupti-python 12 has none for launches of the runtime API."""
    chain.setenv("FAKE_CUPTI", cupti)
    device = opened()
    usual = device.measure(CONV, "WINOGRAD_NONFUSED", POLICY)
    chain.setenv("FAKE_FLUSH", "other")
    result = device.measure(CONV, "WINOGRAD_NONFUSED", POLICY)
    assert (usual.timer, result.timer, len(result.times_us)) == ("cupti", timer, 5)
    if timer == "cupti":
        assert result.times_us == pytest.approx(usual.times_us, rel=0.03) and not result.reason
    else:
        assert "lack a launch or a flush" in result.reason


def test_cupti_is_left_out_if_the_environment_says_so(refused, opened, chain):
    chain.setenv("SEER_TIMER", "events")
    device = opened(gpu="h100")
    assert device.facts("cudnn").properties["cupti_missing"] == "left out by SEER_TIMER=events"
    assert device.measure(CONV, "GEMM", POLICY).timer == "events"
    chain.setenv("SEER_TIMER", "cupit")
    with refused("SEER_TIMER 'cupit' is unknown", "did you mean cupti"):
        opened()


def test_throttled_times_are_repeated_and_marked(opened, chain):
    """If throttling ends, the usual times are measured; if not, the row is marked after a limited number of tries."""
    chain.setattr(instruments, "PAUSE_S", 0.0)
    device = opened()
    usual = device.measure(CONV, "GEMM", POLICY)
    chain.setenv("FAKE_FAULTS", "soft clock -1 6")  # the second of five repeats
    again = device.measure(CONV, "GEMM", POLICY)
    assert again.throttle_reasons == 0 and again.times_us == pytest.approx(usual.times_us, rel=0.03)
    chain.setenv("FAKE_FAULTS", "soft clock -1 0")
    throttled = [device.measure(CONV, "GEMM", POLICY) for _ in range(15)]
    assert {result.throttle_reasons for result in throttled} == {8}
    assert {result.sm_clock_mhz for result in throttled} == {1188}
    assert min(throttled[-1].times_us) > 1.5 * max(usual.times_us)


@pytest.mark.parametrize(("batch", "repeats"), [(1, 5), (50, 3), (200, 1)])
def test_long_calls_get_fewer_repeats(chain, batch, repeats):
    """The larger batches take more than 20 and 100 ms of the fake's clock; the fake does not compute them."""
    conv = Conv(n=batch, c=1024, h=28, k=1024, r=3, pad_h=1)
    with closing(CudnnDevice(max_workspace_bytes=1 << 25, max_tensor_bytes=1 << 30)) as device:
        assert len(device.measure(conv, "IMPLICIT_GEMM", POLICY).times_us) == repeats


def test_find_warms_up_each_algorithm_once(opened, chain, tmp_path):
    """`find` runs each algorithm once before it times them, except GEMM, which this process measured."""
    log = tmp_path / "launches"
    chain.setenv("FAKE_PROFILE", str(log))
    device = opened(profile_from_start="1")
    device.measure(CONV, "GEMM", POLICY)
    log.unlink()
    assert device.find(CONV)[0].status == "ok"
    launched = Counter(line.split("\t")[1] for line in log.read_text().splitlines())
    assert (launched["ampere_sgemm_128x64_nn"], launched["ampere_sgemm_64x64_nn"]) == (1, 2)


def test_a_sticky_error_raises_device_lost(opened, chain):
    device = opened()
    chain.setenv("FAKE_FAULTS", "sticky cudnnConvolutionForward 2 1")
    with pytest.raises(DeviceLostError, match="illegal memory access"):
        device.measure(CONV, "GEMM", POLICY)


def test_memory_limits_become_statuses(refused, opened):
    device = opened()
    wide = Conv(n=8, c=64, h=64, k=64, r=3, pad_h=1)  # im2col needs 75 MB
    result = device.measure(wide, "GEMM", POLICY)
    assert result.status == "workspace_too_large" and result.workspace_bytes == 8 * 64 * 9 * 64 * 64 * 4
    assert "the arena holds" in device.measure(wide.with_batch(6000), "FFT", POLICY).reason
    assert device.measure(wide, "IMPLICIT_GEMM", POLICY).status == "ok"
    with refused("did you mean GEMM"):
        device.measure(wide, "GEM", POLICY)


@cases(__file__)
def test_a_device_that_cannot_start_is_refused(refused, opened, variables, words):
    with refused(words):
        opened(**variables)


@cases(__file__)
def test_without_cupti_the_events_time_the_calls(opened, chain, order, words):
    if not order:
        chain.setitem(sys.modules, "cupti", None)
    device = opened(faults=order)
    facts = device.facts("cudnn").properties
    assert facts["timer"] == "events" and facts["cupti_missing"].startswith(words)
    result = device.measure(CONV, "GEMM", POLICY)
    assert result.timer == "events" and result.times_us == result.spans_us and result.kernels == ()


def test_convolutions_need_neither_curand_nor_a_compiler(opened):
    assert opened(cupy_parts="none").measure(CONV, "GEMM", POLICY).timer == "cupti"


def test_elapsed_us_refuses_an_unfinished_event(opened):
    device = opened()
    start, end = device.gpu.event(), device.gpu.event()
    with pytest.raises(RuntimeError, match="cudaErrorNotReady"):
        device.gpu.elapsed_us(start, end)
    device.gpu.synchronize()
    assert device.gpu.elapsed_us(start, end) > 0


OPERATORS = [parse_problem(text) for text in known_answers(__file__)["operators"]]


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_every_operator_is_timed(chain, operator):
    """The fake refuses operands that are freed, too short or overlapping."""
    with closing(GpuOperators()) as device:
        result = device.measure(operator, POLICY)
        assert (result.status, result.timer, result.reason) == ("ok", "cupti", "") and result.kernels
        chain.setenv("FAKE_FAULTS", "memory cudaMalloc -1 0")
        assert device.measure(operator, POLICY).status == "failed"
        chain.setenv("FAKE_FAULTS", "")
        assert device.measure(operator, POLICY).status == "ok"


@cases(__file__)
def test_a_failing_operator_becomes_a_status(chain, order, problem):
    """cuDNN, CUDA, cuBLAS and the compiler raise four unrelated exception classes."""
    with closing(GpuOperators()) as device:
        chain.setenv("FAKE_FAULTS", order)
        operator = parse_problem(problem)
        result = device.measure(operator, POLICY)
        assert result.status == "failed" and result.reason and "\n" not in result.reason
        chain.setenv("FAKE_FAULTS", "")
        assert device.measure(operator, POLICY).status == "ok"


def test_a_crash_of_the_heuristic_is_refused_with_the_remedy(refused, chain, tmp_path):
    """cuDNN 9.10 crashes without a driver; the log keeps its rankings, and the same command continues."""
    output, plan = tmp_path / "picks.jsonl", PlanSource(sample=5).build(GPU_CAPS)
    chain.setenv("FAKE_FRONTEND", "segfault")
    with refused("signal 11", "seer-surrogate[heuristic]"):
        collect_heuristic(plan, "h200", str(output), lambda *_: None)
    assert len(read_log(output).records) == 2
    chain.setenv("FAKE_FRONTEND", "")
    collect_heuristic(plan, "h200", str(output), lambda *_: None)
    assert len(read_log(output).records) == 5
