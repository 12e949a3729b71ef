"""Each cause that advice knows, planted in a real trace of VGG13 that has none of them, is found, and no other."""

import gzip
import json
import re
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

import surrogate.trace.findings as advice_of
from surrogate.trace.events.parts import trim
from surrogate.trace.events.read import trace_files
from surrogate.trace.findings import advice, format_findings
from surrogate.trace.iteration.ranks import rank_summary
from surrogate.trace.profiling import profile
from surrogate.trace.tables import summary
from surrogate.trace.whatif import what_ifs
from tests.trace.events import call, device, event

VGG = "vgg13_b128_training_h100.json.gz"
RESNET = "resnet50_b32_training_v100.json.gz"
HOST = {"pid": 42741, "tid": 42741}
MS = 1000.0
Events = list[dict[str, Any]]


def named(events: Events, pattern: str, *categories: str) -> Events:
    """The events of these categories whose names match."""
    return [each for each in events if each.get("cat") in categories and re.search(pattern, each["name"])]


def later(events: Events, at: float, by: float) -> None:
    """Put off what starts behind ``at`` by ``by`` µs."""
    for each in events:
        if each.get("ts", 0) > at:
            each["ts"] += by


def begin(events: Events) -> float:
    """When the step begins: behind the optimizer's zero_grad."""
    (cleared,) = named(events, "zero_grad", "user_annotation")
    return cleared["ts"] + cleared["dur"] + 1


def on_host(category: str, name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
    return event(category, name, start, length, **args) | HOST


def launched_anew(events: Events, *, times: float = 1.0) -> None:
    """The kernels one behind the other from their launches on, ``times`` as long; the host waits for the last."""
    calls = {each["args"]["correlation"]: each for each in events if each.get("cat") == "cuda_runtime"}
    free = 0.0
    for each in sorted(named(events, "", "kernel", "gpu_memset"), key=lambda kernel: kernel["ts"]):
        launch = calls[each["args"]["correlation"]]
        each["dur"] *= times
        each["ts"] = max(free, launch["ts"] + launch["dur"] + 3)
        free = each["ts"] + each["dur"]
    wait = max(named(events, "cudaDeviceSynchronize", "cuda_runtime"), key=lambda sync: sync["dur"])
    over = wait["ts"] + wait["dur"]
    wait["dur"] = max(free - wait["ts"], 1.0)
    later(events, over - 1, wait["ts"] + wait["dur"] - over)


@pytest.fixture(scope="module")
def original(measurements) -> dict[str, Any]:
    with gzip.open(measurements / "traces" / VGG) as file:
        return json.load(file)


@pytest.fixture(scope="module")
def mended(original) -> dict[str, Any]:
    """The trace as of a program in bf16, in channels_last and with a fused optimizer."""
    trace = deepcopy(original)
    events = trace["traceEvents"]
    gone = {each["args"]["correlation"] for each in named(events, "(?i)nchwToNhwc|nhwcToNchw", "kernel")}
    trace["traceEvents"] = events = [each for each in events if each.get("args", {}).get("correlation") not in gone]
    for each in events:
        if types := each.get("args", {}).get("Input type"):
            each["args"]["Input type"] = ["c10::BFloat16" if kind == "float" else kind for kind in types]
    for each in named(events, "multi_tensor_apply", "kernel"):
        each["name"] = "FusedAdamMathFunctor"
    launched_anew(events)
    return trace


def planted_layout(events: Events) -> None:
    for each in named(events, "wgrad", "kernel")[:4]:
        each["name"] = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true>"


def planted_fp32(events: Events) -> None:
    for each in events:
        if types := each.get("args", {}).get("Input type"):
            each["args"]["Input type"] = ["float" if kind == "c10::BFloat16" else kind for kind in types]
    for each in named(events, "gemm", "kernel"):
        each["name"] = "sm90_xmma_gemm_tf32tf32_tf32f32_f32_tn_n_tilesize128x128x64"


def planted_sgemm(events: Events) -> None:
    """Linear layers alone in fp32, without TF32."""
    layers = named(events, "aten::(addmm|mm|linear)$", "cpu_op")
    for each in layers:
        each["args"]["Input type"] = [
            "float" if kind == "c10::BFloat16" else kind for kind in each["args"]["Input type"]
        ]
    for each in named(events, "gemm_f32f32_f32f32|simt_sgemm", "kernel"):
        each["name"] = "cutlass_80_simt_sgemm_256x128_8x4_nt_align1"


def planted_small_kernels(events: Events) -> None:
    launched_anew(events, times=1e-3)


def planted_optimizer(events: Events) -> None:
    for each in named(events, "FusedAdam", "kernel"):
        each["name"] = "void at::native::multi_tensor_apply_kernel<PointwiseOp>"
        each["dur"] *= 5
    launched_anew(events)


def planted_loading(events: Events) -> None:
    start = begin(events)
    later(events, start - 1, 55 * MS + 1)
    events.append(
        on_host("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, 55 * MS)
    )


def planted_host_code(events: Events) -> None:
    """The program prepares something before it calls the model."""
    start = begin(events)
    later(events, start - 1, 60 * MS)
    events += [on_host("cpu_op", "aten::empty", start - 50, 10), on_host("user_annotation", "augment", start, 50 * MS)]


def planted_value(events: Events) -> None:
    """loss.item() ahead of the optimizer, whose launches then find an idle device."""
    (step,) = named(events, "Optimizer.step", "user_annotation")
    start = step["ts"] - 1
    calls = {each["args"]["correlation"]: each["ts"] for each in events if each.get("cat") == "cuda_runtime"}
    launched = [each for each in named(events, "", "kernel") if calls[each["args"]["correlation"]] < start]
    length = max(each["ts"] + each["dur"] for each in launched) - start
    for each in events:
        if each.get("ts", 0) > start and each.get("cat") in (
            "cpu_op",
            "cuda_runtime",
            "user_annotation",
            "python_function",
        ):
            each["ts"] += length + 20
    events += [
        on_host("cpu_op", "aten::_local_scalar_dense", start, length + 10),
        on_host("cuda_runtime", "cudaStreamSynchronize", start + 1, length + 5, correlation=9_999_999, stream=7),
    ]
    launched_anew(events)


def planted_copy(events: Events) -> None:
    start = begin(events)
    later(events, start - 1, 51 * MS + 1)
    copy = device(
        "Memcpy HtoD (Pageable -> Device)", start + 100, 50 * MS, 9_999_998, category="gpu_memcpy", bytes=160e6
    )
    events += [
        on_host("cpu_op", "aten::copy_", start, 51 * MS, **{"External id": 1}),
        call("cudaMemcpyAsync", start + 50, 50.1 * MS, 9_999_998) | HOST,
        copy,
    ]


def planted_odd_rows(events: Events) -> None:
    for each in named(events, "aten::(addmm|mm)$", "cpu_op"):
        sizes = each["args"]["Input Dims"]
        each["args"]["Input Dims"] = [[{4096: 4095}.get(size, size) for size in shape] for shape in sizes]
    for each in named(events, "gemm_f32f32_f32f32|simt_sgemm", "kernel"):
        each["name"] = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>"
        each["dur"] *= 2
    launched_anew(events)


def planted_communication(events: Events) -> None:
    for each in named(events, "max_pool_backward", "kernel"):
        each["name"] = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def planted_allocations(events: Events) -> None:
    """The step a second time, which begins with the allocator's calls of the driver."""
    first = begin(events) - 200
    last = max(each["ts"] + each["dur"] for each in named(events, "", "kernel", "cuda_runtime"))
    later_us = last - first + 100
    again = [deepcopy(each) | {"ts": each["ts"] + later_us} for each in events if "ts" in each and each["ts"] >= first]
    for each in again:
        if "correlation" in each.get("args", {}):
            each["args"]["correlation"] += 10**7
    start = begin(again)
    later(again, start - 1, 60 * MS)
    names = ("cudaFree", "cudaMalloc")
    events += [
        *again,
        *(call(name, start + 30 * MS * n, 29.9 * MS, 10**8 + n) | HOST for n, name in enumerate(names)),
        on_host("user_annotation", "ProfilerStep#1", first, later_us - 10),
        on_host("user_annotation", "ProfilerStep#2", first + later_us, later_us + 60 * MS),
    ]


PLANTED = {
    advice_of.layout_transposes: planted_layout,
    advice_of.whole_step_in_fp32: planted_fp32,
    advice_of.products_in_fp32: planted_sgemm,
    advice_of.small_kernels: planted_small_kernels,
    advice_of.unfused_optimizer: planted_optimizer,
    advice_of.data_loading: planted_loading,
    advice_of.host_outside_layers: planted_host_code,
    advice_of.device_awaited: planted_value,
    advice_of.unpinned_copies: planted_copy,
    advice_of.unaligned_rows: planted_odd_rows,
    advice_of.exposed_communication: planted_communication,
    advice_of.allocator_stalls: planted_allocations,
}
BRINGS = {advice_of.small_kernels: [advice_of.host_outside_layers], advice_of.device_awaited: [advice_of.small_kernels]}
"""What a cause brings: where kernels take no time, everything else on the host shows; behind a wait, launches do."""


def is_supported(finding):
    """What suffers takes at least the gain, which lies in an interval that has a width."""
    assert 0 <= finding.low_us <= finding.gain_us <= finding.high_us <= finding.step_us
    assert finding.low_us < finding.high_us and finding.evidence and finding.change
    assert 0.01 * finding.step_us <= finding.gain_us <= finding.evidence_us + 1e-6
    parts = re.findall(r"([\d,.]+) ms on the (?:device|host)", finding.evidence)
    assert sum(float(part.replace(",", "")) for part in parts) == pytest.approx(finding.evidence_us / 1e3, rel=1e-3)


def test_a_trace_without_a_cause_gets_no_advice(read, mended):
    assert not advice(profile(read(mended)))
    assert "the trace supports no change" in format_findings([])


@pytest.mark.parametrize("find", advice_of.FINDERS, ids=lambda find: find.__name__)
def test_a_planted_cause_is_found(find, read, mended):
    assert find in PLANTED, (
        f"surrogate/trace/findings.py: plant the cause that {find.__name__} finds in a real trace here"
    )
    trace = deepcopy(mended)
    PLANTED[find](trace["traceEvents"])
    planted = profile(read(trace))
    titles = (advice_of.TEXTS[each.__name__]["title"] for each in (find, *BRINGS.get(find, [])))
    drafts = [title.format(arithmetic="TF32") for title in titles]
    findings = {finding.title: finding for finding in advice(planted)}
    assert drafts[0] in findings and set(findings) <= set(drafts)
    finding = findings[drafts[0]]
    is_supported(finding)
    assert all(text in format_findings([finding]) for text in (finding.title, finding.evidence, finding.change))


def test_advice_of_the_traces_as_they_are(real, seer, measurements):
    """VGG13 on an H100 waits for no host: transposes of layouts, a fifth of its time, and what fp32 costs; the gains of
    ResNet-50 on a V100, which waits for its data, are all on the host."""
    vgg = {finding.title: finding for finding in advice(profile(real(VGG)))}
    transposes = vgg["Layouts are transposed around convolutions"]
    assert transposes.where == "torchvision/models/vgg.py(65): forward"  # of frames; ResNet-50's has call stacks
    assert transposes.gain_pct == pytest.approx(19.7, abs=0.1) and "nchwToNhwc" in transposes.evidence
    assert "88% of the time of products and convolutions in TF32" in vgg["The step computes in TF32"].evidence
    assert format_findings([*vgg.values()]).count(transposes.basis) == 1 and "Interval of 2, 3: " in format_findings(
        [*vgg.values()]
    )
    resnet = advice(profile(real(RESNET)))
    launches, loading = resnet[:2]
    assert launches.evidence.startswith("launches") and "profiler's cost" in launches.evidence
    assert loading.title == "The step waits for its data"
    assert loading.where == "resnet50_profiler_api.py(42): <module>" and "num_workers=8" in loading.change
    # Without an interval of its what-if one rule holds: from half of the cause's time to all of it.
    assert loading.high_us == loading.gain_us and 0.4 < loading.low_us / loading.gain_us < 0.6
    assert "34 % (20 to 34 %)" in format_findings([loading])
    # A step that waits for its data gains nothing by AMP, which is no finding; what is one gains what its what-if does.
    assert not any("fp32" in finding.title for finding in resnet)
    fused = next(finding for finding in resnet if "optimizer" in finding.title)
    (answer,) = seer("whatif", measurements / "traces" / RESNET, "fused-optimizer", "--json").succeeded().json
    assert fused.gain_us == pytest.approx(answer["baseline_us"] - answer["predicted_us"])
    assert "SGD" in fused.evidence and "SGD(" in fused.change
    nsys, _ = advice_of.find_all(profile(real("nsys_power_iteration.sqlite")))
    for finding in (*vgg.values(), *resnet, *nsys):
        is_supported(finding)
    told_json = seer("summary", "vgg13_h100", "--json").succeeded().json["findings"]
    assert [each["title"] for each in told_json] == list(vgg)
    code, out, _ = seer("summary", "vgg13_h100")
    assert code == 0 and out.index("channels_last") > out.index("Layer types")


def test_iterations_far_longer_than_the_others_are_no_part_of_findings(real):
    """Five of thirty of this training wait 3 to 21 times the median for data, from workers that there are already."""
    trace = real("resnet_training_2080ti_no_dims.json.gz")
    with pytest.warns(UserWarning, match="“The step computes in fp32 or TF32”, .* lacks shapes .* record_shapes=True"):
        findings = {finding.title: finding for finding in advice(trace)}
    loading = findings["The step waits for its data"]
    assert 150e3 < loading.step_us < 200e3 and "num_workers=8" not in loading.change
    for finding in findings.values():
        is_supported(finding)
    # So it is with the headline and the steps of a what-if, unless iterations are asked for.
    facts = summary(trace)
    assert "1 to 9 count" in facts["notes"] and facts["iterations"] == 9
    assert "in iteration 9, one of 9 iterations" in loading.evidence  # the one that waits
    (answer,) = what_ifs(trace, "faster-host")
    assert answer.baseline_us == pytest.approx(loading.step_us)
    chosen = trim(trace, iterations_kept=[0, 1, 2])
    assert summary(chosen)["iterations"] == 3
    # A GPU that nobody knows, too, leaves findings out, which are named.
    with pytest.warns(UserWarning, match="“Products of fp32 run without TF32”.* lacks a GPU of the registry"):
        advice(replace(real(VGG), devices=()))


def test_the_rank_that_the_others_wait_for(measurements, make_trace, read, seer):
    """Of a real run, and none where all ranks are alike."""
    with trace_files([measurements / "traces" / "dlrm_8_workers_v100.tar.gz"]) as files:
        compared = rank_summary([file.read() for file in files])
    finding = advice_of.straggler(compared)
    assert finding and finding.where == f"rank {compared.straggler}" and finding.low_us < finding.gain_us
    # Most of the wait is in the first collective, as the rank's trace begins late: that it idles longer is evidence.
    assert finding.gain_us == pytest.approx(1059 + 8308 - 1068 - 7051, rel=0.01) and "1.2" in finding.evidence
    alike = make_trace(steps=2)
    for each in named(alike["traceEvents"], "wgrad", "kernel"):
        each["name"] = "ncclAllReduceRingLLKernel"
    ranks = [read(alike | {"distributedInfo": {"rank": rank, "world_size": 2}}) for rank in (0, 1)]
    assert advice_of.straggler(rank_summary(ranks)) is None
