"""The public names and commands. Whoever changes them means to, and says so in CHANGELOG.md."""

import importlib
import subprocess
import sys

import pytest

import surrogate
from surrogate.cli import COMMANDS

NAMES = {
    "Bundle",
    "Comparison",
    "Conv",
    "Dataset",
    "Gpu",
    "InputError",
    "Prediction",
    "Predictions",
    "Predictor",
    "Selection",
    "autotune",
    "calibrate",
    "compare",
    "evaluate",
    "gpu",
    "gpus",
    "load",
    "predict",
    "read_dataset",
    "save",
    "select",
    "train",
    "write_dataset",
}
PACKAGES = ("models", "network", "trace", "tuning")
"""Packages with public names of their own."""
ROOMS = ("formats", "models", "network", "trace")
"""Packages that ``import surrogate`` reaches."""


def test_the_public_names() -> None:
    assert sorted(surrogate.__all__) == sorted(NAMES | {*ROOMS}) and set(dir(surrogate)) >= NAMES
    assert all(getattr(surrogate, name) is not None for name in NAMES)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = surrogate.no_such_name


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_that_a_package_lists_is_there(package: str) -> None:
    module = importlib.import_module(f"surrogate.{package}")
    assert module.__all__
    absent = [name for name in module.__all__ if name != "kernel_tuner" and not hasattr(module, name)]  # an extra's
    assert absent == []


def test_the_commands() -> None:
    assert set(COMMANDS) == {
        "collect",
        "doctor",
        "import",
        "data",
        "compare",
        "report",
        "train",
        "tune",
        "evaluate",
        "calibrate",
        "predict",
        "select",
        "export",
        "network",
        "serving",
        "info",
        "trace",
        "gpus",
    }


def test_neither_the_package_nor_the_help_imports_anything_heavy() -> None:
    code = """
import sys
import surrogate
from surrogate.cli import main
sys.argv = ["seer", "--help"]
try:
    main()
finally:
    heavy = {"numpy", "pandas", "pyarrow", "xgboost", "sklearn", "scipy", "torch", "matplotlib", "optuna", "tqdm"}
    print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
