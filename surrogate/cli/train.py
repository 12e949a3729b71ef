"""``seer train``: datasets to a bundle."""

from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import candidate_option, candidates_option, device_option, where_option
from surrogate.features.errors import InputError


@click.command()
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--model",
    metavar="NAME",
    help="The model to fit.  [default: boosted-terms, or what --params is for]",
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
    "--dask",
    "cluster",
    is_flag=False,
    flag_value="",
    metavar="[ADDRESS]",
    help="For tables beyond one machine's memory: the workers of a Dask cluster at ADDRESS, or of this machine.",
)
@device_option
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
    cluster: str | None,
    device: str,
    candidate: str,
    candidates: str | None,
    where: tuple[str, ...],
    seed: int,
    output: Path,
) -> None:
    """Fit a model on all rows of DATA and save it as a bundle: a folder of JSON and UBJ files, nothing executable.

    DATA may hold several families of kernels; each gets a model of its own. The model card's errors and the intervals
    come from folds by shape; how much wider intervals are on a GPU that was never measured, from fits without one of
    the GPUs, where DATA has three or more (otherwise: 3 times).
    """
    from surrogate.bundle.bundle import save
    from surrogate.bundle.train import train
    from surrogate.cli.datasets import load_all, progress_bar

    name, params = _settings(model, params_file, trials)
    if device != "cpu":
        params = {**params, "device": device}
    step, close = progress_bar("train")
    try:
        if cluster is not None:
            from surrogate.bundle.dask_train import train_on_dask

            if trials or where:
                raise InputError(
                    "--dask trains on whole tables with given settings; leave --tune and --where out"
                )
            bundle = train_on_dask(
                data, cluster or None, model=name, params=params, candidate=candidate,
                candidates=candidates or "all", seed=seed, progress=step,
            )  # fmt: skip
        else:
            bundle = train(
                load_all(data, candidates, where), model=name, params=params, trials=trials, candidate=candidate,
                seed=seed, progress=step,
            )  # fmt: skip
    finally:
        close()
    save(bundle, output)
    for family, held in bundle.card["held_out"].items():
        rows = bundle.card["data"]["families"][family]["ok_rows"]
        click.echo(f"{output}: {name}, {family}, {rows} rows; held out by shape:")
        _show_errors(held)
    for family in bundle.card["training"]["left_out"]:
        click.echo(f"{output}: {family} left out: its rows have one shape, errors and intervals need two")


def _show_errors(held: dict[str, Any]) -> None:
    """Time errors, slowdowns and coverage of a family's held-out rows."""
    time = held["time"]
    click.echo(f"  time error {time['median_ape']:.1%} median, {time['p90_ape']:.1%} at the 90th percentile")
    for stratum, row in held["choice"].items():
        if row["n"]:
            interval = f"[{row['ci_low']:.4f}, {row['ci_high']:.4f}]"
            click.echo(
                f"  slowdown {row['slowdown_macro']:.4f} {interval} over {row['shapes']} shapes ({stratum})"
            )
    for row in held.get("intervals", [])[:1]:
        interval = f"[{row['coverage_low']:.1%}, {row['coverage_high']:.1%}]"
        factor = row["interval_factor"]
        click.echo(f"  90 % intervals cover {row['coverage']:.1%} {interval}, median factor {factor:.2f}")


def _settings(model: str | None, params_file: Path | None, trials: int) -> tuple[str, dict[str, Any]]:
    """The model to train and its settings, from the options that name them."""
    from surrogate.evaluation.tune import read_settings
    from surrogate.models import DEFAULT_MODEL

    if params_file is None:
        return model or DEFAULT_MODEL, {}
    if trials:
        raise InputError("--params gives settings and --tune searches others; use one of them")
    settings = read_settings(params_file)
    if model not in (None, settings.model):
        raise InputError(f"{params_file}: settings of {settings.model}, not of {model}; leave --model out")
    return settings.model, settings.params
