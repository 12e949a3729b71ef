"""Inside or outside, with the reason: the first thing that training did not span."""

import json

import numpy as np
import pandas as pd
import pytest

from surrogate.features.problem import SIZE_COLUMNS
from surrogate.uncertainty.domain import SETTINGS, Domain


@pytest.fixture(scope="module")
def frame(table) -> pd.DataFrame:
    """Two GPUs, two batches, twelve shapes."""
    return table(12)


@pytest.fixture(scope="module")
def domain(frame: pd.DataFrame) -> Domain:
    """Every row had been held out, at some distance up to 1 from its fold's training shapes."""
    return Domain.of(frame, np.linspace(0, 1, len(frame)))


def asked(frame: pd.DataFrame, **changes: object) -> dict:
    row = frame.iloc[0].to_dict() | {"gpu": "t4"} | changes
    return {name: row[name] for name in (*SETTINGS, "library_version")} | {
        "sizes": [row[name] for name in SIZE_COLUMNS]
    }


def test_training_rows_are_inside(domain: Domain, frame: pd.DataFrame) -> None:
    """Also those whose neighbours are farther than the reach."""
    assert domain.distances(frame).max() > domain.reach["cudnn|fwd"]
    assert domain.contains(frame).all()
    assert domain.reason(**asked(frame)) is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"gpu": "k80"}, "gpu k80 was never measured; measured: t4, titan-xp"),
        ({"direction": "bwd_data"}, "direction bwd_data was never measured with t4, cudnn"),
        ({"dtype": "fp16"}, "dtype fp16 was never measured with t4, cudnn, fwd"),
        ({"algorithm": "GEMM"}, "algorithm GEMM was never measured with t4, cudnn, fwd, fp32, fma, NCHW"),
        ({"library_version": "9.1"}, "cudnn 9.1 was never measured; measured: 7.6.3"),
        ({"c": 4096}, "c 4096 lies outside the measured 16 … 48"),
        ({"gpu": "k80", "c": 4096}, "gpu k80 was never measured; measured: t4, titan-xp"),
    ],
)
def test_the_first_violation_is_told(domain: Domain, frame: pd.DataFrame, changes: dict, told: str) -> None:
    assert domain.reason(**asked(frame, **changes)) == told


def test_too_far_is_outside(domain: Domain, frame: pd.DataFrame) -> None:
    """Every size in its range, but no shape with such a combination near: 1×1 at stride 2, padded and grouped."""
    sizes = {
        "n": 8,
        "c": 48,
        "h": 7,
        "w": 28,
        "k": 96,
        "r": 1,
        "s": 3,
        "stride_h": 2,
        "stride_w": 1,
        "groups": 48,
    }
    text = domain.reason(**asked(frame, **sizes))
    assert text is not None
    assert text.startswith("the nearest measured shapes are ")
    assert "99% of held-out problems had theirs within 0.99" in text
    row = frame.head(1).assign(**sizes)
    assert not domain.contains(row)[0]
    assert Domain.of(frame).contains(row)[0]  # without held-out distances nothing is too far


def test_the_table_and_the_single_row_agree(domain: Domain, frame: pd.DataFrame) -> None:
    """`contains` is `reason is None` for rows inside and outside in every way; the GPU may go by an alias."""
    random = np.random.default_rng(0)
    rows = frame.sample(200, replace=True, random_state=0).reset_index(drop=True)
    for name, others in {
        "gpu": ["Tesla K80", "Tesla T4"],
        "algorithm": ["GEMM"],
        "dtype": ["fp16"],
        "library_version": ["9.1"],
        "c": [48, 49],
        "k": [96],
        "h": [56, 57],
    }.items():
        change = random.random(len(rows)) < 0.1
        rows.loc[change, name] = random.choice(others, change.sum())
    inside = domain.contains(rows)
    names = {"Tesla T4": "t4", "Tesla K80": "k80", "TITAN Xp": "titan-xp"}
    reasons = [domain.reason(**asked(rows.iloc[[i]], gpu=names[rows.gpu[i]])) for i in range(len(rows))]
    assert inside.tolist() == [reason is None for reason in reasons]
    assert 20 < inside.sum() < 180
    np.testing.assert_allclose(
        domain.distances(rows),
        [domain.distance(r["sizes"]) for r in (asked(rows.iloc[[i]]) for i in range(len(rows)))],
    )


def test_an_unmeasured_library_is_infinitely_far(domain: Domain, frame: pd.DataFrame) -> None:
    sizes = frame[list(SIZE_COLUMNS)].to_numpy()
    assert domain.distance(sizes[0].tolist(), "miopen", "fwd") == np.inf
    assert np.isinf(domain.distance(sizes, "cudnn", "bwd_data")).all()
    assert np.isinf(domain.distances(frame.head(3).assign(direction="bwd_data"))).all()


def test_json_keeps_all(domain: Domain, frame: pd.DataFrame) -> None:
    again = Domain.from_json(domain.to_json())
    other = frame.assign(c=frame["c"] + 5, k=frame["k"] + 5)
    np.testing.assert_array_equal(again.distances(other), domain.distances(other))
    assert again.to_json() == domain.to_json()
    assert again.seen(frame).all()
    assert not again.seen(other).any()


def test_a_domain_of_schema_1_bounds_settings_and_sizes_alone(domain: Domain, frame: pd.DataFrame) -> None:
    old = {
        key: value
        for key, value in json.loads(domain.to_json()).items()
        if key in ("ranges", "settings", "shapes")
    }
    again = Domain.from_json(json.dumps(old).encode())
    assert again.contains(frame).all()
    assert again.reason(**asked(frame, library_version="9.1")) is None
    assert not again.contains(frame.assign(c=4096)).any()
