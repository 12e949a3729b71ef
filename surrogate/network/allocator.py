"""PyTorch's caching allocator: the segments that it reserves for tensors and never gives back.

Source: PyTorch, ``c10/cuda/CUDACachingAllocator.cpp``, its default settings: sizes in units of 512 B; up to 1 MiB from
segments of 2 MiB, below 10 MiB from segments of 20 MiB, above a segment of its own in units of 2 MiB; the smallest free
block that is large enough, split where more than 1 MiB (of small ones 512 B) is left; free neighbours join.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Any, Optional

from surrogate.features.elementwise import round_up

MIB = 2**20
UNIT = 512
SMALL = MIB
SMALL_SEGMENT = 2 * MIB
LARGE = 10 * MIB
LARGE_SEGMENT = 20 * MIB


@dataclass(slots=True, eq=False)
class Block:
    """``size`` bytes of a segment, of which a tensor (a weight's ``gradient``) takes ``wanted``; ``number`` tells apart
    those of one size."""

    small: bool
    size: int
    number: int
    free: bool = True
    wanted: int = 0
    gradient: bool = False
    previous: Optional["Block"] = None
    next: Optional["Block"] = None


def _order(block: Block) -> tuple[bool, int, int]:
    """By pool, then by size."""
    return block.small, block.size, block.number


class Allocator:
    """``held``: bytes that tensors take now, ``peak`` the most so far, ``peak_gradients`` weights' gradients of it,
    ``reserved`` those of all segments."""

    def __init__(self) -> None:
        self.held = self.peak = self.reserved = self.peak_gradients = self._gradients = 0
        self._free: list[Block] = []  # sorted by `_order`
        self._blocks = 0

    def take(self, wanted: int) -> Block:
        """A block for a tensor of so many bytes."""
        size = int(round_up(max(wanted, 1), UNIT))
        small = size <= SMALL
        place = bisect_left(self._free, (small, size, 0), key=_order)
        if place < len(self._free) and self._free[place].small == small:
            block = self._free.pop(place)
        else:
            block = self._block(small, segment_bytes(size))
            self.reserved += block.size
        rest = block.size - size
        if rest >= UNIT if small else rest > SMALL:
            block.size = size
            left = self._block(small, rest)
            _link(left, block.next)
            _link(block, left)
            insort(self._free, left, key=_order)
        block.free = False
        block.wanted = wanted
        self.held += wanted
        self._note_peak()
        return block

    def mark(self, block: Block) -> None:
        """The block holds a weight's gradient."""
        self._gradients += 0 if block.gradient else block.wanted
        block.gradient = True
        self._note_peak()

    def _note_peak(self) -> None:
        if self.held >= self.peak:
            self.peak, self.peak_gradients = self.held, self._gradients

    def peaks(self, lasting_bytes: int) -> dict[str, Any]:
        """The fields of a `Network` on a pass over what was held before it, ``lasting_bytes``."""
        return {
            "activation_bytes": self.peak - lasting_bytes,
            "gradient_bytes": self.peak_gradients,
            "rounding_bytes": self.reserved - self.peak,
        }

    def give(self, block: Block) -> None:
        """The block is free again, as one with its free neighbours."""
        self.held -= block.wanted
        self._gradients -= block.wanted if block.gradient else 0
        block.free, block.gradient = True, False
        for first in (block, block.previous):
            if first and first.free and first.next and first.next.free:
                for each in (first, first.next):
                    if each is not block:
                        self._free.pop(bisect_left(self._free, _order(each), key=_order))
                first.size += first.next.size
                _link(first, first.next.next)
                block = first
        insort(self._free, block, key=_order)

    def _block(self, small: bool, size: int) -> Block:
        self._blocks += 1
        return Block(small, size, self._blocks)


def _link(first: Block, second: Block | None) -> None:
    """Make them neighbours."""
    first.next = second
    if second:
        second.previous = first


def segment_bytes(size: int) -> int:
    """Bytes of the segment that a block of ``size`` bytes is cut from where none is free."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < LARGE else int(round_up(size, SMALL_SEGMENT))
