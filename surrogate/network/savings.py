"""What choosing well saves: over the library's own heuristic, where its picks are known, and over one algorithm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from surrogate.features.conv import Conv
from surrogate.network.network import Network
from surrogate.prediction.results import Selection

FIXED = {
    "cudnn": {"fwd": "IMPLICIT_PRECOMP_GEMM", "bwd_data": "ALGO_1", "bwd_filter": "ALGO_1"},
    "reference": {"fwd": "IMPLICIT_PRECOMP_GEMM"},
    "miopen": dict.fromkeys(("fwd", "bwd_data", "bwd_filter"), "GEMM"),
}
"""Library and direction → the one algorithm that runs nearly everything (cuDNN's backward ones are its kin)."""


@dataclass(frozen=True, slots=True)
class Rival:
    """Another way to choose: predicted time of ``convs`` convolutions under it and under the best algorithm.

    ``unknown`` convolutions are in neither sum: its pick is not known, or is no candidate.
    """

    name: str
    convs: int
    unknown: int
    time_us: float
    best_us: float
    note: str = ""

    @property
    def saved_us(self) -> float:
        """What the best algorithms save."""
        return self.time_us - self.best_us

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; ``saved_share`` is None where nothing is known."""
        return {
            "rival": self.name,
            "convs": self.convs,
            "unknown": self.unknown,
            "time_us": self.time_us,
            "best_us": self.best_us,
            "saved_us": self.saved_us,
            "saved_share": self.saved_us / self.time_us if self.time_us else None,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Savings:
    """Every rival, in the order in which they are shown."""

    rivals: tuple[Rival, ...] = ()

    def to_dict(self) -> list[dict[str, Any]]:
        """One record per rival."""
        return [rival.to_dict() for rival in self.rivals]


def savings(network: Network, choices: Mapping[Conv, Selection]) -> Savings:
    """Rivals of the best choices; a convolution counts as often as the network has it."""
    convs = [(layer.work, layer.heuristic) for layer in network.layers if isinstance(layer.work, Conv)]
    if not convs:
        return Savings()
    named = [(conv, pick) for conv, pick in convs if pick]
    note = "" if named else "its picks are not in the file, and no model here knows them"
    fixed = FIXED.get(choices[convs[0][0]].library, {})
    only = sorted({fixed[conv.direction] for conv, _ in convs if conv.direction in fixed})
    return Savings(
        (
            _rival("the library's heuristic", convs, choices, note),
            _rival(
                f"always {' / '.join(only)}",
                [(conv, fixed.get(conv.direction)) for conv, _ in convs],
                choices,
                "",
            ),
        )
    )


def _rival(
    name: str, picks: Sequence[tuple[Conv, str | None]], choices: Mapping[Conv, Selection], note: str
) -> Rival:
    time_us = best_us = 0.0
    known = 0
    for conv, pick in picks:
        estimates = choices[conv].estimates
        mine = next((one for one in estimates if one.candidate.name == pick), None)
        if mine is not None:
            known += 1
            time_us += mine.time_us
            best_us += estimates[0].time_us
    return Rival(name, known, len(picks) - known, time_us, best_us, note)
