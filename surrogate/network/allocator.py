"""A simulation of PyTorch's caching allocator, which reserves segments for tensors and keeps them.

Source: PyTorch, ``c10/cuda/CUDACachingAllocator.cpp``, with its default settings:

- Sizes are multiples of 512 B.
- A block of up to 1 MiB comes from a segment of 2 MiB, and a block below 10 MiB from a segment of 20 MiB. A larger
  block has its own segment, in multiples of 2 MiB.
- The allocator takes the smallest free block that is large enough. It splits the block if more than 1 MiB is left, and
  for a tensor of up to 1 MiB if at least 512 B are left.
- Free neighbours are merged.
- If the GPU has no memory left for a segment, the segments without any tensor are released first.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass
from itertools import count
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
    """A block of ``size`` bytes in a segment.

    A tensor requested ``requested`` bytes of it; ``gradient`` is True if the tensor is a weight's gradient. ``number``
    orders blocks of one size.
    """

    small: bool
    size: int
    number: int
    free: bool = True
    requested: int = 0
    gradient: bool = False
    previous: Optional["Block"] = None
    next: Optional["Block"] = None


def _order(block: Block) -> tuple[bool, int, int]:
    """Return the sort key of free blocks: the pool, then the size."""
    return block.small, block.size, block.number


class Allocator:
    """The state of the allocator, in bytes.

    ``allocated`` is the memory of all tensors now and ``peak`` its maximum so far. ``peak_gradients`` is the part of
    the peak that holds weights' gradients. ``reserved`` is the memory of all segments while the GPU has enough, and
    ``peak_occupied`` the maximum of the segments that hold a tensor: the GPU must have so much.
    """

    def __init__(self) -> None:
        self.allocated = self.peak = self.reserved = self.peak_gradients = self._gradients = 0
        self.peak_occupied = self._occupied = self.peak_activations = 0
        self._free: list[Block] = []  # sorted by `_order`
        self._numbers = count(1)

    def allocate(self, requested: int) -> Block:
        """Return a block for a tensor of ``requested`` bytes."""
        size = int(round_up(max(requested, 1), UNIT))
        small = size <= SMALL
        place = bisect_left(self._free, (small, size, 0), key=_order)
        if place < len(self._free) and self._free[place].small == small:
            block = self._free.pop(place)
        else:
            block = Block(small, segment_bytes(size), next(self._numbers))
            self.reserved += block.size
        self._occupied += block.size if _is_segment(block) else 0
        self.peak_occupied = max(self.peak_occupied, self._occupied)
        rest = block.size - size
        if rest >= UNIT if small else rest > SMALL:
            block.size = size
            left = Block(small, rest, next(self._numbers))
            _link(left, block.next)
            _link(block, left)
            insort(self._free, left, key=_order)
        block.free = False
        block.requested = requested
        self.allocated += requested
        self._note_peak()
        return block

    def mark_gradient(self, block: Block) -> None:
        """Mark a block that holds a weight's gradient."""
        self._gradients += 0 if block.gradient else block.requested
        block.gradient = True
        self._note_peak()

    def _note_peak(self) -> None:
        self.peak_activations = max(self.peak_activations, self.allocated - self._gradients)
        if self.allocated >= self.peak:
            self.peak, self.peak_gradients = self.allocated, self._gradients

    def peak_fields(self, persistent_bytes: int) -> dict[str, Any]:
        """Return the memory fields of a `Network`; ``persistent_bytes`` were allocated before the pass."""
        return {
            "activation_bytes": self.peak - persistent_bytes,
            "gradient_bytes": self.peak_gradients,
            "peak_activation_bytes": self.peak_activations - persistent_bytes,
            "rounding_bytes": self.peak_occupied - self.peak,
        }

    def release(self, block: Block) -> None:
        """Free a block and merge it with its free neighbours."""
        self.allocated -= block.requested
        self._gradients -= block.requested if block.gradient else 0
        block.free, block.gradient = True, False
        for first in (block, block.previous):
            if first and first.free and first.next and first.next.free:
                for each in (first, first.next):
                    if each is not block:
                        self._free.pop(bisect_left(self._free, _order(each), key=_order))
                first.size += first.next.size
                _link(first, first.next.next)
                block = first
        self._occupied -= block.size if _is_segment(block) else 0
        insort(self._free, block, key=_order)


def _is_segment(block: Block) -> bool:
    """Return whether the block is a whole segment."""
    return block.previous is None and block.next is None


def _link(first: Block, second: Block | None) -> None:
    """Make two blocks neighbours."""
    first.next = second
    if second:
        second.previous = first


def segment_bytes(size: int) -> int:
    """Return the bytes of a new segment for a block of ``size`` bytes."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < LARGE else int(round_up(size, SMALL_SEGMENT))
