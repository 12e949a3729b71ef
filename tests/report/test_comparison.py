"""Test of the result of `surrogate.compare`."""

from collections.abc import Callable

import pandas as pd

import surrogate
from surrogate.dataset.checks import normalise
from surrogate.report.summary import terminal_summary


def test_a_comparison_has_text_html_and_frame(table: Callable[..., pd.DataFrame]) -> None:
    found = surrogate.compare(normalise(table(8), "test"), models="roofline,always-best-single", folds_count=2)
    assert isinstance(found, surrogate.Comparison)
    assert repr(found) == terminal_summary(found.to_dict()) and "roofline" in repr(found)
    assert "<table>" in found._repr_html_()
    assert set(found.to_frame()["model"]) >= {"roofline", "always-best-single", "oracle"}
