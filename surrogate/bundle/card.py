"""The model card: what a bundle was fitted on, and its errors, choices and intervals on rows that were held out."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np

from surrogate.dataset.problems import judged_rows
from surrogate.dataset.rows import Rows
from surrogate.dataset.store import Dataset
from surrogate.evaluation.coverage import coverage_rows, picks, reliability
from surrogate.evaluation.judge import time_errors
from surrogate.evaluation.scorecard import Judged, choice_rows, pick_by_heuristic, pick_by_times
from surrogate.models import Support
from surrogate.uncertainty.fit import held_out_half_widths


def data_card(data: Dataset, tables: Iterable[Rows]) -> dict[str, Any]:
    """What the training rows span, over all families and family by family."""
    families, gpus, libraries, rows_in_all, ok_in_all = {}, set(), set(), 0, 0
    for rows in tables:
        frame = rows.frame
        gpus |= set(frame["gpu"])
        versions = frame[["library", "library_version"]].drop_duplicates()
        libraries |= {f"{library} {version}".strip() for library, version in versions.itertuples(index=False)}
        rows_in_all += len(rows)
        ok_in_all += int(rows.ok.sum())
        families[rows.family.name] = {
            "rows": len(rows),
            "ok_rows": int(rows.ok.sum()),
            "shapes": len(np.unique(rows.shape)),
            **{name: sorted(map(str, frame[name].unique())) for name in rows.family.setting_names},
            "algorithms": sorted(frame["algorithm"].unique()),
            "ranges": {
                name: [int(frame[name].min()), int(frame[name].max())] for name in rows.family.size_names
            },
        }
    origins = data.frame["origin"].dropna().unique() if "origin" in data.frame else []
    return {
        "name": data.name,
        "rows": rows_in_all,
        "ok_rows": ok_in_all,
        "gpus": sorted(gpus),
        "libraries": sorted(libraries),
        "origins": sorted(map(str, origins)),
        "where": each(data, "where"),
        "families": families,
    }


def each(data: Dataset, name: str) -> list[Any]:
    """What the metadata lists under ``name``, in the table itself or in those that were merged; each once."""
    parts = [data.metadata, *data.metadata.get("parts", [])]
    return list(dict.fromkeys(value for part in parts for value in part.get(name, [])))


def held_out_card(
    rows: Rows,
    predicted_us: np.ndarray,
    measured_us: np.ndarray,
    distance: np.ndarray,
    own_share: float,
    support: Support,
    candidates: str,
) -> dict[str, Any]:
    """Errors, slowdowns, and how intervals and probabilities hold, of one family's held-out predictions (rows,).

    Interval widths are those of models and widths that never saw the row's shape. NaN where a value is unknown.
    """
    half_width = held_out_half_widths(rows, predicted_us, measured_us, distance)
    coverage = coverage_rows(rows, np.log(predicted_us / measured_us), half_width)
    judged = judged_rows(rows.frame, rows.family, candidates)
    stated, best = picks(
        predicted_us[judged], measured_us[judged], half_width[judged], rows.problem[judged], own_share
    )
    return {
        "time": rounded(asdict(time_errors(predicted_us[rows.ok], rows.time_us[rows.ok]))),
        "choice": held_out_choice(rows, predicted_us, support, candidates),
        "intervals": [rounded(row) for row in coverage],
        "pick_probability": [rounded(row) for row in reliability(stated, best)],
    }


def held_out_choice(
    rows: Rows, predicted_us: np.ndarray, support: Support, candidates: str
) -> dict[str, Any]:
    """Grouping → slowdown of the choices that held-out predictions (rows,) make; empty where none can be judged."""
    part = np.flatnonzero(judged_rows(rows.frame, rows.family, candidates))
    if not len(part):
        return {}
    judged = Judged.of(rows.take(part))
    allowed = support.supported(rows.take(part))
    chosen = {
        "model": [pick_by_times(judged, predicted_us[part], allowed)],
        judged.heuristic: [pick_by_heuristic(judged)],
    }
    wanted = ("all", rows.family.primary)
    return {
        row["stratum"]: rounded(
            {k: v for k, v in row.items() if k not in ("model", "gpu", "stratum", "family")}
        )
        for row in choice_rows(judged, chosen, {})
        if row["model"] == "model" and row["gpu"] == "all" and row["stratum"] in wanted
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
