"""Benchmarks run one after another, and only if their folder is given: ``python -m pytest tests/benchmarks``."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the folder out of the default suite."""
    paths = (Path(arg.partition("::")[0]).resolve() for arg in config.args)
    return None if any(path.is_relative_to(HERE) for path in paths) else True


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Disable parallel workers, which would disturb the timings; pytest calls this only if the folder is given."""
    config.option.numprocesses = 0
    config.option.dist = "no"
