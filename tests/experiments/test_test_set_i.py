"""The split of measured rows by the rule of SEER."""

import numpy as np
import pandas as pd

from experiments.test_set_i import seer_split


def test_the_split_of_seer_matches_a_split_by_hand() -> None:
    # GEMM has 12 rows with times 12 … 1; sorted by time they are rows 11, 10, …, 0. The fastest (row 11) is dropped.
    # Seven of every ten remaining rows are training rows: rows 10 … 4, and row 0 (index 10). Rows 3, 2, 1 test.
    # FFT keeps its order and drops no row: the first 7 of 9 rows are training rows. A failed row is not counted.
    times = [*range(12, 0, -1), *range(9, 0, -1), 1.0]
    names = ["GEMM"] * 12 + ["FFT"] * 9 + ["FFT"]
    frame = pd.DataFrame({"algorithm": names, "time_us": np.array(times, float), "status": ["ok"] * 21 + ["failed"]})
    train, test = seer_split(frame)
    assert train.tolist() == [10, 9, 8, 7, 6, 5, 4, 0, 12, 13, 14, 15, 16, 17, 18]
    assert test.tolist() == [3, 2, 1, 19, 20]
