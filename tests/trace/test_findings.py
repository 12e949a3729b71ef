"""The finders find each cause that a test plants in a real trace of VGG13, and no other cause."""

import gzip
import json
import re
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import surrogate.trace.findings as finders
from surrogate.trace import events as kinds
from surrogate.trace.events.parts import trim
from surrogate.trace.events.read import trace_files
from surrogate.trace.events.tables import take_rows
from surrogate.trace.findings import advice, format_findings
from surrogate.trace.idle import idle_table
from surrogate.trace.iteration.ranks import rank_summary
from surrogate.trace.profiling import profile
from surrogate.trace.tables import summary
from surrogate.trace.whatif import what_ifs
from tests.known import cases
from tests.trace.events import call, device, event

VGG = "vgg13_b128_training_h100.json.gz"
RESNET = "resnet50_b32_training_v100.json.gz"
HOST = {"pid": 42741, "tid": 42741}
MS = 1000.0
Events = list[dict[str, Any]]


def matching_events(events: Events, pattern: str, *categories: str) -> Events:
    """Return the events of these categories whose names match."""
    return [record for record in events if record.get("cat") in categories and re.search(pattern, record["name"])]


def delay(events: Events, at: float, by: float) -> None:
    """Delay the events that start after ``at`` by ``by`` µs."""
    for record in events:
        if record.get("ts", 0) > at:
            record["ts"] += by


def step_start(events: Events) -> float:
    """Return the start of the step: the end of the optimizer's zero_grad."""
    (cleared,) = matching_events(events, "zero_grad", "user_annotation")
    return cleared["ts"] + cleared["dur"] + 1


def rename(events: Events, pattern: str, name: str, *, category: str = "kernel", times: float = 1.0) -> None:
    """Rename the events of the category whose names match; they take ``times`` as long."""
    for record in matching_events(events, pattern, category):
        record["name"], record["dur"] = name, record["dur"] * times


def retype(events: Events, before: str, after: str) -> None:
    """Replace an element type of the operators' inputs."""
    for record in events:
        if types := record.get("args", {}).get("Input type"):
            record["args"]["Input type"] = [after if kind == before else kind for kind in types]


def on_host(category: str, name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
    return event(category, name, start, length, **args) | HOST


def relaunch(events: Events, *, times: float = 1.0) -> None:
    """Run the kernels one after another from their launches, ``times`` as long; the host waits for the last."""
    calls = {record["args"]["correlation"]: record for record in events if record.get("cat") == "cuda_runtime"}
    free = 0.0
    for record in sorted(matching_events(events, "", "kernel", "gpu_memset"), key=lambda kernel: kernel["ts"]):
        launch = calls[record["args"]["correlation"]]
        record["dur"] *= times
        record["ts"] = max(free, launch["ts"] + launch["dur"] + 3)
        free = record["ts"] + record["dur"]
    wait = max(matching_events(events, "cudaDeviceSynchronize", "cuda_runtime"), key=lambda sync: sync["dur"])
    over = wait["ts"] + wait["dur"]
    wait["dur"] = max(free - wait["ts"], 1.0)
    delay(events, over - 1, wait["ts"] + wait["dur"] - over)


@pytest.fixture(scope="module")
def original(measurements) -> dict[str, Any]:
    with gzip.open(measurements / "traces" / VGG) as file:
        return json.load(file)


@pytest.fixture(scope="module")
def trace_without_causes(original) -> dict[str, Any]:
    """Return the trace of a program in bf16 and channels_last with a fused optimizer: no finding applies."""
    trace = deepcopy(original)
    events = trace["traceEvents"]
    gone = {record["args"]["correlation"] for record in matching_events(events, "(?i)nchwToNhwc|nhwcToNchw", "kernel")}
    events[:] = [record for record in events if record.get("args", {}).get("correlation") not in gone]
    retype(events, "float", "c10::BFloat16")
    rename(events, "multi_tensor_apply", "FusedAdamMathFunctor")
    relaunch(events)
    return trace


def plant_layout_transposes(events: Events) -> None:
    for record in matching_events(events, "wgrad", "kernel")[:4]:
        record["name"] = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true>"


def plant_whole_step_in_fp32(events: Events) -> None:
    retype(events, "c10::BFloat16", "float")
    rename(events, "gemm", "sm90_xmma_gemm_tf32tf32_tf32f32_f32_tn_n_tilesize128x128x64")


def plant_products_in_fp32(events: Events) -> None:
    """Run only the linear layers in fp32, without TF32."""
    retype(matching_events(events, "aten::(addmm|mm|linear)$", "cpu_op"), "c10::BFloat16", "float")
    rename(events, "gemm_f32f32_f32f32|simt_sgemm", "cutlass_80_simt_sgemm_256x128_8x4_nt_align1")


def plant_small_kernels(events: Events) -> None:
    relaunch(events, times=1e-3)


def plant_unfused_optimizer(events: Events) -> None:
    rename(events, "FusedAdam", "void at::native::multi_tensor_apply_kernel<PointwiseOp>", times=5)
    relaunch(events)


LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def plant_data_loading(events: Events) -> None:
    start = step_start(events)
    delay(events, start - 1, 55 * MS + 1)
    events.append(on_host("user_annotation", LOADING, start, 55 * MS))


def plant_host_outside_layers(events: Events, name: str = "augment") -> None:
    """Add host work of the program before it calls the model."""
    start = step_start(events)
    delay(events, start - 1, 60 * MS)
    events += [on_host("cpu_op", "aten::empty", start - 50, 10), on_host("user_annotation", name, start, 50 * MS)]


def plant_file_access(events: Events) -> None:
    plant_host_outside_layers(events, "IO 7")
    read_call = "<built-in method read of _io.BufferedReader object at 0x7f2a>"
    events.append(on_host("python_function", read_call, step_start(events) + MS, MS))


def plant_start_up(events: Events) -> None:
    start = step_start(events)
    delay(events, start - 1, 60 * MS)
    allocation = call("cudaMallocHost", start + 100, 58 * MS, 9_999_997) | HOST
    events += [on_host("cpu_op", "aten::empty", start, 59 * MS), allocation]


def plant_device_awaited(events: Events) -> None:
    """Add loss.item() before the optimizer, whose launches then find an idle device."""
    (step,) = matching_events(events, "Optimizer.step", "user_annotation")
    start = step["ts"] - 1
    calls = {record["args"]["correlation"]: record["ts"] for record in events if record.get("cat") == "cuda_runtime"}
    kernels = matching_events(events, "", "kernel")
    launched = [record for record in kernels if calls[record["args"]["correlation"]] < start]
    length = max(record["ts"] + record["dur"] for record in launched) - start
    recorded = matching_events(events, "", "cpu_op", "cuda_runtime", "user_annotation", "python_function")
    delay(recorded, start, length + 20)
    events += [
        on_host("cpu_op", "aten::_local_scalar_dense", start, length + 10),
        on_host("cuda_runtime", "cudaStreamSynchronize", start + 1, length + 5, correlation=9_999_999, stream=7),
    ]
    relaunch(events)


def plant_unpinned_copies(events: Events) -> None:
    start = step_start(events)
    delay(events, start - 1, 51 * MS + 1)
    events += [
        on_host("cpu_op", "aten::copy_", start, 51 * MS, **{"External id": 1}),
        call("cudaMemcpyAsync", start + 50, 50.1 * MS, 9_999_998) | HOST,
        device("Memcpy HtoD (Pageable -> Device)", start + 100, 50 * MS, 9_999_998, category="gpu_memcpy", bytes=160e6),
    ]


def plant_unaligned_rows(events: Events) -> None:
    for record in matching_events(events, "aten::(addmm|mm)$", "cpu_op"):
        sizes = record["args"]["Input Dims"]
        record["args"]["Input Dims"] = [[{4096: 4095}.get(size, size) for size in shape] for shape in sizes]
    odd = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>"
    rename(events, "gemm_f32f32_f32f32|simt_sgemm", odd, times=2)
    relaunch(events)


def plant_exposed_communication(events: Events) -> None:
    rename(events, "max_pool_backward", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")


def plant_allocator_stalls(events: Events) -> None:
    """Repeat the step; the second one begins with driver calls of the allocator."""
    first = step_start(events) - 200
    last = max(record["ts"] + record["dur"] for record in matching_events(events, "", "kernel", "cuda_runtime"))
    offset_us = last - first + 100
    repeated = [record for record in events if record.get("ts", 0) >= first]
    second_step = [deepcopy(record) | {"ts": record["ts"] + offset_us} for record in repeated]
    for record in second_step:
        if "correlation" in record.get("args", {}):
            record["args"]["correlation"] += 10**7
    start = step_start(second_step)
    delay(second_step, start - 1, 60 * MS)
    names = ("cudaFree", "cudaMalloc")
    events += [
        *(call(name, first - 10 * n, 2, 10**8 + 5 + n) | HOST for n, name in enumerate(names, 1)),
        *second_step,
        *(call(name, start + 30 * MS * n, 29.9 * MS, 10**8 + n) | HOST for n, name in enumerate(names)),
        on_host("user_annotation", "ProfilerStep#1", first, offset_us - 10),
        on_host("user_annotation", "ProfilerStep#2", first + offset_us, offset_us + 60 * MS),
    ]


PLANTED = {name: function for name, function in globals().items() if name.startswith("plant_")}
"""``plant_`` and a finder's name → the function that plants what the finder finds."""
FOLLOW_UPS = {"small_kernels": "host_outside_layers", "file_access": "host_outside_layers"}
FOLLOW_UPS |= {"device_awaited": "small_kernels"}
"""Findings that follow from a planted cause: tiny kernels expose host work, and a wait exposes launches. 10 ms of the
planted delay are outside the range of files.
"""


def check_supported(finding):
    """Check that the gain lies within its interval and does not exceed the affected time."""
    assert 0 <= finding.low_us <= finding.gain_us <= finding.high_us <= finding.step_us
    assert finding.low_us < finding.high_us and finding.evidence and finding.change
    assert 0.01 * finding.step_us <= finding.gain_us <= finding.evidence_us + 1e-6
    # The gain is at most the cause: the device's time, and the time for which it idles.
    cause = re.findall(r"([\d,.]+) ms on the device|device idles ([\d,.]+) ms", finding.evidence)
    cause_us = sum(1e3 * float("".join(part).replace(",", "")) for part in cause)
    assert cause and finding.gain_us <= cause_us * 1.001
    parts = re.findall(r"([\d,.]+) ms on the (?:device|host)", finding.evidence)
    assert sum(float(part.replace(",", "")) for part in parts) == pytest.approx(finding.evidence_us / 1e3, rel=1e-3)


def test_a_trace_without_a_cause_gets_no_advice(read, trace_without_causes):
    assert not advice(profile(read(trace_without_causes)))
    assert "the trace supports no change" in format_findings([])


@pytest.mark.parametrize("find", finders.FINDERS, ids=lambda find: find.__name__)
def test_a_planted_cause_is_found(find, read, trace_without_causes):
    name = find.__name__
    assert f"plant_{name}" in PLANTED, f"surrogate/trace/findings.py: plant the cause that {name} finds here"
    trace = deepcopy(trace_without_causes)
    PLANTED[f"plant_{name}"](trace["traceEvents"])
    planted = profile(read(trace))
    titles = [finders.TEXTS[each]["title"] for each in (name, FOLLOW_UPS.get(name, name))]
    drafts = [title.format(arithmetic="TF32") for title in titles]
    findings = {finding.title: finding for finding in advice(planted)}
    assert drafts[0] in findings and set(findings) <= set(drafts)
    finding = findings[drafts[0]]
    check_supported(finding)
    assert all(text in format_findings([finding]) for text in (finding.title, finding.evidence, finding.change))


def test_findings_of_vgg13_are_transposes_and_fp32(real, seer):
    """VGG13 on an H100 does not wait for the host; layout transposes take a fifth of its time."""
    vgg = {finding.title: finding for finding in advice(profile(real(VGG)))}
    transposes = vgg["Layouts are transposed around convolutions"]
    assert transposes.where == "torchvision/models/vgg.py(65): forward"  # of frames; ResNet-50's has call stacks
    assert transposes.gain_pct == pytest.approx(19.7, abs=0.1) and "nchwToNhwc" in transposes.evidence
    assert "88% of the time of products and convolutions in TF32" in vgg["The step computes in TF32"].evidence
    text = format_findings([*vgg.values()])
    assert text.count(transposes.basis) == 1
    assert "Interval of 2, 3: " in text
    for finding in vgg.values():
        check_supported(finding)
    rows = seer("summary", "vgg13_h100", "--json").succeeded().json["findings"]
    assert [row["title"] for row in rows] == list(vgg)
    out = seer("summary", "vgg13_h100").succeeded().out
    assert out.index("channels_last") > out.index("Layer types")


def test_findings_of_resnet50_are_on_the_host(real, seer, measurements):
    """ResNet-50 on a V100 waits for its data, so that every gain is on the host."""
    resnet = advice(profile(real(RESNET)))
    loading, launches = resnet[:2]
    assert launches.evidence.startswith("launches") and "profiler's cost" in launches.evidence
    assert loading.title == "The step waits for its data"
    assert loading.where == "resnet50_profiler_api.py(42): <module>" and "num_workers=8" in loading.change
    # The default interval runs from half of the cause's time to all of it, because this what-if has none.
    assert loading.high_us == loading.gain_us and 0.4 < loading.low_us / loading.gain_us < 0.6
    assert "34 % (17 to 34 %)" in format_findings([loading])
    # AMP gains nothing while the step waits for data; a finding gains at most as much as its what-if.
    assert not any("fp32" in finding.title for finding in resnet)
    fused = next(finding for finding in resnet if "optimizer" in finding.title)
    (answer,) = seer("whatif", measurements / "traces" / RESNET, "fused-optimizer", "--json").succeeded().json
    assert 0 < fused.gain_us <= answer["baseline_us"] - answer["predicted_us"]
    assert "SGD" in fused.evidence and "SGD(" in fused.change
    for finding in resnet:
        check_supported(finding)


def test_a_program_that_waits_for_its_files_is_told_so(real):
    """Power iteration idles 14.6 of 40.7 ms a step in its ranges "IO N", with calls of files; it is no PyTorch."""
    trace = real("nsys_power_iteration.sqlite")
    named = profile(replace(trace, frames=take_rows(trace.frames, np.arange(0))))
    assert not finders.FinderInput(named).on_files.any()  # the name alone is no evidence
    findings, _ = finders.find_all(profile(trace))
    titles = [finders.TEXTS[find]["title"] for find in ("file_access", "device_awaited")]
    assert [finding.title for finding in findings] == titles
    assert "IO # 14.64 ms" in findings[0].evidence and "read ahead" in findings[0].change
    check_supported(findings[0])


@pytest.mark.parametrize(
    ("name", "kind", "find", "change", "gain_ms"),
    [
        ("net.py(1): poll", kinds.SYSTEM_CALL, "host_outside_layers", "do that piece of work once", 0.3),
        ("net.py(1): poll", kinds.COLLECTION, "host_outside_layers", "gc.freeze", 4.3),
        ("<built-in function read>", kinds.SYSTEM_CALL, "file_access", "read ahead", 4.3),
    ],
)
def test_work_after_a_synchronise_counts_if_it_overlaps(name, kind, find, change, gain_ms, read):
    """The device idles 4.4 of each 20 ms: 0.01 ms in the synchronise, 4 ms in a call, 0.24 outside of both.

    A collection or a read overlaps the device's work if the host does not wait before it; the wait of poll may not.
    """
    steps = [
        part | {"ts": part["ts"] + 20 * MS * n}
        for n in range(3)
        for part in (
            event("user_annotation", f"ProfilerStep#{n}", 0, 20 * MS),
            *(call("cudaLaunchKernel", 100, 10, 2 * n + 1), device("at::native::a", 200, 4.8 * MS, 2 * n + 1)),
            event("cuda_runtime", "cudaDeviceSynchronize", 300, 4710, correlation=100 + n),
            event("python_function", name, 5.02 * MS, 4 * MS),
            *(call("cudaLaunchKernel", 9050, 10, 2 * n + 2), device("b", 9.1 * MS, 10.8 * MS, 2 * n + 2)),
        )
    ]
    trace = read({"schemaVersion": 1, "traceEvents": steps})
    frames = replace(trace.frames, kind=np.full(len(trace.frames), kind))
    by_title = {each.title: each for each in finders.find_all(profile(replace(trace, frames=frames)))[0]}
    awaited, code = (by_title.pop(finders.TEXTS[key]["title"]) for key in ("device_awaited", find))
    assert not by_title and awaited.gain_us == pytest.approx(gain_ms * MS)
    assert code.change.startswith(change) and code.gain_us < 4.25 * MS and f"{name} 4 ms" in code.evidence
    check_supported(code)


def test_no_step_is_shorter_than_the_device_s_work(read):
    """Each step loads for 900 of 1,000 µs, then the device works for 700 µs: the loading's gain is 300 µs, not more."""
    recorded = []
    for start in range(0, 6000, 1000):
        recorded += [event("user_annotation", f"ProfilerStep#{start // 1000}", start, 1000)]
        recorded += [event("user_annotation", "enumerate(DataLoader)#_MultiProcessing", start, 900)]
        recorded += [call("cudaLaunchKernel", start + 940, 4, start), device("k", start + 950, 700, start)]
    profiled = profile(read({"schemaVersion": 1, "traceEvents": recorded}))
    (finding,) = finders.find_all(profiled)[0]
    assert finding.gain_us == pytest.approx(300, rel=0.02) and finding.high_us <= 301
    (answer,) = what_ifs(profiled, ["faster-host=1000"])
    assert answer.predicted_us == pytest.approx(700, rel=0.01)


def test_allocations_of_the_driver_are_not_launches(read):
    """Twenty operators launch a kernel each 20 µs; one of them allocates memory for 500 µs."""
    idle_us = []
    for allocation in (0, 500):
        recorded, host = [], 0.0
        for number in range(60):
            if number % 20 == 0:
                recorded.append(event("user_annotation", f"ProfilerStep#{number // 20}", host, 399.0 + allocation))
            took = allocation * (number % 20 == 10)
            recorded += [event("cpu_op", "aten::relu", host, 19 + took), device("k", host + took + 8, 5, number)]
            recorded += [call("cudaLaunchKernel", host + took + 2, 4, number)]
            recorded += [call("cudaMalloc", host + 1, took, 100 + number)] * bool(took)
            host += 20 + took
        case = finders.FinderInput(profile(read({"schemaVersion": 1, "traceEvents": recorded})))
        idle_us.append(case.idle_us(finders.small_kernels(case).idle))
    assert idle_us[1] == pytest.approx(idle_us[0], abs=2)


@pytest.mark.parametrize("waits_after", [5, 19])
def test_gain_without_a_wait_is_the_step_of_a_host_that_runs_ahead(waits_after, read):
    """The host launches a kernel each 40 µs, 20 a step: 5 of 160 µs, 15 of 3 µs, in this order or the reverse."""
    times = [160] * 5 + [3] * 15 if waits_after == 5 else [3] * 15 + [160] * 5
    recorded, host, free, number = [], 0.0, 0.0, 0
    for step in range(6):
        begin = host
        for position, time in enumerate(times):
            start = max(free, host + 6)
            recorded += [event("cpu_op", "aten::relu", host, 39), call("cudaLaunchKernel", host + 1, 4, number)]
            recorded.append(device("k", start, time, number))
            host, free, number = host + 40, start + time, number + 1
            if position == waits_after:
                recorded.append(call("cudaStreamSynchronize", host, max(free - host, 1), 1000 + step))
                host = max(free, host + 1)
        recorded.append(event("user_annotation", f"ProfilerStep#{step}", begin, host - begin))
    findings, _ = finders.find_all(profile(read({"schemaVersion": 1, "traceEvents": recorded})))
    (finding,) = [each for each in findings if each.title == finders.TEXTS["device_awaited"]["title"]]
    # The device then works for 845 µs a step without a pause, after the first launch or the first 15.
    right_us = 845 + (6 if waits_after == 5 else 6 + 15 * 40 - 15 * 3) / 6
    assert finding.step_us - finding.gain_us == pytest.approx(right_us, rel=0.02)
    check_supported(finding)


@pytest.mark.parametrize(("iterator", "gain_us"), [("SingleProcess", [268]), ("MultiProcessing", [16.7])])
def test_host_that_loads_data_itself_runs_ahead_without_a_wait(iterator, gain_us, read):
    """Each step loads data for 300 µs, and waits for its kernel of 680 µs.

    Without the wait, workers bring the data at the same time; only 20 of 320 idle µs between two steps go.
    """
    recorded = []
    for start in range(0, 6000, 1000):
        recorded += [event("user_annotation", f"ProfilerStep#{start // 1000}", start, 1000)]
        recorded += [event("user_annotation", f"enumerate(DataLoader)#_{iterator}DataLoaderIter.__next__", start, 300)]
        recorded += [event("cpu_op", "aten::relu", start + 300, 40), call("cudaLaunchKernel", start + 301, 4, start)]
        recorded += [device("k", start + 310, 680, start), call("cudaStreamSynchronize", start + 345, 650, start + 1)]
    findings, _ = finders.find_all(profile(read({"schemaVersion": 1, "traceEvents": recorded})))
    gains_us = [each.gain_us for each in findings if each.title == finders.TEXTS["device_awaited"]["title"]]
    assert gains_us == pytest.approx(gain_us, rel=0.03)  # 6,000 - (310 + 6 × 680) µs in six steps


def test_start_up_inside_a_launch_is_found(read):
    """The first launch of two steps of 210 ms takes 379 ms, because it loads a library."""
    names = ("cudaLaunchKernel", "cuLibraryLoadData", "cudaLaunchKernel", "cudaLaunchKernel")
    times = ((50, 379 * MS), (100, 378 * MS), (400.05 * MS, 8), (400.2 * MS, 8))
    recorded = [call(name, *time, number) for number, (name, time) in enumerate(zip(names, times, strict=True))]
    recorded += [device("gemm", start, 1.9 * MS, n) for n, start in ((0, 379.1 * MS), (2, 401 * MS), (3, 403 * MS))]
    recorded.append(event("user_annotation", "ProfilerStep#0", 0, 400 * MS))
    recorded.append(event("user_annotation", "ProfilerStep#1", 400 * MS, 20 * MS))
    findings, _ = finders.find_all(profile(read({"schemaVersion": 1, "traceEvents": recorded})))
    assert findings[0].title == finders.TEXTS["start_up"]["title"]
    assert findings[0].gain_us == pytest.approx(379 * MS / 2, rel=1e-3)
    check_supported(findings[0])


@pytest.mark.parametrize("dims", [[[4096, 4096]] * 2, []])
def test_amp_gains_at_least_as_much_as_tf32(dims, read):
    """A product on plain units is 8 times as fast by an A100's peaks in TF32, 19.5 and 156 TFLOP/s; a relu takes half.

    Without shapes, as in Nsight Systems' traces, names show the types, and sgemm takes a third (Daydream).
    """
    product = {"Input Dims": dims, "Input type": ["float"] * len(dims), "External id": 1}
    recorded = [
        *(event("cpu_op", "aten::mm", 0, 9, **product), call("cudaLaunchKernel", 2, 3, 1)),
        *(event("cpu_op", "aten::relu", 10, 9), call("cudaLaunchKernel", 12, 3, 2)),
        *(device("ampere_sgemm_128x64_nn", 9, 8 * MS, 1), device("relu_kernel<float>", 8010, MS, 2)),
        call("cudaDeviceSynchronize", 20, 8990, 3),
    ]
    gpu = {"id": 0, "name": "NVIDIA A100-SXM4-80GB"}
    findings = advice(profile(read({"deviceProperties": [gpu], "traceEvents": recorded})))
    expected = [("The step computes in fp32", 7.5), ("Products of fp32 run without TF32", 7.0)]
    found = [(finding.title, finding.gain_us / MS) for finding in findings]
    assert found == (
        [(title, pytest.approx(ms, rel=1e-3)) for title, ms in expected]
        if dims
        else [(expected[0][0], pytest.approx(8 * 2 / 3 + 0.5))]
    )


@cases(__file__)
def test_ranges_around_files_are_recognised_by_name(name, is_file):
    assert bool(finders.FILE_RANGE.search(name)) == is_file


def test_changes_name_pytorch_only_for_its_programs(real):
    """Every change that names PyTorch has a variant without it, with CUDA's or HIP's names."""
    case = finders.FinderInput(profile(real("nsys_power_iteration.sqlite")))
    finder_names = {find.__name__ for find in finders.FINDERS}
    # The optimizer and the straggler are only looked for in PyTorch's names.
    changes = [
        (texts, key)
        for name, texts in finders.TEXTS.items()
        if name in finder_names - {"unfused_optimizer"}
        for key in texts.keys() - {"title", "tasks", "needs", "what_if", "min_gain"}
    ]
    tasks, fields = case.graph.removed, {"optimizer": "SGD", "largest": 1, "padded": 8}
    assert not case.uses_torch and len(changes) > 20
    for api in ("cuda", "hip"):
        case.api = api
        plain = " ".join(case.change(texts, finders.Draft(tasks, change=key, fields=fields)) for texts, key in changes)
        assert not re.search(r"torch|DataLoader|DistributedData|loss\.|" + {"cuda": "hip", "hip": "cuda"}[api], plain)
    assert finders.FinderInput(profile(real(RESNET))).uses_torch


def test_a_trace_of_kernels_alone_has_no_cause_on_the_host(read):
    """Without calls and ranges, the idle time is unknown, and no finding applies."""
    kernels = [device("kernel", 100.0 * n, 50, n) for n in range(20)]
    profiled = profile(read({"schemaVersion": 1, "traceEvents": kernels}))
    assert finders.find_all(profiled)[0] == [] and {row["cause"] for row in idle_table(profiled)} == {"unknown"}


def test_a_cpu_trace_shows_the_share_of_its_data_loading(read):
    """The loader takes 55 of each 100 ms; other causes need a device."""
    steps = []
    for n in range(3):
        steps.append(event("user_annotation", f"ProfilerStep#{n}", 100 * MS * n, 100 * MS))
        steps.append(event("user_annotation", LOADING, 100 * MS * n + 1 * MS, 55 * MS))
        steps.append(event("cpu_op", "aten::mm", 100 * MS * n + 60 * MS, 35 * MS))
    findings, unchecked = finders.find_all(profile(read({"schemaVersion": 1, "traceEvents": steps})))
    assert [round(finding.gain_us / MS, 3) for finding in findings] == [55.0]
    assert "55 ms a step" in findings[0].evidence and "device idles" not in findings[0].evidence
    assert "not looked for: the trace lacks work of a device" in unchecked and "waits for its data" not in unchecked


def test_findings_exclude_iterations_far_longer_than_the_median(real):
    """Five of the thirty iterations wait for data for 3 to 21 times the median."""
    trace = real("resnet_training_2080ti_no_dims.json.gz")
    with pytest.warns(UserWarning, match="“Products of fp32 run without TF32”, .* lacks shapes .* record_shapes=True"):
        findings = {finding.title: finding for finding in advice(trace)}
    loading = findings["The step waits for its data"]
    assert 150e3 < loading.step_us < 200e3 and "num_workers=8" not in loading.change
    for finding in findings.values():
        check_supported(finding)
    # The summary and what-ifs exclude the same iterations, unless the user chooses iterations.
    facts = summary(trace)
    assert "1 to 9 count" in facts["notes"] and facts["iterations"] == 9
    assert "in iteration 9, one of 9 iterations" in loading.evidence  # this iteration waits for its data
    (answer,) = what_ifs(trace, "faster-host")
    assert answer.baseline_us == pytest.approx(loading.step_us)
    assert summary(trim(trace, iterations_kept=[0, 1, 2]))["iterations"] == 3
    # An unknown GPU also leaves findings out; the warning names them.
    with pytest.warns(UserWarning, match="“Products of fp32 run without TF32”.* lacks a GPU of the registry"):
        advice(replace(real(VGG), devices=()))


def test_straggler_is_the_rank_that_others_wait_for(measurements, make_trace, read, seer):
    """A real run has a straggler; equal ranks have none."""
    with trace_files([measurements / "traces" / "dlrm_8_workers_v100.tar.gz"]) as files:
        compared = rank_summary([file.read() for file in files])
    finding = finders.straggler(compared)
    assert finding and finding.where == f"rank {compared.straggler}" and finding.low_us < finding.gain_us
    # Most of the wait is in the first collective, because the trace of this rank begins late.
    assert finding.gain_us == pytest.approx(1059 + 8308 - 1068 - 7051, rel=0.01) and "1.2" in finding.evidence
    equal_ranks = make_trace(steps=2)
    for record in matching_events(equal_ranks["traceEvents"], "wgrad", "kernel"):
        record["name"] = "ncclAllReduceRingLLKernel"
    ranks = [read(equal_ranks | {"distributedInfo": {"rank": rank, "world_size": 2}}) for rank in (0, 1)]
    assert finders.straggler(rank_summary(ranks)) is None


def test_straggler_gains_per_step(read):
    """Steps take 1,000 µs; rank 1 begins each step's work 200 µs later than rank 0, which waits for it."""
    ranks = []
    for late in (0, 200):
        events = []
        for step in range(3):
            start = 1000 * step
            events += [event("user_annotation", f"ProfilerStep#{step}", start, 1000)]
            events += [call("cudaLaunchKernel", start + 2 * i, 1, 2 * step + i) for i in (1, 2)]
            events += [device("k", start + 10 + late, 500, 2 * step + 1)]
            events += [device("ncclAllReduce", start + 510 + late, 400 - late, 2 * step + 2)]
        ranks.append(read({"traceEvents": events, "distributedInfo": {"rank": late // 200, "world_size": 2}}))
    finding = finders.straggler(rank_summary(ranks))
    assert finding and (finding.where, finding.step_us, finding.gain_us) == ("rank 1", 1000, pytest.approx(200))
