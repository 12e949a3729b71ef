"""Operator models from a folder of public tables: ``python -m experiments.fit_operators DATA_DIR BUNDLE``."""

import sys
from pathlib import Path

import click

from surrogate.features.errors import InputError
from surrogate.operators import save_operators, train_operators

TABLES = (
    "cudnn_other_ops.parquet",
    "cudnn_other_ops_p100_v100.parquet",
    "dense_ops.parquet",
    "deepbench_gemm.parquet",
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("data", type=click.Path(path_type=Path))
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--seed", default=0, show_default=True, help="Of folds and fits.")
def main(data: Path, bundle: Path, seed: int) -> None:
    """Fit boosted trees and networks on the operator tables in DATA and write the BUNDLE folder."""
    from tqdm import tqdm

    try:
        with tqdm(desc="fit operators", unit="fit", disable=None, leave=False) as bar:

            def step(done: int, total: int, text: str) -> None:
                bar.total, bar.n = total, done
                bar.set_postfix_str(text)

            made = train_operators([data / name for name in TABLES], seed=seed, progress=step)
        save_operators(made, bundle)
    except InputError as error:
        click.echo(f"fit_operators: {error}", err=True)
        sys.exit(2)
    size = sum(file.stat().st_size for file in bundle.iterdir())
    click.echo(f"{bundle}: {made!r}, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(prog_name="python -m experiments.fit_operators")
