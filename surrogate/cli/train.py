"""``seer train``, which fits a bundle, and ``seer calibrate``, which adapts a bundle to a GPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surrogate.cli import options as shared
from surrogate.cli.info import held_out_record
from surrogate.cli.options import HELP, PATH, RowOptions, option, output_option
from surrogate.features import InputError
from surrogate.models.registry import DEFAULT_MODEL, TRAINED

if TYPE_CHECKING:
    from surrogate.bundle.bundle import Bundle


@click.command()
@option(
    "--model",
    f"The model to fit: {', '.join(TRAINED)}.  [default: interpolated-terms for families with lines, otherwise"
    f" {DEFAULT_MODEL}; or the model of --params]",
    metavar="NAME",
)
@option("--tune trials", HELP["train"]["tune"], shared.INDEX, default=0)
@option("--params params_file", "Settings from `seer tune -o`.", PATH)
@option("--dask cluster", HELP["train"]["dask"], is_flag=False, flag_value="", metavar="[ADDRESS]")
@shared.training_options
@output_option("The bundle, a folder.", kind=shared.BUNDLE)
def command(
    data: tuple[Path, ...],
    model: str | None,
    trials: int,
    params_file: Path | None,
    cluster: str | None,
    rows: RowOptions,
    output: Path,
    **settings: Any,
) -> None:
    """Fit a model on all rows of DATA and save it as a bundle: a folder of JSON and UBJ files, nothing executable.

    DATA may hold several families of kernels; the command fits one model per family. The errors in the model card and
    the intervals come from folds by shape. The intervals on an unmeasured GPU come from fits without one of the GPUs.
    If DATA has one architecture alone, these intervals reach from a third of the time to three times the time.

    A table of configurations of a kernel of your own needs gpu, its sizes and parameters, and time_us. Name the columns
    with --kernel, or with --sizes and --parameters, unless the metadata of the file names them. The default model is
    then configurations.

    Fits use all CPUs of the process or its container; OMP_NUM_THREADS=N limits them to N.

    Examples:
      seer train run.parquet -o bundle
      seer train run.parquet --params best.json --where dtype=fp32 -o bundle
      seer train tuned.csv --sizes m,n --parameters block,warps -o bundle
    """
    from surrogate.bundle.train import train
    from surrogate.cli.datasets import kept_fits, load_datasets, progress_bar

    name, params = _settings(model, params_file, trials)
    if (device := settings.pop("device")) != "cpu":
        params = {**params, "device": device}
    settings |= {"model": name, "params": params}
    if cluster is not None and (trials or rows.where or rows.kernel):
        raise InputError("--dask trains on all rows of built-in kernels; leave --tune, --where, --kernel out")
    fits_folder = output.with_name(f".{output.name}.fits")
    note = f"the same command resumes; finished fits are kept in {fits_folder}" if cluster is None else "begin again"
    with kept_fits(fits_folder), progress_bar("train", note=note) as step:
        if cluster is not None:
            from surrogate.bundle.dask_train import train_on_dask

            settings |= {"model": name or DEFAULT_MODEL, "candidates": rows.candidates or "all", "progress": step}
            bundle = train_on_dask(data, cluster or None, **settings)
        else:
            bundle = train(load_datasets(data, *rows), trials=trials, progress=step, keep=fits_folder, **settings)
        bundle.save(output)
    _print_summary(bundle, output)


def _print_summary(bundle: "Bundle", output: Path) -> None:
    """Print the held-out figures of each family, an example of a described kernel, and the families left out."""
    kernel = bundle.described_family
    for family, held_out in bundle.card["held_out"].items():
        rows = bundle.card["data"]["families"][family]["ok_rows"]
        figures = held_out_record(family, held_out)
        words = [
            f"half of the times are off by less than {figures['median_ape']:.1%}, nine in ten by less than"
            f" {figures['p90_ape']:.1%}"
        ]
        if figures["slowdown"] is not None:
            allowed = " that the conditions allow" * bool(kernel and kernel.description.conditions)
            words.append(f"the pick takes {figures['slowdown']:.3f} times as long as the fastest{allowed}")
        if figures["coverage"] is not None:
            words.append(f"90 % intervals hold {figures['coverage']:.1%} of the times")
        fitted = bundle.family_models[family].fitted.name
        learned = bundle.card["training"].get("rows_on_workers")
        sample = f"trees learned from {learned:,} rows, figures of " if learned else ""
        shared.echo(
            f"{output}: {fitted}, {family}, {sample}{rows} rows; on held-out rows, in {held_out['split']}:"
            f" {'; '.join(words)}"
        )
    if kernel:
        shared.echo(f"{output}: the kernel is called {kernel.name}; write a problem as {kernel.example}")
        counts = bundle.card["data"]["families"][kernel.name]
        if failed := counts["rows"] - counts["ok_rows"]:
            used = "their configurations are not chosen there, and the model learned which ones may fail elsewhere"
            fits_failures = bundle.family_models[kernel.name].model.fits_failures
            status = used if fits_failures else "the model learned nothing from them"
            shared.echo(f"{output}: {failed:,} row{'s' * (failed != 1)} failed: {status}")
    for family in bundle.card["training"]["left_out"]:
        shared.echo(f"{output}: {family} is left out: its rows have one shape, errors and intervals need two")


def _settings(model: str | None, params_file: Path | None, trials: int) -> tuple[str | None, dict[str, object]]:
    """Return the model to train (None for the default of the data) and its settings."""
    from surrogate.evaluation.hyperparameter_study import read_settings

    if params_file is None:
        return model, {}
    if trials:
        raise InputError("--params gives settings and --tune searches them; use one of them")
    settings = read_settings(params_file)
    if model not in (None, settings.model):
        raise InputError(f"{params_file} has settings of {settings.model}, not of {model}; leave --model out")
    return settings.model, settings.params


@click.command()
@click.argument("bundle")
@click.argument("data", nargs=-1, required=True, type=PATH)
@shared.rows_options
@shared.seed_option
@output_option("The bundle to write, a folder.", kind=shared.BUNDLE)
def calibrate(
    bundle: str, data: tuple[Path, ...], candidates: str | None, where: tuple[str, ...], seed: int, output: Path
) -> None:
    """Correct the times of BUNDLE on the GPUs of DATA, from at least 10 measured problems per GPU.

    BUNDLE is a folder, or the name of a GPU for its shipped bundle (the vendor's bundle, for an unmeasured GPU). Times
    on other GPUs do not change. Intervals come from held-out shapes. A bundle of a kernel of your own holds its
    training table; it is fitted again with any number of new rows.

    Examples:
      seer collect --device cudnn --sample 30 -o run.jsonl
      seer data merge run.jsonl -o run.parquet
      seer calibrate bundle run.parquet -o calibrated
    """
    from surrogate.bundle.bundle import save
    from surrogate.cli.datasets import load_datasets, progress_bar
    from surrogate.prediction.evaluate import calibrate as calibrated_bundle
    from surrogate.prediction.shipped import as_bundle

    opened = as_bundle(bundle)
    measured = load_datasets(data, candidates, where, opened.kernel)
    with progress_bar("calibrate") as step:
        calibrated = calibrated_bundle(opened, measured, seed=seed, progress=step)
    save(calibrated, output)
    for device, row in sorted(calibrated.card["calibration"].items()):
        measured_part = f"{row['problems']} problems of {row['shapes']} shapes"
        shared.echo(f"{output}: {device}, {measured_part}; {_change(row)} ({row['method']})")


def _change(row: Mapping[str, object]) -> str:
    """Return the median time error before and after, or the reason why it is unknown."""
    if row["median_ape_before"] is None:
        return "the bundle was trained on all of them, so the gain is unknown; the intervals do not change"
    before, after = row["median_ape_before"], row["median_ape_held_out"]
    return f"median time error {before:.1%} before, {after:.1%} after, held out by shape"
