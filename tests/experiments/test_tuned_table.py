"""The table of stored and tuned settings, for one model and two shapes."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.tuned_table import markdown, settings
from surrogate.features.problem import SIZE_COLUMNS


def _folder(path: Path, slowdowns: list[float], median: float, searched_s: float) -> Path:
    path.mkdir()
    choice = {"model": "m", "stratum": "ungrouped", "gpu": "all", "n": 2, "shapes": 2, "slowdown_macro": slowdowns[0]}
    time = {"model": "m", "stratum": "ungrouped", "gpu": "all", "algorithm": "all", "population": "all", "n": 4}
    time_row = {**time, "median_ape": median, "p90_ape": 2 * median}
    results: dict[str, Any] = {"schema": 2, "choice_rows": [choice], "time_rows": [time_row]}
    results |= {"settings": {"m": {"rate": 0.12345, "rounds": 300}}, "costs": [{"model": "m", "tune_s": searched_s}]}
    (path / "results.json").write_text(json.dumps(results))
    rows = pd.DataFrame(1, index=range(3), columns=list(SIZE_COLUMNS))
    rows = rows.assign(c=[16, 32, 64], model="m", seed=0, gpu="Tesla T4", slowdown=[*slowdowns, 9.0])
    rows.assign(stratum=["1x1s1", "other", "grouped"]).to_parquet(path / "choices.parquet")
    return path


def test_the_table_matches_one_written_by_hand(tmp_path: Path) -> None:
    stored = _folder(tmp_path / "stored", [1.2, 1.1], median=0.2, searched_s=0.0)
    tuned = _folder(tmp_path / "tuned", [1.08, 0.99], median=0.1, searched_s=61.4)
    *_, line = markdown(stored, tuned).split("\n")
    assert line == "| m | 1.200 | 1.080 | −10.0 [−10.0, −10.0] | 20.0 / 40.0 % | 10.0 / 20.0 % | 61 |"
    assert settings(json.loads((tuned / "results.json").read_text())) == "- `m`: rate 0.123, rounds 300"
