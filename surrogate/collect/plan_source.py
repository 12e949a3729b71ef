"""Build a plan from its source: a file, SEER's grids (`grids.toml`), networks, a sample, or a recording.

``networks.json`` holds every convolution of well-known networks at batch 1, in the order of their published tables
(224 × 224 RGB images): Krizhevsky 2014 (AlexNet, the one-tower form), Simonyan and Zisserman 2015 (VGG), Szegedy et al.
2015 (Inception, without the auxiliary classifiers), Iandola et al. 2016 (SqueezeNet), He et al. 2016 (ResNet, the
stride on the 3×3), Xie et al. 2017 (ResNeXt), Huang et al. 2017 (DenseNet), Sandler et al. 2018 (MobileNet, width 1.0),
Tan and Le 2019 (EfficientNet, with squeeze-and-excitation).

A Sobol sequence draws samples log-uniformly over the domain: batch 1–256, channels 3–1448, size 4–315, filters 1–11,
strides 1–4, padding none, same or full. Some problems are dilated, grouped, depthwise or non-square. The sequence is
SciPy's without scrambling, shifted modulo 1 by the seed (Cranley–Patterson). So a seed gives the same problems with
every version of SciPy.
"""

import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, count, islice, product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from surrogate.collect import plan
from surrogate.collect.plan import Caps, PlannedProblem, PlanSettings, in_hash_order, split_by_caps, unique
from surrogate.features import Conv, InputError, check_choice, parse, read_toml

T = TypeVar("T")

FILTERS = {1: 24, 2: 3, 3: 40, 4: 3, 5: 13, 7: 9, 9: 4, 11: 4}
"""Filter width → weight; the tables below have the same form."""
STRIDES = {1: 72, 2: 22, 3: 3, 4: 3}
PADS = {"same": 70, "none": 22, "full": 8}
DILATIONS = {1: 93, 2: 5, 3: 1, 4: 1}
GROUPINGS = {"none": 86, "depthwise": 8, "grouped": 6}
GROUPS = {2: 1, 4: 1, 8: 1, 16: 1, 32: 2}
RGB_SHARE = 0.04
"""Share of problems with a 3-channel input, as in first layers."""
NON_SQUARE_SHARE = 0.06
DIMENSIONS = 14
MAX_POINTS = 1 << 22


def sample_convs(seed: int, caps: Caps) -> Iterator[Conv]:
    """Yield distinct problems within ``caps``, until the sequence ends (about 4 million points)."""
    seen: set[Conv] = set()
    for point in _points(seed):
        conv = _problem(point)
        if conv is not None and not caps.reason(conv) and conv not in seen:
            seen.add(conv)
            yield conv


def _points(seed: int) -> Iterator[np.ndarray]:
    from scipy.stats import qmc

    shift = np.random.Generator(np.random.PCG64(seed)).random(DIMENSIONS)
    sequence = qmc.Sobol(DIMENSIONS, scramble=False)
    for power in count(10):
        # The first two blocks have 1024 points. Each later block is as long as all blocks before it, which keeps
        # Sobol's points balanced.
        yield from (sequence.random_base2(max(power - 1, 10)) + shift) % 1.0
        if 1 << power >= MAX_POINTS:
            return


def _problem(u: Sequence[float] | np.ndarray) -> Conv | None:
    """Return the problem at point ``u`` of the unit cube (14 numbers); None if the filter exceeds the image."""
    r = _pick(FILTERS, u[4])
    dilation = _pick(DILATIONS, u[8]) if r > 1 else 1
    h = _log_uniform(4, 315, u[3])
    s, w = r, h
    if u[9] < NON_SQUARE_SHARE:
        s = 1 if u[10] < 0.5 and r > 1 else r
        w = _log_uniform(4, 315, u[11])
    stride = _pick(STRIDES, u[6])
    c = 3 if u[5] < RGB_SHARE else _log_uniform(3, 1448, u[1])
    c, k, groups = _grouped(c, _log_uniform(3, 1448, u[2]), u[12], u[13])
    pad = _pick(PADS, u[7])
    reach_h, reach_w = dilation * (r - 1), dilation * (s - 1)
    if h + 2 * _pad(pad, reach_h) <= reach_h or w + 2 * _pad(pad, reach_w) <= reach_w:
        return None
    n = _log_uniform(1, 256, u[0])
    sizes: dict[str, Any] = {"n": n, "c": c, "h": h, "w": w, "k": k, "r": r, "s": s, "groups": groups}
    sizes |= {"pad_h": _pad(pad, reach_h), "pad_w": _pad(pad, reach_w), "stride_h": stride, "dilation_h": dilation}
    return Conv(**sizes)


def _grouped(c: int, k: int, u: float, v: float) -> tuple[int, int, int]:
    """Return the input and output channels, rounded as the drawn grouping needs, and the number of groups."""
    kind = _pick(GROUPINGS, u)
    if kind == "depthwise":
        return c, c, c
    if kind == "grouped":
        groups = _pick(GROUPS, v)
        return groups * max(1, round(c / groups)), groups * max(1, round(k / groups)), groups
    return c, k, 1


def _pad(kind: str, reach: int) -> int:
    return {"none": 0, "same": reach // 2, "full": reach}[kind]


def _log_uniform(low: int, high: int, u: float) -> int:
    return min(high, max(low, round(math.exp(math.log(low) + u * math.log(high / low)))))


def _pick(weights: dict[T, int], u: float) -> T:
    edges = list(accumulate(weights.values()))
    return list(weights)[min(bisect_right(edges, u * edges[-1]), len(edges) - 1)]


BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Batch sizes of every layer in a plan."""


@cache
def networks() -> dict[str, tuple[Conv, ...]]:
    """Return name → every convolution of the network in the order of its table, at batch 1, fp32 NCHW forward."""
    lines = json.loads(Path(__file__).with_name("networks.json").read_text(encoding="utf-8"))
    return {name: tuple(map(parse, " ".join(layers).split())) for name, layers in lines.items()}


def network_problems() -> list[PlannedProblem]:
    """Return every distinct layer at every batch, with the names of its networks."""
    layers = unique(PlannedProblem(conv, "network", (name,)) for name, convs in networks().items() for conv in convs)
    return [PlannedProblem(layer.conv.with_batch(n), "network", layer.networks) for layer in layers for n in BATCHES]


BATCH = 128
GRIDS: Mapping[str, Mapping[str, Any]] = read_toml(__file__, "grids.toml")
"""Name → ``channels``, ``sizes``, ``filters``, ``strides`` and ``pad``."""
ALL = "seer"
"""The name of all grids together; a problem in several grids counts once."""


@cache
def grid_problems(name: str) -> tuple[PlannedProblem, ...]:
    """Return the problems of one grid, or of all grids for the name ``seer``. Raises `InputError` for another name."""
    check_choice("grid", name, (ALL, *GRIDS))
    names = tuple(GRIDS) if name == ALL else (name,)
    problems: list[PlannedProblem] = []
    for member in names:
        grid = GRIDS[member]
        axes = (grid[name] for name in ("channels", "channels", "sizes", "filters", "strides"))
        for c, k, h, r, stride in product(*axes):
            conv = Conv(n=BATCH, c=c, h=h, k=k, r=r, pad_h=grid["pad"], stride_h=stride)
            problems.append(PlannedProblem(conv, f"grid {member}"))
    return tuple(problems)


MIXTURE = {"sample": 0.45, "grid": 0.25, "network": 0.25}
"""Shares of a campaign's problems. The rest are the anchors, which the plan adds."""


def mixture(total: int, seed: int, caps: Caps) -> tuple[list[PlannedProblem], list[PlannedProblem]]:
    """Return about ``total`` problems in the shares of `MIXTURE`, and the pool of anchors for the plan.

    If the networks or the grids have fewer problems than their share, sampled problems replace the missing ones.
    """
    if total < 1:
        raise InputError(f"a sample of {total} problems is empty; give at least 1")
    networks, _ = split_by_caps(network_problems(), caps)
    grids, _ = split_by_caps(unique(grid_problems(ALL)), caps)
    scale = total / sum(MIXTURE.values())
    problems = in_hash_order(networks, seed)[: round(scale * MIXTURE["network"])]
    problems += in_hash_order(grids, seed)[: round(scale * MIXTURE["grid"])]
    drawn = islice(sample_convs(seed, caps), max(total - len(problems), 0))
    problems = [PlannedProblem(conv, "sample") for conv in drawn] + problems
    return problems[:total], networks


def file_problems(path: str | Path) -> list[PlannedProblem]:
    """Return the convolutions of a user's list (see `surrogate.dataset.problem_list`), in order, with their networks.

    Raises `InputError` with the file, the line, the wrong value and the rule.
    """
    from surrogate.dataset.problem_list import read_list

    convs = [(listed.problem, listed.networks) for listed in read_list(path) if isinstance(listed.problem, Conv)]
    return [PlannedProblem(conv, "plan", networks) for conv, networks in convs]


@dataclass(frozen=True, slots=True)
class PlanSource:
    """The requested source of a plan: exactly one of the first five fields. ``recording`` plans a run's problems."""

    file: str | Path | None = None
    grid: str | None = None
    networks: bool = False
    sample: int | None = None
    recording: str | Path | None = None
    settings: PlanSettings = field(default_factory=PlanSettings)
    seed: int = 0
    shard: tuple[int, int] = (1, 1)

    def build(self, caps: Caps) -> plan.CollectionPlan:
        """Return the plan under ``caps``. Raises `InputError` for no source, several sources, or an empty plan."""
        sources = {"plan": self.file, "grid": self.grid, "sample": self.sample, "recording": self.recording}
        given = [f"{kind} {source}" for kind, source in sources.items() if source is not None]
        given += ["networks"] if self.networks else []
        if len(given) != 1:
            names = " and ".join(given) or "none"
            raise InputError(f"a plan has one source, not {names}; give one of --plan, --grid, --networks, --sample")
        problems, anchors = self._problems(caps)
        shared: dict[str, Any] = {"seed": self.seed, "caps": caps, "settings": [self.settings], "shard": self.shard}
        return plan.build_plan(problems, description=given[0], anchors=anchors, **shared)

    def _problems(self, caps: Caps) -> tuple[Sequence[PlannedProblem], Sequence[PlannedProblem] | None]:
        """Return the problems, and the pool of anchors, or None if the problems are the pool."""
        if self.file is not None:
            return file_problems(self.file), None
        if self.grid is not None:
            return grid_problems(self.grid), None
        if self.sample is not None:
            return mixture(self.sample, self.seed, caps)
        if self.recording is not None:
            from surrogate.collect.log import ReplayDevice

            return ReplayDevice(self.recording).problems(), None
        return network_problems(), None


def parse_shard(text: str) -> tuple[int, int]:
    """Return ``(i, n)`` for the text ``i/n``. Raises `InputError` for another text."""
    if not re.fullmatch("[0-9]{1,18}/[0-9]{1,18}", text):
        raise InputError(f"shard {text!r} is not readable; give i/n with 1 ≤ i ≤ n, as in 2/4")
    first, second = map(int, text.split("/"))
    return first, second
