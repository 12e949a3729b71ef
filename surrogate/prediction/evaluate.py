"""Compare a bundle with measurements: evaluate its predictions, or calibrate them to a GPU by a learned correction."""

import warnings
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd

from surrogate.bundle.bundle import Bundle, FamilyModel
from surrogate.bundle.train import candidate_keys, min_times, train
from surrogate.dataset.described import KernelColumns
from surrogate.dataset.files import Progress
from surrogate.dataset.problems import device_names, newest_version
from surrogate.dataset.rows import Rows, rows_by_family, rows_of
from surrogate.dataset.store import Data, Dataset, as_dataset, merge_datasets
from surrogate.evaluation.coverage import DIGITS, allowed_evaluation_rows, choice_figures, coverage_rows, picks
from surrogate.evaluation.judge import time_errors
from surrogate.evaluation.scorecard import json_value
from surrogate.features import InputError, canonical
from surrogate.features.families import DescribedFamily
from surrogate.models import Support, model_frame
from surrogate.models.calibrated import Calibrated, fit_correction, method
from surrogate.models.call_cost import call_cost_us
from surrogate.models.configurations import Configurations, problem_keys
from surrogate.models.times import Correction
from surrogate.prediction.resolve import Resolver
from surrogate.prediction.shipped import as_bundle
from surrogate.prediction.table import Defaults, predict_table
from surrogate.uncertainty.domain import Domain, distances_to
from surrogate.uncertainty.fit import conformal_quantile, dtypes_of, errors_of, pooled_base
from surrogate.uncertainty.intervals import ALL, WidthKey, Widths


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
        evaluated = allowed_evaluation_rows(rows, data.candidates)
        for name, member in (("unseen", ~seen), ("seen", seen)):
            figures = _evaluate_part(rows, predicted, member, evaluated & member, family_model.widths)
            records += [{"family": family.name, "part": name, **record} for record in figures]
    return records


def trained_answers(resolver: Resolver, rows: Rows, trained: np.ndarray) -> pd.DataFrame:
    """Return the predictions of the ``trained`` rows; candidates without training data get NaN and no support."""
    predicted = predict_table(resolver, rows.frame[trained], Defaults()).to_frame().set_index(np.flatnonzero(trained))
    predicted = predicted.reindex(np.arange(len(rows)))
    return predicted.assign(**{name: predicted[name].eq(True).to_numpy() for name in ("in_domain", "supported")})


def _evaluate_part(
    rows: Rows, predicted: pd.DataFrame, member: np.ndarray, evaluated: np.ndarray, widths: Widths
) -> list[dict[str, object]]:
    times, supported = predicted["predicted_us"].to_numpy(), predicted["supported"].to_numpy()
    half_width = np.log(predicted["upper_us"].to_numpy() / times)
    # A wider interval of a described kernel's configuration has more errors in common.
    independent = np.full(len(rows), widths.by_key[ALL]) if rows.family.parameter_names else half_width
    choices = choice_figures(rows, times, supported, evaluated)
    records = []
    for grouping in dict.fromkeys(("all", rows.family.primary)):
        counted = member & rows.ok & np.isfinite(times) & rows.family.in_grouping(rows.stratum, grouping)
        errors = asdict(time_errors(times[counted], rows.time_us[counted]))
        choice = choices.get(grouping, {"n": 0, "shapes": 0})
        compared = evaluated & counted & supported
        predicted_us, time_us, half, problem = (x[compared] for x in (times, rows.time_us, independent, rows.problem))
        share, distribution = widths.independent_share, errors_of(rows.family)
        stated, best = picks(predicted_us, time_us, half, problem, share, distribution)
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


MIN_PROBLEMS = 10
"""Minimum number of measured problems of a device for a calibration."""


def calibrate(bundle: object, data: Data, *, seed: int = 0, progress: Progress | None = None) -> Bundle:
    """Return the bundle with corrected times on the devices of ``data``; times on other devices do not change.

    The correction multiplies the times of the source that covers the device, such as a similar GPU. The candidates of
    ``data`` are added to the bundle's candidates. Interval widths come from held-out shapes, and from rows that the
    model was not trained on. A device without two such shapes keeps its widths.

    Parameters
    ----------
    bundle
        A `Bundle`, a predictor, a bundle's folder, or a GPU's name.
    data
        Measurements on the devices: a table, its path, or a list of them.
    seed
        Seed of the held-out folds.
    progress
        Called with the steps done, all steps, and a text.

    Returns
    -------
    Bundle
        A calibrated copy.

    Raises
    ------
    InputError
        If a device has fewer than `MIN_PROBLEMS` measured problems or a single shape, if the bundle lacks the family or
        the library, or if there is no such bundle.
    """
    bundle = as_bundle(bundle)
    data = as_dataset(data, bundle.kernel)
    step = progress or (lambda done, total, text: None)
    if bundle.described_family is not None and bundle.kernel is not None:
        return _retrained(bundle, bundle.described_family, data, seed=seed, step=step)
    devices = {**bundle.devices, **data.devices}
    family_models = dict(bundle.family_models)
    card = dict(bundle.card.get("calibration", {}))
    for family, (_, rows) in rows_by_family(model_frame(data, bundle.candidate), devices).items():
        check_libraries(bundle.family_model(family), rows, data.name)
        extended = replace(bundle, devices=devices)
        family_models[family.name], records = _calibrated_family(extended, rows, name=data.name, seed=seed, step=step)
        for device, row in records.items():
            card[device if family.name == next(iter(bundle.family_models)) else f"{device} {family.name}"] = row
    card = {**bundle.card, "calibration": card}
    return Bundle(family_models, bundle.candidate, call_costs=bundle.call_costs, devices=devices, card=card)


def _retrained(bundle: Bundle, family: DescribedFamily, data: Dataset, *, seed: int, step: Progress) -> Bundle:
    """Return a described kernel's bundle, fitted again on its own table and the new rows. The model holds its table.

    The errors before and after are measured on the new rows. Each half of them is predicted by a fit with the other
    half.
    """
    model = bundle.family_models[family.name].model
    if not isinstance(model, Configurations):
        raise InputError(f"a bundle of {family.name} by {model.name} cannot be calibrated; train one with more rows")
    trained = as_dataset(model.table(family), KernelColumns.of_description(family.description))
    both = merge_datasets([replace(trained, candidates=data.candidates), data])
    retrained = train(both, model=model.name, seed=seed, progress=step)
    # The new rows, and their times by the old and the new model.
    rows = rows_of(data.frame, both.described_family, data.devices)
    old = rows_of(trained.frame, both.described_family)
    new = np.flatnonzero(rows.ok & ~np.isin(_keys(rows), _keys(old)))
    half = np.random.default_rng(seed).permutation(len(new)) % 2
    holdout_us = np.full(len(rows), np.nan)
    for number in (0, 1) if len(new) > 1 else ():
        frame = pd.concat([old.frame, rows.frame.iloc[new[half != number]]], ignore_index=True)
        inside = rows_of(frame, both.described_family, data.devices)
        outside = new[half == number]
        holdout_us[outside] = Configurations(random_state=seed).fit(inside).predict(rows.take(outside))
    times_us = rows.time_us, model.predict(rows), holdout_us
    how = "fitted again with the new rows"
    records = {}
    device = device_names(rows.frame).astype(str)
    for name in sorted(set(device)):
        unseen_us = (each[new[device[new] == name]] for each in times_us)
        records[name] = _record(rows.take(device == name), *unseen_us, data=data.name, method=how)
    return replace(retrained, card={**retrained.card, "calibration": {**bundle.card.get("calibration", {}), **records}})


def _keys(rows: Rows) -> np.ndarray:
    """Return a text of each row's problem and candidate, (rows,)."""
    return np.array([f"{key}|{name}" for key, name in zip(problem_keys(rows), rows.candidate, strict=True)])


def _calibrated_family(
    bundle: Bundle, rows: Rows, *, name: str, seed: int, step: Progress
) -> tuple[FamilyModel, dict[str, dict[str, object]]]:
    """Return the calibrated model of a family, and GPU → record of its measurements and errors."""
    # If a GPU was calibrated before, its old correction is replaced; the new one is fitted to the uncalibrated model.
    family_model = bundle.family_model(rows.family)
    old_corrections = family_model.model.corrections if isinstance(family_model.model, Calibrated) else {}
    uncalibrated = _with_new_rows(family_model, rows)
    uncalibrated_us = _times_of(bundle, uncalibrated, rows)
    usable = _usable_rows(family_model, rows, uncalibrated_us)
    row_gpu = device_names(rows.frame).astype(str)
    corrections: dict[str, Correction] = {}
    holdout_us, deviation = np.full((2, len(rows)), np.nan)
    gpus = sorted(set(row_gpu))
    for done, gpu in enumerate(gpus):
        step(done, len(gpus), gpu)
        fitted = np.flatnonzero(usable & (row_gpu == gpu))
        measured = rows.take(fitted)
        _check_measured(measured, gpu, name)
        corrections[gpu], log_factor, deviation[fitted] = fit_correction(measured, uncalibrated_us[fitted], seed)
        holdout_us[fitted] = uncalibrated_us[fitted] * np.exp(log_factor)
    step(len(gpus), len(gpus), "done")
    # Errors on shapes that were trained on the GPU do not count.
    trained_gpus = {canonical(gpu) for gpu in bundle.card.get("data", {}).get("gpus", ())}
    is_trained = np.isin(row_gpu, sorted(trained_gpus)) & family_model.domain.shape_was_trained(rows)
    evaluated = np.flatnonzero(np.isfinite(holdout_us) & ~is_trained)
    widths = _calibrated_widths(family_model, rows.take(evaluated), holdout_us[evaluated], deviation[evaluated])
    corrected = Calibrated(uncalibrated.model, {**old_corrections, **corrections})
    calibrated = replace(uncalibrated, fitted=corrected, widths=widths)
    records = {}
    for gpu in gpus:
        fitted = np.flatnonzero((row_gpu == gpu) & np.isfinite(holdout_us))
        unseen = np.intersect1d(fitted, evaluated)
        unseen_us = (each[unseen] for each in (rows.time_us, uncalibrated_us, holdout_us))
        records[gpu] = _record(rows.take(fitted), *unseen_us, data=name, method=method(len(fitted)))
    return calibrated, records


def _with_new_rows(family_model: FamilyModel, rows: Rows) -> FamilyModel:
    """Return the uncalibrated model, with the candidates, support, domain and minimum times of new ``rows`` added."""
    ok = rows.take(rows.ok)
    old, new = family_model.support, Support.fit(rows)
    # The new rows can only lower the minimum times, because they may lack the shortest kernels.
    lowered = {key: min(us, call_cost_us(family_model.min_us, *key)) for key, us in min_times(ok).items()}
    solvers = {
        key: old.solvers.get(key, frozenset()) | new.solvers.get(key, frozenset())
        for key in old.solvers.keys() | new.solvers.keys()
    }
    return replace(
        family_model,
        fitted=family_model.model.base if isinstance(family_model.model, Calibrated) else family_model.model,
        candidates=family_model.candidates | candidate_keys(ok),
        # New signatures are added to the general table; existing ones do not change.
        support=Support(
            {**old.exact, **new.exact}, {**new.general, **old.general}, solvers, {**old.limits, **new.limits}
        ),
        domain=_united_domain(family_model.domain, Domain.of(ok)),
        min_us={**lowered, **family_model.min_us},
    )


def _times_of(bundle: Bundle, family_model: FamilyModel, rows: Rows) -> np.ndarray:
    """Return the times of ``rows`` in µs, (rows,), by the bundle with this model of their family."""
    resolver = Resolver(replace(bundle, family_models={**bundle.family_models, rows.family.name: family_model}))
    return predict_table(resolver, rows.frame, Defaults()).predicted_us


def _usable_rows(family_model: FamilyModel, rows: Rows, predicted_us: np.ndarray) -> np.ndarray:
    """Return whether a correction can be fitted on each row, (rows,): ok, newest version, and a time by the model."""
    # Without trees, a candidate that was not trained has only a roofline time. Its rows are not used.
    is_trained = np.isin(rows.candidate.astype(str), [key.name for key in family_model.candidates])
    has_model_time = is_trained | (family_model.boosted_arrays is not None)
    return rows.ok & newest_version(rows.frame, rows.family) & np.isfinite(predicted_us) & has_model_time


def _record(
    rows: Rows, measured_us: np.ndarray, before_us: np.ndarray, holdout_us: np.ndarray, *, data: str, method: str
) -> dict[str, object]:
    """Return the record of a device's ``rows``, with errors before and after on rows without training data.

    If the errors are larger after the calibration, a warning is given.
    """
    before, after = _median_ape(before_us, measured_us), _median_ape(holdout_us, measured_us)
    if before is not None and after is not None and after > before:
        text = f"{data}: times on {device_names(rows.frame)[0]} are worse after calibration"
        warnings.warn(f"{text}; measure more problems, or keep the bundle", stacklevel=2)
    counts = {"problems": len(np.unique(rows.problem)), "shapes": len(np.unique(rows.shape))}
    errors = {"rows_not_trained_on": len(measured_us), "median_ape_before": before, "median_ape_held_out": after}
    return {"data": data, "rows": len(rows), **counts, "method": method, **errors}


def check_libraries(family_model: FamilyModel, rows: Rows, name: str) -> None:
    """Raise `InputError` if the table ``name`` has a library that the model was not fitted on."""
    libraries = family_model.domain.libraries
    unknown = sorted(set(rows.frame["library"]) - libraries.keys())
    if unknown:
        raise InputError(
            f"{name}: measured with {', '.join(unknown)}, but the bundle has {', '.join(libraries)};"
            " train on such data with `seer train`"
        )


def _check_measured(rows: Rows, device: str, name: str) -> None:
    problems, shapes = len(np.unique(rows.problem)), len(np.unique(rows.shape))
    if problems < MIN_PROBLEMS:
        raise InputError(
            f"{name}: {device} has {problems} measured problem{'s' * (problems != 1)}, calibration needs at least"
            f" {MIN_PROBLEMS}; `seer collect --sample {MIN_PROBLEMS}` measures random ones"
        )
    if shapes < 2:
        raise InputError(
            f"{name}: all problems of {device} have one shape; calibration needs at least two, because intervals"
            " come from held-out shapes"
        )


def _united_domain(base: Domain, new: Domain) -> Domain:
    """Return the union of the domains. Distances are still to the shapes that the model was trained on."""
    references = {**new.references, **base.references}
    for key, added in new.references.items():
        old = references[key]
        minimum = np.minimum(old.minimum, added.minimum)
        references[key] = replace(old, minimum=minimum, maximum=np.maximum(old.maximum, added.maximum))
    united = {name: getattr(base, name) | getattr(new, name) for name in ("settings", "shapes", "versions")}
    return replace(base, **united, references=references)


def _calibrated_widths(family_model: FamilyModel, rows: Rows, holdout_us: np.ndarray, deviation: np.ndarray) -> Widths:
    """Return the half widths of the calibrated devices, per candidate if it has enough held-out shapes, else pooled.

    Errors are first divided by the bundle's factors for distance and time, and by the ``deviation`` (rows,), so that
    intervals are wider farther from the sample. A candidate that was not measured on the device gets the larger of two
    half widths: the bundle's for the candidate, and the pooled one of the device.
    """
    device = device_names(rows.frame).astype(str)
    factors = replace(family_model.widths, by_key={ALL: 1.0}, max_errors={}).at(
        device, rows.candidate, dtypes_of(rows), distances_to(family_model.domain.references, rows), holdout_us
    )
    score = np.abs(np.log(holdout_us / rows.time_us)) / (factors * deviation)
    stored, devices = family_model.widths.by_key, set(device)
    by_key = {key: base for key, base in stored.items() if key.gpu not in devices or key.dtype is None}
    candidates = {key.candidate for key in by_key if key.gpu is None and key != ALL}
    for name in sorted(devices):
        on_device = device == name
        if len(set(rows.shape[on_device])) < 2:
            continue
        pooled = conformal_quantile(score[on_device], rows.shape[on_device])
        for candidate in candidates:
            by_key[WidthKey(name, candidate)] = max(stored[WidthKey(None, candidate)], pooled)
        for candidate in sorted(set(rows.candidate[on_device])):
            with_candidate = on_device & (rows.candidate == candidate)
            quantile = conformal_quantile(score[with_candidate], rows.shape[with_candidate])
            by_key[WidthKey(name, candidate)] = pooled_base(quantile, pooled, len(set(rows.shape[with_candidate])))
    return replace(family_model.widths, by_key=by_key)


def _median_ape(predicted_us: np.ndarray, time_us: np.ndarray) -> float | None:
    if not len(time_us):
        return None
    return float(f"{asdict(time_errors(predicted_us, time_us))['median_ape']:.6g}")
