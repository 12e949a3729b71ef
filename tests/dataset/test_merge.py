"""Several datasets made one."""

from collections.abc import Callable

import pandas as pd
import pytest

from surrogate.dataset.check import check
from surrogate.dataset.merge import merge
from surrogate.dataset.normalise import normalise
from surrogate.dataset.splits import folds
from surrogate.dataset.store import Dataset
from surrogate.features.errors import InputError

Table = Callable[..., pd.DataFrame]


def test_the_last_part_wins_and_nothing_else_is_lost(table: Table) -> None:
    old, new = table(3), table(4, seed=1)
    merged = merge([Dataset(old, name="old"), Dataset(new, name="new")])
    assert len(merged) == len(new) and check(merged.frame) == []
    pd.testing.assert_frame_equal(merged.frame.sort_values(list(new.columns[:22])).reset_index(drop=True),
                                  new.sort_values(list(new.columns[:22])).reset_index(drop=True))  # fmt: skip
    assert merged.name == "old+new"
    assert [part["name"] for part in merged.metadata["parts"]] == ["old", "new"]


def test_distinct_rows_all_stay(table: Table) -> None:
    parts = [Dataset(table(2, gpus=(gpu,)), name=gpu) for gpu in ("Tesla T4", "TITAN V")]
    assert len(merge(parts)) == sum(len(part) for part in parts)


def test_unlike_candidate_lists_are_refused(table: Table) -> None:
    parts = [Dataset(table(1), "all", "a"), Dataset(table(1), "listed", "b")]
    with pytest.raises(InputError, match=r"candidate lists differ \(a is 'all', b is 'listed'\)"):
        merge(parts)


def test_nothing_to_merge() -> None:
    with pytest.raises(InputError, match="nothing to merge"):
        merge([])


def test_a_part_without_an_optional_column_can_still_be_split_by_network(table: Table) -> None:
    """The rows of that part name no network: they are never held out, and nothing fails."""
    other = table(8, gpus=("TITAN V",)).drop(columns=["networks", "heuristic_algorithm"])
    merged = merge([Dataset(normalise(table(8), "a"), name="a"), Dataset(normalise(other, "b"), name="b")])
    for fold in folds("network", merged.frame, merged.frame.iloc[:0], 3, 0):
        assert set(merged.frame["gpu"].iloc[fold.test]) == {"Tesla T4", "TITAN Xp"}


def test_a_gpu_under_two_names_is_one(table: Table) -> None:
    frame = table(4)
    again = frame.assign(gpu=frame["gpu"].replace("Tesla T4", "t4"), time_us=1.0)
    merged = merge([Dataset(frame, name="a"), Dataset(again, name="b")]).frame
    assert len(merged) == len(frame) and set(merged["gpu"]) == {"t4", "TITAN Xp"}
