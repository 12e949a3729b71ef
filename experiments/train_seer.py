"""Train SEER's physics from times alone: ``python -m experiments.train_seer DATA.parquet BUNDLE``."""

import sys

from surrogate import InputError, read_dataset, save, train


def main(data_path: str, bundle_path: str) -> None:
    """Fit `seer-time-only` (the paper's time forms per GPU and algorithm) beside the default, on the same rows."""
    data = read_dataset(data_path)
    for model in ("seer-time-only", "boosted-terms"):
        bundle = train(data, model=model)
        if model == "seer-time-only":
            save(bundle, bundle_path)
        errors = bundle.card["held_out"]["time"]
        print(
            f"{model}: median {100 * errors['median_ape']:.1f} %, 90th percentile {100 * errors['p90_ape']:.1f} %"
        )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m experiments.train_seer DATA.parquet BUNDLE")
    try:
        main(*sys.argv[1:])
    except InputError as error:
        sys.exit(f"train_seer: {error}")
