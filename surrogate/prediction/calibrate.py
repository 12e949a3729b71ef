"""Adapt a fitted bundle to a GPU from a few measurements there: what answers is multiplied by a learned correction."""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace

import numpy as np
import pandas as pd

from surrogate.bundle.bundle import Bundle, FamilyModel
from surrogate.bundle.train import candidate_keys, min_times, train
from surrogate.dataset.described import KernelColumns
from surrogate.dataset.files import Progress
from surrogate.dataset.problems import device_names, newest_version
from surrogate.dataset.rows import Rows, rows_by_family, rows_of
from surrogate.dataset.store import Data, Dataset, as_dataset, merge_datasets
from surrogate.evaluation.judge import time_errors
from surrogate.features.errors import InputError
from surrogate.features.families import DescribedFamily
from surrogate.features.gpu import canonical
from surrogate.models import Support, model_frame
from surrogate.models.calibrated import Calibrated, fit_correction, method
from surrogate.models.configurations import Configurations, problem_keys
from surrogate.models.launch import CallKey, call_cost_us
from surrogate.models.times import Correction
from surrogate.prediction.resolve import Resolver
from surrogate.prediction.shipped import as_bundle
from surrogate.prediction.table import Defaults, predict_table
from surrogate.uncertainty.domain import Domain, distances_to
from surrogate.uncertainty.fit import conformal_quantile, dtypes_of, pooled_base
from surrogate.uncertainty.intervals import ALL, WidthKey, Widths

MIN_PROBLEMS = 10
"""Measured problems that a device needs before it is corrected."""


def calibrate(bundle: object, data: Data, *, seed: int = 0, progress: Progress | None = None) -> Bundle:
    """``bundle`` with its times on the devices of ``data`` corrected; times on other devices stay as they are.

    What is corrected is what answers there, times that a sibling lends included. All candidates that answered before
    stay, and those that the data bring join them.

    Interval widths of those devices come from corrections that never saw the row's shape, and from rows that the model
    itself was not trained on: a device without two such shapes keeps the widths it has. Raises `InputError` where a
    device has fewer than `MIN_PROBLEMS` measured problems or one shape only, or where the bundle does not know the
    family or the library, or is none (`as_bundle`).
    """
    bundle = as_bundle(bundle)
    data = as_dataset(data, bundle.kernel)
    if bundle.described is not None and bundle.kernel is not None:
        return _learned_again(bundle, bundle.described, data, seed=seed, progress=progress)
    step = progress or (lambda done, total, text: None)
    devices = {**bundle.devices, **data.devices}
    parts = dict(bundle.parts)
    card = dict(bundle.card.get("calibration", {}))
    for family, (_, rows) in rows_by_family(model_frame(data, bundle.candidate), devices).items():
        check_libraries(bundle.part(family), rows, data.name)
        known = replace(bundle, devices=devices)
        parts[family.name], records = _calibrate_part(known, rows, name=data.name, seed=seed, step=step)
        for device, row in records.items():
            card[device if family.name == next(iter(bundle.parts)) else f"{device} {family.name}"] = row
    card = {**bundle.card, "calibration": card}
    return Bundle(parts, bundle.candidate, launches=bundle.launches, devices=devices, card=card)


def _learned_again(
    bundle: Bundle, family: DescribedFamily, data: Dataset, *, seed: int, progress: Progress | None
) -> Bundle:
    """A described kernel's bundle, fitted on what it was fitted on and the new rows: its model holds its own table.

    The errors before and after are those on new rows, each half of them by a fit that saw the other half.
    """
    model = bundle.parts[family.name].model
    if not isinstance(model, Configurations):
        raise InputError(f"a bundle of {family.name} by {model.name} is not calibrated; train one with more rows")
    known = as_dataset(model.table(family), KernelColumns.of_description(family.description))
    both = merge_datasets([replace(known, candidates=data.candidates), data])
    again = train(both, model=model.name, seed=seed, progress=progress)
    # The new rows, and what each model makes of them.
    rows = rows_of(data.frame, both.own, data.devices)
    old = rows_of(known.frame, both.own)
    new = np.flatnonzero(rows.ok & ~np.isin(_keys(rows), _keys(old)))
    half = np.random.default_rng(seed).permutation(len(new)) % 2
    held_us = np.full(len(rows), np.nan)
    for number in (0, 1) if len(new) > 1 else ():
        frame = pd.concat([old.frame, rows.frame.iloc[new[half != number]]], ignore_index=True)
        inside = rows_of(frame, both.own, data.devices)
        outside = new[half == number]
        held_us[outside] = Configurations(random_state=seed).fit(inside).predict(rows.take(outside))
    before_us = model.predict(rows)
    records = {}
    device = device_names(rows.frame).astype(str)
    for name in sorted(set(device)):
        apart = new[device[new] == name]
        records[name] = _record(
            rows.take(device == name),
            data=data.name,
            method="fitted again with the new rows",
            measured_us=rows.time_us[apart],
            before_us=before_us[apart],
            held_us=held_us[apart],
        )
    return replace(again, card={**again.card, "calibration": {**bundle.card.get("calibration", {}), **records}})


def _keys(rows: Rows) -> np.ndarray:
    """(rows,) a text that names each row's problem and candidate."""
    return np.array([f"{key}|{name}" for key, name in zip(problem_keys(rows), rows.candidate, strict=True)])


def _calibrate_part(
    bundle: Bundle, rows: Rows, *, name: str, seed: int, step: Progress
) -> tuple[FamilyModel, dict[str, dict[str, object]]]:
    """The part with corrections for the devices of ``rows``, and device → what was measured and what it changed."""
    # A device measured again is corrected anew, from the model beneath earlier calibrations.
    part = bundle.part(rows.family)
    before = part.model.corrections if isinstance(part.model, Calibrated) else {}
    model = part.model.base if isinstance(part.model, Calibrated) else part.model
    ok = rows.take(rows.ok)
    tried = Support.fit(rows)
    told = replace(
        part,
        fitted=model,
        candidates=part.candidates | candidate_keys(ok),
        # What was never seen before joins the general table, nothing known is changed.
        support=Support({**part.support.exact, **tried.exact}, {**tried.general, **part.support.general}),
        domain=_domain(part.domain, Domain.of(ok)),
        min_us=_least(part.min_us, min_times(ok)),
    )
    settings = Resolver(replace(bundle, parts={**bundle.parts, rows.family.name: told}))
    base_us = predict_table(settings, rows.frame, Defaults()).predicted_us
    # A model that is no trees says nothing of candidates that it never saw, where rooflines stand in.
    known = np.isin(rows.candidate.astype(str), [key.name for key in part.candidates]) | (part.times is not None)
    usable = rows.ok & newest_version(rows.frame, rows.family) & np.isfinite(base_us) & known
    trained_gpus = {canonical(gpu) for gpu in bundle.card.get("data", {}).get("gpus", ())}
    of_device = device_names(rows.frame).astype(str)
    corrections: dict[str, Correction] = {}
    held_us = np.full(len(rows), np.nan)
    names = sorted(set(of_device))
    for done, device in enumerate(names):
        step(done, len(names), device)
        on_device = np.flatnonzero(usable & (of_device == device))
        measured = rows.take(on_device)
        _check_measured(measured, device, name)
        corrections[device], held_out = fit_correction(measured, base_us[on_device], seed)
        held_us[on_device] = base_us[on_device] * np.exp(held_out)
    step(len(names), len(names), "done")
    # Errors on shapes that training had on that device foretell nothing.
    trained_on = np.isin(of_device, sorted(trained_gpus)) & part.domain.seen(rows)
    evaluated = np.flatnonzero(np.isfinite(held_us) & ~trained_on)
    widths = _widths(part, rows.take(evaluated), held_us[evaluated])
    calibrated = replace(told, fitted=Calibrated(model, {**before, **corrections}), widths=widths)
    records = {}
    for device in names:
        on_device = np.flatnonzero((of_device == device) & np.isfinite(held_us))
        apart = np.intersect1d(on_device, evaluated)
        records[device] = _record(
            rows.take(on_device),
            data=name,
            method=method(len(on_device)),
            measured_us=rows.time_us[apart],
            before_us=base_us[apart],
            held_us=held_us[apart],
        )
    return calibrated, records


def _record(
    rows: Rows, *, data: str, method: str, measured_us: np.ndarray, before_us: np.ndarray, held_us: np.ndarray
) -> dict[str, object]:
    """What ``rows`` of a device measured, and errors before and after on those that training did not see.

    A calibration that makes them larger is warned of.
    """
    before, after = _median_ape(before_us, measured_us), _median_ape(held_us, measured_us)
    if before is not None and after is not None and after > before:
        device = device_names(rows.frame)[0]
        warnings.warn(
            f"{data}: times on {device} came out worse; measure more problems, or keep the bundle", stacklevel=2
        )
    return {
        "data": data,
        "rows": len(rows),
        "problems": len(np.unique(rows.problem)),
        "shapes": len(np.unique(rows.shape)),
        "method": method,
        "rows_not_trained_on": len(measured_us),
        "median_ape_before": before,
        "median_ape_held_out": after,
    }


def check_libraries(part: FamilyModel, rows: Rows, name: str) -> None:
    """Raises `InputError` where rows of the table ``name`` are of a library that the part was not fitted on."""
    known = part.domain.libraries
    unknown = sorted(set(rows.frame["library"]) - known.keys())
    if unknown:
        raise InputError(
            f"{name}: measured with {', '.join(unknown)}, the bundle knows {', '.join(known)};"
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
            f"{name}: all problems of {device} have one shape; calibration needs at least two, as intervals come from"
            " held-out shapes"
        )


def _least(base: Mapping[CallKey, float], sample: Mapping[CallKey, float]) -> dict[CallKey, float]:
    """The least times, which a few measurements can lower and never raise: the shortest kernels need not be there."""
    return {**{key: min(us, call_cost_us(base, *key)) for key, us in sample.items()}, **base}


def _domain(base: Domain, new: Domain) -> Domain:
    """What either spans; distances stay those to the shapes that the model itself was trained on."""
    references = {**new.references, **base.references}
    for key, added in new.references.items():
        before = references[key]
        references[key] = replace(
            before, minimum=np.minimum(before.minimum, added.minimum), maximum=np.maximum(before.maximum, added.maximum)
        )
    return replace(
        base,
        settings=base.settings | new.settings,
        shapes=base.shapes | new.shapes,
        versions=base.versions | new.versions,
        references=references,
    )


def _widths(part: FamilyModel, rows: Rows, held_us: np.ndarray) -> Widths:
    """Half widths of the calibrated devices: per candidate where enough shapes were held out, else over all of them.

    Errors are first divided by the bundle's own factors (distance, length). A candidate that was not measured on the
    device takes the wider of the bundle's width for it and the device's own.
    """
    device = device_names(rows.frame).astype(str)
    distance = distances_to(part.domain.references, rows)
    factors = replace(part.widths, by_key={ALL: 1.0}).at(device, rows.candidate, dtypes_of(rows), distance, held_us)
    score = np.abs(np.log(held_us / rows.time_us)) / factors
    by_key = {key: base for key, base in part.widths.by_key.items() if key.gpu not in set(device) or key.dtype is None}
    candidates = {key.candidate for key in by_key if key.gpu is None and key != ALL}
    for name in sorted(set(device)):
        on_device = device == name
        if len(set(rows.shape[on_device])) < 2:
            continue
        pooled = conformal_quantile(score[on_device], rows.shape[on_device])
        for candidate in candidates:
            by_key[WidthKey(name, candidate)] = max(part.widths.by_key[WidthKey(None, candidate)], pooled)
        for candidate in sorted(set(rows.candidate[on_device])):
            of_candidate = on_device & (rows.candidate == candidate)
            quantile = conformal_quantile(score[of_candidate], rows.shape[of_candidate])
            shapes = len(set(rows.shape[of_candidate]))
            by_key[WidthKey(name, candidate)] = pooled_base(quantile, pooled, shapes)
    return replace(part.widths, by_key=by_key)


def _median_ape(predicted_us: np.ndarray, time_us: np.ndarray) -> float | None:
    if not len(time_us):
        return None
    return float(f"{asdict(time_errors(predicted_us, time_us))['median_ape']:.6g}")
