"""Optuna's own tests of samplers, applied to ours. A few trials of them propose all configurations of the kernel."""

from collections.abc import Callable
from functools import partial

import optuna
import pytest
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
    SingleOnlySamplerTestCase,
)

from surrogate.features import Description
from surrogate.tuning import Sampler

KERNEL = Description("made_up", (), {"x": (1, 2, 3, 5), "y": (0, 1, 2, 3, 5, 10), "b": (1, 2)})
"""It has two of the names that the tests suggest, and some of their values."""


class TestSampler(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], optuna.samplers.BaseSampler]:
        return partial(Sampler, KERNEL, "a100")

    test_combination_of_different_distributions_objective = pytest.mark.slow(
        BasicSamplerTestCase.test_combination_of_different_distributions_objective
    )
    test_sample_relative_numerical = pytest.mark.slow(RelativeSamplerTestCase.test_sample_relative_numerical)


@pytest.mark.skip("does not apply: a search has one objective")
class TestSeveralObjectives(MultiObjectiveSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> None:
        """Give no sampler."""
