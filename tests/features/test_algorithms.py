"""The registry of algorithms: enums, mechanisms, names and their nearest matches."""

import pytest

from surrogate.features.algorithms import ALGORITHMS, algorithm, algorithms
from surrogate.features.errors import InputError
from tests.features.known_answers import ANSWERS

CUDNN = ANSWERS["cudnn_enums"]
"""Algorithms by direction, in the order of cuDNN's headers."""


@pytest.mark.parametrize("direction", CUDNN)
def test_cudnn_enums_follow_the_headers(direction: str) -> None:
    registered = algorithms("cudnn", direction)
    assert [a.name for a in registered] == CUDNN[direction]
    assert [a.enum for a in registered] == list(range(len(CUDNN[direction])))


def test_cudnn_marks_nondeterministic_and_unimplemented_algorithms() -> None:
    cudnn = [a for a in ALGORITHMS if a.library == "cudnn"]
    nondeterministic = {f"{a.direction} {a.name}" for a in cudnn if not a.deterministic}
    assert nondeterministic == {"bwd_data ALGO_0", "bwd_filter ALGO_0", "bwd_filter ALGO_3"}
    assert {f"{a.direction} {a.name}" for a in cudnn if not a.implemented} == {"fwd DIRECT", "bwd_filter WINOGRAD"}


def test_algorithm_lookup_suggests_the_nearest_name(refused) -> None:
    assert algorithm("FFT").enum == 4
    assert algorithm("FFT", "cudnn", "bwd_data").enum == 2
    with pytest.raises(InputError, match=r"'WINOGRADE' is no cudnn fwd algorithm.*did you mean WINOGRAD\b"):
        algorithm("WINOGRADE")
    with refused("library 'cuddn' is unknown", "did you mean cudnn"):
        algorithms("cuddn")
    with refused():
        algorithm("GEMM", "cudnn", "bwd_data")
