"""``seer predict``: the time of one problem, or of every row of a table."""

from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import PATH, board_notes, option, output_option, output_options, said, show
from surrogate.cli.problem import FLAGS, open_predictor, problem_argument, problem_options, read_problem, settings_of

ADDED = ("predicted_us", "lower_us", "upper_us", "in_domain", "supported")
"""Columns that a table gets."""


@click.command(context_settings=FLAGS)
@problem_argument
@problem_options
@option("--algorithm", "The algorithm to predict. [the fastest]", metavar="NAME")
@option("--data", "A table of problems and algorithms: parquet, CSV or JSON.", PATH)
@output_option("The table to write, with --data; - for CSV on standard output.", required=False)
@output_options
def command(
    problem: tuple[str, ...], algorithm: str | None, data: Path | None, output: Path | None, as_json: bool,
    as_csv: bool, **options: Any,
) -> None:  # fmt: skip
    """Predict the time of PROBLEM (as `seer select` takes it), or of every row of a table, with 90 % intervals.

    Of a table all rows and columns are kept in order; neither status nor time need to be in it. Added are predicted_us,
    lower_us and upper_us, in_domain (sizes, device and setting lie within what training saw) and supported (the
    algorithm is expected to run). Columns n, c, h, k and r must be there; the options and a problem's defaults stand in
    for others, and without a column algorithm the fastest is added.

    Examples:
      seer predict --gpu v100 n32c256h14k256r3p1
      seer predict --gpu t4 --data table.parquet -o predicted.parquet
    """
    from surrogate.features.errors import InputError

    if data is None:
        if output is not None:
            raise InputError("-o goes with --data TABLE; one problem's prediction is printed")
        asked, predictor = read_problem(problem, options)
        predicted = predictor.predict(asked, algorithm, library_version=options["library_version"])
        whole = predicted.to_dict()
        whole["notes"] = board_notes(options["gpu"]) + whole["notes"]
        show([whole], as_json=as_json, as_csv=as_csv, whole=whole, table=predicted.table())
        return
    if problem or output is None:
        raise InputError("--data TABLE needs -o OUT (.parquet, .csv, .json; - prints CSV), and no PROBLEM beside it")
    if as_json or as_csv:
        raise InputError("--json and --csv go with one PROBLEM; a table is written as -o OUT.json or -o OUT.csv")
    said(output, _predict_table(data, output, algorithm, options))


def _predict_table(data: Path, output: Path, algorithm: str | None, options: dict[str, Any]) -> str:
    """Write the table with five columns more, and ``algorithm`` where the fastest had to be found; a line about it.

    Raises `InputError` where the table lacks sizes or holds a violation, or the options contradict it.
    """
    from surrogate.dataset.tables import form_of, read_table, write_table
    from surrogate.features.errors import InputError

    form_of(output)  # a wrong name is told before the work
    predictor = open_predictor(options)
    original, metadata = read_table(data)
    if algorithm is not None and "algorithm" in original:
        raise InputError(f"{data}: the table names its algorithms itself; leave --algorithm out")
    given = {name: value for name, value in settings_of(options).items() if name not in original}
    try:
        predicted = predictor.predict(original.assign(**given), algorithm, library_version=options["library_version"])
    except InputError as error:
        raise InputError(f"{data}: {error}") from None
    added = [*ADDED, *(["algorithm"] if "algorithm" not in original else [])]
    columns = predicted.to_frame()[sorted(added, key=lambda name: name != "algorithm")]
    columns.index = original.index
    out = original.drop(columns=added, errors="ignore").join(columns)
    write_table(out, output, {"schema": 1, **metadata})
    return f"{output}: {len(out)} rows, {int(columns['in_domain'].sum())} in domain"
