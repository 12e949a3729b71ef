"""PyTorch's caching allocator: known answers of its rules, and what holds of every sequence of takes and gives."""

from hypothesis import given
from hypothesis import strategies as st

from surrogate.network.allocator import LARGE_SEGMENT, MIB, SMALL_SEGMENT, Allocator


def test_sizes_go_to_segments_by_the_published_rules() -> None:
    """As `torch.cuda.memory_reserved` shows: 2 MiB for a number, 20 MiB for 1.5 MiB, 34 MiB for 33."""
    for requested, reserved in ((4, 2), (MIB, 2), (MIB + 1, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (33 * MIB, 34)):
        allocator = Allocator()
        allocator.allocate(requested)
        assert (allocator.allocated, allocator.reserved) == (requested, reserved * MIB)


def test_what_is_left_of_a_segment_is_used_and_neighbours_join() -> None:
    """Four of 5 MiB fill one segment; freed, they hold one of 20."""
    allocator = Allocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    assert allocator.reserved == LARGE_SEGMENT
    for number in (1, 3, 0, 2):
        allocator.release(blocks[number])
    allocator.allocate(20 * MIB)
    assert (allocator.reserved, allocator.allocated, allocator.peak) == (LARGE_SEGMENT, 20 * MIB, 20 * MIB)


def test_a_hole_that_is_too_small_takes_a_new_segment() -> None:
    allocator = Allocator()
    first, _ = allocator.allocate(10 * MIB), allocator.allocate(10 * MIB)
    allocator.release(first)
    allocator.allocate(12 * MIB)
    assert allocator.reserved == 32 * MIB and allocator.peak == 22 * MIB


def test_small_and_large_blocks_keep_apart() -> None:
    allocator = Allocator()
    allocator.release(allocator.allocate(LARGE_SEGMENT))
    allocator.allocate(512)
    assert allocator.reserved == LARGE_SEGMENT + SMALL_SEGMENT


@given(st.lists(st.tuples(st.integers(1, 40 * MIB), st.booleans()), max_size=60))
def test_segments_hold_what_is_taken_and_are_found_again(steps: list[tuple[int, bool]]) -> None:
    """A second run of the same steps reserves nothing where everything was given back between."""
    allocator = Allocator()
    taken = []
    for size, gives in steps:
        taken.append(allocator.allocate(size))
        assert taken[-1].size >= size
        if gives:
            allocator.release(taken.pop(0))
        assert allocator.reserved >= sum(block.size for block in taken) >= allocator.allocated
    for block in taken:
        allocator.release(block)
    assert allocator.allocated == 0 and allocator.reserved >= allocator.peak
    reserved = allocator.reserved
    for size, _ in steps[:1]:
        allocator.allocate(size)
    assert allocator.reserved == reserved
