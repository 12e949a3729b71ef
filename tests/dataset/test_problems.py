"""Problem and shape codes, newest library versions, rows for an evaluation, and the fastest solver."""

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset import problems
from surrogate.features.algorithms import version_number
from surrogate.features.families import CONV
from tests.tables import Table


def test_problem_codes_include_gpu_and_batch_but_shape_codes_do_not(table: Table) -> None:
    frame = table(3, batches=(1, 8), gpus=("Tesla T4", "TITAN Xp"))
    assert len(set(problems.problem_codes(frame, CONV))) == 3 * 2 * 2
    assert len(set(problems.shape_codes(frame, CONV))) == 3
    assert (frame.groupby(problems.problem_codes(frame, CONV)).size() == 4).all()
    assert problems.problem_codes(frame, CONV)[0] == problems.shape_codes(frame, CONV)[0] == 0


@pytest.mark.parametrize(("text", "expected"), [("7.6.4", (7, 6, 4)), ("find-db v2", (2,)), ("unknown", (0,))])
def test_version_number_parses_texts(text: str, expected: tuple[int, ...]) -> None:
    assert version_number(text) == expected


def test_newest_version_compares_numbers_within_a_problem(table: Table) -> None:
    old, new = table(2, version="7.9.1"), table(1, version="7.10.0")
    frame = pd.concat([old, new], ignore_index=True)
    newest = problems.newest_version(frame, CONV)
    shapes = problems.shape_codes(frame, CONV)
    # The first shape was measured with both versions; a comparison of texts would prefer "7.9.1".
    assert newest.tolist() == ((frame["library_version"] == "7.10.0") | (shapes != 0)).tolist()


def test_fully_measured_requires_every_algorithm(table: Table) -> None:
    frame = table(3, batches=(1,), gpus=("Tesla T4",))
    missing = frame.drop(index=[1]).reset_index(drop=True)
    assert problems.fully_measured(frame, CONV).all()
    assert problems.fully_measured(missing, CONV).tolist() == [False] * 3 + [True] * 8
    assert problems.evaluation_rows(missing, CONV, "all").sum() == 8
    assert problems.evaluation_rows(missing, CONV, "listed").all()


def test_fully_measured_allows_other_algorithms_on_another_gpu(table: Table) -> None:
    frame = pd.concat([table(2, gpus=("Tesla T4",)), table(2, gpus=("TITAN V",), algorithms=("IMPLICIT_GEMM", "FFT"))])
    assert problems.fully_measured(frame.reset_index(drop=True), CONV).all()


def test_evaluation_rows_require_two_ok_candidates(table: Table) -> None:
    frame = table(2, batches=(1,), gpus=("Tesla T4",))
    frame.loc[:2, "status"] = "failed"  # the first problem keeps one candidate
    for kind in ("all", "listed"):
        assert problems.evaluation_rows(frame, CONV, kind).tolist() == [False] * 4 + [True] * 4


def test_fastest_solver_keeps_one_row_per_algorithm(table: Table) -> None:
    base = table(1, batches=(1,), gpus=("Tesla T4",)).iloc[[0, 0, 0, 3]]
    measured = {"time_us": [9.0, 4.0, 1.0, np.nan], "status": ["ok", "ok", "failed", "not_supported"]}
    frame = base.assign(solver=["slow", "fast", "broken", "only"], **measured).reset_index(drop=True)
    kept = problems.fastest_solver(frame)
    # A failed solver's time does not count, and an algorithm without an ok solver keeps one row.
    assert kept["time_us"].tolist()[:1] == [4.0] and kept["status"].tolist() == ["ok", "not_supported"]
    assert "solver" not in kept
    assert problems.fastest_solver(frame.drop(columns="solver")).equals(frame.drop(columns="solver"))


def test_candidates_may_come_from_several_libraries(table: Table) -> None:
    """Versions are compared within a library; a problem that a library measured partly is not evaluated."""
    both = pd.concat([table(2, batches=(1,)), table(2, batches=(1,)).assign(library="other")], ignore_index=True)
    assert len(set(problems.problem_codes(both, CONV))) == len(both) // 8
    assert problems.newest_version(both.assign(library_version="1"), CONV).all()
    assert problems.evaluation_rows(both, CONV, "all").all()
    assert not problems.evaluation_rows(both.drop(index=0).reset_index(drop=True), CONV, "all")[:3].any()
