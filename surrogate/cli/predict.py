"""``seer predict``: the time of one problem, or of every row of a table."""

from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import output_options, show
from surrogate.cli.problem import FLAGS, open_predictor, problem_argument, problem_options, read_problem


@click.command(context_settings=FLAGS)
@problem_argument
@problem_options
@click.option("--algorithm", metavar="NAME", help="The algorithm to predict. [the fastest]")
@click.option("--data", type=click.Path(path_type=Path), help="Parquet table of problems and algorithms.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The parquet file to write, with --data."
)
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
    """
    from surrogate.features.errors import InputError

    if data is None:
        if output is not None:
            raise InputError("-o goes with --data TABLE; one problem's prediction is printed")
        conv = read_problem(problem, options)
        found = open_predictor(options).predict(conv, algorithm, library_version=options["library_version"])
        whole = found.to_dict()
        show([whole], as_json=as_json, as_csv=as_csv, whole=whole, table=found.table())
        return
    if problem or output is None:
        raise InputError("--data TABLE needs -o OUT.parquet, and no PROBLEM beside it")
    if as_json or as_csv:
        raise InputError("--json and --csv go with one PROBLEM; of a table OUT.parquet holds all")
    if output.suffix.lower() in (".csv", ".tsv", ".json", ".jsonl"):
        raise InputError(f"{output}: what is written is parquet; name it OUT.parquet")
    from surrogate.cli.predict_file import predict_file

    click.echo(predict_file(data, output, algorithm, options))
