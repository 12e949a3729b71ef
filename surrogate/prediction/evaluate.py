"""Evaluate a bundle on a dataset: predictions against measurements, separately for trained and unseen shapes."""

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
    """Return errors and slowdowns of a bundle on a dataset, separately for trained and unseen shapes.

    Parameters
    ----------
    bundle
        A `Bundle`, a predictor, a bundle's folder, or a GPU's name.
    data
        Measurements: a table, its path, or a list of them.

    Returns
    -------
    list of dict
        One record per family × part (``unseen``, ``seen``) × grouping (``all``, and the family's primary one). It has
        the time errors over ok rows, the coverage and the factor (median of upper / predicted) of the intervals, and
        both per GPU in ``intervals``. It also has the figures of choices, and the stated and the actual share of best
        picks.

    Raises
    ------
    InputError
        If the bundle lacks a family or a library of the data.
    """
    bundle = as_bundle(bundle)
    data = as_dataset(data, bundle.kernel)
    frame = model_frame(data, bundle.candidate)
    resolver = Resolver(replace(bundle, devices={**bundle.devices, **data.devices}))
    records = []
    for family, (_, rows) in rows_by_family(frame, resolver.bundle.devices, data.described_family).items():
        family_model = bundle.family_model(family)
        check_libraries(family_model, rows, data.name)
        names = sorted(key.name for key in family_model.candidates)
        predicted = trained_answers(resolver, rows, np.isin(rows.candidate.astype(str), names))
        seen = family_model.domain.shape_was_trained(rows)
        evaluated = evaluation_rows(rows.frame, family, data.candidates)
        for name, member in (("unseen", ~seen), ("seen", seen)):
            share = family_model.widths.independent_share
            figures = _evaluate_part(rows, predicted, member, evaluated & member, independent_share=share)
            records += [{"family": family.name, "part": name, **record} for record in figures]
    return records


def trained_answers(resolver: Resolver, rows: Rows, trained: np.ndarray) -> pd.DataFrame:
    """Return the predictions of the ``trained`` rows; candidates without training data get NaN and no support."""
    predicted = predict_table(resolver, rows.frame[trained], Defaults()).to_frame().set_index(np.flatnonzero(trained))
    predicted = predicted.reindex(np.arange(len(rows)))
    return predicted.assign(**{name: predicted[name].eq(True).to_numpy() for name in ("in_domain", "supported")})


def _evaluate_part(
    rows: Rows, predicted: pd.DataFrame, member: np.ndarray, evaluated: np.ndarray, *, independent_share: float
) -> list[dict[str, object]]:
    times, supported = predicted["predicted_us"].to_numpy(), predicted["supported"].to_numpy()
    half_width = np.log(predicted["upper_us"].to_numpy() / times)
    choices = choice_figures(rows, times, supported, evaluated)
    records = []
    for grouping in dict.fromkeys(("all", rows.family.primary)):
        counted = member & rows.ok & np.isfinite(times) & rows.family.in_grouping(rows.stratum, grouping)
        errors = asdict(time_errors(times[counted], rows.time_us[counted]))
        choice = choices.get(grouping, {"n": 0, "shapes": 0})
        compared = evaluated & counted & supported
        columns = (each[compared] for each in (times, rows.time_us, half_width, rows.problem))
        stated, best = picks(*columns, independent_share=independent_share)
        record = {
            "stratum": grouping,
            "rows": errors.pop("n"),
            **errors,
            "in_domain": float(predicted["in_domain"].to_numpy()[counted].mean()) if counted.any() else None,
            **_interval_figures(rows.take(counted), times[counted], half_width[counted]),
            "problems": choice["n"],
            **{key: value for key, value in choice.items() if key != "n"},
            **({"pick_probability": stated.mean(), "pick_was_best": best.mean()} if len(stated) else {}),
        }
        records.append(json_value(record, DIGITS))
    return records


def _interval_figures(rows: Rows, predicted_us: np.ndarray, half_width: np.ndarray) -> dict[str, object]:
    """Return coverage and widths of the rows' intervals, over all and per GPU."""
    records = coverage_rows(rows, np.log(predicted_us / rows.time_us), half_width)
    if not records:
        return {"interval_coverage": None}
    overall, *per_gpu = records
    return {
        "interval_coverage": overall["coverage"],
        "interval_coverage_ci": [overall["coverage_low"], overall["coverage_high"]],
        "interval_factor": overall["interval_factor"],
        "intervals": per_gpu,
    }
