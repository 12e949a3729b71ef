"""The paper's own domain: batch 128, over 1 ms, square, ungrouped."""

import pandas as pd

PAPER_BATCH = 128
PAPER_LEAST_US = 1000.0


def paper_domain(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of ``frame`` that the paper would keep, and the refusals of the same problems.

    Rows of 1 ms and less are dropped, so that a problem whose best is that fast is no longer measured whole and cannot
    be judged: the paper's pick set, too, wants the best above 1 ms.
    """
    square = (frame["h"] == frame["w"]) & (frame["r"] == frame["s"])
    kept = (frame["n"] == PAPER_BATCH) & square & (frame["groups"] == 1)
    slow = (frame["status"] != "ok") | (frame["time_us"] > PAPER_LEAST_US)
    return frame[kept & slow].reset_index(drop=True)
