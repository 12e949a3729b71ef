"""Foreign spellings brought to the dataset's own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.normalise import normalise, require_columns
from surrogate.dataset.schema import SIZE_COLUMNS
from surrogate.features.errors import InputError

Table = Callable[..., pd.DataFrame]


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32", "float32", "Int64", "str"])
def test_sizes_become_int64_whatever_their_type(table: Table, kind: str) -> None:
    frame = table(2, batches=(1,))
    foreign = frame.astype(dict.fromkeys(SIZE_COLUMNS, kind))
    out = normalise(foreign, "test")
    for column in SIZE_COLUMNS:
        assert out[column].dtype == np.int64
        assert out[column].tolist() == frame[column].tolist()


def test_the_input_frame_stays_as_it_was(table: Table) -> None:
    frame = table(2).astype({"c": "int16"})
    before = frame.copy(deep=True)
    normalise(frame, "test")
    pd.testing.assert_frame_equal(frame, before)


def test_unknown_columns_survive_and_the_index_is_renewed(table: Table) -> None:
    frame = table(2).assign(colour="blue")
    frame.index = frame.index + 100
    out = normalise(frame, "test")
    assert (out["colour"] == "blue").all()
    assert out.index.tolist() == list(range(len(frame)))


def test_miopen_layouts_are_renamed(table: Table) -> None:
    frame = table(1).assign(layout="NHWC-NHWC-NHWC")
    assert set(normalise(frame, "test")["layout"]) == {"NHWC"}


def test_missing_texts_become_none(table: Table) -> None:
    frame = table(1)
    frame.loc[0, "networks"] = np.nan
    frame.loc[1, "heuristic_algorithm"] = None
    out = normalise(frame, "test")
    assert out["networks"][0] is None and out["heuristic_algorithm"][1] is None


def test_times_become_float64(table: Table) -> None:
    frame = table(2, batches=(1,))
    out = normalise(frame.assign(time_us=frame["time_us"].astype("float32"), repeats=3), "test")
    assert out["time_us"].dtype == np.float64 and out["repeats"].dtype == np.float64


@pytest.mark.parametrize("value", [1.5, np.nan, np.inf, "many", None, 2.0**60])
def test_a_size_that_is_no_whole_number_is_named(table: Table, value: Any) -> None:
    frame = table(1).astype({"c": object})
    frame.loc[2, "c"] = value
    with pytest.raises(InputError, match=r"^test: row 2: c is .*; a (whole )?number is needed$"):
        normalise(frame, "test")


def test_a_time_that_is_no_number_is_named(table: Table) -> None:
    frame = table(1).astype({"time_us": object})
    frame.loc[1, "time_us"] = "fast"
    with pytest.raises(InputError, match=r"^test: row 1: time_us is 'fast'; a number is needed$"):
        normalise(frame, "test")


def test_missing_columns_are_named_with_the_nearest(table: Table) -> None:
    frame = table(1).rename(columns={"stride_h": "stride_height"}).drop(columns="gpu")
    with pytest.raises(InputError) as caught:
        require_columns(frame, ("gpu", "n", "stride_h"), "mine.parquet")
    message = str(caught.value)
    assert message.startswith("mine.parquet: columns gpu, stride_h missing") and "\n" not in message
    with pytest.raises(InputError, match=r"did you mean .*stride_height"):
        require_columns(frame, ("stride_h",), "mine.parquet")
