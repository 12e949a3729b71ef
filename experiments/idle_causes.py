"""Why does the device wait in real traces, by this project, by hand, and by HolisticTraceAnalysis?

The answers by hand come from plain loops over the raw events. Each instant of the idle time belongs to the innermost
event on the thread of the next launch, else on the main thread. HolisticTraceAnalysis covers the whole trace, from the
first activity to the last one. Its category ``host_wait`` is the idle time of a stream before kernels that were
launched after the end of the kernel before, with the latency of the launch. ``kernel_wait`` are the other gaps below
30 µs.
"""

import pandas as pd

from experiments.experiment import Effort, ExperimentResult, program
from experiments.sources import TRACES, Sources, own_settings
from surrogate.trace.events.tables import linked
from surrogate.trace.idle import idle_table
from surrogate.trace.profiling import Profile, idle_before_us, profile

HAND, HTA = "by hand, counted iterations", "HolisticTraceAnalysis, whole trace"


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Return a row per trace, other analysis and cause, with the idle time in ms by this project and by the other."""
    rows = []
    for plan in own_settings(__file__)["traces"]:
        effort.tick(plan["trace"])
        profiled = profile(sources.traces(plan["trace"])[plan["worker"]])
        found = pd.DataFrame(idle_table(profiled).rows).groupby("cause")["time_us"].sum() / 1e3
        for by, own, other in ((HAND, dict(found), plan["hand"]), (HTA, whole_trace_ms(profiled), plan.get("hta", {}))):
            for cause in dict.fromkeys([*other, *(own if other else ())]):
                times = {"own_ms": own.get(cause, 0.0), "other_ms": other.get(cause, 0.0)}
                rows.append({"trace": plan["trace"], "rank": plan["worker"], "other": by, "cause": cause, **times})
    table = pd.DataFrame(rows)
    return ExperimentResult(table)


def whole_trace_ms(profiled: Profile) -> dict[str, float]:
    """Return the figures of HolisticTraceAnalysis by its definitions: the device's idle time, and that of streams."""
    activities = profiled.trace.activities
    idle_us = idle_before_us(activities, activities.stream)
    late = linked(profiled.trace.calls.start_ns, activities.call) > activities.start_ns - 1e3 * idle_us
    on_device = profiled.device_of == profiled.device
    sums = {"idle": profiled.idle_us[on_device], "host_wait": idle_us[late], "kernel_wait": idle_us[~late]}
    return {name: float(times.sum()) / 1e3 for name, times in sums.items()}


EXPERIMENT = program(run, *TRACES.values())
