"""The family of operators that touch every element once: activations, sums, bias, dropout, copies, transforms."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..elementwise import Number, ceil_div
from ..in_network import STREAMED
from .operator import ELEMENTS_PER_BLOCK, Image, image_classes
from .operator_family import memory_family

CHEAP_FLOPS = 5
"""Operations per element up to which an operator is a pass over memory on every GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointwise(Image):
    """An operator that does not care for the shape may put all its elements into ``n``."""

    FAMILY: ClassVar[str] = "pointwise"
    MOST_TRAFFIC: ClassVar[float] = 1.25
    BANDWIDTH: ClassVar[str] = "streaming"
    GRADIENT: ClassVar[tuple[str, ...]] = (STREAMED,)

    @classmethod
    def is_streaming(cls) -> bool:
        """Where the operations are few: the counted ones of gelu and tanh would blur the slope over bytes."""
        return cls.FLOPS <= CHEAP_FLOPS

    @property
    def blocks(self) -> Number:
        """512 elements a block."""
        return ceil_div(self.elements, ELEMENTS_PER_BLOCK)


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
POINTWISE_CLASSES: dict[str, type[Pointwise]] = image_classes(Pointwise, _TABLE)
"""Kind → class, one for every kind of the table."""
POINTWISE = memory_family("pointwise")
