"""Declarations of a problem: its sizes, element types and settings, and its properties in a network."""

import re
from collections import namedtuple
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar, cast, get_args, get_origin

import numpy as np

from .errors import InputError, check_choice, read_toml

FOLLOWS = cast(int, None)
"""The default of a size that follows another size."""
STEP: dict[str, Any] = {"unit": "pixels", "per_doubling": 1.0}
PADDING: dict[str, Any] = {"minimum": 0, "counts": False, "per_doubling": 0.25}
"""Declarations that the sizes of windows and filters share."""
MAX_DIGITS = 10
"""Maximum digits of a size in a problem's text."""
Declared = TypeVar("Declared")


@dataclass(frozen=True, slots=True)
class Size:
    """The declaration of an integer column: its meaning and unit, its minimum, and its default.

    It is written as ``m: Annotated[int, Size("rows of the result")]``; `declared_sizes` fills in ``name`` and
    ``default``. If the size is not given, it takes the value of the size ``follows``. ``default`` is that size's name
    or a number; None means that the size must be given. ``counts`` is False for a size that multiplies no work, such as
    a padding. ``per_doubling`` is the distance between two problems if the size of one is twice the size of the other
    (see `surrogate.uncertainty.domain`).
    """

    meaning: str
    unit: str = ""
    minimum: int = 1
    follows: str = ""
    counts: bool = True
    per_doubling: float = 0.35
    name: str = ""
    default: int | str | None = None


@lru_cache(maxsize=1024)
def declared_sizes(cls: type) -> tuple[Size, ...]:
    """Return the sizes that a dataclass declares, in the order of its fields."""
    sizes = []
    for field in fields(cls):
        size = _declaration(field.type, Size)
        if size is not None:
            default = size.follows or (None if field.default is MISSING else field.default)
            sizes.append(replace(size, name=field.name, default=default))
    return tuple(sizes)


@lru_cache(maxsize=1024)
def followers(cls: type) -> tuple[tuple[str, int | None, str], ...]:
    """Return (size, value that means "not given", followed size) for each size that follows another one."""
    own = cls.__dataclass_fields__
    return tuple((size.name, own[size.name].default, size.follows) for size in declared_sizes(cls) if size.follows)


def fill_followers(problem: object) -> None:
    """Set each size that was not given to the value of the size that it follows, in a problem under construction."""
    for name, absent, followed in followers(type(problem)):
        value = getattr(problem, name)
        if value is None or (type(value) is int and value == absent):
            object.__setattr__(problem, name, getattr(problem, followed))


@lru_cache(maxsize=1024)
def declared_settings(cls: type) -> dict[str, str]:
    """Return setting → meaning; the meaning of a setting that all operators have is empty.

    An operator declares the meaning of its own setting in the annotation: ``phase: Annotated[str, "context or …"]``.
    """
    settings = {}
    for field in fields(cls):
        declared = _declaration(field.type, str)
        if field.type is str or declared is not None:
            settings[field.name] = declared or ""
    return settings


def read_sizes(text: str, pattern: str, names: Mapping[str, str] = MappingProxyType({})) -> tuple[dict[str, int], str]:
    """Return size → value from the (name, digits) pairs that ``text`` begins with, and the unreadable rest.

    ``pattern`` matches one pair. ``names`` maps a name in the text to a size, if they differ.
    """
    sizes: dict[str, int] = {}
    position = 0
    for match in re.finditer(pattern, text, re.ASCII):
        name = names.get(match[1], match[1])
        if match.start() != position or name in sizes or len(match[2]) > MAX_DIGITS:
            break
        sizes[name] = int(match[2])
        position = match.end()
    return sizes, text[position:]


def shared_sizes(classes: Iterable[type]) -> tuple[Size, ...]:
    """Return the sizes of all ``classes``, each once. A size that a class lacks is 0 for that class.

    A size is one column, so it must have one meaning. Raises `TypeError` if classes declare different meanings.
    """
    declared = [{size.name: size for size in declared_sizes(cls)} for cls in classes]
    sizes = {}
    for name in dict.fromkeys(name for columns in declared for name in columns):
        declarations = [columns[name] for columns in declared if name in columns]
        if len({(size.meaning, size.unit) for size in declarations}) > 1:
            meanings = ", ".join(size.meaning for size in declarations)
            raise TypeError(f"size {name} is declared with several meanings: {meanings}")
        sizes[name] = replace(declarations[0], minimum=min(size.minimum for size in declarations))
        if len(declarations) < len(declared):
            sizes[name] = replace(declarations[0], minimum=0, default=0)
    return tuple(sizes.values())


def _declaration(annotation: object, declaration: type[Declared]) -> Declared | None:
    """Return the declaration of type ``declaration`` in ``Annotated[…, declaration]``, or None."""
    if get_origin(annotation) is not Annotated:
        return None
    return next((part for part in get_args(annotation) if isinstance(part, declaration)), None)


INPUT = "input"
WEIGHT = "weight"
"""The tensor that a gradient belongs to."""
STREAMED = "streamed"
"""The kind of a pass over memory with known traffic only. It belongs to no family."""
Gradients = tuple[tuple[str, Any], ...]
"""Parts of a backward pass: name and problem."""


class InNetwork:
    """A problem as a layer: its batch, its weights, and the kernels of its backward pass."""

    __slots__ = ()

    HAS_ALGORITHMS: ClassVar[bool] = False
    """True if a library offers several algorithms, each with its own workspace, and one must be chosen."""
    GRADIENT: ClassVar[tuple[str, ...]] = ()
    """The kinds of operators with the same sizes that compute the input's gradient.

    It is empty if the gradient passes through unchanged. `STREAMED` reads the input and the result's gradient and
    writes the input's gradient.
    """
    WEIGHT_GRADIENT: ClassVar[str] = ""
    """The kind with the same sizes that computes the gradient of added weights; empty if the operator adds none."""
    UPDATES_WEIGHTS: ClassVar[bool] = False
    """True if the gradient's kernel updates the weights itself, so that no step of an optimizer follows."""
    IN_TRAINING: ClassVar[str] = ""
    """The kind with the same sizes that replaces the operator in training; empty if the operator itself runs."""

    @property
    def samples(self) -> int | None:
        """The size that is the network's batch; None if it is uncertain which size that is."""
        return None

    @property
    def weights(self) -> int:
        """Number of weights that the operator multiplies by; 0 if it has none."""
        return 0

    @property
    def multiply_adds(self) -> int:
        """The problem's share of a network's multiply-adds, which count convolutions, products and attention."""
        return 0

    @property
    def recomputed_multiply_adds(self) -> int:
        """The part of `multiply_adds` that repeats work of the forward pass."""
        return 0

    @property
    def is_gradient(self) -> bool:
        """True if the problem's own settings make it a gradient, which has no backward pass."""
        return False

    def at_batch(self, old: int, new: int) -> Self | None:
        """Return the problem at batch ``new`` if its batch is ``old`` or a multiple of it.

        Returns None if several sizes may be the batch. Raises `InputError` for a size out of range.
        """
        return None

    def gradients(self, of: str) -> Gradients:
        """Return the parts of the backward pass that compute the gradient of the `INPUT` or the `WEIGHT`."""
        return ()

    def fallbacks(self) -> tuple[Any, ...]:
        """Return the problem itself, then problems whose measurements may replace its own, nearest first."""
        return (self,)


TABLE: dict[str, Any] = read_toml(__file__)
SIZE_COLUMNS: tuple[str, ...] = (*TABLE["sizes"],)
"""The size columns of a convolution, in order."""
FLAGS = ("itemsize", "is_bwd_data", "is_bwd_filter", "is_nhwc", "uses_tensor_cores")
"""Further inputs of the formulas: bytes of an element, and booleans."""
DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
DTYPES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
"""Element type with one size for all values → bytes per element."""
HALF = ("fp16", "bf16")
"""The half-precision types."""


class Element(NamedTuple):
    """The bytes that values of an element type take, scales included: an activation, a weight, an output.

    ``unit`` names the tensor-core peak that its products reach: ``bf16``, ``fp8``, ``fp4`` or ``int8``. It is empty for
    the element types of `DTYPES`, which have rules of their own in `surrogate.features.roofline`.
    """

    activation_bytes: float
    weight_bytes: float
    output_bytes: float
    unit: str = ""


QUANTISED: dict[str, Element] = {name: Element(*row) for name, row in TABLE["quantised"].items()}
"""Quantised element types; outputs are bf16 or fp16.

- fp8: E4M3 with one scale per tensor.
- fp8_block: E4M3 with an fp32 scale per 128 activations and per 128 × 128 weights, as in DeepSeek-V3.
- nvfp4: 4 bits with an fp8 scale per 16 values. mxfp4: 4 bits with an 8-bit exponent per 32 values.
- int8_wo, int4_wo, w4a16_mxfp4: only weights are quantised; products run at bf16's peak.
- int8_sq: SmoothQuant's W8A8.
- w4a8_mxfp4_mxfp8, w4afp8: 4-bit weights with 8-bit activations; products run at fp8's peak.
"""
ELEMENTS: dict[str, Element] = {**{name: Element(size, size, size) for name, size in DTYPES.items()}, **QUANTISED}
"""All element types of operators."""
DTYPE_ALIASES: dict[str, str] = TABLE["dtype_aliases"]
"""Other name of an element type, such as PyTorch's → its name here."""
MATHS = ("fma", "default", "tensor_op", "tensor_op_allow_conversion")
"""Short names of cudnnMathType_t; ``default`` may use TF32 for fp32 data on compute capability ≥ 8.0."""
LAYOUTS = ("NCHW", "NHWC")
CONV_SETTINGS = {"direction": DIRECTIONS, "dtype": tuple(DTYPES), "math": MATHS, "layout": LAYOUTS}
"""Setting of a convolution → its values."""
_ALIASES: dict[str, dict[str, str]] = TABLE["setting_aliases"]


def setting(name: str, value: object) -> str:
    """Return this project's name of a setting's value, from an alias such as ``torch.float16`` or ``channels_last``.

    Raises `InputError` for TF32, which is no element type (a math allows it for fp32 values), and for NF4.
    """
    text = str(value)
    word = text.removeprefix("torch.").lower()
    if not name.endswith("dtype"):
        return _ALIASES.get(name, {}).get(word, text)
    dtype = DTYPE_ALIASES.get(word, word)
    if dtype in ("tf32", "xf32"):
        remedy = "give fp32 and, if there is a math, default (NVIDIA) or tensor_op_allow_conversion (AMD)"
        raise InputError(f"{name} {text} is a math of fp32 values, which GPUs before Ampere and MI300 lack; {remedy}")
    if dtype == "nf4":
        raise InputError(
            f"{name} nf4 has no kernels of its own; give int4_wo, which also packs weights in 4 bits (QLoRA)"
        )
    return dtype if dtype in ELEMENTS else text


def element_type(name: str, value: object, allowed: Collection[str]) -> str | None:
    """Return the package's name of an element type, from any common name (``torch.bfloat16``); None for None.

    Raises `InputError` if it is not one of ``allowed``; ``name`` is the option's name.
    """
    word = None if value is None else setting("dtype", value)
    if word is not None:
        check_choice(name, word, allowed)
    return word


def may_use_tensor_cores(dtype: str, math: str) -> bool:
    """Return True if the math type allows tensor cores. fp32 data: only TF32, or AMD's fp32 units, under ``default``.

    Quantised values always use them, since they have no other arithmetic.
    """
    if dtype in QUANTISED:
        return True
    return math != "fma" and dtype != "fp64" and not (dtype == "fp32" and math == "tensor_op")


Problem = Any
"""The input of a convolution's formulas: a `Conv` of numbers, `ConvColumns` of arrays, or either with derived sizes.

``n`` … ``groups`` are the sizes of `SIZE_COLUMNS`; ``itemsize`` is in bytes; flags are booleans.
"""


class ConvColumns(namedtuple("ConvColumns", (*SIZE_COLUMNS, *FLAGS))):
    """Columns of many convolutions: int64 sizes of one length, and flags derived from the text columns.

    Sizes are converted to int64 before any product, so narrow integer columns cannot overflow.
    """

    __slots__ = ()

    @classmethod
    def of(
        cls, sizes: list[Any], *, dtype: Any = "fp32", math: Any = "fma", layout: Any = "NCHW", direction: Any = "fwd"
    ) -> "ConvColumns":
        """Return columns from 14 sequences of sizes, in the order of `SIZE_COLUMNS`, and four text columns or
        constants."""
        columns = [np.asarray(size).astype(np.int64) for size in sizes]
        length = len(columns[0])

        def text_column(values: Any) -> np.ndarray:
            return np.broadcast_to(np.asarray(values, dtype=object), (length,))

        dtypes, directions, maths, layouts = map(text_column, (dtype, direction, math, layout))
        tensor_cores = np.zeros(length, dtype=bool)
        for pair in {*zip(dtypes.tolist(), maths.tolist(), strict=True)}:
            if may_use_tensor_cores(*pair):
                tensor_cores |= (dtypes == pair[0]) & (maths == pair[1])
        itemsize = np.full(length, 4, dtype=np.int64)
        for name, size in DTYPES.items():
            itemsize[dtypes == name] = size
        flags = itemsize, directions == "bwd_data", directions == "bwd_filter", layouts == "NHWC", tensor_cores
        return cls(*columns, *flags)
