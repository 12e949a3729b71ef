"""What the slices plan."""

import pytest

from experiments.campaign.slices import SLICES, Kind, chosen, plan_of
from surrogate.collect.plan import GPU_CAPS
from surrogate.features.errors import InputError

CONVOLUTIONS = [one for one in SLICES.values() if one.kind is Kind.CONVOLUTIONS]


@pytest.mark.parametrize(
    ("text", "numbers"), [("0", [0]), ("0,1", [0, 1]), ("5,1-3,2", [5, 1, 2, 3]), ("0-6", list(range(7)))]
)
def test_slices_are_listed_by_number(text, numbers):
    assert [one.number for one in chosen(text)] == numbers


@pytest.mark.parametrize("text", ["", "x", "1-", "7", "0,9", "3-1", "-1"])
def test_what_is_no_slice_is_refused(text):
    with pytest.raises(InputError, match=r"slices? .*(not readable|unknown)"):
        chosen(text)


@pytest.mark.parametrize("one", CONVOLUTIONS, ids=lambda one: str(one.number))
def test_a_plan_has_the_slices_settings(one):
    plan = plan_of(one, GPU_CAPS, 0, 20)
    wanted = {
        (dtype, math, layout, direction)
        for setting in one.settings
        for dtype in setting.dtypes
        for math in setting.maths
        for layout in setting.layouts
        for direction in setting.directions
    }
    convs = [problem.conv for problem in plan.problems]
    assert {(conv.dtype, conv.math, conv.layout, conv.direction) for conv in convs} == wanted
    assert all(not GPU_CAPS.reason(conv) for conv in convs)


def test_tf32_is_never_mixed_with_half_precision():
    plan = plan_of(SLICES[3], GPU_CAPS, 0, 10)
    assert {(p.conv.dtype, p.conv.layout) for p in plan.problems} == {
        ("fp32", "NCHW"), ("fp16", "NHWC"), ("bf16", "NHWC"),
    }  # fmt: skip


def test_the_networks_slice_knows_its_networks():
    assert all(problem.networks for problem in plan_of(SLICES[5], GPU_CAPS, 0, 10).problems)


@pytest.mark.parametrize("number", [1, 5])
def test_a_plan_is_the_same_again_and_another_for_another_seed(number):
    first, again, other = (plan_of(SLICES[number], GPU_CAPS, seed, 10).digest for seed in (0, 0, 1))
    assert first == again != other
