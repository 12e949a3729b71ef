"""Return what a question is about, apart from the sizes: its setting, the candidates, and the physics of both."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from surrogate.features.elementwise import Number
from surrogate.features.families import Family, Formula
from surrogate.features.gpu import Gpu


class Setting(NamedTuple):
    """A question without its sizes.

    ``gpu`` is a registry name and ``values`` are those of `Family.setting_names`. ``versions`` are the libraries whose
    kernels compete, each with its version.
    """

    family: Family
    gpu: str
    versions: tuple[tuple[str, str], ...]
    values: tuple[str, ...]

    @property
    def named(self) -> dict[str, str]:
        """Return the family's settings as name → value."""
        return dict(zip(self.family.setting_names, self.values, strict=True))

    def problem(self, sizes: Iterable[Number]) -> Any:
        """Return the problem of these sizes: one of numbers, or many of arrays (rows,)."""
        return self.family.problem(dict(zip(self.family.size_names, sizes, strict=True)), self.named)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An implementation: an algorithm of a library, and its solver if solvers are chosen ("" otherwise).

    ``key`` is its name in a model, ``mechanism`` what its columns depend on.
    """

    key: str
    library: str
    algorithm: str
    solver: str = ""
    mechanism: str = ""
    deterministic: bool = True

    @property
    def name(self) -> str:
        """The solver's name if there is one, else the algorithm's."""
        return self.solver or self.algorithm


class Context(NamedTuple):
    """What every source of a setting shares: the candidates on a device and the family's physics there.

    ``min_us`` (candidates,): no time lies below it, since the launch and the tail of the shortest kernels take as long.
    """

    setting: Setting
    device: Gpu
    candidates: tuple[Candidate, ...]
    formula: Formula
    min_us: np.ndarray
