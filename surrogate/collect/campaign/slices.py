"""What each slice of the campaign measures (`slices.toml`): its problems, settings and share of time."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from surrogate.collect.plan import Caps, Plan, PlannedProblem, Settings, build, in_hash_order, unique
from surrogate.collect.plan_source import ALL, grid_problems, network_problems
from surrogate.collect.sample import mixture
from surrogate.features.text import parse

FP32 = "fp32 fma NCHW fwd"
"""The settings of a slice that names none."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice: a run of its own, with its own log. Its fields are explained in `slices.toml`."""

    number: int
    title: str
    share: float
    source: str = "mixture"
    settings: tuple[Settings, ...] = ()
    problems: int = 0
    counters_share: float = 0.0

    @property
    def log_name(self) -> str:
        """The name of the slice's log."""
        return f"slice-{self.number}.jsonl"

    @property
    def table(self) -> str:
        """The name of the table that its rows go into."""
        return "operators.parquet" if self.source == "operators" else "convolutions.parquet"


def _settings(text: str) -> Settings:
    return Settings(*(tuple(names.split(",")) for names in text.split()))


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SLICES: Mapping[int, Slice] = {
    number: Slice(number, **row | {"settings": tuple(map(_settings, row.get("settings", [FP32])))})
    for number, row in enumerate(_TABLE["slice"])
}
"""Number → slice."""


def plan_of(slice_: Slice, caps: Caps, seed: int, problems: int | None = None) -> Plan:
    """The plan of a slice; ``problems`` replaces its number of shapes. Equal arguments give equal plans."""
    count = slice_.problems if problems is None else problems
    anchors: list[PlannedProblem] | None = None
    if slice_.source == "mixture":
        shapes, anchors = mixture(count, seed, caps)
    else:
        support = [PlannedProblem(parse(text), "support") for text in _TABLE["support"]]
        sources = {"support": lambda: support, "grid": lambda: grid_problems(ALL), "networks": network_problems}
        within = unique(each for each in sources[slice_.source]() if not caps.reason(each.conv))
        shapes = in_hash_order(within, seed)
        shapes = shapes[:count] if count else shapes
    expanded = list(_under(shapes, slice_.settings))
    pool = list(_under(anchors, slice_.settings)) if anchors else None
    return build(expanded, description=f"slice {slice_.number}: {slice_.title}", seed=seed, caps=caps, anchors=pool)


def _under(problems: Iterable[PlannedProblem], settings: tuple[Settings, ...]) -> Iterable[PlannedProblem]:
    """Every problem under every combination of each of the settings."""
    for problem in problems:
        for each in settings:
            yield from each.over(problem)
