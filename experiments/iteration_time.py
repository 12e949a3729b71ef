"""How long does a training iteration take, from host overheads and the times of its kernels?

Iteration times of real traces are predicted from host overheads and kernel times, measured or predicted (Lin et al.).
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from experiments.experiment import Effort, ExperimentResult, program
from experiments.sources import POWER, RESNET, TRACES, Sources
from surrogate.report.charts import dots
from surrogate.trace.events.tables import Trace
from surrogate.trace.iteration.overheads import host_work, measure_overheads, pooled
from surrogate.trace.iteration.predict import IterationTime, IterationTimes, replay_trace
from surrogate.trace.iteration.ranks import rank_times
from surrogate.trace.iteration.times import COLLECTIVE_MODEL, collectives
from surrogate.trace.result import Row

STARTUP = (RESNET, POWER)
"""Traces whose first iteration includes the program's start. The profilers of the other traces began later."""
OWN, OTHERS = "own overheads", "other iterations' overheads"
OTHER_OVERHEADS, PREDICTED = "other models' and hosts' overheads", "own overheads, predicted kernels"
OTHER_SIZES = " by the law of other message sizes"
PUBLISHED_PCT, PUBLISHED_DEVICE_PCT = 7.96, 4.61
"""Geometric means of Lin et al. (HiPC 2022), end to end and of device-active time, against runs without a profiler."""


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Judge every trace under every setting that it allows. A row covers the iterations of a trace."""
    models = {name: sources.traces(name) for name in TRACES}
    measured = [measure(name, models, effort) for name in models]
    table = pd.DataFrame([row for rows in measured for row in rows])
    drawn = table.dropna(subset=["alone_geomean_pct"])
    xlabel = "error of the iteration time, geometric mean of its size, %"
    figure = dots(drawn, "trace", "setting", "error_geomean_pct", xlabel, log=True)
    return ExperimentResult(table, figure)


def measure(name: str, models: dict[str, list[Trace]], effort: Effort) -> list[dict[str, object]]:
    """Return the rows of one model."""
    effort.tick(name)
    traces = models[name]
    overheads = {id(trace): measure_overheads(host_work(trace)) for group in models.values() for trace in group}
    other_models = [overheads[id(trace)] for other, group in models.items() if other != name for trace in group]
    rows = [summed(name, OWN, [replay_trace(trace, overheads=overheads[id(trace)]).result() for trace in traces])]
    if len(traces) > 1:
        rest = [(trace, pooled([overheads[id(other)] for other in traces if other is not trace])) for trace in traces]
        rows.append(summed(name, OTHERS, [replay_trace(trace, overheads=others).result() for trace, others in rest]))
    elif len(host_work(traces[0]).iterations) > 1:
        rows.append(summed(name, OTHERS, [replay_trace(traces[0], leave_one_out=True).result()]))
    shared = pooled(other_models)
    rows.append(summed(name, OTHER_OVERHEADS, [replay_trace(trace, overheads=shared).result() for trace in traces]))
    if not (traces[0].ranges.shapes >= 0).any():
        return rows
    if len(traces) > 1 and collectives(traces[0]).any():
        together = rank_times(traces, times="surrogate")
        predicted = summed(name, PREDICTED, together.results, list(together.ranks))
        return [*rows, predicted, *by_laws(name, list(together.collectives))]
    predicted = [replay_trace(trace, times="surrogate", overheads=overheads[id(trace)]).result() for trace in traces]
    return [*rows, summed(name, PREDICTED, predicted)]


def by_laws(name: str, messages: Sequence[Row]) -> list[dict[str, object]]:
    """Return one row per kind of collective: the model fitted on the other message sizes, against the last rank's
    time."""
    table = pd.DataFrame(messages)
    table = table[table["source"] == COLLECTIVE_MODEL]
    errors = 100 * (table["predicted_us"] / table["measured_us"] - 1)
    kinds = errors.groupby(table["collective"])
    return [{"trace": name, "setting": f"{kind}{OTHER_SIZES}", **errors_of(each.to_numpy())} for kind, each in kinds]


def errors_of(errors: np.ndarray) -> dict[str, object]:
    """Return the number, mean, median and maximum of the sizes of errors in %."""
    sizes = {"error_median_pct": float(np.median(np.abs(errors))), "error_max_pct": float(np.max(np.abs(errors)))}
    return {"n": len(errors), "error_geomean_pct": geomean(errors), **sizes}


def summed(name: str, setting: str, results: Sequence[IterationTimes], ranks: Sequence[Row] = ()) -> dict[str, object]:
    """Return one row: errors in % over the iterations of all results, without the start-up.

    ``ranks`` are each result's waits in collectives per iteration. The device's time is judged with the waits
    (``device_…``), as a profiler counts it, and without them (``work_…``).
    """
    skip = int(name in STARTUP)
    every: list[IterationTime] = [step for result in results for step in result.iterations[skip:]]
    errors = np.array([step.error_pct for step in every], dtype=float)
    alone = np.array([100 * (step.alone_us / step.measured_us - 1) for step in every])
    counts = [len(result.iterations[skip:]) for result in results]
    waits, measured_waits = (
        np.repeat([float(row[column]) for row in ranks], counts) if ranks else np.zeros(len(every))
        for column in ("waiting_us", "measured_waiting_us")
    )
    work = np.array([step.device_us for step in every])
    measured = np.array([step.measured_device_us for step in every])
    measured_work = measured - measured_waits
    active, device = work + waits, float(work.sum())
    return {
        "trace": name,
        "setting": setting,
        "n": len(every),
        "measured_ms": float(np.median([step.measured_us for step in every])) / 1e3,
        "predicted_ms": float(np.median([step.predicted_us for step in every])) / 1e3,
        **errors_of(errors),
        "bias_pct": float(np.median(errors)),
        "within_5_pct": 100 * float(np.mean(np.abs(errors) <= 5)),
        "alone_geomean_pct": geomean(alone),
        "device_error_pct": 100 * (active.sum() / measured.sum() - 1) if measured.any() else None,
        "device_geomean_pct": geomean(100 * (active / measured - 1)) if measured.all() else None,
        "work_error_pct": 100 * (device / measured_work.sum() - 1) if measured.any() else None,
        "work_geomean_pct": geomean(100 * (work / measured_work - 1)) if measured_work.all() else None,
        "coverage_pct": 100 * sum(step.coverage * step.device_us for step in every) / device if device else 0.0,
        "input_share_pct": 100 * sum(step.input_us for step in every) / sum(step.measured_us for step in every),
    }


def geomean(errors: np.ndarray) -> float:
    """Return the geometric mean of absolute errors, each at least 0.01 %."""
    return float(np.exp(np.mean(np.log(np.maximum(np.abs(errors), 0.01)))))


EXPERIMENT = program(run, *TRACES.values())
