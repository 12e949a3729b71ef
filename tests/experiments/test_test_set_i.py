"""SEER's own split of measured rows."""

import numpy as np
import pandas as pd

from experiments.test_set_i import seer_split


def test_seers_split_by_hand() -> None:
    # GEMM family: 12 rows with times 12 … 1 stand in falling order; by time the order is rows 11, 10, …, 0. The fastest
    # (row 11) is dropped; of the rest every index 0–6 of ten trains: rows 10 … 4, then row 0 (index 10); 3, 2, 1 test.
    # FFT keeps its order and drops none: of 9 rows the first 7 train. A failed row is not counted.
    times = [*range(12, 0, -1), *range(9, 0, -1), 1.0]
    names = ["GEMM"] * 12 + ["FFT"] * 9 + ["FFT"]
    frame = pd.DataFrame({"algorithm": names, "time_us": np.array(times, float), "status": ["ok"] * 21 + ["failed"]})
    train, test = seer_split(frame)
    assert train.tolist() == [10, 9, 8, 7, 6, 5, 4, 0, 12, 13, 14, 15, 16, 17, 18]
    assert test.tolist() == [3, 2, 1, 19, 20]
