"""Chains of element-wise operators as one pass over memory."""

from surrogate.features.conv import Conv
from surrogate.features.families import NetworkProblem, Operator
from surrogate.features.families.rowwise import BatchNormInference
from surrogate.network import operators as make
from surrogate.network.network import Layer, Network
from surrogate.network.runtime import fuse_layers

SHAPE = (8, 64, 56, 56)
BYTES = 2 * 8 * 64 * 56 * 56
CONV = Conv(n=8, c=64, h=56, k=64, r=3, pad_h=1, dtype="fp16", math="tensor_op")


def fused(*problems: NetworkProblem) -> list[NetworkProblem]:
    layers = tuple(Layer(f"layer{number}", "op", problem) for number, problem in enumerate(problems))
    return [layer.problem for layer in fuse_layers(Network("net", layers)).layers]


def test_the_layout_that_a_compiler_gives_convolutions_is_said() -> None:
    def has_note(dtype: str) -> bool:
        layer = Layer("conv", "op", Conv(n=8, c=64, h=56, k=64, r=3, pad_h=1, dtype=dtype, math="default"))
        return "channels_last" in " ".join(fuse_layers(Network("net", (layer,))).notes)

    assert has_note("fp16") and not has_note("fp32")


def moved(problem: NetworkProblem) -> int:
    assert isinstance(problem, Operator)
    return int(problem.dram_bytes)


def test_norm_activation_and_residual_become_one_pass() -> None:
    norm = BatchNormInference(n=8, c=64, h=56, w=56, dtype="fp16")
    relu = make.elementwise("relu", SHAPE, "fp16")
    add = make.pointwise("add", [SHAPE, SHAPE], SHAPE, "fp16")
    conv, chain, last = fused(CONV, norm, add, relu, CONV)
    assert isinstance(conv, Conv) and isinstance(last, Conv)
    assert moved(chain) == 3 * BYTES  # the convolution's result, the residual, one result
    assert moved(chain) < sum(map(moved, (norm, add, relu)))


def test_the_cast_of_a_weight_stands_apart_without_ending_the_chain() -> None:
    norm = BatchNormInference(n=8, c=64, h=56, w=56, dtype="fp16")
    relu = make.elementwise("relu", SHAPE, "fp16")
    weight = make.cast(64 * 64 * 9, "fp32", "fp16")
    chain, cast = fused(norm, weight, relu)
    assert (moved(chain), moved(cast)) == (2 * BYTES, 64 * 64 * 9 * 6)


def test_a_cast_within_a_chain_moves_nothing_of_its_own() -> None:
    relu = make.elementwise("relu", SHAPE, "fp32")
    (chain,) = fused(relu, make.cast(BYTES // 2, "fp32", "fp16"))
    assert moved(chain) == 2 * BYTES + BYTES  # fp32 in, fp16 out


def test_what_a_reduction_ends_is_written_where_a_later_layer_reads_it() -> None:
    silu = make.elementwise("silu", SHAPE, "fp16")
    mean = make.streamed("reduce", [SHAPE], [SHAPE[:2]], "fp16", work=56 * 56)
    (alone,) = fused(silu, mean)
    assert moved(alone) == BYTES + 2 * 8 * 64
    chain, _ = fused(silu, mean, make.streamed("mul", [SHAPE, SHAPE[:2]], [SHAPE], "fp16"))
    assert moved(chain) == 2 * BYTES + 2 * 8 * 64


def test_half_precision_convolutions_run_in_nhwc() -> None:
    single = Conv(n=8, c=64, h=56, k=64, r=3)
    half, plain = fused(CONV, single)
    assert isinstance(half, Conv) and isinstance(plain, Conv)
    assert (half.layout, plain.layout) == ("NHWC", "NCHW")


def test_no_chain_crosses_from_the_forward_to_the_backward_pass() -> None:
    relu = Layer("relu", "relu", make.elementwise("relu", SHAPE, "fp16"), parameters=3)
    tanh = Layer("tanh", "tanh", make.elementwise("tanh", SHAPE, "fp16"), parameters=4)
    for forward_layers, parameters in ((1, [3, 4]), (2, [7])):
        network = Network("net", (relu, tanh), training=True, forward_layers=forward_layers)
        assert [layer.parameters for layer in fuse_layers(network).layers] == parameters


def test_what_reads_less_than_the_chain_hands_on_is_no_part_of_it() -> None:
    relu = make.elementwise("relu", SHAPE, "fp16")
    outer = make.streamed("mul", [SHAPE[:2], SHAPE[2:]], [SHAPE], "fp16")
    assert fused(relu, outer) == [relu, outer]
