"""From the ways a plan can be named — file, grid, networks, sample, recording — to the plan."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from surrogate.collect.caps import Caps
from surrogate.collect.grids import grid_problems
from surrogate.collect.network_plan import network_problems
from surrogate.collect.plan import Plan, PlannedProblem, Settings, build
from surrogate.features.errors import InputError


@dataclass(frozen=True, slots=True)
class PlanSource:
    """What was asked for; exactly one of the first five. ``recording`` plans the problems that a run holds."""

    file: str | Path | None = None
    grid: str | None = None
    networks: bool = False
    sample: int | None = None
    recording: str | Path | None = None
    settings: Settings = field(default_factory=Settings)
    seed: int = 0
    shard: tuple[int, int] = (1, 1)

    def build(self, caps: Caps) -> Plan:
        """The plan under ``caps``; `InputError` where none or several sources are named, or nothing is left."""
        named = [
            description
            for description, given in (
                (f"plan {self.file}", self.file is not None),
                (f"grid {self.grid}", self.grid is not None),
                ("networks", self.networks),
                (f"sample {self.sample}", self.sample is not None),
                (f"recording {self.recording}", self.recording is not None),
            )
            if given
        ]
        if len(named) != 1:
            came = " and ".join(named) or "none"
            raise InputError(
                f"{came} came as the plan; name one of --plan FILE, --grid seer, --networks, --sample N"
            )
        problems, anchors = self._problems(caps)
        return build(
            problems,
            description=named[0],
            seed=self.seed,
            caps=caps,
            settings=self.settings,
            shard=self.shard,
            anchors=anchors,
        )

    def _problems(self, caps: Caps) -> tuple[Sequence[PlannedProblem], Sequence[PlannedProblem] | None]:
        """The problems, and the pool of anchors where it is another than the problems."""
        if self.file is not None:
            from surrogate.collect.plan_file import file_problems

            return file_problems(self.file), None
        if self.grid is not None:
            return grid_problems(self.grid), None
        if self.sample is not None:
            from surrogate.collect.sample import mixture

            return mixture(self.sample, self.seed, caps)
        if self.recording is not None:
            from surrogate.collect.replay import ReplayDevice

            return ReplayDevice(self.recording).problems(), None
        return network_problems(), None


def parse_shard(text: str) -> tuple[int, int]:
    """``(i, n)`` from ``i/n``; `InputError` for anything else."""
    first, slash, second = text.partition("/")
    if not (slash and first.isdecimal() and second.isdecimal()):
        raise InputError(f"shard {text!r} is not readable; give i/n with 1 ≤ i ≤ n, as in 2/4")
    return int(first), int(second)
