"""`BoostedTimes`: a fitted model of boosted trees as plain values, and the files that a bundle keeps of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Annotated

from msgspec import Meta

from surrogate.features.errors import InputError
from surrogate.features.families import Family
from surrogate.models.correction import Correction
from surrogate.models.grid import Grid, Label
from surrogate.models.launch import CallKey
from surrogate.models.plain import Count, Keyed, Microseconds, Share, from_plain, joined, to_plain
from surrogate.models.trees import Trees
from surrogate.models.trend import Trend

ARRAYS = "trees.npz"
FACTS = "times.json"
"""The files of `BoostedTimes`: its trees, and the rest."""
TERMS = "terms."
TREES = "residual.npz"
GRID = "grid."
LABELS = "labels.json"
"""With neighbours: the terms' model, the residual's trees, a GPU's measured times, and the candidates' codes."""

_Exponent = Annotated[int, Meta(ge=-8, le=8)]


@dataclass(frozen=True)
class Neighbours:
    """All GPUs' measured times, and the residual's trees as stored (empty: none were fitted)."""

    grid: Grid
    stored: bytes = b""

    @cached_property
    def trees(self) -> Trees:
        """The residual's trees. Raises `InputError` where the stored ones are damaged."""
        return Trees.from_bytes(self.stored)


@dataclass(frozen=True, slots=True)
class BoostedTimes:
    """A fitted model as arrays: (roofline · 2^(``own_weight`` · own roofline column) + call) · exp(trees + trend) µs.

    ``columns`` are the trees' columns by name, behind which comes the candidate's code;
    ``codes`` candidate (as `Rows.candidate` names it) → code; ``call_us`` a call's fixed cost in µs;
    ``trend`` goes on outside the range that training saw (None: nothing does); ``corrections`` device → what a
    calibration multiplies its times by; ``neighbours`` measured times that count beside the trees.
    """

    trees: Trees
    columns: tuple[str, ...]
    codes: Mapping[str, int]
    own_weight: float = 0.0
    call_us: Mapping[CallKey, float] = field(default_factory=dict)
    trend: Trend | None = None
    corrections: Mapping[str, Correction] = field(default_factory=dict)
    neighbours: Neighbours | None = None

    def to_files(self) -> dict[str, bytes]:
        """The arrays, and the rest as JSON."""
        names = ("columns", "codes", "own_weight", "call_us", "trend")
        facts = {name: to_plain(getattr(self, name)) for name in names}
        return {ARRAYS: self.trees.to_bytes(), FACTS: json.dumps(facts, sort_keys=True).encode()}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> "BoostedTimes":
        """What `to_files` wrote. Raises `InputError` where the parts do not fit one another."""
        facts = from_plain(_Facts, json.loads(files[FACTS]), FACTS)
        trees = Trees.from_bytes(files[ARRAYS])
        if trees.feature.max() > len(facts.columns) or len(set(facts.columns)) < len(facts.columns):
            raise InputError(f"the trees split more columns than the {len(facts.columns)} that {FACTS} names")
        return cls(trees, **{each.name: getattr(facts, each.name) for each in fields(facts)})

    def check(self, family: Family) -> None:
        """Raise `InputError` where the model asks for columns or sizes that the family has not."""
        of_problem = {*family.problem_names, *family.candidate_names}
        columns = {*family.column_names, "library_version"}
        lines = self.neighbours.grid.lines if self.neighbours else ()
        if (
            not set(self.columns) <= columns
            or not set(self.trend.names if self.trend else ()) <= of_problem
            or not all(line and set(line) <= set(family.size_names) for line in lines)
            or any(len(each.units) != len(family.distance_units) for each in self.corrections.values())
        ):
            raise InputError(f"the model's columns, terms, lines or units are not those of {family.name}")


@dataclass(frozen=True)
class _Facts:
    """What `BoostedTimes` keeps beside its trees, as JSON."""

    columns: tuple[str, ...]
    codes: Mapping[str, Count]
    own_weight: Share
    call_us: Keyed[CallKey, Microseconds]
    trend: Trend | None


@dataclass(frozen=True)
class _Labels:
    """What the codes of a `Grid` mean, and its lines, as JSON."""

    labels: Mapping[str, Count]
    lines: Annotated[tuple[Mapping[str, _Exponent], ...], Meta(max_length=64)]


def neighbour_files(neighbours: Neighbours) -> dict[str, bytes]:
    """The residual's trees, every GPU's measured times, and what their codes mean."""
    grid = neighbours.grid
    files = {f"{GRID}{gpu}.parquet": content for gpu, content in grid.packed.items()}
    if neighbours.stored:
        files[TREES] = neighbours.stored
    facts = {"labels": {joined(label): code for label, code in grid.labels.items()}, "lines": grid.lines}
    return {**files, LABELS: json.dumps(facts).encode()}


def times_from_files(files: Mapping[str, bytes]) -> tuple[BoostedTimes, Neighbours]:
    """The terms' times, of the files of an interpolated model, and the same neighbours that these hold."""
    terms_files, grid_files = (
        {name.removeprefix(start): content for name, content in files.items() if name.startswith(start)}
        for start in (TERMS, GRID)
    )
    terms = BoostedTimes.from_files(terms_files)
    packed = {name.removesuffix(".parquet"): content for name, content in grid_files.items()}
    facts = from_plain(_Labels, json.loads(files[LABELS]), LABELS)
    # The names of all candidates of a family have as many parts.
    parts = next(iter(terms.codes), "").count("|") + 1
    labels = {Label.parse(text, parts): code for text, code in facts.labels.items()}
    near = Neighbours(Grid(labels, packed, facts.lines), files.get(TREES, b""))
    return replace(terms, neighbours=near), near
