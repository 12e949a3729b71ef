"""`Operator`: the base class of all problems except convolutions. It has sizes, FLOPs, bytes, blocks and a roofline.

A class is one kind of operator. It names its family and has a known answer; `register_operator` adds it to `OPERATORS`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar, dataclass_transform

import numpy as np

from .. import problem as problems, roofline
from ..elementwise import Number, ceil_div, checked_int
from ..errors import InputError, TooLargeError, check_choice
from ..gpu import Gpu
from ..problem import Element, Gradients, InNetwork, Size, declared_settings, declared_sizes, fill_followers

ELEMENTS_PER_BLOCK = 512
"""128 threads of 4 elements each, as in PyTorch's vectorized_elementwise_kernel."""
REDUCE = "reduce"
CAST = "cast"
"""Variants of `Streamed` work: a reduction, and a change of the element type."""
MAX_WORK = 2**60
"""Maximum operations or bytes of a problem. Columns are computed in int64."""


Misfit = tuple[str, Number, str]
"""A size, where it breaks a rule (True or False, or an array of them), and the rule."""


Choices = Mapping[str, tuple[str, ...]]
"""Setting → its allowed values."""


class KnownAnswer(NamedTuple):
    """A problem's text and its costs, calculated by hand. A test compares the operator's formulas with them."""

    problem: str
    flops: float
    dram_bytes: float
    blocks: float


class Extents(NamedTuple):
    """The sizes from which `memory_columns` are computed.

    An extent that an operator lacks is 1, and a missing padding is 0.
    ``elements`` is the number of elements read. ``outputs`` is the number of elements written, if it differs.
    """

    elements: Number
    n: Number = 1
    c: Number = 1
    h: Number = 1
    w: Number = 1
    window: Number = 1
    window_w: Number = 1
    stride: Number = 1
    pad: Number = 0
    outputs: Number | None = None
    tables: Number = 1
    bag: Number = 1
    rows: Number = 1
    ranks: Number = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator(InNetwork, ABC):
    """One problem (integers), or many problems of one kind, dtype, math and variant (int64 arrays of one length).

    Subclasses declare sizes and further settings. An operator is hashable if its sizes are numbers.

    Parameters
    ----------
    dtype : str
        An element type: a key of `DTYPES` or, for products, of `QUANTISED`.
    math : str
        One of `MATHS`. Quantised types always have ``default``, because only matrix units compute with them.
    variant : str
        The library's algorithm or mode if it has several ("SPATIAL_PERSISTENT"). Formulas ignore it; models may use it.

    Raises
    ------
    InputError
        If a size is no whole number in range, sizes do not fit one another, or the dtype or the math is unknown.
    """

    kind: ClassVar[str] = "operator"
    FAMILY: ClassVar[str] = ""
    """Name of the operator's family; empty if no model covers the operator."""
    KNOWN_ANSWER: ClassVar[KnownAnswer | None] = None
    """The answer given to `register_operator`. Its problem is the example in messages."""
    BATCH: ClassVar[str] = "n"
    """The batch size: a shape consists of the other sizes."""
    BATCHES: ClassVar[tuple[str, ...]] = ()
    """Sizes that may be the batch inside a network, if `BATCH` is not always it."""
    CHOICES: ClassVar[Choices] = {"dtype": tuple(problems.DTYPES), "math": problems.MATHS}
    """Setting → its allowed values. A setting that is not listed may be any text."""
    LETTERS: ClassVar[Mapping[str, str]] = {}
    """Short name of a size in written texts → the size."""
    ALSO_READ: ClassVar[Mapping[str, str]] = {"b": "batch"}
    """Further short names that are accepted in texts."""
    MULTIPLIES: ClassVar[bool] = False
    """True for products of matrices."""
    FALLBACK_KINDS: ClassVar[tuple[str, ...]] = ()
    """Kinds of the same sizes and the same traffic, nearest first. Their measurements replace missing ones."""
    BANDWIDTH_SHARE: ClassVar[str] = ""
    """The name of its share of the DRAM bandwidth in `TensorCoreModel`: streaming, norm or pool; empty if unknown."""
    DETERMINISTIC: ClassVar[Mapping[str, bool]] = {}
    """Algorithm or library → whether two runs give the same bits, by its documentation."""
    APPLIED_BY: ClassVar[str] = ""
    """For a norm: the kind, of the same sizes, that scales and shifts with known statistics."""

    CROSSES_LINKS: ClassVar[bool] = False
    """True if its bytes cross links between devices, not the device's own memory."""
    MIN_SHARE: ClassVar[float] = 1.0
    """Its minimum time divided by `roofline_us`. It is below 1 if `roofline_us` includes usual waits between steps."""
    CALLS: ClassVar[float] = 1.0
    """Launches that a call alone costs, in multiples of a pointwise operator's."""

    dtype: str = "fp32"
    math: str = "fma"
    variant: str = ""

    def __post_init__(self) -> None:
        fill_followers(self)
        for name, choices in self.CHOICES.items():
            check_choice(f"{self.kind}: {name}", getattr(self, name), choices)
        if self.dtype in problems.QUANTISED:  # only matrix units compute with them
            object.__setattr__(self, "math", "default")
        for size in declared_sizes(type(self)):
            value = checked_int(self.kind, size.name, getattr(self, size.name), size.minimum)
            object.__setattr__(self, size.name, value)
        for name, wrong, rule in self.misfits(self.sizes):
            if wrong.any() if isinstance(wrong, np.ndarray) else wrong:
                value = np.broadcast_to(getattr(self, name), np.shape(wrong))[wrong].flat[0]
                raise InputError(f"{self.kind}: {name} {value} does not fit the other sizes; {rule}")
        has_numbers = all(type(getattr(self, name)) is int for name in self.size_names())
        if has_numbers and max(self.flops, self.dram_bytes) > MAX_WORK:
            raise TooLargeError(f"{self.kind}: over {MAX_WORK} operations or bytes; give smaller sizes")

    @classmethod
    def size_names(cls) -> tuple[str, ...]:
        """Return the names of the sizes, in the order of declaration."""
        return tuple(size.name for size in declared_sizes(cls))

    @classmethod
    def setting_names(cls) -> tuple[str, ...]:
        """Return the names of the settings (dtype, math, variant and the kind's own), in the order of declaration."""
        return tuple(declared_settings(cls))

    @classmethod
    def misfits(cls, sizes: Mapping[str, Number]) -> list[Misfit]:
        """Return (size, where it breaks the rule, rule) for sizes in range that do not fit one another."""
        return []

    @classmethod
    def is_streaming(cls) -> bool:
        """Return True for one pass over memory with too few operations to limit its time on any GPU."""
        return False

    @property
    def sizes(self) -> dict[str, Number]:
        """Size name → size."""
        return {name: getattr(self, name) for name in self.size_names()}

    @property
    def element(self) -> Element:
        """Bytes of the values of its element type."""
        return problems.ELEMENTS[self.dtype]

    @property
    def itemsize(self) -> int:
        """Bytes per element, for a type of `DTYPES`. In such a type all values have the same size."""
        return problems.DTYPES[self.dtype]

    @property
    def stratum(self) -> str:
        """The group of problems in which reports list the problem."""
        return self.kind

    @classmethod
    def tensor_cores(cls, dtype: str, math: str) -> bool:
        """Return True if matrix units may run the operator with that element type and math."""
        return cls.MULTIPLIES and problems.may_use_tensor_cores(dtype, math)

    @property
    def uses_tensor_cores(self) -> bool:
        """True if matrix units may run the problem."""
        return self.tensor_cores(self.dtype, self.math)

    @property
    @abstractmethod
    def flops(self) -> Number:
        """Floating-point operations, 2 per multiply-add."""

    @property
    @abstractmethod
    def dram_bytes(self) -> Number:
        """Compulsory DRAM traffic in bytes."""

    @property
    def tensor_bytes(self) -> Number:
        """Minimum bytes of its tensors in memory. Without tensors that are overwritten, it is `dram_bytes`."""
        return self.dram_bytes

    @property
    def weight_bytes(self) -> Number:
        """The part of `dram_bytes` that is weights; 0 if the kind does not separate them."""
        return 0

    @property
    @abstractmethod
    def blocks(self) -> Number:
        """Thread blocks that a typical kernel launches."""

    @classmethod
    def peak_tflops(cls, gpu: Gpu, dtype: str, math: str) -> float:
        """Return the peak of its arithmetic in TFLOP/s."""
        return roofline.peak_tflops(gpu, dtype, cls.tensor_cores(dtype, math))

    def variant_us(self, gpu: Gpu) -> Number:
        """Return the time in µs of a variant that was never measured alone and has a rate of its own; else 0."""
        return 0.0

    def size_rule(self, gpu: Gpu) -> tuple[Number, str]:
        """Return whether the sizes break a documented rule of all its kernels on a GPU, and the rule."""
        return False, ""

    def unaligned_us(self, gpu: Gpu) -> Number:
        """Return the time in µs that rows without alignment may add to a kernel for aligned rows; else 0."""
        return 0.0

    def roofline_us(self, gpu: Gpu) -> Number:
        """Return the larger of compute and memory time in µs (Williams et al., CACM 2009)."""
        peak = self.peak_tflops(gpu, self.dtype, self.math)
        return roofline.roofline_us(self.flops, self.dram_bytes, peak, gpu.dram_gbs)

    def fallback_kinds(self) -> tuple[str, ...]:
        """Return the kinds whose measurements may replace this problem's, nearest first."""
        return self.FALLBACK_KINDS

    def fallbacks(self) -> tuple["Operator", ...]:
        """Return the problem itself, then problems whose measurements may replace its own, nearest first.

        Problems without the variant come last: they answer for a variant that was never measured.
        """
        settings = {**self.sizes, "dtype": self.dtype, "math": self.math}
        problems = (self, *(operator_class(kind)(**settings) for kind in self.fallback_kinds()))
        return (*problems, *(replace(each, variant="") for each in problems if each.variant))

    def of_kind(self, kind: str) -> "Operator":
        """Return the operator of another kind with the same sizes and element type.

        For `STREAMED` it is a pass over memory that reads two tensors of its size and writes one, as a gradient does.
        """
        if kind == self.kind:
            return self
        if kind == problems.STREAMED:
            elements = prod(self.sizes.values())
            return Streamed(reads=2 * elements, writes=elements, dtype=self.dtype, variant=f"{self.kind}_backward")
        return operator_class(kind)(**self.sizes, dtype=self.dtype)

    def gradients(self, of: str) -> Gradients:
        """Return the operators of `GRADIENT` for the input, and for the weight if the kernel updates it itself."""
        if of != problems.INPUT and not self.UPDATES_WEIGHTS:
            return ()
        return tuple(("backward", self.of_kind(kind)) for kind in self.GRADIENT)

    def waves(self, gpu: Gpu) -> float:
        """Return how often its thread blocks fill the GPU. A wave is one block of 512 elements on every SM."""
        return self.dram_bytes / (self.element.output_bytes * ELEMENTS_PER_BLOCK * gpu.sms)

    def seer_class(self, gpu: Gpu, mechanism: str = "") -> str:
        """Return SEER's class by `waves`, FLOPs and compulsory bytes; the ``mechanism`` has no effect.

        Operators without products have memory's roofline, whatever they compute per element.
        """
        peak = roofline.peak_tflops(gpu, self.dtype, self.uses_tensor_cores)
        flops = self.flops if self.MULTIPLIES else 0
        return roofline.seer_class(self.waves(gpu), flops, self.dram_bytes, peak, gpu.dram_gbs)

    def at_batch(self, old: int, new: int) -> Self | None:
        """Return the problem with ``new`` for the only size that equals ``old``.

        The problem is returned unchanged if no size equals ``old`` or is a multiple of it; else the result is None.
        """
        sizes = [(name, getattr(self, name)) for name in self.BATCHES or (self.BATCH,) if name]
        equal = [name for name, size in sizes if size == old]
        if len(equal) == 1:
            return replace(self, **{equal[0]: new})
        return None if not sizes or any(size % old == 0 for _, size in sizes) else self

    def to_dict(self) -> dict[str, object]:
        """Return kind, sizes and settings as a dictionary."""
        return {"kind": self.kind, **self.sizes, **{name: getattr(self, name) for name in self.setting_names()}}

    def __str__(self) -> str:
        """Return the problem's text, as in ``softmax:n32c1000h1w1``."""
        short = {name: letter for letter, name in self.LETTERS.items()}
        return f"{self.kind}:" + "".join(f"{short.get(name, name)}{size}" for name, size in self.sizes.items())


OPERATORS: dict[str, type[Operator]] = {}
"""Kind → class of every registered operator."""
DeclaredOperator = TypeVar("DeclaredOperator", bound=type[Operator])


def operator_class(kind: str) -> type[Operator]:
    """Return the class of a kind. Raises `InputError` with the nearest kinds."""
    check_choice("operator", kind, OPERATORS)
    return OPERATORS[kind]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def register_operator(
    problem: str, *, flops: float, dram_bytes: float, blocks: float
) -> Callable[[DeclaredOperator], DeclaredOperator]:
    """Return a class decorator that registers a kind of operator in `OPERATORS`, with its known answer.

    ``problem`` begins with the kind. The class becomes a dataclass: frozen, with slots, keyword arguments only. Raises
    `TypeError` for a class without a family and for a kind that is already registered.
    """
    kind = problem.partition(":")[0]

    def register(cls: DeclaredOperator) -> DeclaredOperator:
        if not cls.FAMILY:
            raise TypeError(f"{cls.__name__}: an operator declares the FAMILY that it belongs to")
        if kind in OPERATORS:
            raise TypeError(f"{cls.__name__}: the kind {kind!r} is {OPERATORS[kind].__name__}'s")
        cls.kind = kind
        if "__slots__" not in vars(cls):  # it is no dataclass yet
            cls = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        cls.KNOWN_ANSWER = KnownAnswer(problem, flops, dram_bytes, blocks)
        OPERATORS[kind] = cls
        return cls

    return register


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound(Operator):
    """An operator limited by memory: the columns of its family are computed from its `Extents`."""

    MAX_TRAFFIC_RATIO: ClassVar[float] = 0.0
    """Maximum time of an unmeasured kernel, divided by the time of its traffic; 0: unknown.

    The values were chosen on half of KernelBench's programs, on 12 boards that no bundle was fitted on, and tested on
    the other half.
    """

    SERIAL: ClassVar[tuple[float, ...]] = ()
    """For kernels with a block per row: passes over the row, bytes in flight, and rows per SM and µs (0: no limit)."""

    @property
    def extents(self) -> Extents:
        """The extents of its pass over memory."""
        own = {name: getattr(self, name, None) for name in Extents._fields}
        return Extents(**{name: value for name, value in own.items() if value is not None})

    def traffic_us(self, gpu: Gpu) -> Number:
        """Return the time of its traffic in µs, repeated reads included."""
        return self.roofline_us(gpu)

    def serial_us(self, gpu: Gpu) -> Number:
        """Return the minimum time in µs of the work that blocks cannot share; 0 for many blocks of equal work."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Image(MemoryBound):
    """A tensor n × c × h × w; the class's FLOPs and accesses are per element.

    The traffic is ``ACCESSES`` tensors, each read or written once. A fitted correction covers repeated reads of a
    reduction, masks and per-channel values. A matrix of rows × columns has n rows and c columns.
    """

    FLOPS: ClassVar[int] = 0
    ACCESSES: ClassVar[int] = 2

    n: Annotated[int, Size("batch, or rows of a matrix", "images")]
    c: Annotated[int, Size("channels, or columns of a matrix")] = 1
    h: Annotated[int, Size("height", "pixels")] = 1
    w: Annotated[int, Size("width", "pixels")] = 1

    @property
    def elements(self) -> Number:
        """n·c·h·w."""
        return self.n * self.c * self.h * self.w

    @property
    def flops(self) -> Number:
        """Elements × FLOPs per element."""
        return self.FLOPS * self.elements

    @property
    def dram_bytes(self) -> Number:
        """Elements × accesses × itemsize."""
        return self.ACCESSES * self.itemsize * self.elements

    @property
    def tensor_bytes(self) -> Number:
        """Elements × itemsize: the result may overwrite the input."""
        return self.itemsize * self.elements

    def roofline_us(self, gpu: Gpu) -> Number:
        """Return the memory time in µs at the bandwidth of copies. It also covers the operations of gelu and
        softmax."""
        return roofline.memory_us(self.dram_bytes, gpu.dram_share * gpu.dram_gbs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed(Operator):
    """Any memory-bound operator: it reads ``reads`` elements and writes ``writes``; ``variant`` is its name.

    ``work`` is the number of operations per element written.
    """

    kind: ClassVar[str] = problems.STREAMED
    BATCH: ClassVar[str] = ""

    reads: Annotated[int, Size("values read", minimum=0)]
    writes: Annotated[int, Size("values written")]
    work: Annotated[int, Size("operations for each value written", minimum=0)] = 1

    @property
    def flops(self) -> Number:
        """Elements written × operations per element."""
        return self.writes * self.work

    @property
    def dram_bytes(self) -> Number:
        """Bytes of all elements, each moved once."""
        return self.itemsize * (self.reads + self.writes)

    @property
    def blocks(self) -> Number:
        """512 elements of the larger tensor per block."""
        return ceil_div(max(self.reads, self.writes), ELEMENTS_PER_BLOCK)

    def roofline_us(self, gpu: Gpu) -> Number:
        """Return the memory time in µs at the bandwidth of copies."""
        return roofline.memory_us(self.dram_bytes, gpu.dram_share * gpu.dram_gbs)

    def gradients(self, of: str) -> Gradients:
        """Return the gradient: a reduction's is broadcast; other operators read their inputs and dy, and write dx."""
        if of != problems.INPUT:
            return ()
        reads = self.writes if self.variant == REDUCE else self.reads + self.writes
        writes = self.reads if self.variant == REDUCE else max(self.reads, 1)
        name = f"{self.variant}_backward"
        return (("backward", Streamed(reads=reads, writes=writes, dtype=self.dtype, variant=name)),)


EXAMPLE_IMAGE = "n2c3h4w5"
"""The problem of the known answers in tables of images: fp32, 120 elements."""
ROW_KEYS = {"flops", "accesses", "meaning", "known_answer"}
OPTIONAL_KEYS = {"gradient", "weight_gradient", "in_training", "fallbacks", "bandwidth", "applied_by", "serial"}
_CONSTANTS = {"fallbacks": "FALLBACK_KINDS", "bandwidth": "BANDWIDTH_SHARE"}
"""Key of a row → the class constant that it sets, if that is not the key in capitals."""


def image_classes(base: type[Image], rows: Mapping[str, Mapping[str, Any]]) -> dict[str, type[Any]]:
    """Return kind → class: one class, in the registry, for each row of a table.

    Each class adds to ``base`` what an element costs. A row has the keys ``flops`` and ``accesses`` (both per element),
    ``meaning``, and ``known_answer``: [FLOPs, DRAM bytes, blocks] of `EXAMPLE_IMAGE`. It may have the `OPTIONAL_KEYS`,
    which `Operator` and `InNetwork` explain. Raises `TypeError` if a row lacks a key.
    """
    classes = {}
    for kind, row in rows.items():
        missing = ", ".join(sorted(ROW_KEYS - set(row)))
        unknown = ", ".join(sorted(set(row) - ROW_KEYS - OPTIONAL_KEYS))
        if missing or unknown:
            wrong = f"lacks {missing}" if missing else f"has {unknown}; known: {', '.join(sorted(OPTIONAL_KEYS))}"
            raise TypeError(f"{base.FAMILY}.toml: the row of operator {kind} {wrong}")
        members: dict[str, Any] = {"__slots__": (), "__module__": base.__module__, "FLOPS": row["flops"]}
        members |= {"__doc__": f"{kind}: {row['meaning']}.", "ACCESSES": row["accesses"]}
        for key in OPTIONAL_KEYS & row.keys():
            members[_CONSTANTS.get(key, key.upper())] = tuple(row[key]) if isinstance(row[key], list) else row[key]
        name = "".join(word.capitalize() for word in kind.split("_"))
        flops, dram_bytes, blocks = row["known_answer"]
        enter = register_operator(f"{kind}:{EXAMPLE_IMAGE}", flops=flops, dram_bytes=dram_bytes, blocks=blocks)
        classes[kind] = enter(type(name, (base,), members))
    return classes
