"""Training on several GPUs: gradients summed during the backward pass, and fully sharded models."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from surrogate.features.families.transfer import AllGather, ReduceScatter
from surrogate.network import Predictors, load_predictors
from surrogate.network.parallel import (
    BUCKET_BYTES,
    NETWORK_SHARE,
    OverlapTimeline,
    Segment,
    gradient_buckets,
    trained_parameters,
)
from surrogate.network.read import read_network
from tests.known import known_answers

MODEL = "llama-3.1-8b"
TIMES = st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 10**7)), max_size=30)


def test_a_bucket_is_ready_with_its_last_gradient() -> None:
    gradients = [(1.0, 6), (2.0, 5), (3.0, 2), (9.0, 1)]
    assert list(gradient_buckets(iter(gradients), 10)) == [(2.0, 11), (9.0, 3)]


@given(TIMES, st.integers(1, 10**8))
def test_buckets_hold_every_gradient_once(gradients: list[tuple[float, int]], maximum: int) -> None:
    filled = list(gradient_buckets(iter(gradients), maximum))
    assert sum(size for _, size in filled) == sum(size for _, size in gradients)
    assert all(size >= maximum for _, size in filled[:-1])


def test_an_iteration_waits_for_exchange_not_hidden_by_the_backward_pass() -> None:
    predictors = load_predictors("h100-sxm")
    alone, few, many = (
        predictors.time(read_network("vgg16", batch=batch, training=True, data_parallel=gpus))
        for batch, gpus in ((1, 1), (1, 8), (64, 8))
    )
    assert alone.exchange is None and few.exchange and many.exchange
    assert few.total_us == pytest.approx(alone.total_us + few.exchange.time_us)
    assert 0 < few.exchange.time_us < few.exchange.messages_us == pytest.approx(many.exchange.messages_us)
    # The last bucket is ready at the end of the backward pass and is never hidden; a longer pass hides the others.
    assert many.exchange.time_us < few.exchange.time_us
    ends = [(time.upper_us - time.lower_us) for time in (alone, few)]
    assert ends[1] - ends[0] == pytest.approx(few.exchange.upper_us - few.exchange.lower_us)
    assert "8 × h100-sxm, batch 1 per GPU" in few.headline() and "samples/s of all 8 GPUs" in few.headline()
    assert few.samples_per_s == pytest.approx(8 / few.total_us * 1e6)
    messages = few.parameters and few.parameters * 4 / BUCKET_BYTES
    assert messages and few.exchange.messages_us / messages < 1000


def test_the_gradient_of_a_tied_weight_is_complete_after_its_last_use() -> None:
    """The gradient is complete at the end of the backward pass, so that nothing hides its transfer."""
    torch = pytest.importorskip("torch")
    from surrogate.network import time_module

    table, head = torch.nn.Embedding(110_000, 64), torch.nn.Linear(64, 110_000, bias=False)
    module = torch.nn.Sequential(table, torch.nn.Linear(64, 64), head)
    words = torch.zeros(8, 512, dtype=torch.int64)
    apart = time_module(module, words, "h100-sxm", training=True, data_parallel=8)
    head.weight = table.weight
    tied = time_module(module, words, "h100-sxm", training=True, data_parallel=8)
    assert apart.exchange and tied.exchange
    assert apart.exchange.time_us < apart.exchange.messages_us
    assert tied.exchange.time_us == pytest.approx(tied.exchange.messages_us)
    assert apart.exchange.messages_us > 1.5 * tied.exchange.messages_us
    assert any("450 GB/s" in note for note in tied.notes)


def test_a_note_does_not_call_a_roofline_measured(predictors: Callable[..., Predictors]) -> None:
    """The fake predictors time every all-reduce by the roofline."""
    notes = predictors("t4").time(read_network("vgg16", batch=1, training=True, data_parallel=8)).notes
    (note,) = [note for note in notes if note.startswith("gradients cross PCIe")]
    assert note.endswith("their times come from the datasheet")
    measured = load_predictors("h100-sxm").time(read_network(MODEL, **TRAINED, fsdp=8)).notes
    (note,) = [note for note in measured if note.startswith("weights and gradients cross links")]
    assert note.endswith("their times come from measured all-gathers and reduce-scatters")


def test_the_breakdown_names_the_longest_part() -> None:
    time = load_predictors("t4").time(read_network("vgg16", batch=1, training=True, data_parallel=8, runtime="eager"))
    assert time.exchange and time.exchange.messages_us > time.kernels_us
    assert time.breakdown().startswith("the gradients' all-reduce bounds it") and time.host_time
    slow = replace(time, host_time=replace(time.host_time, launch_us=1e6, floor_us=7.0))
    assert slow.total_us == 1e6 + 7 and "the messages add no time, since launches take longer" in slow.breakdown()


MPT_13B = known_answers(__file__)["mpt_13b"]
GATHER, REDUCE = (kind(elements=8, ranks=8, dtype="bf16") for kind in (AllGather, ReduceScatter))
TRAINED = {"training": True, "sequence": 2048, "batch": 2, "amp": "bf16"}


def test_a_unit_is_gathered_while_the_previous_one_computes() -> None:
    """Gathers take 2, computations 3: only the first gather and the last reduction are waited for."""
    timeline = OverlapTimeline()
    timeline.run([Segment(3.0, GATHER), Segment(3.0, GATHER, REDUCE)], {GATHER: 2.0, REDUCE: 4.0})
    assert (timeline.compute_us, timeline.link_us, timeline.sent_us) == (2 + 3 + 3, 2 + 3 + 3 + 4, 2 + 2 + 4)


def test_a_third_unit_is_gathered_after_the_first_is_released() -> None:
    timeline = OverlapTimeline()
    timeline.run([Segment(5.0, GATHER), Segment(1.0, GATHER), Segment(1.0, GATHER)], {GATHER: 2.0})
    # Gathers end at 2, 4 and, since the first unit is released at 7, at 9.
    assert (timeline.compute_us, timeline.link_us) == (10.0, 9.0)


@given(st.lists(st.tuples(st.floats(0, 1e3), st.booleans(), st.booleans()), max_size=20), st.floats(0, 1e3))
def test_messages_delay_by_at_most_their_own_time(parts: list[tuple[float, bool, bool]], message_us: float) -> None:
    segments = [Segment(us, GATHER if first else None, REDUCE if last else None) for us, first, last in parts]
    timeline = OverlapTimeline()
    timeline.run(segments, {GATHER: message_us, REDUCE: message_us})
    end_us, computed_us = max(timeline.compute_us, timeline.link_us), sum(us for us, _, _ in parts)
    assert computed_us <= end_us + 1e-6 and end_us <= computed_us + timeline.sent_us + 1e-6


def test_units_are_numbered_modules_and_share_the_optimizer() -> None:
    network = read_network(MODEL, **TRAINED, fsdp=16, node_gbps=1600.0)
    sizes = trained_parameters(network)
    assert len(sizes) == 33 and sizes["layers.0"] == sizes["layers.31"]
    assert sizes.total() == network.parameters
    alone = read_network(MODEL, **TRAINED)
    assert network.layers[-1].problem.dram_bytes == pytest.approx(alone.layers[-1].problem.dram_bytes / 16, rel=1e-6)


def test_a_sharded_gpu_holds_its_share_and_the_gathered_units() -> None:
    predictors = load_predictors("h100-sxm")
    ways: Any = ({"data_parallel": 8}, {"fsdp": 8})
    copies, shards = (predictors.time(read_network(MODEL, **TRAINED, **way)) for way in ways)
    assert not copies.fits and shards.fits
    for name in ("weights", "state"):
        assert shards.memory[name] == pytest.approx(copies.memory[name] / 8, rel=1e-6)
    # The gradients in fp32 are complete when most activations are released: a copy has its peak there, a shard earlier.
    assert shards.memory["gradients"] == pytest.approx(4 * 8_030_261_248 / 8, rel=1e-6)
    single = [predictors.time(read_network(MODEL, **TRAINED | {"batch": 1}, fsdp=gpus)).memory for gpus in (8, 4)]
    assert single[0]["activations"] == single[1]["activations"] == shards.memory["activations"] // 2
    sizes = trained_parameters(read_network(MODEL, **TRAINED, fsdp=8))
    gathered = 2 * (2 * sizes[""] + 3 * sizes["layers.0"])
    assert shards.memory["communication"] == gathered + 688 * 2**20


def test_shards_are_exchanged_for_every_microbatch_and_gradients_once() -> None:
    predictors = load_predictors("a100-sxm4-80gb")

    def messages_us(**options: int) -> float:
        exchange = predictors.time(read_network(MODEL, **TRAINED, **options)).exchange
        assert exchange
        return exchange.messages_us

    assert messages_us(fsdp=8, accumulate=3) == pytest.approx(3 * messages_us(fsdp=8))
    assert messages_us(data_parallel=8, accumulate=3) == pytest.approx(messages_us(data_parallel=8))


@pytest.mark.parametrize(("options", "itemsize"), [({"amp": None}, 2), ({}, 4)])
def test_only_trained_weights_have_buckets_and_messages(options: dict[str, Any], itemsize: int) -> None:
    """Adapters of rank 16 train 41,943,040 weights in the type of the weights; frozen ones are 2 bytes each."""
    predictors = load_predictors("a100-sxm4-80gb")
    alone, many = (
        predictors.time(read_network(MODEL, **{**TRAINED, **options}, lora=16, data_parallel=gpus, node_gbps=gbps))
        for gpus, gbps in ((1, None), (16, 100.0))
    )
    gradient_bytes = itemsize * 41_943_040
    assert alone.memory["communication"] == 0
    assert many.memory["communication"] == 688 * 2**20 + gradient_bytes
    assert many.exchange
    assert many.exchange.messages_us == pytest.approx(gradient_bytes / (12.5e3 * NETWORK_SHARE), rel=0.01)


def test_the_slower_of_links_and_network_sets_the_pace() -> None:
    predictors = load_predictors("h100-sxm")
    options = {"training": True, "batch": 8}
    slow, fast, local = (
        predictors.time(read_network("vgg16", **options, data_parallel=gpus, node_gbps=gbps)).exchange
        for gpus, gbps in ((16, 100.0), (16, 1e6), (8, None))
    )
    assert slow and fast and local
    # Half of the bytes of the ring leave a node: 2 · ½ · bytes at 12.5 GB/s · the share, plus the handshakes.
    size, buckets = 4 * 138_357_544, 6
    assert slow.messages_us == pytest.approx(size / (12.5e3 * NETWORK_SHARE), rel=buckets * 4e-4)
    assert local.messages_us < fast.messages_us < 1.1 * local.messages_us


def test_mpt_13b_on_eight_gpus_reaches_its_measured_rate(tmp_path: Path) -> None:
    """Measured: 38,336 tokens/s (mosaicml/llm-foundry). The median error on sizes never seen is below 12 %."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MPT_13B))
    time = load_predictors("h100-sxm").time(read_network(path, **TRAINED, fsdp=8))
    assert time.tokens_per_s == pytest.approx(38_336, rel=0.12)
    tokens = 8 * 2 * 2048
    assert tokens / time.upper_us < 38_336 / 1e6 < tokens / time.lower_us


def test_a_bandwidth_that_is_no_number_is_refused(refused) -> None:
    with refused("give at least 1 Gbit/s"):
        read_network(MODEL, **TRAINED, fsdp=16, node_gbps="fast")
