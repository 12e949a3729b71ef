"""The campaign: measure every slice within its share of the time, then write the tables, the verdict and a page.

The folder holds a log per slice, ``campaign.json`` with the report of every slice, ``convolutions.parquet`` with its
kernels, ``engines.parquet``, ``operators.parquet``, and the page ``README.md``, which states whether the tables can be
published. The same command continues an interrupted campaign.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Template

from surrogate.collect.counting import CounterResult, collect_counters
from surrogate.collect.device import Device, DeviceLostError, one_line
from surrogate.collect.doctor import FAILED, Check
from surrogate.collect.log import RunLog, read_log
from surrogate.collect.merge import merge_runs
from surrogate.collect.open_device import TIMEOUT_S, Worker, caps_for, open_device, open_operators
from surrogate.collect.operators import sample_operators
from surrogate.collect.plan import Caps, CollectionPlan, PlannedProblem, PlanSettings, build_plan, in_hash_order, unique
from surrogate.collect.plan_source import mixture, network_problems
from surrogate.collect.run import ENGINE_PROBLEM_S, RunOutcome, collect_operators, header_for, run
from surrogate.dataset.files import Progress, write_text
from surrogate.dataset.store import Dataset, write_dataset
from surrogate.features import InputError, parse, read_toml

MIN_CUPTI_SHARE = 0.99
"""Minimum share of times that must come from CUPTI. CUDA events include launch gaps, so a table must not mix them."""


PAGE = Template(Path(__file__).with_suffix(".md.j2").read_text(encoding="utf-8"), keep_trailing_newline=True)
"""Template of the page in a campaign's folder."""


def table_faults(table: Dataset) -> list[str]:
    """Return the faults of a table of times, one sentence each. Wall-clock times of a CPU are accepted."""
    ok = table.frame[table.frame["status"] == "ok"]
    if ok.empty:
        reasons = table.frame["reason"].dropna()
        return [f"nothing was measured{': ' + reasons.iloc[0] if len(reasons) else ''}"]
    if (ok["timer"] == "wall").all():
        return []
    faults = []
    share = float((ok["timer"] == "cupti").mean())
    if share < MIN_CUPTI_SHARE:
        reasons = ok.loc[ok["timer"] != "cupti", "reason"].dropna().mode()
        why = f" ({reasons.iloc[0]})" if len(reasons) else ""
        faults.append(f"CUPTI took {share:.1%} of {len(ok)} times, {MIN_CUPTI_SHARE:.0%} are needed{why}")
    family = set(table.frame.get("family", ["conv"]))
    kernels = len(table.kernels) if table.kernels is not None else 0
    if family == {"conv"} and not kernels:
        faults.append("no kernel was recorded")
    counted, joined = (int(table.metadata.get(f"counted_kernels{end}", 0)) for end in ("", "_joined"))
    if joined < counted:
        faults.append(f"{counted - joined} of {counted} counted kernels match no measured kernel")
    return faults


def publishing_command(gpu: str) -> str:
    """Return the command that publishes the folder as a dataset."""
    name = "-".join(re.findall(r"[a-z0-9]+", gpu.lower()))
    return f"hf upload YOUR-NAME/seer-{name} . --repo-type dataset"


def verdict(device_name: str, faults: Sequence[str], counter_notes: Sequence[str]) -> str:
    """Return one line that states whether the times can be published, and why counters are missing."""
    if faults:
        return f"not fit to be published: {'; '.join(faults)}"
    counters = f"; counters are incomplete: {'; '.join(counter_notes)}" if counter_notes else ""
    return f"fit to be published{counters}" if device_name == "cudnn" else f"rehearsed on device {device_name}"


def page(conclusion: str, lines: Sequence[str], tables: Mapping[str, Dataset], checks: Sequence[Check]) -> str:
    """Return the page as Markdown: the verdict ``conclusion``, the device, the tables, and how to publish them."""
    device = next((table.metadata["runs"][0]["device"] for table in tables.values()), {})
    library = {device["library"]: device["library_version"]} if device else {}
    facts = {**library, **device.get("versions", {}), **device.get("properties", {})}
    return PAGE.render(
        conclusion=conclusion[0].upper() + conclusion[1:] + ".",
        device=device,
        tables=[(name, _table_summary(table)) for name, table in tables.items()],
        lines=lines,
        facts=[(name, value) for name, value in facts.items() if not isinstance(value, Mapping)],
        checks=[(check.name, check.status, check.value) for check in checks],
        publish=publishing_command(device.get("gpu", "")),
    )


def _table_summary(table: Dataset) -> str:
    frame = table.frame
    ok = frame[frame["status"] == "ok"]
    counts = ", ".join(f"{count} {status}" for status, count in frame["status"].value_counts().items())
    parts = [f"{len(frame)} rows: {counts}"]
    parts += [f"{share:.1%} timed by {timer}" for timer, share in ok["timer"].value_counts(normalize=True).items()]
    doubted = (ok["timer"] == "cupti") & ok["reason"].notna()
    if doubted.any():
        parts.append(f"CUPTI's labels miss launches in {doubted.mean():.1%} of the rows; cache flushes separate them")
    if table.kernels is not None and len(table.kernels):
        parts.append(f"{len(table.kernels)} kernels")
        parts.append(f"{table.metadata.get('counted_kernels_joined', 0)} of them counted")
    drifts = [anchor["drift"] for anchor in table.metadata.get("anchors", ())]
    if drifts:
        parts.append(f"repeated problems differ by {median(drifts):.1%} in the median")
    for column, text in (("slow_clock", "at a low clock"), ("throttled", "while the clock was throttled")):
        if column in frame:
            parts.append(f"{frame[column].mean():.1%} {text}")
    return "; ".join(parts)


WRITING_SHARE = 0.05
"""Share of the time that is reserved for writing the tables."""
STATE = "campaign.json"
FP32 = "fp32 fma NCHW fwd"
"""The default settings of a slice."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice of a campaign: a run with its own log. `campaign.toml` explains the fields."""

    number: int
    title: str
    share: float
    source: str = "mixture"
    settings: tuple[PlanSettings, ...] = ()
    problems: int = 0
    max_gflop: float = 150.0
    find: bool = False
    engines: bool = False

    @property
    def log_name(self) -> str:
        """Return the name of the slice's log."""
        return f"slice-{self.number}.jsonl"

    @property
    def table(self) -> str:
        """Return the name of the table for its rows."""
        if self.engines:
            return "engines.parquet"
        return "operators.parquet" if self.source == "operators" else "convolutions.parquet"

    @property
    def needs_gpu(self) -> bool:
        """Return True if only a GPU can measure the slice."""
        return self.engines or self.source in ("operators", "counters")


def _settings(text: str) -> PlanSettings:
    return PlanSettings(*(tuple(names.split(",")) for names in text.split()))


_TABLE = read_toml(__file__)
SLICES: Mapping[int, Slice] = {
    number: Slice(number, **row | {"settings": tuple(map(_settings, row.get("settings", [FP32])))})
    for number, row in enumerate(_TABLE["slice"])
}
"""Number → slice."""


def plan_of(slice_: Slice, caps: Caps, seed: int, problems: int | None = None) -> CollectionPlan:
    """Return the plan of a slice; ``problems`` replaces its number of shapes. Equal arguments give equal plans."""
    count = slice_.problems if problems is None else problems
    caps = replace(caps, max_flops=min(caps.max_flops, 1e9 * slice_.max_gflop))
    anchors: list[PlannedProblem] = []  # empty: the plan takes anchors from its own problems
    if slice_.source == "mixture":
        shapes, anchors = mixture(count, seed, caps)
    else:
        support = [PlannedProblem(parse(text), "support") for text in _TABLE["support"]]
        layers = (each for each in network_problems() if each.conv.n in _TABLE["batches"])
        source = layers if slice_.source == "networks" else support
        admitted = unique(each for each in source if not caps.reason(each.conv))
        shapes = in_hash_order(admitted, seed)[: count or None]
    description = f"slice {slice_.number}: {slice_.title}"
    return build_plan(shapes, description=description, seed=seed, caps=caps, settings=slice_.settings, anchors=anchors)


@dataclass(slots=True)
class SliceReport:
    """The totals of a slice over all calls.

    ``stopped`` and ``failed`` describe the last call: why it ended early, and whether it failed. ``notes`` state why
    counters are missing.
    """

    number: int
    title: str
    done: int = 0
    planned: int = 0
    measured: dict[str, int] = field(default_factory=dict)
    counted: int = 0
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    stopped: str = ""
    failed: bool = False

    @property
    def finished(self) -> bool:
        """Return True if every problem is measured, whether or not its counters are taken."""
        return 0 < self.planned == self.done

    def line(self) -> str:
        """Return the report as one line of text."""
        counts = ", ".join(f"{count} {status}" for status, count in sorted(self.measured.items()))
        text = f"slice {self.number} ({self.title}): {self.done} of {self.planned} problems"
        counted = f"{self.counted} kernels counted" if self.counted else ""
        results = [counts, counted] if counts or counted else ["nothing"]
        return "; ".join(filter(None, (text, *results, self.stopped, *self.notes)))


@dataclass(frozen=True, slots=True)
class Campaign:
    """The options of a campaign. ``shapes`` replaces every slice's number of shapes: a small number for a rehearsal.

    ``find`` is False if cuDNN's own timing is never asked for. ``even_so`` measures although a check failed. A device
    without an answer for ``timeout_s`` is lost.
    """

    out: Path
    device_name: str
    minutes: float
    seed: int = 0
    shapes: int | None = None
    find: bool = True
    even_so: bool = False
    timeout_s: float = TIMEOUT_S
    echo: Callable[[str], None] = print
    progress: Progress | None = None
    clock: Callable[[], float] = time.monotonic


def run_campaign(
    campaign: Campaign, device: Device, examine: Callable[[], Sequence[Check]] = tuple
) -> tuple[bool, str]:
    """Measure and count all slices, and write the tables. Return whether the times can be trusted, and the verdict.

    ``examine`` returns checks of the machine. If one failed, nothing is measured, or with ``even_so`` the times are not
    trusted. A failure ends only its slice. Plans are built while the machine is checked and earlier slices are
    measured. Raises `InputError` if the folder cannot be used.
    """
    clock = campaign.clock
    end_s = clock() + 60.0 * campaign.minutes * (1.0 - WRITING_SHARE)
    pool = ThreadPoolExecutor(1)
    try:
        plans = {number: pool.submit(_plan, slice_, campaign) for number, slice_ in SLICES.items()}
        checks = examine()
        failed = [check.name for check in checks if check.status == FAILED]
        if failed and ("device" in failed or not campaign.even_so):
            remedy = "see seer doctor" if "device" in failed else "see seer doctor, or measure with --even-so"
            return False, f"nothing was measured, the times could not be trusted ({', '.join(failed)}); {remedy}"
        reports = _reports(campaign.out)
        for number, report in reports.items():
            waiting = [n for n in reports if n == number or (n > number and not reports[n].finished)]
            spent = {n: reports[n].seconds for n in waiting}
            wait([plans[number]])
            began_s = clock()
            seconds = allotted_seconds({n: SLICES[n].share for n in waiting}, spent, end_s - began_s)[number]
            _continue_slice(SLICES[number], campaign, plans[number], device, seconds, report)
            report.seconds += clock() - began_s
            campaign.echo(report.line())
            write_text(campaign.out / STATE, f"{json.dumps([asdict(each) for each in reports.values()], indent=1)}\n")
    finally:
        pool.shutdown(cancel_futures=True)
    return _conclude(campaign, list(reports.values()), checks)


def _conclude(campaign: Campaign, reports: Sequence[SliceReport], checks: Sequence[Check]) -> tuple[bool, str]:
    """Write the tables and the page. Return whether the times can be trusted, and the verdict."""
    out = campaign.out
    faults = [f"check {check.name}: {check.value}" for check in checks if check.status == FAILED]
    faults += [f"slice {report.number}: {report.stopped}" for report in reports if report.failed]
    tables = _write_tables(out, faults)
    faults += [fault for table in tables.values() for fault in table_faults(table)]
    conclusion = verdict(campaign.device_name, faults, [note for report in reports for note in report.notes])
    write_text(out / "README.md", page(conclusion, [report.line() for report in reports], tables, checks))
    if campaign.device_name == "cudnn" and not faults:
        gpu = tables["convolutions.parquet"].frame["gpu"].iloc[0]
        campaign.echo(f"to publish: cd {out} && {publishing_command(gpu)}")
    return not faults, conclusion


def allotted_seconds(shares: Mapping[int, float], spent: Mapping[int, float], seconds: float) -> dict[int, float]:
    """Divide ``seconds`` among the slices, and return slice → seconds.

    The target of a slice is its share of the total time: ``seconds`` plus all ``spent`` time. A slice gets seconds in
    proportion to the part of its target that it has not spent yet.
    """
    seconds = max(seconds, 0.0)
    share_s = (seconds + sum(spent.values())) / sum(shares.values())
    lacking = {number: max(shares[number] * share_s - spent[number], 0.0) for number in shares}
    scale = seconds / (sum(lacking.values()) or 1.0)
    return {number: scale * lack for number, lack in lacking.items()}


def _reports(out: Path) -> dict[int, SliceReport]:
    """Return the reports of earlier calls from the folder; empty reports for slices without one."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror}); give another -o") from None
    try:
        stored = json.loads((out / STATE).read_text(encoding="utf-8"))
        earlier = {values["number"]: SliceReport(**values) for values in stored}
    except FileNotFoundError:
        earlier = {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{out / STATE}: not readable ({one_line(error)}); remove it, the logs remain") from None
    return {number: earlier.get(number, SliceReport(number, slice_.title)) for number, slice_ in SLICES.items()}


PlanFuture = Future[CollectionPlan | None]
"""The plan of a slice, which a thread builds; None for a slice without convolutions."""


def _plan(slice_: Slice, campaign: Campaign) -> CollectionPlan | None:
    """Return the plan of a slice of convolutions; None for the others."""
    if slice_.source in ("operators", "counters"):
        return None
    return plan_of(slice_, caps_for(campaign.device_name), campaign.seed, campaign.shapes)


def _continue_slice(
    slice_: Slice, campaign: Campaign, planned: PlanFuture, device: Device, seconds: float, report: SliceReport
) -> None:
    """Continue one slice for ``seconds``, and add its results to ``report``. A plan that failed fails its slice."""
    report.stopped, report.failed = "", False
    path = campaign.out / slice_.log_name
    end_s = campaign.clock() + seconds
    limits = {"progress": campaign.progress, "clock": campaign.clock}
    if slice_.needs_gpu and campaign.device_name != "cudnn":
        report.stopped = "left out: it needs a GPU"
        return
    # Where CUPTI is left out, another process would lose as much time by it.
    settings: dict[str, Any] = {"timeout_s": campaign.timeout_s}
    settings["without_cupti"] = isinstance(device, Worker) and device.without_cupti
    if slice_.needs_gpu:
        device.close()  # another process needs the GPU's memory
    try:
        plan = planned.result()
        if slice_.source == "counters":
            report.done = report.planned = 1
            _take_counters(campaign.out / SLICES[0].log_name, seconds, campaign.seed, report)
        elif slice_.source == "operators":
            operators = sample_operators(campaign.shapes or slice_.problems, campaign.seed)
            with closing(open_operators(**settings)) as operator_device:
                minutes = (end_s - campaign.clock()) / 60.0
                _add_outcome(report, collect_operators(operators, operator_device, path, minutes=minutes, **limits))
        elif plan:
            engines = open_device("cudnn", engines=True, **settings) if slice_.engines else None
            options: dict[str, Any] = {"problem_s": ENGINE_PROBLEM_S} if engines else {}
            options |= {"find": campaign.find and slice_.find, **limits}
            with (
                closing(engines) if engines else nullcontext(device) as measuring,
                RunLog(path, header_for(plan, measuring)) as log,
            ):
                minutes = (end_s - campaign.clock()) / 60.0
                _add_outcome(report, run(plan, measuring, log, minutes=minutes, **options))
    except (InputError, DeviceLostError, OSError) as error:
        report.stopped, report.failed = one_line(error), True
        if slice_.engines and isinstance(error, InputError) and not path.exists():  # cuDNN's frontend is missing
            report.stopped, report.failed = f"left out: {report.stopped}", False


def _add_outcome(report: SliceReport, outcome: RunOutcome) -> None:
    report.done, report.planned, report.stopped = outcome.problems_done, outcome.problems_total, outcome.stopped
    report.failed = outcome.failed
    report.measured = dict(Counter(report.measured) + outcome.statuses)


def _take_counters(path: Path, seconds: float, seed: int, report: SliceReport) -> None:
    """Take counters of the log ``path`` if this is allowed. Notes of earlier calls stay if those took counters."""
    header = read_log(path).header
    if header is None:
        raise InputError(f"{path}: the run is empty")
    try:
        with RunLog(path, header) as log:
            counted = collect_counters(log, seconds, seed)
    except InputError as error:
        counted = CounterResult(notes=(f"no counters: {error}",))
    report.notes = list(dict.fromkeys((*(report.notes if report.counted else ()), *counted.notes)))
    report.counted += len(counted.kernels)


def _write_tables(out: Path, faults: list[str]) -> dict[str, Dataset]:
    """Write the tables and return file name → table. Reasons for missing tables are added to ``faults``."""
    tables: dict[str, Dataset] = {}
    for name in dict.fromkeys(slice_.table for slice_ in SLICES.values()):
        logs = [out / slice_.log_name for slice_ in SLICES.values() if slice_.table == name]
        try:
            if paths := [path for path in logs if path.exists()]:
                table = merge_runs(paths)
                described = {"candidates": table.candidates, "kernels": table.kernels, "metadata": table.metadata}
                write_dataset(table.frame, out / name, **described)
                tables[name] = table
        except (InputError, OSError) as error:
            faults.append(f"{name}: {one_line(error)}")
    return tables
