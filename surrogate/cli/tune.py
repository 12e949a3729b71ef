"""``seer tune``: search a model's settings, alone or with any number of processes and machines."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surrogate.cli.options import (
    COUNT,
    POSITIVE,
    Form,
    RowOptions,
    option,
    output_option,
    output_options,
    show,
    training_options,
)

if TYPE_CHECKING:
    from surrogate.evaluation.study import TuningOutcome


@click.command()
@option(
    "--storage",
    "Where the study lives: a journal file, journal:///PATH, sqlite:///PATH or postgresql://USER@HOST/DATABASE.",
    default="tune.journal",
    metavar="FILE|URL",
)
@option("--trials", "Trials of the study in all, by all workers and runs together.", COUNT, required=True)
@option("--model", "The model to tune.", default="boosted-terms", metavar="NAME")
@option(
    "--objective",
    "Minimise the log error of times, the log slowdown of choices, or the slowdown and half the mean error.",
    ("time", "choice", "both"),
    default="both",
)
@training_options
@option("--timeout timeout_minutes", "Begin no trial after this time.", POSITIVE, metavar="MINUTES")
@option("--study", "The study's name; by default made of model, objective and data.", metavar="NAME")
@output_option("Write the best settings for `seer train --params`.", required=False)
@output_options
def command(
    data: tuple[Path, ...], rows: RowOptions, storage: str, output: Path | None, form: Form, **settings: Any
) -> None:
    """Search settings of a model on DATA, valued on shapes held out within it; the stored settings are tried first.

    Start the same command as often as you like, on any machine that reaches the storage: all share one study, until it
    has --trials finished ones. An interrupted command is resumed by the same command; a larger number adds trials. If a
    worker was killed, another trial takes the place of its own; in a database its settings are tried again.
    Hold back the rows that are to judge the result (--where): the search sees all of DATA.

    Examples:
      seer tune run.parquet --trials 50 -o best.json
      seer tune run.parquet --storage sqlite:///study.db --trials 50
    """
    from surrogate.cli.datasets import load_datasets, note_on_interrupt, progress_bar
    from surrogate.evaluation.study import TuneOptions, tune, without_password, write_settings
    from surrogate.models import model_class

    dataset = load_datasets(data, *rows)
    note = f"finished trials are kept in {without_password(storage)}; the same command goes on"
    with note_on_interrupt(note), progress_bar("tune", "trial") as step:
        result = tune(dataset, TuneOptions(storage=storage, **settings), step)
    if output is not None:
        write_settings(result.settings(), output)
    stored = model_class(result.model)().get_params()
    records = [
        {"setting": name, "best": value, "stored": stored[name], "importance": result.importance.get(name)}
        for name, value in result.params.items()
    ]
    show(records, form, json_value=result.to_dict())
    if not form:
        click.echo(_summary(result))
        if output is not None:
            click.echo(f"{output}: use it with `seer train --params {output}`")


def _summary(result: "TuningOutcome") -> str:
    """How many trials the study has, and the losses of the best settings."""
    counts = result.trials
    losses = {
        "stored settings": result.stored_value,
        "log error of times": result.time_loss,
        "mean absolute log error": result.absolute_loss,
        "log slowdown of choices": result.choice_loss,
    }
    further = "".join(f"; {name} {value:.5f}" for name, value in losses.items() if value is not None)
    states = f"{counts['complete']} trials, {counts['pruned']} ended early, {counts['running']} still running"
    return f"\nstudy {result.study} in {result.storage}: {states}\n{result.objective}: best {result.value:.5f}{further}"
