"""What-ifs: known answers on the invented trace, plausible answers on real traces, and invariants."""

import re
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu
from surrogate.trace import whatif
from surrogate.trace.events.parts import trim
from surrogate.trace.graph import graph_of
from surrogate.trace.iteration.predict import iteration_times
from surrogate.trace.iteration.times import predicted_times
from surrogate.trace.profiling import profile
from surrogate.trace.tables import summary
from surrogate.trace.whatif import Interconnect, evaluate, select, setting_of, what_if, what_ifs
from surrogate.trace.whatif.hardware import convolutions_of, has_fast_half
from surrogate.trace.whatif.setting import sentence
from surrogate.trace.whatif.training import NETWORK
from tests.known import cases, known_answers
from tests.trace.events import built, call, device
from tests.trace.whatif.steps import FakeAlgorithms, Op, trace_of


def times(graph, **selection):
    return graph.duration_us[select(graph, **selection)]


def test_amp_changes_only_fp32_kernels(refused, invented_graph, setting):
    """Without a kernel of an fp32 operator, amp is refused."""
    dtypes = ["fp64"] * len(setting.profile.trace.activities)

    def changed() -> list[int]:
        own = replace(setting, profile=replace(setting.profile, dtype=tuple(dtypes)))
        after = what_if("amp")(invented_graph, own).graph
        return np.flatnonzero(after.duration_us != invented_graph.duration_us).tolist()

    with refused("no kernel outside the optimizer is known to be fp32"):
        changed()
    (first,) = np.flatnonzero(select(invented_graph, kind="kernel", name="wgrad", iteration=0))
    dtypes[invented_graph.row[first]] = "fp32"
    assert changed() == [first]
    # A kernel of unknown type gets the most frequent type.
    dtypes[invented_graph.row[np.flatnonzero(select(invented_graph, name="add_kernel", iteration=0))[0]]] = ""
    assert changed() == [first]
    # The optimizer's kernels stay in fp32, also without an Optimizer.step range.
    names = [re.sub("wgrad.*", "multi_tensor_apply_kernel<float>", name) for name in invented_graph.names]
    invented_graph = replace(invented_graph, names=tuple(names))
    with refused("no kernel outside the optimizer"):
        changed()
    assert [has_fast_half(gpu(name)) for name in ("m40", "p100-pcie-16gb", "rx-6900-xt")] == [False, True, True]
    setting = replace(setting, profile=replace(setting.profile, gpu=gpu("gtx-1080-ti")))
    with refused("gtx-1080-ti computes no faster in half precision"):
        changed()


def test_the_programs_own_ranges_are_not_captured(read):
    """A graph replaces no code of the program, and iteration times leave out its 20 ms after the fourth operator."""
    trace = trace_of([Op("mine", "mine_kernel", 2)] * 5, 3)
    for event in trace["traceEvents"]:
        event["cat"] = event["cat"].replace("cpu_op", "user_annotation")
        step, within_us = divmod(event["ts"], 52)
        event["ts"] += 20_000 * (step + (within_us >= 40))
        event["dur"] += 20_000 * event["name"].startswith("ProfilerStep")
    rangeless = {**trace, "traceEvents": [event for event in trace["traceEvents"] if event["name"] != "mine"]}
    times_us = [what_ifs(read(each), "cuda-graphs")[0].predicted_us for each in (trace, rangeless)]
    assert times_us[0] == pytest.approx(times_us[1])
    assert any("replay is" in note and "below" in note for note in iteration_times(read(trace)).notes)


def test_fused_optimizer_leaves_one_kernel_and_one_launch(refused, resnet_graph, resnet_setting):
    """The optimizer is SGD, which has no published errors; an unknown optimizer is refused."""
    (answer,) = evaluate(resnet_graph, [what_if("fused-optimizer")], resnet_setting)
    assert answer.low_us is None and "no interval" in answer.evidence
    names = tuple(name.replace("#SGD.", "#Mine.") for name in resnet_graph.names)
    with refused("is Mine; PyTorch has a fused kernel only for Adam, AdamW"):
        what_if("fused-optimizer")(replace(resnet_graph, names=names), resnet_setting)
    graph = what_if("fused-optimizer")(resnet_graph, resnet_setting).graph
    kernels = select(graph, kind="kernel", layer="^Optimizer.step", iteration=2)
    assert 0 < (graph.duration_us[kernels] > 0).sum() <= 2
    # The kernel moves 20 bytes for each of 25.56 million parameters at 92 % of the V100's 900 GB/s.
    assert graph.duration_us[kernels].max() == pytest.approx(25.56e6 * 20 / 828e3, rel=0.01)
    assert select(graph, kind="call", layer="^Optimizer.step", iteration=2).sum() == 1


def test_batch_norm_halves_its_time_and_removes_relus(resnet_graph, resnet_setting):
    graph = what_if("batch-norm")(resnet_graph, resnet_setting).graph
    before, after = (times(version, kind="kernel", layer="^batch_norm").sum() for version in (resnet_graph, graph))
    assert after == pytest.approx(before / 2)
    # 33 of 49 relus are removed: the last one of each of the 16 blocks follows an addition.
    left = {resnet_graph.layers[i] for i in graph.layer[select(graph, kind="kernel", layer="^relu")]}
    assert len(left) == 16


def test_batch_scales_each_kernel_by_its_own_model(refused, real):
    """An eighth of the batch takes about an eighth of the device time; the optimizer does not depend on the batch."""
    profiled = profile(real("vgg13_b128_training_h100.json.gz"))
    graph = graph_of(profiled.trace, profiled.layers)
    answer = evaluate(graph, [what_if("batch=64")], setting_of(profiled))[0]
    figures = answer.to_dict()
    eighth_us = 346.4e3 / 8
    assert eighth_us < figures["device_us_after"] < 1.25 * eighth_us  # few images fill a GPU less
    assert figures["device_low_us"] < eighth_us < figures["device_us_after"] < figures["device_high_us"]
    after = answer.predicted.graph
    wgrad, optimizer = ({"name": "wgrad"}, {"layer": "^Optimizer"})
    assert 1 < times(after, **wgrad).sum() / (times(graph, **wgrad).sum() / 8) < 1.25
    assert times(after, **optimizer, kind="kernel").sum() == times(graph, **optimizer, kind="kernel").sum()
    assert figures["bound_after"] == "host" and any("profiler's cost" in note for note in figures["notes"])
    with refused("nothing changes"):
        what_if("batch=512")(graph, setting_of(profiled))
    assert "it will not fit" in what_if("batch=2048")(graph, setting_of(profiled)).notes[0]  # 36.6 GiB at 512


def test_iteration_times_agree_with_what_ifs(resnet):
    """Both predict the same device time, and loading proportional to the batch; their models of the host differ."""
    part = trim(resnet, iterations_kept=[2])
    loading_us = iteration_times(part).iterations[0].input_us
    for text, changes in (("batch=64", {"batch": 64}), ("gpu=a100", {"gpu": "a100"})):
        (answer,) = what_ifs(part, [text])
        (step,) = iteration_times(part, **changes)
        assert step.device_us == pytest.approx(answer.to_dict()["device_us_after"], rel=0.01)
        assert step.input_us == pytest.approx(loading_us * answer.samples)


def test_what_ifs_accepts_a_trace_name(refused):
    (answer,) = what_ifs("vgg13_h100", ["amp"])
    assert answer.speedup > 1.5 and summary("vgg13_h100")["batch"] == 512
    number: Any = 3
    for source, remedy in (("nowhere", "or one of"), (number, "is not a trace")):
        with refused(remedy):
            what_ifs(source, ["amp"])


def test_refused_what_if_does_not_stop_the_others(resnet):
    with pytest.warns(UserWarning, match="faster-network is refused: .*no collective"):
        answers = what_ifs(resnet, ["faster-network", "amp"])
    assert [answer.name for answer in answers] == ["faster-network", "amp"]
    assert "no collective" in answers[0].refused and np.isnan(answers[0].speedup) and not answers[1].refused
    for unknown in ("gpu=h1000", "cuda-graph"):
        with pytest.raises(InputError, match=r"did you mean|h1000"):
            what_ifs(resnet, ["amp", unknown])


def test_batch_is_refused_without_shapes(refused, resnet):
    """Kernels without shapes take most of the time, so that their batch is unknown."""
    is_backward = resnet.name_matches(resnet.ranges, lambda name: "backward" in name.lower())
    shapes = np.where(is_backward, -1, resnet.ranges.shapes)
    part = profile(replace(resnet, ranges=replace(resnet.ranges, shapes=shapes)))
    with refused("do not show the batch of 32"):
        what_if("batch=64")(graph_of(part.trace, part.layers), setting_of(part))


def test_misalignment_penalty_is_dropped_on_amd_and_kept_on_h200(resnet_profile, read):
    """cuBLAS is three times slower for rows of 5,185 in bf16 than for aligned rows; AMD's kernels are not."""
    sizes = [[16, 5185, 64], [16, 64, 5185]]
    name = "cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align"
    trace = trace_of([Op("aten::bmm", f"{name}{n}", 1083, shapes=sizes) for n in (1, 8)])
    for event in trace["traceEvents"]:
        if event["name"] == "aten::bmm":
            event["args"]["Input type"] = ["c10::BFloat16"] * 2
    trace["deviceProperties"][0]["name"] = "NVIDIA H100 80GB HBM3"
    profiled = profile(read(trace))
    graph = graph_of(profiled.trace, profiled.layers)

    def after(target):
        changed = what_if("gpu")(graph, setting_of(profiled, target=target)).graph
        return [times(changed, name=f"align{n}").sum() for n in (1, 8)]

    odd, even = after("mi210")
    assert odd < 0.5 * even
    for target in ("mi300x", "h200-sxm"):  # measured there: the prediction is the answer for both
        odd, even = after(target)
        assert odd == pytest.approx(even)
    # Products in bf16 were measured on the H100 and the H200; the T4 has no bf16 units, so its interval is wider.
    predictors = setting_of(profiled).predictors
    transferred = partial(predicted_times, profiled.trace, trace_predictors=predictors(profiled.gpu))
    h200, t4 = (transferred(predictors(gpu(name))).factor_90 for name in ("h200-sxm", "t4"))
    assert 1 < h200 < 2 and h200 < t4


def test_kernel_speedup_is_limited_by_peaks_and_bandwidths(real):
    """The H200 has the die of the H100 and 1.43 times its bandwidth; the B200 has 2.39 times."""
    profiled = profile(real("vgg13_b128_training_h100.json.gz"))
    graph = graph_of(profiled.trace, profiled.layers)
    long_kernels = (select(graph, kind="kernel") & (graph.duration_us > 100)).nonzero()
    for target, maximum, products in (("h200", 4800 / 3350, 1.02), ("b200", 8000 / 3350, 1125 / 494.7)):
        changed = what_if(f"gpu={target}")(graph, setting_of(profiled)).graph
        ratio = graph.duration_us / np.maximum(changed.duration_us, 1e-3)
        assert ratio[long_kernels].max() == pytest.approx(maximum, rel=0.01)
        dense = select(graph, name="(?i)wgrad", layer="VGG_0/Sequential_0/Conv2d_9")
        assert dense.any() and ratio[dense].max() == pytest.approx(products, rel=0.03)
    # On the MI300X, products in fp32 run on its fp32 matrix units at 163.4 TFLOP/s, not in TF32.
    changed = what_if("gpu=mi300x")(graph, setting_of(profiled)).graph
    ratio = graph.duration_us / np.maximum(changed.duration_us, 1e-3)
    assert ratio[select(graph, name="simt_sgemm")].max() == pytest.approx(163.4 / 66.9, rel=0.03)
    # Its convolutions reach at least 70 TFLOP/s in MIOpen's published times.
    answer = evaluate(graph, [what_if("gpu=mi300x")], setting_of(profiled))[0]
    assert answer.predicted_us < 1.5 * answer.baseline_us


@pytest.mark.slow
def test_predictions_without_tf32_reach_half_of_the_peak(real):
    """The share of the TF32 peak that a kernel reaches does not carry over to GPUs without TF32."""
    profiled = profile(real("vgg13_b128_training_h100.json.gz"))
    graph = graph_of(profiled.trace, profiled.layers)
    flops = np.nansum(profiled.flops)
    for name, peak_tflops in (("t4", 8.1), ("v100", 15.7), ("p100-sxm2-16gb", 10.6), ("rtx-2080-ti", 13.4)):
        answer = evaluate(graph, [what_if(f"gpu={name}")], setting_of(profiled))[0]
        peak_us = flops / peak_tflops / 1e6
        assert peak_us / 1.5 < answer.predicted_us < 2 * peak_us  # Winograd's algorithms do fewer operations
        assert answer.low_us < 1.2 * peak_us < 1.2 * answer.high_us  # Winograd's workspace does not fit on a T4
        assert any("36.6 GiB were allocated" in note and "does not fit" in note for note in answer.notes)
    # On an RTX 4090, rates and predictions disagree; the interval contains both.
    answer = evaluate(graph, [what_if("gpu=rtx-4090")], setting_of(profiled))[0]
    assert answer.low_us < 0.98e6 < answer.high_us


def test_amd_gemms_have_no_misalignment_penalty(measurements):
    """In rocBLAS's published fp16 times, misaligned rows take as long per FLOP as the nearest aligned product."""
    table = pd.read_parquet(measurements / "gemm_tensile.parquet")
    table = table.query("dtype == 'fp16' and m > 255 and n > 255 and k > 31")
    table = table.assign(flops=2.0 * table.m * table.n * table.k * table.batch).query("flops > 5e8")
    first, second = (table.transposes.str[place] for place in (0, 1))
    rows = np.array([np.where(first == "N", table.m, table.k), np.where(second == "N", table.k, table.n), table.m])
    table = table.assign(odd=(rows % 2 == 1).any(axis=0), aligned=(rows % 8 == 0).all(axis=0))
    ratios = []
    for _, mode in table.groupby(["gpu", "tensile_type", "transposes"]):
        logs = [np.log(mode.loc[mode[kind], ["m", "n", "k", "batch"]].to_numpy(float)) for kind in ("odd", "aligned")]
        rate = [(mode.flops / mode.time_us)[mode[kind]].to_numpy() for kind in ("odd", "aligned")]
        if min(map(len, logs)) >= 5:
            apart = ((logs[0][:, None] - logs[1][None]) ** 2).sum(axis=2)
            ratios += (rate[1][apart.argmin(axis=1)] / rate[0])[apart.min(axis=1) < 0.3].tolist()
    assert len(ratios) == 99 and np.median(ratios) == pytest.approx(1, abs=0.01)
    assert np.quantile(ratios, [0.1, 0.9]) == pytest.approx([0.945, 1.064], abs=0.002)


def test_gpu_what_if_agrees_with_published_training(resnet_graph, resnet_profile):
    """NVIDIA/DeepLearningExamples publishes 367 images/s on a V100 in fp32 and 938 on an A100 in TF32."""
    setting = setting_of(resnet_profile, target="a100-sxm4-80gb")
    answer = evaluate(resnet_graph, [what_if("gpu")], setting)[0].to_dict()
    published_us = answer["device_us_before"] * 367 / 938
    assert answer["device_us_after"] == pytest.approx(published_us, rel=0.3)
    assert answer["device_low_us"] < published_us < answer["device_high_us"]
    # The unknown host bounds the step; if the device bounds it, the device time is the lower end.
    assert answer["bound_after"] == "host" and answer["low_us"] is None
    assert "other machine's host" in answer["notes"][-1] and answer["interval_of"] == "device"
    slower = evaluate(resnet_graph, [what_if("gpu=t4")], setting)[0]
    assert slower.interval_of == "step" and "the interval is the step's" in slower.notes[-1]
    assert slower.low_us == slower.device_low_us < slower.predicted_us < slower.high_us


def test_interval_of_another_gpu_begins_at_the_links_rate_for_pageable_copies(read):
    """A copy of 24 MB keeps its 10 ms; it takes 0.762 ms at the 31.5 GB/s of an A100's link."""
    name, place = "Memcpy HtoD (Pageable -> Device)", {"category": "gpu_memcpy", "bytes": 24_000_000}
    recorded = [call("cudaMemcpyAsync", 5, 10100, 1), device(name, 30, 1e4, 1, **place)]
    trace = read({"deviceProperties": [{"id": 0, "name": "Tesla V100-SXM2-16GB"}], "traceEvents": recorded})
    (answer,) = what_ifs(trace, ["gpu=a100-sxm4-80gb"])
    assert answer.to_dict()["device_us_after"] == 1e4
    assert answer.device_low_us == pytest.approx(24e6 / 31.5e3)


def test_amp_agrees_with_published_training(resnet_graph, resnet_setting):
    """sandeepkumar-skb/pytorch_experiments: on a V100, an iteration takes 342.37 ms in fp32 and 152.20 with amp."""
    answer = evaluate(resnet_graph, [what_if("amp")], resnet_setting)[0].to_dict()
    gain = answer["device_us_before"] / answer["device_us_after"]
    assert gain == pytest.approx(342.37 / 152.20, rel=0.05)
    # This step waits for the host with either kernels. The lower width is the replay's error; the upper width
    # includes a launched cast for each changed kernel.
    width = [answer[end] / answer["predicted_us"] - 1 for end in ("low_us", "high_us")]
    assert width[0] == pytest.approx(-0.001) and 0.02 < width[1] < 0.1
    assert "15.3" in answer["evidence"] and "casts" in answer["assumes"]


def test_interval_widths_depend_on_the_changed_time(real):
    """Published errors refer to whole steps: amp changes all of this step, the optimizer's kernels 0.9 % of it."""
    profiled = profile(real("vgg13_b128_training_h100.json.gz"))
    rules = [what_if("amp"), what_if("fused-optimizer")]
    found = evaluate(graph_of(profiled.trace, profiled.layers), rules, setting_of(profiled))
    answers = [answer.to_dict() for answer in found]
    widths = [answer["high_us"] / answer["predicted_us"] - 1 for answer in answers]
    assert widths == [pytest.approx(1 / 0.847 - 1, rel=0.05), pytest.approx(0.009 * 0.125, rel=0.5)]
    assert answers[1]["high_us"] < answers[1]["baseline_us"]


@cases(__file__)
def test_samples_per_second_follow_the_batch(resnet_graph, resnet_setting, text, batch):
    """The trace has 32 samples per step; the speedup compares the samples of one GPU."""
    answer = evaluate(resnet_graph, [what_if(text)], resnet_setting)[0].to_dict()
    assert answer["samples_per_s_before"] == pytest.approx(32e6 / answer["baseline_us"])
    assert answer["samples_per_s_after"] == pytest.approx(batch * 1e6 / answer["predicted_us"])
    gpus = 4 if text.startswith("data") else 1
    assert answer["speedup"] == pytest.approx(answer["samples_per_s_after"] / gpus / answer["samples_per_s_before"])
    assert answer["gpus"] == gpus and answer["speedup_all_gpus"] == pytest.approx(gpus * answer["speedup"])
    assert answer["scaling_efficiency"] == (answer["speedup"] if gpus > 1 else None)
    assert answer["baseline_us"] == pytest.approx(174_829, rel=0.01)  # mean of the measured iterations


def test_bound_of_a_step_changes_with_the_what_if(resnet_graph, resnet_profile):
    """The host bounds the step; kernels ten times as slow and a network of 0.1 GB/s change the bound."""
    setting = setting_of(resnet_profile, network=Interconnect(8, 0.1))
    answers = evaluate(resnet_graph, [what_if("faster-kernels=0.1"), what_if("data-parallel")], setting)
    bounds = [(answer.to_dict()["bound_before"], answer.to_dict()["bound_after"]) for answer in answers]
    assert bounds == [("host", "device"), ("host", "communication")]


def test_parameter_server_and_data_parallel_exclude_each_other(refused, resnet_graph, resnet_setting):
    both = [what_if("parameter-server"), what_if("data-parallel")]
    with refused("exclude each other"):
        evaluate(resnet_graph, both, resnet_setting, together=True)


def test_data_parallel_overlaps_and_delays_the_optimizer(resnet_graph, resnet_profile):
    def answer_of(bandwidth):
        setting = setting_of(resnet_profile, network=Interconnect(8, bandwidth, 10.0))
        return evaluate(resnet_graph, [what_if("data-parallel")], setting)[0]

    found = {bandwidth: answer_of(bandwidth) for bandwidth in (1.0, 10.0, 1000.0)}
    slow_us, usual_us, fast_us = (answer.predicted_us for answer in found.values())
    assert slow_us > usual_us >= fast_us >= found[1.0].baseline_us
    graph = found[1.0].predicted.graph
    network = select(graph, resource=NETWORK)
    # Each of 6 iterations sends 102 MB in 4 buckets (of 25 MB or more): 2·7/8 of the bytes at 1 GB/s, in 14 steps.
    assert network.sum() == 24
    size_us = 25_557_032 * 4 / 1e3 * 14 / 8
    assert graph.duration_us[network].sum() == pytest.approx(6 * size_us + 24 * 14 * 10)


def test_best_convolution_takes_the_fastest_algorithm(refused, invented_graph, invented_profile):
    setting = setting_of(invented_profile)
    times_us = {"WINOGRAD": 100.0, "IMPLICIT_PRECOMP_GEMM": 200.0}
    FakeAlgorithms(times_us).put_into(setting)
    answer = evaluate(invented_graph, [what_if("best-convolution")], setting)[0]
    assert times(answer.predicted.graph, name="scudnn", iteration=0) == pytest.approx([50])
    low_us, high_us = answer.low_us or np.nan, answer.high_us or np.nan
    assert low_us <= answer.predicted_us <= high_us <= 1.002 * answer.baseline_us
    assert "3 of 6" in answer.notes[0] and "3 do not change" in answer.notes[1]
    FakeAlgorithms(times_us, "datasheet").put_into(setting)  # the GPU was not measured
    with refused("--bundle"):
        evaluate(invented_graph, [what_if("best-convolution")], setting)


def test_convolutions_of_resnet50_are_found(resnet):
    runs, _ = convolutions_of(resnet)
    forward = [run.conv for run in runs if run.conv.direction == "fwd"]
    assert len(forward) == 53 * 6
    assert {run.algorithm for run in runs if run.conv.direction == "bwd_filter"} >= {"ALGO_0", "ALGO_1"}
    assert str(forward[0]).startswith("n32c3h224") and forward[0].k == 64
    assert (forward[0].r, forward[0].stride_h, forward[0].pad_h) == (7, 2, 3)


@cases(__file__)
def test_a_what_if_that_the_trace_cannot_answer_is_refused(refused, invented_graph, setting, name, reason):
    with refused(reason):
        evaluate(invented_graph, [what_if(name)], setting)


def test_what_ifs_without_effect_are_refused(refused, make_trace, read, invented_graph, setting):
    trace = make_trace()
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") not in ("kernel", "gpu_memcpy")]
    profiled = profile(read(trace))
    graph = graph_of(profiled.trace, profiled.layers)
    for name in ("gpu=t4", "data-parallel"):
        with refused("no work of a device"):
            evaluate(graph, [what_if(name)], setting_of(profiled))
    # Kernels without a launch do not wait for the host; parameters without shapes give no optimizer time.
    network: Any = {"workers": 8}
    wanting = {"correlation": ("faster-host", "follow no launch"), "Input Dims": ("fused-optimizer", "no par")}
    for key, (name, why) in wanting.items():
        trace = make_trace()
        for event in trace["traceEvents"]:
            if key == "Input Dims" or event.get("cat") in ("kernel", "gpu_memcpy"):
                event.get("args", {}).pop(key, None)
        with refused(why):
            what_ifs(read(trace), name)
    with refused("Interconnect(workers=8)"):
        what_ifs(profiled, "data-parallel", network=network)
    for text, why in (("gpu=v100-sxm2-16gb", "nothing changes"), ("faster-kernels=1", "changes nothing")):
        with refused(why):
            evaluate(invented_graph, [what_if(text)], setting)


def test_answers_list_their_assumptions(resnet_graph, resnet_setting):
    """Assumptions are default numbers, the network, and the GPU of a what-if."""
    names = ("faster-host", "batch", "data-parallel", "parameter-server", "gpu=a100", "gpu", "fused-optimizer")
    answers = evaluate(resnet_graph, list(map(what_if, names)), resnet_setting)
    sentences = {name: sentence(name) for name in ("loading", "host")}
    assumptions = {name: text.format(**sentences) for name, text in known_answers(__file__)["assumptions"].items()}
    assert {answer.name: answer.assumes for answer in answers} == assumptions
    assert answers[1].samples == 2 and answers[1].to_dict()["assumes"] == answers[1].assumes


def test_user_function_can_be_a_what_if(refused, invented_graph, setting, tmp_path, monkeypatch):
    """A function is found in the current folder without PYTHONPATH; its errors become one line."""
    (tmp_path / "own_what_ifs.py").write_text(known_answers(__file__)["own_what_ifs"])
    (tmp_path / "own_broken_module.py").write_text("def (:\n")
    monkeypatch.chdir(tmp_path)
    answer = evaluate(invented_graph, [whatif.user_function("own_what_ifs:no_copies")], setting)[0]
    assert not select(answer.predicted.graph, kind="copy").any() and answer.speedup >= 1
    for name in ("nothing", "broken"):
        with refused():
            evaluate(invented_graph, [whatif.user_function(f"own_what_ifs:{name}")], setting)
    for text in ("own_what_ifs", "own_what_ifs:missing", "no_such_module_here:x", "own_broken_module:x"):
        with refused():
            whatif.user_function(text)


def test_earlier_work_changes_as_the_work_of_the_same_name(read):
    """A host that waits for the device's last step gets the same answer from one iteration as from all of them."""
    recorded, host, free = [], 0.0, 0.0
    shapes = {"Input Dims": [[4096, 4096]] * 2, "Input type": ["float", "float"]}
    for step in range(5):
        begin, first = host, 10 * step + 1
        ready = max(free, host + 10) + 10
        recorded += [call("cudaLaunchKernel", host + 1, 4, first), device("small", ready - 10, 10, first)]
        recorded += [call("cudaStreamSynchronize", host + 6, ready - host - 6, first + 1)]
        recorded += built([["cpu_op", "aten::mm", ready + 1, 10, shapes]])
        recorded += [call("cudaLaunchKernel", ready + 2, 4, first + 2)]
        recorded += [device("ampere_sgemm_128x128_nn", ready + 10, 8000, first + 2)]
        host, free = ready + 20, ready + 8010
        recorded += built([["user_annotation", f"ProfilerStep#{step}", begin, host - begin]])
    trace = read({"deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}], "traceEvents": recorded})
    times_us = [what_ifs(trace, "amp", iteration=number)[0].predicted_us for number in (None, 2, 3)]
    assert times_us == pytest.approx([times_us[0]] * 3, rel=0.01) and times_us[0] < 8000 / 3
