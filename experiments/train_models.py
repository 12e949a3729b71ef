"""Training by the Python interface: ``python -m experiments.train_models DATA.parquet BUNDLE [GPU]``."""

import sys

from surrogate import Bundle, Dataset, InputError, evaluate, read_dataset, save, train
from surrogate.bundle.bundle import load


def main(data_path: str, bundle_path: str, gpu: str | None = None) -> None:
    """Three models on all rows, or boosted trees on one GPU's; each card tells the held-out errors."""
    data = read_dataset(data_path)
    if gpu is None:
        train_models(data, bundle_path)
    else:
        train_for_one_gpu(data, gpu, bundle_path)


def train_models(data: Dataset, bundle_path: str) -> None:
    """Boosted trees, which are kept, ridge regressions and SEER's physics from times alone, side by side."""
    for model in ("boosted-terms", "linear-terms", "seer-time-only"):
        bundle = train(data, model=model, seed=0)
        if model == "boosted-terms":
            save(bundle, bundle_path)
        tell_errors(model, bundle)
    predicted = load(bundle_path).predict(data.frame)
    within = data.frame["time_us"].between(predicted["lower_us"], predicted["upper_us"])
    share = within[data.frame["status"] == "ok"].mean()
    print(f"{bundle_path}: the interval holds {100 * share:.0f} % of the rows it was fitted on")


def train_for_one_gpu(data: Dataset, gpu: str, bundle_path: str) -> None:
    """A bundle for one GPU; rows of other GPUs say what it is worth beyond it."""
    mine = data.frame["gpu"] == gpu
    if not mine.any():
        known = ", ".join(sorted(set(data.frame["gpu"])))
        raise InputError(f"{data.name}: no row of GPU {gpu!r}; it has {known}")
    bundle = train(data.with_frame(data.frame[mine]))
    save(bundle, bundle_path)
    tell_errors(gpu, bundle)
    for record in evaluate(bundle, data.with_frame(data.frame[~mine])) if not mine.all() else ():
        if record["rows"] and record["stratum"] == "all":
            print(f"other GPUs, {record['part']} shapes: median error {100 * record['median_ape']:.1f} %")


def tell_errors(label: str, bundle: Bundle) -> None:
    """Print the card's held-out errors and slowdowns of every family."""
    for family, held_out in bundle.card["held_out"].items():
        error = 100 * held_out["time"]["median_ape"]
        print(f"{label}, {family}: median error of unseen shapes {error:.1f} %")
        for stratum, figures in held_out["choice"].items():
            print(f"picks, {stratum}: slowdown {figures['slowdown_macro']:.3f} of {figures['shapes']} shapes")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: python -m experiments.train_models DATA.parquet BUNDLE [GPU]")
    try:
        main(*sys.argv[1:])
    except InputError as error:
        sys.exit(f"train_models: {error}")
