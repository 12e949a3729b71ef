"""Picks for a list of problems, and under which conditions they were made."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from surrogate.features.algorithms import algorithm
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError


class Candidate(Protocol):
    """One candidate of a selection, as `surrogate.prediction.predictor.Selection` has it."""

    @property
    def algorithm(self) -> str:
        """Its name."""
        ...

    @property
    def solver(self) -> str:
        """Its solver, "" where algorithms are chosen."""
        ...

    @property
    def time_us(self) -> float:
        """Predicted time in µs; the interval is ``lower_us`` … ``upper_us``."""
        ...

    @property
    def lower_us(self) -> float:
        """Lower end of the 90 % interval."""
        ...

    @property
    def upper_us(self) -> float:
        """Upper end."""
        ...

    @property
    def workspace_bytes(self) -> int:
        """Estimated workspace."""
        ...

    @property
    def source(self) -> str:
        """Where the time is from."""
        ...


class Refusal(Protocol):
    """A candidate that is ruled out."""

    @property
    def algorithm(self) -> str:
        """Its name."""
        ...

    @property
    def reason(self) -> str:
        """Why."""
        ...


class Ranking(Protocol):
    """A selection."""

    @property
    def candidates(self) -> Sequence[Candidate]:
        """The fastest first; empty where nothing is feasible."""
        ...

    @property
    def excluded(self) -> Sequence[Refusal]:
        """What is ruled out."""
        ...

    @property
    def gpu(self) -> str:
        """Registry name."""
        ...

    @property
    def library(self) -> str:
        """Its library."""
        ...

    @property
    def library_version(self) -> str:
        """Its version."""
        ...

    @property
    def in_domain(self) -> bool:
        """True where training saw the like."""
        ...


@dataclass(frozen=True)
class Picks:
    """``convs`` and, one each, their ``rankings``; ``model`` is the bundle's, ``data`` what it was fitted on."""

    convs: tuple[Conv, ...]
    rankings: tuple[Ranking, ...]
    workspace_limit: int | None
    deterministic: bool
    model: str
    data: str
    candidate: str = "algorithm"

    @property
    def feasible(self) -> list[tuple[Conv, Ranking]]:
        """Problems that something runs, with their rankings."""
        return [(c, r) for c, r in zip(self.convs, self.rankings, strict=True) if r.candidates]

    @property
    def infeasible(self) -> list[tuple[Conv, Ranking]]:
        """The others."""
        return [(c, r) for c, r in zip(self.convs, self.rankings, strict=True) if not r.candidates]

    @property
    def provenance(self) -> list[str]:
        """What a comment at the head of a table says, line by line."""
        first = self.rankings[0]
        limit = "none" if self.workspace_limit is None else f"{self.workspace_limit} bytes"
        return [
            f"Predicted picks for {first.gpu}, {first.library} {first.library_version}, by SEER Surrogate.",
            f"Model {self.model}, fitted on {self.data}. Times are predictions, not measurements.",
            f"Workspace limit: {limit}; deterministic algorithms only: {'yes' if self.deterministic else 'no'}.",
            f"{len(self.feasible)} of {len(self.convs)} problems have a pick.",
        ]


def picks_for(
    predictor: Any,
    convs: Sequence[Conv],
    *,
    workspace_limit: int | None = None,
    deterministic: bool = False,
    library_version: str | None = None,
) -> Picks:
    """Rank every problem once with a `Predictor`. Raises `InputError` where there is no problem."""
    if not convs:
        raise InputError("no problem came; give at least one")
    distinct = tuple(dict.fromkeys(convs))
    rankings = predictor.select_many(
        distinct,
        workspace_limit=workspace_limit,
        deterministic=deterministic,
        library_version=library_version,
    )
    bundle = predictor.bundle
    trained = bundle.card.get("data", {}).get("name", "unnamed data")
    return Picks(
        distinct,
        tuple(rankings),
        workspace_limit,
        deterministic,
        bundle.model.name,
        trained,
        bundle.candidate,
    )


def enum_value(name: str, library: str, direction: str) -> int:
    """The library's own number of an algorithm. Raises `InputError` where it has none."""
    value = algorithm(name, library, direction).enum
    if value < 0:
        raise InputError(f"{library}'s {direction} algorithm {name} has no number; it cannot be exported")
    return value
