"""One table from calls to problems: what traces record, what is solved from sizes, and what is refused."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Annotated, Any, ClassVar

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from surrogate.features.conv import Conv
from surrogate.features.families import FAMILIES, Families, Operator, OperatorFamily, operator
from surrogate.features.families.operator_family import Declaration
from surrogate.features.in_network import Gradients
from surrogate.features.size import Size
from surrogate.network.call import CONVOLUTIONS, UNKNOWN, Call, Tensor, UnsupportedError, recorded
from surrogate.network.call_rules import solved
from surrogate.network.calls import flops_and_bytes, has_rule, layers, problems
from tests.known import known

KNOWN = known(__file__)
BACKWARD_VALUES = ("", "", "", "[16]", "[2, 1]", "[1, 0]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]")


def as_recorded(sizes: list[Any]) -> tuple[Any, ...]:
    """Lists of sizes as a trace's reader has them: tuples, also within a list of tensors."""
    return tuple(as_recorded(each) if isinstance(each, list) else each for each in sizes)


def made(row: dict[str, Any]) -> Call:
    """The recorded call of a row of `test_calls.toml`."""
    given = {name: as_recorded(row[name]) for name in ("types", "values", "output") if name in row}
    return recorded(row["call"], as_recorded(row["sizes"]), **given)


@pytest.mark.parametrize("row", KNOWN["problems"], ids=itemgetter("call"))
def test_recorded_calls(row: dict[str, Any]) -> None:
    """As a profiler writes them, with and without the values of scalar arguments."""
    assert problems(made(row)) == (operator(**row["problem"]),)


def test_element_types() -> None:
    """Half precision rules; indices, masks and numbers in the shape of tensors do not."""
    half = recorded("aten::mm", [(4, 5), (5, 6)], ["c10::Half", "c10::Half"])
    assert (problems(half)[0].dtype, problems(half)[0].math) == ("fp16", "tensor_op")
    for types in (["bool", "float", "float"], ["float", "double", "long int"]):
        assert recorded("aten::where", [(4,), () if types[1] == "double" else (4,), (4,)], types).dtype == "fp32"
    with pytest.raises(UnsupportedError, match="complex"):
        recorded("aten::mm", [(4, 5), (5, 6)], ["c10::complex<float>"] * 2)


@pytest.mark.parametrize("row", KNOWN["lacking"], ids=itemgetter("lacks"))
def test_what_a_record_lacks_is_named(row: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=row["lacks"]):
        layers(made(row))


def test_views_cost_nothing() -> None:
    """And are no rule of their own."""
    assert problems(recorded("aten::view", [(4, 5)])) == ()
    assert has_rule("aten::add_") and not has_rule("aten::view") and not has_rule("add")


def _image_and_filter(conv: Conv) -> list[tuple[int, ...]]:
    return [(conv.n, conv.c, conv.h, conv.w), (conv.k, conv.c // conv.groups, conv.r, conv.s)]


@given(st.from_type(Conv))
def test_convolutions_by_recorded_values(conv: Conv) -> None:
    """In whatever order an operator has its lists; backward as forward; FLOPs and bytes as features count them."""
    conv = Conv(**{**conv.to_dict(), "direction": "fwd", "dtype": "fp32", "math": "fma", "layout": "NCHW"})
    image, weight = _image_and_filter(conv)
    pad, stride, dilation = (
        f"[{getattr(conv, f'{name}_h')}, {getattr(conv, f'{name}_w')}]" for name in ("pad", "stride", "dilation")
    )
    groups = str(conv.groups)
    for name, values in {
        "aten::conv2d": ("", "", "", stride, pad, dilation, groups),
        "aten::convolution": ("", "", "", stride, pad, dilation, "False", "[0, 0]", groups),
        "aten::cudnn_convolution": ("", "", pad, stride, dilation, groups),
        "aten::miopen_convolution": ("", "", "", pad, stride, dilation, groups),
    }.items():
        assert problems(recorded(name, [image, weight], values=values)) == (conv,)
    output = (conv.n, conv.k, conv.out_h, conv.out_w)
    call = recorded(
        "aten::convolution_backward", [output, image, weight], values=("", "", "", "", stride, pad, dilation)
    )
    assert [work.direction for work in problems(call)] == ["bwd_data", "bwd_filter"]  # type: ignore[union-attr]
    unsolved = recorded("aten::convolution", [image, weight], output=output)
    assert flops_and_bytes(unsolved) is not None
    if conv.dilation_h == conv.dilation_w == 1:
        assert flops_and_bytes(unsolved) == (conv.flops, conv.tensor_bytes)
        assert flops_and_bytes(recorded("aten::convolution_backward", [output, image, weight])) == (
            2 * conv.flops,
            2 * conv.tensor_bytes,
        )


def test_the_mask_of_convolution_backward() -> None:
    """A gradient for every True; the bias's is no convolution."""
    shapes = [(8, 16, 4, 6), (8, 4, 8, 8), (16, 4, 3, 3)]
    sizes: dict[str, Any] = {"n": 8, "c": 4, "h": 8, "k": 16, "r": 3, "pad_h": 1, "pad_w": 0}
    sizes |= {"stride_h": 2, "stride_w": 1}
    both = problems(recorded("aten::convolution_backward", shapes, values=BACKWARD_VALUES))
    assert both == tuple(Conv(**sizes, direction=way) for way in ("bwd_data", "bwd_filter"))
    values = (*BACKWARD_VALUES[:-1], "[False, True, True]")
    parts = layers(recorded("aten::convolution_backward", shapes, values=values))
    assert [part.operator for part in parts] == ["convolution_backward.bwd_filter", "convolution_backward.bias"]
    for half, way in (("input", "bwd_data"), ("weight", "bwd_filter")):
        call = recorded(f"aten::cudnn_convolution_backward_{half}", [shapes[1], shapes[0], shapes[2]],
                        values=("", "", "", "[1, 0]", "[2, 1]", "[1, 1]"))  # fmt: skip
        assert problems(call) == (Conv(**sizes, direction=way),)


@pytest.mark.parametrize(("size", "filters", "output", "answer"), KNOWN["solved"])
def test_solved_sizes(size: int, filters: int, output: int, answer: list[int]) -> None:
    """Refused where several pairs fit, or none."""
    with nullcontext() if answer else pytest.raises(UnsupportedError, match="stride and padding"):
        assert solved(size, filters, output) == tuple(answer)


def test_a_known_half_settles_the_other() -> None:
    """9 → 4 by a filter of 3: either value tells the other; a whole call with one of them."""
    assert solved(9, 3, 4, stride=2) == (2, 0)
    assert solved(9, 3, 4, pad=2) == (3, 2)
    call = recorded("aten::cudnn_convolution", [(8, 3, 9, 9), (4, 3, 3, 3)], values=("", "", "", "[2, 2]", "[1, 1]"),
                    output=(8, 4, 4, 4))  # fmt: skip
    assert problems(call) == (Conv(n=8, c=3, h=9, k=4, r=3, stride_h=2),)
    long = recorded("aten::cudnn_convolution", [(8, 128, 17, 17), (192, 128, 1, 7)], output=(8, 192, 17, 17))
    assert problems(long) == (Conv(n=8, c=128, h=17, k=192, r=1, s=7, pad_h=0, pad_w=3),)


@given(st.integers(1, 64), st.integers(1, 7), st.integers(1, 9), st.data())
def test_what_is_solved_is_right(size: int, filters: int, stride: int, data: st.DataObject) -> None:
    """The only padding; the only stride unless there is a single output."""
    pad = data.draw(st.integers(0, filters - 1))
    assume(size + 2 * pad >= filters)
    output = (size + 2 * pad - filters) // stride + 1
    assert solved(size, filters, output, stride=stride, pad=pad) == (stride, pad)
    try:
        answer = solved(size, filters, output)
    except UnsupportedError:
        return
    assert answer == (stride, pad) if output > 1 else answer[1] == pad


@pytest.mark.parametrize("row", KNOWN["costs"], ids=itemgetter("call"))
def test_flops_and_bytes(row: dict[str, Any]) -> None:
    expected = (row["flops"], 4 * row["elements"]) if "flops" in row else None
    assert flops_and_bytes(made(row)) == expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv3d(Operator):
    """A convolution over three axes without groups, invented for the test."""

    kind: ClassVar[str] = "conv3d"
    FAMILY: ClassVar[str] = "conv3d"

    n: Annotated[int, Size("batch")]
    c: Annotated[int, Size("input channels")]
    d: Annotated[int, Size("depth")]
    h: Annotated[int, Size("height")]
    w: Annotated[int, Size("width")]
    k: Annotated[int, Size("output channels")]
    t: Annotated[int, Size("filter depth")]
    r: Annotated[int, Size("filter height")]
    s: Annotated[int, Size("filter width")]
    pad_d: Annotated[int, Size("padding of the depth", least=0)] = 0
    pad_h: Annotated[int, Size("padding of the height", least=0)] = 0
    pad_w: Annotated[int, Size("padding of the width", least=0)] = 0
    stride_d: Annotated[int, Size("step in depth")] = 1
    stride_h: Annotated[int, Size("vertical step")] = 1
    stride_w: Annotated[int, Size("horizontal step")] = 1

    @property
    def flops(self) -> int:
        return 2 * self.n * self.k * self.c * self.t * self.r * self.s * self.d * self.h * self.w

    @property
    def dram_bytes(self) -> int:
        return 4 * self.n * self.c * self.d * self.h * self.w

    @property
    def blocks(self) -> int:
        return self.n

    def gradients(self, of: str) -> Gradients:
        return ((f"grad_{of}", replace(self, c=self.k, k=self.c)),)


ROW = {
    "kind": "conv3d", "image": "n c d h w", "filter": "k - t r s", "padding": "pad_d pad_h pad_w",
    "stride": "stride_d stride_h stride_w",
}  # fmt: skip


@pytest.fixture
def conv3d(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its family, and its row of `calls.toml`: all that a convolution of another rank takes."""
    declaration = Declaration(
        name="conv3d", columns=lambda op, m: (op.n,), column_names=("n",), dimension_names=(), batch=("n",)
    )
    families = Families([*FAMILIES.values(), OperatorFamily(declaration, [Conv3d])])
    monkeypatch.setattr("surrogate.network.work.family", families.named)
    monkeypatch.setitem(CONVOLUTIONS, "3", ROW)


def _convolved(op: str = "convolution", **arguments: object) -> Call:
    image, filters = Tensor((2, 3, 8, 16, 16)), Tensor((4, 3, 3, 3, 3))
    return Call(op, {"input": image, "weight": filters, "stride": [1, 2, 2], "padding": [1, 1, 1], **arguments})


def test_a_convolution_of_another_rank_takes_a_family_and_a_row(conv3d: None) -> None:
    """Its problem by names, its gradients as it declares them, its stride solved where a trace did not record it."""
    problem = Conv3d(n=2, c=3, d=8, h=16, w=16, k=4, t=3, r=3, s=3, pad_d=1, pad_h=1, pad_w=1, stride_h=2, stride_w=2)
    assert problems(_convolved()) == (problem,)
    unrecorded = Call("convolution", {**_convolved().arguments, "stride": UNKNOWN}, (Tensor((2, 4, 8, 8, 8)),))
    assert problems(unrecorded) == (problem,)
    half = problems(_convolved(input=Tensor((2, 3, 8, 16, 16), "fp16"), weight=Tensor((4, 3, 3, 3, 3), "fp16")))
    assert (half[0].dtype, half[0].math) == ("fp16", "tensor_op")
    backward = layers(_convolved("convolution_backward", grad_output=Tensor((2, 4, 8, 8, 8)), output_mask=[True] * 3))
    assert [layer.operator.rpartition(".")[2] for layer in backward] == ["grad_input", "grad_weight", "bias"]
    assert backward[0].work == replace(problem, c=4, k=3)


def test_what_a_convolution_of_another_rank_has_no_name_for_is_refused(conv3d: None) -> None:
    grouped = _convolved(groups=3, weight=Tensor((6, 1, 3, 3, 3)))
    for lacks, call in (("groups", grouped), ("dilation", _convolved(dilation=2))):
        with pytest.raises(UnsupportedError, match=lacks):
            problems(call)


def test_a_rank_without_a_row_is_named() -> None:
    with pytest.raises(UnsupportedError, match="3-D"):
        problems(_convolved())
