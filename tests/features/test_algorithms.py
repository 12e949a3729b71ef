"""The registry of algorithms: enums, mechanisms, names and their nearest matches."""

import pytest

from surrogate.features.algorithms import (
    ALGORITHMS,
    LIBRARIES,
    MECHANISM_CODE,
    MECHANISMS,
    algorithm,
    algorithms,
    mechanism_of,
)
from surrogate.features.errors import InputError, nearest
from surrogate.features.terms import MECHANISM_TERMS, TILES

# cudnn_cnn_infer.h and cudnn_cnn_train.h, value by value.
CUDNN = {
    "fwd": [
        "IMPLICIT_GEMM",
        "IMPLICIT_PRECOMP_GEMM",
        "GEMM",
        "DIRECT",
        "FFT",
        "FFT_TILING",
        "WINOGRAD",
        "WINOGRAD_NONFUSED",
    ],
    "bwd_data": ["ALGO_0", "ALGO_1", "FFT", "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED"],
    "bwd_filter": ["ALGO_0", "ALGO_1", "FFT", "ALGO_3", "WINOGRAD", "WINOGRAD_NONFUSED", "FFT_TILING"],
}

MIOPEN = {"Direct", "GEMM", "Winograd", "ImplicitGEMM", "FFT"}


@pytest.mark.parametrize("direction", CUDNN)
def test_cudnn_enums(direction: str) -> None:
    known = algorithms("cudnn", direction)
    assert [a.name for a in known] == CUDNN[direction]
    assert [a.enum for a in known] == list(range(len(CUDNN[direction])))


def test_which_are_not_deterministic_and_which_never_implemented() -> None:
    cudnn = [a for a in ALGORITHMS if a.library == "cudnn"]
    assert {(a.direction, a.name) for a in cudnn if not a.deterministic} == {
        ("bwd_data", "ALGO_0"),
        ("bwd_filter", "ALGO_0"),
        ("bwd_filter", "ALGO_3"),
    }
    assert {(a.direction, a.name) for a in cudnn if not a.implemented} == {
        ("fwd", "DIRECT"),
        ("bwd_filter", "WINOGRAD"),
    }


def test_miopen_has_its_five_families_in_every_direction() -> None:
    for direction in ("fwd", "bwd_data", "bwd_filter"):
        assert {a.name for a in algorithms("miopen", direction)} == MIOPEN


def test_every_family_has_terms_tiles_and_a_code() -> None:
    assert set(MECHANISM_TERMS) == set(TILES) == set(MECHANISMS) == {a.mechanism for a in ALGORITHMS}
    assert [MECHANISM_CODE[name] for name in MECHANISMS] == list(range(len(MECHANISMS)))


def test_names_are_unique_per_library_and_direction() -> None:
    keys = [(a.library, a.direction, a.name) for a in ALGORITHMS]
    assert len(keys) == len(set(keys))
    assert set(LIBRARIES) == {"cudnn", "miopen", "reference"}


def test_lookup_and_its_errors() -> None:
    assert algorithm("FFT").enum == 4
    assert algorithm("FFT", "cudnn", "bwd_data").enum == 2
    with pytest.raises(InputError, match=r"'WINOGRADE' is no cudnn fwd algorithm.*did you mean WINOGRAD\b"):
        algorithm("WINOGRADE")
    with pytest.raises(InputError, match=r"library 'cuddn' is unknown.*did you mean cudnn"):
        algorithms("cuddn")
    with pytest.raises(InputError):
        algorithm("GEMM", "cudnn", "bwd_data")


def test_family_of_an_unregistered_name_is_a_guess_not_an_error() -> None:
    assert mechanism_of("WINOGRAD") == "winograd"
    assert mechanism_of("Direct", "miopen", "bwd_filter") == "direct"
    assert mechanism_of("SOMETHING_NEW") == "implicit_gemm"


def test_nearest_ignores_case_and_stays_silent_when_nothing_is_close() -> None:
    assert nearest("winograd", ["WINOGRAD", "FFT"]) == "; did you mean WINOGRAD?"
    assert nearest("qqqq", ["WINOGRAD", "FFT"]) == ""
    assert nearest("GEMM2", ["GEMM", "FFT", "GEM"]) == "; did you mean GEMM or GEM?"
