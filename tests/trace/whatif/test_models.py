"""The optimisations on the invented trace by hand, on ResNet-50 for plausibility, and as laws."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.features.gpu import gpu
from surrogate.trace.events.parts import trim
from surrogate.trace.graph import graph_of
from surrogate.trace.iteration.predict import iteration_times
from surrogate.trace.iteration.times import predicted_times
from surrogate.trace.profiling import profile
from surrogate.trace.tables import summary
from surrogate.trace.whatif import MODELS, Interconnect, evaluate, select, setting_of, user_function, what_if, what_ifs
from surrogate.trace.whatif.hardware import HOST_ASSUMPTION, LOADING_ASSUMPTION, convolutions_of
from surrogate.trace.whatif.setting import Op
from surrogate.trace.whatif.training import NETWORK
from tests.trace.whatif.steps import trace_of


def times(graph, **given_):
    return graph.duration_us[select(graph, **given_)]


def test_amp_leaves_other_types_alone(refused, made, setting):
    """Only the kernels of an fp32 operator get faster; where there are none, nothing would."""
    dtypes = ["fp64"] * len(setting.profile.trace.activities)

    def changed() -> list[int]:
        own = replace(setting, profile=replace(setting.profile, dtype=tuple(dtypes)))
        return np.flatnonzero(what_if("amp")(made, own).graph.duration_us != made.duration_us).tolist()

    with refused("no kernel is known to be fp32"):
        changed()
    (first,) = np.flatnonzero(select(made, kind="kernel", name="wgrad", iteration=0))
    dtypes[made.row[first]] = "fp32"
    assert changed() == [first]
    # What tells no type follows the most that do.
    dtypes[made.row[np.flatnonzero(select(made, name="add_kernel", iteration=0))[0]]] = ""
    assert changed() == [first]


def test_a_fused_optimizer_leaves_one_kernel_and_one_launch(refused, resnet_graph, resnet_setting):
    """The trace's optimizer is SGD, of which no errors were published; of an unknown one nothing is answered."""
    (answer,) = evaluate(resnet_graph, [what_if("fused-optimizer")], resnet_setting)
    assert answer.low_us is None and "no interval" in answer.evidence
    names = tuple(name.replace("#SGD.", "#Mine.") for name in resnet_graph.names)
    with refused("is Mine; PyTorch has a fused kernel only for Adam, AdamW"):
        what_if("fused-optimizer")(replace(resnet_graph, names=names), resnet_setting)
    graph = what_if("fused-optimizer")(resnet_graph, resnet_setting).graph
    kernels = select(graph, kind="kernel", layer="^Optimizer.step", iteration=2)
    assert 0 < (graph.duration_us[kernels] > 0).sum() <= 2
    # 25.56 million parameters, 20 bytes each, at the V100's 900 GB/s.
    assert graph.duration_us[kernels].max() == pytest.approx(25.56e6 * 20 / 900e3, rel=0.05)
    assert select(graph, kind="call", layer="^Optimizer.step", iteration=2).sum() == 1


def test_batch_norm_and_relu(resnet_graph, resnet_setting):
    graph = what_if("batch-norm")(resnet_graph, resnet_setting).graph
    before, after = (times(one, kind="kernel", layer="^batch_norm").sum() for one in (resnet_graph, graph))
    assert after == pytest.approx(before / 2)
    # 33 of 49: the last of each of the 16 blocks follows an addition.
    left = {resnet_graph.layers[i] for i in graph.layer[select(graph, kind="kernel", layer="^relu")]}
    assert len(left) == 16


def test_batch_scales_every_kernel_by_its_own_law(refused, real):
    """VGG13 at an eighth of its batch: an eighth of the device's time but for what does not shrink, weights' gradients
    too; the optimizer, which is of the weights, stays."""
    one = profile(real("vgg13_b128_training_h100.json.gz"))
    graph = graph_of(one.trace, one.layers)
    answer = evaluate(graph, [what_if("batch=64")], setting_of(one))[0]
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
        what_if("batch=512")(graph, setting_of(one))


def test_iterations_take_as_long_on_the_device_as_what_ifs_say(resnet):
    """Another batch, another GPU; the host's loading follows the batch in both, their models of the host differ."""
    part = trim(resnet, iterations_kept=[2])
    loading_us = iteration_times(part).iterations[0].input_us
    for text, options in (("batch=64", {"batch": 64}), ("gpu=a100", {"gpu": "a100"})):
        (answer,) = what_ifs(part, [text])
        (step,) = iteration_times(part, **options)
        assert step.device_us == pytest.approx(answer.to_dict()["device_us_after"], rel=0.01)
        assert step.input_us == pytest.approx(loading_us * answer.samples)


def test_traces_by_name(refused):
    (answer,) = what_ifs("vgg13_h100", ["amp"])
    assert answer.speedup > 1.5 and summary("vgg13_h100")["batch"] == 512
    sources: Any = (("nowhere", "or one of"), (3, "is not a trace"))
    for source, remedy in sources:
        with refused(remedy):
            what_ifs(source, ["amp"])


def test_one_that_is_refused_leaves_the_others(refused, resnet):
    with pytest.warns(UserWarning, match="faster-network is left out: .*no collective|gpu=h1000 is left out"):
        answers = what_ifs(resnet, ["faster-network", "amp", "gpu=h1000"])
    assert [answer.name for answer in answers] == ["amp"]
    for text, why in (("faster-network", "no collective"), ("data-parallel=1", "2 or more")):
        with refused(why):
            what_ifs(resnet, text)


def test_batch_is_refused_where_kernels_do_not_tell_theirs(refused, resnet, made, setting):
    """Most of the time without shapes; part of a sample."""
    unlike = resnet.name_matches(resnet.ranges, lambda name: "backward" in name.lower())
    shapes = np.where(unlike, -1, resnet.ranges.shapes)
    part = profile(replace(resnet, ranges=replace(resnet.ranges, shapes=shapes)))
    with refused("do not show the batch of 32"):
        what_if("batch=64")(graph_of(part.trace, part.layers), setting_of(part))
    with refused("no whole number"):
        what_if("batch=8.5")(made, setting)


def test_an_odd_row_stays_behind_on_gpus_that_do_not_mind(resnet_profile, read):
    """A product of rows of 5,185 in bf16 takes an H100 three times as long as an aligned one; an MI300X does not mind,
    an H200 does."""
    sizes = [[16, 5185, 64], [16, 64, 5185]]
    ops = [
        Op("aten::bmm", f"cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align{n}", 1083, shapes=sizes)
        for n in (1, 8)
    ]
    trace = trace_of(ops)
    for each in trace["traceEvents"]:
        if each["name"] == "aten::bmm":
            each["args"]["Input type"] = ["c10::BFloat16"] * 2
    trace["deviceProperties"][0]["name"] = "NVIDIA H100 80GB HBM3"
    one = profile(read(trace))
    graph = graph_of(one.trace, one.layers)

    def after(target):
        changed = what_if("gpu")(graph, setting_of(one, target=target)).graph
        return [times(changed, name=f"align{n}").sum() for n in (1, 8)]

    odd, even = after("mi300x")
    assert odd < 0.5 * even
    odd, even = after("h200-sxm")
    assert odd == pytest.approx(even)
    # Products of this type were measured on both, so the width is their own; a T4, which lacks the units, has a wider.
    setting = setting_of(one)
    h200, t4 = (
        predicted_times(one.trace, setting.predictors(gpu(name)), base=setting.predictors(one.gpu)).factor_90
        for name in ("h200-sxm", "t4")
    )
    assert 1 < h200 < 2 and h200 < t4


def test_no_kernel_gains_more_than_peaks_and_bandwidths_allow(real):
    """H200 has H100's die: what computes in TF32 stays, what memory bounds gains 1.43 times; B200 2.39 at most."""
    one = profile(real("vgg13_b128_training_h100.json.gz"))
    graph = graph_of(one.trace, one.layers)
    known = (select(graph, kind="kernel") & (graph.duration_us > 100)).nonzero()
    for target, maximum, products in (("h200", 4800 / 3350, 1.02), ("b200", 8000 / 3350, 1125 / 494.7)):
        changed = what_if(f"gpu={target}")(graph, setting_of(one)).graph
        ratio = graph.duration_us / np.maximum(changed.duration_us, 1e-3)
        assert ratio[known].max() == pytest.approx(maximum, rel=0.01)
        dense = select(graph, name="(?i)wgrad", layer="Conv2d.9")
        assert dense.any() and ratio[dense].max() == pytest.approx(products, rel=0.03)
    # MI300X's products in fp32 run on its matrix units for that type, 163.4 TFLOP/s, not as TF32.
    changed = what_if("gpu=mi300x")(graph, setting_of(one)).graph
    ratio = graph.duration_us / np.maximum(changed.duration_us, 1e-3)
    assert ratio[select(graph, name="simt_sgemm")].max() == pytest.approx(163.4 / 66.9, rel=0.03)
    # Its convolutions do, too, by MIOpen's published times: at least 70 TFLOP/s.
    answer = evaluate(graph, [what_if("gpu=mi300x")], setting_of(one))[0]
    assert answer.predicted_us < 1.5 * answer.baseline_us


@pytest.mark.slow
def test_boards_without_tf32_reach_half_of_their_peak_or_more(real):
    """On plain units the share that a kernel reaches of TF32's peak says nothing."""
    one = profile(real("vgg13_b128_training_h100.json.gz"))
    graph = graph_of(one.trace, one.layers)
    flops = np.nansum(one.flops)
    for name, peak_tflops in (("t4", 8.1), ("v100", 15.7), ("p100-sxm2-16gb", 10.6), ("rtx-2080-ti", 13.4)):
        answer = evaluate(graph, [what_if(f"gpu={name}")], setting_of(one))[0]
        peak_us = flops / peak_tflops / 1e6
        assert peak_us / 1.5 < answer.predicted_us < 2 * peak_us  # Winograd's algorithms do fewer operations
        assert answer.low_us < peak_us < answer.high_us
        assert "36.6 GiB were allocated" in answer.notes[-1] and "does not fit" in answer.notes[-1]
    # By rates an RTX 4090 stays far below its peak, by predictions it does not: the interval holds both.
    answer = evaluate(graph, [what_if("gpu=rtx-4090")], setting_of(one))[0]
    assert answer.low_us < 0.98e6 < answer.high_us


def test_amds_products_do_not_mind_odd_rows(measurements):
    """rocBLAS's published times on MI60 and Navi 21, in 16 bits and of 0.5 GFLOP or more: time per FLOP beside that of
    the nearest product of aligned rows, in the same mode."""
    table = pd.read_parquet(measurements / "gemm_tensile.parquet").query(
        "dtype == 'fp16' and m > 255 and n > 255 and k > 31"
    )
    table["flops"] = 2.0 * table.m * table.n * table.k * table.batch
    table = table[table.flops > 5e8]
    first, second = (table.transposes.str[place] for place in (0, 1))
    rows = np.array([np.where(first == "N", table.m, table.k), np.where(second == "N", table.k, table.n), table.m])
    table["odd"], table["aligned"] = (rows % 2 == 1).any(axis=0), (rows % 8 == 0).all(axis=0)
    ratios = []
    for _, mode in table.groupby(["gpu", "tensile_type", "transposes"]):
        logs = [np.log(mode.loc[mode[kind], ["m", "n", "k", "batch"]].to_numpy(float)) for kind in ("odd", "aligned")]
        rate = [(mode.flops / mode.time_us)[mode[kind]].to_numpy() for kind in ("odd", "aligned")]
        if min(map(len, logs)) >= 5:
            apart = ((logs[0][:, None] - logs[1][None]) ** 2).sum(axis=2)
            ratios += (rate[1][apart.argmin(axis=1)] / rate[0])[apart.min(axis=1) < 0.3].tolist()
    assert len(ratios) == 99 and np.median(ratios) == pytest.approx(1, abs=0.01)
    assert np.quantile(ratios, [0.1, 0.9]) == pytest.approx([0.945, 1.064], abs=0.002)


def test_faster_kernels_and_host(refused, made, setting):
    kernels = what_if("faster-kernels=4")(made, setting).graph
    assert times(kernels, name="wgrad", iteration=0) == pytest.approx([50])
    host = what_if("faster-host")(made, setting).graph
    assert times(host, kind="call").sum() == pytest.approx(times(made, kind="call").sum() / 2)
    with refused("no collective"):
        what_if("faster-network")(made, setting)


def test_another_gpu_beside_published_training(refused, resnet_graph, resnet_profile):
    """ResNet-50 v1.5 by NVIDIA/DeepLearningExamples: 367 images a second on a V100 in FP32, 938 on an A100 in TF32."""
    setting = setting_of(resnet_profile, target="a100-sxm4-80gb")
    answer = evaluate(resnet_graph, [what_if("gpu")], setting)[0].to_dict()
    published_us = answer["device_us_before"] * 367 / 938
    assert answer["device_us_after"] == pytest.approx(published_us, rel=0.3)
    assert answer["device_low_us"] < published_us < answer["device_high_us"]
    # The host, of which nothing is known there, bounds the step; where the device does, its time is the lower end.
    assert (
        answer["bound_after"] == "host" and answer["low_us"] is None and "other machine's host" in answer["notes"][-1]
    )
    slower = evaluate(resnet_graph, [what_if("gpu=t4")], setting)[0]
    assert slower.low_us == slower.device_low_us < slower.predicted_us < slower.high_us
    iteration = iteration_times(resnet_profile.trace, gpu="a100-sxm4-80gb")
    carried = sum(part.device_us for part in iteration) / len(iteration)
    assert carried == pytest.approx(answer["device_us_after"], rel=0.01)  # one implementation for both
    with refused("--gpu"):
        what_if("gpu")(resnet_graph, setting_of(resnet_profile))


def test_amp_beside_published_training(resnet_graph, resnet_setting):
    """ResNet-50, batch 128, NCHW on a V100: 342.37 ms an iteration in FP32, 152.20 in mixed precision
    (sandeepkumar-skb/pytorch_experiments): the device's gain, as such steps wait for the device."""
    answer = evaluate(resnet_graph, [what_if("amp")], resnet_setting)[0].to_dict()
    gain = answer["device_us_before"] / answer["device_us_after"]
    assert gain == pytest.approx(342.37 / 152.20, rel=0.05)
    # This step waits for the host, with slower and with faster kernels: below, the replay's error is left; above, a
    # cast is launched for each kernel that changes.
    width = [answer[end] / answer["predicted_us"] - 1 for end in ("low_us", "high_us")]
    assert width[0] == pytest.approx(-0.001) and 0.02 < width[1] < 0.1
    assert "15.3" in answer["evidence"] and "casts" in answer["assumes"]


def test_intervals_are_of_the_time_that_a_change_touches(real):
    """Published errors are of whole steps: amp changes all of one on an H100, the optimizer's kernels 0.9 %."""
    one = profile(real("vgg13_b128_training_h100.json.gz"))
    rules = [what_if("amp"), what_if("fused-optimizer")]
    answers = [answer.to_dict() for answer in evaluate(graph_of(one.trace, one.layers), rules, setting_of(one))]
    widths = [answer["high_us"] / answer["predicted_us"] - 1 for answer in answers]
    assert widths == [pytest.approx(1 / 0.847 - 1, rel=0.05), pytest.approx(0.009 * 0.125, rel=0.5)]
    assert answers[1]["high_us"] < answers[1]["baseline_us"]


@pytest.mark.parametrize(("text", "batch"), [("batch=64", 64), ("batch=16", 16), ("data-parallel=4", 128)])
def test_samples_per_second(resnet_graph, resnet_setting, text, batch):
    """32 samples a step become so many; the gain is that of one GPU's samples."""
    answer = evaluate(resnet_graph, [what_if(text)], resnet_setting)[0].to_dict()
    assert answer["samples_per_s_before"] == pytest.approx(32e6 / answer["baseline_us"])
    assert answer["samples_per_s_after"] == pytest.approx(batch * 1e6 / answer["predicted_us"])
    gpus = 4 if text.startswith("data") else 1
    gain = answer["samples_per_s_after"] / gpus / answer["samples_per_s_before"]
    assert answer["speedup"] == pytest.approx(gain)
    assert answer["baseline_us"] == pytest.approx(174_829, rel=0.01)  # mean of the measured iterations


def test_what_bounds_a_step(resnet_graph, resnet_profile):
    """The host, which loads data; kernels ten times as slow; a network of 0.1 GB/s."""
    setting = setting_of(resnet_profile, network=Interconnect(8, 0.1))
    answers = evaluate(resnet_graph, [what_if("faster-kernels=0.1"), what_if("data-parallel")], setting)
    bounds = [(answer.to_dict()["bound_before"], answer.to_dict()["bound_after"]) for answer in answers]
    assert bounds == [("host", "device"), ("host", "communication")]


def test_gradients_are_summed_in_one_way(refused, resnet_graph, resnet_setting):
    both = [what_if("parameter-server"), what_if("data-parallel")]
    with refused("exclude each other"):
        evaluate(resnet_graph, both, resnet_setting, together=True)


def test_ring_by_hand(refused):
    """4 workers, 40 MB, 10 GB/s, 5 µs: 1.5 · 4,000 µs + 6 · 5 µs."""
    assert Interconnect(4, 10.0, 5.0).all_reduce_us(40e6) == pytest.approx(6030)
    assert Interconnect(1, 10.0, 5.0).all_reduce_us(40e6) == 0
    with refused("out of range"):
        Interconnect(0)


@given(st.integers(1, 64), st.floats(0.1, 1e3), st.floats(1.01, 100), st.floats(0, 1e10))
def test_more_bandwidth_never_slows_a_ring(workers, bandwidth, factor, size):
    assert Interconnect(workers, bandwidth * factor).all_reduce_us(size) <= Interconnect(
        workers, bandwidth
    ).all_reduce_us(size)


def test_data_parallel_overlaps_and_delays_the_optimizer(resnet_graph, resnet_profile):
    def slow(bandwidth):
        setting = setting_of(resnet_profile, network=Interconnect(8, bandwidth, 10.0))
        return evaluate(resnet_graph, [what_if("data-parallel")], setting)[0]

    found = {bandwidth: slow(bandwidth) for bandwidth in (1.0, 10.0, 1000.0)}
    slow_us, usual_us, fast_us = (answer.predicted_us for answer in found.values())
    assert slow_us > usual_us >= fast_us >= found[1.0].baseline_us
    graph = found[1.0].predicted.graph
    network = select(graph, resource=NETWORK)
    # 102 MB in 4 buckets (of 25 MB or more) in each of 6 iterations; 2·7/8 of them at 1 GB/s and 14 steps each.
    assert network.sum() == 24
    size_us = 25_557_032 * 4 / 1e3 * 14 / 8
    assert graph.duration_us[network].sum() == pytest.approx(6 * size_us + 24 * 14 * 10)


@pytest.mark.slow
def test_priorities_help_where_the_network_is_slow(resnet_graph, resnet_profile):
    setting = setting_of(resnet_profile, network=Interconnect(8, 1.5, 1.0))
    plain, urgent = evaluate(resnet_graph, [what_if("parameter-server"), what_if("p3")], setting)
    assert urgent.predicted_us <= plain.predicted_us
    assert plain.predicted_us > plain.baseline_us
    single = [np.flatnonzero(select(one.predicted.graph, resource=NETWORK)).size for one in (plain, urgent)]
    assert single[1] > single[0] == 6 * 161


class Surrogate:
    """Predicts IMPLICIT_PRECOMP_GEMM twice as slow as WINOGRAD, with an interval of 10 % around each."""

    source = "model"

    @classmethod
    def put_into(cls, setting, source="model"):
        convs = cls()
        convs.source = source
        setting.predictors = lambda device: SimpleNamespace(algorithms=convs, gpu=device)

    def select(self, conv):
        times_us = {"WINOGRAD": 100.0, "IMPLICIT_PRECOMP_GEMM": 200.0}
        candidates = [
            SimpleNamespace(algorithm=name, time_us=time, lower_us=time / 1.1, upper_us=time * 1.1)
            for name, time in times_us.items()
        ]
        return SimpleNamespace(candidates=candidates, source=self.source, gpu="v100")


def test_best_convolution(refused, made, made_profile):
    setting = setting_of(made_profile)
    Surrogate.put_into(setting)
    answer = evaluate(made, [what_if("best-convolution")], setting)[0]
    assert times(answer.predicted.graph, name="scudnn", iteration=0) == pytest.approx([50])
    assert answer.low_us is not None and answer.high_us is not None
    assert answer.low_us <= answer.predicted_us <= answer.high_us <= 1.002 * answer.baseline_us
    assert "3 of 6" in answer.notes[0] and "3 do not change" in answer.notes[1]
    Surrogate.put_into(setting, "datasheet")  # nobody measured the GPU: no promise
    with refused("--bundle"):
        evaluate(made, [what_if("best-convolution")], setting)


def test_convolutions_of_resnet(resnet):
    runs, _ = convolutions_of(resnet)
    forward = [run.conv for run in runs if run.conv.direction == "fwd"]
    assert len(forward) == 53 * 6
    assert {run.algorithm for run in runs if run.conv.direction == "bwd_filter"} >= {"ALGO_0", "ALGO_1"}
    assert str(forward[0]).startswith("n32c3h224") and forward[0].k == 64
    assert (forward[0].r, forward[0].stride_h, forward[0].pad_h) == (7, 2, 3)


REFUSALS = {
    "batch": "operators that do not show the batch of 8",
    "batch-norm": "no layer of this trace is a batch norm",
    "faster-network": "the trace has no collective",
    **dict.fromkeys(("data-parallel", "fused-optimizer", "p3", "parameter-server"), "the trace has no parameters"),
}
"""What-ifs that the invented trace cannot answer → the reason."""


def test_every_what_if_that_is_refused_exists():
    assert set(REFUSALS) < set(MODELS)


@pytest.mark.parametrize("name", list(MODELS))
def test_every_model_answers_or_says_why(refused, made, setting, name):
    if name == "best-convolution":
        Surrogate.put_into(setting)
    if name in REFUSALS:
        with refused(REFUSALS[name]):
            evaluate(made, [what_if(name)], setting)
    else:
        answer = evaluate(made, [what_if(name)], setting)[0]
        assert answer.predicted_us > 0 and answer.to_dict()["name"] == name


def test_names_and_numbers():
    assert what_if("faster-kernels=4").value == 4 and what_if("faster-kernels=4").label == "faster-kernels=4"
    assert what_if("gpu=a100").label == "gpu=a100-sxm4-80gb"


def test_what_a_trace_without_device_tasks_or_without_change_answers(refused, make_trace, read, made, setting):
    """Nothing to make faster, no mean of nothing, and no answer where nothing changes."""
    trace = make_trace()
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") not in ("kernel", "gpu_memcpy")]
    profiled = profile(read(trace))
    graph = graph_of(profiled.trace, profiled.layers)
    for name in ("gpu=t4", "data-parallel"):
        with refused("no work of a device"):
            evaluate(graph, [what_if(name)], setting_of(profiled))
    # Kernels that follow no launch wait for no host; parameters without shapes tell no optimizer's time.
    network: Any = {"workers": 8}
    for key, name, why in (
        ("correlation", "faster-host", "follow no launch"),
        ("Input Dims", "fused-optimizer", "no par"),
    ):
        trace = make_trace()
        for each in trace["traceEvents"]:
            if key == "Input Dims" or each.get("cat") in ("kernel", "gpu_memcpy"):
                each.get("args", {}).pop(key, None)
        with refused(why):
            what_ifs(read(trace), name)
    with refused("Interconnect(workers=8)"):
        what_ifs(profiled, "data-parallel", network=network)
    for same, why in (("gpu=v100-sxm2-16gb", "nothing changes"), ("faster-kernels=1", "changes nothing")):
        with refused(why):
            evaluate(made, [what_if(same)], setting)


def test_what_answers_assume(resnet_graph, resnet_setting):
    """Numbers that nobody gave, the network's, and a GPU in the name of a what-if."""
    names = ("faster-host", "batch", "data-parallel", "parameter-server", "gpu=a100", "gpu", "fused-optimizer")
    answers = evaluate(resnet_graph, list(map(what_if, names)), resnet_setting)
    network = "GPUs a machine: 1, 10 GB/s and 10 µs a step between machines, 25 MB a bucket, ring"
    assert {answer.name: answer.assumes for answer in answers} == {
        "faster-host": "how many times as fast: 2",
        "batch": f"samples a step: 64, {LOADING_ASSUMPTION}",
        "data-parallel": f"workers: 8, {network}",
        "parameter-server": "GB/s: 10, 10 µs a message",
        "gpu=a100-sxm4-80gb": f"a100-sxm4-80gb; {HOST_ASSUMPTION}",
        "gpu": f"h100-sxm; {HOST_ASSUMPTION}",
        "fused-optimizer": "SGD, 20 bytes a parameter",
    }
    assert answers[1].samples == 2 and answers[1].to_dict()["assumes"] == answers[1].assumes


def test_a_function_of_the_users(refused, made, setting, tmp_path, monkeypatch):
    """Found in the current folder without PYTHONPATH; what it raises, or returns in a graph's place, is one line."""
    (tmp_path / "own_what_ifs.py").write_text(
        "from surrogate.trace.whatif import remove, select\n"
        "def no_copies(graph):\n    return remove(graph, select(graph, kind='copy'))\n"
        "def nothing(graph):\n    return None\n"
        "def broken(graph):\n    raise KeyError('two\\nlines')\n"
    )
    (tmp_path / "own_broken_module.py").write_text("def (:\n")
    monkeypatch.chdir(tmp_path)
    answer = evaluate(made, [user_function("own_what_ifs:no_copies")], setting)[0]
    assert not select(answer.predicted.graph, kind="copy").any() and answer.speedup >= 1
    for name in ("nothing", "broken"):
        with refused():
            evaluate(made, [user_function(f"own_what_ifs:{name}")], setting)
    for text in ("own_what_ifs", "own_what_ifs:missing", "no_such_module_here:x", "own_broken_module:x"):
        with refused():
            user_function(text)
