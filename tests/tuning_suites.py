"""Count the suites of the three hooks of `surrogate.tuning` by outcome: ``python -m tests.tuning_suites`` prints them.

Optuna's suite is its own. Kernel Tuner's and Triton's suites are searches and launches of this project. Kernel Tuner's
suite needs the package.
"""

from collections import Counter
from pathlib import Path

import pytest

SUITES = {
    "Optuna": "optuna_suite",
    "Optuna, studies": "sampler",
    "Kernel Tuner": "kernel_tuner",
    "Triton": "triton_model",
}


class Outcomes:
    """A plugin of pytest that counts the outcomes of tests."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.counts[report.outcome] += 1


def main() -> None:
    """Print a line for each suite."""
    print(f"{'suite':18}{'tried':>8}{'passed':>8}{'does not apply':>16}{'failed':>8}")
    for suite, name in SUITES.items():
        plugin = Outcomes()
        path = Path(__file__).parent / "tuning" / f"test_{name}.py"
        pytest.main(["-qq", "-n", "0", "-m", "", "--no-header", "--no-summary", str(path)], [plugin])
        passed, skipped, failed = (plugin.counts[each] for each in ("passed", "skipped", "failed"))
        print(f"{suite:18}{passed + skipped + failed:8}{passed:8}{skipped:16}{failed:8}")


if __name__ == "__main__":
    main()
