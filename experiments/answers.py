"""Answers of the shipped bundles to a stored sample of questions. The comparison shows which answers a change moves.

``python -m experiments.answers`` answers every question of ``data/answers.parquet`` again. It prints, for each family,
how many answers differ from the stored ones by more than 0.5 %, and the largest difference. So no change of a
prediction goes unnoticed. The exit status is 1 if an answer differs. ``--store`` replaces the stored answers; commit
them together with the change that caused them. A run takes half a minute on 2 cores.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import pandas as pd

from experiments.experiment import HOME, in_one_line
from experiments.sources import own_settings
from surrogate import InputError, Predictor, bundled, gpu as gpu_by_name, load
from surrogate.dataset.files import atomic_path
from surrogate.features.families import OPERATORS, AnyProblem, family_of, operator, parse_problem
from surrogate.features.problem import declared_sizes
from surrogate.network import load_predictors, read_network
from surrogate.prediction.shipped import load_operators
from surrogate.trace import profile, read_trace
from surrogate.trace.graph import graph_of
from surrogate.trace.whatif import Interconnect as Workers, evaluate, setting_of, what_if

STORED = HOME / "data" / "answers.parquet"
TOLERANCE = 0.005
"""Relative difference of an answer that is reported."""
ROUNDING = 1e-9
"""Relative difference between two kinds of processors, whose logarithms differ in the last bit."""
QUESTIONS = own_settings(__file__)


class Answer(NamedTuple):
    """A question and one of its answers, in µs; NaN if the question is refused."""

    family: str
    gpu: str
    question: str
    settings: str
    candidate: str
    time_us: float = np.nan
    lower_us: float = np.nan
    upper_us: float = np.nan


def answers() -> Iterator[Answer]:
    """Yield every question's answers, in a fixed order."""
    for name in QUESTIONS["gpus"]:
        operators = load_operators(name)
        try:
            convolutions = load(name)
        except InputError:  # no convolution was measured on such a GPU
            convolutions = operators
        for text, settings in (*_listed(), *((str(problem), {}) for problem in _kinds())):
            problem = parse_problem(text, **settings)
            kind = family_of(problem)
            if "math" not in settings:
                problem = replace(problem, math=kind.default_math(problem.dtype, gpu_by_name(name)))
            question = (kind.name, name, text, ",".join(f"{key}={value}" for key, value in settings.items()))
            yield from _selection(question, problem, convolutions)
            if ":" in text:
                yield from _kernel(question, problem, operators)
    yield from _table()
    yield from _networks()
    yield from _what_ifs()


def _listed() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the listed problems with their settings."""
    for group in QUESTIONS["questions"]:
        names = [name for name in group if name != "problems"]
        for text, *values in product(group["problems"], *(group[name] for name in names)):
            yield text, dict(zip(names, values, strict=True))


def _kinds() -> Iterator[AnyProblem]:
    """Yield a problem of every operator that the listed sizes describe."""
    sizes = QUESTIONS["sizes"]
    for kind, cls in OPERATORS.items():
        if all(size.default is not None or size.name in sizes for size in declared_sizes(cls)):
            yield operator(kind, **{name: sizes[name] for name in cls.size_names() if name in sizes})


def _selection(question: tuple[str, str, str, str], problem: AnyProblem, predictor: Predictor) -> Iterator[Answer]:
    try:
        selection = predictor.select(problem)
    except InputError:
        yield Answer(*question, "refused")
        return
    for ranked in selection.candidates:
        candidate = " ".join(filter(None, (ranked.library, ranked.algorithm, ranked.solver)))
        yield Answer(*question, candidate, ranked.time_us, ranked.lower_us, ranked.upper_us)


def _kernel(question: tuple[str, str, str, str], problem: AnyProblem, predictor: Predictor) -> Iterator[Answer]:
    try:
        (time,) = predictor.kernel_times([problem])
    except InputError:
        yield Answer(*question, "kernel refused")
        return
    yield Answer(*question, "kernel", time.time_us, time.lower_us, time.upper_us)


def _table() -> Iterator[Answer]:
    """Yield the answers for rows of the shipped table, predicted as one table."""
    rows = pd.read_parquet(bundled.DATASET).sample(400, random_state=0)
    predicted = load(bundled.FOLDER / "cudnn7").predict(rows)
    ends = zip(predicted.predicted_us, predicted.lower_us, predicted.upper_us, strict=True)
    for row, times in zip(rows.itertuples(), ends, strict=True):
        yield Answer("conv", str(row.gpu), f"row {row.Index}", "", str(row.algorithm), *map(float, times))


def _networks() -> Iterator[Answer]:
    networks = {label: read_network(**settings) for label, settings in QUESTIONS["networks"].items()}
    for name in QUESTIONS["network_gpus"]:
        predictors = load_predictors(name)
        for label, network in networks.items():
            try:
                time = predictors.time(network)
            except InputError:
                yield Answer("network", name, label, "", "refused")
                continue
            yield Answer("network", name, label, "", "total", time.total_us, time.lower_us, time.upper_us)


def _what_ifs() -> Iterator[Answer]:
    profiled = profile(read_trace(bundled.TRACES["vgg13_h100"]))
    graph = graph_of(profiled.trace, profiled.layers)
    for target in (None, "a100", "mi300x"):
        setting = setting_of(profiled, target=target, network=Workers(8, 12.5))
        texts = ("gpu",) if target else QUESTIONS["what_ifs"]
        for answer in evaluate(graph, [what_if(text) for text in texts], setting):
            row = answer.to_dict()
            ends = (np.nan if row[end] is None else row[end] for end in ("low_us", "high_us"))
            yield Answer("what-if", target or "h100", "vgg13_h100", "", row["name"], row["predicted_us"], *ends)


def moved(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """Join two tables of answers; return the columns ``before_us``, ``after_us`` and ``change``.

    ``change`` is the largest relative difference of time and interval ends. It is infinite if only one table has the
    answer to a question of ``before``.
    """
    key = list(Answer._fields[:5])
    after = after.merge(before[key[:4]].drop_duplicates())
    times = list(Answer._fields[5:])
    both = before.merge(after, on=key, how="outer", suffixes=("_before", "_after"), indicator=True)
    changes = []
    for name in times:
        old, new = both[f"{name}_before"], both[f"{name}_after"]
        changes.append((new / old - 1).abs().where(~(old.isna() & new.isna()), 0.0).fillna(np.inf))
    change = pd.concat(changes, axis=1).max(axis=1).where(both["_merge"] == "both", np.inf)
    renamed = both.rename(columns={"time_us_before": "before_us", "time_us_after": "after_us"})
    return renamed[[*key, "before_us", "after_us"]].assign(change=change)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--store", is_flag=True, help="Replace the stored answers by the current ones.")
@click.option(
    "--exact", is_flag=True, help="Count every difference above rounding errors, which depend on the machine."
)
@click.option("--stored", default=STORED, type=click.Path(path_type=Path), help="The stored answers.")
def main(store: bool, exact: bool, stored: Path) -> None:
    """Compare the shipped bundles' answers with the stored ones. Exit status 1 if an answer moved."""
    with in_one_line("answers"):
        now = pd.DataFrame(answers(), columns=list(Answer._fields))
        if store:
            with atomic_path(stored) as path:
                now.to_parquet(path, index=False, compression="zstd")
            click.echo(f"{len(now)} answers stored")
            return
        table = moved(pd.read_parquet(stored), now)
    tolerance = ROUNDING if exact else TOLERANCE
    for name, rows in table.groupby("family"):
        others = rows[rows["change"] > tolerance].sort_values("change", ascending=False)
        if len(others):
            worst = others.iloc[0]
            click.echo(
                f"{name}: {len(others)} of {len(rows)} answers moved by more than {100 * tolerance:.2g} %;"
                f" most: {worst.question} {worst.settings} on {worst.gpu}, {worst.candidate}:"
                f" {worst.before_us:.4g} -> {worst.after_us:.4g} us"
            )
    count = int((table["change"] > tolerance).sum())
    click.echo(f"{count} of {len(table)} answers moved")
    raise SystemExit(1 if count else 0)


if __name__ == "__main__":
    main()
