"""Strata: kinds of problems that are reported apart."""

import numpy as np
import pandas as pd

STRATA = ("1x1s1", "1x1s2", "3x3s1", "grouped", "other")
"""Filter and stride; grouped (depthwise too) before all, dilated and the rest under ``other``."""

GROUPINGS = ("all", "ungrouped", *STRATA)
"""What a report has rows for: everything, everything but ``grouped`` (the primary figure), and each stratum."""


def strata(frame: pd.DataFrame) -> np.ndarray:
    """The stratum of each row, as text."""

    def uniform(column: str, value: int) -> pd.Series:
        return (frame[f"{column}_h"] == value) & (frame[f"{column}_w"] == value)

    ones = (frame["r"] == 1) & (frame["s"] == 1)
    threes = (frame["r"] == 3) & (frame["s"] == 3)
    plain = uniform("dilation", 1)
    return np.select(
        [
            (frame["groups"] > 1).to_numpy(),
            (ones & uniform("stride", 1)).to_numpy(),
            (ones & uniform("stride", 2)).to_numpy(),
            (threes & uniform("stride", 1) & plain).to_numpy(),
        ],
        ["grouped", "1x1s1", "1x1s2", "3x3s1"],
        "other",
    )


def in_grouping(stratum: np.ndarray, grouping: str) -> np.ndarray:
    """True where a row of that stratum belongs to the grouping (see `GROUPINGS`)."""
    if grouping == "all":
        return np.ones(len(stratum), dtype=bool)
    return stratum != "grouped" if grouping == "ungrouped" else stratum == grouping
