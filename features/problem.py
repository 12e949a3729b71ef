"""What every problem declares: its sizes, its element types and settings, and what a whole network asks of it."""

import re
from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar, cast, get_args, get_origin

import numpy as np

from .errors import read_table

AS_OTHER = cast(int, None)
"""The default of a size that follows another."""
STEP: dict[str, Any] = {"unit": "pixels", "per_doubling": 1.0}
PADDING: dict[str, Any] = {"minimum": 0, "counts": False, "per_doubling": 0.25}
"""What sizes of a window, or of a filter, have in common."""
MAX_DIGITS = 10
"""Of a size in a problem's text."""
Declared = TypeVar("Declared")


@dataclass(frozen=True, slots=True)
class Size:
    """One whole-number column of a problem: its meaning and unit, its least value, and the value where it is absent.

    Written as ``m: Annotated[int, Size("rows of the result")]``; `declared_sizes` fills in ``name`` and ``default``.
    ``follows`` names the size whose value stands where this one is not given; ``default`` is that name, or a number;
    None: the size must be given. ``counts`` is False for a size that multiplies no work, such as a padding.
    ``per_doubling`` is the distance between two problems of which one has twice the size (see
    `surrogate.uncertainty.domain`).
    """

    meaning: str
    unit: str = ""
    minimum: int = 1
    follows: str = ""
    counts: bool = True
    per_doubling: float = 0.35
    name: str = ""
    default: int | str | None = None


@dataclass(frozen=True, slots=True)
class SettingField:
    """The declaration of a text that an operator has beside the common ones: ``phase: Annotated[str, Setting(…)]``."""

    meaning: str


@lru_cache(maxsize=1024)
def declared_sizes(cls: type) -> tuple[Size, ...]:
    """The sizes that a dataclass declares, in the order of its fields."""
    sizes = []
    for field in fields(cls):
        size = _declaration(field.type, Size)
        if size is not None:
            default = size.follows or (None if field.default is MISSING else field.default)
            sizes.append(replace(size, name=field.name, default=default))
    return tuple(sizes)


@lru_cache(maxsize=1024)
def followers(cls: type) -> tuple[tuple[str, int | None, str], ...]:
    """Of every size that may be left out for another one's value: its name, what stands where it is, and the other."""
    return tuple(
        (size.name, cls.__dataclass_fields__[size.name].default, size.follows)
        for size in declared_sizes(cls)
        if size.follows
    )


def fill_followers(problem: object) -> None:
    """Give every size of a problem under construction that was left out the value of the size that it follows."""
    for name, absent, followed in followers(type(problem)):
        value = getattr(problem, name)
        if value is None or (type(value) is int and value == absent):
            object.__setattr__(problem, name, getattr(problem, followed))


@lru_cache(maxsize=1024)
def declared_settings(cls: type) -> dict[str, str]:
    """Setting that a dataclass has → its meaning, empty where it is one that all operators have."""
    settings = {}
    for field in fields(cls):
        declared = _declaration(field.type, SettingField)
        if field.type is str or declared is not None:
            settings[field.name] = declared.meaning if declared else ""
    return settings


def read_sizes(text: str, pattern: str, names: Mapping[str, str] = MappingProxyType({})) -> tuple[dict[str, int], str]:
    """Size → its value for the (name, digits) pairs that ``text`` begins with, and the rest that cannot be read.

    ``pattern`` matches one pair; ``names``: what a name in a text stands for, where that is not itself.
    """
    sizes: dict[str, int] = {}
    position = 0
    for match in re.finditer(pattern, text):
        name = names.get(match[1], match[1])
        if match.start() != position or name in sizes or len(match[2]) > MAX_DIGITS:
            break
        sizes[name] = int(match[2])
        position = match.end()
    return sizes, text[position:]


def shared_sizes(classes: Iterable[type]) -> tuple[Size, ...]:
    """The sizes of all ``classes``, each once: one that a class lacks is 0 there.

    A size that several classes declare has one meaning, since it is one column. Raises `TypeError` otherwise.
    """
    declared = [{size.name: size for size in declared_sizes(cls)} for cls in classes]
    sizes = {}
    for name in dict.fromkeys(name for columns in declared for name in columns):
        several = [columns[name] for columns in declared if name in columns]
        if len({(size.meaning, size.unit) for size in several}) > 1:
            raise TypeError(f"size {name} is declared with several meanings: {', '.join(s.meaning for s in several)}")
        minimum = min(size.minimum for size in several)
        is_everywhere = len(several) == len(declared)
        sizes[name] = (
            replace(several[0], minimum=minimum) if is_everywhere else replace(several[0], minimum=0, default=0)
        )
    return tuple(sizes.values())


def _declaration(annotation: object, wanted: type[Declared]) -> Declared | None:
    """The ``wanted`` declaration in ``Annotated[…, declaration]``, or None."""
    if get_origin(annotation) is not Annotated:
        return None
    return next((part for part in get_args(annotation) if isinstance(part, wanted)), None)


INPUT = "input"
WEIGHT = "weight"
"""What a gradient is taken of."""
STREAMED = "streamed"
"""The kind of a pass over memory of which only the traffic is known; it is of no family."""
Gradients = tuple[tuple[str, Any], ...]
"""Parts of a backward pass: a name and the problem that it computes."""


class InNetwork:
    """A problem as a layer computes it: its batch, its weights, and what its backward pass launches."""

    __slots__ = ()

    HAS_ALGORITHMS: ClassVar[bool] = False
    """True where a library offers several algorithms, each with a workspace of its own, and one is to be chosen."""
    GRADIENT: ClassVar[tuple[str, ...]] = ()
    """The kinds of operators, of the same sizes, that compute the gradient of its input; none where that passes through
    as it is. `STREAMED` reads the input and the result's gradient and writes the input's."""
    WEIGHT_GRADIENT: ClassVar[str] = ""
    """The kind, of the same sizes, that computes the gradient of weights that it adds; empty where it adds none."""
    UPDATES_WEIGHTS: ClassVar[bool] = False
    """True where the gradient's kernel changes the weights that it touches itself: no optimizer's step follows."""
    IN_TRAINING: ClassVar[str] = ""
    """The kind, of the same sizes, that runs in its place in training; empty where it runs itself."""

    @property
    def samples(self) -> int | None:
        """The size that is the network's batch; None where no size is that for certain."""
        return None

    @property
    def weights(self) -> int:
        """Elements of the weights that it multiplies by; 0 where it has none."""
        return 0

    @property
    def multiply_adds(self) -> int:
        """Its part of a network's multiply-adds, which count convolutions, products and attention."""
        return 0

    @property
    def is_gradient(self) -> bool:
        """True where the problem itself says that it is a gradient: such a one has no backward pass."""
        return False

    def at_batch(self, old: int, new: int) -> Self | None:
        """The problem at batch ``new`` where its batch is ``old``, or several times that.

        None where several sizes may be the batch. Raises `InputError` for a size out of range.
        """
        return None

    def gradients(self, of: str) -> Gradients:
        """The parts of the backward pass that give the gradient of its `INPUT` or its `WEIGHT`."""
        return ()

    def fallbacks(self) -> tuple[Any, ...]:
        """The problem itself, then those whose measurements may stand in for its own, nearest first."""
        return (self,)


TABLE: dict[str, Any] = read_table("problem.toml")
SIZE_COLUMNS: tuple[str, ...] = (*TABLE["sizes"],)
"""The problem columns of a dataset, in order."""
FLAGS = ("itemsize", "is_bwd_data", "is_bwd_filter", "is_nhwc", "uses_tensor_cores")
"""What else of a problem the formulas read: bytes of an element, and booleans."""
DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
DTYPES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
"""Element type whose values all take the same bytes → bytes per element."""
HALF = ("fp16", "bf16")
"""Half precision."""


class Element(NamedTuple):
    """What values of an arithmetic cost: bytes of an activation, of a weight and of an output value, scales included.

    ``unit`` names the tensor-core peak that its products reach: ``bf16``, ``fp8``, ``fp4`` or ``int8``; empty for the
    element types of `DTYPES`, which `surrogate.features.roofline` treats one by one.
    """

    activation_bytes: float
    weight_bytes: float
    output_bytes: float
    unit: str = ""


QUANTISED: dict[str, Element] = {name: Element(*row) for name, row in TABLE["quantised"].items()}
"""Arithmetic on quantised values: E4M3 with one scale per tensor (fp8); with an fp32 scale per 128 activations and per
128 × 128 weights (fp8_block, as DeepSeek-V3 does); 4 bits with an fp8 scale per 16 (nvfp4); weights alone quantised
(int8_wo, int4_wo, w4a16_mxfp4: products run at bf16's peak); SmoothQuant's W8A8 (int8_sq); 4-bit weights with 8-bit
activations, whose products run at fp8's peak. Outputs are bf16 or fp16."""
ELEMENTS: dict[str, Element] = {**{name: Element(size, size, size) for name, size in DTYPES.items()}, **QUANTISED}
"""Every element type that an operator may name."""
DTYPE_ALIASES: dict[str, str] = TABLE["dtype_aliases"]
"""What people call an element type, such as PyTorch's names of them → its name here."""
MATHS = ("fma", "default", "tensor_op", "tensor_op_allow_conversion")
"""cudnnMathType_t, by the field's short names; ``default`` may use TF32 for fp32 data on compute capability ≥ 8.0."""
LAYOUTS = ("NCHW", "NHWC")
LAYOUT_ALIASES = {"channels_last": "NHWC", "nhwc": "NHWC", "nchw": "NCHW"}


def setting(name: str, value: object) -> str:
    """A setting's value by its name here, whatever people call it: ``torch.float16``, ``half``, ``channels_last``."""
    text = str(value).removeprefix("torch.")
    aliases = DTYPE_ALIASES if name.endswith("dtype") else LAYOUT_ALIASES if name == "layout" else {}
    return aliases.get(text.lower(), text)


def may_use_tensor_cores(dtype: str, math: str) -> bool:
    """True where the math type lets matrix units run (fp32 data: only TF32, or AMD's fp32 units, under ``default``).

    Quantised values have no other arithmetic.
    """
    if dtype in QUANTISED:
        return True
    return math != "fma" and dtype != "fp64" and not (dtype == "fp32" and math == "tensor_op")


Problem = Any
"""What every formula of a convolution reads: a `Conv` of numbers, `ConvColumns` of arrays, or either with its sizes.

``n`` … ``groups`` are the sizes of `SIZE_COLUMNS`; ``itemsize`` is in bytes; flags are booleans.
"""


class ConvColumns(namedtuple("ConvColumns", (*SIZE_COLUMNS, *FLAGS))):
    """Columns of many problems: int64 sizes of one length, and flags derived from the text columns.

    Sizes are widened to int64 before any product, so narrow integer columns cannot overflow.
    """

    __slots__ = ()

    @classmethod
    def of(
        cls,
        sizes: Sequence[Any],
        *,
        dtype: Any = "fp32",
        math: Any = "fma",
        layout: Any = "NCHW",
        direction: Any = "fwd",
    ) -> "ConvColumns":
        """Columns from 14 sequences of sizes in the order of `SIZE_COLUMNS` and four text columns (or constants)."""
        columns = [np.asarray(size).astype(np.int64) for size in sizes]
        length = len(columns[0])

        def text(values: Any) -> np.ndarray:
            return np.broadcast_to(np.asarray(values, dtype=object), (length,))

        dtypes, directions, maths, layouts = text(dtype), text(direction), text(math), text(layout)
        tensor_cores = np.zeros(length, dtype=bool)
        for pair in {*zip(dtypes.tolist(), maths.tolist(), strict=True)}:
            if may_use_tensor_cores(*pair):
                tensor_cores |= (dtypes == pair[0]) & (maths == pair[1])
        itemsize = np.full(length, 4, dtype=np.int64)
        for name, size in DTYPES.items():
            itemsize[dtypes == name] = size
        flags = itemsize, directions == "bwd_data", directions == "bwd_filter", layouts == "NHWC", tensor_cores
        return cls(*columns, *flags)
