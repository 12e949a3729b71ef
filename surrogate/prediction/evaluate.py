"""A bundle on a dataset: a predictor's answers against measurements, shapes seen in training and unseen ones apart."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.problems import evaluation_rows
from surrogate.dataset.rows import Rows, rows_by_family
from surrogate.dataset.store import Data, as_dataset
from surrogate.evaluation.coverage import DIGITS, choice_figures, coverage_rows, picks
from surrogate.evaluation.judge import time_errors
from surrogate.evaluation.scorecard import json_value
from surrogate.models import model_frame
from surrogate.prediction.calibrate import check_libraries
from surrogate.prediction.resolve import Resolver
from surrogate.prediction.shipped import as_bundle
from surrogate.prediction.table import Defaults, predict_table


def evaluate(bundle: object, data: Data) -> list[dict[str, Any]]:
    """Errors and slowdowns of a bundle on a dataset, shapes seen in training and unseen ones apart.

    ``bundle``: a `Bundle`, a predictor, a folder, or a GPU's name.
    One record per family × part (unseen, seen) × grouping (all, and the family's primary one): time errors over ok
    rows, the intervals (coverage, median factor upper / predicted, and ``intervals`` per GPU), the choice figures, and
    how sure the picks were. Raises `InputError` for a family that the bundle does not know.
    """
    bundle = as_bundle(bundle)
    data = as_dataset(data, bundle.kernel)
    frame = model_frame(data, bundle.candidate)
    settings = Resolver(replace(bundle, devices={**bundle.devices, **data.devices}))
    records = []
    for family, (_, rows) in rows_by_family(frame, settings.bundle.devices, data.own).items():
        part = bundle.part(family)
        check_libraries(part, rows, data.name)
        names = sorted(key.name for key in part.candidates)
        predicted = known_answers(settings, rows, np.isin(rows.candidate.astype(str), names))
        seen = part.domain.seen(rows)
        evaluated = evaluation_rows(rows.frame, family, data.candidates)
        for name, member in (("unseen", ~seen), ("seen", seen)):
            judgement = _evaluate_part(
                rows, predicted, member, evaluated & member, independent_share=part.widths.independent_share
            )
            records += [{"family": family.name, "part": name, **record} for record in judgement]
    return records


def known_answers(settings: Resolver, rows: Rows, known: np.ndarray) -> pd.DataFrame:
    """A predictor's columns of the ``known`` rows; NaN and no support for candidates that training never saw run."""
    predicted = predict_table(settings, rows.frame[known], Defaults()).to_frame().set_index(np.flatnonzero(known))
    predicted = predicted.reindex(np.arange(len(rows)))
    flags = {name: predicted[name].eq(True).to_numpy() for name in ("in_domain", "supported")}
    return predicted.assign(**flags)


def _evaluate_part(
    rows: Rows, predicted: pd.DataFrame, member: np.ndarray, judged_mask: np.ndarray, *, independent_share: float
) -> list[dict[str, object]]:
    times, supported = predicted["predicted_us"].to_numpy(), predicted["supported"].to_numpy()
    choices = choice_figures(rows, times, supported, judged_mask)
    records = []
    for grouping in dict.fromkeys(("all", rows.family.primary)):
        counted = member & rows.ok & np.isfinite(times) & rows.family.in_grouping(rows.stratum, grouping)
        errors = asdict(time_errors(times[counted], rows.time_us[counted]))
        choice = choices.get(grouping, {"n": 0, "shapes": 0})
        record = {
            "stratum": grouping,
            "rows": errors.pop("n"),
            **errors,
            "in_domain": float(predicted["in_domain"].to_numpy()[counted].mean()) if counted.any() else None,
            **_interval_figures(rows, predicted, counted),
            "problems": choice["n"],
            **{key: value for key, value in choice.items() if key != "n"},
            **_pick_figures(rows, predicted, judged_mask & counted & supported, independent_share),
        }
        records.append(json_value(record, DIGITS))
    return records


def _interval_figures(rows: Rows, predicted: pd.DataFrame, counted: np.ndarray) -> dict[str, object]:
    """Coverage and widths of the intervals of the counted rows, and the same per GPU."""
    times, upper = predicted["predicted_us"].to_numpy()[counted], predicted["upper_us"].to_numpy()[counted]
    log_error = np.log(times / rows.time_us[counted])
    records = coverage_rows(rows.take(counted), log_error, np.log(upper / times))
    if not records:
        return {"interval_coverage": None}
    whole, *per_gpu = records
    return {
        "interval_coverage": whole["coverage"],
        "interval_coverage_ci": [whole["coverage_low"], whole["coverage_high"]],
        "interval_factor": whole["interval_factor"],
        "intervals": per_gpu,
    }


def _pick_figures(
    rows: Rows, predicted: pd.DataFrame, counted: np.ndarray, independent_share: float
) -> dict[str, object]:
    """How likely the picks among supported ok candidates were held to be the best, and how many were."""
    times, upper = predicted["predicted_us"].to_numpy()[counted], predicted["upper_us"].to_numpy()[counted]
    stated, best = picks(times, rows.time_us[counted], np.log(upper / times), rows.problem[counted], independent_share)
    return {"pick_probability": stated.mean(), "pick_was_best": best.mean()} if len(stated) else {}
