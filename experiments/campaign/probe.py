"""Slice 0: what this GPU and its software are, in about 90 s, so that the other slices are planned on facts.

Every step is guarded: what fails is told in the result, and the next step runs.
"""

import json
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from experiments.campaign.context import Context
from experiments.campaign.convolutions import SliceReport
from experiments.campaign.numerics import limit_of
from experiments.campaign.probe_report import markdown
from experiments.campaign.slices import SLICES, Slice, plan_of
from surrogate.collect import log
from surrogate.collect.counters.pairs import measured_pairs, stratified
from surrogate.collect.counters.profilers import count, find_tool
from surrogate.collect.device import Device, DeviceLostError
from surrogate.collect.log import RunLog
from surrogate.collect.protocol import RepeatPolicy
from surrogate.collect.run import header_for, run
from surrogate.dataset.files import write_text
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError

SHAPES: Mapping[str, Conv] = {
    "3x3": Conv(n=8, c=64, h=28, k=64, r=3, pad_h=1),
    "1x1": Conv(n=8, c=64, h=28, k=64, r=1),
    "5x5": Conv(n=8, c=32, h=28, k=32, r=5, pad_h=2),
    "3x3 stride 2": Conv(n=8, c=64, h=28, k=64, r=3, pad_h=1, stride_h=2),
    "3x3 dilation 2": Conv(n=8, c=64, h=28, k=64, r=3, pad_h=2, dilation_h=2),
    "3x3 4 groups": Conv(n=8, c=64, h=28, k=64, r=3, pad_h=1, groups=4),
}
"""Shapes that the support rules tell apart."""
SETTINGS = (
    ("fp32", "fma", "NCHW"), ("fp32", "fma", "NHWC"), ("fp32", "default", "NCHW"), ("fp16", "default", "NCHW"),
    ("fp16", "tensor_op", "NCHW"), ("fp16", "tensor_op", "NHWC"), ("bf16", "tensor_op", "NHWC"),
    ("fp64", "fma", "NCHW"),
)  # fmt: skip
DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
ONCE = RepeatPolicy(repeats=1, slow_repeats=1)
RATE_SECONDS, COUNTER_SECONDS, CHILD_SECONDS = 20.0, 45.0, 90.0
COUNTED_PAIRS = 12


def run_probe(one: Slice, context: Context) -> SliceReport:
    """Take every step, and write ``probe.json`` and ``PROBE.md``."""
    report = SliceReport(one.number, one.title)
    found: dict[str, Any] = {}
    with TemporaryDirectory(dir=context.out, prefix=".probe-") as folder:
        path = Path(folder) / "rate.jsonl"
        _measure(one, context, path, found)
        # the device is closed by now: the profiled child needs the GPU's memory
        _step(found, "counters", lambda: counters(context, found["device"], path, Path(folder)))
    if context.device == "cudnn":
        _step(found, "numerics", numerics)
    found["timers"] = timers(found)
    write_text(context.out / "probe.json", json.dumps(found, indent=1, sort_keys=True) + "\n")
    write_text(context.out / "PROBE.md", markdown(found))
    steps = ("support", "rate", "counters", "numerics")
    report.done = sum("error" not in found.get(step, {"error": ""}) for step in steps)
    report.planned = len(steps)
    report.notes += [f"{step}: {found[step]['error']}" for step in steps if "error" in found.get(step, {})]
    report.files += ["probe.json", "PROBE.md"]
    return report


def _measure(one: Slice, context: Context, path: Path, found: dict[str, Any]) -> None:
    """The steps that need the device: its facts, conditions, support and rate (whose log is left at ``path``)."""
    device = context.open_convolutions()
    try:
        found["device"] = device.describe().to_dict()
        _step(found, "conditions", lambda: dict(device.conditions()))
        _step(found, "support", lambda: support(device))
        _step(found, "rate", lambda: rate(one, context, device, path))
    finally:
        device.close()


def _step(found: dict[str, Any], name: str, take: Callable[[], Any]) -> None:
    """One step's result, or ``error`` with the reason: a probe tells what it can."""
    try:
        found[name] = take()
    except (InputError, DeviceLostError, OSError, ValueError, subprocess.SubprocessError) as error:
        found[name] = {"error": " ".join(str(error).split())}


def support(device: Device) -> dict[str, dict[str, dict[str, str]]]:
    """Setting and direction → shape → algorithm → status (with the time where it ran)."""
    return {
        f"{dtype} {math} {layout} {direction}": {
            name: _statuses(
                device, replace(shape, dtype=dtype, math=math, layout=layout, direction=direction)
            )
            for name, shape in SHAPES.items()
        }
        for dtype, math, layout in SETTINGS
        for direction in DIRECTIONS
    }


def _statuses(device: Device, conv: Conv) -> dict[str, str]:
    statuses: dict[str, str] = {}
    for algorithm in device.candidates(conv):
        try:
            result = device.measure(conv, algorithm, ONCE)
            time = f" {min(result.times_us):.1f} us" if result.times_us else ""
            statuses[algorithm] = result.status + time
        except (DeviceLostError, InputError) as error:
            statuses[algorithm] = f"failed: {error}"
    return statuses


def rate(one: Slice, context: Context, device: Device, path: Path) -> dict[str, Any]:
    """(problem, algorithm) pairs per second on the first problems of slice 1, and how sums and spans compare."""
    plan = plan_of(SLICES[1], context.caps, context.seed, context.problems or one.problems)
    minutes = min(RATE_SECONDS / 60.0, context.measuring_minutes / 4)
    began_s = context.clock()
    with RunLog(path, header_for(plan, device, RepeatPolicy())) as run_log:
        outcome = run(plan, device, run_log, minutes=minutes, clock=context.clock)
    seconds = max(context.clock() - began_s, 1e-9)
    pairs = sum(outcome.statuses.values())
    results = [record["result"] for record in log.read(path).records if record["kind"] == "measure"]
    ok = [result for result in results if result["status"] == "ok"]
    gaps = [
        statistics.median(result["spans_us"]) / statistics.median(result["times_us"])
        for result in ok
        if min(result["times_us"]) > 0
    ]
    return {
        "pairs": pairs,
        "problems": outcome.problems_done,
        "seconds": seconds,
        "pairs_per_second": pairs / seconds,
        "pairs_in_8_minutes": round(480 * pairs / seconds),
        "statuses": dict(outcome.statuses),
        "timers": dict(Counter(result.get("timer", "") for result in ok)),
        "median_span_over_sum": statistics.median(gaps) if gaps else None,
    }


def counters(context: Context, device: Mapping[str, Any], path: Path, folder: Path) -> dict[str, Any]:
    """Whether counting is allowed, and what a kernel costs; `InputError` where there is no profiler or no GPU."""
    capability = device["properties"].get("compute_capability")
    if capability is None:
        raise InputError("the device is no GPU; there is nothing to count")
    tool = find_tool(float(capability))
    pairs = stratified(measured_pairs(log.read(path).records), COUNTED_PAIRS, context.seed)
    counted = count(pairs, tool, folder, seconds=COUNTER_SECONDS)
    return {
        "tool": tool.name,
        "permitted": counted.permitted,
        "pairs": len(pairs),
        "kernels": len(counted.kernels),
        "seconds": counted.seconds,
        "seconds_per_kernel": counted.seconds_per_kernel,
        "notes": list(counted.notes),
        "columns": [name for name in counted.kernels if counted.kernels[name].notna().any()],
    }


def numerics() -> dict[str, Any]:
    """Relative errors by setting and algorithm (the largest), against what is expected; event times beside."""
    done = subprocess.run(
        [sys.executable, "-m", "experiments.campaign.numerics"], capture_output=True, text=True,
        timeout=CHILD_SECONDS, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    entries = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not entries:
        raise InputError(f"the numerics child said nothing: {' '.join(done.stderr.split())[-300:]}")
    return summarised(entries)


def summarised(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Per setting and algorithm the largest error; ``beyond``: the entries over what is expected."""
    largest: dict[str, dict[str, float]] = {}
    beyond = []
    for entry in entries:
        setting = f"{entry['dtype']} {entry['math']} {entry['layout']}"
        errors = largest.setdefault(setting, {})
        algorithm, error = entry["algorithm"], entry["relative_error"]
        errors[algorithm] = max(errors.get(algorithm, 0.0), error)
        if not error < limit_of(entry["dtype"], entry["math"], algorithm):
            beyond.append(entry)
    return {"largest": largest, "beyond": beyond, "checked": len(entries), "entries": entries}


def timers(found: Mapping[str, Any]) -> dict[str, Any]:
    """Which instrument timed, and the span (launch gaps included) over the sum of kernel times."""
    known = found.get("rate", {})
    properties = found["device"]["properties"]
    return {
        "timer": properties.get("timer", "wall"),
        "cupti_missing": properties.get("cupti_missing"),
        "measured_with": known.get("timers", {}),
        "median_span_over_sum": known.get("median_span_over_sum"),
    }
