"""All-reduces over machines and GPUs, staged and compressed; activations offloaded and encoded: a step by hand."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surrogate.trace.graph import graph_of, simulate
from surrogate.trace.profiling import profile
from surrogate.trace.whatif import Network, evaluate, select, setting_of, what_if
from surrogate.trace.whatif.setting import Op
from tests.trace.events import call, device, event
from tests.trace.whatif.steps import trace_of

MILLION = 1_000_000


def _step() -> dict:
    """A V100 works without a gap from 100 to 4150 µs: convolutions a and b forward, b and a backward, 1000 µs each, and
    the optimizer, 50; the host launches all before 100. Each has 1 M parameters, and a's input 23.625 MB, b's 7.875:
    1500 and 500 µs over a PCIe of 15.75 GB/s."""
    events = [event("user_annotation", "ProfilerStep#1", 0, 4200)]
    sizes = {"a": [[1, 1, 1, 5_906_250], [1000, 1000]], "b": [[1, 1, 1, 1_968_750], [1000, 1000]]}
    work = [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("", 2)]
    for number, (layer, phase) in enumerate(work):
        start, sequence = 10 + 15 * number, "ab".find(layer)
        names = ("aten::conv2d", "ConvolutionBackward0", "Optimizer.step#SGD.step")
        arguments = {"External id": number + 1}
        if layer:
            arguments |= {"Sequence number": sequence, "Fwd thread id": phase}
            arguments |= {"Input Dims": sizes[layer], "Input type": ["float", "float"]} if not phase else {}
        kind = "user_annotation" if phase == 2 else "cpu_op"
        events.append(event(kind, names[phase], start, 10, **arguments))
        events.append(call("cudaLaunchKernel", start + 1, 5, number + 1))
        length = 50 if phase == 2 else 1000
        events.append(device(f"kernel {layer}{phase}", 100 + 1000 * number, length, number + 1))
        if phase == 1:
            accumulate = {"External id": 90 + number, "Input Dims": [[1000, 1000]], "Input type": ["float"]}
            events.append(event("cpu_op", "torch::autograd::AccumulateGrad", start + 11, 2, **accumulate))
    events.append(call("cudaDeviceSynchronize", 90, 4065, 99))
    return {"deviceProperties": [{"id": 0, "name": "Tesla V100-SXM2-16GB"}], "traceEvents": events}


@pytest.fixture
def step(read):
    profiled = profile(read(_step()))
    return profiled, graph_of(profiled.trace, profiled.layers)


def starts(step, text, network=None):
    """Start of every device task and every new one after the what-if, by name, in µs."""
    profiled, graph = step
    setting = setting_of(profiled, network=network)
    timeline = simulate(what_if(text)(graph, setting).graph if text else graph)
    kinds = ("kernel", "copy", "collective")
    return {
        timeline.graph.name_of(i): float(timeline.start_us[i])
        for i in np.flatnonzero(select(timeline.graph, kind=kinds))
    }


def test_all_reduces_of_nccl_by_hand(refused):
    """4 machines of 4 GPUs, 80 MB, 10 GB/s and 20 µs between machines, 100 GB/s and 2 µs inside.

    Ring: 2·15/16 of 8000 µs, 6 steps between machines and 24 inside. Tree: 2 · 8000 µs, 2·2 steps up and down a binary
    tree of 4 machines, 2·3 along a machine's chain. Hierarchical: 2·3/4 of 800 µs and 6 steps inside, 2·3/4 of 8000 µs
    and 6 steps between: all GPUs of a machine share its network."""
    wide = {"workers": 16, "gpus_per_machine": 4, "bandwidth_gbs": 10.0, "latency_us": 20.0, "link_gbs": 100.0}
    times = {name: Network(**wide, link_latency_us=2.0, algorithm=name).all_reduce_us(80e6)
             for name in ("ring", "tree", "hierarchical")}  # fmt: skip
    assert times == pytest.approx({
        "ring": 15_000 + 6 * 20 + 24 * 2, "tree": 16_000 + 4 * 20 + 6 * 2,
        "hierarchical": 1200 + 6 * 2 + 12_000 + 6 * 20,
    })  # fmt: skip
    alone = Network(8, gpus_per_machine=8, link_gbs=100.0, link_latency_us=2.0)
    assert alone.all_reduce_us(80e6) == pytest.approx(2 * 7 / 8 * 800 + 14 * 2)
    for algorithm in ("ring", "tree", "hierarchical"):
        assert Network(1, algorithm=algorithm).all_reduce_us(80e6) == 0
    for wrong in ({"workers": 6, "gpus_per_machine": 4}, {"algorithm": "rings"}, {"link_gbs": 0.0}):
        with refused():
            Network(**wrong)


@given(
    st.lists(st.tuples(st.integers(1, 4000), st.integers(10, 900)), min_size=1, max_size=6), st.floats(0.2, 50),
    st.floats(0, 50),
)  # fmt: skip
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_priorities_never_slow_a_step(read, layers, bandwidth, latency):
    """Layers of so many thousand parameters and µs forward and backward, in two steps."""
    forward = [Op("aten::conv2d", f"forward {i}", us, i + 1, [[us]]) for i, (_, us) in enumerate(layers)]
    backward = [
        op
        for i, (thousands, us) in reversed(list(enumerate(layers)))
        for op in (
            Op("ConvolutionBackward0", f"backward {i}", us, i + 1),
            Op("torch::autograd::AccumulateGrad", shapes=[[thousands, 1000]]),
        )
    ]
    profiled = profile(read(trace_of([*forward, *backward])))
    graph, setting = graph_of(profiled.trace), setting_of(profiled, network=Network(8, bandwidth, latency))
    plain, urgent = evaluate(graph, [what_if("parameter-server"), what_if("p3")], setting)
    assert urgent.predicted_us <= plain.predicted_us * (1 + 1e-9)


NETWORK = Network(4, 1.0, 0.0, bucket_bytes=4 * MILLION, gpus_per_machine=2, link_gbs=4.0, link_latency_us=0.0)
"""Two machines of two GPUs; a bucket of 4 MB per layer: ring 6000 µs, inside 500 a stage, between machines 2000."""


def test_blueconnect_overlaps_the_stages_of_two_buckets(step):
    """First come, first served. b: 3100 inside, 3600 between machines. a: 4100 inside, 5600 between, when b has left
    the network; then b's gathering there, 7600, and inside, 9600, while a's runs there; a's inside, 11600 to 12100."""
    found = starts(step, "blueconnect", NETWORK)
    assert found["reduce-scatter of bucket 0"] == pytest.approx(3600)  # the later of the two of that name
    assert found["all-gather of bucket 0"] == pytest.approx(9600)
    assert found["all-gather of bucket 1"] == pytest.approx(11_600) and found["kernel 2"] == pytest.approx(12_100)


def test_vdnn_by_hand(step):
    """a goes to the host from its launch's end at 16 until 1516, and b waits for that; b goes until 2016. Back comes b
    when it has run, and runs backwards from 3016; a comes behind it until 4516 and runs backwards then."""
    found = starts(step, "vdnn")
    assert found == pytest.approx({
        "kernel a0": 100, "offload of conv2d.0": 16, "kernel b0": 1516, "offload of conv2d.1": 1516,
        "prefetch of conv2d.1": 2516, "kernel b1": 3016, "prefetch of conv2d.0": 3016, "kernel a1": 4516,
        "kernel 2": 5516,
    })  # fmt: skip
