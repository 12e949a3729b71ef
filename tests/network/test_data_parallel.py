"""Gradients summed over several GPUs during the backward pass."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.network import Predictors, load_predictors
from surrogate.network.parallel import BUCKET_BYTES, gradient_buckets
from surrogate.network.read import read_network

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


def test_the_breakdown_names_the_longest_part() -> None:
    time = load_predictors("t4").time(read_network("vgg16", batch=1, training=True, data_parallel=8, runtime="eager"))
    assert time.exchange and time.exchange.messages_us > time.kernels_us
    assert time.breakdown().startswith("the gradients' all-reduce bounds it")


@pytest.mark.parametrize("settings", [{"data_parallel": 9, "training": True}, {"data_parallel": 2}])
def test_data_parallel_without_training_or_with_too_many_gpus_is_refused(refused, settings) -> None:
    with refused("--data-parallel"):
        read_network("resnet18", **settings)
