"""`Operator`: what every operator other than a convolution has in common: sizes, FLOPs, bytes, blocks, roofline."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from .. import roofline
from ..elementwise import Number
from ..errors import InputError, require_known
from ..gpu import Gpu
from ..problem import DTYPES, ELEMENTS, MATHS, QUANTISED, Element, may_use_tensor_cores

MAX_SIZE = 2**53
"""Sizes stay exact in float64, which the feature table and the formulas with rates use."""
MAX_WORK = 2**60
"""Most operations or bytes of one problem: column arithmetic is in int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator(ABC):
    """One problem (whole numbers), or many of one kind, dtype, math and variant (int64 arrays of one length).

    ``variant`` names the library's algorithm or mode where it has several ("SPATIAL_PERSISTENT"); the formulas ignore
    it, fitted models may not. Hashable where the sizes are numbers. Raises `InputError` for a size that is no whole
    number in range, and for an unknown dtype or math.
    """

    kind: ClassVar[str] = "operator"
    BATCH: ClassVar[str] = "n"
    """The size that counts as the batch: folds hold out the others."""
    MAY_BE_ZERO: ClassVar[tuple[str, ...]] = ()
    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {"dtype": tuple(DTYPES), "math": MATHS}
    """Setting → its known values; one that is not here may be any text."""
    LETTERS: ClassVar[Mapping[str, str]] = {}
    """Short name of a size in a text → the size."""
    EXAMPLE: ClassVar[str] = ""
    """A problem's text, for messages."""
    MULTIPLIES: ClassVar[bool] = False
    """True for products of matrices."""

    dtype: str = "fp32"
    math: str = "fma"
    variant: str = ""

    def __post_init__(self) -> None:
        for name, known in self.CHOICES.items():
            require_known(f"{self.kind}: {name}", getattr(self, name), known)
        if self.dtype in QUANTISED:  # there is no arithmetic on them outside matrix units
            object.__setattr__(self, "math", "default")
        for name in self.size_names():
            least = 0 if name in self.MAY_BE_ZERO else 1
            object.__setattr__(self, name, whole(self.kind, name, getattr(self, name), least))
        for name, wrong, rule in self.misfits(self.sizes):
            if wrong.any() if isinstance(wrong, np.ndarray) else wrong:
                raise InputError(f"{self.kind}: {name} does not fit the other sizes; {rule}")
        if all(type(getattr(self, name)) is int for name in self.size_names()):
            self._check_work()

    def _check_work(self) -> None:
        if max(self.flops, self.dram_bytes) > MAX_WORK:
            raise InputError(f"{self.kind}: over {MAX_WORK} operations or bytes; sizes that large are damage")

    @classmethod
    def size_names(cls) -> tuple[str, ...]:
        """Names of the sizes, in the order of declaration."""
        return _fields(cls)[0]

    @classmethod
    def setting_names(cls) -> tuple[str, ...]:
        """Names of the settings (dtype, math, variant and the kind's own), in the order of declaration."""
        return _fields(cls)[1]

    @classmethod
    def misfits(cls, sizes: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
        """(size, where it breaks the rule, the rule): sizes in range that do not fit one another."""
        return []

    @property
    def sizes(self) -> dict[str, Any]:
        """Size name → size."""
        return {name: getattr(self, name) for name in self.size_names()}

    @property
    def element(self) -> Element:
        """What values of its arithmetic cost."""
        return ELEMENTS[self.dtype]

    @property
    def itemsize(self) -> int:
        """Bytes per element of a type whose values all take the same."""
        return DTYPES[self.dtype]

    @property
    def stratum(self) -> str:
        """The kind of problem that it is reported with."""
        return self.kind

    @classmethod
    def tensor_cores(cls, dtype: str, math: str) -> bool:
        """True where matrix units may run it under that element type and math."""
        return cls.MULTIPLIES and may_use_tensor_cores(dtype, math)

    @property
    def uses_tensor_cores(self) -> bool:
        """True where matrix units may run it."""
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
    @abstractmethod
    def blocks(self) -> Number:
        """Thread blocks that a usual kernel launches."""

    @classmethod
    def peak_tflops(cls, gpu: Gpu, dtype: str, math: str) -> float:
        """The peak that its arithmetic can reach, in TFLOP/s."""
        return roofline.peak_tflops(gpu, dtype, cls.tensor_cores(dtype, math))

    def roofline_us(self, gpu: Gpu) -> Number:
        """The larger of compute and memory time in µs (Williams et al., CACM 2009)."""
        peak = self.peak_tflops(gpu, self.dtype, self.math)
        return roofline.roofline_us(self.flops, self.dram_bytes, peak, gpu.dram_gbs)

    def bound(self, gpu: Gpu) -> Any:
        """``compute-bound`` or ``memory-bound``."""
        peak = roofline.peak_tflops(gpu, self.dtype, self.uses_tensor_cores)
        return roofline.bound(self.flops, self.dram_bytes, peak, gpu.dram_gbs)

    def to_dict(self) -> dict[str, Any]:
        """Kind, sizes and settings as plain values."""
        return {"kind": self.kind, **self.sizes, **{name: getattr(self, name) for name in self.setting_names()}}

    def __str__(self) -> str:
        """One word, as in ``softmax:n32c1000h1w1``."""
        short = {name: letter for letter, name in self.LETTERS.items()}
        return f"{self.kind}:" + "".join(f"{short.get(name, name)}{size}" for name, size in self.sizes.items())


@lru_cache(maxsize=256)
def _fields(cls: type[Operator]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the sizes (whole numbers) and of the settings (texts)."""
    sizes, texts = (tuple(f.name for f in fields(cls) if f.type is kind) for kind in (int, str))
    return sizes, texts


def whole(kind: str, name: str, value: Any, least: int = 1, most: int = MAX_SIZE) -> Any:
    """``value`` as a Python int, or an int64 array, from ``least`` to ``most``; `InputError` where it is none."""
    if isinstance(value, np.ndarray):
        return _whole_array(kind, name, value, least, most)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or isinstance(value, bool) or number != value or not least <= number <= most:
        raise InputError(f"{kind}: {name} is {repr(value)[:40]}; a whole number from {least} to {most} is needed")
    return number


def _whole_array(kind: str, name: str, values: np.ndarray, least: int, most: int) -> np.ndarray:
    if values.dtype.kind not in "iuf":
        raise InputError(f"{kind}: {name} has values of type {values.dtype}; whole numbers are needed")
    wrong = ~((values >= least) & (values <= most) & (values == np.floor(values)))
    if wrong.any():
        raise InputError(
            f"{kind}: {name} is {values[wrong][0]} in row {int(np.flatnonzero(wrong)[0])}; a whole number"
            f" from {least} to {most} is needed"
        )
    return values.astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image(Operator):
    """A tensor n × c × h × w; the class's FLOPs and accesses are per element.

    Traffic: ``ACCESSES`` tensors read or written once each; what a reduction reads again, masks and per-channel values
    are left to a fitted correction. A matrix of rows × columns has n rows and c columns.
    """

    FLOPS: ClassVar[int] = 0
    ACCESSES: ClassVar[int] = 2

    n: int
    c: int = 1
    h: int = 1
    w: int = 1

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

    def roofline_us(self, gpu: Gpu) -> Number:
        """Memory time at the bandwidth that copies reach: the counted operations of gelu and softmax hide behind it."""
        return roofline.memory_us(self.dram_bytes, gpu.dram_share * gpu.dram_gbs)


def image_class(base: type[Image], kind: str, flops: int, accesses: int, meaning: str) -> type[Any]:
    """The class of one kind of a table, which adds to ``base`` what an element costs."""
    name = "".join(word.capitalize() for word in kind.split("_"))
    members = {"__slots__": (), "__doc__": f"{kind}: {meaning}.", "__module__": base.__module__}
    return type(name, (base,), members | {"kind": kind, "FLOPS": flops, "ACCESSES": accesses})
