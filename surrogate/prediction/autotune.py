"""Time only the most promising algorithms: the model ranks, the device decides among the first few, a cache recalls.

A convolution's k best predictions are measured; where one does not run, the next in the ranking takes its place.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from surrogate.collect.device import Device, DeviceInfo, DeviceLostError
from surrogate.collect.plan import problem_key
from surrogate.collect.protocol import RepeatPolicy
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.gpu import canonical
from surrogate.prediction.cache import Tuning, TuningCache, default_cache
from surrogate.prediction.tuned import Attempt, Tuned

T = TypeVar("T")
MAX_LOST_IN_A_ROW = 2
"""A lost device costs one algorithm, for a worker process starts afresh; twice in a row it is gone."""


class RankedCandidate(Protocol):
    """What is asked of a candidate of a selection."""

    @property
    def algorithm(self) -> str:
        """Its name."""
        ...

    @property
    def time_us(self) -> float:
        """Predicted time in µs."""
        ...


class Selector(Protocol):
    """What ranks: `surrogate.prediction.predictor.Predictor`."""

    def select(self, conv: Conv, /, *, workspace_limit: int | None, deterministic: bool) -> Any:
        """The selection for ``conv``: ``candidates`` within the limits, the fastest first."""
        ...


def autotune(
    conv: Conv,
    device: str | Device,
    k: int = 2,
    *,
    predictor: Selector | None = None,
    workspace_limit: int | None = None,
    deterministic: bool = False,
    cache: TuningCache | str | Path | None = None,
    policy: RepeatPolicy | None = None,
) -> Tuned:
    """The fastest of the ``k`` best predictions, by measurement.

    ``device``: a name that `surrogate.collect.open_device` knows (opened for this call), or an open device.
    ``predictor`` ranks; by default the shipped bundle for the device. ``workspace_limit`` in bytes. ``cache``: a cache,
    the path of one, or None for the user's own; what it holds is not measured again, and any algorithm in it that the
    limits allow may win. Raises `InputError` for k < 1, a device that cannot be had or is lost, no bundle for it, or a
    predictor that ranks for another GPU.
    """
    if k < 1:
        raise InputError(f"k is {k}; at least one algorithm must be measured")
    opened = _open(device) if isinstance(device, str) else device
    try:
        info = _asked(opened.describe)
        known = (
            cache
            if isinstance(cache, TuningCache)
            else TuningCache(Path(cache))
            if cache
            else default_cache()
        )
        ranker = predictor or _shipped(info)
        ranking = ranker.select(conv, workspace_limit=workspace_limit, deterministic=deterministic)
        _check_device(ranking, info)
        limits = _Limits(workspace_limit, deterministic)
        return _Search(conv, opened, info, known, limits, policy or RepeatPolicy()).run(ranking.candidates, k)
    finally:
        if isinstance(device, str):
            opened.close()


@dataclass(frozen=True, slots=True)
class _Limits:
    workspace_bytes: int | None
    deterministic: bool

    def reason(self, tuning: Tuning) -> str:
        """Why a measured algorithm may not be picked; empty where it may."""
        limit, needed = self.workspace_bytes, tuning.workspace_bytes
        if limit is not None and needed is not None and needed > limit:
            return f"its workspace of {needed} bytes exceeds the limit of {limit}"
        return "not deterministic" if self.deterministic and tuning.deterministic is False else ""


@dataclass(slots=True)
class _Search:
    """One walk along a ranking."""

    conv: Conv
    device: Device
    info: DeviceInfo
    cache: TuningCache
    limits: _Limits
    policy: RepeatPolicy
    cost_ms: float = 0.0
    lost_in_a_row: int = 0

    def run(self, ranking: Sequence[RankedCandidate], k: int) -> Tuned:
        """Down the ranking until ``k`` algorithms ran; then whatever else the cache knows joins."""
        known = dict(self.cache.get(self.info, self.conv))
        offered = set(_asked(lambda: self.device.candidates(self.conv)))
        tried: list[Attempt] = []
        for candidate in ranking:
            if sum(attempt.measured_us is not None for attempt in tried) == k:
                break
            name, predicted = candidate.algorithm, float(candidate.time_us)
            cached = name in known
            if not cached and name not in offered:
                tried.append(
                    Attempt(name, predicted, reason=f"{self.info.library} offers no such algorithm here")
                )
                continue
            tuning = known.pop(name) if cached else self._measured(name)
            tried.append(self._attempt(name, predicted, tuning, cached))
        tried += self._recalled(known, ranking)
        return self._tuned(tuple(tried))

    def _attempt(self, name: str, predicted: float | None, tuning: Tuning, cached: bool) -> Attempt:
        reason = tuning.reason or tuning.status if tuning.time_us is None else self.limits.reason(tuning)
        time_us = None if reason else tuning.time_us
        return Attempt(name, predicted, time_us, reason, cached, tuning.workspace_bytes, tuning.deterministic)

    def _recalled(self, known: Mapping[str, Tuning], ranking: Sequence[RankedCandidate]) -> list[Attempt]:
        """Earlier measurements beyond the first k, those that ran and that the limits allow."""
        predicted = {candidate.algorithm: float(candidate.time_us) for candidate in ranking}
        found = [self._attempt(name, predicted.get(name), tuning, True) for name, tuning in known.items()]
        return [attempt for attempt in found if attempt.measured_us is not None]

    def _measured(self, algorithm: str) -> Tuning:
        """One measurement, kept in the cache unless it failed."""
        began = time.perf_counter()
        try:
            tuning = Tuning.of(self.device.measure(self.conv, algorithm, self.policy))
            self.lost_in_a_row = 0
        except DeviceLostError as error:
            self.lost_in_a_row += 1
            if self.lost_in_a_row >= MAX_LOST_IN_A_ROW:
                raise _lost(error) from None
            tuning = Tuning("failed", reason=f"the device was lost ({error})")
        finally:
            self.cost_ms += 1e3 * (time.perf_counter() - began)
        if tuning.keeps:
            self.cache.put(self.info, self.conv, algorithm, tuning)
        return tuning

    def _tuned(self, tried: tuple[Attempt, ...]) -> Tuned:
        ran = [attempt for attempt in tried if attempt.measured_us is not None]
        best = min(ran, key=lambda attempt: attempt.measured_us or 0.0, default=None)
        return Tuned(
            problem_key(self.conv),
            self.info.gpu,
            self.info.library,
            self.info.library_version,
            best.algorithm if best else None,
            best.measured_us if best else None,
            "cache" if best and best.cached else "measured",
            tried,
            round(self.cost_ms, 3),
        )


def _open(name: str) -> Device:
    from surrogate.collect.open_device import open_device

    return open_device(name)


def _asked(ask: Callable[[], T]) -> T:
    try:
        return ask()
    except DeviceLostError as error:
        raise _lost(error) from None


def _check_device(ranking: Any, info: DeviceInfo) -> None:
    """Times of one GPU are none of another's; CPUs, each with a name of its own, stand in for one another."""
    gpu, library = getattr(ranking, "gpu", None), getattr(ranking, "library", info.library)
    if library != info.library or (gpu not in (None, canonical(info.gpu)) and library != "reference"):
        raise InputError(
            f"the device is {info.gpu} with {info.library}, the algorithms are ranked for {gpu} with {library};"
            " name what is measured"
        )


def _lost(error: DeviceLostError) -> InputError:
    return InputError(
        f"the device was lost ({error}); what was measured before is kept, try again in a new process"
    )


def _shipped(info: DeviceInfo) -> Selector:
    """The predictor of a shipped bundle for the device."""
    from surrogate.prediction.shipped import load

    try:
        return load(info.gpu, library=info.library)
    except InputError as error:
        raise InputError(
            f"no bundle ranks algorithms for {info.gpu}: {error}; give predictor=load(BUNDLE)"
        ) from None
