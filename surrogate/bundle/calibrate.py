"""Adapt a fitted bundle to a GPU from a few measurements there: its times are multiplied by a learned correction."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd

from surrogate.bundle.bundle import Bundle
from surrogate.dataset.candidates import candidate_frame
from surrogate.dataset.problems import device_names, joined, newest_version
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.splits import shape_names
from surrogate.dataset.store import Dataset
from surrogate.evaluation.judge import time_errors
from surrogate.features.errors import InputError
from surrogate.features.gpu import canonical
from surrogate.models import Support
from surrogate.models.calibrated import Calibrated
from surrogate.models.correction import Fitted, fit_correction
from surrogate.uncertainty.conformal import ALL, Widths
from surrogate.uncertainty.domain import Domain
from surrogate.uncertainty.width_fit import LEAST_SHAPES, POOLED_SHAPES, conformal_quantile

LEAST_PROBLEMS = 10
"""Measured problems that a device needs before it is corrected."""
Progress = Callable[[int, int, str], None]


def calibrate(bundle: Bundle, data: Dataset, *, seed: int = 0, progress: Progress | None = None) -> Bundle:
    """``bundle`` with its times on the devices of ``data`` corrected; times on other devices stay as they are.

    Interval widths of those devices come from corrections that never saw the row's shape, and from rows that the model
    itself was not trained on: a device without two such shapes keeps the widths it has. Raises `InputError` where a
    device has fewer than `LEAST_PROBLEMS` measured problems or one shape only, or where the bundle does not know the
    library.
    """
    step = progress or (lambda done, total, text: None)
    frame = candidate_frame(data, bundle.candidate)
    devices = {**bundle.devices, **data.devices}
    _check_libraries(bundle, frame, data.name)
    rows = rows_of(frame, devices)
    base_us = _uncorrected(bundle).predict_us(rows)
    usable = rows.ok & newest_version(frame) & np.isfinite(base_us)
    of_device = device_names(frame)
    fitted: dict[str, Fitted] = {}
    held_us = np.full(len(rows), np.nan)
    names = sorted(set(of_device))
    for done, device in enumerate(names):
        step(done, len(names), device)
        mine = np.flatnonzero(usable & (of_device == device))
        part = rows.take(mine)
        _check_measured(part, device, data.name)
        fitted[device] = fit_correction(part, base_us[mine], seed)
        held_us[mine] = base_us[mine] * np.exp(fitted[device].held_out)
    step(len(names), len(names), "done")
    judged = np.isfinite(held_us) & ~_trained_on(bundle, frame, of_device)
    return replace(
        bundle,
        model=Calibrated.on(bundle.model, {device: one.correction for device, one in fitted.items()}),
        support=_support(bundle.support, Support.fit(rows)),
        widths=_widths(bundle, frame[judged], held_us[judged], rows.time_us[judged]),
        domain=_domain(bundle.domain, Domain.of(frame[rows.ok])),
        devices=devices,
        card={**bundle.card, "calibration": _card(bundle, data, rows, base_us, held_us, judged, fitted)},
    )


def _trained_on(bundle: Bundle, frame: pd.DataFrame, of_device: np.ndarray) -> np.ndarray:
    """(rows,) True where the bundle's training had the row's shape and its device: such errors foretell nothing."""
    gpus = {canonical(name) for name in bundle.card.get("data", {}).get("gpus", ())}
    return np.isin(of_device, sorted(gpus)) & bundle.domain.seen(frame)


def _uncorrected(bundle: Bundle) -> Any:
    """The model beneath earlier calibrations: a device measured again is corrected anew."""
    return bundle.model.base if isinstance(bundle.model, Calibrated) else bundle.model


def _check_libraries(bundle: Bundle, frame: pd.DataFrame, name: str) -> None:
    known = {setting.split("|")[1] for setting in bundle.domain.settings}
    unknown = sorted(set(frame["library"]) - known)
    if unknown:
        raise InputError(
            f"{name}: measured with {', '.join(unknown)}, the bundle knows {', '.join(sorted(known))};"
            " train on such data with `seer train`"
        )


def _check_measured(rows: Rows, device: str, name: str) -> None:
    problems, shapes = len(np.unique(rows.problem)), len(np.unique(rows.shape))
    if problems < LEAST_PROBLEMS:
        raise InputError(
            f"{name}: {device} has {problems} measured problem{'s' * (problems != 1)}, calibration needs at least"
            f" {LEAST_PROBLEMS}; `seer calibrate BUNDLE --plan {LEAST_PROBLEMS} --gpu G -o PLAN` chooses them"
        )
    if shapes < 2:
        raise InputError(
            f"{name}: all problems of {device} have one shape; calibration needs at least two, as intervals come from"
            " held-out shapes"
        )


def _support(base: Support, own: Support) -> Support:
    """The new device's own statuses; what was never seen before joins the general table, nothing known is changed."""
    return Support({**base.exact, **own.exact}, {**own.general, **base.general})


def _domain(base: Domain, own: Domain) -> Domain:
    ranges = {
        column: (min(least, own.ranges[column][0]), max(greatest, own.ranges[column][1]))
        for column, (least, greatest) in base.ranges.items()
    }
    return replace(
        base,
        ranges=ranges,
        settings=base.settings | own.settings,
        shapes=base.shapes | own.shapes,
        versions=base.versions | own.versions,
    )


def _widths(bundle: Bundle, frame: pd.DataFrame, held_us: np.ndarray, time_us: np.ndarray) -> Widths:
    """Half widths of the calibrated devices: per algorithm where enough shapes were held out, else over all of them.

    Errors are first divided by the bundle's own factors (distance, length). An algorithm that was not measured on the
    device takes the wider of the bundle's width for it and the device's own.
    """
    factors = replace(bundle.widths, by_key={ALL: 1.0}).of(frame, bundle.domain.distances(frame), held_us)
    score = np.abs(np.log(held_us / time_us)) / factors
    exact = joined(frame, ("gpu", "direction", "algorithm")).to_numpy()
    shape, device = shape_names(frame), device_names(frame)
    by_key = dict(bundle.widths.by_key)
    for name in sorted(set(device)):
        mine = device == name
        if len(set(shape[mine])) < 2:
            continue
        pooled = conformal_quantile(score[mine], shape[mine])
        for key, width in bundle.widths.by_key.items():
            if key.count("|") == 1:
                by_key[f"{name}|{key}"] = max(width, pooled)
        for key in sorted(set(exact[mine])):
            own = exact == key
            share = _own_share(len(set(shape[own])))
            by_key[key] = pooled ** (1 - share) * conformal_quantile(score[own], shape[own]) ** share
    return replace(bundle.widths, by_key=by_key)


def _own_share(shapes: int) -> float:
    """How much an algorithm's own width counts against the device's (in logs), by its held-out shapes."""
    return shapes / (shapes + POOLED_SHAPES) if shapes >= LEAST_SHAPES else 0.0


def _card(
    bundle: Bundle,
    data: Dataset,
    rows: Rows,
    base_us: np.ndarray,
    held_us: np.ndarray,
    judged: np.ndarray,
    fitted: Mapping[str, Fitted],
) -> dict[str, Any]:
    """Device → what was measured there and what it changed, beside the entries of earlier calibrations."""
    of_device = device_names(rows.frame)
    card = dict(bundle.card.get("calibration", {}))
    for device, one in fitted.items():
        mine = np.flatnonzero((of_device == device) & np.isfinite(held_us))
        part, apart = rows.take(mine), mine[judged[mine]]
        card[device] = {
            "data": data.name,
            "rows": len(mine),
            "problems": len(np.unique(part.problem)),
            "shapes": len(np.unique(part.shape)),
            "method": "Gaussian process" + (" and trees" if one.correction.trees is not None else ""),
            "rows_not_trained_on": len(apart),
            "median_ape_before": _median_ape(base_us[apart], rows.time_us[apart]),
            "median_ape_held_out": _median_ape(held_us[apart], rows.time_us[apart]),
        }
    return card


def _median_ape(predicted_us: np.ndarray, time_us: np.ndarray) -> float | None:
    if not len(time_us):
        return None
    return float(f"{asdict(time_errors(predicted_us, time_us))['median_ape']:.6g}")
