"""Times of all-reduces over machines and GPUs; priorities of parameter servers."""

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from surrogate.trace.graph import graph_of
from surrogate.trace.profiling import profile
from surrogate.trace.whatif import Interconnect, evaluate, setting_of, what_if
from tests.trace.whatif.steps import Op, trace_of


def test_nccl_all_reduce_times_equal_hand_computed_values(refused):
    """Four machines of four GPUs reduce 80 MB: 8,000 µs between machines and 800 µs inside a machine.

    The ring takes 2·15/16 of 8,000 µs, 6 steps between machines and 24 inside. The tree takes 2·8,000 µs, 4 steps
    between machines and 6 inside. The hierarchical algorithm takes 2·3/4 of both times and 6 steps each."""
    wide = {"workers": 16, "gpus_per_machine": 4, "bandwidth_gbs": 10.0, "latency_us": 20.0, "link_gbs": 100.0}
    expected = {"ring": 15_000 + 6 * 20 + 24 * 2, "tree": 16_000 + 4 * 20 + 6 * 2}
    expected |= {"hierarchical": 1200 + 6 * 2 + 12_000 + 6 * 20}
    for name, time_us in expected.items():
        found = Interconnect(**wide, link_latency_us=2.0, algorithm=name).all_reduce_us(80e6)
        assert found == pytest.approx(time_us), name
    alone = Interconnect(8, gpus_per_machine=8, link_gbs=100.0, link_latency_us=2.0)
    assert alone.all_reduce_us(80e6) == pytest.approx(2 * 7 / 8 * 800 + 14 * 2)
    # Four workers reduce 40 MB at 10 GB/s and 5 µs a step: 1.5 · 4,000 µs + 6 · 5 µs.
    assert Interconnect(4, 10.0, 5.0).all_reduce_us(40e6) == pytest.approx(6030)
    for algorithm in ("ring", "tree", "hierarchical"):
        assert Interconnect(1, algorithm=algorithm).all_reduce_us(80e6) == 0
    for wrong in ({"workers": 0}, {"workers": 6, "gpus_per_machine": 4}, {"algorithm": "rings"}, {"link_gbs": 0.0}):
        with refused():
            Interconnect(**wrong)


LAYERS = st.lists(st.tuples(st.integers(1, 4000), st.integers(10, 900)), min_size=1, max_size=6)


@given(LAYERS, st.floats(0.2, 50), st.floats(0, 50))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_priorities_never_slow_a_step(read, layers, bandwidth, latency):
    """Each layer has a number of thousand parameters and a time in µs, forward and backward."""
    forward = [Op("aten::conv2d", f"forward {i}", us, i + 1, [[us]]) for i, (_, us) in enumerate(layers)]
    backward: list[Op] = []
    for i, (thousands, us) in reversed(list(enumerate(layers))):
        backward.append(Op("ConvolutionBackward0", f"backward {i}", us, i + 1))
        backward.append(Op("torch::autograd::AccumulateGrad", shapes=[[thousands, 1000]]))
    profiled = profile(read(trace_of([*forward, *backward])))
    graph, setting = graph_of(profiled.trace), setting_of(profiled, network=Interconnect(8, bandwidth, latency))
    parameter_server, p3 = evaluate(graph, [what_if("parameter-server"), what_if("p3")], setting)
    assert p3.predicted_us <= parameter_server.predicted_us * (1 + 1e-9)
