"""`Rows`: features of a table, aligned with its frame."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.normalise import normalise
from surrogate.dataset.rows import COLUMN_NAMES, rows_of
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu
from surrogate.features.machine import b_max, machine
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.features.table import FEATURE_NAMES, feature_row

Table = Callable[..., pd.DataFrame]


def test_each_row_has_the_features_of_its_problem(table: Table) -> None:
    frame = normalise(table(4), "test")
    rows = rows_of(frame)
    assert rows.features.shape == (len(frame), len(COLUMN_NAMES)) and np.isfinite(rows.features).all()
    families = {
        "IMPLICIT_GEMM": "implicit_gemm",
        "WINOGRAD": "winograd",
        "FFT": "fft",
        "IMPLICIT_PRECOMP_GEMM": "precomp_gemm",
    }
    for i in (0, 7, 21, len(frame) - 1):
        sizes: dict[str, Any] = {name: int(frame[name][i]) for name in SIZE_COLUMNS}
        conv = Conv(**sizes)
        device, family = gpu(frame["gpu"][i]), families[frame["algorithm"][i]]
        features, base_us = feature_row(conv, machine(device), family, b_max(device, family))  # type: ignore[arg-type]
        assert rows.roofline_us[i] == pytest.approx(base_us, rel=1e-12)
        expected = np.array(features, dtype=np.float32)
        np.testing.assert_allclose(rows.features[i, : len(FEATURE_NAMES)], expected, rtol=3e-7, atol=3e-7)


def test_context_order_and_ok(table: Table) -> None:
    frame = normalise(table(2, version="7.6.4"), "test")
    rows = rows_of(frame)
    assert set(rows.column("library_version")) == {np.float32(7.0604)}
    assert (rows.ok == (frame["status"] == "ok")).all()
    places = {"IMPLICIT_GEMM": 0, "IMPLICIT_PRECOMP_GEMM": 1, "FFT": 4, "WINOGRAD": 6}
    assert rows.order.tolist() == [places[name] for name in frame["algorithm"]]


def test_take_keeps_everything_aligned(table: Table) -> None:
    rows = rows_of(normalise(table(4), "test"))
    picked = np.array([9, 3, 30])
    mask = np.zeros(len(rows), dtype=bool)
    mask[[3, 9, 30]] = True
    some, masked = rows.take(picked), rows.take(mask)
    assert (
        len(some) == 3
        and some.frame.index.tolist() == [9, 3, 30]
        and masked.frame.index.tolist() == [3, 9, 30]
    )
    assert (some.features == rows.features[picked]).all() and (some.shape == rows.shape[picked]).all()
    assert (some.roofline_us == rows.roofline_us[picked]).all() and (
        some.problem == rows.problem[picked]
    ).all()
    assert len(rows.take(np.array([], dtype=int))) == 0


def test_a_table_to_predict(table: Table) -> None:
    rows = rows_of(normalise(table(2).drop(columns=["status", "time_us"]), "test"))
    assert not rows.ok.any() and np.isnan(rows.time_us).all() and np.isfinite(rows.features).all()


def test_narrow_integers_make_the_same_rows(table: Table) -> None:
    frame = table(4)
    narrow = frame.astype({name: "int8" for name in SIZE_COLUMNS if frame[name].max() < 128})
    wide, small = rows_of(normalise(frame, "test")), rows_of(normalise(narrow, "test"))
    assert (wide.features == small.features).all() and (wide.roofline_us == small.roofline_us).all()


def test_unknown_names(table: Table) -> None:
    with pytest.raises(InputError, match="Tesla T5"):
        rows_of(table(1).assign(gpu="Tesla T5"))
    with pytest.raises(InputError, match="library 'cuddn' is unknown"):
        rows_of(table(1).assign(library="cuddn"))
