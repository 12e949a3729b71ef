"""`Family`: everything that one kind of kernel contributes; the rest of the project asks a family and names none.

A family says which sizes and settings its problems have, which columns a model sees, what decides whether a candidate
runs a problem, and which problems are one shape. Every formula serves one problem of numbers and a table of arrays.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from .elementwise import Number
from .errors import read_table
from .gpu import Gpu
from .problem import HALF, Size
from .roofline import MACHINE_NAMES

DECLARED = read_table("families/families.toml")
"""Family → what it declares beside its formulas: names of columns, batch, strata and so on."""
DEFAULT_ALGORITHM = "default"
"""The algorithm of a kernel among which nothing can be chosen."""


P = TypeVar("P")


class Candidate(NamedTuple):
    """What a library offers for a problem. ``deterministic``: two runs give the same bits."""

    algorithm: str
    deterministic: bool = True
    implemented: bool = True


class ProblemTerms(NamedTuple):
    """Columns of a problem on a machine, the roofline time in µs, and what `Formula.candidate` goes on with."""

    values: tuple[Number, ...]
    roofline_us: Number
    sized: Any


class Formula(NamedTuple):
    """A family's physics in one setting on one GPU.

    ``constant`` are the columns that no problem changes, in the order of `Family.constant_names`; ``problem`` gives the
    `ProblemTerms` of a problem of numbers or arrays; ``candidate`` the columns `Family.candidate_names` of a mechanism
    on it (of a described kernel: of configurations), and its workspace in bytes.
    """

    constant: tuple[float, ...]
    problem: Callable[[Any], ProblemTerms]
    candidate: Callable[[ProblemTerms, Any], tuple[tuple[Number, ...], Number]]


class Family(ABC, Generic[P]):
    """One kind of kernel, with problems of type ``P``. Instances are constants; `families.FAMILIES` has all."""

    name: str
    kinds: Mapping[str, type[P]]
    """Kind of problem → the class of its problems."""
    sizes: tuple[Size, ...]
    settings: Mapping[str, tuple[str, ...]]
    """Text columns that, with GPU and sizes, make a problem → their known values (empty: any)."""
    setting_defaults: Mapping[str, str]
    setting_meanings: Mapping[str, str] = MappingProxyType({})
    """Settings that no table of columns explains → what they say."""
    batch: tuple[str, ...]
    """Sizes that a shape leaves out: folds hold out all batches of a shape together."""
    strata: tuple[str, ...]
    """Kinds of problems that are reported apart."""
    primary: str = "all"
    """The grouping of problems that the primary figure is taken over."""
    candidate_key: tuple[str, ...]
    """Columns that, with the library, name a candidate to a model."""
    dimension_names: tuple[str, ...]
    """Those of ``problem_names`` and ``constant_names`` that are raw sizes and settings: a model without physics."""
    problem_names: tuple[str, ...]
    candidate_names: tuple[str, ...] = ()
    distance_units: Mapping[str, float] = MappingProxyType(
        {"log2_flops": 4.0, "log2_intensity": 2.0, "itemsize": 4.0, "uses_tensor_cores": 1.0}
    )
    """Column → the difference between two problems that counts as one unit of distance."""
    lines: tuple[Mapping[str, int], ...] = ()
    """Directions in the logarithms of the sizes, as size → exponent, along which times change smoothly.

    Every one changes the shape, and its first exponent is 1. Times between measured ones are interpolated along them.
    """
    grid_sizes: tuple[str, ...] = ()
    """Sizes that tables measure at a few values; between two of them a time is interpolated from both."""
    scaled: tuple[tuple[str, ...], ...] = ()
    """Sizes that may be scaled for a new problem of the kind; one factor scales all names of an entry."""
    parameter_names: tuple[str, ...] = ()
    """Parameters of a configuration, where candidates are configurations of a described kernel: columns of a table,
    whose values a candidate's ``solver`` names; `Formula.candidate` then takes them as an array."""
    own_roofline: str = ""
    """The candidate column that holds log2(candidate's roofline / problem's roofline); empty where there is none."""
    has_call_cost: bool = True
    """True where times hold a call's fixed cost that no term of the family describes."""
    call_cost_by_gpu: bool = False
    """True if the base of the trees holds the cost of a call on each GPU, not one for all GPUs.

    With GPUs left out of 40,000 rows of the public tables, matrix products are 15.5 % off in the median with a cost for
    each GPU, and 17.7 % with one for all. The other families do not lose by one for all."""
    tensor_core_mechanism: str = ""
    """The mechanism whose times `TensorCoreLaw` gives from a GPU's specification; empty where it describes none."""
    tiled_kinds: tuple[str, ...] = ()
    """Kinds of problems whose times `TiledProductLaw` gives from the specification of AMD's GPUs."""
    half_types_share_algorithms: bool = True
    """True where libraries run fp16 and bf16 by the same kernels, so that times of one stand for the other."""
    version: int = 1
    """Raised whenever a column, the order or a formula changes; bundles carry it."""

    @property
    def size_names(self) -> tuple[str, ...]:
        """Names of the size columns, in order."""
        return tuple(size.name for size in self.sizes)

    @property
    def setting_names(self) -> tuple[str, ...]:
        """Names of the setting columns, in order."""
        return tuple(self.settings)

    @property
    def shape_names(self) -> tuple[str, ...]:
        """The size columns without the batch."""
        return tuple(name for name in self.size_names if name not in self.batch)

    @property
    def counted_names(self) -> tuple[str, ...]:
        """Size columns whose product no count of work exceeds by much: a table's rows keep it in the range of int64."""
        return tuple(size.name for size in self.sizes if size.counts)

    @property
    def problem_key(self) -> tuple[str, ...]:
        """Columns whose values name one problem on one device: what candidates are compared on."""
        return ("gpu", *self.setting_names, *self.size_names)

    @property
    def row_key(self) -> tuple[str, ...]:
        """Columns whose values name one row of a table; ``solver`` joins them where the table has it."""
        return ("gpu", "library", "library_version", *self.setting_names, *self.size_names, "algorithm")

    @property
    def groupings(self) -> tuple[str, ...]:
        """What a report has rows for: everything, the primary grouping, and each stratum."""
        return tuple(dict.fromkeys(("all", self.primary, *self.strata)))

    @property
    def constant_names(self) -> tuple[str, ...]:
        """Columns that only the setting and the GPU decide: the family's own, then the machine's."""
        return (*self.setting_columns, *MACHINE_NAMES)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Every column that a model may see, in the order of `formula`'s parts."""
        return (*self.problem_names, *self.candidate_names, *self.constant_names)

    setting_columns: tuple[str, ...] = ()
    """Numeric columns of the setting, such as the item size."""

    def whole_text(self, problem: str) -> str:
        """The text of a problem, with the kind that it may leave out."""
        return problem

    @abstractmethod
    def read(self, kind: str, body: str, settings: Mapping[str, str]) -> P:
        """The problem of one of its kinds whose sizes a text gives. Raises `InputError` for what cannot be read."""

    @abstractmethod
    def problem(self, sizes: Mapping[str, Number], setting: Mapping[str, str]) -> P:
        """The problem of these sizes (numbers, or int64 arrays of one length) in a setting. Raises `InputError`."""

    @abstractmethod
    def setting_of(self, problem: P) -> tuple[str, ...]:
        """Values of `setting_names` of a problem."""

    @abstractmethod
    def sizes_of(self, problem: P) -> tuple[Number, ...]:
        """Values of `size_names` of a problem."""

    @abstractmethod
    def formula(self, setting: tuple[str, ...], gpu: Gpu) -> Formula:
        """The physics of a setting on a GPU."""

    def is_streaming(self, setting: tuple[str, ...]) -> bool:
        """True where a kernel is one pass over memory: its times tell a call's fixed cost from the kernel's own."""
        return False

    @abstractmethod
    def stratum(self, problem: P) -> np.ndarray:
        """(rows,) the stratum of each problem of an array problem."""

    def kernel_group(self, problem: P) -> np.ndarray:
        """(rows,) a name for problems that run kernels of their own: those of one name may share a simple fit."""
        return self.stratum(problem)

    def in_grouping(self, stratum: np.ndarray, grouping: str) -> np.ndarray:
        """(rows,) True where a problem of that stratum belongs to one of `groupings`."""
        return np.full(len(stratum), True) if grouping == "all" else stratum == grouping

    def candidates(self, library: str, setting: tuple[str, ...]) -> tuple[Candidate, ...]:
        """What the registry knows of a library, in its order; empty where only measurements tell."""
        return ()

    def mechanism(self, library: str, setting: tuple[str, ...], algorithm: str) -> str:
        """How a candidate works, as far as `Formula.candidate` distinguishes."""
        return ""

    def default_math(self, dtype: str, gpu: Gpu | None = None) -> str:
        """The math type that PyTorch runs by default: tensor cores for half precision, where the GPU has them.

        None: no GPU is chosen yet; then they count as there, and what else a GPU may have (TF32) as missing.
        """
        units: dict[str, float] = dict.fromkeys(HALF, 1.0)
        if gpu is not None:
            units = {"fp16": gpu.fp16_tensor_tflops, "bf16": gpu.bf16_tensor_tflops}
        return "tensor_op" if units.get(dtype) else "fma"

    def has_tensor_kernels(self, mechanism: str) -> bool:
        """False for a mechanism whose kernels use no tensor cores whatever the math type allows."""
        return True

    def traits(self, problem: P) -> tuple[Number, ...]:
        """What of the sizes decides whether a candidate runs a problem; numbers, or arrays as the problem is."""
        return ()

    def refusal(self, library: str, setting: tuple[str, ...], algorithm: str, problem: P, gpu_name: str) -> str | None:
        """Why the library's documentation rules a candidate out for one problem, None where it does not."""
        return None

    def geometry(self, sizes: Mapping[str, np.ndarray], library: np.ndarray) -> list[tuple[str, np.ndarray, str]]:
        """(column, rows that break the rule, the rule): sizes that do not fit one another. Rows (rows,) in range."""
        return []
