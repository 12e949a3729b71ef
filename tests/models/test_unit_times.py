"""`unit-times`: recovery of times in its own form, answers at measured problems, and the shipped attention bundle."""

import numpy as np
import pandas as pd
import pytest

from experiments.sources import DEFAULT_FOLDER
from surrogate import predict, read_dataset, select
from surrogate.dataset.rows import rows_of
from surrogate.features.families import parse_problem
from surrogate.models.linear import CALL_US, EXPONENTIAL_WEIGHT, UnitTimes
from surrogate.network.predict import load_predictors
from tests.tables import checked, every

MEASURED = DEFAULT_FOLDER / "attention_cudnn9.parquet"
FIXED = {"operator": "attention", "library": "cudnn", "library_version": "9", "algorithm": "sdpa", "status": "ok"}


def unmasked(*gpus: str) -> pd.DataFrame:
    """Return attention without a mask in bf16 at several lengths, heads and head sizes."""
    sizes = {"query_length": [1024, 4096, 16384], "heads": [8, 40], "head_dim": [64, 128, 256]}
    return every(gpu=gpus, **sizes).assign(batch=1, phase="encoder", dtype="bf16", **FIXED)


def test_times_in_its_own_form_are_recovered_and_scale_with_the_datasheet() -> None:
    """On one SM of B300, exponentials take half as long as on GB200. Products take 4·pairs·head size / peak."""
    train, test = (checked(unmasked(*gpus).assign(time_us=1.0)) for gpus in (("gb200",), ("b300", "gb200")))
    pairs = test.frame["heads"] * test.frame["query_length"].astype(float) ** 2
    is_b300 = (test.frame["gpu"] == "b300").to_numpy()
    products_us = 4 * pairs * test.frame["head_dim"] / np.where(is_b300, 2250e6, 2500e6)
    exponentials_us = pairs / np.where(is_b300, 148 * 32 * 1980, 152 * 16 * 2062)
    blocks = test.frame["heads"] * test.frame["query_length"] / 128 / np.where(is_b300, 148, 152)
    by_hand = 1.5 * (products_us + EXPONENTIAL_WEIGHT * exponentials_us) + 2.0 * blocks + CALL_US
    model = UnitTimes().fit(train, by_hand[~is_b300].to_numpy())
    np.testing.assert_allclose(model.predict(test), by_hand, rtol=1e-4)
    stored = UnitTimes.from_files({}, model.to_files())
    np.testing.assert_array_equal(stored.predict(test), model.predict(test))


def test_a_measured_problem_keeps_its_time_and_a_near_one_takes_over_a_part_of_its_error() -> None:
    train = checked(unmasked("h200").assign(time_us=1.0))
    times_us = UnitTimes().units(train).sum(axis=1) + CALL_US
    times_us[4] *= 1.4  # 1,024 queries of 40 heads of 128
    model = UnitTimes().fit(train, times_us)
    np.testing.assert_allclose(model.predict(train), times_us, rtol=1e-6)
    near, far = (rows_of(train.frame.iloc[[4]].assign(query_length=n, context_length=n)) for n in (1200, 200_000))
    ratios = [model.predict(rows)[0] / (UnitTimes().units(rows).sum() + CALL_US) for rows in (near, far)]
    assert 1.1 < ratios[0] < 1.4 and abs(ratios[1] - 1) < 0.1


@pytest.mark.parametrize("kind", ["attention", "mla"])
def test_the_shipped_bundle_repeats_measured_times_of_both_directions(kind: str) -> None:
    rows = read_dataset(MEASURED).frame.query("family == @kind").groupby("operator").sample(5, random_state=0)
    for row in rows.to_dict("records"):
        sizes = "".join(f"{name}{row[name]}" for name in ("batch", "heads", "query_length", "context_length"))
        sizes += f"kv_heads{row['kv_heads']}head_dim{row['head_dim']}window{row['window']}" * (kind == "attention")
        settings = {name: row[name] for name in ("dtype", "phase", "library", "algorithm")}
        answer = predict(f"{row['operator']}:{sizes}", gpu=row["gpu"], **settings)
        assert answer.time_us == pytest.approx(row["time_us"], rel=1e-4) and answer.source == "model"


def test_the_gradient_of_attention_has_one_answer_and_an_algorithm_that_repeats_its_bits() -> None:
    text = "attention_backward:b2h64g8d128q8192k8192"
    answer = predict(text, gpu="gb200", dtype="bf16")
    in_network = load_predictors("gb200").kernel_predictor.kernel_times([parse_problem(text, dtype="bf16")])[0]
    assert (in_network.library, in_network.algorithm) == ("cudnn", "sdpa") and in_network.call_us == answer.time_us
    (pick,) = select(text, gpu="gb200", dtype="bf16", deterministic=True).estimates
    assert pick.candidate.algorithm == "sdpa_deterministic" and pick.time_us > answer.time_us
    other_vendor = predict(text, gpu="mi300x", dtype="bf16")
    assert other_vendor.upper_us >= 3 * other_vendor.time_us  # no GPU of that vendor was measured
