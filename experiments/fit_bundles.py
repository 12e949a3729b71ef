"""The bundles that ship, fitted on public tables: ``python -m experiments.fit_bundles DATA_DIR OUT``."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surrogate.dataset.splits import fold_of_names, shape_names
from surrogate.dataset.store import Dataset
from surrogate.features.errors import InputError

if TYPE_CHECKING:
    from surrogate.bundle.bundle import Bundle


@dataclass(frozen=True)
class Plan:
    """One bundle: its ``files``, how they list ``candidates``, filters, settings, and the ``share`` of shapes used.

    The share keeps fits of half a million rows to minutes and bundles to megabytes; `seer train` takes everything.
    """

    files: tuple[str, ...]
    candidates: str | None
    notices: tuple[str, ...]
    where: tuple[str, ...] = ()
    share: int = 1
    settings: dict[str, Any] = field(default_factory=dict)


SHORT = {"trees.rounds": 400, "trees.learning_rate": 0.07}
"""Fewer trees at a higher rate than the default: half the bytes and time; the cards tell the errors."""
FEW_TREES = {
    "process_share": 0.5,
    "trees.rounds": 150,
    "trees.learning_rate": 0.12,
    "trees.colsample_bynode": 0.5,
    "trees.subsample": 0.8,
}
"""Each tree fitted to more of the rows and columns, and a larger share for the process, whose answer takes less time:

on the cuDNN table's held-out shapes as good as `SHORT`; on MIOpen's worse (slowdown 1.048 against 1.046).
"""
PLANS = {
    "cudnn7": Plan(
        ("cudnn_conv_per_algorithm.parquet", "cudnn_conv_partial_networks.parquet"),
        None,
        (
            "Fitted on measurements of rai-project/dlperf (University of Illinois/NCSA Open Source License).",
            "Fitted on measurements of c3sr/scope (Apache License 2.0).",
        ),
        settings=FEW_TREES,
    ),
    "miopen": Plan(
        tuple(f"miopen_conv_{name}.parquet" for name in ("mi210", "mi100", "mi300x", "navi21")),
        "listed",
        ("Fitted on the find databases of ROCm/MIOpen (MIT License).",),
        ("layout=NCHW", "dtype=fp32,fp16,bf16"),
        share=8,
        settings=SHORT,
    ),
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("data", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--only", type=click.Choice(list(PLANS)), multiple=True, help="These bundles; all by default.")
@click.option(
    "--cards-only",
    is_flag=True,
    help="Keep the models of OUT; measure `unseen_gpu_factor` again for their cards.",
)
def main(data: Path, out: Path, only: tuple[str, ...], cards_only: bool) -> None:
    """Fit every bundle on the public tables in DATA and write it as a folder below OUT."""
    from surrogate.bundle.bundle import load, save
    from surrogate.bundle.training import train
    from surrogate.cli.datasets import load_all, progress_bar

    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in only or PLANS:
            plan = PLANS[name]
            table = sampled(
                load_all([data / file for file in plan.files], plan.candidates, plan.where), plan.share
            )
            table = replace(table, metadata={**table.metadata, "licence_notices": list(plan.notices)})
            if cards_only:
                made = with_factor(load(out / name), table)
                save(made, out / name)
                click.echo(f"{out / name}: unseen_gpu_factor {made.unseen_gpu_factor}")
                continue
            step, close = progress_bar(name)
            try:
                made = train(table, model="blend", params=plan.settings, progress=step)
            finally:
                close()
            save(made, out / name)
            size = sum(file.stat().st_size for file in (out / name).rglob("*") if file.is_file())
            click.echo(f"{out / name}: {made.card['data']['ok_rows']} rows, {size / 1e6:.2f} MB")
    except InputError as error:
        click.echo(f"fit_bundles: {error}", err=True)
        sys.exit(2)


def with_factor(bundle: "Bundle", table: Dataset) -> "Bundle":
    """The bundle with `unseen_gpu_factor` measured on ``table``, which it was fitted on, in its card."""
    from surrogate.bundle.card import rounded
    from surrogate.dataset.candidates import candidate_frame
    from surrogate.dataset.rows import rows_of
    from surrogate.models import model_class
    from surrogate.uncertainty.unseen_gpu import unseen_gpu_factor

    rows = rows_of(candidate_frame(table, bundle.candidate), table.devices)
    factor = unseen_gpu_factor(rows, bundle.widths, model_class(bundle.model.name)(**bundle.model.params))
    return replace(bundle, card={**bundle.card, **rounded({"unseen_gpu_factor": factor})})


def sampled(table: Dataset, share: int) -> Dataset:
    """Every ``share``-th shape of a table, drawn by a seeded hash."""
    if share == 1:
        return table
    names = shape_names(table.frame)
    fold_of = fold_of_names(names, share, 0)
    return table.with_frame(table.frame[[fold_of[name] == 0 for name in names]].reset_index(drop=True))


if __name__ == "__main__":
    main(prog_name="python -m experiments.fit_bundles")
