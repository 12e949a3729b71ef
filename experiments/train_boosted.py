"""Train boosted trees, the larger part of the default: ``python -m experiments.train_boosted DATA.parquet BUNDLE``."""

import sys

from surrogate import InputError, read_dataset, save, train


def main(data_path: str, bundle_path: str) -> None:
    """Fit boosted trees on the analytical terms and save the bundle; its card tells the held-out errors."""
    data = read_dataset(data_path)
    bundle = train(data, model="boosted-terms", seed=0)
    save(bundle, bundle_path)
    held_out = bundle.card["held_out"]
    print(f"{bundle_path}: median error of unseen shapes {100 * held_out['time']['median_ape']:.1f} %")
    for stratum, figures in held_out["choice"].items():
        print(f"picks, {stratum}: slowdown {figures['slowdown_macro']:.3f} over {figures['shapes']} shapes")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m experiments.train_boosted DATA.parquet BUNDLE")
    try:
        main(*sys.argv[1:])
    except InputError as error:
        sys.exit(f"train_boosted: {error}")
