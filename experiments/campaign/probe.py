"""Slice 0: what this GPU and its software are, in about 90 s, so that the other slices are planned on facts.

Every step is guarded: what fails is told in the result, and the next step runs. Which arithmetic ran is told by the
device's own facts: the errors of small problems against float64.
"""

import json
import statistics
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from experiments.campaign.context import Context
from experiments.campaign.convolutions import SliceReport, profiler_of
from experiments.campaign.slices import SLICES, Slice, plan_of
from surrogate.collect import log
from surrogate.collect.counters.pairs import measured_pairs, stratified
from surrogate.collect.counters.profilers import count
from surrogate.collect.device import Device, DeviceLostError
from surrogate.collect.log import RunLog
from surrogate.collect.protocol import RepeatPolicy
from surrogate.collect.run import header_for, run
from surrogate.dataset.files import write_text
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.report.tables import plain

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
RATE_SECONDS, COUNTER_SECONDS = 20.0, 45.0
COUNTED_PAIRS = 12
FMA_ERROR, WINOGRAD_ERROR = 1e-5, 1e-4
"""Relative errors that fp32 FMA stays below, which excludes TF32 (about 3e-4); Winograd's larger tiles lose digits."""
STEPS = ("support", "rate", "counters")
SHOWN = ("compute_capability", "sms", "memory_bytes", "l2_bytes", "boost_khz", "timer", "cupti_missing")


def run_probe(one: Slice, context: Context) -> SliceReport:
    """Take every step, and write ``probe.json`` and ``PROBE.md``."""
    found: dict[str, Any] = {}
    with TemporaryDirectory(dir=context.out, prefix=".probe-") as folder:
        path = Path(folder) / "rate.jsonl"
        with closing(context.open_convolutions()) as device:
            found["device"] = device.describe().to_dict()
            _step(found, "conditions", lambda: dict(device.conditions()))
            _step(found, "support", lambda: support(device))
            _step(found, "rate", lambda: rate(one, context, device, path))
        # the device is closed by now: the profiled child needs the GPU's memory
        _step(found, "counters", lambda: counters(context, path, Path(folder)))
    write_text(context.out / "probe.json", json.dumps(found, indent=1, sort_keys=True) + "\n")
    write_text(context.out / "PROBE.md", markdown(found))
    failed = {step: found[step]["error"] for step in STEPS if "error" in found[step]}
    notes = [f"{step}: {error}" for step, error in failed.items()]
    files = ["probe.json", "PROBE.md"]
    return SliceReport(one.number, one.title, len(STEPS) - len(failed), len(STEPS), notes=notes, files=files)


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
            name: _statuses(device, replace(shape, dtype=dtype, math=math, layout=layout, direction=direction))
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
    pairs = outcome.statuses.total()
    results = [record["result"] for record in log.read(path).records if record["kind"] == "measure"]
    ok = [result for result in results if result["status"] == "ok"]
    medians = [(statistics.median(each["spans_us"]), statistics.median(each["times_us"])) for each in ok]
    gaps = [span_us / time_us for span_us, time_us in medians if time_us > 0]
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


def counters(context: Context, path: Path, folder: Path) -> dict[str, Any]:
    """Whether counting is allowed, and what a kernel costs; `InputError` where there is no profiler or no GPU."""
    tool = profiler_of(path)
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


def markdown(found: Mapping[str, Any]) -> str:
    """The result as Markdown for a person; a step that failed shows its reason."""
    device = found["device"]
    known = device["properties"]
    versions = {device["library"]: device["library_version"], **device["versions"]}
    shown = {name: known[name] for name in SHOWN if known.get(name) is not None}
    parts = [
        f"# Probe of {device['gpu']}",
        _table(("what", "version"), versions.items()),
        _table(("property", "value"), shown.items()),
    ]
    for step in ("rate", "counters"):
        parts += [f"## {step.capitalize()}", _section(found[step], _pairs)]
    errors = _errors(known["relative_errors"]) if "relative_errors" in known else "not taken on this device"
    parts += ["## Numerics: relative error against float64, fp32 forward", errors]
    parts += ["## Support", _section(found["support"], _support)]
    return "\n\n".join(parts) + "\n"


def _section(part: Mapping[str, Any], write: Callable[[Mapping[str, Any]], str]) -> str:
    return f"failed: {part['error']}" if "error" in part else write(part)


def _pairs(values: Mapping[str, Any]) -> str:
    return _table(("what", "value"), ((name, plain(value)) for name, value in values.items()))


def _errors(part: Mapping[str, Mapping[str, float | None]]) -> str:
    """Each math type's errors; FMA that errs like TF32 is no FMA."""
    rows = [(math, name, error) for math, errors in part.items() for name, error in errors.items()]
    beyond = [
        f"{name} ({error})"
        for math, name, error in rows
        if math == "fma" and not (error or 1.0) < (WINOGRAD_ERROR if name.startswith("WINOGRAD") else FMA_ERROR)
    ]
    verdict = f"FMA errs more than FMA can: {', '.join(beyond)}" if beyond else "FMA is FMA."
    return f"{verdict}\n\n{_table(('math', 'algorithm', 'error'), rows)}"


def _support(part: Mapping[str, Any]) -> str:
    """Per setting a table: algorithms down, shapes across; ``+`` ran, ``-`` not supported, else the status."""
    tables = []
    for setting, shapes in part.items():
        algorithms = dict.fromkeys(name for statuses in shapes.values() for name in statuses)
        rows = [(name, *(_mark(each.get(name, "")) for each in shapes.values())) for name in algorithms]
        tables.append(f"### {setting}\n\n" + _table(("algorithm", *shapes), rows))
    return "\n\n".join(tables)


def _mark(status: str) -> str:
    word = status.split(" ")[0].rstrip(":")
    return {"ok": "+", "not_supported": "-", "": "?"}.get(word, word)


def _table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    texts = ((str(cell).replace("|", "\\|") for cell in line) for line in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in texts)
