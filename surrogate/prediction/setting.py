"""`Setting`: everything about a question but the problem's sizes; and the candidates that it has."""

from dataclasses import dataclass

from surrogate.features.algorithms import Mechanism, algorithm, mechanism_of
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu


@dataclass(frozen=True, slots=True)
class Setting:
    """``gpu`` by its registry name; the other fields as in a dataset's columns."""

    gpu: str
    library: str
    library_version: str
    direction: str
    dtype: str
    math: str
    layout: str

    @classmethod
    def of(cls, conv: Conv, gpu: str, library: str, library_version: str) -> "Setting":
        """The setting of a problem on a device."""
        return cls(gpu, library, library_version, conv.direction, conv.dtype, conv.math, conv.layout)


@dataclass(frozen=True, slots=True)
class Candidate:
    """What can be chosen: an algorithm, and its solver where solvers are chosen ("" else).

    ``name`` is what the model codes and `Selection` shows; ``deterministic`` says whether two runs give the same bits.
    """

    algorithm: str
    solver: str
    mechanism: Mechanism
    deterministic: bool
    code: float

    @property
    def name(self) -> str:
        """The solver's name where there is one, else the algorithm's."""
        return self.solver or self.algorithm

    @classmethod
    def of(cls, library: str, direction: str, name: str, solver: str, code: float) -> "Candidate":
        """From the registry; an algorithm that it lacks is taken for deterministic."""
        try:
            deterministic = algorithm(name, library, direction).deterministic
        except InputError:
            deterministic = True
        return cls(name, solver, mechanism_of(name, library, direction), deterministic, code)


@dataclass(frozen=True, slots=True)
class Place:
    """A device as the bundle knows it: ``fitted`` is False where training never saw it."""

    device: Gpu
    name: str
    fitted: bool
