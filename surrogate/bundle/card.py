"""The model card: what a bundle was fitted on, and its errors, choices and intervals on rows that were held out."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.problems import judged_rows, problem_codes
from surrogate.dataset.rows import Rows
from surrogate.dataset.schema import SIZE_COLUMNS
from surrogate.dataset.store import Dataset
from surrogate.dataset.strata import strata
from surrogate.evaluation.judge import time_errors
from surrogate.evaluation.scorecard import HEURISTIC, Judged, choice_rows, pick_by_heuristic, pick_by_times
from surrogate.models import Support
from surrogate.uncertainty.coverage import coverage_rows, picks, reliability
from surrogate.uncertainty.width_fit import held_out_half_widths


def card(data: Dataset, rows: Rows, held: np.ndarray, folds: int, trials: int, seed: int) -> dict[str, Any]:
    """What a bundle says of itself: its data, how it was trained, and its errors in ``folds`` that held rows out."""
    frame = rows.frame
    return {
        "data": {
            "name": data.name,
            "rows": len(frame),
            "ok_rows": int(rows.ok.sum()),
            "shapes": int(rows.shape.max()) + 1,
            "gpus": sorted(frame["gpu"].unique()),
            "libraries": sorted(
                {f"{a} {b}" for a, b in zip(frame["library"], frame["library_version"], strict=True)}
            ),
            "directions": sorted(frame["direction"].unique()),
            "dtypes": sorted(frame["dtype"].unique()),
            "maths": sorted(frame["math"].unique()),
            "layouts": sorted(frame["layout"].unique()),
            "algorithms": sorted(frame["algorithm"].unique()),
            "ranges": {c: [int(frame[c].min()), int(frame[c].max())] for c in SIZE_COLUMNS},
            "origins": sorted(set(frame["origin"].dropna())) if "origin" in frame else [],
            "where": _each(data, "where"),
        },
        "licence_notices": _each(data, "licence_notices"),
        "training": {"trials": trials, "seed": seed},
        "held_out": {
            "split": f"{folds} folds by shape, batch left out",
            "time": rounded(asdict(time_errors(held[rows.ok], rows.time_us[rows.ok]))),
            "choice": held_out_choice(data, rows, held),
        },
    }


def _each(data: Dataset, name: str) -> list[Any]:
    """What the metadata lists under ``name``, in the table itself or in those that were merged; each once."""
    parts = [data.metadata, *data.metadata.get("parts", [])]
    return list(dict.fromkeys(one for part in parts for one in part.get(name, [])))


def held_out_intervals(
    data: Dataset,
    frame: pd.DataFrame,
    predicted_us: np.ndarray,
    measured_us: np.ndarray,
    distance: np.ndarray,
    own_share: float,
) -> dict[str, Any]:
    """For the card: coverage per GPU of intervals whose models and widths never saw the row's shape, and reliability.

    Arrays (rows,), NaN where unknown. ``pick_probability``: how often the picks of a stated probability were the best.
    """
    half_width = held_out_half_widths(frame, predicted_us, measured_us, distance)
    coverage = coverage_rows(frame, np.log(predicted_us / measured_us), half_width)
    part = judged_rows(frame, data.candidates)
    stated, best = picks(
        predicted_us[part], measured_us[part], half_width[part], problem_codes(frame[part]), own_share
    )
    return {
        "intervals": [rounded(row) for row in coverage],
        "pick_probability": [rounded(row) for row in reliability(stated, best)],
    }


def held_out_choice(data: Dataset, rows: Rows, predicted: np.ndarray) -> dict[str, Any]:
    """Slowdown of the choices that held-out predictions make, over judged problems; empty where none can be judged."""
    part = np.flatnonzero(judged_rows(rows.frame, data.candidates))
    if not len(part):
        return {}
    judged = Judged.of(
        rows.frame.iloc[part],
        rows.problem[part],
        rows.shape[part],
        rows.order[part],
        strata(rows.frame)[part],
    )
    allowed = Support.fit(rows).supported(rows)[part]
    picks = {
        "model": [pick_by_times(judged, predicted[part], allowed)],
        HEURISTIC: [pick_by_heuristic(judged)],
    }
    return {
        row["stratum"]: rounded({k: v for k, v in row.items() if k not in ("model", "gpu", "stratum")})
        for row in choice_rows(judged, picks, {})
        if row["model"] == "model" and row["gpu"] == "all" and row["stratum"] in ("all", "ungrouped")
    }


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Six significant digits, plain numbers, null for NaN: what a card needs."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(v) for v in value]
        if isinstance(value, float | np.floating):
            return float(f"{value:.6g}") if np.isfinite(value) else None
        return value.item() if isinstance(value, np.generic) else value

    return {key: plain(value) for key, value in row.items()}
