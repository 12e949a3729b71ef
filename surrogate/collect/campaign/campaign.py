"""The campaign: every slice within its share of the time, then the tables, the verdict and a page that tells of it.

Its folder holds a log per slice, ``campaign.json`` with what every slice did, ``convolutions.parquet`` with its
kernels, ``operators.parquet``, and the page, ``README.md``. The same command goes on with all of it.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from surrogate.collect.campaign.report import page, publishing_command, untrustworthy
from surrogate.collect.campaign.slices import SLICES, Slice, plan_of
from surrogate.collect.counters.collect import collect_counters
from surrogate.collect.device import Device, DeviceLostError, one_line
from surrogate.collect.doctor import Check
from surrogate.collect.log import RunLog
from surrogate.collect.merge import merge_runs
from surrogate.collect.open_device import caps_for, open_operators
from surrogate.collect.operators.collect import collect_operators
from surrogate.collect.operators.operator import sampled
from surrogate.collect.protocol import RepeatPolicy
from surrogate.collect.run import Outcome, Progress, header_for, run
from surrogate.dataset.files import write_text
from surrogate.dataset.store import Dataset, write_dataset
from surrogate.features.errors import InputError

WRITING_SHARE = 0.05
"""Share of the time kept for the tables."""
STATE = "campaign.json"


@dataclass(slots=True)
class SliceReport:
    """What a slice has done so far: counts of all its calls, seconds of all its calls, and what went wrong last."""

    number: int
    title: str
    done: int = 0
    planned: int = 0
    measured: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    stopped: str = ""
    failed: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """True where every problem is done; what is left to count does not matter."""
        return 0 < self.planned == self.done

    def line(self) -> str:
        """One line for a person."""
        counts = ", ".join(f"{count} {status}" for status, count in sorted(self.measured.items()))
        text = f"slice {self.number} ({self.title}): {self.done} of {self.planned} problems; {counts or 'nothing'}"
        return "; ".join(filter(None, (text, self.stopped, *self.notes)))


@dataclass(frozen=True, slots=True)
class Campaign:
    """Where to write, for how long, on what. ``shapes`` replaces every slice's own number: small for a rehearsal."""

    out: Path
    device_name: str
    minutes: float
    seed: int = 0
    shapes: int | None = None
    tell: Callable[[str], None] = print
    progress: Progress | None = None
    clock: Callable[[], float] = time.monotonic


def run_campaign(campaign: Campaign, device: Device, checks: Sequence[Check] = ()) -> str:
    """Measure, count, write; returns why the result is not fit to be published, or nothing.

    What fails ends its slice alone. Raises `InputError` where the folder cannot be used.
    """
    out, clock = campaign.out, campaign.clock
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror}); give another -o") from None
    end_s = clock() + 60.0 * campaign.minutes * (1.0 - WRITING_SHARE)
    reports = _reports(out)
    slices = list(SLICES.values())
    for at, one in enumerate(slices):
        waiting = [each for each in slices[at:] if each is one or not reports[each.number].finished]
        spent = {each.number: reports[each.number].seconds for each in waiting}
        seconds = allotted({each.number: each.share for each in waiting}, spent, end_s - clock())[one.number]
        began_s = clock()
        _slice(one, campaign, device, seconds, reports[one.number])
        reports[one.number].seconds += clock() - began_s
        campaign.tell(reports[one.number].line())
        write_text(out / STATE, json.dumps([asdict(report) for report in reports.values()], indent=1) + "\n")
    faults = [f"slice {report.number}: {report.stopped}" for report in reports.values() if report.failed]
    tables = _tables(out, faults)
    faults += [fault for table in tables.values() for fault in untrustworthy(table)]
    write_text(out / "README.md", page([report.line() for report in reports.values()], tables, checks, faults))
    if campaign.device_name == "cudnn" and not faults:
        gpu = tables["convolutions.parquet"].frame["gpu"].iloc[0]
        campaign.tell(f"to publish: cd {out} && {publishing_command(gpu)}")
    return "; ".join(faults)


def allotted(shares: Mapping[int, float], spent: Mapping[int, float], seconds: float) -> dict[int, float]:
    """Slice → its part of ``seconds``, so that all that was ever spent comes as near to the shares as it can."""
    behind = set(shares)
    while True:
        total = max(seconds, 0.0) + sum(spent[number] for number in behind)
        weight = sum(shares[number] for number in behind)
        part = {number: total * shares[number] / weight - spent[number] for number in behind}
        ahead = {number for number, wanted in part.items() if wanted < 0}
        if not ahead:
            return {number: part.get(number, 0.0) for number in shares}
        behind -= ahead


def _reports(out: Path) -> dict[int, SliceReport]:
    """What earlier calls left in the folder, or nothing done yet."""
    try:
        held = json.loads((out / STATE).read_text(encoding="utf-8"))
        earlier = {values["number"]: SliceReport(**values) for values in held}
    except FileNotFoundError:
        earlier = {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{out / STATE}: not readable ({one_line(error)}); remove it, the logs remain") from None
    return {number: earlier.get(number, SliceReport(number, one.title)) for number, one in SLICES.items()}


def _slice(one: Slice, campaign: Campaign, device: Device, seconds: float, report: SliceReport) -> None:
    """Go on with one slice for so many seconds; ``report`` takes what it did."""
    report.stopped, report.failed, report.notes = "", False, []
    path, began_s = campaign.out / one.log_name, campaign.clock()
    measure_minutes = seconds * (1.0 - one.counters_share) / 60.0
    try:
        if one.source == "operators" and campaign.device_name != "cudnn":
            report.stopped = "left out: only a GPU measures other operators"
        elif one.source == "operators":
            device.close()  # the operators need the GPU's memory
            _take(report, _operators(one, campaign, path, measure_minutes))
        else:
            plan = plan_of(one, caps_for(campaign.device_name), campaign.seed, campaign.shapes)
            policy = RepeatPolicy()
            with RunLog(path, header_for(plan, device, policy)) as log:
                shown = {"progress": campaign.progress, "clock": campaign.clock}
                left = measure_minutes - (campaign.clock() - began_s) / 60.0
                _take(report, run(plan, device, log, policy=policy, minutes=left, **shown))
                if one.counters_share:
                    device.close()
                    report.notes += _count(log, seconds * one.counters_share, campaign.seed)
    except (InputError, DeviceLostError, OSError) as error:
        report.stopped, report.failed = one_line(error), True


def _operators(one: Slice, campaign: Campaign, path: Path, minutes: float) -> Outcome:
    operators = sampled(campaign.shapes or one.problems, campaign.seed)
    shown = {"progress": campaign.progress, "clock": campaign.clock}
    with closing(open_operators(campaign.device_name)) as device:
        return collect_operators(operators, device, path, minutes=minutes, **shown)


def _take(report: SliceReport, outcome: Outcome) -> None:
    report.done, report.planned, report.stopped = outcome.problems_done, outcome.problems_total, outcome.stopped
    report.failed = bool(outcome.stopped) and not outcome.time_up
    for status, count in outcome.statuses.items():
        report.measured[status] = report.measured.get(status, 0) + count


def _count(log: RunLog, seconds: float, seed: int) -> list[str]:
    """Counters where they are allowed; the notes that tell of it."""
    try:
        counted = collect_counters(log, seconds, seed)
    except InputError as error:
        return [f"no counters: {error}"]
    return [f"{len(counted.kernels)} kernels counted", *counted.notes]


def _tables(out: Path, faults: list[str]) -> dict[str, Dataset]:
    """File name → what was written to it; ``faults`` takes why a table could not be."""
    logs: dict[str, list[Path]] = {"convolutions.parquet": [], "operators.parquet": []}
    for one in SLICES.values():
        name = "operators.parquet" if one.source == "operators" else "convolutions.parquet"
        logs[name] += filter(Path.exists, [out / one.log_name])
    tables: dict[str, Dataset] = {}
    for name, paths in logs.items():
        try:
            if paths:
                table = merge_runs(paths)
                described = {"candidates": table.candidates, "kernels": table.kernels, "metadata": table.metadata}
                write_dataset(table.frame, out / name, **described)
                tables[name] = table
        except (InputError, OSError) as error:
            faults.append(f"{name}: {one_line(error)}")
    return tables
