"""`build_plan` orders problems, selects a shard, repeats anchors, applies caps and computes a digest."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise, product

from hypothesis import given, strategies as st

from surrogate.collect import plan as planning
from surrogate.collect.log import conv_of
from surrogate.collect.plan import ANCHOR_VISITS, PlannedProblem, PlanSettings, build_plan, evenly_spaced, problem_key
from surrogate.features.conv import Conv


def problems(count, **sizes):
    return [PlannedProblem(Conv(n=1, c=8 + i, h=28, k=32, r=3, **sizes), "test") for i in range(count)]


@given(st.integers(1, 60), st.integers(1, 7), st.integers(0, 5))
def test_shards_contain_every_problem_once(count, shards, seed):
    shards = min(shards, count)
    plans = [build_plan(problems(count), description="t", seed=seed, shard=(i + 1, shards)) for i in range(shards)]
    keys = Counter(problem.key for plan in plans for problem in plan.problems)
    assert set(keys.values()) == {1}
    assert len(keys) == count
    assert len({plan.digest for plan in plans}) == 1


def test_the_order_depends_on_the_seed_alone():
    first = build_plan(problems(50), description="t", seed=1)
    again = build_plan(problems(50)[::-1], description="other", seed=1)
    assert first.problems == again.problems
    assert first.digest == again.digest
    other = build_plan(problems(50), description="t", seed=2)
    assert other.problems != first.problems
    assert sorted(p.key for p in other.problems) == sorted(p.key for p in first.problems)
    assert other.digest != first.digest
    assert [p.conv.c for p in first.problems] != sorted(p.conv.c for p in first.problems)


def test_anchors_recur_throughout_every_shard():
    plans = [build_plan(problems(1000), description="t", shard=(i, 2)) for i in (1, 2)]
    for plan in plans:
        visits = Counter(problem.conv for problem in plan.problems)
        anchors = {conv for conv, count in visits.items() if count > 1}
        assert len(anchors) == 5
        assert {visits[conv] for conv in anchors} == {ANCHOR_VISITS}
        for conv in anchors:
            places = [i for i, problem in enumerate(plan.problems) if problem.conv == conv]
            assert [plan.problems[i].visit for i in places] == list(range(ANCHOR_VISITS))
            assert min([b - a for a, b in pairwise(places)]) > len(plan) / 10
        assert len({problem.key for problem in plan.problems}) == len(plan)
    first, second = ({p.conv for p in plan.problems if p.visit} for plan in plans)
    assert first == second


def test_evenly_spaced_covers_the_range_of_flops():
    chosen = evenly_spaced(problems(100), 4)
    assert [problem.conv.c - 8 for problem in chosen] == [12, 37, 62, 87]
    assert len(evenly_spaced(problems(3), 10)) == 3


def test_duplicate_problems_are_merged_with_all_networks():
    conv = Conv(n=1, c=64, h=28, k=32, r=3)
    plan = build_plan([PlannedProblem(conv, "a", ("X",)), PlannedProblem(conv, "b", ("Y", "X"))], description="t")
    assert [(p.origin, p.networks) for p in plan.problems] == [("a", ("X", "Y"))]


def test_settings_multiply_and_default_to_those_of_the_problem():
    own = [PlannedProblem(Conv(n=1, c=64, h=28, k=32, r=3, dtype="fp16", direction="bwd_data"), "a")]
    assert [p.conv.dtype for p in build_plan(own, description="t").problems] == ["fp16"]
    settings = PlanSettings(maths=("fma", "default"), layouts=("NCHW", "NHWC"))
    convs = {p.conv for p in build_plan(own, description="t", settings=[settings]).problems}
    assert {(c.math, c.layout) for c in convs} == {*product(settings.maths, settings.layouts)}
    assert {(c.dtype, c.direction) for c in convs} == {("fp16", "bwd_data")}


def test_the_description_counts_problems_over_the_caps():
    sources = [*problems(3), PlannedProblem(Conv(n=1, c=1, h=4, k=1, r=1), "tiny")]
    sources.append(PlannedProblem(Conv(n=256, c=1024, h=320, k=1, r=1), "big tensor"))
    sources.append(PlannedProblem(Conv(n=128, c=512, h=56, k=512, r=3), "long"))
    plan = build_plan(sources, description="t", caps=planning.GPU_CAPS)
    assert len(plan) == 3
    reasons = ("under 1e+06 FLOPs", "with a tensor over 2,048 MiB (--max-tensor)", "over 150 GFLOP (--max-gflop)")
    assert plan.left_out == dict.fromkeys(reasons, 1)
    assert plan.description.startswith("t: 3 of 6 problems, without 1 under 1e+06 FLOPs, 1 with a tensor over 2,048")


def test_an_empty_plan_or_shard_is_refused(refused):
    with refused("no problem to measure"):
        build_plan([], description="t")
    with refused("1 under"):
        build_plan([PlannedProblem(Conv(n=1, c=1, h=4, k=1, r=1), "tiny")], description="t")
    with refused("empty"):
        build_plan(problems(2), description="t", shard=(3, 3))


@given(st.sampled_from(["fp32", "fp16", "bf16", "fp64"]), st.sampled_from(["fwd", "bwd_filter"]), st.integers(0, 3))
def test_a_key_reads_back_as_its_problem(dtype, direction, visit):
    conv = Conv(n=2, c=32, h=17, w=9, k=64, r=3, s=1, pad_h=1, pad_w=0, groups=32, dtype=dtype, direction=direction)
    problem = replace(PlannedProblem(conv, "t"), visit=visit)
    assert conv_of(problem.key) == conv
    assert problem.key == f"{problem_key(conv)} #{visit}"
