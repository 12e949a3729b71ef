"""Measure only the most promising algorithms: the model ranks, and the device decides among the first few.

The k candidates with the shortest predictions are measured. If one does not run, the next in the ranking is measured.
Measured times are stored in SQLite and are not measured again. The key is the device, its library and version, and the
problem with its settings. Several processes may write.
"""

import logging
import os
import sqlite3
import time
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from surrogate.features import CUDNN_GRAPH, InputError, canonical
from surrogate.features.families import AnyProblem, parse_problem
from surrogate.prediction.predictor import Predictor, split_by_limits
from surrogate.prediction.results import MEASURED, Estimate, Excluded, Limits, Selection, setting_line
from surrogate.prediction.sources.source import LibraryCandidate

if TYPE_CHECKING:
    import pandas as pd

    from surrogate.collect.device import Device, DeviceInfo, Measurement

ENVIRONMENT_VARIABLE = "SEER_CACHE"
FILE_NAME = "tuning.sqlite"
TIMEOUT_S = 30.0
"""Maximum time that a writer waits for other writers."""
_CREATE = """CREATE TABLE IF NOT EXISTS tunings (
    gpu TEXT, library TEXT, library_version TEXT, problem TEXT, algorithm TEXT,
    status TEXT NOT NULL, time_us REAL, workspace_bytes INTEGER, deterministic INTEGER, reason TEXT NOT NULL,
    PRIMARY KEY (gpu, library, library_version, problem, algorithm)) WITHOUT ROWID"""
_SELECT = """SELECT algorithm, time_us, workspace_bytes, deterministic,
    iif(time_us IS NULL AND reason = '', status, reason) FROM tunings
    WHERE gpu = ? AND library = ? AND library_version = ? AND problem = ?"""
_log = logging.getLogger("surrogate")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One tried algorithm: its predicted time, and its measured time or the reason why it did not run.

    ``predicted_us`` is None for an algorithm that was measured earlier and is not in the ranking. ``measured_us`` is
    the median of the repeats. Workspace and determinism are the device's statements, or None without one.
    """

    algorithm: str
    predicted_us: float | None
    measured_us: float | None = None
    reason: str = ""
    cached: bool = False
    workspace_bytes: int | None = None
    deterministic: bool | None = None

    @classmethod
    def of(cls, algorithm: str, measured: "Measurement") -> Self:
        """Return a measurement without a prediction."""
        from surrogate.collect.device import summarise

        time_us = summarise(measured.times_us)["time_us"]
        reason = "" if time_us is not None else measured.reason or measured.status
        workspace_bytes, deterministic = measured.workspace_bytes, measured.deterministic
        return cls(algorithm, None, time_us, reason, workspace_bytes=workspace_bytes, deterministic=deterministic)

    def within(self, limits: Limits) -> Self:
        """Return the attempt, without its time and with the reason if the limits refuse the algorithm."""
        refusal = limits.refusal(self.workspace_bytes or 0, self.deterministic is not False)
        return self if refusal is None or self.measured_us is None else replace(self, measured_us=None, reason=refusal)


class MeasurementCache:
    """Stored measurements by device, problem and algorithm; they are in memory if ``path`` is None.

    If the file cannot be used, one warning is logged and the measurements stay in memory.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        try:
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open(self.path or ":memory:")
        except (OSError, sqlite3.Error) as error:
            self._give_up(error)

    def _open(self, path: str | Path) -> None:
        self._connection = sqlite3.connect(path, timeout=TIMEOUT_S, isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._connection.close)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.execute(_CREATE)

    def _give_up(self, error: Exception) -> None:
        _log.warning("seer: %s: nothing is stored (%s); set %s to another file", self.path, error, ENVIRONMENT_VARIABLE)
        self._open(":memory:")

    def _execute(self, statement: str, values: tuple[object, ...]) -> list[Any]:
        """Return the rows of a statement, in memory if the file fails."""
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            self._give_up(error)
            return self._connection.execute(statement, values).fetchall()

    def get(self, device: "DeviceInfo", problem: AnyProblem) -> dict[str, Attempt]:
        """Return algorithm → its stored attempt on this device and problem; other processes may have written it."""
        key = canonical(device.gpu), device.library, device.library_version, setting_line(problem)
        return {
            algorithm: Attempt(algorithm, None, time_us, reason, True, workspace, None if bits is None else bool(bits))
            for algorithm, time_us, workspace, bits, reason in self._execute(_SELECT, key)
        }

    def put(self, device: "DeviceInfo", problem: AnyProblem, status: str, attempt: Attempt) -> None:
        """Store one attempt. It replaces an older one of the same key."""
        key = canonical(device.gpu), device.library, device.library_version, setting_line(problem), attempt.algorithm
        facts = attempt.measured_us, attempt.workspace_bytes, attempt.deterministic, attempt.reason
        row = (*key, status, *facts)
        self._execute(f"INSERT OR REPLACE INTO tunings VALUES ({', '.join('?' * len(row))})", row)


def default_path() -> Path:
    """Return the path of the user's cache.

    It is the file that ``SEER_CACHE`` names, or a file in the folder that it names. Without it, the file is in
    ``XDG_CACHE_HOME`` if that path is absolute, else in ``~/.cache`` (XDG base directories).
    """
    if path := os.environ.get(ENVIRONMENT_VARIABLE):
        return Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(shared) if shared.startswith("/") else Path("~/.cache").expanduser()
    return base / "seer-surrogate" / FILE_NAME


@dataclass(frozen=True, slots=True)
class AutotuneResult:
    """The fastest measured algorithm of a problem.

    Attributes
    ----------
    problem : str
        The problem with its setting, in one line.
    gpu, library, library_version : str
        The measured device.
    algorithm : str or None
        The fastest algorithm; None if no algorithm ran.
    time_us : float or None
        Its measured time in µs; None if no algorithm ran.
    source : str
        ``measured`` if it was measured now, ``cache`` if an earlier measurement won.
    tried : tuple of Attempt
        All tried algorithms, in order.
    cost_ms : float
        Wall-clock time of the measurements in ms, with warm-up.
    """

    problem: str
    gpu: str
    library: str
    library_version: str
    algorithm: str | None
    time_us: float | None
    source: str
    tried: tuple[Attempt, ...]
    cost_ms: float

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return asdict(self) | {"tried": list(map(asdict, self.tried))}

    def to_frame(self) -> "pd.DataFrame":
        """Return the tried algorithms as a pandas table, in order."""
        import pandas as pd

        return pd.DataFrame(map(asdict, self.tried), columns=list(Attempt.__slots__))

    def __repr__(self) -> str:
        best = "nothing ran" if self.time_us is None else f"{self.algorithm} {self.time_us:.1f} µs"
        lines = [f"{self.problem} on {self.gpu}: {best} ({self.source}), measuring took {self.cost_ms:.0f} ms"]
        for attempt in self.tried:
            predicted = "–" if attempt.predicted_us is None else f"{attempt.predicted_us:.1f}"
            outcome = attempt.reason if attempt.measured_us is None else f"{attempt.measured_us:.1f} µs"
            lines.append(f"  {attempt.algorithm:<24} predicted {predicted:>10} µs  {outcome}")
        return "\n".join(lines)


def autotune(
    problem: AnyProblem | str,
    device: "str | Device",
    k: int = 2,
    *,
    predictor: Predictor | None = None,
    workspace_limit: int | str | None = None,
    deterministic: bool = False,
    cache: MeasurementCache | str | Path | None = None,
) -> AutotuneResult:
    """Measure the ``k`` candidates with the shortest predicted times and return the fastest.

    Parameters
    ----------
    problem
        A problem, or its text.
    device
        An open device, or a name for `surrogate.collect.open_device`, which is opened for this call.
    k
        Number of algorithms to measure.
    predictor
        The predictor that ranks; by default the predictor of the shipped bundle for the device.
    workspace_limit
        Maximum workspace in bytes, or a text such as ``64MiB``.
    deterministic
        Whether only deterministic algorithms are allowed.
    cache
        A cache, its path, or None for the user's cache. Its algorithms are not measured again, and any of them may win
        if the limits allow it.

    Returns
    -------
    AutotuneResult
        The fastest algorithm, and all that were tried.

    Raises
    ------
    InputError
        If ``k`` is less than 1, if the device cannot be opened or is lost, if no bundle ranks for it, or if the
        predictor ranks for another GPU.
    """
    from surrogate.collect.device import DeviceLostError

    if k < 1:
        raise InputError(f"k is {k}; give 1 or more algorithms to measure")
    problem = parse_problem(problem) if isinstance(problem, str) else problem
    limits = Limits.of(workspace_limit, deterministic, top=k)
    opened = _open_device(device, problem, predictor) if isinstance(device, str) else device
    try:
        info = opened.device_info()
        store = cache if isinstance(cache, MeasurementCache) else MeasurementCache(cache or default_path())
        ranking = (predictor or _shipped(info)).select(
            problem, workspace_limit=limits.workspace_bytes, deterministic=limits.deterministic
        )
        _check_device(ranking, info)
        tried, cost_ms = _measure_candidates(problem, opened, info, cache=store, limits=limits, ranking=ranking)
    except DeviceLostError as error:
        raise InputError(f"the device was lost ({error}); its measurements are stored, try a new process") from None
    finally:
        if isinstance(device, str):
            opened.close()
    ran = [attempt for attempt in tried if attempt.measured_us is not None]
    best = min(ran, key=lambda attempt: attempt.measured_us or 0.0, default=None)
    return AutotuneResult(
        problem=setting_line(problem),
        gpu=info.gpu,
        library=info.library,
        library_version=info.library_version,
        algorithm=best.algorithm if best else None,
        time_us=best.measured_us if best else None,
        source="cache" if best and best.cached else "measured",
        tried=tuple(tried),
        cost_ms=round(cost_ms, 3),
    )


def _open_device(name: str, problem: AnyProblem, predictor: Predictor | None) -> "Device":
    """Open a device; on a GPU, the one that measures the ``predictor``'s candidates: algorithms or configurations."""
    from surrogate.collect.open_device import open_device

    candidates = predictor.select(problem).candidates if predictor and name == "cudnn" else ()
    if candidates and candidates[0].library == CUDNN_GRAPH:
        return open_device(name, engines=True)
    return open_device(name)


def _measure_candidates(
    problem: Any, device: "Device", info: "DeviceInfo", *, cache: MeasurementCache, limits: Limits, ranking: Selection
) -> tuple[list[Attempt], float]:
    """Return the attempts down the ranking until ``limits.top`` algorithms ran, the cached ones, and the time in ms.

    If the device is lost, the algorithm fails and a new worker process goes on. If it is lost twice in a row, the error
    is raised.
    """
    from surrogate.collect.device import DeviceLostError, Measurement, RepeatPolicy

    stored = {name: attempt.within(limits) for name, attempt in cache.get(info, problem).items()}
    offered = set(device.candidates(problem))
    tried: list[Attempt] = []
    cost_ms = 0.0
    lost = False
    predicted = {candidate.algorithm: float(candidate.time_us) for candidate in ranking.candidates}
    for name, predicted_us in predicted.items():
        if sum(attempt.measured_us is not None for attempt in tried) == limits.top:
            break
        if name in stored:
            tried.append(replace(stored.pop(name), predicted_us=predicted_us))
        elif name not in offered:
            tried.append(Attempt(name, predicted_us, reason=f"{info.library} offers no such algorithm here"))
        else:
            began = time.perf_counter()
            try:
                measurement = device.measure(problem, name, RepeatPolicy())
                lost = False
            except DeviceLostError as error:
                if lost:
                    raise
                measurement = Measurement("failed", f"the device was lost ({error})")
                lost = True
            cost_ms += 1e3 * (time.perf_counter() - began)
            attempt = Attempt.of(name, measurement)
            if measurement.status != "failed":  # a failure may not happen again
                cache.put(info, problem, measurement.status, attempt)
            tried.append(replace(attempt.within(limits), predicted_us=predicted_us))
    cached = [replace(each, predicted_us=predicted.get(name)) for name, each in stored.items()]
    return [*tried, *(attempt for attempt in cached if attempt.measured_us is not None)], cost_ms


def with_attempts(selection: Selection, attempts: Iterable[Attempt], limits: Limits) -> Selection:
    """Return a selection with the measured times of ``attempts``, within ``limits``. The selection has no limits yet.

    Algorithms that did not run are excluded with the reason. Algorithms that ran although the selection excludes them
    are added. Measured algorithms come first if they include the fastest prediction, and if no algorithm's interval
    ends below the fastest measured time. Otherwise all algorithms are in the order of their times, because other limits
    may have decided which were measured.
    """
    tried = {attempt.algorithm: attempt for attempt in attempts}
    ran = {name: attempt for name, attempt in tried.items() if attempt.measured_us is not None}
    refused = {name: attempt.reason for name, attempt in tried.items() if name not in ran}
    remaining = [e for e in selection.estimates if e.candidate.solver or e.candidate.algorithm not in refused]
    ranked = {estimate.candidate.algorithm for estimate in remaining}
    estimates = [_measured_estimate(estimate, ran) for estimate in remaining]
    added = [
        _measured_estimate(
            Estimate(LibraryCandidate("", selection.library, name), 0.0, 0.0, 0.0, 0.0, None, MEASURED), ran
        )
        for name, attempt in ran.items()
        if name not in ranked and attempt.workspace_bytes is not None
    ]
    reasons = {excluded.algorithm: excluded.reason for excluded in selection.excluded} | refused
    for estimate in added:
        reasons.pop(estimate.candidate.algorithm, None)
    merged = [*estimates, *added]
    allowed = [e for e in merged if limits.refusal(e.workspace_bytes, e.candidate.deterministic) is None]
    fastest_predicted = next((estimate for estimate in allowed if estimate in estimates), None)
    quickest_us = min((estimate.time_us for estimate in allowed if estimate.source == MEASURED), default=inf)
    measured_first = fastest_predicted is not None and fastest_predicted.source == MEASURED
    measured_first = measured_first and all(quickest_us <= e.upper_us for e in allowed)
    merged.sort(key=lambda estimate: (measured_first and estimate.source != MEASURED, estimate.time_us))
    excluded = tuple(Excluded(name, reason) for name, reason in reasons.items())
    feasible, refused_by_limits = split_by_limits(selection.problem, merged, limits)
    return replace(selection, estimates=feasible, excluded=excluded + refused_by_limits, top=limits.top)


def _measured_estimate(estimate: Estimate, ran: Mapping[str, Attempt]) -> Estimate:
    """Return the estimate with its measurement, if there is one. Times of algorithms do not apply to solvers."""
    candidate = estimate.candidate
    attempt = ran.get(candidate.algorithm)
    time_us = attempt and attempt.measured_us
    if attempt is None or time_us is None or candidate.solver:
        return estimate
    if attempt.deterministic is not None:
        candidate = replace(candidate, deterministic=attempt.deterministic)
    workspace = estimate.workspace_bytes if attempt.workspace_bytes is None else attempt.workspace_bytes
    return Estimate(candidate, time_us, time_us, time_us, 0.0, workspace, MEASURED)


def _check_device(ranking: Selection, info: "DeviceInfo") -> None:
    """Raise `InputError` if the ranking is for another GPU or library than the device. CPUs may differ in name."""
    gpu, library = ranking.gpu, ranking.library
    if library != info.library or (gpu != canonical(info.gpu) and library != "reference"):
        cpu = "leave --gpu out and give the --bundle of a CPU run"
        raise InputError(
            f"the device is {info.gpu} with {info.library}, but the algorithms are ranked for {gpu} with {library};"
            f" {cpu if info.library == 'reference' else 'name the measured GPU and library'}"
        )


def _shipped(info: "DeviceInfo") -> Predictor:
    """Return the predictor of a shipped bundle for the device."""
    from surrogate.prediction.shipped import load

    try:
        return load(info.gpu, library=info.library)
    except InputError as error:
        raise InputError(f"no bundle ranks algorithms for {info.gpu}: {error}; give predictor=load(BUNDLE)") from None
