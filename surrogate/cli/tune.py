"""``seer tune``: search a model's settings, with any number of processes and machines."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surrogate.cli import options as shared
from surrogate.cli.options import HELP, Form, RowOptions, option, output_option, output_options, show

if TYPE_CHECKING:
    from surrogate.evaluation.hyperparameter_study import TuningOutcome


@click.command()
@option("--storage", HELP["tune"]["storage"], default="tune.journal", metavar="FILE|URL")
@option("--trials", "Total number of trials in the study, by all workers and runs.", shared.COUNT, required=True)
@option("--model", "The model to tune.  [default: boosted-terms; none for your own kernel]", default="", metavar="NAME")
@option("--objective", HELP["tune"]["objective"], ("time", "choice", "both"), default="both")
@shared.training_options
@option("--timeout timeout_minutes", "Start no trial after this time.", shared.POSITIVE, metavar="MINUTES")
@option("--study", "Name of the study; by default it names model, objective and data.", metavar="NAME")
@output_option("Write the best settings for `seer train --params`.", required=False)
@output_options
def command(
    data: tuple[Path, ...], rows: RowOptions, storage: str, output: Path | None, form: Form, **settings: Any
) -> None:
    """Search settings of a model on DATA, judged on held-out shapes of DATA. The stored settings are tried first.

    Start the same command any number of times, on any machine that reaches the storage. All processes share one study
    until it has --trials finished trials. The same command resumes an interrupted search; a larger number adds trials.
    If a worker was killed, another trial replaces its trial; a database tries its settings again. The search sees all
    of DATA, so hold back the rows for the final judgement (--where).

    Examples:
      seer tune run.parquet --trials 50 -o best.json
      seer tune run.parquet --storage sqlite:///study.db --trials 50
    """
    from surrogate.cli.datasets import load_datasets, progress_bar
    from surrogate.evaluation.hyperparameter_study import TuneOptions, tune, without_password, write_settings
    from surrogate.models import model_class

    dataset = load_datasets(data, *rows)
    note = f"finished trials are kept in {without_password(storage)}; the same command resumes the search"
    with progress_bar("tune", "trial", note) as step:
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
        shared.echo(*_summary(result).split("\n"))
        if output is not None:
            shared.echo(f"{output}: pass it to `seer train --params {output}`")


def _summary(result: "TuningOutcome") -> str:
    """Return the number of trials in the study, and the losses of the best settings."""
    counts = result.trials
    losses = {
        "stored settings": result.stored_value,
        "log error of times": result.time_loss,
        "mean absolute log error": result.absolute_loss,
        "log slowdown of choices": result.choice_loss,
    }
    further = "".join(f"; {name} {value:.5f}" for name, value in losses.items() if value is not None)
    states = f"{counts['complete']} trials, {counts['pruned']} stopped early, {counts['running']} still running"
    return f"\nstudy {result.study} in {result.storage}: {states}\n{result.objective}: best {result.value:.5f}{further}"
