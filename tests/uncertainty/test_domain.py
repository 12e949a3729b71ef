"""Reasons why a row is outside the training data, and distances to the nearest training shapes."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.conv import Conv
from surrogate.features.families import CONV, FAMILIES
from surrogate.uncertainty import domain as domains
from tests.known import cases
from tests.tables import checked

GEMM = FAMILIES["gemm"]

BASE = Conv(n=8, c=64, h=28, k=64, r=3, pad_h=1)
NAMES = CONV.size_names
WEIGHT = dict(zip(NAMES, domains.size_weights(CONV), strict=True))
KEY = domains.ReferenceKey(None, "cudnn", ("fwd",))
SETTING = ("fwd", "fp32", "fma", "NCHW")
NAME_OF = {"Tesla T4": "t4", "Tesla K80": "k80", "TITAN Xp": "titan-xp"}


def measured(*convs: Conv) -> domains.TrainingShapes:
    return domains.TrainingShapes.of(CONV, np.array([conv.sizes for conv in convs or (BASE,)]))


def distance(references: domains.TrainingShapes, sizes: Sequence[int]) -> float:
    return float(references.distances(np.array([sizes]))[0])


def test_batch_adds_distance_only_outside_the_measured_range() -> None:
    """One doubling beyond the measured batches adds the batch's weight."""
    references = measured(BASE, BASE.with_batch(32))
    assert len(references.shapes) == 1
    assert distance(references, BASE.with_batch(16).sizes) == 0
    assert distance(references, BASE.with_batch(64).sizes) == pytest.approx(WEIGHT["n"])
    assert distance(references, BASE.with_batch(2).sizes) == pytest.approx(2 * WEIGHT["n"])


def test_product_has_two_batch_sizes() -> None:
    """Outside the ranges of batch and m, the Euclidean norm of their weights is the distance."""
    weight = dict(zip(GEMM.size_names, domains.size_weights(GEMM), strict=True))
    sizes = {"batch": 1, "m": 64, "n": 256, "k": 512}
    references = domains.TrainingShapes.of(GEMM, np.array([[sizes[name] for name in GEMM.size_names]]))
    outside = [{**sizes, "batch": 2, "m": 128}[name] for name in GEMM.size_names]
    assert distance(references, outside) == pytest.approx(np.hypot(weight["batch"], weight["m"]))
    wider = [{**sizes, "n": 512}[name] for name in GEMM.size_names]
    assert distance(references, wider) == pytest.approx(weight["n"]) and weight["n"] > weight["m"]


@pytest.mark.parametrize("kind", FAMILIES.values(), ids=lambda kind: kind.name)
def test_distances_equal_sorted_pairwise_distances(kind) -> None:
    """The expectation computes all pairwise distances independently, for every family."""
    random = np.random.default_rng(0)
    sizes = np.column_stack([random.permutation(300)[:60] + 1 for _ in kind.sizes])  # all shapes differ
    batch = np.array([name in kind.batch for name in kind.size_names])
    sizes[:, batch] = 4
    train, query = sizes[:40], sizes[40:]
    shift = np.array([size.minimum == 0 for size in kind.sizes])
    points = np.log2(sizes + shift) * domains.size_weights(kind)
    gaps = points[40:, None, :] - points[None, :40, :]
    pairs = np.sort((gaps**2).sum(axis=2), axis=1)[:, : domains.NEIGHBOURS]
    references = domains.TrainingShapes.of(kind, train)
    np.testing.assert_allclose(references.distances(query), np.sqrt(pairs.mean(axis=1)))
    np.testing.assert_allclose([distance(references, row) for row in query.tolist()], references.distances(query))
    reversed_order = domains.TrainingShapes.of(kind, train[::-1])
    np.testing.assert_array_equal(reversed_order.distances(query), references.distances(query))
    assert references.distances(np.empty((0, len(kind.sizes)), dtype=np.int64)).shape == (0,)


def test_farthest_points_include_the_outermost() -> None:
    """On a line 0 … 100 the first three are the start, the end and the middle."""
    points = np.arange(101.0)[:, None]
    assert domains.farthest_points(points, 3).tolist() == [0, 50, 100]
    assert domains.farthest_points(points, 500).tolist() == list(range(101))
    sizes = np.array([[1, c, *[3] * 12] for c in range(1, 50)])
    assert len(domains.TrainingShapes.of(CONV, sizes, count=7).shapes) == 7


@pytest.fixture(scope="module")
def rows(table: Callable[..., pd.DataFrame]) -> Rows:
    """Return rows of two GPUs, two batches and twelve shapes."""
    return checked(table(12))


@pytest.fixture(scope="module")
def domain(rows: Rows) -> domains.Domain:
    """Return a domain with held-out distances of up to 1 from each row to its fold's training shapes."""
    return domains.Domain.of(rows, np.linspace(0, 1, len(rows)))


def reason(domain: domains.Domain, row: dict, gpu: str | None = None) -> str | None:
    """Return the first property of a row that training does not cover."""
    setting = tuple(row[name] for name in CONV.setting_names)
    sizes = [row[name] for name in NAMES]
    key = domains.SettingKey(gpu or NAME_OF[row["gpu"]], row["library"], setting, row["algorithm"])
    outside = domain.setting_reason(key, row["library_version"])
    return outside or domain.size_reason(domain.reference_key(row["library"], setting), sizes)


def test_training_rows_are_inside(domain: domains.Domain, rows: Rows) -> None:
    """Rows with neighbours beyond the reach are inside too."""
    assert domains.distances_to(domain.references, rows).max() > domain.references[KEY].reach
    assert reason(domain, rows.frame.iloc[0].to_dict()) is None
    assert domain.reference_key("cudnn", SETTING) == KEY and domain.gpus == ("t4", "titan-xp")


@cases(__file__)
def test_reason_names_the_new_value(domain: domains.Domain, rows: Rows, changes: dict, words: tuple) -> None:
    message = reason(domain, rows.frame.iloc[0].to_dict() | changes)
    assert message is not None and all(word in message for word in words), message


def test_distance_of_a_problem_equals_distance_of_its_row(domain: domains.Domain, rows: Rows) -> None:
    frame = rows.frame.assign(c=rows.frame["c"] + 1, h=2 * rows.frame["h"])
    single = [distance(domain.references[KEY], [row[name] for name in NAMES]) for row in frame.to_dict("records")]
    np.testing.assert_allclose(domains.distances_to(domain.references, rows_of(frame)), single, atol=1e-6)


def test_unmeasured_setting_is_infinitely_far(domain: domains.Domain, rows: Rows) -> None:
    unmeasured = domains.ReferenceKey(None, "miopen", ("fwd",))
    assert domain.distances(unmeasured, np.array([BASE.sizes])) == np.inf
    assert domain.size_reason(unmeasured, BASE.sizes) == "miopen fwd was never measured"
    larger = 9 * np.array(BASE.sizes)
    other = {domains.ReferenceKey(None, "cudnn", ("bwd_data",)): domains.TrainingShapes.of(CONV, np.array([larger]))}
    message = replace(domain, references={**domain.references, **other}).size_reason(KEY, larger)
    assert message and message.endswith("; measured there: cudnn bwd_data")
    backward = rows_of(rows.frame.head(3).assign(direction="bwd_data"))
    assert np.isinf(domains.distances_to(domain.references, backward)).all()
