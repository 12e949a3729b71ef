"""The public names and commands. Whoever changes them means to, and says so in CHANGELOG.md."""

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
PACKAGES = ("models", "network", "trace")
"""Packages with public names of their own."""


def test_the_public_names() -> None:
    assert len(surrogate.__all__) == len(NAMES)
    assert set(surrogate.__all__) == NAMES <= set(dir(surrogate))
    assert all(getattr(surrogate, name) is not None for name in NAMES)
    with pytest.raises(AttributeError, match="no attribute"):
        _ = surrogate.no_such_name


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_that_a_package_lists_is_there(package: str) -> None:
    module = getattr(surrogate, package)
    assert module.__all__
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


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
