"""``seer train``: datasets to a bundle."""

from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import candidate_option, candidates_option, where_option
from surrogate.features.errors import InputError


@click.command()
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--model",
    metavar="NAME",
    help="The model to fit.  [default: blend, with --stream boosted-terms, or what --params is for]",
)
@click.option(
    "--tune",
    "trials",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Settings to search first, within the data, held out by shape.",
)
@click.option(
    "--params", "params_file", type=click.Path(path_type=Path), help="Settings that `seer tune -o` found."
)
@click.option(
    "--stream",
    is_flag=True,
    help="For tables beyond memory: read in parts, boosters from external memory; intervals and errors from a sample.",
)
@candidate_option
@candidates_option
@where_option
@click.option("--seed", default=0, show_default=True, help="Seed of folds, sampling and search.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The bundle, a folder.")
def command(
    data: tuple[Path, ...],
    model: str | None,
    trials: int,
    params_file: Path | None,
    stream: bool,
    candidate: str,
    candidates: str | None,
    where: tuple[str, ...],
    seed: int,
    output: Path,
) -> None:
    """Fit a model on all rows of DATA and save it as a bundle: a folder of JSON and UBJ files, nothing executable.

    The model card's errors and the intervals come from folds by shape; how much wider intervals are on a GPU that was
    never measured, from fits without one of the GPUs, where DATA has three or more (otherwise, and with --stream: 3
    times).
    """
    from surrogate.bundle.bundle import save
    from surrogate.bundle.training import train
    from surrogate.cli.datasets import load_all, progress_bar

    model, params = _settings(model, params_file, trials, stream)
    if stream and trials:
        raise InputError(
            "--stream trains with given settings; search on a part of the data with `seer tune` first"
        )
    step, close = progress_bar("train")
    how: dict[str, Any] = {
        "model": model,
        "params": params,
        "candidate": candidate,
        "seed": seed,
        "progress": step,
    }
    try:
        if stream:
            from surrogate.cli.kept import kept_values
            from surrogate.streaming import train_streaming

            keep = kept_values(data, where)
            bundle = train_streaming(data, candidates=candidates, keep=keep, where=where, **how)
        else:
            bundle = train(load_all(data, candidates, where), trials=trials, **how)
    finally:
        close()
    save(bundle, output)
    held = bundle.card["held_out"]
    click.echo(f"{output}: {model}, {bundle.card['data']['ok_rows']} rows; held out by shape:")
    click.echo(
        f"  time error {held['time']['median_ape']:.1%} median, {held['time']['p90_ape']:.1%} at the 90th percentile"
    )
    for stratum, row in held["choice"].items():
        low, high = row["ci_low"], row["ci_high"]
        click.echo(
            f"  slowdown {row['slowdown_macro']:.4f} [{low:.4f}, {high:.4f}] over {row['shapes']} shapes ({stratum})"
        )
    for row in held.get("intervals", [])[:1]:
        low, high, factor = row["coverage_low"], row["coverage_high"], row["interval_factor"]
        click.echo(
            f"  90 % intervals cover {row['coverage']:.1%} [{low:.1%}, {high:.1%}], median factor {factor:.2f}"
        )


def _settings(
    model: str | None, params_file: Path | None, trials: int, stream: bool
) -> tuple[str, dict[str, Any]]:
    """The model to train and its settings, from the options that name them."""
    from surrogate.evaluation.tune import read_settings
    from surrogate.models import DEFAULT_MODEL
    from surrogate.streaming.bundle import STREAMED_MODEL

    if params_file is None:
        return model or (STREAMED_MODEL if stream else DEFAULT_MODEL), {}
    if trials:
        raise InputError("--params gives settings and --tune searches others; use one of them")
    settings = read_settings(params_file)
    if model not in (None, settings.model):
        raise InputError(f"{params_file}: settings of {settings.model}, not of {model}; leave --model out")
    return settings.model, settings.params
