"""A booster's file: XGBoost sees only what was found sound, answers as before, and no forged file ends a process."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
from hypothesis import given
from hypothesis import strategies as st

from surrogate.bundled import FOLDER
from surrogate.features.errors import InputError
from surrogate.models.boosted import BoostedTerms
from surrogate.models.booster_file import BoosterFile, UnsupportedTreesError, native_booster
from surrogate.models.ubj import decode, encode
from tests.models.forging import COLUMNS, rows, small_booster

ROOT = Path(__file__).resolve().parents[2]
CONTENT = bytes(small_booster().save_raw("ubj"))


def _trees(model: Any) -> list[dict[str, Any]]:
    return model["learner"]["gradient_booster"]["model"]["trees"]


def _set(name: str, place: int, value: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        _trees(model)[0][name][place] = value

    return change


def test_what_xgboost_is_handed_answers_to_the_bit() -> None:
    known, x = small_booster(), rows()
    np.testing.assert_array_equal(
        native_booster(CONTENT, COLUMNS).inplace_predict(x), known.inplace_predict(x)
    )


@pytest.mark.parametrize("name", ["cudnn7/model/booster.ubj", "operators/memory-torch.ubj"])
def test_shipped_boosters_answer_to_the_bit(name: str) -> None:
    content = (FOLDER / name).read_bytes()
    known, checked = xgboost.Booster(), native_booster(content)
    known.load_model(bytearray(content))
    random = np.random.default_rng(0)
    x = random.normal(size=(300, checked.num_features())).astype(np.float32) * 10
    x[:, -1] = random.integers(0, 40, 300)
    x[random.random(x.shape) < 0.05] = np.nan
    np.testing.assert_array_equal(checked.inplace_predict(x), known.inplace_predict(x))


def test_what_is_written_reads_the_same() -> None:
    first = BoosterFile.from_ubj(CONTENT)
    again = BoosterFile.from_ubj(first.to_ubj())
    assert again.members == first.members and again.base_score == first.base_score
    for name in ("feature", "value", "left", "right", "missing_left", "offsets"):
        np.testing.assert_array_equal(getattr(again, name), getattr(first, name))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set("left_children", 0, 10_000), "children"),
        (_set("left_children", 1, 0), "children"),
        (_set("left_children", 0, 2), "children"),  # its sibling's place: two ways to one node
        (_set("right_children", -1, -2), "children"),
        (_set("split_indices", 0, 2**31 - 1), "column"),
        (_set("split_type", 0, 7), "categories"),
        (_set("categories", 0, 2**30), "categories"),
        (_set("categories_nodes", 0, 10_000), "categories"),
        (_set("categories_segments", 0, -1), "categories"),
        (_set("categories_sizes", 0, 2**62), "categories"),
        (lambda m: _trees(m)[0].update(split_type=np.zeros(1, np.uint8)), "differ in length"),
        (lambda m: _trees(m)[0].update(split_conditions=np.full(3, np.nan, np.float32)), "differ in length"),
        (lambda m: _trees(m)[0].update(left_children=np.empty(0, np.int32)), "no node"),
        (lambda m: _trees(m)[0].pop("default_left"), "default_left"),
        (lambda m: m["learner"]["learner_model_param"].update(num_feature="0"), "no number of columns"),
        (lambda m: m["learner"]["learner_model_param"].update(base_score="[nan]"), "base score"),
        (lambda m: m["learner"].update(gradient_booster=3), "not sound"),
    ],
)
def test_what_native_code_would_follow_is_refused(change: Callable[[Any], None], words: str) -> None:
    model = decode(CONTENT)
    change(model)
    with pytest.raises(InputError, match=words) as caught:
        BoosterFile.from_ubj(encode(model))
    assert "\n" not in str(caught.value) and "seer train" in str(caught.value)


def test_what_is_not_read_never_reaches_xgboost() -> None:
    """Counts and statistics that XGBoost trusts are written anew, whatever the file says."""
    model = decode(CONTENT)
    for name in ("parents", "sum_hessian", "loss_changes", "base_weights"):
        _trees(model)[0][name] = np.full(1, 10_000, np.int32)
    _trees(model)[1]["tree_param"]["num_nodes"] = "99999"
    _trees(model)[1]["id"] = 0
    inside = model["learner"]["gradient_booster"]["model"]
    inside["iteration_indptr"] = [0, 2**40]
    inside["gbtree_model_param"]["num_trees"] = "-5"
    assert native_booster(encode(model)).inplace_predict(rows()).tolist() == (
        small_booster().inplace_predict(rows()).tolist()
    )


def test_another_number_of_columns_is_refused() -> None:
    with pytest.raises(InputError, match="of 5 columns, the model has 7"):
        native_booster(CONTENT, 7)
    model = BoostedTerms.load({}, {"booster.ubj": CONTENT, "candidates.json": b"{}"})
    with pytest.raises(InputError, match="of 5 columns"):
        model._loaded()


@pytest.mark.parametrize("params", [{"objective": "count:poisson"}, {"booster": "dart"}])
def test_more_than_a_sum_of_trees_is_refused(params: dict[str, str]) -> None:
    data = xgboost.DMatrix(np.ones((20, 2), dtype=np.float32), label=np.arange(20))
    booster = xgboost.train({"verbosity": 0, "nthread": 1, **params}, data, num_boost_round=2)
    with pytest.raises(UnsupportedTreesError):
        BoosterFile.from_ubj(bytes(booster.save_raw("ubj")))


@given(cut=st.floats(0, 1, exclude_max=True), flip=st.integers(0, 10**9))
def test_a_damaged_booster_is_refused_in_one_line(cut: float, flip: int) -> None:
    with pytest.raises(InputError, match="damaged"):
        decode(CONTENT[: int(cut * len(CONTENT))])
    changed = bytearray(CONTENT)
    changed[flip % len(CONTENT)] ^= 0x41
    try:
        BoosterFile.from_ubj(bytes(changed))
    except InputError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("first", "last"), [(0, 120), pytest.param(1000, 4000, marks=pytest.mark.slow, id="many")]
)
def test_forged_boosters_end_no_process(first: int, last: int) -> None:
    command = [sys.executable, "-m", "tests.models.forging", str(first), str(last)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    verdicts = [line.split()[1] for line in found.stdout.splitlines()]
    assert found.returncode == 0 and len(verdicts) == last - first, found.stderr[-500:]
    assert set(verdicts) == {"read", "refused"}


def test_pruned_nodes_end_no_process() -> None:
    """XGBoost keeps the nodes that it prunes, without a parent; here in a process of its own, should it die."""
    code = """
import numpy as np, xgboost
from surrogate.models.booster_file import native_booster
random = np.random.default_rng(0)
x = random.normal(size=(400, 5)).astype(np.float32)
data = xgboost.DMatrix(x, label=x[:, 0] * x[:, 1] + random.normal(size=400))
settings = {"tree_method": "exact", "gamma": 5.0, "max_depth": 6, "nthread": 1, "verbosity": 0}
known = xgboost.train(settings, data, num_boost_round=8)
checked = native_booster(bytes(known.save_raw("ubj")), 5)
assert (checked.inplace_predict(x) == known.inplace_predict(x)).all()
"""
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr[-500:]
