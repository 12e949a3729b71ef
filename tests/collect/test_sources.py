"""Sources of plans: SEER's grids, networks, random samples, files, and their mixture."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest

from surrogate.collect import plan_source
from surrogate.collect.plan import CPU_CAPS, GPU_CAPS
from surrogate.collect.plan_source import mixture, sample_convs
from tests.known import known_answers

ANSWERS = known_answers(__file__)


@pytest.mark.parametrize(("name", "count"), ANSWERS["grids"])
def test_grids_have_the_papers_sizes(name, count):
    convs = [problem.conv for problem in plan_source.grid_problems(name)]
    assert len(convs) == len(set(convs)) == count
    assert {conv.n for conv in convs} == {128}
    assert {conv.pad_h for conv in convs} == ({1} if "winograd" in name else {0})
    if name in ("seer-fft", "seer-fft-tiling", "seer-winograd", "seer-winograd-nonfused"):
        assert {conv.stride_h for conv in convs} == {1}


def test_the_seer_grid_contains_all_grids(refused):
    parts = [len(plan_source.grid_problems(name)) for name in plan_source.GRIDS]
    assert len(plan_source.grid_problems("seer")) == sum(parts) == 22984 + 384
    with refused("did you mean seer-gemm"):
        plan_source.grid_problems("seer-gem")


@pytest.mark.parametrize(("name", "count", "gmacs"), ANSWERS["networks"])
def test_networks_have_the_published_layer_counts_and_gmacs(name, count, gmacs):
    """The counts are as published; the dense layers at the end are not counted."""
    convs = plan_source.networks()[name]
    assert len(convs) == count
    assert sum(conv.flops for conv in convs) / 2e9 == pytest.approx(gmacs, abs=0.0006)


def test_network_problems_are_distinct_and_name_their_networks():
    problems = plan_source.network_problems()
    assert len({problem.conv for problem in problems}) == len(problems) == 247 * len(plan_source.BATCHES)
    stem = [problem for problem in problems if problem.conv.n == 1 and problem.conv.c == 3 and problem.conv.r == 7]
    assert [problem.networks for problem in stem] == [
        ("Inception-V1", "ResNet-18", "ResNet-34", "ResNet-50", "ResNeXt-50-32x4d", "DenseNet-121")
    ]


def test_samples_depend_on_the_seed_alone_and_respect_the_caps():
    sample = list(islice(sample_convs(7, GPU_CAPS), 400))
    assert sample == list(islice(sample_convs(7, GPU_CAPS), 400))
    assert sample != list(islice(sample_convs(8, GPU_CAPS), 400))
    assert len(set(sample)) == 400
    assert not any(GPU_CAPS.reason(conv) for conv in sample)


def test_samples_cover_the_domain():
    convs = list(islice(sample_convs(0, GPU_CAPS), 3000))
    assert {conv.r for conv in convs} == {1, 2, 3, 4, 5, 7, 9, 11}
    assert {conv.stride_h for conv in convs} == {1, 2, 3, 4}
    assert {conv.dilation_h for conv in convs} >= {1, 2, 3}
    for name, low, high in (("n", 1, 256), ("c", 3, 1448 + 16), ("k", 3, 1448 + 16), ("h", 4, 315)):
        values = [getattr(conv, name) for conv in convs]
        assert low <= min(values) < 1.5 * low and 0.8 * high < max(values) <= high
    share = np.array(
        [[c.groups > 1, c.groups == c.c > 1, c.h != c.w, c.r != c.s, c.pad_h == 0 and c.r > 1, c.c == 3] for c in convs]
    ).mean(axis=0)
    assert (share > [0.08, 0.05, 0.02, 0.005, 0.08, 0.02]).all()
    assert (share < [0.22, 0.16, 0.10, 0.05, 0.25, 0.08]).all()


@pytest.mark.parametrize("caps", [GPU_CAPS, CPU_CAPS])
def test_the_mixture_has_fixed_shares_of_sources(caps):
    problems, anchors = mixture(1000, 3, caps)
    assert Counter(problem.origin.split()[0] for problem in problems) == {"sample": 474, "grid": 263, "network": 263}
    assert len({problem.conv for problem in problems}) > 990
    assert {anchor.origin for anchor in anchors} == {"network"}


def test_a_source_builds_its_plan(tmp_path):
    plan = plan_source.PlanSource(sample=300, seed=5).build(CPU_CAPS)
    assert plan.description == "sample 300"
    assert {problem.visit for problem in plan.problems} == {0, 1, 2, 3, 4}
    path = tmp_path / "plan.txt"
    path.write_text("n1c64h28k32r3\n")
    (planned,) = plan_source.PlanSource(file=path).build(GPU_CAPS).problems
    assert str(planned.conv) == "n1c64h28w28k32r3s3p0u1"
    assert len(plan_source.PlanSource(networks=True).build(GPU_CAPS)) > 1500
    assert len(plan_source.PlanSource(grid="seer-winograd").build(GPU_CAPS)) > 800


def test_parse_shard_reads_index_and_count(refused):
    assert plan_source.parse_shard("2/4") == (2, 4)
    for text in ("2", "a/b", "2/", "1/-3", ""):
        with refused("i/n"):
            plan_source.parse_shard(text)
