"""``seer predict``: the time of one problem, or of every row of a table."""

from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import board_notes, output_options, show
from surrogate.cli.problem import (
    FLAGS,
    open_predictor,
    problem_argument,
    problem_options,
    read_problem,
    settings_of,
)

ADDED = ("predicted_us", "lower_us", "upper_us", "in_domain", "supported")
"""Columns that a table gets."""


@click.command(context_settings=FLAGS)
@problem_argument
@problem_options
@click.option("--algorithm", metavar="NAME", help="The algorithm to predict. [the fastest]")
@click.option("--data", type=click.Path(path_type=Path), help="Parquet or CSV table of problems and algorithms.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The parquet file to write, with --data.")
@output_options
def command(
    problem: tuple[str, ...],
    algorithm: str | None,
    data: Path | None,
    output: Path | None,
    as_json: bool,
    as_csv: bool,
    **options: Any,
) -> None:
    """Predict the time of PROBLEM (as `seer select` takes it), or of every row of a table, with 90 % intervals.

    Of a table all rows and columns are kept in order; neither status nor time need to be in it. Added are predicted_us,
    lower_us and upper_us, in_domain (sizes, device and setting lie within what training saw) and supported (the
    algorithm is expected to run). Columns n, c, h, k and r must be there; the options and a problem's defaults stand in
    for others, and without a column algorithm the fastest is added.

    Examples: seer predict --gpu v100 n32c256h14k256r3p1;
    seer predict --bundle BUNDLE --data TABLE.parquet -o OUT.parquet

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
        raise InputError("--data TABLE needs -o OUT.parquet, and no PROBLEM beside it")
    if as_json or as_csv:
        raise InputError("--json and --csv go with one PROBLEM; of a table OUT.parquet holds all")
    if output.suffix.lower() in (".csv", ".tsv", ".json", ".jsonl"):
        raise InputError(f"{output}: what is written is parquet; name it OUT.parquet")
    click.echo(_predict_table(data, output, algorithm, options))


def _predict_table(data: Path, output: Path, algorithm: str | None, options: dict[str, Any]) -> str:
    """Write the table with five columns more, and ``algorithm`` where the fastest had to be found; a line about it.

    Raises `InputError` where the table lacks sizes or holds a violation, or the options contradict it.
    """
    from surrogate.dataset.store import read_table, write_parquet
    from surrogate.features.errors import InputError

    predictor = open_predictor(options)
    original, metadata = _read_csv(data) if data.suffix.lower() in (".csv", ".tsv") else read_table(data)
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
    write_parquet(out, output, {"schema": 1, **metadata})
    return f"{output}: {len(out)} rows, {int(columns['in_domain'].sum())} in domain"


def _read_csv(path: Path) -> tuple[Any, dict[str, Any]]:
    import pandas as pd

    from surrogate.features.errors import InputError

    try:
        return pd.read_csv(path, sep="," if path.suffix.lower() == ".csv" else "\t"), {}
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None
