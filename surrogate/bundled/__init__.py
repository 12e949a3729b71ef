"""What ships with the package: a dataset that the project measured, bundles fitted on public ones; each with a card."""

from pathlib import Path

from surrogate.features.errors import InputError

FOLDER = Path(__file__).parent
DATASETS = ("reference_cpu.parquet",)
"""Bundled datasets, the default of ``seer compare`` first."""


def default_dataset() -> Path:
    """The dataset that ``seer compare`` judges when none is given. Raises `InputError` where none is installed."""
    for name in DATASETS:
        if (FOLDER / name).is_file():
            return FOLDER / name
    raise InputError(
        "no DATA given and none is bundled; give a parquet dataset: `seer import` reads other people's files,"
        " `seer collect` measures"
    )
