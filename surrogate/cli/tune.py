"""``seer tune``: search a model's settings, alone or with any number of processes and machines."""

from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import (
    candidate_option,
    candidates_option,
    device_option,
    output_options,
    where_option,
)


@click.command()
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--storage",
    default="tune.journal",
    show_default=True,
    metavar="FILE|URL",
    help="Where the study lives: a journal file, journal:///PATH, sqlite:///PATH or postgresql://USER@HOST/DATABASE.",
)
@click.option(
    "--trials",
    required=True,
    type=click.IntRange(min=1),
    help="Trials of the study in all, by all workers and runs together.",
)
@click.option(
    "--model", metavar="NAME", default="boosted-terms", show_default=True, help="The model to tune."
)
@click.option(
    "--objective",
    type=click.Choice(["time", "choice", "both"]),
    default="both",
    show_default=True,
    help="Minimise the log error of times, the log slowdown of choices, or the slowdown and half the mean error.",
)
@candidate_option
@candidates_option
@where_option
@device_option
@click.option("--seed", default=0, show_default=True, help="Seed of folds, sampling and search.")
@click.option(
    "--timeout",
    "timeout_minutes",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MINUTES",
    help="Begin no trial after this time.",
)
@click.option(
    "--study", metavar="NAME", help="The study's name; by default made of model, objective and data."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write the best settings for `seer train --params`.",
)
@output_options
def command(
    data: tuple[Path, ...],
    storage: str,
    trials: int,
    model: str,
    objective: str,
    candidate: str,
    candidates: str | None,
    where: tuple[str, ...],
    device: str,
    seed: int,
    timeout_minutes: float | None,
    study: str | None,
    output: Path | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Search settings of a model on DATA, valued on shapes held out within it; the stored settings are tried first.

    Start the same command as often as you like, on any machine that reaches the storage: all share one study, until it
    has --trials finished ones. An interrupted command is resumed by the same command; a larger number adds trials. On
    SQLite and PostgreSQL a trial whose worker was killed is tried again.
    Hold back the rows that are to judge the result (--where): the search sees all of DATA.
    """
    from surrogate.cli.datasets import load_all, progress_bar
    from surrogate.cli.options import show
    from surrogate.evaluation.tune import shown, tune, write_settings

    dataset = load_all(data, candidates, where)
    progress, close = progress_bar("tune")
    try:
        found = tune(
            dataset,
            trials=trials,
            model=model,
            storage=storage,
            study=study,
            objective=objective,
            candidate=candidate,
            seed=seed,
            device=device,
            timeout_minutes=timeout_minutes,
            progress=progress,
        )
    except KeyboardInterrupt as stop:
        stop.add_note(f"finished trials are kept in {shown(storage)}; the same command goes on")
        raise
    finally:
        close()
    if output is not None:
        write_settings(found.settings(), output)
    show(_records(found), as_json=as_json, as_csv=as_csv, whole=found.to_dict())
    if not (as_json or as_csv):
        click.echo(_summary(found, output))


def _records(found: Any) -> list[dict[str, Any]]:
    """A row per setting: the best value, the stored one, how much it matters."""
    from surrogate.models import model_class

    stored = model_class(found.model)().get_params()
    return [
        {
            "setting": name,
            "best": value,
            "stored": stored[name],
            "importance": found.importance.get(name),
        }
        for name, value in found.params.items()
    ]


def _summary(found: Any, output: Path | None) -> str:
    counts = found.trials
    lines = [
        f"\nstudy {found.study} in {found.storage}: {counts['complete']} trials, {counts['pruned']} ended early"
        + (f", {counts['running']} still running elsewhere" if counts["running"] else "")
    ]
    stored = "" if found.stored_value is None else f", stored settings {found.stored_value:.5f}"
    lines.append(
        f"{found.objective}: best {found.value:.5f}{stored}; log error of times {found.time_loss:.4f}"
    )
    if found.choice_loss is not None:
        lines[-1] += f", log slowdown of choices {found.choice_loss:.5f}"
    if found.objective == "both":
        lines[-1] += f" (best is the slowdown + half the absolute error, {found.absolute_loss:.4f})"
    if output is not None:
        lines.append(f"{output}: use it with `seer train --params {output}`")
    return "\n".join(lines)
