"""What each slice of the campaign measures: its problems, settings and share of time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from surrogate.collect.plan import Caps, Plan, PlannedProblem, Settings, build, in_hash_order, unique
from surrogate.collect.plan_source import ALL, grid_problems, network_problems
from surrogate.collect.sample import mixture
from surrogate.features.conv import Conv

FP32 = Settings(("fp32",), ("fma",), ("NCHW",), ("fwd",))
TF32 = Settings(("fp32",), ("default",), ("NCHW",), ("fwd",))
HALVES = Settings(("fp16", "bf16"), ("tensor_op",), ("NHWC",), ("fwd",))
FP16 = Settings(("fp16",), ("tensor_op",), ("NHWC",), ("fwd",))
BACKWARD = ("bwd_data", "bwd_filter")
BACKWARD_FP32 = Settings(("fp32",), ("fma",), ("NCHW",), BACKWARD)
BACKWARD_FP16 = Settings(("fp16",), ("tensor_op",), ("NHWC",), BACKWARD)
EVERY = tuple(
    Settings((dtype,), (math,), (layout,), ("fwd", *BACKWARD))
    for dtype, math, layout in (
        ("fp32", "fma", "NCHW"), ("fp32", "fma", "NHWC"), ("fp32", "default", "NCHW"), ("fp16", "default", "NCHW"),
        ("fp16", "tensor_op", "NCHW"), ("fp16", "tensor_op", "NHWC"), ("bf16", "tensor_op", "NHWC"),
        ("fp64", "fma", "NCHW"),
    )
)  # fmt: skip
SUPPORT_SHAPES = (
    Conv(n=8, c=64, h=28, k=64, r=3, pad_h=1),
    Conv(n=8, c=64, h=28, k=64, r=1),
    Conv(n=8, c=32, h=28, k=32, r=5, pad_h=2),
    Conv(n=8, c=64, h=28, k=64, r=3, pad_h=1, stride_h=2),
    Conv(n=8, c=64, h=28, k=64, r=3, pad_h=2, dilation_h=2),
    Conv(n=8, c=64, h=28, k=64, r=3, pad_h=1, groups=4),
)
"""Shapes that the support rules tell apart."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice: a run of its own, with its own log."""

    number: int
    title: str
    share: float
    """Its part of the campaign's time, relative to the other slices'."""
    source: str = "mixture"
    """``support``, ``mixture`` (drawn, grids, networks), ``grid`` or ``networks`` of convolutions; ``operators``."""
    settings: tuple[Settings, ...] = (FP32,)
    problems: int = 0
    """Shapes before the settings; more than the time allows, since the order is random. 0: all."""
    counters_share: float = 0.0
    """Share of the slice's time that goes to hardware counters of what it has measured."""

    @property
    def log_name(self) -> str:
        """What the slice's log is called."""
        return f"slice-{self.number}.jsonl"

    @property
    def table(self) -> str:
        """What the table that it goes into is called."""
        return "operators.parquet" if self.source == "operators" else "convolutions.parquet"


_ALL = (
    Slice(0, "what runs: six shapes in every type, layout and direction", 2, "support", EVERY),
    Slice(1, "fp32 FMA NCHW forward", 10, problems=8000),
    Slice(2, "SEER's grids, with counters", 12, "grid", counters_share=0.45),
    Slice(3, "TF32 NCHW, fp16 and bf16 NHWC forward", 8, settings=(TF32, HALVES), problems=4000),
    Slice(4, "gradients, fp32 FMA NCHW and fp16 NHWC", 8, settings=(BACKWARD_FP32, BACKWARD_FP16), problems=3000),
    Slice(5, "layers of real networks, batch 1 to 256", 8, "networks", (FP32, FP16)),
    Slice(6, "other operators", 6, "operators", problems=6000),
)
SLICES: Mapping[int, Slice] = {one.number: one for one in _ALL}
"""Number → slice."""


def plan_of(one: Slice, caps: Caps, seed: int, problems: int | None = None) -> Plan:
    """The plan of a slice; ``problems`` replaces its number of shapes. The same for the same arguments."""
    count = one.problems if problems is None else problems
    anchors: list[PlannedProblem] | None = None
    if one.source == "mixture":
        shapes, anchors = mixture(count, seed, caps)
    else:
        support = [PlannedProblem(conv, "support") for conv in SUPPORT_SHAPES]
        sources = {"support": lambda: support, "grid": lambda: grid_problems(ALL), "networks": network_problems}
        within = unique(each for each in sources[one.source]() if not caps.reason(each.conv))
        shapes = in_hash_order(within, seed)
        shapes = shapes[:count] if count else shapes
    expanded = list(_under(shapes, one.settings))
    pool = list(_under(anchors, one.settings)) if anchors else None
    return build(expanded, description=f"slice {one.number}: {one.title}", seed=seed, caps=caps, anchors=pool)


def _under(problems: Iterable[PlannedProblem], settings: tuple[Settings, ...]) -> Iterable[PlannedProblem]:
    """Every problem under every combination of each of the settings."""
    for problem in problems:
        for each in settings:
            yield from each.over(problem)
