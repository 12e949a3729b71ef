"""`Family`: the declaration of one kind of kernel. The rest of the project uses families through this interface.

A family declares the sizes and settings of its problems and the columns that a model sees. It also decides which
candidates support a problem, and which problems have the same shape. Each formula serves numbers as well as arrays.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from .elementwise import Number, maximum, where
from .errors import read_toml
from .gpu import Gpu
from .problem import HALF, Size, may_use_tensor_cores
from .roofline import MACHINE_NAMES, compute_us, memory_us, peak_tflops

DECLARED = read_toml(__file__, "families/families.toml")
"""Family → its declarations besides formulas: names of columns, batch, strata and so on."""
DEFAULT_ALGORITHM = "default"
"""The algorithm's name if a kernel has only one."""


P = TypeVar("P")


class Candidate(NamedTuple):
    """An implementation that a library offers for a problem. ``deterministic`` is None if that is undocumented."""

    algorithm: str
    deterministic: bool | None = None
    implemented: bool = True


class ProblemTerms(NamedTuple):
    """The columns of a problem on a machine, its roofline time in µs, and the input of `Formula.candidate`."""

    values: tuple[Number, ...]
    roofline_us: Number
    problem: Any


class Formula(NamedTuple):
    """The formulas of a family in one setting on one GPU.

    ``constant`` holds the columns that are equal for all problems, in the order of `Family.constant_names`. ``problem``
    returns the `ProblemTerms` of a problem of numbers or arrays. ``candidate`` returns the columns
    `Family.candidate_names` of a mechanism on that problem, and its workspace in bytes; for a described kernel it takes
    configurations in place of a mechanism.
    """

    constant: tuple[float, ...]
    problem: Callable[[Any], ProblemTerms]
    candidate: Callable[[ProblemTerms, Any], tuple[tuple[Number, ...], Number]]


class Family(ABC, Generic[P]):
    """One kind of kernel, with problems of type ``P``. Instances are constants; `families.FAMILIES` holds all."""

    name: str
    kinds: Mapping[str, type[P]]
    """Kind of problem → class of the problems."""
    sizes: tuple[Size, ...]
    settings: Mapping[str, tuple[str, ...]]
    """Text columns of a problem besides its GPU and its sizes → their registered values (empty: any value)."""
    setting_defaults: Mapping[str, str]
    setting_meanings: Mapping[str, str] = MappingProxyType({})
    """Setting → its meaning, for settings that the tables of columns do not explain."""
    batch: tuple[str, ...]
    """Sizes that are not part of a shape: folds hold out all batches of a shape together."""
    strata: tuple[str, ...]
    """Groups of problems that reports list separately."""
    kernel_groups: tuple[str, ...] = ()
    """Groups of problems with kernels of their own, the usual one first; empty if all problems run the same kernels."""
    primary: str = "all"
    """The grouping of problems that the primary figure covers."""
    candidate_key: tuple[str, ...]
    """Columns that, with the library, identify a candidate for a model."""
    dimension_names: tuple[str, ...]
    """The raw sizes and settings among ``problem_names`` and ``constant_names``: the columns of a model without
    physics."""
    problem_names: tuple[str, ...]
    candidate_names: tuple[str, ...] = ()
    distance_units: Mapping[str, float] = MappingProxyType(DECLARED["distance_units"])
    """Column → the difference between two problems that counts as one unit of distance."""
    lines: tuple[Mapping[str, int], ...] = ()
    """Directions along which times change smoothly and are interpolated: size → exponent, in the logarithms of the
    sizes.

    Each direction changes the shape, and its first exponent is 1.
    """
    grid_sizes: tuple[str, ...] = ()
    """Sizes that tables measure at a few values only. A time between two values is interpolated from both."""
    scaled: tuple[tuple[str, ...], ...] = ()
    """Sizes that may be scaled to make a new problem of the kind; one factor scales all sizes of an entry."""
    parameter_names: tuple[str, ...] = ()
    """Parameters of a configuration, if candidates are configurations of a described kernel.

    They are columns of a table. A candidate's ``solver`` names their values, and `Formula.candidate` takes them as an
    array.
    """
    own_roofline: str = ""
    """The candidate column that holds log2(candidate's roofline / problem's roofline); empty if there is none."""
    has_call_cost: bool = True
    """True if times include a constant call cost that no term of the family describes."""
    call_cost_by_gpu: bool = False
    """True if the base of the trees has a call cost for each GPU, not one for all GPUs.

    On held-out GPUs, the median error of matrix products is 15.5 % with a call cost for each GPU, and 17.7 % with one
    for all (40,000 rows of the public tables). The other families do not lose accuracy with one for all.
    """
    tensor_core_mechanism: str = ""
    """The mechanism that `TensorCoreModel` times from a GPU's datasheet; empty if there is none."""
    tiled_kinds: tuple[str, ...] = ()
    """Kinds of problems that `TiledProductModel` times from the datasheets of AMD's GPUs."""
    half_types_share_algorithms: bool = True
    """True if libraries run fp16 and bf16 with the same kernels, so that times of one type serve as times of the other.
    """
    version: int = 1
    """The version of the columns. It is raised when a column, the order or a formula changes, and bundles store it."""

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
        """Size columns that multiply the work. A check of their product keeps counts of work within int64."""
        return tuple(size.name for size in self.sizes if size.counts)

    @property
    def problem_key(self) -> tuple[str, ...]:
        """Columns that identify a problem on a GPU. Candidates are compared if these columns are equal."""
        return ("gpu", *self.setting_names, *self.size_names)

    @property
    def row_key(self) -> tuple[str, ...]:
        """Columns that identify a row of a table; ``solver`` is added if the table has it."""
        return ("gpu", "library", "library_version", *self.setting_names, *self.size_names, "algorithm")

    @property
    def groupings(self) -> tuple[str, ...]:
        """The groupings that a report has rows for: all problems, the primary grouping, and each stratum."""
        return tuple(dict.fromkeys(("all", self.primary, *self.strata)))

    @property
    def constant_names(self) -> tuple[str, ...]:
        """Columns that depend only on the setting and the GPU: the family's own, then the machine's."""
        return (*self.setting_columns, *MACHINE_NAMES)

    @property
    def column_names(self) -> tuple[str, ...]:
        """All columns that a model may see, in the order of `formula`'s parts."""
        return (*self.problem_names, *self.candidate_names, *self.constant_names)

    setting_columns: tuple[str, ...] = ()
    """Numeric columns of the setting, such as the item size."""

    def full_text(self, problem: str) -> str:
        """Return a problem's text with the kind that may be left out."""
        return problem

    @abstractmethod
    def read(self, kind: str, body: str, settings: Mapping[str, str]) -> P:
        """Return the problem of a kind whose text after the colon is ``body``. Raises `InputError` if it is not
        readable."""

    @abstractmethod
    def problem(self, sizes: Mapping[str, Number], setting: Mapping[str, str]) -> P:
        """Return the problem of the given sizes (numbers, or int64 arrays of one length) in a setting. Raises
        `InputError`."""

    @abstractmethod
    def setting_of(self, problem: P) -> tuple[str, ...]:
        """Return a problem's values of `setting_names`."""

    @abstractmethod
    def sizes_of(self, problem: P) -> tuple[Number, ...]:
        """Return a problem's values of `size_names`."""

    @abstractmethod
    def formula(self, setting: tuple[str, ...], gpu: Gpu) -> Formula:
        """Return the formulas of a setting on a GPU."""

    def work(self, problem: Any) -> tuple[Number, Number]:
        """Return a problem's FLOPs and compulsory DRAM traffic in bytes."""
        return problem.flops, problem.dram_bytes

    def shortest_us(self, problem: Any, setting: Mapping[str, str], gpu: Gpu, *, counts_flops: bool = True) -> Number:
        """Return the shortest time in µs that the GPU's peaks allow.

        The bytes of a problem count if they exceed the L2 cache, because repeated runs find smaller problems there. On
        AMD's GPUs, libraries use matrix units in all math types.
        """
        flops, dram_bytes = self.work(problem)
        is_tensor = gpu.vendor == "amd" or may_use_tensor_cores(setting["dtype"], setting["math"])
        compute = compute_us(1.0 * flops, peak_tflops(gpu, setting["dtype"], is_tensor)) if counts_flops else 0.0
        return maximum(compute, where(dram_bytes > gpu.l2_bytes, memory_us(1.0 * dram_bytes, gpu.dram_gbs), 0.0))

    def unaligned_us(self, problem: Any, gpu: Gpu) -> Number:
        """Return `Operator.unaligned_us`; 0 for other problems."""
        return 0.0

    def size_rule(self, problem: Any, gpu: Gpu) -> tuple[Number, str]:
        """Return `Operator.size_rule`; other problems break no rule."""
        return False, ""

    def is_streaming(self, setting: tuple[str, ...]) -> bool:
        """Return True if a kernel is one pass over memory: its times then separate the call cost from the kernel's
        time."""
        return False

    def tensor_bytes(self, problem: P) -> Number:
        """Return the minimum bytes of the problem's tensors in memory; 0 if they are unknown."""
        return 0

    @abstractmethod
    def stratum(self, problem: P) -> np.ndarray:
        """Return (rows,) the stratum of each problem of an array problem."""

    def kernel_group(self, problem: P) -> np.ndarray:
        """Return (rows,) the group of each problem. Problems of one group run the same kernels and may share a simple
        fit."""
        return self.stratum(problem)

    def in_grouping(self, stratum: np.ndarray, grouping: str) -> np.ndarray:
        """Return (rows,) True where a problem of that stratum belongs to one of `groupings`."""
        return np.full(len(stratum), True) if grouping == "all" else stratum == grouping

    def candidates(self, library: str, setting: tuple[str, ...]) -> tuple[Candidate, ...]:
        """Return the library's registered candidates, in order; empty if only measurements list them."""
        return ()

    def is_deterministic(self, library: str, setting: tuple[str, ...], algorithm: str) -> bool | None:
        """Return whether two runs of a candidate give the same bits, by the library's documentation; None: unknown."""
        stated = (each.deterministic for each in self.candidates(library, setting) if each.algorithm == algorithm)
        return next(stated, None)

    def mechanism(self, library: str, setting: tuple[str, ...], algorithm: str) -> str:
        """Return a candidate's mechanism, the second argument of `Formula.candidate`; "" if there is only one."""
        return ""

    def default_math(self, dtype: str, gpu: Gpu | None = None) -> str:
        """Return PyTorch's default math type: tensor cores for half precision and int8 if the GPU has them.

        If ``gpu`` is None, tensor cores for half precision are assumed and optional units (TF32) are not.
        """
        units: dict[str, float] = dict.fromkeys(HALF, 1.0)
        if gpu is not None:
            units = {"fp16": gpu.fp16_tensor_tflops, "bf16": gpu.bf16_tensor_tflops, "int8": gpu.int8_tensor_tflops}
        return "tensor_op" if units.get(dtype) else "fma"

    def has_tensor_kernels(self, mechanism: str) -> bool:
        """Return False if the mechanism's kernels use no tensor cores, whatever the math type allows."""
        return True

    def traits(self, problem: P) -> tuple[Number, ...]:
        """Return the properties of the sizes that decide support: numbers, or arrays for an array problem."""
        return ()

    def kernel_group_of(self, traits: tuple[int, ...]) -> str:
        """Return the one of `kernel_groups` that problems with these traits belong to; empty without such groups."""
        return ""

    def refusal(self, library: str, setting: tuple[str, ...], algorithm: str, problem: P, gpu_name: str) -> str | None:
        """Return the reason why the library's documentation excludes a candidate for one problem, or None."""
        return None

    def misfits(self, sizes: Mapping[str, np.ndarray], library: np.ndarray) -> list[tuple[str, np.ndarray, str]]:
        """Return (column, rows that break the rule, rule) for sizes that do not fit one another."""
        return []
