"""What the logs of runs say of each (device, problem, algorithm): its visits, and what is known of its problem."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from surrogate.collect.device import Measurement, choices
from surrogate.collect.log import Header, conv_of, key_without_visit
from surrogate.collect.protocol import slow_clocks, throttles


class Key(NamedTuple):
    """Names one row: device, problem with settings, algorithm."""

    device: tuple[str, str, str]
    problem: str
    algorithm: str


@dataclass(slots=True)
class ProblemNotes:
    """What is known of one problem on one device beside its measurements."""

    origin: str = ""
    networks: dict[str, None] = field(default_factory=dict)
    heuristic: str | None = None
    find_us: dict[str, list[float]] = field(default_factory=dict)


@dataclass(slots=True)
class Visit:
    """One measurement, with the SM clock sampled after its problem (None where unknown)."""

    result: Measurement
    at_s: float
    clock_mhz: float | None = None
    slow_clock: bool = False
    throttled: bool = False


@dataclass(slots=True)
class Gathered:
    """Everything, in the order it was first seen; ``duplicates`` counts measurements that stood in two files."""

    visits: dict[Key, list[Visit]] = field(default_factory=dict)
    notes: dict[tuple[tuple[str, str, str], str], ProblemNotes] = field(default_factory=dict)
    seen: set[tuple[str, ...]] = field(default_factory=set)
    of_run: dict[tuple[str, ...], list[Visit]] = field(default_factory=dict)
    """A run's visits of one problem: a longer copy of the log may bring the clock of those that a shorter one had."""
    duplicates: int = 0


def gather(header: Header, records: Iterable[Mapping[str, Any]], gathered: Gathered) -> None:
    """Take one run's records; the same visit of the same run taken before is a duplicate.

    Raises `InputError`, or what the damage leads to, for a record that names no problem or holds no measurement.
    """
    device = (header.device.gpu, header.device.library, header.device.library_version)
    run = (str(header.created_s), header.plan_digest, *map(str, header.shard), *device)
    clocks: list[tuple[list[Visit], Mapping[str, float]]] = []
    for record in records:
        if record["kind"] == "operator":  # another table's (`surrogate.collect.operators`)
            continue
        visit_key = record["problem"]
        key = key_without_visit(visit_key)
        conv_of(key)
        problem = gathered.notes.setdefault((device, key), ProblemNotes())
        name = (*run, record["kind"], visit_key, record.get("algorithm", ""))
        if name in gathered.seen:
            gathered.duplicates += record["kind"] == "measure"
            continue
        gathered.seen.add(name)
        if record["kind"] == "problem":
            _note_problem(problem, record)
        elif record["kind"] == "measure":
            visit = Visit(_sound(record["result"]), record.get("at_s", 0.0))
            gathered.visits.setdefault(Key(device, key, record["algorithm"]), []).append(visit)
            gathered.of_run.setdefault((*run, visit_key), []).append(visit)
        elif record["kind"] == "done":
            for choice in choices(record["find"]):
                if choice.time_us is not None and choice.math in (None, conv_of(key).math):
                    problem.find_us.setdefault(choice.algorithm, []).append(choice.time_us)
            clocks.append((gathered.of_run.get((*run, visit_key), []), record["conditions"]))
    _note_clocks(clocks)


def _note_problem(problem: ProblemNotes, record: Mapping[str, Any]) -> None:
    problem.origin = problem.origin or record["origin"]
    problem.networks.update(dict.fromkeys(record["networks"]))
    ranking = [choice for choice in choices(record["heuristic"]) if choice.status == "ok"]
    if ranking and problem.heuristic is None:
        problem.heuristic = ranking[0].algorithm


def _note_clocks(clocks: Sequence[tuple[list[Visit], Mapping[str, float]]]) -> None:
    """Flag the visits of one run whose clock was low; a problem cut before its clock was sampled has none."""
    flags = slow_clocks([conditions.get("sm_clock_mhz") for _, conditions in clocks])
    for (visits, conditions), slow in zip(clocks, flags, strict=True):
        for visit in visits:
            visit.clock_mhz, visit.slow_clock = conditions.get("sm_clock_mhz"), slow
            visit.throttled = bool(throttles(conditions.get("throttle_reasons")))


def _sound(result: Mapping[str, Any]) -> Measurement:
    """The measurement; one with a time that is no time (0, not finite) is ``failed``."""
    measured = Measurement.from_dict(result)
    wrong = [time for time in (*measured.times_us, *measured.spans_us) if not 0 < time < math.inf]
    return Measurement("failed", f"a repeat of {wrong[0]:g} µs") if wrong else measured
