"""Three models on the same rows, the first one kept: ``python -m experiments.train_models DATA.parquet BUNDLE``."""

import sys

from surrogate import Bundle, Dataset, InputError, read_dataset, save, train
from surrogate.bundle.bundle import load


def main(data_path: str, bundle_path: str) -> None:
    """Fit boosted trees, ridge regressions and SEER's physics from times alone; each card tells the held-out errors."""
    data = read_dataset(data_path)
    for model in ("boosted-terms", "linear-terms", "seer-time-only"):
        bundle = train(data, model=model, seed=0)
        if model == "boosted-terms":
            save(bundle, bundle_path)
        tell_errors(model, bundle, picks=True)
    share = inside(bundle_path, data)
    print(f"{bundle_path}: the interval holds {100 * share:.0f} % of the rows it was fitted on")


def tell_errors(label: str, bundle: Bundle, *, picks: bool = False) -> None:
    """Print the card's held-out errors of every family; with ``picks`` the slowdowns, too."""
    for family, held_out in bundle.card["held_out"].items():
        print(
            f"{label}, {family}: median error of unseen shapes {100 * held_out['time']['median_ape']:.1f} %"
        )
        for stratum, figures in held_out["choice"].items() if picks else ():
            print(f"picks, {stratum}: slowdown {figures['slowdown_macro']:.3f} of {figures['shapes']} shapes")


def inside(bundle_path: str, data: Dataset) -> float:
    """Share of the ok rows within the interval of a bundle that is loaded again."""
    predicted = load(bundle_path).predict(data.frame)
    within = data.frame["time_us"].between(predicted["lower_us"], predicted["upper_us"])
    return within[data.frame["status"] == "ok"].mean()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m experiments.train_models DATA.parquet BUNDLE")
    try:
        main(*sys.argv[1:])
    except InputError as error:
        sys.exit(f"train_models: {error}")
