"""What counts as a wrong row under a fault, on tables made by hand; and one fault, tried over the fake of the chain."""

import pandas as pd
import pytest

from tests.collect.fake import chain
from tests.collect.fake.trial import rows, tried, wrong
from tests.known import cases

RIGHT = pd.DataFrame(
    {"status": ["ok", "ok", "not_supported"], "time_us": [10.0, 20.0, None], "kernels": [1.0, 2.0, None]},
    index=["a", "b", "c"],
)


@cases(__file__)
def test_a_row_misleads_where_it_differs_and_does_not_say_why(row, column, value, misleads):
    """The fault's own failures, and times marked as throttled or not CUPTI's (no time here), say it."""
    table = RIGHT.copy()
    table.loc[row, column] = value
    assert wrong(table, RIGHT) is misleads
    assert not wrong(RIGHT.drop(index="a"), RIGHT)


@pytest.mark.slow
@pytest.mark.skipif(not chain.compiler(), reason="the fake of the measuring chain needs Linux and a C compiler")
def test_a_killed_command_leaves_nothing_behind(tmp_path) -> None:
    library = chain.build(tmp_path)
    failures = tried(tmp_path / "whole", {}, library, "0", rows(tmp_path))
    reference = rows(tmp_path / "whole")
    assert len(reference) == 24 and not any(failures.values())
    fault = {"FAKE_FAULTS": "hang cudnnConvolutionForward -1 -K", "calls": 150, "killed": True}
    assert not any(tried(tmp_path / "killed", fault, library, "0", reference).values())
