"""``seer predict``: the times of a table of problems."""

from pathlib import Path

import click


@click.command()
@click.option(
    "--bundle",
    required=True,
    type=click.Path(path_type=Path),
    help="The fitted model, a folder made by `seer train`.",
)
@click.option(
    "--data", required=True, type=click.Path(path_type=Path), help="Parquet table of problems and algorithms."
)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The parquet file to write."
)
def command(bundle: Path, data: Path, output: Path) -> None:
    """Predict the time of every row of a table; neither status nor time need to be in it.

    All rows and columns are kept in order; added are predicted_us, lower_us and upper_us (90 % interval), in_domain
    (sizes, device and setting lie within what training saw) and supported (the algorithm is expected to run).
    """
    from surrogate.bundle import load
    from surrogate.dataset.store import devices_in, read_problems, read_table, write_parquet

    model = load(bundle)
    original, metadata = read_table(data)
    predicted = model.predict(read_problems(data), devices_in(metadata))
    predicted.index = original.index
    out = original.drop(columns=predicted.columns, errors="ignore").join(predicted)
    write_parquet(out, output, {"schema": 1, **metadata})
    click.echo(f"{output}: {len(out)} rows, {int(predicted['in_domain'].sum())} in domain")
