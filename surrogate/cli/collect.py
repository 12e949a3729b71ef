"""``seer collect`` measures a plan of problems on a device, into a log that survives any interruption.

``seer doctor`` checks the measuring chain beforehand.
"""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surrogate.cli import options as shared
from surrogate.cli.options import BYTES, COUNT, GPU, HELP, POSITIVE, Form, SettingChoice, option, output_options
from surrogate.cli.problem import CHOICES
from surrogate.features import InputError, read_toml

if TYPE_CHECKING:
    from surrogate.collect.device import Device
    from surrogate.collect.doctor import Check
    from surrogate.collect.log import RunLog
    from surrogate.collect.plan import CollectionPlan
    from surrogate.collect.plan_source import PlanSource
    from surrogate.collect.run import RunOutcome

DTYPES = ("fp32", "fp16", "bf16", "fp64")
"""Element types that the devices measure."""
DEFAULT_SAMPLE = 1000
"""Number of sampled problems if no plan is given."""
CAMPAIGN_MINUTES = 55.0
"""Default time of a campaign: a rented hour, less its start."""
COUNTERS_SHARE = 0.45
"""Share of ``--minutes`` for ``--counters``."""
RULES: dict[str, str] = read_toml(__file__)
"""Rule on options that exclude or need each other → the message if it is broken."""


@click.command(name="collect")
@option("--device", HELP["collect"]["device"], ("cudnn", "cpu", "replay", "reference"))
@option("--plan file", HELP["collect"]["plan"], metavar="FILE")
@option("--grid", HELP["collect"]["grid"], metavar="NAME")
@option("--networks", "Distinct layers of well-known networks, batch 1 … 256.", is_flag=True)
@option("--sample", HELP["collect"]["sample"], COUNT)
@option("--max-gflop", "Leave out problems with more GFLOP; inf for no limit. [150; cpu 0.5]", POSITIVE, metavar="G")
@option("--max-tensor", "Leave out problems with a larger input, filter or output. [2GiB; cpu 64MiB]", BYTES)
@option("--shard", "Measure the I-th of N parts.", default="1/1", metavar="I/N")
@option("--seed", "Seed of the sample and of the order.", shared.INDEX, default=0)
@option("--minutes", HELP["collect"]["minutes"], POSITIVE, metavar="M")
@option("--campaign", HELP["collect"]["campaign"], is_flag=True)
@option("--even-so", "Measure a campaign although a check of the machine failed; its page says so.", is_flag=True)
@option("--engines", HELP["collect"]["engines"], is_flag=True)
@option("--no-find", "Do not ask for cuDNN's own timing (cudnnFind).", is_flag=True)
@option("--timeout", HELP["collect"]["timeout"], POSITIVE, metavar="S")
@option("--counters", "After the times, take hardware counters of a part of the problems, by ncu.", is_flag=True)
@option("--math", "Math type; repeat for several. [fma]", CHOICES["math"], multiple=True)
@option("--dtype", "Element type; repeat for several. [fp32]", SettingChoice("dtype", DTYPES), multiple=True)
@option("--direction", "Pass of a convolution; repeat for several. [fwd]", CHOICES["direction"], multiple=True)
@option("--layout", "Memory layout; repeat for several. [NCHW]", CHOICES["layout"], multiple=True)
@option("--recording", "The run for --device replay; it is also the plan if none is given.", metavar="RUN.jsonl")
@option("--heuristic-only", HELP["collect"]["heuristic-only"], is_flag=True)
@option("--gpu", "The GPU for --heuristic-only.", GPU)
@option("-o --output", HELP["collect"]["output"], required=True, metavar="RUN.jsonl")
def command(**options: Any) -> None:
    """Measure every algorithm of a plan of convolution problems.

    The log survives a kill at any moment: repeat the same command to continue. `seer data merge` turns logs into a
    dataset.

    Examples:
      seer collect --device cudnn --campaign -o RUN
      seer collect --device cudnn --sample 5000 --minutes 8 -o run.jsonl
      seer collect --device cudnn --engines --networks --minutes 8 -o e.jsonl
      seer collect --device cpu --plan problems.txt -o run.jsonl
      seer collect --heuristic-only --gpu h200 --networks -o picks.jsonl
    """
    from surrogate.collect.device import DeviceLostError

    try:
        done, status = _collect(options)
    except DeviceLostError as error:
        raise InputError(str(error)) from None
    except OSError as error:
        reason = error.strerror or str(error)
        log = Path(options["output"])
        if log.is_file() and not log.stat().st_size:  # the disk is full
            log.unlink()
        else:
            reason += "; the measurements are kept, the same command continues"
        raise InputError(f"{options['output']}: {reason}") from None
    except KeyboardInterrupt as stop:
        stop.add_note(f"the same command continues with {options['output']}")
        raise
    shared.echo(done)
    sys.exit(status)


def _collect(options: dict[str, Any]) -> tuple[str, int]:
    """Collect as the options request; return the line to print and the exit status."""
    from surrogate.collect.log import RunLog
    from surrogate.collect.open_device import LOST_STARTS, TIMEOUT_S, Worker, caps_for, open_device
    from surrogate.collect.run import ENGINE_PROBLEM_S, header_for, run
    from surrogate.dataset.files import require_writable

    began_s = time.monotonic()
    _check_options(options)
    name = options["device"] or "cudnn"
    require_writable(options["output"], "filled" if options["campaign"] else "")
    if options["campaign"]:
        with closing(open_device(name, timeout_s=options["timeout"] or TIMEOUT_S)) as device:
            return _campaign(name, device, options)
    caps = caps_for(name)
    if options["max_gflop"] is not None:
        caps = replace(caps, max_flops=1e9 * options["max_gflop"])
    if options["max_tensor"] is not None:
        caps = replace(caps, max_tensor_bytes=options["max_tensor"])
    plan = _source(options).build(caps)
    if plan.left_out:
        shared.echo(plan.description, err=True)
    if options["heuristic_only"]:
        return _heuristic_only(plan, options)
    common: dict[str, Any] = {"max_tensor_bytes": caps.max_tensor_bytes, "timeout_s": options["timeout"] or TIMEOUT_S}
    with closing(open_device(name, recording=options["recording"], engines=options["engines"], **common)) as device:
        closed = [check for check in _check_quickly(name, device, options) if check.name == "device"]
        if closed and isinstance(device, Worker) and device.starts > LOST_STARTS:
            raise InputError(closed[0].value)  # it is lost at each start: no further one is tried
        header = header_for(plan, device)
        minutes_left = options["minutes"] and options["minutes"] - (time.monotonic() - began_s) / 60.0
        measuring_minutes = minutes_left and minutes_left * (1.0 - COUNTERS_SHARE * options["counters"])
        with RunLog(options["output"], header) as log, _progress() as progress:
            limits: dict[str, Any] = {"problem_s": ENGINE_PROBLEM_S} if options["engines"] else {}
            limits |= {"minutes": measuring_minutes, "find": not options["no_find"]}
            outcome = run(plan, device, log, progress=progress, **limits)
            counted, status = _take_counters(log, device, minutes_left, options) if options["counters"] else ("", 0)
    return "; ".join(filter(None, (_summary(options["output"], outcome), counted))), _exit_status(outcome) or status


def _campaign(name: str, device: "Device", options: dict[str, Any]) -> tuple[str, int]:
    """Run the campaign, and return the line to print and the exit status."""
    from surrogate.collect.campaign import Campaign, run_campaign
    from surrogate.collect.open_device import TIMEOUT_S

    out = Path(options["output"])
    minutes = options["minutes"] or CAMPAIGN_MINUTES
    with _progress() as progress:
        settings = {"seed": options["seed"], "shapes": options["sample"], "echo": shared.echo, "progress": progress}
        settings |= {"find": not options["no_find"], "even_so": options["even_so"]}
        settings |= {"timeout_s": options["timeout"] or TIMEOUT_S}
        check = partial(_check_quickly, name, device, options)
        fit, verdict = run_campaign(Campaign(out, name, minutes, **settings), device, check)
    page = out / "README.md"
    report = f"; {page} has the report, the same command continues" if page.exists() else ""
    return f"{out}: {verdict}{report}", int(not fit)


def _check_quickly(name: str, device: "Device", options: dict[str, Any]) -> list["Check"]:
    """Check a GPU's measuring chain quickly, and print the notes and failures on standard error.

    A convolution that fails is tried again, at last without CUPTI. If the device does not open, nothing is printed,
    because the run itself reports that.
    """
    if name != "cudnn":
        return []
    from surrogate.collect.doctor import FAILED, OK, examine
    from surrogate.collect.open_device import LOST_STARTS

    checks: list[Check] = []
    for _ in range(LOST_STARTS + 1):
        checks = examine(device, Path(options["output"]).absolute().parent, quick=True)
        if all((check.name, check.status) != ("convolution", FAILED) for check in checks):
            break
    opens = all(check.name != "device" for check in checks)
    for check in checks:
        if check.status != OK and (opens or options["campaign"]):
            shared.echo(f"{check.name}: {check.value}; {check.remedy}", err=True)
    return checks


def _take_counters(log: "RunLog", device: "Device", minutes: float | None, options: dict[str, Any]) -> tuple[str, int]:
    """Take hardware counters. Return the line to print, and 1 if nothing could be counted."""
    from surrogate.collect.counting import collect_counters

    device.close()  # the profiled program needs its memory
    counted = collect_counters(log, minutes and 60.0 * minutes * COUNTERS_SHARE, options["seed"])
    line = "; ".join((f"{len(counted.kernels)} kernels counted", *counted.notes))
    return line, int(bool(counted.notes) and counted.kernels.empty)


def _progress() -> AbstractContextManager[Callable[..., None]]:
    """Return a progress bar with rows per second and the time left."""
    from surrogate.cli.datasets import progress_bar

    shape = "{desc}: {n_fmt} of {total_fmt} problems in {elapsed}{postfix}"
    return progress_bar("collect", "problem", bar_format=shape)


def _check_options(options: dict[str, Any]) -> None:
    """Raise `InputError` if options contradict each other."""
    device = options["device"]
    heuristic_only = options["heuristic_only"]
    campaign = options["campaign"]
    settings = ("dtype", "math", "layout", "direction")
    planned = ("file", "grid", "networks", "max_gflop", "max_tensor", *settings, "recording", "heuristic_only")
    given = [name for name in (*planned, "counters", "engines") if options[name]]
    given += ["shard"] * (options["shard"] != "1/1")
    option = (*given, "")[0].replace("_", "-").replace("file", "plan")
    timing = [name for name in ("recording", "minutes") if options[name]]
    measures_gpu = device == "cudnn" and not heuristic_only
    broken = {
        "stream": options["output"] == "-",
        "campaign_plan": campaign and given,
        "campaign_replay": campaign and device == "replay",
        "not_measured": (options["no_find"] or options["timeout"]) and not measures_gpu,
        "even_so": options["even_so"] and not campaign,
        "counters": options["counters"] and not measures_gpu,
        "counters_engines": options["counters"] and options["engines"],
        "engines": options["engines"] and not (measures_gpu or heuristic_only),
        "table": str(options["output"]).endswith(".parquet"),
        "timing": heuristic_only and timing,
        "heuristic_device": heuristic_only and device not in (None, "cudnn"),
        "heuristic_gpu": heuristic_only and not options["gpu"],
        "gpu": options["gpu"] and not heuristic_only,
        "device": not device and not heuristic_only,
        "recording": options["recording"] and device != "replay",
    }
    for rule, is_broken in broken.items():
        if is_broken:
            raise InputError(RULES[rule].format(option=option, timing=(*timing, "")[0], device=device))


def _source(options: dict[str, Any]) -> "PlanSource":
    from surrogate.collect.plan import PlanSettings
    from surrogate.collect.plan_source import PlanSource, parse_shard

    settings = PlanSettings(options["dtype"], options["math"], options["layout"], options["direction"])
    sources = {name: options[name] for name in ("file", "grid", "networks", "sample")}
    if all(source in (None, False) for source in sources.values()):
        recording = options["recording"]
        sources |= {"recording": recording} if recording is not None else {"sample": DEFAULT_SAMPLE}
    return PlanSource(**sources, settings=settings, seed=options["seed"], shard=parse_shard(options["shard"]))


def _heuristic_only(plan: "CollectionPlan", options: dict[str, Any]) -> tuple[str, int]:
    from surrogate.cli.datasets import progress_bar
    from surrogate.collect.run import collect_heuristic

    with progress_bar("collect", "problem") as progress:
        collect_heuristic(plan, options["gpu"], options["output"], progress)
    return f"{options['output']}: cuDNN's engine configurations of {len(plan)} problems for {options['gpu']}", 0


def _summary(output: str, outcome: "RunOutcome") -> str:
    counts = ", ".join(f"{count} {status}" for status, count in sorted(outcome.statuses.items()))
    lost = outcome.statuses["lost"] and not outcome.stopped
    parts = [
        f"{output}: {outcome.problems_done} of {outcome.problems_total} problems done",
        f"measured {counts or 'nothing new'}",
        f"no algorithm ran: {outcome.last_reason}" if _nothing_ran(outcome) else "",
        outcome.timer_warning,
        outcome.label_warning,
        f"stopped: {outcome.stopped}, the same command continues" if outcome.stopped else "",
        "the same command repeats the measurements that lost the device" if lost else "",
    ]
    return "; ".join(filter(None, parts))


def _exit_status(outcome: "RunOutcome") -> int:
    """Return 1 if the device was lost too often, nothing ran, or CUPTI did not take the times; 0 if time was up."""
    return int(bool(outcome.failed or _nothing_ran(outcome) or outcome.timer_warning))


def _nothing_ran(outcome: "RunOutcome") -> bool:
    return bool(outcome.statuses) and not outcome.statuses.get("ok")


@click.command(name="doctor")
@option("--device", "The measuring device.", ("cudnn",), default="cudnn")
@option("--quick", "Leave out the trial of the profiler, which takes a minute.", is_flag=True)
@output_options
def doctor(device: str, quick: bool, form: Form) -> None:
    """Check the measuring chain of this machine: driver, cuDNN, CUPTI, clocks, counters and more.

    Each part has a line: ok, note (measuring still works) or failed, the finding, and the remedy. Exit status 1 if
    measurements could not be trusted.

    Examples:
      seer doctor
      seer doctor --quick --json
    """
    from dataclasses import asdict

    from surrogate.collect.doctor import FAILED, examine
    from surrogate.collect.open_device import open_device

    with closing(open_device(device)) as opened:
        checks = examine(opened, Path.cwd(), quick=quick)
    if form:
        shared.show([asdict(check) for check in checks], form)
    else:
        for check in checks:
            shared.echo(f"{check.status:6} {check.name:11} {check.value}")
            if check.remedy:
                shared.echo(f"{'':18} {check.remedy}")
    sys.exit(int(any(check.status == FAILED for check in checks)))
