"""`ReferenceAlgorithm`: one convolution algorithm of the reference device, as the collector sees it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from surrogate.collect.reference import rules
from surrogate.collect.reference.buffers import Buffers, total_bytes
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError


def _anything(_: Conv) -> None:
    """The rule of an algorithm that takes whatever the device takes."""


@dataclass(frozen=True, slots=True)
class ReferenceAlgorithm:
    """A forward convolution in float32, NCHW.

    ``name`` and ``number`` are those of cudnnConvolutionFwdAlgo_t. ``buffers`` lists what the kernel
    allocates beside its operands, ``kernel(x, w, y, conv)`` fills ``y``, ``rule`` names why a problem is
    not taken.
    """

    name: str
    number: int
    buffers: Callable[[Conv], Buffers] = field(repr=False)
    kernel: Callable[[np.ndarray, np.ndarray, np.ndarray, Conv], None] = field(repr=False)
    rule: Callable[[Conv], str | None] = field(default=_anything, repr=False)

    def unsupported_reason(self, conv: Conv) -> str | None:
        """Why `run` would refuse ``conv``, or None."""
        return rules.everywhere(conv) or self.rule(conv)

    def workspace_bytes(self, conv: Conv) -> int:
        """Bytes of the buffers beside x, w and y; raises `InputError` where the problem is not taken."""
        self._require(conv)
        return total_bytes(self.buffers(conv))

    def run(self, x: np.ndarray, w: np.ndarray, conv: Conv) -> np.ndarray:
        """The convolution (n, k, p, q) of ``x`` (n, c, h, w) and ``w`` (k, c/groups, r, s), all float32.

        Raises `InputError` where the problem is not taken, or an operand's shape or dtype does not fit it.
        """
        self._require(conv)
        x = _operand("x", x, (conv.n, conv.c, conv.h, conv.w))
        w = _operand("w", w, (conv.k, conv.c // conv.groups, conv.r, conv.s))
        y = np.empty((conv.n, conv.k, conv.out_h, conv.out_w), np.float32)
        self.kernel(x, w, y, conv)
        return y

    def _require(self, conv: Conv) -> None:
        reason = self.unsupported_reason(conv)
        if reason is not None:
            raise InputError(f"{self.name} does not take {conv}: {reason}; ask unsupported_reason first")


def _operand(name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if array.shape != shape or array.dtype != np.float32:
        raise InputError(
            f"{name} is {array.dtype} of shape {array.shape}; the problem needs float32 of shape {shape}"
        )
    return np.ascontiguousarray(array)
