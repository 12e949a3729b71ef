"""Train ridge regressions and see what they lose: ``python -m experiments.train_linear DATA.parquet BUNDLE``."""

import sys

from surrogate import InputError, load, read_dataset, save, train


def main(data_path: str, bundle_path: str) -> None:
    """Fit one ridge per algorithm on the terms, save, load again, and predict the dataset's own rows."""
    data = read_dataset(data_path)
    save(train(data, model="linear-terms"), bundle_path)
    bundle = load(bundle_path)
    predicted = bundle.predict(data.frame)
    ok = data.frame["status"] == "ok"
    measured = data.frame["time_us"]
    inside = measured.between(predicted["lower_us"], predicted["upper_us"])[ok].mean()
    held_out = bundle.card["held_out"]["time"]["median_ape"]
    print(f"{bundle_path}: median error of unseen shapes {100 * held_out:.1f} %")
    print(f"the interval holds {100 * inside:.0f} % of the rows it was fitted on")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m experiments.train_linear DATA.parquet BUNDLE")
    try:
        main(*sys.argv[1:])
    except InputError as error:
        sys.exit(f"train_linear: {error}")
