"""Distance to the nearest training shapes: known answers, thinning, and one problem as many."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.features.conv import Conv
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.uncertainty.references import NEIGHBOURS, WEIGHTS, References, coordinates, farthest_points

BASE = Conv(n=8, c=64, h=28, k=64, r=3, pad_h=1)


def one(conv: Conv = BASE) -> References:
    return References.of(np.array([conv.sizes]))


def test_every_size_weighs_as_written() -> None:
    """Doubling one size of the only training problem moves by that size's weight; h and w move alike."""
    assert set(WEIGHTS) == set(SIZE_COLUMNS)
    for name in ("c", "k", "h", "w", "r", "stride_h", "dilation_w", "groups"):
        sizes = list(BASE.sizes)
        sizes[SIZE_COLUMNS.index(name)] *= 2
        assert one().distance(sizes) == pytest.approx(WEIGHTS[name])


def test_a_padding_counts_from_one() -> None:
    """Padding 1 → 3 is one doubling of 1 + p."""
    sizes = list(BASE.sizes)
    sizes[SIZE_COLUMNS.index("pad_h")] = 3
    assert one().distance(sizes) == pytest.approx(WEIGHTS["pad_h"])


def test_the_batch_counts_beyond_what_was_measured() -> None:
    """Between measured batches it counts for nothing; one doubling beyond them for its weight."""
    known = References.of(np.array([BASE.sizes, BASE.with_batch(32).sizes]))
    assert len(known.shapes) == 1
    assert known.distance(BASE.with_batch(16).sizes) == 0
    assert known.distance(BASE.with_batch(64).sizes) == pytest.approx(WEIGHTS["n"])
    assert known.distance(BASE.with_batch(2).sizes) == pytest.approx(2 * WEIGHTS["n"])


def test_it_is_the_root_mean_square_over_the_nearest() -> None:
    """Channels 64, 128, 256, …: the nearest five lie 0 to 4 doublings away, the sixth does not count."""
    shapes = [Conv(n=8, c=64 * 2**i, h=28, k=64, r=3, pad_h=1) for i in range(NEIGHBOURS + 1)]
    known = References.of(np.array([conv.sizes for conv in shapes]))
    expected = WEIGHTS["c"] * np.sqrt(np.mean(np.arange(NEIGHBOURS) ** 2))
    assert known.distance(shapes[0].sizes) == pytest.approx(expected)


@given(
    st.lists(st.from_type(Conv), min_size=1, max_size=12),
    st.lists(st.from_type(Conv), min_size=1, max_size=12),
)
def test_one_by_one_is_all_at_once(train: list[Conv], asked: list[Conv]) -> None:
    """`distance` and `distances` agree, whatever the order and however often a row repeats; JSON keeps them."""
    known = References.of(np.array([conv.sizes for conv in train]))
    sizes = np.array([conv.sizes for conv in (*asked, asked[0], asked[0])])
    single = [known.distance(row) for row in sizes.tolist()]
    np.testing.assert_allclose(known.distances(sizes), single, atol=1e-6)
    again = References.from_dict(known.to_dict())
    np.testing.assert_array_equal(again.distances(sizes), known.distances(sizes))
    shuffled = References.of(np.array([conv.sizes for conv in reversed(train)]))
    np.testing.assert_array_equal(shuffled.distances(sizes), known.distances(sizes))


def test_against_a_loop_over_all_pairs() -> None:
    """An independent computation: pairwise distances, sorted."""
    random = np.random.default_rng(0)
    sizes = np.column_stack([np.full(60, 4), random.integers(1, 300, (60, 13))])
    train, asked = sizes[:40], sizes[40:]
    gaps = coordinates(asked)[:, None, :] - coordinates(train)[None, :, :]
    pairs = np.sort((gaps**2).sum(axis=2), axis=1)[:, :NEIGHBOURS]
    np.testing.assert_allclose(References.of(train).distances(asked), np.sqrt(pairs.mean(axis=1)))


def test_no_rows_have_no_distances() -> None:
    assert one().distances(np.empty((0, 14), dtype=np.int64)).shape == (0,)


def test_thinning_keeps_the_outermost() -> None:
    """On a line 0 … 100 the first three are the start, the end and the middle."""
    points = np.arange(101.0)[:, None]
    assert farthest_points(points, 3).tolist() == [0, 50, 100]
    assert farthest_points(points, 500).tolist() == list(range(101))
    assert len(References.of(np.array([[1, c, *[3] * 12] for c in range(1, 50)]), count=7).shapes) == 7
