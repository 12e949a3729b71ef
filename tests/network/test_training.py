"""Training iterations derived from a forward pass: FLOPs, directions, backward operators and the optimizer."""

from collections import Counter
from math import log, sqrt
from typing import Any

import pytest
from hypothesis import given, strategies as st

from surrogate.features.conv import Conv
from surrogate.features.families import operator
from surrogate.features.families.embedding import EmbeddingBag
from surrogate.features.families.operator import Streamed
from surrogate.features.families.rowwise import CHANNELS_LAST, BatchNormInference
from surrogate.features.problem import INPUT, WEIGHT
from surrogate.network.aten_call import Call, Tensor
from surrogate.network.dispatch import problems
from surrogate.network.network import Layer, Network
from surrogate.network.operators import gemm
from surrogate.network.optimizers import OPTIMIZERS, TrainedWeight, optimizer_step
from surrogate.network.predict import load_predictors
from surrogate.network.read import read_network
from surrogate.network.training import backward, is_update, training_iteration, with_training
from surrogate.prediction.sources.datasheet import HALVES, STEP, shipped_datasheet_models
from tests.known import cases

BOTH = (INPUT, WEIGHT)
IMAGE = (8, 16, 14, 14)
CONV = Conv(n=8, c=16, h=14, k=16, r=3, pad_h=1)
NORM = BatchNormInference(n=8, c=16, h=14, w=14)


@given(st.from_type(Conv))
def test_training_triples_the_flops_of_a_convolution(conv: Conv) -> None:
    """Each of the two gradients has the FLOPs of the forward pass."""
    forward = conv if conv.direction == "fwd" else Conv(**{**conv.to_dict(), "direction": "fwd"})
    gradients = list(backward(Layer("c", "Conv", forward, BOTH)))
    directions = [layer.problem.direction for layer in gradients]  # type: ignore[union-attr]
    assert directions == ["bwd_data", "bwd_filter"]
    assert [layer.name for layer in gradients] == ["c.bwd_data", "c.bwd_filter"]
    assert sum(layer.problem.flops for layer in gradients) == 2 * forward.flops


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 500), st.integers(1, 9))
def test_training_triples_the_flops_of_a_product(m: int, n: int, k: int, batch: int) -> None:
    """The gradient of A is an m × k product over n, that of B a k × n product over m."""
    problem = gemm(m, n, k, batch=batch)
    first, second = (layer.problem for layer in backward(Layer("g", "MatMul", problem, BOTH)))
    assert (first.m, first.n, first.k, first.batch) == (m, k, n, batch)
    assert (second.m, second.n, second.k, second.batch) == (k, n, m, batch)
    assert first.flops == second.flops == 2 * batch * m * n * k


@cases(__file__)
def test_each_kind_has_its_backward_operators(kind: str, sizes: dict[str, Any], kinds: list[str]) -> None:
    """A kind has no backward operator if its gradient passes through unchanged. The image is (8, 16, 14, 14)."""
    image = dict(zip("nchw", IMAGE, strict=True))
    problem = Streamed(**sizes) if kind == Streamed.kind else operator(kind, **sizes or image)
    assert [layer.problem.kind for layer in backward(Layer("x", "Op", problem, (INPUT,)))] == kinds  # type: ignore[union-attr]
    assert list(backward(Layer("x", "Op", problem, ()))) == []


@cases(__file__)
def test_an_optimizer_moves_weights_gradients_and_its_states(optimizer: str, moved: int, states: int) -> None:
    """Weights and states are read and written once, and gradients are read once."""
    trained = with_training(Network("net", (Layer("c", "Conv", CONV, (WEIGHT,), 2304),)), True, optimizer)
    assert trained.layers[-1].operator == optimizer and optimizer in trained.notes[-1]
    assert (trained.layers[-1].problem.dram_bytes, trained.state_bytes) == (4 * moved * 2304, 4 * states * 2304)


@cases(__file__)
def test_an_optimizer_stores_its_states(optimizer: str, inner: int, outer: int, vector: int) -> None:
    """8 bits of two states have a scale of 4 bytes for 256 values, unless the weight is small."""
    weights = TrainedWeight((32, 128)), TrainedWeight((32, 128), is_inner=False), TrainedWeight((64,))
    assert [weight.state_bytes(optimizer, 2) for weight in weights] == [inner, outer, vector]
    first, *products = optimizer_step(weights, optimizer, "bf16")
    step = OPTIMIZERS[optimizer]
    moved = 2 * (step.reads + step.writes) * (2 * 4096 + 64) + 2 * (inner + outer + vector)
    assert first.problem.dram_bytes == moved and first.parameters == 2 * 4096 + 64
    # Five iterations of X·Xᵀ, its square, and the product with X.
    macs = 5 * (2 * 32 * 32 * 128 + 32**3) if optimizer == "muon" else 0
    assert sum(layer.problem.multiply_adds for layer in products) == macs
    assert all(is_update(layer) for layer in (first, *products))


def test_an_iteration_is_forward_backward_and_optimizer() -> None:
    """The backward pass has the reverse order; an iteration of an iteration is the same iteration."""
    layers = (
        Layer("c1", "Conv", CONV, (WEIGHT,), 2304),
        Layer("n1", "BatchNorm", NORM, (INPUT,), 32),
        Layer("c2", "Conv", CONV, BOTH, 2304),
        Layer("e", "Gather", EmbeddingBag(batch=8, rows=1000, dim=64), (WEIGHT,), 64_000),
    )
    iteration = training_iteration(Network("net", layers, 8, ignored={"Reshape": 1}, unsupported={"LSTM": 2}))
    backward = "e.backward c2.bwd_data c2.bwd_filter n1.backward c1.bwd_filter"
    assert [layer.name for layer in iteration.layers] == f"c1 n1 c2 e {backward} optimizer".split()
    assert iteration.layers[1].problem.kind == "batch_norm"  # type: ignore[union-attr]
    assert iteration.layers[-1].problem.dram_bytes == 4 * 7 * (2304 + 32 + 2304)  # type: ignore[union-attr]
    assert (iteration.training, iteration.ignored, iteration.unsupported) == (True, {"Reshape": 1}, {"LSTM": 2})
    assert training_iteration(iteration) is iteration
    assert Counter(layer.operator for layer in iteration.layers)["Conv.bwd_filter"] == 2


@pytest.mark.parametrize("op", ["native_batch_norm", "native_batch_norm_backward"])
def test_batch_norm_of_channels_last_images_has_kernels_of_its_own(op: str) -> None:
    images = {last: Tensor(IMAGE, "fp16", channels_last=last) for last in (False, True)}
    found = {last: problems(Call(op, {"input": each, "training": True}, (each,))) for last, each in images.items()}
    assert [problem.variant for last in images for problem in found[last]] == ["", CHANNELS_LAST]


def test_the_sum_of_a_training_step_has_the_error_of_measured_steps() -> None:
    """Twenty products with errors of their own; one of twenty equal shares leaves a twentieth of each variance."""
    products = [gemm(4096, 2048 + 8 * index, 1024, dtype="fp16") for index in range(20)]
    layers = tuple(Layer(f"mm{index}", "mm", problem) for index, problem in enumerate(products))
    times = {on: load_predictors("rtx-3090").time(Network("mm", layers, training=on)) for on in (True, False)}
    single, step = (log(times[on].upper_us / times[on].total_us) for on in (False, True))
    width = shipped_datasheet_models()[HALVES].by_kind[STEP].half_width
    assert times[True].total_us == times[False].total_us
    assert width < step < single
    assert step == pytest.approx(sqrt(width**2 + (single**2 - width**2) / 20), rel=0.02)


@pytest.mark.parametrize(
    ("gpu", "dtype", "error"), [("v100", "fp32", "(V100)"), ("l40s", "fp32", "unknown"), ("v100", "fp16", "unknown")]
)
def test_only_a_step_like_measured_ones_states_their_error(gpu: str, dtype: str, error: str) -> None:
    time = load_predictors(gpu).time(read_network("resnet50", batch=8, training=True, dtype=dtype))
    assert time.notes[-1].endswith(error)
