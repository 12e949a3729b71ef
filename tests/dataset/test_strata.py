"""Strata by hand."""

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.strata import GROUPINGS, STRATA, in_grouping, strata
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.features.text import parse


@pytest.mark.parametrize(
    ("text", "stratum"),
    [
        ("n1c8h9k8r1", "1x1s1"),
        ("n1c8h9k8r1u2", "1x1s2"),
        ("n1c8h9k8r1u2v1", "other"),
        ("n1c8h9k8r1u3", "other"),
        ("n1c8h9k8r3", "3x3s1"),
        ("n1c8h9k8r3p1", "3x3s1"),
        ("n1c8h9k8r3u2", "other"),
        ("n1c8h9k8r3l2", "other"),
        ("n1c8h9k8r3s1", "other"),
        ("n1c8h9k8r5", "other"),
        ("n1c8h9k8r3p1g8", "grouped"),
        ("n1c8h9k8r1g2", "grouped"),
    ],
)
def test_stratum_of_a_problem(text: str, stratum: str) -> None:
    frame = pd.DataFrame([parse(text).sizes], columns=list(SIZE_COLUMNS))
    assert strata(frame).tolist() == [stratum]
    assert stratum in STRATA


def test_groupings_cover_the_strata() -> None:
    values = np.array(STRATA)
    assert ("all", "ungrouped", *STRATA) == GROUPINGS
    assert in_grouping(values, "all").all()
    assert values[in_grouping(values, "ungrouped")].tolist() == [s for s in STRATA if s != "grouped"]
    for one in STRATA:
        assert values[in_grouping(values, one)].tolist() == [one]
