"""`Rows` holds arrays for a table of one family, aligned with its frame."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import rows_by_family, rows_of
from surrogate.features.conv import Conv
from surrogate.features.families import CONV, FAMILIES
from surrogate.features.gpu import gpu
from surrogate.features.problem import SIZE_COLUMNS
from tests.tables import Table, checked


def test_features_equal_the_formula_of_each_problem(table: Table) -> None:
    frame = normalise(table(4), "test")
    rows = rows_of(frame)
    assert rows.features.shape == (len(frame), len(rows.column_names)) and np.isfinite(rows.features).all()
    for i in (0, 7, 21, len(frame) - 1):
        sizes: dict[str, Any] = {name: int(frame[name][i]) for name in SIZE_COLUMNS}
        conv = Conv(**sizes)
        formula = CONV.formula(CONV.setting_of(conv), gpu(frame["gpu"][i]))
        terms = formula.problem(conv)
        mechanism = CONV.mechanism("cudnn", CONV.setting_of(conv), frame["algorithm"][i])
        own, workspace = formula.candidate(terms, mechanism)
        expected = np.array([*terms.values, *own, *formula.constant], dtype=np.float32)
        np.testing.assert_allclose(rows.features[i, :-1], expected, rtol=3e-7, atol=3e-7)
        assert rows.roofline_us[i] == pytest.approx(terms.roofline_us, rel=1e-12)
        assert rows.workspace_bytes[i] == workspace


def test_a_cpu_without_a_datasheet_is_refused(refused, table: Table) -> None:
    frame = normalise(table(1).assign(gpu="Some CPU", library="reference"), "test")
    with refused("'Some CPU' is a CPU", ".parquet"):
        rows_of(frame)


def test_rows_have_version_order_candidate_and_ok(table: Table) -> None:
    frame = normalise(table(2, version="7.6.4"), "test")
    rows = rows_of(frame)
    assert set(rows.column("library_version")) == {np.float32(7.0604)}
    assert (rows.ok == (frame["status"] == "ok")).all()
    places = {"IMPLICIT_GEMM": 0, "IMPLICIT_PRECOMP_GEMM": 1, "FFT": 4, "WINOGRAD": 6}
    assert rows.order.tolist() == [places[name] for name in frame["algorithm"]]
    assert rows.candidate.tolist() == [f"cudnn|fwd|{name}" for name in frame["algorithm"]]


def test_take_keeps_columns_aligned(table: Table) -> None:
    rows = checked(table(4))
    positions, mask = np.array([9, 3, 30]), np.zeros(len(rows), dtype=bool)
    mask[[3, 9, 30]] = True
    taken, masked = rows.take(positions), rows.take(mask)
    assert taken.frame.index.tolist() == [9, 3, 30] and masked.frame.index.tolist() == [3, 9, 30]
    for name in ("features", "shape", "roofline_us", "problem", "candidate", "stratum", "workspace_bytes"):
        assert (getattr(taken, name) == getattr(rows, name)[positions]).all(), name
    assert len(rows.take(np.array([], dtype=int))) == 0 and rows_of(rows) is rows


def test_a_table_without_times_is_accepted(table: Table) -> None:
    rows = rows_of(normalise(table(2), "test").drop(columns=["status", "time_us"]))
    assert not rows.ok.any() and np.isnan(rows.time_us).all() and np.isfinite(rows.features).all()


def test_rows_by_family_separates_families(refused, table: Table) -> None:
    softmax = {"gpu": "v100", "library": "torch", "library_version": "2", "operator": "softmax", "n": 8, "c": 64}
    frame = pd.concat([table(1), pd.DataFrame([{**softmax, "status": "ok", "time_us": 9.0}])], ignore_index=True)
    frame = normalise(
        frame.fillna(dict.fromkeys(SIZE_COLUMNS, 0)).assign(family=["conv"] * (len(frame) - 1) + ["rowwise"]), "test"
    )
    with refused("one family"):
        rows_of(frame)
    parts = rows_by_family(frame)
    assert list(parts) == [CONV, FAMILIES["rowwise"]]
    positions, rows = parts[FAMILIES["rowwise"]]
    assert positions.tolist() == [len(frame) - 1] and rows.candidate.tolist() == ["torch|softmax||default"]
    assert len(parts[CONV][1]) == len(frame) - 1
