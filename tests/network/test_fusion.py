"""Fusion of chains of element-wise operators into one pass over memory."""

from surrogate.features.conv import Conv
from surrogate.features.families import NetworkProblem, Operator
from surrogate.features.families.rowwise import BatchNormInference
from surrogate.network import operators as make
from surrogate.network.network import Layer, Network
from surrogate.network.runtime import fuse_layers

SHAPE = (8, 64, 56, 56)
BYTES = 2 * 8 * 64 * 56 * 56
NORM = BatchNormInference(n=8, c=64, h=56, w=56, dtype="fp16")
RELU = make.elementwise("relu", SHAPE, "fp16")
CONV = Conv(n=8, c=64, h=56, k=64, r=3, pad_h=1, dtype="fp16", math="tensor_op")


def fused(*problems: NetworkProblem) -> list[NetworkProblem]:
    layers = tuple(Layer(f"layer{number}", "op", problem) for number, problem in enumerate(problems))
    return [layer.problem for layer in fuse_layers(Network("net", layers)).layers]


def test_a_note_names_the_layout_chosen_by_the_compiler() -> None:
    def notes_name_layout(dtype: str) -> bool:
        layer = Layer("conv", "op", Conv(n=8, c=64, h=56, k=64, r=3, pad_h=1, dtype=dtype, math="default"))
        return "channels_last" in " ".join(fuse_layers(Network("net", (layer,))).notes)

    assert notes_name_layout("fp16")
    assert not notes_name_layout("fp32")


def moved_bytes(problem: NetworkProblem) -> int:
    """Return the bytes that the kernel reads and writes."""
    assert isinstance(problem, Operator)
    return int(problem.dram_bytes)


def test_norm_activation_and_residual_become_one_pass() -> None:
    add = make.pointwise("add", [SHAPE, SHAPE], SHAPE, "fp16")
    conv, chain, last = fused(CONV, NORM, add, RELU, CONV)
    assert isinstance(conv, Conv) and isinstance(last, Conv)
    assert moved_bytes(chain) == 3 * BYTES  # the convolution's result, the residual, one result
    assert moved_bytes(chain) < sum(map(moved_bytes, (NORM, add, RELU)))


def test_a_weight_cast_is_separate_and_does_not_end_the_chain() -> None:
    weight = make.cast(64 * 64 * 9, "fp32", "fp16")
    chain, cast = fused(NORM, weight, RELU)
    assert (moved_bytes(chain), moved_bytes(cast)) == (2 * BYTES, 64 * 64 * 9 * 6)


def test_a_cast_within_a_chain_adds_no_memory_traffic() -> None:
    relu = make.elementwise("relu", SHAPE, "fp32")
    (chain,) = fused(relu, make.cast(BYTES // 2, "fp32", "fp16"))
    assert moved_bytes(chain) == 2 * BYTES + BYTES  # fp32 in, fp16 out


def test_an_input_of_a_reduction_is_written_if_a_later_layer_reads_it() -> None:
    silu = make.elementwise("silu", SHAPE, "fp16")
    mean = make.streamed("reduce", [SHAPE], [SHAPE[:2]], "fp16", work=56 * 56)
    (chain,) = fused(silu, mean)
    assert moved_bytes(chain) == BYTES + 2 * 8 * 64
    chain, _ = fused(silu, mean, make.streamed("mul", [SHAPE, SHAPE[:2]], [SHAPE], "fp16"))
    assert moved_bytes(chain) == 2 * BYTES + 2 * 8 * 64


def test_half_precision_convolutions_run_in_nhwc() -> None:
    fp16, fp32 = fused(CONV, Conv(n=8, c=64, h=56, k=64, r=3))
    assert isinstance(fp16, Conv) and isinstance(fp32, Conv)
    assert (fp16.layout, fp32.layout) == ("NHWC", "NCHW")


def test_no_chain_crosses_from_the_forward_to_the_backward_pass() -> None:
    relu = Layer("relu", "relu", RELU, parameters=3)
    tanh = Layer("tanh", "tanh", make.elementwise("tanh", SHAPE, "fp16"), parameters=4)
    for forward_layers, parameters in ((1, [3, 4]), (2, [7])):
        network = Network("net", (relu, tanh), training=True, forward_layers=forward_layers)
        assert [layer.parameters for layer in fuse_layers(network).layers] == parameters


def test_a_layer_with_inputs_smaller_than_the_chain_result_is_not_fused() -> None:
    outer = make.streamed("mul", [SHAPE[:2], SHAPE[2:]], [SHAPE], "fp16")
    assert fused(RELU, outer) == [RELU, outer]
