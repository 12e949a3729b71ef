"""The accuracy table of the README: order, omitted rows, signs and dashes."""

import pandas as pd

from experiments.accuracy_table import markdown, spread
from tests.known import known_answers

ANSWERS = known_answers(__file__)


def test_the_table_matches_one_written_by_hand() -> None:
    results = ANSWERS["test_the_table_matches_one_written_by_hand"]["results"]
    lines = markdown(results).split("\n")
    names = [line.split(" | ")[0].strip("| ") for line in lines]
    assert names == ["model", "---", "quick", "heuristic", "slow"]
    assert lines[2] == (
        "| quick | 1.050 [1.000, 1.250] | 1.010 | 1.500 | 87.5 % | −3.0 % [−4.0, −2.0] | −2.0 % [−5.0, −1.0] |"
        " 8.7 % / 31.0 % |"
    )
    assert lines[3].endswith("| – | – | – |") and lines[4].endswith("| – | +10.0 % [−9.5, +22.1] | 20.0 % / 40.0 % |")


def test_spread_names_seeds_and_the_worst_shapes() -> None:
    """One of ten shapes has a slowdown of 1.21 in the first of two seeds, and the others have none."""
    rows = ANSWERS["test_spread_names_seeds_and_the_worst_shapes"]["rows"]
    ignored = [{**rows[0], "stratum": "grouped", "slowdown": 9.0}, {**rows[0], "model": "slow", "slowdown": 9.0}]
    found = spread(pd.DataFrame(rows + ignored), "quick")
    assert found == ("quick: single seeds from 1.0000 to 1.0192; the 6 worst of 10 shapes carry 100% of the loss")
