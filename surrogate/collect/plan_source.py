"""From the ways a plan can be named (file, grid, networks, sample, recording) to the plan; SEER's grids."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from surrogate.collect.networks import network_problems
from surrogate.collect.plan import Caps, Plan, PlannedProblem, Settings, build
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError, nearest

BATCH = 128
GEMM_CHANNELS = (3, 16, 64, 128, 512, 1024)
FFT_CHANNELS = (3, 16, 32, 64, 128, 256, 512, 1024)
FFT_FILTERS = (1, 3, 5, 7, 9, 11)
WINOGRAD_CHANNELS = (3, 16, 32, 64, 100, 128, 256, 400, 512, 600, 800, 1024)
NONFUSED_CHANNELS = (3, 16, 32, 64, 128, 256, 400, 512, 800, 1024)
PICK_CHANNELS = (10, 20, 50, 100, 200, 400, 800, 1000)


def grid(
    channels: tuple[int, ...],
    sizes: tuple[int, ...],
    filters: tuple[int, ...],
    strides: tuple[int, ...],
    pad: int,
) -> Callable[[], Iterator[Conv]]:
    """A function that yields the cross product input channels × output channels × size × filter × stride."""

    def problems() -> Iterator[Conv]:
        for c, k, h, r, stride in product(channels, channels, sizes, filters, strides):
            yield Conv(n=BATCH, c=c, h=h, k=k, r=r, pad_h=pad, stride_h=stride)

    return problems


GRIDS: Mapping[str, Callable[[], Iterator[Conv]]] = {
    "seer-gemm": grid(GEMM_CHANNELS, (10, 40, 80, 160, 224, 320), (1, 3, 5, 7, 9), (1, 2, 3, 4), 0),
    "seer-fft": grid(FFT_CHANNELS, (16, 32, 48, 64, 96, 128, 224, 256), FFT_FILTERS, (1,), 0),
    "seer-fft-tiling": grid(FFT_CHANNELS, (32, 64, 128, 224, 256, 320), FFT_FILTERS, (1,), 0),
    "seer-winograd": grid(
        WINOGRAD_CHANNELS, (4, 10, 16, 20, 32, 64, 80, 100, 128, 224, 256, 400, 512), (3,), (1,), 1
    ),
    "seer-winograd-nonfused": grid(
        NONFUSED_CHANNELS, (4, 10, 16, 32, 64, 100, 128, 224, 256, 400, 512), (3, 5), (1,), 1
    ),
    "seer-pick": grid(PICK_CHANNELS, (20, 40, 80, 100, 200, 300, 400, 500), FFT_FILTERS, (1, 2, 3), 0),
}
"""Name → its problems, before any cap. Sizes: 4,320, 3,072, 2,304, 1,872, 2,200 and 9,216."""
ALL = "seer"
"""All of them together; a problem that several grids hold counts once."""


def grid_problems(name: str) -> list[PlannedProblem]:
    """The problems of one grid, or of all under the name ``seer``; an unknown name raises `InputError`."""
    names = tuple(GRIDS) if name == ALL else (name,)
    if name != ALL and name not in GRIDS:
        known = (ALL, *GRIDS)
        raise InputError(f"grid {name!r} is unknown; known: {', '.join(known)}{nearest(name, known)}")
    return [PlannedProblem(conv, f"grid {member}") for member in names for conv in GRIDS[member]()]


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
