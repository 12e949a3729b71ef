"""ONNX graphs: known sizes, batches, symbolic sizes, unknown operators and refusals."""

import numpy as np
import pytest

from surrogate.collect.plan_source import networks
from surrogate.features.conv import Conv
from surrogate.network.network import ReadOptions
from surrogate.network.onnx_file import read_onnx
from surrogate.network.onnx_shapes import ONNX
from surrogate.network.read import NORM_NOTE, read_network
from tests.known import cases, known_answers
from tests.onnx_backend import counts

onnx = pytest.importorskip("onnx")
node = onnx.helper.make_node
GRAPHS = known_answers(__file__)["graphs"]


def graph(nodes: list, inputs: dict, weights: dict) -> tuple:
    """Return the arguments of `onnx_file` for a graph of the table.

    A node is its operator, inputs, outputs and attributes; a weight is zeros of a shape, or one integer."""
    made = [node(op, sources.split(), targets.split(), **more) for op, sources, targets, more in nodes]
    stored = {name: np.array(v) if isinstance(v, int) else np.zeros(v, "f4") for name, v in weights.items()}
    return made, inputs, stored


@cases(__file__)
def test_convolutions_match_the_published_tables(name: str, table: str, parameters: int) -> None:
    """The multiset of convolutions is that of the papers; each weight is counted once, and constants are not."""
    found = read_network(name, batch=4)
    assert sorted(map(str, found.convs)) == sorted(str(conv.with_batch(4)) for conv in networks()[table])
    assert (found.batch, found.unsupported) == (4, {})
    assert sum(layer.parameters for layer in found.layers) == found.parameters == parameters


def test_a_small_graph_has_the_problems_computed_by_hand(onnx_file) -> None:
    found = read_onnx(onnx_file(*graph(**GRAPHS["small"])), ReadOptions(batch=2))
    assert [layer.name for layer in found.layers] == ["first", "first.bias", "Relu_1", "MaxPool_2", "Gemm_4"]
    assert found.layers[0].problem == Conv(n=2, c=3, h=8, k=16, r=3, pad_h=1, stride_h=2)
    assert [str(layer.problem) for layer in found.layers[1:3]] == ["bias:n2c16h4w4", "relu:n2c16h4w4"]
    assert found.layers[3].problem.outputs == 2 * 16 * 2 * 2
    assert found.layers[4].problem.sizes == {"batch": 1, "m": 2, "n": 10, "k": 64}
    assert found.layers[0].gradients == ("weight",)  # no layer before it is trained
    assert found.layers[4].gradients == ("input", "weight")
    assert dict(found.ignored) == {"Flatten": 1}


def test_training_a_graph_without_norms_adds_a_note(onnx_file) -> None:
    convolution = node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1])
    norm = node("BatchNormalization", ["c", *"abcd"], ["y"])
    weights = {name: np.zeros(4, "f4") for name in "abcd"} | {"w": np.zeros((4, 3, 3, 3), "f4")}
    for nodes, training, expected in (([convolution], 1, 1), ([convolution], 0, 0), ([convolution, norm], 1, 0)):
        path = onnx_file(nodes, {"x": [2, 3, 8, 8]}, weights)
        assert read_network(path, training=bool(training)).notes.count(NORM_NOTE) == expected


def test_unusual_convolution_attributes_are_read(onnx_file) -> None:
    """The sizes of the convolution agree with the output that ONNX infers."""
    first, second = read_onnx(onnx_file(*graph(**GRAPHS["unusual_attributes"]))).convs
    assert (first.out_h, first.out_w) == (5, 5)
    assert (second.h, second.w, second.groups, second.dilation_h) == (6, 7, 4, 2)
    line = onnx_file([node("Conv", ["x", "w"], ["y"])], {"x": [1, 4, 100]}, {"w": np.zeros((6, 4, 5), "f4")})
    assert str(read_onnx(line).convs[0]) == str(Conv(n=1, c=4, h=1, w=100, k=6, r=1, s=5))


@cases(__file__)
def test_graphs_have_the_problems_computed_by_hand(onnx_file, nodes, inputs, weights, problems, ignored, unsupported):
    found = read_onnx(onnx_file(*graph(nodes, inputs, weights)))
    assert [f"{layer.problem} {getattr(layer.problem, 'direction', '')}".strip() for layer in found.layers] == problems
    assert (dict(found.ignored), dict(found.unsupported)) == (ignored, unsupported)


def test_weights_may_be_stored_by_nodes_or_in_8_bits(onnx_file) -> None:
    path = onnx_file(
        [
            node("Constant", [], ["w"], value=onnx.numpy_helper.from_array(np.ones((64, 32), "f4"))),
            node("ConstantOfShape", ["s"], ["v"]),
            node("DequantizeLinear", ["q", "scale", "zero"], ["u"]),
            *(node("MatMul", [x, y], [z]) for x, y, z in ("xwa", "avb", "buy")),
        ],
        {"x": [8, 64]},
        {"s": np.array([32, 16]), "q": np.ones((16, 4), "i1"), "scale": np.float32(1), "zero": np.int8(0)},
    )
    found = read_onnx(path, ReadOptions(training=True))
    assert found.parameters == 64 * 32 + 32 * 16 + 16 * 4 and ONNX["notes"]["quantised"] in found.notes
    assert [layer.gradients for layer in found.layers] == [("weight",), ("input", "weight"), ("input", "weight")]


@pytest.mark.parametrize("shapes", [([2, 64, 1024], [2, 96, 256]), ([2, 8, 64, 128], [2, 2, 96, 128])])
def test_attention_of_opset_23_is_timed(onnx_file, shapes: tuple[list[int], list[int]]) -> None:
    """The heads stand side by side, or have a dimension of their own."""
    heads = {"q_num_heads": 8, "kv_num_heads": 2} if len(shapes[0]) == 3 else {}
    nodes = [node("Attention", ["q", "k", "v"], ["y"], is_causal=1, **heads)]
    path = onnx_file(nodes, dict(zip("qkv", (*shapes, shapes[1]), strict=True)), elem_type=10)
    (layer,) = read_onnx(path).layers
    assert str(layer.problem).startswith("attention:b2h8q64k96g2d128") and layer.problem.phase == "context"


def _weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return int8 weights by name, and a scale and a zero point."""
    return {"s": np.float32(1), "z": np.int8(0)} | {name: np.ones(shape, "i1") for name, shape in shapes.items()}


@cases(__file__)
def test_operators_have_the_problems_computed_by_hand(
    refused, onnx_file, op: str, inputs: str, attributes: dict, shape: list, stored: dict, expected: list[str]
) -> None:
    weights = _weights(**stored)
    if not op.startswith(("QLinear", "MatMulN", "Neg", "Drop")):
        weights = {name: value.astype("f4") for name, value in weights.items()}
    if op == "Dropout":
        weights["t"] = np.array(True)
    domain = "" if onnx.defs.has(op) else "com.microsoft"
    integers = {"elem_type": 3} if op.startswith("QLinear") else {}
    path = onnx_file([node(op, [*inputs], ["y"], domain=domain, **attributes)], {"x": shape}, weights, **integers)
    problems = [layer.problem for layer in read_onnx(path).layers]
    assert [f"{problem} {problem.dtype}" for problem in problems] == expected
    if ONNX["notes"]["integers"] in read_onnx(path).notes:
        with refused(f"{op} has no gradient"):
            read_onnx(path, ReadOptions(training=True))


def body(nodes: list, inputs: str, outputs: str):
    """Return the graph of a Loop, Scan or If; c and d are conditions, i the number of the run."""
    kinds = {"c": (9, []), "d": (9, []), "i": (7, [])}
    ends = ([onnx.helper.make_tensor_value_info(n, *kinds.get(n, (1, [4]))) for n in e] for e in (inputs, outputs))
    return onnx.helper.make_graph(nodes, "b", *ends)


@pytest.mark.parametrize("is_inner", [False, True])
def test_a_weight_in_a_loop_is_trained_once(onnx_file, is_inner: bool) -> None:
    """A Constant with a list of numbers is a weight, too."""
    weight = [node("Constant", [], ["w"], value_floats=[1.0] * 4)]
    inner = [node("Mul", ["h", "w"], ["r"]), node("Identity", ["c"], ["d"])]
    loop = body(weight * is_inner + inner, "ich", "dr")
    nodes = weight * (not is_inner) + [node("Loop", ["trips", "", "x"], ["y"], body=loop)]
    found = read_network(onnx_file(nodes, {"x": [4]}, {"trips": np.array(5)}), training=True)
    assert [layer.operator for layer in found.layers] == [*["Mul"] * 5, *["Mul.backward"] * 9, "adam"]
    assert found.parameters == found.layers[-1].parameters == 4


def test_bodies_run_as_often_as_known(onnx_file) -> None:
    """A Loop with a stored trip count, a Scan over an axis, and an If with a stored condition."""
    loop = body([node("Relu", ["h"], ["r"]), node("Identity", ["c"], ["d"])], "ich", "dr")
    scan = body([node("Add", ["g", "v"], ["a"])], "gv", "a")
    then = body([node("Exp", ["q"], ["e"])], "", "e")
    nodes = [
        node("Loop", ["trips", "", "x"], ["p"], body=loop),
        node("Scan", ["p", "s"], ["q"], body=scan, num_scan_inputs=1),
        node("If", ["yes"], ["y"], then_branch=then, else_branch=then),
    ]
    inputs = {"x": [4], "s": [3, 4]}
    found = read_onnx(onnx_file(nodes, inputs, {"trips": np.array(5), "yes": np.array(True)}))
    assert [layer.operator for layer in found.layers] == ["Relu"] * 5 + ["Add"] * 3 + ["Exp"]
    many = read_onnx(onnx_file(nodes, inputs, {"trips": np.array(10**12), "yes": np.array(True)}))
    assert "Loop" in many.unsupported and np.isnan(many.missing["Loop"].flops)


@pytest.mark.parametrize(
    ("trips", "starts", "end", "runs"), [(5, 1, "c", 5), (5, 0, "c", 0), (0, 1, "c", 0), (5, 1, "e", 1)]
)
def test_stored_conditions_stop_loops(onnx_file, trips: int, starts: int, end: str, runs: int) -> None:
    """The body returns its own condition, or a stored one that is false."""
    inner = [node("Exp", ["h"], ["r"]), node("Identity", [end], ["d"])]
    nodes = [node("Relu", ["x"], ["h0"]), node("Loop", ["t", "s", "h0"], ["y"], body=body(inner, "ich", "dr"))]
    stored = {"t": np.array(trips), "s": np.array(bool(starts)), "e": np.array(False)}
    found = read_onnx(onnx_file(nodes, {"x": [4]}, stored))
    assert [layer.operator for layer in found.layers] == ["Relu", *["Exp"] * runs] and not found.unsupported


def test_weights_are_converted_and_tables_are_not_trained(onnx_file) -> None:
    """The mask has a very negative value; the first norm has a gradient of its weights only."""
    nodes, inputs, stored = graph(**GRAPHS["converted_weights"])
    stored |= {"w": np.ones((64, 64), "f2"), "mask": np.triu(np.full((64, 64), -np.inf, "f4"), 1)}
    found = read_network(onnx_file(nodes, inputs, stored), training=True)
    operators = [layer.operator for layer in found.layers]
    assert operators[1] == "Cast" and "LayerNormalization.backward" in operators
    assert found.parameters == found.layers[-1].parameters == 64 + 64 * 64


def test_experts_have_the_work_of_those_that_a_token_takes(onnx_file) -> None:
    nodes = [node("MoE", ["x", "r", "w"], ["y"], k=2, domain="com.microsoft")]
    path = onnx_file(nodes, {"x": [5, 8], "y": [5, 8]}, {"r": np.ones((5, 4), "f4"), "w": np.ones((4, 6, 8), "f4")})
    assert read_onnx(path).missing["com.microsoft.MoE"].flops == 2 * 5 * 2 * 6 * 8


def test_declared_shapes_of_outputs_count_if_inference_finds_none(onnx_file) -> None:
    path = onnx_file([node("Magic", ["x"], ["m"], domain="my.ops"), node("Relu", ["m"], ["y"])], {"x": [2, 8]})
    model = onnx.load(path)
    del model.graph.output[:]
    shapes = {"m": [2, 9], "y": [3]}
    model.graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items())
    onnx.save(model, path)
    found = read_onnx(path)
    assert [str(layer.problem) for layer in found.layers] == ["relu:n2c9h1w1"]
    assert any("'y' is declared as [3], but computed as [2, 9]" in note for note in found.notes)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_most_backend_models_are_answered() -> None:
    found = counts()
    assert found["answered"] >= 1_800 and not found["traceback"], found


@pytest.mark.parametrize("op", ["RMSNormalization", "SimplifiedLayerNormalization"])
def test_rms_norms_are_one_kernel(onnx_file, op: str) -> None:
    """They reduce the dimensions from ``axis`` on. The second name is ONNX Runtime's."""
    path = onnx_file([node(op, ["x", "w"], ["y"], axis=-2)], {"x": [4, 16, 8, 64]}, {"w": np.ones((8, 64), "f4")})
    (layer,) = read_onnx(path).layers
    assert (layer.problem.kind, layer.problem.sizes) == ("rms_norm", {"n": 64, "c": 512, "h": 1, "w": 1})
    assert layer.parameters == 512


def test_the_batch_changes_reshapes_of_activations_and_not_of_weights(onnx_file) -> None:
    """[1, 16] of an activation becomes [n, 16]; [1, 4, 1, 1] of a weight does not change."""
    nodes = [node("Reshape", ["s", "shape4"], ["scale"]), node("Mul", ["x", "scale"], ["m"])]
    nodes += [node("Reshape", ["m", "shape2"], ["flat"]), node("Gemm", ["flat", "v"], ["y"])]
    shapes = {"shape4": np.array([1, 4, 1, 1]), "shape2": np.array([1, 16])}
    path = onnx_file(nodes, {"x": [1, 4, 2, 2]}, {**shapes, "s": np.ones(4, "f4"), "v": np.zeros((16, 3), "f4")})
    found = read_onnx(path, ReadOptions(batch=6))
    assert found.layers[-1].problem.sizes["m"] == 6
    assert found.layers and not found.unsupported
    assert read_onnx(path).layers[-1].problem.sizes["m"] == 1


def test_element_types_determine_the_math_type(onnx_file) -> None:
    """Half precision runs on tensor cores; ``dtype`` replaces the floating-point types."""
    nodes = [node("Conv", ["x", "w"], ["y"])]
    half = onnx_file(nodes, {"x": [1, 3, 8, 8]}, {"w": np.zeros((4, 3, 3, 3), "f2")}, elem_type=10)
    assert (read_onnx(half).convs[0].dtype, read_onnx(half).convs[0].math) == ("fp16", "tensor_op")
    assert read_onnx(half, ReadOptions(dtype="fp32")).convs[0].math == "fma"


def test_symbolic_sizes_are_given_by_name(refused, onnx_file) -> None:
    """The first axis is the batch, 1 by default; other symbolic sizes must be given."""
    weights = {"w": np.zeros((4, 3, 3, 3), "f4")}
    path = onnx_file([node("Conv", ["x", "w"], ["y"])], {"x": ["n", 3, "height", None]}, weights)
    assert read_onnx(path, ReadOptions(dims={"height": 20, "x.3": 30})).convs[0] == Conv(n=1, c=3, h=20, w=30, k=4, r=3)
    assert read_onnx(path, ReadOptions(batch=5, dims={"height": 20, "x.3": 30})).batch == 5
    with refused("'x' has an unknown size 'height'; give it as --dim height=224"):
        read_onnx(path)
    with refused("--dim hight names no size", "did you mean height"):
        read_onnx(path, ReadOptions(dims={"hight": 20, "height": 20, "x.3": 30}))


def test_sizes_computed_by_the_graph_are_evaluated(onnx_file) -> None:
    """The older exporter of PyTorch writes the view of attention heads as Shape, Gather, Div and Concat."""
    nodes, inputs, constants = graph(**GRAPHS["view_of_heads"])
    constants = {name: value.reshape(1) for name, value in constants.items()}
    network = read_onnx(onnx_file(nodes, inputs, constants), ReadOptions(batch=3))
    assert not network.unsupported
    assert network.layers[-1].problem.sizes == {"batch": 12, "m": 10, "n": 10, "k": 16}


def test_a_batch_fixed_by_a_reshape_is_not_changed(refused, onnx_file) -> None:
    """The number of windows of an image was fixed when the graph was exported."""
    nodes = [node("Relu", ["x"], ["r"]), node("Reshape", ["r", "to"], ["w"]), node("Softmax", ["w"], ["y"])]
    path = onnx_file(nodes, {"x": [1, 64, 8]}, {"to": np.array([4, 16, 8])})
    assert not read_onnx(path).unsupported
    with refused("fixed batch of 1"):
        read_onnx(path, ReadOptions(batch=2))
