"""Plans: the problems to measure, their limits, their order, their shards, and the digest that identifies a plan.

Problems are sorted by a hash of (seed, problem). The order is random, so a run that is cut is an unbiased sample. The
order is the same on every machine, and independent of the order in the sources.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import product
from math import prod

from surrogate.features import Conv, InputError

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits of a plan. FLOPs are 2 per multiply-add. Each of input, filter and output counts as one tensor."""

    min_flops: float = 1e6
    max_flops: float = 1.5e11
    max_tensor_bytes: int = 2 * GIB
    max_workspace_bytes: int = 16_000_000_000

    def reason(self, conv: Conv) -> str:
        """Return the reason why ``conv`` is left out of a plan, with the limit and its option; empty if it stays."""
        if max(tensor_sizes_bytes(conv).values()) > self.max_tensor_bytes:
            return f"with a tensor over {self.max_tensor_bytes / MIB:,.0f} MiB (--max-tensor)"
        if conv.flops > self.max_flops:
            return f"over {self.max_flops / 1e9:,g} GFLOP (--max-gflop)"
        return f"under {self.min_flops:g} FLOPs" if conv.flops < self.min_flops else ""


GPU_CAPS = Caps()
"""The default limits for a data-centre GPU."""
CPU_CAPS = Caps(max_flops=5e8, max_tensor_bytes=GIB // 16, max_workspace_bytes=GIB)
"""Limits for the CPU: most calls of its algorithms then take less than a second on one core."""


def tensor_shapes(conv: Conv) -> dict[str, tuple[int, int, int, int]]:
    """Return the shapes of input ``x`` (n, c, h, w), filter ``w`` (k, c/groups, r, s) and output ``y`` (n, k, p, q)."""
    weight = (conv.k, conv.c // conv.groups, conv.r, conv.s)
    return {"x": (conv.n, conv.c, conv.h, conv.w), "w": weight, "y": (conv.n, conv.k, conv.out_h, conv.out_w)}


def tensor_sizes_bytes(conv: Conv) -> dict[str, int]:
    """Return the bytes of input ``x``, filter ``w`` and output ``y``."""
    return {role: prod(shape) * conv.itemsize for role, shape in tensor_shapes(conv).items()}


ANCHOR_SHARE = 0.01
"""Share of a shard's problems that are anchors. With `ANCHOR_VISITS` visits each, they take about 5 % of the run."""
MAX_ANCHORS = 100
ANCHOR_VISITS = 5


@dataclass(frozen=True, slots=True)
class PlannedProblem:
    """One problem to measure, and its origin. ``visit`` counts the repetitions of an anchor; otherwise it is 0."""

    conv: Conv
    origin: str
    networks: tuple[str, ...] = ()
    visit: int = 0

    @property
    def key(self) -> str:
        """Return the problem with its settings and visit in one line."""
        return f"{problem_key(self.conv)} #{self.visit}"


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """The settings of every shape of a plan, in all combinations. An empty field keeps the problem's own setting."""

    dtypes: tuple[str, ...] = ()
    maths: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    directions: tuple[str, ...] = ()

    def over(self, problem: PlannedProblem) -> Iterator[PlannedProblem]:
        """Yield ``problem`` under each combination."""
        fields = zip(("dtype", "math", "layout", "direction"), astuple(self), strict=True)
        settings = {name: values for name, values in fields if values}
        for values in product(*settings.values()):
            yield replace(problem, conv=replace(problem.conv, **dict(zip(settings, values, strict=True))))


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """An ordered shard of problems, and the values that identify the complete plan."""

    problems: tuple[PlannedProblem, ...]
    description: str
    """The source of the plan, followed by the numbers of problems that each cap left out, if there are any."""
    seed: int = 0
    shard: tuple[int, int] = (1, 1)
    digest: str = ""
    """SHA-256 over the complete plan's problems, seed and caps; the same for all shards."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Reason → number of problems that the caps left out of the complete plan."""
    caps: Caps = field(default_factory=Caps)

    def __len__(self) -> int:
        return len(self.problems)


def problem_key(conv: Conv) -> str:
    """Return the standard text of a problem with its settings, as in ``n1c3h8w8k4r3s3p1u1 fp32 fma NCHW fwd``."""
    return f"{conv} {conv.dtype} {conv.math} {conv.layout} {conv.direction}"


def build_plan(
    problems: Iterable[PlannedProblem],
    *,
    description: str,
    seed: int = 0,
    caps: Caps = GPU_CAPS,
    settings: Sequence[PlanSettings] = (PlanSettings(),),
    shard: tuple[int, int] = (1, 1),
    anchors: Sequence[PlannedProblem] | None = None,
) -> CollectionPlan:
    """Return the plan of shard ``(i, n)`` of ``problems`` under each of ``settings``.

    Anchors are chosen from ``anchors``, or from the plan's own problems, evenly over the order of FLOPs. Every shard
    has them. Raises `InputError` if the shard is out of range, or if no problem is left.
    """
    index, shards = shard
    if not 1 <= index <= shards:
        raise InputError(f"shard {index}/{shards} is out of range; give i/n with 1 ≤ i ≤ n, as in 2/4")
    runnable, left_out = split_by_caps(_under(settings, problems), caps)
    if not runnable:
        reasons = ", ".join(f"{n} {reason}" for reason, n in left_out.items()) or "the sources are empty"
        raise InputError(f"the plan {description!r} holds no problem to measure ({reasons})")
    if left_out:
        total = len(runnable) + sum(left_out.values())
        without = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
        description += f": {len(runnable):,} of {total:,} problems, without {without}"
    pool, _ = split_by_caps(_under(settings, anchors or runnable), caps)
    chosen_anchors = evenly_spaced(pool, min(MAX_ANCHORS, int(len(runnable) / shards * ANCHOR_SHARE)))
    shard_problems = _with_anchors(in_hash_order(runnable, seed)[index - 1 :: shards], chosen_anchors)
    if not shard_problems:
        raise InputError(f"shard {index}/{shards} is empty; use at most {len(runnable)} shards")
    digest = _digest(runnable, chosen_anchors, seed, caps)
    return CollectionPlan(tuple(shard_problems), description, seed, shard, digest, left_out, caps)


def _under(settings: Iterable[PlanSettings], problems: Iterable[PlannedProblem]) -> list[PlannedProblem]:
    """Return every problem under every combination of settings, each once."""
    return unique(under for problem in problems for each in settings for under in each.over(problem))


def evenly_spaced(problems: Sequence[PlannedProblem], count: int) -> list[PlannedProblem]:
    """Return ``count`` problems, evenly spaced in the order of FLOPs; the seed does not change them."""
    ordered = sorted(problems, key=lambda problem: (problem.conv.flops, problem.key))
    count = min(count, len(ordered))
    return [ordered[(2 * i + 1) * len(ordered) // (2 * count)] for i in range(count)]


def in_hash_order(problems: Iterable[PlannedProblem], seed: int) -> list[PlannedProblem]:
    """Return ``problems`` in the plan's random order; its first problems are a random sample."""

    def rank(problem: PlannedProblem) -> bytes:
        return hashlib.sha256(f"{seed} {problem.key}".encode()).digest()

    return sorted(problems, key=rank)


def unique(problems: Iterable[PlannedProblem]) -> list[PlannedProblem]:
    """Return each problem once, with its first origin and the networks of all its copies."""
    distinct: dict[Conv, PlannedProblem] = {}
    for problem in problems:
        first = distinct.get(problem.conv)
        if first is None:
            distinct[problem.conv] = problem
        elif not set(problem.networks) <= set(first.networks):
            distinct[problem.conv] = replace(first, networks=tuple(dict.fromkeys(first.networks + problem.networks)))
    return list(distinct.values())


def split_by_caps(problems: Iterable[PlannedProblem], caps: Caps) -> tuple[list[PlannedProblem], dict[str, int]]:
    """Return the problems within ``caps``, and reason → number of problems left out."""
    reasons = [(problem, caps.reason(problem.conv)) for problem in problems]
    left_out = Counter(reason for _, reason in reasons if reason)
    return [problem for problem, reason in reasons if not reason], dict(left_out)


def _with_anchors(problems: Sequence[PlannedProblem], anchors: Sequence[PlannedProblem]) -> list[PlannedProblem]:
    """Return ``problems`` with each anchor replaced by `ANCHOR_VISITS` visits, spread evenly over the plan."""
    anchored = {anchor.conv for anchor in anchors}
    placed = [(float(i), problem) for i, problem in enumerate(problems) if problem.conv not in anchored]
    for visit in range(ANCHOR_VISITS if anchors else 0):
        for number, anchor in enumerate(anchors):
            fraction = (visit + (number + 0.5) / len(anchors)) / ANCHOR_VISITS
            placed.append((fraction * len(problems), replace(anchor, visit=visit)))
    return [problem for _, problem in sorted(placed, key=lambda pair: pair[0])]


def _digest(problems: Sequence[PlannedProblem], anchors: Sequence[PlannedProblem], seed: int, caps: Caps) -> str:
    lines = [f"seed {seed} workspace {caps.max_workspace_bytes} visits {ANCHOR_VISITS}"]
    lines += sorted(problem.key for problem in problems)
    lines += [f"anchor {anchor.key}" for anchor in anchors]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
