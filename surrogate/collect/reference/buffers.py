"""The workspace as data: each algorithm lists its buffers once, for reporting and allocating."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Buffer:
    """One array of a workspace: its shape and NumPy dtype name."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def empty(self) -> np.ndarray:
        """The array, not initialised."""
        return np.empty(self.shape, dtype=self.dtype)

    def zeros(self) -> np.ndarray:
        """The array, filled with zeros."""
        return np.zeros(self.shape, dtype=self.dtype)


Buffers = Mapping[str, Buffer]
"""Name → buffer. All of them live until the run ends, so the workspace is their sum."""


def total_bytes(buffers: Buffers) -> int:
    """Bytes of all buffers together."""
    return sum(buffer.nbytes for buffer in buffers.values())


def part(buffer: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The first elements of a contiguous ``buffer`` as an array of ``shape`` (blocks may be partial)."""
    return buffer.reshape(-1)[: math.prod(shape)].reshape(shape)
