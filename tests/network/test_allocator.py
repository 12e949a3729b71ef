"""The model of PyTorch's caching allocator: published rules, and properties of every sequence of calls."""

from hypothesis import given, strategies as st

from surrogate.network.memory import LARGE_SEGMENT, MIB, SMALL_SEGMENT, Allocator


def test_segment_sizes_follow_the_published_rules() -> None:
    """The expected sizes are those of `torch.cuda.memory_reserved`."""
    for requested, reserved in ((4, 2), (MIB, 2), (MIB + 1, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (33 * MIB, 34)):
        allocator = Allocator()
        allocator.allocate(requested)
        assert (allocator.allocated, allocator.reserved) == (requested, reserved * MIB)


def test_free_neighbours_are_merged_and_reused() -> None:
    """Four blocks of 5 MiB fill one segment; freed, they make room for one of 20 MiB."""
    allocator = Allocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    assert allocator.reserved == LARGE_SEGMENT
    for number in (1, 3, 0, 2):
        allocator.release(blocks[number])
    allocator.allocate(20 * MIB)
    assert (allocator.reserved, allocator.allocated, allocator.peak) == (LARGE_SEGMENT, 20 * MIB, 20 * MIB)


def test_a_block_larger_than_every_gap_takes_a_new_segment() -> None:
    allocator = Allocator()
    first, _ = allocator.allocate(10 * MIB), allocator.allocate(10 * MIB)
    allocator.release(first)
    allocator.allocate(12 * MIB)
    assert allocator.reserved == 32 * MIB and allocator.peak == 22 * MIB


def test_small_and_large_blocks_use_separate_segments() -> None:
    allocator = Allocator()
    allocator.release(allocator.allocate(LARGE_SEGMENT))
    allocator.allocate(512)
    assert allocator.reserved == LARGE_SEGMENT + SMALL_SEGMENT


def test_segments_without_a_tensor_are_not_required() -> None:
    """A tensor of 12 MiB occupies a kept segment of 30 MiB, so another 30 MiB need a second segment."""
    allocator = Allocator()
    allocator.release(allocator.allocate(30 * MIB))
    small = allocator.allocate(12 * MIB)
    assert (allocator.reserved, allocator.peak_occupied) == (30 * MIB, 30 * MIB)
    allocator.release(small)
    allocator.allocate(12 * MIB), allocator.allocate(30 * MIB)
    assert (allocator.reserved, allocator.peak_occupied) == (60 * MIB, 60 * MIB)
    assert allocator.peak_fields(0)["rounding_bytes"] == 18 * MIB


@given(st.lists(st.tuples(st.integers(1, 40 * MIB), st.booleans()), max_size=60))
def test_segments_cover_the_allocated_blocks_and_are_reused(steps: list[tuple[int, bool]]) -> None:
    """After all blocks are released, the first allocation reserves no new segment."""
    allocator = Allocator()
    blocks = []
    for size, releases in steps:
        blocks.append(allocator.allocate(size))
        assert blocks[-1].size >= size
        if releases:
            allocator.release(blocks.pop(0))
        assert allocator.reserved >= sum(block.size for block in blocks) >= allocator.allocated
        assert allocator.reserved >= allocator.peak_occupied >= allocator.peak
    for block in blocks:
        allocator.release(block)
    assert allocator.allocated == 0 and allocator.reserved >= allocator.peak
    reserved = allocator.reserved
    for size, _ in steps[:1]:
        allocator.allocate(size)
    assert allocator.reserved == reserved
