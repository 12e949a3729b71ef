"""What each slice of the campaign measures: its problems, settings and share of time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from surrogate.collect.networks import network_problems
from surrogate.collect.plan import Caps, Plan, PlannedProblem, Settings, build, in_hash_order, unique
from surrogate.collect.plan_source import ALL, grid_problems
from surrogate.collect.sample import mixture
from surrogate.features.errors import InputError

FP32 = Settings(("fp32",), ("fma",), ("NCHW",), ("fwd",))
TF32 = Settings(("fp32",), ("default",), ("NCHW",), ("fwd",))
HALVES = Settings(("fp16", "bf16"), ("tensor_op",), ("NHWC",), ("fwd",))
FP16 = Settings(("fp16",), ("tensor_op",), ("NHWC",), ("fwd",))
BACKWARD = ("bwd_data", "bwd_filter")
BACKWARD_FP32 = Settings(("fp32",), ("fma",), ("NCHW",), BACKWARD)
BACKWARD_FP16 = Settings(("fp16",), ("tensor_op",), ("NHWC",), BACKWARD)


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice: a run of its own, with its own log and tables."""

    number: int
    title: str
    source: str = "mixture"
    """``mixture`` (drawn, grids, networks), ``grid`` or ``networks`` of convolutions; ``operators``; ``probe``."""
    settings: tuple[Settings, ...] = (FP32,)
    problems: int = 0
    """Shapes before the settings; more than the time allows, since the order is random. 0: all."""
    counters_share: float = 0.0
    """Share of the slice's time that goes to hardware counters of what it has measured."""

    @property
    def stem(self) -> str:
        """What the slice's files are called, before their suffixes."""
        return f"slice-{self.number}"


_ALL = (
    Slice(0, "probe: versions, support, timers, rate, counters, numerics", "probe", problems=200),
    Slice(1, "fp32 FMA NCHW forward", problems=8000),
    Slice(2, "SEER's grids, with counters", source="grid", counters_share=0.45),
    Slice(3, "TF32 NCHW, fp16 and bf16 NHWC forward", settings=(TF32, HALVES), problems=4000),
    Slice(4, "gradients, fp32 FMA NCHW and fp16 NHWC", settings=(BACKWARD_FP32, BACKWARD_FP16), problems=3000),
    Slice(5, "layers of real networks, batch 1 to 256", source="networks", settings=(FP32, FP16)),
    Slice(6, "other operators", "operators", problems=6000),
)
SLICES: Mapping[int, Slice] = {one.number: one for one in _ALL}
"""Number → slice."""


def chosen(text: str) -> list[Slice]:
    """The slices that ``text`` lists, as in ``0,1`` or ``1-5``; each once, in the order given."""
    numbers: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError(f"slices {text!r} are not readable; give numbers as in 0,1 or 1-5")
        numbers.update(dict.fromkeys(range(int(first), int(last or first) + 1)))
    unknown = [number for number in numbers if number not in SLICES]
    if unknown or not numbers:
        raise InputError(f"slice {unknown[0] if unknown else text} is unknown; known: 0 to {max(SLICES)}")
    return [SLICES[number] for number in numbers]


def plan_of(one: Slice, caps: Caps, seed: int, problems: int | None = None) -> Plan:
    """The plan of a slice; ``problems`` replaces its number of shapes. The same for the same arguments."""
    count = one.problems if problems is None else problems
    anchors: list[PlannedProblem] | None = None
    if one.source == "mixture":
        shapes, anchors = mixture(count, seed, caps)
    else:
        source = grid_problems(ALL) if one.source == "grid" else network_problems()
        within = unique(each for each in source if not caps.reason(each.conv))
        shapes = in_hash_order(within, seed)
        shapes = shapes[:count] if count else shapes
    expanded = list(_under(shapes, one.settings))
    pool = list(_under(anchors, one.settings)) if anchors else None
    return build(expanded, description=f"{one.stem}: {one.title}", seed=seed, caps=caps, anchors=pool)


def _under(problems: Iterable[PlannedProblem], settings: tuple[Settings, ...]) -> Iterable[PlannedProblem]:
    """Every problem under every combination of each of the settings."""
    for problem in problems:
        for each in settings:
            yield from each.over(problem)
