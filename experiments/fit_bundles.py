"""Build the package's data from the public tables: ``python -m experiments.fit_bundles [DATA [OUT]]``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pandas as pd

from experiments.experiment import HOME, Effort, in_one_line
from experiments.sources import DEFAULT_FOLDER, FILES, Sources, own_settings
from surrogate.dataset.checks import normalise
from surrogate.dataset.store import Dataset, read_dataset, write_dataset
from surrogate.features.algorithms import FASTEST
from surrogate.models import DEFAULT_MODEL

SHIPPED = HOME.parent / "surrogate" / "bundled"


@dataclass(frozen=True)
class Plan:
    """The plan of one bundle: its ``sources``, filters, ``candidate``, and number of ``shapes`` (None: all).

    A sample limits fits of half a million rows to minutes, and bundles to megabytes; `seer train` uses all rows. If
    ``notices`` is set, the sources are tables of operators, which do not state their licence. If ``family`` is set, the
    rows are that family's in the installed package aiconfigurator-core.
    """

    sources: Sequence[str] = ()
    notices: Sequence[str] = ()
    where: Sequence[str] = ()
    shapes: int | None = None
    candidate: str = "algorithm"
    family: str = ""
    model: str = DEFAULT_MODEL
    params: Mapping[str, Any] = field(default_factory=dict)

    def dataset(self, folder: Path) -> Dataset:
        """Return the rows to fit on. Raises `InputError` for a missing or damaged file."""
        from experiments.operator_tables import read_operator_tables
        from surrogate.cli.datasets import load_datasets
        from surrogate.formats import aiconfigurator

        if self.family:
            table = aiconfigurator.read([], family=self.family)
            fp16_rows = table.rows[(table.rows["dtype"] == "fp16") & (self.family == "transfer")]
            rows = pd.concat([table.rows, fp16_rows.assign(dtype="bf16")])
            metadata = {**table.metadata, "where": [BF16_NOTE] * (len(fp16_rows) > 0)}
            return Dataset(normalise(rows, self.family), table.candidates, self.family, metadata)
        paths = [folder / FILES[name][0] for name in self.sources]
        notices = {"licence_notices": list(self.notices)}
        if "winners" in self.sources:
            winners = Sources(folder).winners()
            return Dataset(winners.frame.assign(algorithm=FASTEST), winners.candidates, winners.name, notices)
        if self.notices:
            return Dataset(read_operator_tables(paths), "listed", ", ".join(path.name for path in paths), notices)
        rows = load_datasets(paths, None, self.where)
        return Effort().sample(rows, self.shapes) if self.shapes else rows


PLANS = {name: Plan(**plan) for name, plan in own_settings(__file__).items()}
BF16_NOTE = "rows of collectives in fp16 stand for bf16, too: both move as many bytes"
PRODUCTS = "tiled_products"
"""Name of the analytical model of AMD's matrix products."""
TABLES = {"cudnn_forward": "cudnn", "cudnn_partial": "partial"}
"""Default table of `seer compare` → its source."""


def write_forward_table(data: Path, source: str, path: Path) -> None:
    """Write the forward fp32 rows of a public cuDNN table with its metadata."""
    full_table = read_dataset(data / FILES[source][0])
    rows = full_table.frame[(full_table.frame["direction"] == "fwd") & (full_table.frame["dtype"] == "fp32")]
    write_dataset(rows, path, candidates=full_table.candidates, metadata=full_table.metadata)
    click.echo(f"{path}: {len(rows)} rows, {path.stat().st_size / 1e6:.2f} MB")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("data", type=click.Path(path_type=Path), default=DEFAULT_FOLDER)
@click.argument("out", type=click.Path(path_type=Path), default=SHIPPED)
@click.option("--only", type=click.Choice([PRODUCTS, *TABLES, *PLANS]), multiple=True, help="Build only these.")
def main(data: Path, out: Path, only: tuple[str, ...]) -> None:
    """Fit every bundle on the public tables in DATA (default: experiments/data) and write it as a folder in OUT.

    The default tables of `seer compare` and the analytical model of AMD's products are written, too. OUT defaults to
    the package's data folders.
    """
    from experiments.tiled_products import write
    from surrogate.bundle.bundle import save
    from surrogate.bundle.train import train
    from surrogate.cli.datasets import progress_bar

    with in_one_line("fit_bundles"):
        out.mkdir(parents=True, exist_ok=True)
        for name in only or (PRODUCTS, *TABLES, *PLANS):
            if name == PRODUCTS:
                write(Sources(data), HOME.parent / "features" / f"{PRODUCTS}.json")
                continue
            if name in TABLES:
                write_forward_table(data, TABLES[name], out / f"{name}.parquet")
                continue
            with progress_bar(name) as step:
                plan = PLANS[name]
                rows = plan.dataset(data)
                bundle = train(rows, model=plan.model, params=plan.params, candidate=plan.candidate, progress=step)
            save(bundle, out / name)
            size = sum(file.stat().st_size for file in (out / name).rglob("*") if file.is_file())
            click.echo(f"{out / name}: {bundle.card['data']['ok_rows']} rows, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(prog_name="python -m experiments.fit_bundles")
