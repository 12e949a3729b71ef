"""Rows dealt to disk by shape: each once, whole problems together, refused as the whole table would be."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from surrogate.cli.datasets import load_all
from surrogate.cli.kept import kept_values
from surrogate.dataset.normalise import normalise
from surrogate.dataset.schema import ROW_KEY
from surrogate.dataset.splits import shape_names
from surrogate.dataset.store import write_dataset
from surrogate.features.errors import InputError
from surrogate.streaming import shards as module
from surrogate.streaming.shards import LEAST_SHARDS, Shards, deal

Table = Callable[..., pd.DataFrame]
KEY = list(ROW_KEY)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of some hundred rows then come in several batches."""
    monkeypatch.setattr(module, "BATCH_ROWS", 37)


def _write(frame: pd.DataFrame, path: Path, **metadata: object) -> Path:
    write_dataset(frame, path, metadata=dict(metadata))
    return path


def _all_rows(shards: Shards) -> pd.DataFrame:
    return pd.concat([data.frame for data in shards], ignore_index=True)


def _alike(a: pd.DataFrame, b: pd.DataFrame) -> None:
    columns = [*KEY, "status", "time_us"]
    a, b = (frame[columns].sort_values(KEY).reset_index(drop=True) for frame in (a, b))
    pd.testing.assert_frame_equal(a, b)


def test_every_row_stands_in_one_shard_and_a_shape_in_no_other(table: Table, tmp_path: Path) -> None:
    path = _write(table(), tmp_path / "t.parquet")
    shards = deal([path], tmp_path)
    assert 1 < len(shards) <= LEAST_SHARDS
    _alike(_all_rows(shards), load_all([path], None, ()).frame)
    shapes = [set(shape_names(data.frame)) for data in shards]
    assert sum(map(len, shapes)) == len(set().union(*shapes)) == 12


def test_of_several_files_the_last_one_counts_as_in_memory(table: Table, tmp_path: Path) -> None:
    first = _write(table(8), tmp_path / "a.parquet")
    again = table(10, gpus=("Tesla T4",), seed=1).assign(solver="S")
    second = _write(again, tmp_path / "b.parquet")
    shards = deal([first, second], tmp_path)
    whole = load_all([first, second], None, ()).frame
    _alike(*(frame.drop_duplicates(KEY, keep="last") for frame in (_all_rows(shards), whole)))
    assert shards.name == "a.parquet+b.parquet"


def test_conditions_keep_what_where_keeps(table: Table, tmp_path: Path) -> None:
    frame = table().assign(layout="NCHW-NCHW-NCHW")
    path = _write(frame, tmp_path / "t.parquet")
    where = ["gpu=Tesla T4,TITAN V", "layout=NCHW", "r=3", "n=1,8"]
    shards = deal([path], tmp_path, keep=kept_values([path], where))
    _alike(_all_rows(shards), load_all([path], None, where).frame)
    for wrong, said in (
        ("gpus=T4", "did you mean gpu"),
        ("gpu", "COLUMN=VALUE"),
        ("gpu=K80", "leaves no rows"),
    ):
        with pytest.raises(InputError, match=said):
            kept_values([path], [wrong])


def test_conditions_that_meet_nowhere(table: Table, tmp_path: Path) -> None:
    frame = table(4)
    path = _write(frame[(frame["gpu"] != "Tesla T4") | (frame["n"] == 1)], tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"t\.parquet: no row of it is kept"):
        deal([path], tmp_path, keep=kept_values([path], ["gpu=Tesla T4", "n=8"]))


def test_the_sources_metadata_and_candidate_lists_survive(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_dataset(table(4), path, candidates="listed", metadata={"licence_notices": ["none"]})
    shards = deal([path], tmp_path)
    assert shards.metadata["candidates"] == "listed"
    assert shards.metadata["parts"][0]["licence_notices"] == ["none"]
    assert all(data.candidates == "listed" for data in shards)
    assert deal([path], tmp_path, candidates="all").metadata["candidates"] == "all"


def test_a_bad_row_is_named_by_its_place_in_the_file(table: Table, tmp_path: Path) -> None:
    frame = normalise(table(), "t")
    frame.loc[101, "c"] = -1
    path = _write(frame, tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"t\.parquet: row 101: c is -1; it must be between 1"):
        deal([path], tmp_path)


def test_a_key_that_stands_twice_in_one_file_is_refused_with_the_files_name(
    table: Table, tmp_path: Path
) -> None:
    frame = table(4)
    path = _write(pd.concat([frame, frame.iloc[:1]]), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="the same row stands above") as caught:
        list(deal([path], tmp_path))
    assert str(caught.value).startswith(str(path))


def test_files_that_cannot_be_dealt(table: Table, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        deal([tmp_path / "none.parquet"], tmp_path)
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(InputError, match="not a readable parquet file"):
        deal([tmp_path / "text.parquet"], tmp_path)
    table(2).drop(columns="time_us").to_parquet(tmp_path / "few.parquet")
    with pytest.raises(InputError, match="column time_us missing"):
        deal([tmp_path / "few.parquet"], tmp_path)
    with pytest.raises(InputError, match="no dataset given"):
        deal([], tmp_path)


@pytest.mark.parametrize("column", ["origin", "heuristic_algorithm", "solver"])
def test_optional_columns_of_numbers_are_text_in_shards(table: Table, tmp_path: Path, column: str) -> None:
    path = _write(table(4).assign(**{column: 3}), tmp_path / "t.parquet")
    assert set(_all_rows(deal([path], tmp_path))[column]) == {"3"}
