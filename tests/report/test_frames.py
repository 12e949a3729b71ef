"""The parquet files: which rows count."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from surrogate.features.errors import InputError
from surrogate.report.frames import read_choices, read_predictions


def _predictions(**changes: object) -> pd.DataFrame:
    columns = {"model": "m", "seed": 0, "algorithm": "GEMM", "family": "gemm", "status": "ok",
               "time_us": 10.0, "predicted_us": 11.0, "supported": True}  # fmt: skip
    return pd.DataFrame([{**columns, **changes}])


def test_only_usable_rows_of_the_first_seed_count(tmp_path: Path) -> None:
    rows = [{}, {"seed": 1}, {"status": "not_supported"}, {"time_us": np.nan}, {"time_us": 0.0},
            {"supported": False}, {"predicted_us": np.inf}, {"predicted_us": -1.0},
            {"model": "other"}]  # fmt: skip
    pd.concat([_predictions(**row) for row in rows]).to_parquet(tmp_path / "predictions.parquet")
    frame = read_predictions(tmp_path, ["m"])
    assert frame is not None
    assert frame.to_dict("records") == [
        {"model": "m", "family": "gemm", "time_us": 10.0, "predicted_us": 11.0}
    ]


def test_a_row_without_family_goes_by_its_algorithm(tmp_path: Path) -> None:
    pd.concat([_predictions(), _predictions(family=None)]).to_parquet(tmp_path / "predictions.parquet")
    frame = read_predictions(tmp_path, ["m"])
    assert frame is not None and frame["family"].tolist() == ["gemm", "GEMM"]


def test_strata_of_choices(tmp_path: Path) -> None:
    pd.DataFrame(
        {"model": "m", "stratum": ["grouped", "1x1s1", "other", "other"],
         "slowdown": [9.0, 1.5, np.nan, np.nan], "infeasible": [False, False, True, False]}
    ).to_parquet(tmp_path / "choices.parquet")  # fmt: skip
    for stratum, expected in {"ungrouped": [1.5, np.inf], "all": [9.0, 1.5, np.inf], "1x1s1": [1.5]}.items():
        frame = read_choices(tmp_path, ["m"], stratum)
        assert frame is not None and frame["slowdown"].tolist() == expected


def test_missing_files_are_none(tmp_path: Path) -> None:
    assert read_predictions(tmp_path, ["m"]) is None and read_choices(tmp_path, ["m"], "all") is None


def test_damaged_files_and_missing_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "predictions.parquet"
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(InputError, match="not readable as parquet"):
        read_predictions(tmp_path, ["m"])
    _predictions().drop(columns=["family", "time_us"]).to_parquet(path)
    with pytest.raises(InputError, match="lacks family, time_us"):
        read_predictions(tmp_path, ["m"])
    whole = tmp_path / "choices.parquet"
    pd.DataFrame({"model": ["m"] * 999, "slowdown": 1.0, "infeasible": False, "stratum": "other"}).to_parquet(
        whole
    )
    whole.write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(InputError, match="not readable as parquet"):
        read_choices(tmp_path, ["m"], "all")
