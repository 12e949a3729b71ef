"""``seer predict``: the time of one problem, or of every row of a table."""

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import PATH, Form, option, output_option, output_options, print_written, show
from surrogate.cli.problem import FLAGS, Options, open_predictor, problem_options, read_problem, settings_of, with_notes
from surrogate.features.errors import InputError, RowError

ADDED = ("predicted_us", "lower_us", "upper_us", "in_domain", "supported")
"""Columns that a table gets."""
MAX_NOTES = 10
"""Caveats of a table that are printed, those of most rows first."""


@click.command(context_settings=FLAGS)
@problem_options
@option("--algorithm", "The algorithm to predict. [the fastest]", metavar="NAME")
@option("--data", "A table of problems and algorithms: parquet, CSV or JSON.", PATH)
@output_option("The table to write, with --data; - for CSV on standard output.", required=False)
@output_options
def command(
    problem: tuple[str, ...], algorithm: str | None, data: Path | None, output: Path | None, form: Form, **options: Any
) -> None:
    """Predict the time of PROBLEM (as `seer select` takes it), or of every row of a table, with 90 % intervals.

    Of a table all rows and columns are kept in order; neither status nor time need to be in it. Added are predicted_us,
    lower_us and upper_us, in_domain (sizes, device and setting lie within what training saw) and supported (the
    algorithm is expected to run). A row names its problem by a column problem, by operator and sizes, or by sizes alone
    (n,c,h,k,r or m,n,k). The options hold for rows that do not say their setting. Without a column algorithm the
    fastest is added. Of a kernel of your own its parameters name the configuration, without them the fastest is added;
    so is source (measured, model or similar-gpu). Caveats are printed, with the number of rows that each is of. From
    parquet to parquet a table of any length goes through in bounded memory.

    Examples:
      seer predict --gpu v100 n32c256h14k256r3p1
      seer predict --gpu t4 --data table.parquet -o predicted.parquet
    """
    if data is None:
        if output is not None:
            raise InputError("-o goes with --data TABLE; one problem's prediction is printed")
        asked, predictor = read_problem(problem, options)
        predicted = predictor.predict(asked, algorithm, library_version=options["library_version"])
        whole = with_notes(predicted.to_dict(), options["gpu"])
        show([whole], form, json_value=whole, table=predicted.table())
        return
    if problem or output is None:
        raise InputError("--data TABLE needs -o OUT (.parquet, .csv, .json; - prints CSV), and no PROBLEM beside it")
    if form:
        raise InputError("--json and --csv go with one PROBLEM; a table is written as -o OUT.json or -o OUT.csv")
    print_written(output, _predict_table(data, output, algorithm, options))


def _predict_table(data: Path, output: Path, algorithm: str | None, options: Options) -> str:
    """Write the table with five columns more, and ``algorithm`` where the fastest had to be found; a line about it.

    Raises `InputError` where the table lacks sizes or holds a violation, or the options contradict it.
    """
    from surrogate.cli.datasets import progress_bar
    from surrogate.dataset.tables import table_parts, table_writer

    predictor = open_predictor(options)
    settings = settings_of(options)
    done = in_domain = 0
    notes: Counter[str] = Counter()
    with (
        table_parts(data) as table,
        table_writer(output, {"schema": 1, **table.metadata}) as write,
        progress_bar("predict", unit="row") as progress,
    ):
        for frame in table.frames:
            if algorithm is not None and "algorithm" in frame:
                raise InputError(f"{data}: the table names its algorithms itself; leave --algorithm out")
            try:
                answers = predictor.predict(frame, algorithm, library_version=options["library_version"], **settings)
            except RowError as error:
                raise RowError(data, done + error.position, error.text) from None
            except InputError as error:
                raise InputError(f"{data}: {error}") from None
            added = [
                *ADDED,
                *(["source"] if predictor.bundle.described else []),
                *(["algorithm"] if "algorithm" not in frame else []),
            ]
            columns = answers.to_frame()[sorted(added, key=lambda name: name != "algorithm")].set_axis(frame.index)
            write(frame.drop(columns=added, errors="ignore").join(columns))
            done += len(frame)
            in_domain += int(columns["in_domain"].sum())
            notes.update(chain.from_iterable(answers.notes))
            progress(done, table.rows)
    first = [f"{rows:,} row{'s' * (rows != 1)}: {note}" for note, rows in notes.most_common(MAX_NOTES)]
    further = [f"{len(notes) - MAX_NOTES} more notes"] if len(notes) > MAX_NOTES else []
    return "\n".join([f"{output}: {done} rows, {in_domain} in domain", *first, *further])
