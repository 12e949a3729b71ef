"""``seer train``: datasets to a bundle."""

from pathlib import Path

import click

from surrogate.cli.options import candidate_option, candidates_option, where_option


@click.command()
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--model", default="boosted-terms", show_default=True, help="The model to fit.")
@click.option(
    "--tune",
    "trials",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Settings to search first, within the data, held out by shape.",
)
@candidate_option
@candidates_option
@where_option
@click.option("--seed", default=0, show_default=True, help="Seed of folds, sampling and search.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The bundle, a folder.")
def command(
    data: tuple[Path, ...],
    model: str,
    trials: int,
    candidate: str,
    candidates: str | None,
    where: tuple[str, ...],
    seed: int,
    output: Path,
) -> None:
    """Fit a model on all rows of DATA and save it as a bundle: a folder of JSON and UBJ files, nothing executable.

    The model card's errors and the intervals come from folds by shape.
    """
    from surrogate.bundle import save
    from surrogate.cli.datasets import load_all, progress_bar
    from surrogate.training import train

    dataset = load_all(data, candidates, where)
    step, close = progress_bar("train")
    try:
        bundle = train(dataset, model=model, trials=trials, candidate=candidate, seed=seed, progress=step)
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
