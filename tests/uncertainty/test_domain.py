"""Inside or outside with the reason, and the distance to the nearest training shapes: known answers, one as many."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.conv import Conv
from surrogate.features.families import CONV, FAMILIES
from surrogate.uncertainty import domain as domains
from tests.known import known_answers
from tests.tables import checked

ANSWERS = known_answers(__file__)

GEMM = FAMILIES["gemm"]

BASE = Conv(n=8, c=64, h=28, k=64, r=3, pad_h=1)
NAMES = CONV.size_names
WEIGHT = dict(zip(NAMES, domains.size_weights(CONV), strict=True))
KEY = domains.ReferenceKey(None, "cudnn", ("fwd",))
SETTING = ("fwd", "fp32", "fma", "NCHW")
NAME_OF = {"Tesla T4": "t4", "Tesla K80": "k80", "TITAN Xp": "titan-xp"}


def measured(*convs: Conv) -> domains.References:
    return domains.References.of(CONV, np.array([conv.sizes for conv in convs or (BASE,)]))


def test_the_batch_counts_beyond_what_was_measured() -> None:
    """Between measured batches it counts for nothing; one doubling beyond them for its weight."""
    known = measured(BASE, BASE.with_batch(32))
    assert len(known.shapes) == 1
    assert known.distance(BASE.with_batch(16).sizes) == 0
    assert known.distance(BASE.with_batch(64).sizes) == pytest.approx(WEIGHT["n"])
    assert known.distance(BASE.with_batch(2).sizes) == pytest.approx(2 * WEIGHT["n"])


def test_a_product_has_two_batch_sizes() -> None:
    """Of a matrix product, batch and m: beyond both, their weights add as sides of a right angle."""
    own = dict(zip(GEMM.size_names, domains.size_weights(GEMM), strict=True))
    sizes = {"batch": 1, "m": 64, "n": 256, "k": 512}
    known = domains.References.of(GEMM, np.array([[sizes[name] for name in GEMM.size_names]]))
    outside = [{**sizes, "batch": 2, "m": 128}[name] for name in GEMM.size_names]
    assert known.distance(outside) == pytest.approx(np.hypot(own["batch"], own["m"]))
    wider = [{**sizes, "n": 512}[name] for name in GEMM.size_names]
    assert known.distance(wider) == pytest.approx(own["n"]) and own["n"] > own["m"]


@pytest.mark.parametrize("kind", FAMILIES.values(), ids=lambda kind: kind.name)
def test_against_a_loop_over_all_pairs(kind) -> None:
    """An independent computation for every family: pairwise distances of the shapes, sorted."""
    random = np.random.default_rng(0)
    sizes = np.column_stack([random.permutation(300)[:60] + 1 for _ in kind.sizes])  # no shape comes twice
    batch = np.array([name in kind.batch for name in kind.size_names])
    sizes[:, batch] = 4
    train, query = sizes[:40], sizes[40:]
    shift = np.array([size.minimum == 0 for size in kind.sizes])
    points = np.log2(sizes + shift) * domains.size_weights(kind)
    gaps = points[40:, None, :] - points[None, :40, :]
    pairs = np.sort((gaps**2).sum(axis=2), axis=1)[:, : domains.NEIGHBOURS]
    known = domains.References.of(kind, train)
    np.testing.assert_allclose(known.distances(query), np.sqrt(pairs.mean(axis=1)))
    np.testing.assert_allclose([known.distance(row) for row in query.tolist()], known.distances(query))
    np.testing.assert_array_equal(domains.References.of(kind, train[::-1]).distances(query), known.distances(query))
    assert known.distances(np.empty((0, len(kind.sizes)), dtype=np.int64)).shape == (0,)


def test_thinning_keeps_the_outermost() -> None:
    """On a line 0 … 100 the first three are the start, the end and the middle."""
    points = np.arange(101.0)[:, None]
    assert domains.farthest_points(points, 3).tolist() == [0, 50, 100]
    assert domains.farthest_points(points, 500).tolist() == list(range(101))
    sizes = np.array([[1, c, *[3] * 12] for c in range(1, 50)])
    assert len(domains.References.of(CONV, sizes, count=7).shapes) == 7


@pytest.fixture(scope="module")
def rows(table: Callable[..., pd.DataFrame]) -> Rows:
    """Two GPUs, two batches, twelve shapes."""
    return checked(table(12))


@pytest.fixture(scope="module")
def domain(rows: Rows) -> domains.Domain:
    """Every row had been held out, at some distance up to 1 from its fold's training shapes."""
    return domains.Domain.of(rows, np.linspace(0, 1, len(rows)))


def reason(domain: domains.Domain, row: dict, gpu: str | None = None) -> str | None:
    """The first thing about a row that training did not span."""
    setting = tuple(row[name] for name in CONV.setting_names)
    sizes = [row[name] for name in NAMES]
    key = domains.SettingKey(gpu or NAME_OF[row["gpu"]], row["library"], setting, row["algorithm"])
    outside = domain.setting_reason(key, row["library_version"])
    return outside or domain.size_reason(domain.reference_key(row["library"], setting), sizes)


def test_training_rows_are_inside(domain: domains.Domain, rows: Rows) -> None:
    """Also those whose neighbours are farther than the reach."""
    assert domains.distances_to(domain.references, rows).max() > domain.references[KEY].reach
    assert reason(domain, rows.frame.iloc[0].to_dict()) is None
    assert domain.reference_key("cudnn", SETTING) == KEY and domain.gpus == ("t4", "titan-xp")


@pytest.mark.parametrize(("changes", "words"), ANSWERS["new"])
def test_the_reason_names_what_is_new(domain: domains.Domain, rows: Rows, changes: dict, words: tuple) -> None:
    message = reason(domain, rows.frame.iloc[0].to_dict() | changes)
    assert message is not None and all(word in message for word in words), message


def test_one_problem_is_as_far_as_its_row(domain: domains.Domain, rows: Rows) -> None:
    frame = rows.frame.assign(c=rows.frame["c"] + 1, h=2 * rows.frame["h"])
    single = [domain.distance(KEY, [row[name] for name in NAMES]) for row in frame.to_dict("records")]
    np.testing.assert_allclose(domains.distances_to(domain.references, rows_of(frame)), single, atol=1e-6)


def test_what_was_never_measured_is_infinitely_far(domain: domains.Domain, rows: Rows) -> None:
    never = domains.ReferenceKey(None, "miopen", ("fwd",))
    assert domain.distance(never, BASE.sizes) == np.inf
    assert domain.size_reason(never, BASE.sizes) == "miopen fwd was never measured"
    backward = rows_of(rows.frame.head(3).assign(direction="bwd_data"))
    assert np.isinf(domains.distances_to(domain.references, backward)).all()


def test_json_keeps_all(domain: domains.Domain, rows: Rows) -> None:
    again = domains.Domain.from_json(domain.to_json(), CONV)
    other = rows_of(rows.frame.assign(c=rows.frame["c"] + 5, k=rows.frame["k"] + 5))
    np.testing.assert_array_equal(
        domains.distances_to(again.references, other), domains.distances_to(domain.references, other)
    )
    assert again.to_json() == domain.to_json()
    assert again.seen(rows).all() and not again.seen(other).any()
    assert again.seen(rows_of(rows.frame.assign(n=999))).all()  # whatever the batch
