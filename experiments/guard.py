"""Is the accuracy of the models and of the shipped bundles as good as the stored figures say?

``python -m experiments.guard`` fits models to small samples of the public tables and predicts held-out shapes and GPUs.
It also predicts measured passes that no shipped bundle was fitted on. Each figure is compared with the stored one in
``tables/guard.csv``: slowdown of picks, median error, and coverage of 90 % intervals. A figure is worse if it is worse
by more than its noise: half the width of its 95 % interval over shapes or networks. The exit status is 1 if
a figure is worse, missing or not stored. ``--store`` replaces the stored figures. A run takes 3 minutes on 2 cores.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import click
import numpy as np
import pandas as pd

from experiments import small_networks, training_mpt, training_steps
from experiments.experiment import HOME, Effort, in_one_line, one_thread
from experiments.fit_bundles import Plan
from experiments.held_out import predict_rounds, rounds_by
from experiments.image_networks import predictors_of
from experiments.sources import RESNET50, VGG13, Sources, own_settings
from experiments.verdicts import choice_verdicts, error_record, time_verdicts
from surrogate.bundle.train import default_model, new_model
from surrogate.dataset.files import write_text
from surrogate.dataset.rows import Rows, rows_by_family, rows_of
from surrogate.evaluation.coverage import coverage_rows, held_out_gpu_coverage
from surrogate.evaluation.judge import shape_interval
from surrogate.models import model_frame
from surrogate.network.network import Network
from surrogate.trace.iteration.predict import replay_trace
from surrogate.uncertainty.domain import distances_to, training_shapes_of
from surrogate.uncertainty.fit import gpu_splits, held_out_half_widths, trained_settings

STORED = HOME / "tables" / "guard.csv"
SETTINGS = own_settings(__file__)
KEY = ["set", "figure"]
SLOWDOWN, ERROR, COVERAGE = "slowdown_pct", "median_error_pct", "coverage_pct"
CLAIMED_PCT = 90.0
FOLDS = 3
STEPS, SIZES = 220, 40
"""Sizes of the samples of measured passes."""


class Figure(NamedTuple):
    """A figure in %, and its noise in points: half the width of its 95 % interval."""

    set: str
    figure: str
    n: int
    value: float
    noise: float


def fitted(name: str) -> list[Figure]:
    """Return the figures of fits to a sample of a table's families, on held-out shapes and on held-out GPUs."""
    settings = dict(SETTINGS["fits"][name])
    shapes, models = settings.pop("shapes"), settings.pop("models", [])
    plan = Plan(**settings)
    data = plan.dataset(Sources().folder)
    found: list[Figure] = []
    for family, (_, all_rows) in rows_by_family(model_frame(data, plan.candidate), data.devices).items():
        rows = rows_of(Effort().sampled(all_rows.frame, family, shapes), family, data.devices)
        label = f"{family.name}, {name}"
        for model in models or [default_model(family)]:
            found += _by_shape(f"{label}, {model}", rows, data.candidates, model)
        found += _by_gpu(f"{label}, GPU left out", rows, (models or [default_model(family)])[0])
    return found


def _by_shape(label: str, rows: Rows, candidates: str, name: str) -> Iterator[Figure]:
    rounds = rounds_by("shape", rows, FOLDS, seed=0)
    models = {name: new_model(name, None, 0)}
    predictions = predict_rounds(rows, candidates, rounds, models, lambda text: None)
    if name not in predictions.time_us:  # it was refused, so its figures are missing
        return
    for choice in choice_verdicts(predictions, stratum=rows.family.primary).to_dict("records"):
        if choice["model"] == name:
            noise = 50 * (choice["ci_high"] - choice["ci_low"])
            yield Figure(label, SLOWDOWN, int(choice["n"]), 100 * (choice["slowdown_macro"] - 1), noise)
    yield from _errors(label, time_verdicts(predictions).to_dict("records")[0])
    distance, measured_us = np.full(len(rows), np.nan), np.where(rows.ok, rows.time_us, np.nan)
    for train, test in rounds:
        distance[test] = distances_to(training_shapes_of(rows.take(train)), rows.take(test))
    predicted_us = predictions.time_us[name]
    half_width = held_out_half_widths(rows, predicted_us, measured_us, distance)
    yield from _coverage(label, coverage_rows(rows, np.log(predicted_us / measured_us), half_width))


def _by_gpu(label: str, rows: Rows, name: str) -> Iterator[Figure]:
    splits = gpu_splits(rows, seed=0)
    if not splits:  # too few architectures
        return
    models = {name: new_model(name, None, 0).for_unmeasured_gpu()}
    predictions = predict_rounds(rows, "listed", splits, models, lambda text: None)
    if name not in predictions.time_us:
        return
    predicted_us = predictions.time_us[name]
    counted = rows.ok & np.isfinite(predicted_us)
    yield from _errors(label, error_record(predicted_us[counted], rows.time_us[counted], rows.shape[counted]))
    yield from _coverage(label, held_out_gpu_coverage(rows, predicted_us, trained_settings(rows, splits)))


def _errors(label: str, record: Mapping[Any, Any]) -> Iterator[Figure]:
    noise = (record["error_high_pct"] - record["error_low_pct"]) / 2
    yield Figure(label, ERROR, record["n"], record["median_error_pct"], noise)


def _coverage(label: str, records: Sequence[Mapping[str, Any]]) -> Iterator[Figure]:
    for record in records[:1]:
        noise = 50 * (record["coverage_high"] - record["coverage_low"])
        yield Figure(label, COVERAGE, record["rows"], 100 * record["coverage"], noise)


def programs() -> pd.DataFrame:
    """Return eager passes of KernelBench's programs that no constant was fitted to."""
    table, networks = small_networks.passes()
    table = table.assign(shape=table["level"] + "/" + table["problem"], set="programs, " + table["level"])
    return _timed(table, networks, ~table["training"] & (table["runtime"] == "eager"))


def steps() -> pd.DataFrame:
    """Return training steps of families of networks that no constant was fitted to."""
    table, networks = training_steps.steps(limit=STEPS)
    table = table.assign(shape=table["model"], set="training steps")
    return _timed(table, networks, table["families"] == training_steps.FAMILIES[True])


def sizes() -> pd.DataFrame:
    """Return training steps of MPT's sizes that no constant was fitted to."""
    table = training_mpt.steps(Sources().path("mpt_training"), SIZES)
    return table[~table["model"].isin(training_mpt.FITTED)].assign(set="training steps, MPT", shape=table["model"])


def iterations() -> pd.DataFrame:
    """Return iterations of traces, with predicted kernels."""
    rows = []
    for name in (RESNET50, VGG13):
        for trace in Sources().traces(name):
            for number, step in enumerate(replay_trace(trace, times="surrogate").result().iterations):
                times = {"measured_ms": step.measured_us / 1e3, "predicted_ms": step.predicted_us / 1e3}
                rows.append({"set": "iterations of traces", "shape": f"{name} {number}", **times})
    return pd.DataFrame(rows)


def _timed(table: pd.DataFrame, networks: Sequence[Network], judged: pd.Series) -> pd.DataFrame:
    """Return the ``judged`` passes with their predictions in ms."""
    table, kept = table[judged], [network for network, is_judged in zip(networks, judged, strict=True) if is_judged]
    times = [predictors_of(name).time(network) for name, network in zip(table["gpu"], kept, strict=True)]
    ends = {"predicted_ms": "total_us", "lower_ms": "lower_us", "upper_ms": "upper_us"}
    return table.assign(**{name: [getattr(time, end) / 1e3 for time in times] for name, end in ends.items()})


PASSES = programs, steps, sizes, iterations
SHIPPED: Mapping[str, Callable[[], pd.DataFrame]] = {each.__name__: each for each in PASSES}
"""Name → function that returns measured passes: ``set shape measured_ms predicted_ms`` and the ends of intervals."""


def shipped(name: str) -> list[Figure]:
    """Return the errors and the coverage of the shipped bundles on measured passes."""
    found: list[Figure] = []
    for label, rows in SHIPPED[name]().groupby("set"):
        shape, measured_ms = rows["shape"].to_numpy(), rows["measured_ms"].to_numpy()
        found += _errors(str(label), error_record(rows["predicted_ms"].to_numpy(), measured_ms, shape))
        if "lower_ms" in rows:
            inside = rows["measured_ms"].between(rows["lower_ms"], rows["upper_ms"]).to_numpy(dtype=float)
            ends = shape_interval(inside, shape, macro=False)
            found.append(Figure(str(label), COVERAGE, len(rows), 100 * ends.mid, 50 * (ends.high - ends.low)))
    return found


def _run(name: str) -> list[Figure]:
    with one_thread():  # so that a figure has the same bits in every run
        found = shipped(name) if name in SHIPPED else fitted(name)
    click.echo(f"{name}: {len(found)} figures, {process_time():.0f} s", err=True)
    return found


def figures() -> Iterator[Figure]:
    """Yield all figures. The fits and the sets of passes run in two processes."""
    with ProcessPoolExecutor(2) as pool:
        for found in pool.map(_run, [*SETTINGS["fits"], *SHIPPED]):
            yield from found


def compared(stored: pd.DataFrame, now: pd.DataFrame) -> pd.DataFrame:
    """Return both tables' figures with a verdict: same, better, worse, missing or not stored."""
    both = stored.merge(now, on=KEY, how="outer", suffixes=("", "_now"))
    # The distance from an exact model: 0 % error or slowdown, 90 % coverage.
    goal = np.where(both["figure"] == COVERAGE, CLAIMED_PCT, 0.0)
    change = (both["value_now"] - goal).abs() - (both["value"] - goal).abs()
    limit = both["noise"].clip(lower=SETTINGS["min_points"])
    cases = [both["value_now"].isna(), both["value"].isna(), change > limit, change < -limit]
    return both.assign(verdict=np.select(cases, ["missing", "not stored", "worse", "better"], "same"))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--store", is_flag=True, help="Replace the stored figures by the current ones.")
@click.option("--stored", default=STORED, type=click.Path(path_type=Path), help="The stored figures.")
def main(store: bool, stored: Path) -> None:
    """Compare the accuracy of fits and of shipped bundles with stored figures. Exit status 1 if one is worse."""
    with in_one_line("guard"):
        now = pd.DataFrame(figures(), columns=list(Figure._fields))
        if store:
            write_text(stored, now.to_csv(index=False, float_format="%.5g", lineterminator="\n"))
            click.echo(f"{len(now)} figures stored")
            return
        table = compared(pd.read_csv(stored), now)
    for row in table.to_dict("records"):
        values = f"stored {row['value']:.4g}, now {row['value_now']:.4g}, noise {row['noise']:.3g}"
        click.echo(f"{row['set']}: {row['figure']}: {values}: {row['verdict']}")
    failed = table[~table["verdict"].isin(["same", "better"])]
    for row in failed.to_dict("records"):
        click.echo(f"{row['verdict']}: {row['set']}: {row['figure']}", err=True)
    raise SystemExit(1 if len(failed) else 0)


if __name__ == "__main__":
    main(prog_name="python -m experiments.guard")
