"""Measured times in a selection: what `surrogate.autotune` found on this device takes the place of predictions."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import exp, inf
from typing import TYPE_CHECKING

from surrogate.features.conv import Conv
from surrogate.prediction.cache import Tuning
from surrogate.prediction.limits import Limits
from surrogate.prediction.selection import MEASURED, Estimate, Excluded, Selection
from surrogate.prediction.setting import Candidate
from surrogate.prediction.tuned import Attempt

if TYPE_CHECKING:
    from surrogate.prediction.predictor import Predictor


def recall(
    predictor: "Predictor",
    conv: Conv,
    known: Mapping[str, Mapping[str, Tuning]],
    *,
    limits: Limits,
    library_version: str | None = None,
) -> Selection:
    """``predictor``'s selection within ``limits``, with ``known`` measurements of the problem (`tunings_of` a cache).

    ``library_version``: by default the newest that was measured on the predictor's GPU; where none was, the newest that
    the bundle knows. Raises `InputError` where the predictor cannot answer.
    """
    predicted = predictor.select(
        conv,
        workspace_limit=limits.workspace_bytes,
        deterministic=limits.deterministic,
        top=limits.top,
        library_version=library_version,
    )
    start = f"{predicted.gpu}|{predicted.library}|"
    measured = {key.removeprefix(start): found for key, found in known.items() if key.startswith(start)}
    version = library_version or _newest(measured)
    if version not in measured:
        return predicted
    whole = predictor.select(conv, library_version=version)
    return with_attempts(whole, attempts_of(measured[version]), limits)


def _newest(versions: Iterable[str]) -> str | None:
    from surrogate.dataset.problems import version_number

    return max(versions, key=lambda version: (version_number(version), version), default=None)


def attempts_of(tunings: Mapping[str, Tuning]) -> tuple[Attempt, ...]:
    """What a cache knows of a problem, as attempts without a prediction."""
    return tuple(
        Attempt(
            name, None, one.time_us, "" if one.time_us else one.reason or one.status, True,
            one.workspace_bytes, one.deterministic,
        )
        for name, one in tunings.items()
    )  # fmt: skip


def with_attempts(selection: Selection, attempts: Iterable[Attempt], limits: Limits) -> Selection:
    """A selection without limits, measured where ``attempts`` say so, then within ``limits``.

    Algorithms that did not run are excluded with the reason; those that ran although the selection excludes them join.
    Measured ones come first where they include the most promising prediction and none that was not measured has its
    whole interval below them; else all stand in the order of their times, since what was measured may be what other
    limits had left.
    """
    tried = {one.algorithm: one for one in attempts}
    ran = {name: one for name, one in tried.items() if one.measured_us is not None}
    refused = {name: one.reason for name, one in tried.items() if name not in ran}
    kept = [
        one for one in selection.estimates if one.candidate.solver or one.candidate.algorithm not in refused
    ]
    estimates = [_measured(one, ran) for one in kept]
    known = {one.candidate.algorithm for one in kept}
    joined = [
        _joined(selection, one)
        for name, one in ran.items()
        if name not in known and one.workspace_bytes is not None
    ]
    reasons = {one.algorithm: one.reason for one in selection.excluded} | refused
    for one in joined:
        reasons.pop(one.candidate.algorithm, None)
    allowed = [one for one in [*estimates, *joined] if limits.excludes(one) is None]
    promising = next((one for one in allowed if one in estimates), None)
    quickest_us = min((one.time_us for one in allowed if one.source == MEASURED), default=inf)
    leads = promising is not None and promising.source == MEASURED
    leads = leads and all(quickest_us <= one.time_us * exp(one.half_width) for one in allowed)
    merged = sorted([*estimates, *joined], key=lambda one: (leads and one.source != MEASURED, one.time_us))
    excluded = tuple(Excluded(name, reason) for name, reason in reasons.items())
    return limited(replace(selection, estimates=tuple(merged), excluded=excluded), limits)


def limited(selection: Selection, limits: Limits) -> Selection:
    """What ``limits`` leave of a selection; the rest is excluded with the reason."""
    reasons = [(one, limits.excludes(one)) for one in selection.estimates]
    out = tuple(Excluded(one.candidate.name, reason) for one, reason in reasons if reason)
    kept = tuple(one for one, reason in reasons if reason is None)
    cut = () if limits.top is None else kept[limits.top :]
    return replace(selection, estimates=kept[: limits.top], excluded=selection.excluded + out, cut=cut)


def _measured(one: Estimate, ran: Mapping[str, Attempt]) -> Estimate:
    """The estimate with its measurement, where there is one; a find of algorithms says nothing about solvers."""
    found = ran.get(one.candidate.algorithm)
    if found is None or found.measured_us is None or one.candidate.solver:
        return one
    candidate = one.candidate
    if found.deterministic is not None:
        candidate = replace(candidate, deterministic=found.deterministic)
    workspace = one.workspace_bytes if found.workspace_bytes is None else found.workspace_bytes
    return Estimate(candidate, found.measured_us, 0.0, workspace, MEASURED)


def _joined(selection: Selection, one: Attempt) -> Estimate:
    """An algorithm that ran, with a known workspace, although the selection excludes it."""
    candidate = Candidate.of(selection.library, selection.problem.direction, one.algorithm, "", float("nan"))
    return _measured(Estimate(candidate, 0.0, 0.0, 0, MEASURED), {one.algorithm: one})
