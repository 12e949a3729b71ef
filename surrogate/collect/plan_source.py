"""From the ways a plan can be named (file, grid, networks, sample, recording) to the plan; SEER's grids (`grids.toml`).

``networks.json`` holds every convolution of well-known networks at batch 1, in the order of their published tables
(224 × 224 RGB images): Krizhevsky 2014 (AlexNet, the one-tower form), Simonyan and Zisserman 2015 (VGG), Szegedy et al.
2015 (Inception, without the auxiliary classifiers), Iandola et al. 2016 (SqueezeNet), He et al. 2016 (ResNet, the
stride on the 3×3), Xie et al. 2017 (ResNeXt), Huang et al. 2017 (DenseNet), Sandler et al. 2018 (MobileNet, width 1.0),
Tan and Le 2019 (EfficientNet, with squeeze-and-excitation).
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from surrogate.collect.plan import Caps, Plan, PlannedProblem, Settings, build, unique
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError, require_known
from surrogate.features.text import parse

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Batches at which every layer is planned."""


@cache
def networks() -> dict[str, tuple[Conv, ...]]:
    """Name → every convolution of the network in the order of its table, at batch 1, fp32 NCHW forward."""
    lines = json.loads(Path(__file__).with_name("networks.json").read_text(encoding="utf-8"))
    return {name: tuple(map(parse, " ".join(layers).split())) for name, layers in lines.items()}


def network_problems() -> list[PlannedProblem]:
    """Every distinct layer at every batch, with the names of the networks it occurs in."""
    layers = unique(PlannedProblem(conv, "network", (name,)) for name, convs in networks().items() for conv in convs)
    return [PlannedProblem(layer.conv.with_batch(n), "network", layer.networks) for layer in layers for n in BATCHES]


BATCH = 128
GRIDS: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("grids.toml").read_text(encoding="utf-8")
)
"""Name → ``channels``, ``sizes``, ``filters``, ``strides`` and ``pad``."""
ALL = "seer"
"""All of them together; a problem that several grids hold counts once."""


@cache
def grid_problems(name: str) -> tuple[PlannedProblem, ...]:
    """The problems of one grid, or of all under the name ``seer``; an unknown name raises `InputError`."""
    require_known("grid", name, (ALL, *GRIDS))
    names = tuple(GRIDS) if name == ALL else (name,)
    problems: list[PlannedProblem] = []
    for member in names:
        grid = GRIDS[member]
        axes = (grid[name] for name in ("channels", "channels", "sizes", "filters", "strides"))
        for c, k, h, r, stride in product(*axes):
            conv = Conv(n=BATCH, c=c, h=h, k=k, r=r, pad_h=grid["pad"], stride_h=stride)
            problems.append(PlannedProblem(conv, f"grid {member}"))
    return tuple(problems)


def file_problems(path: str | Path) -> list[PlannedProblem]:
    """The convolutions of a user's list (see `surrogate.dataset.problem_list`), in its order, with its networks.

    Raises `InputError` naming the file, the line, what came and the rule.
    """
    from surrogate.dataset.problem_list import read_list

    return [
        PlannedProblem(listed.problem, "plan", listed.networks)
        for listed in read_list(path)
        if isinstance(listed.problem, Conv)
    ]


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
        sources = {"plan": self.file, "grid": self.grid, "sample": self.sample, "recording": self.recording}
        named = [f"{kind} {source}" for kind, source in sources.items() if source is not None]
        named += ["networks"] if self.networks else []
        if len(named) != 1:
            came = " and ".join(named) or "none"
            raise InputError(f"{came} came as the plan; name one of --plan, --grid, --networks, --sample")
        problems, anchors = self._problems(caps)
        under: Any = {"seed": self.seed, "caps": caps, "settings": self.settings, "shard": self.shard}
        return build(problems, description=named[0], anchors=anchors, **under)

    def _problems(self, caps: Caps) -> tuple[Sequence[PlannedProblem], Sequence[PlannedProblem] | None]:
        """The problems, and the pool of anchors where it is another than the problems."""
        if self.file is not None:
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
