"""The registry of algorithms: enums, mechanisms, names and their nearest matches."""

import pytest

from surrogate.features.algorithms import ALGORITHMS, algorithm, algorithms
from surrogate.features.errors import InputError
from tests.features.known_answers import ANSWERS

CUDNN = ANSWERS["cudnn_enums"]
"""Direction → algorithms in the order of the headers."""


@pytest.mark.parametrize("direction", CUDNN)
def test_cudnn_enums(direction: str) -> None:
    known = algorithms("cudnn", direction)
    assert [a.name for a in known] == CUDNN[direction]
    assert [a.enum for a in known] == list(range(len(CUDNN[direction])))


def test_which_are_not_deterministic_and_which_never_implemented() -> None:
    cudnn = [a for a in ALGORITHMS if a.library == "cudnn"]
    random = {f"{a.direction} {a.name}" for a in cudnn if not a.deterministic}
    assert random == {"bwd_data ALGO_0", "bwd_filter ALGO_0", "bwd_filter ALGO_3"}
    assert {f"{a.direction} {a.name}" for a in cudnn if not a.implemented} == {"fwd DIRECT", "bwd_filter WINOGRAD"}


def test_lookup_and_its_errors(refused) -> None:
    assert algorithm("FFT").enum == 4
    assert algorithm("FFT", "cudnn", "bwd_data").enum == 2
    with pytest.raises(InputError, match=r"'WINOGRADE' is no cudnn fwd algorithm.*did you mean WINOGRAD\b"):
        algorithm("WINOGRADE")
    with refused("library 'cuddn' is unknown", "did you mean cudnn"):
        algorithms("cuddn")
    with refused():
        algorithm("GEMM", "cudnn", "bwd_data")
