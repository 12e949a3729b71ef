"""Folds hold out shapes, networks, GPUs or random rows; no held-out row is in the training set."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from surrogate.dataset.problems import shape_names
from surrogate.dataset.splits import SPLITS, fold_of_names, folds, network_names
from surrogate.features.families import CONV
from tests.tables import Table

NAMES = st.sets(st.text("abcdef", min_size=1, max_size=6), min_size=1, max_size=40)


@given(NAMES, st.integers(2, 10), st.integers(0, 5))
def test_fold_of_names_balances_folds_and_ignores_order(names: set[str], count: int, seed: int) -> None:
    fold_by_name = fold_of_names(names, count, seed)
    assert set(fold_by_name) == names and set(fold_by_name.values()) <= set(range(count))
    sizes = np.bincount(list(fold_by_name.values()), minlength=count)
    assert sizes.max() - sizes.min() <= 1
    assert fold_of_names(sorted(names, reverse=True) * 2, count, seed) == fold_by_name


@pytest.mark.parametrize("by", SPLITS)
def test_every_row_is_tested_once_and_not_trained_on_in_its_fold(table: Table, by: str) -> None:
    main, also = table(12), table(15, gpus=("TITAN V",))
    main = main[main["networks"].isin(["AlphaNet", "BetaNet", "GammaNet"])].reset_index(drop=True)
    rounds = folds(by, CONV, main, also, 3, 0)
    tested = np.concatenate([fold.test for fold in rounds])
    assert sorted(tested) == list(range(len(main)))
    for fold in rounds:
        assert len(fold.test) and not set(fold.test) & set(fold.train)
        assert fold.test.max() < len(main)
        assert fold.train.max() < len(main) + len(also)


@pytest.mark.parametrize("by", ["shape", "network"])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_held_out_shape_is_in_training(table: Table, by: str, seed: int) -> None:
    main, also = table(12), table(16, batches=(4, 32), gpus=("TITAN V",))
    names = np.concatenate([shape_names(main, CONV), shape_names(also, CONV)])
    rounds = folds(by, CONV, main, also, 4, seed)
    assert len(rounds) >= 2
    for fold in rounds:
        holdout = set(names[fold.test])
        assert holdout and not holdout & set(names[fold.train])
        # The training set contains the second table's rows of all other shapes.
        assert {i for i in range(len(main), len(names)) if names[i] not in holdout} <= set(fold.train)


def test_network_folds_hold_out_complete_networks(table: Table) -> None:
    main = table(15)
    members = network_names(main)
    rounds = folds("network", CONV, main, main.iloc[:0], 3, 0)
    assert sorted(name for fold in rounds for name in fold.name.split("+")) == ["AlphaNet", "BetaNet", "GammaNet"]
    for fold in rounds:
        holdout = set(fold.name.split("+"))
        assert {i for i in range(len(main)) if members[i] & holdout} == set(fold.test)
        assert not any(members[i] & holdout for i in fold.train)


def test_network_names_parses_texts() -> None:
    frame = pd.DataFrame({"networks": ["A,B", "A; C", "", None, "D"]}, dtype=object)
    assert network_names(frame) == [{"A", "B"}, {"A", "C"}, set(), set(), {"D"}]
    assert network_names(frame.drop(columns="networks")) == [set()] * 5


def test_gpu_folds_hold_out_one_gpu_in_every_table(table: Table) -> None:
    main, also = table(3), table(3, gpus=("TITAN Xp", "TITAN V"))
    rounds = folds("gpu", CONV, main, also, 10, 0)
    gpus = pd.concat([main, also])["gpu"].to_numpy()
    assert [fold.name for fold in rounds] == ["TITAN Xp", "Tesla T4"]
    for fold in rounds:
        assert set(gpus[fold.test]) == {fold.name}
        assert fold.name not in gpus[fold.train]
        assert "TITAN V" in gpus[fold.train]


def test_two_names_of_one_gpu_share_a_fold(table: Table) -> None:
    """A registry key and its alias are one GPU, so rows under either name are held out together."""
    main, also = table(3, gpus=("Tesla T4", "TITAN Xp")), table(3, gpus=("t4",))
    by_name = {fold.name: fold for fold in folds("gpu", CONV, main, also, 10, 0)}
    assert set(by_name) == {"Tesla T4", "TITAN Xp"}
    assert by_name["Tesla T4"].train.max() < len(main)
    assert by_name["TITAN Xp"].train.max() >= len(main)


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_folds_do_not_depend_on_the_order_of_rows(table: Table, seed: int) -> None:
    main = table(8)
    order = np.random.default_rng(seed).permutation(len(main))
    shuffled = main.iloc[order].reset_index(drop=True)
    for by in ("shape", "network", "gpu"):
        rounds = folds(by, CONV, main, main.iloc[:0], 3, 7)
        assert len(rounds) >= 2
        for fold, moved in zip(rounds, folds(by, CONV, shuffled, shuffled.iloc[:0], 3, 7), strict=True):
            assert fold.name == moved.name
            assert set(fold.test) == set(order[moved.test])
            assert set(fold.train) == set(order[moved.train])


def test_random_folds_depend_on_the_seed_alone(table: Table) -> None:
    main = table(6)
    first, again, other = (folds("random", CONV, main, main.iloc[:0], 4, seed)[0].test.tolist() for seed in (0, 0, 1))
    assert first == again != other


def test_impossible_splits_are_refused(refused, table: Table) -> None:
    no_rows = table(1).iloc[:0]
    for by, frame, count, message in (
        ("batch", table(2), 3, "split 'batch' is unknown; known: shape"),
        ("shape", table(2), 1, "1 fold: at least 2"),
        ("shape", table(1), 3, "1 distinct shape"),
        ("network", table(1), 3, "with at least 2 networks"),
        ("network", table(3).drop(columns="networks"), 3, "with at least 2 networks"),
        ("gpu", table(2, gpus=("Tesla T4",)), 3, "one GPU (Tesla T4)"),
    ):
        with refused(message):
            folds(by, CONV, frame, no_rows, count, 0)


def test_random_folds_hold_out_duplicates_in_further_tables(table: Table) -> None:
    """A measurement that the second table repeats under another name of the GPU is not trained on."""
    main = table(4)
    also = pd.concat([main.assign(gpu=main["gpu"].replace("Tesla T4", "t4")), main.assign(n=main["n"] + 100)])
    rounds = folds("random", CONV, main, also, 4, 0)
    assert len(rounds) == 4
    for fold in rounds:
        duplicates = fold.test + len(main)
        assert not set(duplicates) & set(fold.train)
        assert set(range(2 * len(main), 3 * len(main))) <= set(fold.train)
        assert len(fold.train) == 3 * len(main) - 2 * len(fold.test)
