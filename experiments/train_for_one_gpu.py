"""One GPU's rows train, the others' judge: ``python -m experiments.train_for_one_gpu DATA.parquet GPU BUNDLE``."""

import sys

from experiments.train_models import tell_errors
from surrogate import InputError, evaluate, read_dataset, save, train


def main(data_path: str, gpu: str, bundle_path: str) -> None:
    """A bundle for one GPU; rows of other GPUs say what it is worth beyond it."""
    data = read_dataset(data_path)
    mine = data.frame["gpu"] == gpu
    if not mine.any():
        raise InputError(
            f"{data.name}: no row of GPU {gpu!r}; it has {', '.join(sorted(set(data.frame['gpu'])))}"
        )
    bundle = train(data.with_frame(data.frame[mine]))
    save(bundle, bundle_path)
    tell_errors(gpu, bundle)
    if not mine.all():
        for record in evaluate(bundle, data.with_frame(data.frame[~mine])):
            if record["rows"] and record["stratum"] == "all":
                print(f"other GPUs, {record['part']} shapes: median error {100 * record['median_ape']:.1f} %")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python -m experiments.train_for_one_gpu DATA.parquet GPU BUNDLE")
    try:
        main(*sys.argv[1:])
    except InputError as error:
        sys.exit(f"train_for_one_gpu: {error}")
