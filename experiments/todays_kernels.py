"""Compare predictions of current kernels: this package, aiconfigurator, and always the best single candidate.

The kernels are GEMM, attention and mixture-of-experts kernels of TensorRT-LLM, vLLM and SGLang from aiconfigurator's
tables. Whole shapes are held out, on every GPU and of every framework and version. ``--leave-out siblings`` also holds
out the judged GPU and the GPUs of its generation. The comparison includes aiconfigurator's own answers from tables
without the same rows, nvMatmulHeuristics if it is installed, and PIPEWEAVE's published figures.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pandas as pd

from experiments.aiconfigurator_answers import answers, systems_folder
from experiments.experiment import HOME, ExperimentResult, in_one_line, write_outcome
from experiments.held_out import Round
from experiments.pages import shown
from experiments.todays_verdicts import AICONFIGURATOR, BEST_SINGLE, HEURISTICS, NEAREST_BEST_SINGLE, verdicts
from surrogate import InputError, read_dataset, write_dataset
from surrogate.dataset.problems import joined, shape_names
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.splits import fold_labels
from surrogate.features.families import FAMILIES, Family
from surrogate.formats import aiconfigurator
from surrogate.models.baselines import AlwaysBestSingle
from surrogate.models.calibrated import fit_correction
from surrogate.models.interpolated import InterpolatedTerms
from surrogate.models.times import correction_columns
from surrogate.report.charts import dots

TABLES = HOME.parent / "out"
FOLDS = 6
JUDGED = {"operator": ("gemm", "attention", "moe"), "phase": ("context", "generation")}
"""Problems that aiconfigurator's SDK answers. The others are used for training only."""
SIBLINGS = ({"h100-sxm", "h200-sxm"}, {"b200", "b300", "gb200", "gb300"})
CALIBRATED = (10, 50, 200)
"""Numbers of problems measured on a GPU that training lacks."""
HEURISTICS_MIN_US = 50.0
"""nvMatmulHeuristics ignores the launch, so it is judged only above this time."""
PUBLISHED = {"gemm": "median error 4.1 %, mean 8.4 %, fp8 3.9 %", "attention": "error 15.5 %", "moe": "no figure"}
"""Figures of PIPEWEAVE's authors for their model, on their own rows."""
Scores = dict[str, np.ndarray]


def rounds(
    frame: pd.DataFrame, kind: Family, gpus: list[str], judge: list[str], siblings: bool, count: int, seed: int
) -> Iterator[Round]:
    """Yield ``count`` of the folds by shape, each with all judged GPUs, or with one judged GPU and without its
    siblings."""
    label, boards = fold_labels(shape_names(frame, kind), FOLDS, seed), frame["gpu"].astype(str).to_numpy()
    is_judged = np.ones(len(frame), dtype=bool)
    for column in set(JUDGED) & set(frame):
        is_judged &= frame[column].isin(JUDGED[column]).to_numpy()
    for fold in range(count):
        for tested in [[name] for name in judge] if siblings else [judge]:
            left_out = set(tested).union(*(part for part in SIBLINGS if set(tested) & part)) if siblings else set()
            train = (label != fold) & np.isin(boards, sorted(set(gpus) - left_out))
            yield np.flatnonzero(train), np.flatnonzero((label == fold) & is_judged & np.isin(boards, tested))


def unseen_gpu(frame: pd.DataFrame, train: Rows, test: Rows, model: InterpolatedTerms) -> Scores:
    """Return the scores of reference predictors on a GPU without training rows.

    - The best single candidate of this GPU, from its other shapes.
    - The best single candidate of the nearest GPU.
    - The nearest GPU's time of the same row, scaled by the roofline.
    - The model, corrected by measured problems of other shapes on this GPU.

    All except the second use rows that the model does not have.
    """
    kind, same_gpu = test.family, frame[frame["gpu"].isin(test.frame["gpu"].unique()).to_numpy()]
    same_gpu = same_gpu[~np.isin(shape_names(same_gpu, kind), shape_names(test.frame, kind))]
    own_rows = rows_of(same_gpu.reset_index(drop=True), kind)
    best_single = AlwaysBestSingle().fit(own_rows)
    near, on_nearest = nearest(test, sorted(train.frame["gpu"].astype(str).unique()))
    near_best_single = AlwaysBestSingle().fit(train.take((train.frame["gpu"] == near).to_numpy()))
    # The framework's version may differ.
    columns = [name for name in kind.row_key if name not in ("gpu", "library_version")]
    rows = frame[(frame["gpu"] == near).to_numpy()]
    times = rows["time_us"].groupby(joined(rows, columns).to_numpy()).median()
    copied = times.reindex(joined(test.frame, columns)).to_numpy() * test.roofline_us / on_nearest.roofline_us
    ranks = {BEST_SINGLE: best_single.predict(test), NEAREST_BEST_SINGLE: near_best_single.predict(on_nearest)}
    problems = np.random.default_rng(0).permutation(np.unique(own_rows.problem))
    base_us, x = model.predict(test), test.columns(correction_columns(kind))
    for count in (count for count in CALIBRATED if count <= len(problems)):
        part = own_rows.take(np.isin(own_rows.problem, problems[:count]))
        factor = fit_correction(part, model.predict(part))[0].log_factor(x, test.candidate, base_us)
        ranks[f"calibrated by {count} problems"] = base_us * np.exp(factor)
    return {**ranks, "copy of the nearest GPU": copied}


def nearest(test: Rows, gpus: list[str]) -> tuple[str, Rows]:
    """Return the GPU whose rooflines differ least in log time for these rows, and the rows with that GPU."""
    moved = {name: rows_of(test.frame.assign(gpu=name), test.family, test.devices) for name in gpus}
    apart = {name: np.abs(np.log(rows.roofline_us / test.roofline_us)).mean() for name, rows in moved.items()}
    name = min(apart, key=lambda each: apart[each])
    return name, moved[name]


def others(python: str, train: Rows, test: Rows) -> tuple[Scores, str]:
    """Return the answers of aiconfigurator and nvMatmulHeuristics for the tested rows, and a note on them."""
    try:
        answered, complaint = answers(python, train.frame, test.frame, test.family)
    except InputError as error:
        return {}, str(error)
    bound = test.time_us >= HEURISTICS_MIN_US
    shares = answered["mode"].replace("", "refused").value_counts(normalize=True)
    modes = ", ".join(f"{mode} {share:.1%}" for mode, share in shares.items())
    scores = {AICONFIGURATOR: answered["time_us"].to_numpy()}
    if answered["heuristics_us"].notna().any():
        scores[HEURISTICS] = np.where(bound, answered["heuristics_us"], np.nan)
    return scores, f"aiconfigurator's answers: {modes}{complaint and f' ({complaint})'}"


def measured(table: Path, family: str, python: str, judged: list[str]) -> pd.DataFrame:
    """Return the family's rows. If the file is missing, import them from the package of the interpreter ``python``."""
    if not table.exists():
        table.parent.mkdir(parents=True, exist_ok=True)
        imported = aiconfigurator.read([systems_folder(python)], family=family)
        write_dataset(imported.rows, table, candidates=imported.candidates, metadata=imported.metadata)
    frame = read_dataset(table).frame
    available = sorted(frame["gpu"].unique())
    for name in set(judged) - set(available):
        raise InputError(f"--judge {name}: {table} has no such GPU; give one of {', '.join(available)}")
    return frame


def predicted(
    frame: pd.DataFrame, part: Round, model: InterpolatedTerms, python: str, siblings: bool
) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """Return the tested rows, every predictor's scores of them, and a note on aiconfigurator's answers."""
    train, test = (rows_of(frame.iloc[index].reset_index(drop=True)) for index in part)
    model.fit(train)
    scores = {model.name: model.predict(test), model.terms_.name: model.terms_.predict(test)}
    if siblings:
        further = unseen_gpu(frame, train, test, model)
        reason = "aiconfigurator has no table of a GPU that is left out"
    else:
        scores[BEST_SINGLE] = AlwaysBestSingle().fit(train).predict(test)
        further, reason = others(python, train, test)
    return test.frame, pd.DataFrame(scores | further), reason


def judgement(parts: list[tuple[pd.DataFrame, pd.DataFrame, str]], family: str) -> ExperimentResult:
    """Return the table of all rounds, its figure and a note."""
    frames, scored, reasons = zip(*parts, strict=True)
    scores = pd.concat(scored, ignore_index=True)
    rows = rows_of(pd.concat(frames, ignore_index=True))
    table = verdicts(rows, {name: scores[name].to_numpy() for name in scores})
    all_rows = table[(table["part"] == "all") & (table["frameworks"] == "all")]
    raw = all_rows[all_rows["population"] == "raw"]
    arms = ("median_low", "median_high")
    figure = dots(raw, "gpu", "model", "median_error_pct", "median error, %", arms=arms)
    if AICONFIGURATOR not in scores:
        absent = pd.DataFrame([{"model": AICONFIGURATOR, "n": 0, "reason": reasons[0]}])
        table = pd.concat([table, absent], ignore_index=True)
    published = f"PIPEWEAVE, as published: {PUBLISHED[family]}"
    return ExperimentResult(table, figure, ". ".join([*dict.fromkeys(filter(None, reasons)), published]))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--family", type=click.Choice(list(PUBLISHED)), required=True)
@click.option(
    "--table", type=click.Path(path_type=Path), help="Imported table; if it is missing, it is written to out/."
)
@click.option("--folds", type=click.IntRange(1, FOLDS), help=f"How many of {FOLDS} are judged: 1, of moe all.")
@click.option("--gpus", default="", metavar="A,B", help="GPUs for training; by default all of the table.")
@click.option("--judge", default="h100-sxm,b200", metavar="A,B", help="GPUs to judge.")
@click.option("--leave-out", default="none", type=click.Choice(["none", "siblings"]), show_default=True)
@click.option("--most-rows", default=InterpolatedTerms().most_rows, help="Maximum rows for the fit of trees.")
@click.option(
    "--aiconfigurator-python", "python", default=sys.executable, help="Interpreter with aiconfigurator's SDK."
)
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=HOME, help="Folder of tables/ and figures/.")
def main(
    family: str,
    table: Path | None,
    folds: int | None,
    gpus: str,
    judge: str,
    leave_out: str,
    most_rows: int,
    python: str,
    seed: int,
    out: Path,
) -> None:
    """Compare the predictors on one family of current kernels."""
    siblings = leave_out == "siblings"
    name = f"todays_{family}{'_siblings' if siblings else ''}"
    judged = judge.split(",")
    with in_one_line(name):
        frame = measured(table or TABLES / f"aiconfigurator_{family}.parquet", family, python, judged)
        trained = gpus.split(",") if gpus else sorted(frame["gpu"].unique())
        frame = frame[frame["gpu"].isin({*trained, *judged}).to_numpy()].reset_index(drop=True)
        model = InterpolatedTerms(most_rows=most_rows, random_state=seed)
        count = folds or (FOLDS if family == "moe" else 1)
        parts = [
            predicted(frame, part, model, python, siblings)
            for part in rounds(frame, FAMILIES[family], trained, judged, siblings, count, seed)
        ]
        outcome = judgement(parts, family)
        write_outcome(name, outcome, out)
    click.echo(f"{shown(name, out)}\n\n{outcome.note}")


if __name__ == "__main__":
    main(prog_name="python -m experiments.todays_kernels")
