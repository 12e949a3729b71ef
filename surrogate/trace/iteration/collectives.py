"""Laws of collectives: time against message size, fitted on collectives that were measured, kept as JSON."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from surrogate.dataset.files import write_text
from surrogate.features.errors import InputError, require_regular
from surrogate.features.operators import AllReduce, CollectiveLaw

SCHEMA = 1
CURVE_FROM = 8
"""Distinct sizes from which the curve between latency and full bandwidth is fitted, which has four parameters."""
SATURATED, RISING = 0.95, 1.1
"""Share of the highest bandwidth that counts as full, and of the shortest time up to which latency alone counts."""
Laws = Mapping[str, CollectiveLaw]
"""Kind of collective (``all_reduce``, ``all_to_all``, …) → its law."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A collective and its time in µs without waiting for other ranks."""

    problem: AllReduce
    time_us: float


def law_us(laws: Laws, problem: AllReduce) -> float | None:
    """The law's time in µs; None where the kind has no law."""
    law = laws.get(problem.kind)
    return None if law is None else float(law.time_us(problem.dram_bytes, problem.factor))


def fit_laws(measured: Iterable[Measured]) -> dict[str, CollectiveLaw]:
    """A law for every kind with two message sizes at least."""
    by_kind: dict[str, list[Measured]] = {}
    for one in measured:
        by_kind.setdefault(one.problem.kind, []).append(one)
    return {
        kind: fit_law(
            np.array([float(one.problem.dram_bytes) for one in group]),
            np.array([float(one.problem.factor) for one in group]),
            np.array([one.time_us for one in group]),
        )
        for kind, group in by_kind.items()
        if len({one.problem.dram_bytes for one in group}) > 1
    }


def fit_law(message_bytes: np.ndarray, factor: np.ndarray, time_us: np.ndarray) -> CollectiveLaw:
    """The law of one kind from arrays of one length: bytes, the share that crosses a link, time in µs.

    Few sizes make overhead + bytes · factor / bandwidth, by least squares of relative errors. From `CURVE_FROM` sizes
    on, latency alone holds up to where times rise, the full bandwidth from where it is reached, and a curve between
    them (Lin et al., TPDS 2024).
    """
    from scipy.optimize import curve_fit, nnls

    moved = message_bytes * factor / 1e3  # GB/s are bytes per ns
    (overhead, per_byte), _ = nnls(np.stack([1 / time_us, moved / time_us], 1), np.ones(len(time_us)))
    straight = CollectiveLaw(
        overhead_us=float(overhead), max_gbs=float(1 / max(per_byte, 1e-9)), a=0.0, c=0.0, l=0.0, k=0.0, x0=0.0, b=0.0
    )
    if len(np.unique(message_bytes)) < CURVE_FROM:
        return straight
    x, rate = np.log2(message_bytes), moved / time_us
    latency = float(time_us[np.argmin(message_bytes)])
    short, full = time_us <= RISING * latency, rate >= SATURATED * rate.max()
    a, c = float(x[short].max(initial=0.0)), float(x[~full].max(initial=0.0))
    middle = (x > a) & (x <= c)
    if middle.sum() < 4:
        return straight
    start = np.ptp(np.log10(rate[middle])), 1.0, np.median(x[middle]), np.log10(rate[middle]).min()
    try:
        found, _ = curve_fit(_log_rate, x[middle], np.log10(rate[middle]), start, maxfev=20_000)
    except RuntimeError:  # no curve fits
        return straight
    l, k, x0, b = map(float, found)  # noqa: E741
    return CollectiveLaw(overhead_us=latency, max_gbs=float(rate.max()), a=a, c=max(a, c), l=l, k=k, x0=x0, b=b)


def _log_rate(x: np.ndarray, l: float, k: float, x0: float, b: float) -> np.ndarray:  # noqa: E741
    return l / (1 + np.exp(-k * (x - x0))) + b


def unseen_us(measured: Sequence[Measured]) -> list[float | None]:
    """Each collective's time in µs by the law fitted on those of other sizes; None where they make no law."""
    sizes = [(one.problem.kind, one.problem.dram_bytes) for one in measured]
    fitted = {
        size: fit_laws(one for one, other in zip(measured, sizes, strict=True) if other != size) for size in set(sizes)
    }
    return [law_us(fitted[size], one.problem) for one, size in zip(measured, sizes, strict=True)]


def save_laws(laws: Laws, path: str | Path) -> None:
    """Write as JSON. Raises `InputError` where the place is not writable."""
    content = {"schema": SCHEMA, "laws": {kind: asdict(law) for kind, law in laws.items()}}
    write_text(path, json.dumps(content, indent=1) + "\n")


def load_laws(path: str | Path) -> dict[str, CollectiveLaw]:
    """Laws that `save_laws` wrote. Raises `InputError` where the file is missing or no such file."""
    path = Path(path)
    require_regular(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise InputError(f"{path}: schema {content['schema']!r} of collectives' laws is unknown; known: {SCHEMA}")
        return {
            str(kind): CollectiveLaw(**{field.name: float(law[field.name]) for field in fields(CollectiveLaw)})
            for kind, law in content["laws"].items()
        }
    except (OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: holds no laws of collectives; write them with --save-collective-law") from None
