"""Which columns models see, and the names of candidates."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import COLUMN_NAMES, rows_of
from surrogate.features.errors import InputError
from surrogate.models import DEFAULT_MODEL, MODELS, model_class
from surrogate.models.columns import DIMS, TERMS, candidate_names, select, vocabulary

Table = Callable[..., pd.DataFrame]


def test_terms_hold_the_dimensions_and_more() -> None:
    assert set(DIMS) < set(TERMS) <= set(COLUMN_NAMES)
    assert len(set(TERMS)) == len(TERMS)
    assert not [
        name for name in DIMS if "flops" in name and name not in ("log2_peak_tflops", "log2_fp32_tflops")
    ]


def test_no_column_tells_the_time_or_the_status() -> None:
    # Every `_us` column is a roofline's: known before anything ran.
    assert [name for name in COLUMN_NAMES if name.endswith("_us")] == [
        "log2_roofline_us",
        "log2_occupied_time_us",
    ]
    assert not {"time_us", "status", "heuristic_algorithm", "workspace_bytes"} & set(COLUMN_NAMES)


def test_features_do_not_depend_on_what_was_measured(table: Table) -> None:
    frame = table(4)
    blind = frame.assign(time_us=1.0, status="ok", heuristic_algorithm="FFT", networks="x")
    seen, unseen = (rows_of(normalise(one, "test")).features for one in (frame, blind))
    np.testing.assert_array_equal(seen, unseen)


def test_select_in_the_order_asked(table: Table) -> None:
    rows = rows_of(normalise(table(2), "test"))
    picked = select(rows, ("log2_k", "log2_n"))
    assert picked.shape == (len(rows), 2)
    assert (picked[:, 1] == rows.column("log2_n")).all() and (picked[:, 0] == rows.column("log2_k")).all()


def test_candidates_are_told_apart_by_library_direction_algorithm_and_solver(table: Table) -> None:
    rows = rows_of(normalise(table(1), "test"))
    assert len(set(candidate_names(rows))) == 4
    frame = pd.concat([table(1).assign(solver="a"), table(1).assign(solver="b", direction="bwd_data")])
    assert len(set(candidate_names(rows_of(normalise(frame, "test"))))) == 8


def test_vocabulary_is_sorted_and_dense() -> None:
    assert vocabulary(np.array(["b", "a", "b"], dtype=object)) == {"a": 0, "b": 1}


def test_models_by_name() -> None:
    assert DEFAULT_MODEL in MODELS
    assert all(cls.name == name for name, cls in MODELS.items())
    assert {
        "roofline",
        "always-best-single",
        "linear-dims",
        "linear-terms",
        "boosted-dims",
        "boosted-terms",
    } <= set(MODELS)
    with pytest.raises(InputError, match=r"'boosted-term' is unknown.*did you mean boosted-terms"):
        model_class("boosted-term")
