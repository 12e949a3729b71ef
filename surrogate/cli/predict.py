"""``seer predict``: predict the time of one problem, or of every row of a table."""

from itertools import chain
from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import PATH, Form, option, output_option, output_options, print_written, show
from surrogate.cli.problem import FLAGS, Options, open_predictor, problem_options, read_problem, settings_of, with_notes
from surrogate.features import InputError, RowError

ADDED = ("predicted_us", "lower_us", "upper_us", "in_domain", "supported")
"""Columns that are added to a table."""
MAX_NOTES = 10
"""Maximum number of printed caveats of a table. The caveats of the most rows come first."""


@click.command(context_settings=FLAGS)
@problem_options
@option("--algorithm", "The algorithm to predict. [the fastest]", metavar="NAME")
@option("--data", "A table of problems and algorithms: parquet, CSV, JSON, or a problem a line.", PATH)
@output_option("The table to write, with --data; - for CSV on standard output.", required=False)
@output_options
def command(
    problem: tuple[str, ...], algorithm: str | None, data: Path | None, output: Path | None, form: Form, **options: Any
) -> None:
    """Predict the time of PROBLEM (as `seer select` takes it), or of every row of a table, with 90 % intervals.

    All rows and columns of a table are kept in their order; status and time are not needed. The command adds
    predicted_us, lower_us, upper_us, in_domain (sizes, device and setting lie within the training data) and
    supported (the algorithm is expected to run), source (the origin of the time) and, if it is missing, library. A
    row names its problem in a column problem, by operator and sizes, or by sizes only (n,c,h,k,r or m,n,k). The
    options apply to rows without a setting of their own. If there is no column algorithm, the fastest one is added.
    For a kernel of your own, the parameters name the configuration, or the fastest one is added. Each caveat is
    printed with its number of rows. From parquet to parquet, a table of any length needs bounded memory.

    Examples:
      seer predict --gpu v100 n32c256h14k256r3p1
      seer predict --gpu t4 --data table.parquet -o predicted.parquet
    """
    if data is None:
        if output is not None:
            raise InputError("-o needs --data TABLE; the prediction of one problem is printed")
        parsed, predictor = read_problem(problem, options)
        predicted = predictor.predict(parsed, algorithm, library_version=options["library_version"])
        record = with_notes(predicted.to_dict(), options["gpu"])
        show([record], form, json_value=record, table=predicted.table())
        return
    if problem or output is None:
        raise InputError("--data TABLE needs -o OUT (.parquet, .csv, .json; - prints CSV), and no PROBLEM")
    if form:
        raise InputError("--json and --csv need one PROBLEM; write a table with -o OUT.json or -o OUT.csv")
    print_written(output, _predict_table(data, output, algorithm, options))


def _predict_table(data: Path, output: Path, algorithm: str | None, options: Options) -> str:
    """Write the table with the `ADDED` columns, and ``algorithm`` if it had none. Return the lines to print.

    Raises `InputError` if the table lacks sizes, breaks a rule, or contradicts the options.
    """
    from surrogate.cli.datasets import progress_bar
    from surrogate.dataset.tables import table_writer
    from surrogate.prediction.results import NoteCounts
    from surrogate.prediction.table import problem_table

    predictor = open_predictor(options)
    settings = settings_of(options)
    done = in_domain = 0
    notes = NoteCounts()
    with (
        problem_table(data, predictor.bundle.described_family) as table,
        table_writer(output, {"schema": 1, **table.metadata}) as write,
        progress_bar("predict", unit="row") as progress,
    ):
        for frame in table.frames:
            if algorithm is not None and "algorithm" in frame:
                raise InputError(f"{data}: the table has a column algorithm; leave --algorithm out")
            try:
                answers = predictor.predict(frame, algorithm, library_version=options["library_version"], **settings)
            except RowError as error:
                raise RowError(data, done + error.position, error.text) from None
            except InputError as error:
                raise InputError(f"{data}: {error}") from None
            # A table that was predicted before gets a new source; other tables keep a column of that name.
            added = [*["algorithm"] * ("algorithm" not in frame), *ADDED]
            added += ["library"] * ("library" not in frame and not predictor.bundle.described_family)
            added += ["source"] * ("source" not in frame or "predicted_us" in frame)
            columns = answers.to_frame()[added].set_axis(frame.index)
            write(frame.drop(columns=added, errors="ignore").join(columns))
            done += len(frame)
            in_domain += int(columns["in_domain"].sum())
            notes.update(chain(*answers.notes, filter(None, answers.reason)))
            progress(done, table.rows)
    return "\n".join([f"{output}: {done} rows, {in_domain} in domain", *notes.lines("row", MAX_NOTES)])
