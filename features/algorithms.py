"""The algorithm registry: cuDNN's enums for three directions and MIOpen's mechanisms, mapped on common mechanisms.

A *mechanism* says how an algorithm works (what arithmetic is really done); it decides which analytical terms apply.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from .errors import InputError, nearest
from .problem import DIRECTIONS

Mechanism = Literal[
    "direct", "implicit_gemm", "precomp_gemm", "gemm", "fft", "fft_tiling", "winograd", "winograd_nonfused"
]
MECHANISMS: tuple[Mechanism, ...] = (
    "direct", "implicit_gemm", "precomp_gemm", "gemm", "fft", "fft_tiling", "winograd", "winograd_nonfused",
)  # fmt: skip
MECHANISM_CODE: dict[str, int] = {name: code for code, name in enumerate(MECHANISMS)}


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm of a library in one direction.

    ``enum`` is the library's own number (−1 where it has none); ``deterministic`` says whether two runs give the same
    bits; ``implemented`` is False for enum values that no release ever supported.
    """

    library: str
    direction: str
    name: str
    mechanism: Mechanism
    enum: int = -1
    deterministic: bool = True
    implemented: bool = True


def _cudnn(
    direction: str, rows: dict[str, tuple[int, Mechanism]], *, atomic: set[str], never: set[str]
) -> list[Algorithm]:
    return [
        Algorithm("cudnn", direction, name, mechanism, enum, name not in atomic, name not in never)
        for name, (enum, mechanism) in rows.items()
    ]


# Source: cudnnConvolutionFwdAlgo_t, …BwdDataAlgo_t, …BwdFilterAlgo_t in cudnn_cnn_infer.h / cudnn_cnn_train.h.
_CUDNN = [
    *_cudnn(
        "fwd",
        {
            "IMPLICIT_GEMM": (0, "implicit_gemm"),
            "IMPLICIT_PRECOMP_GEMM": (1, "precomp_gemm"),
            "GEMM": (2, "gemm"),
            "DIRECT": (3, "direct"),
            "FFT": (4, "fft"),
            "FFT_TILING": (5, "fft_tiling"),
            "WINOGRAD": (6, "winograd"),
            "WINOGRAD_NONFUSED": (7, "winograd_nonfused"),
        },
        atomic=set(),
        never={"DIRECT"},
    ),
    *_cudnn(
        "bwd_data",
        {
            "ALGO_0": (0, "implicit_gemm"),
            "ALGO_1": (1, "precomp_gemm"),
            "FFT": (2, "fft"),
            "FFT_TILING": (3, "fft_tiling"),
            "WINOGRAD": (4, "winograd"),
            "WINOGRAD_NONFUSED": (5, "winograd_nonfused"),
        },
        atomic={"ALGO_0"},
        never=set(),
    ),
    *_cudnn(
        "bwd_filter",
        {
            "ALGO_0": (0, "implicit_gemm"),
            "ALGO_1": (1, "precomp_gemm"),
            "FFT": (2, "fft"),
            "ALGO_3": (3, "gemm"),
            "WINOGRAD": (4, "winograd"),
            "WINOGRAD_NONFUSED": (5, "winograd_nonfused"),
            "FFT_TILING": (6, "fft_tiling"),
        },
        atomic={"ALGO_0", "ALGO_3"},
        never={"WINOGRAD"},
    ),
]

# Source: miopenConvFwdAlgorithm_t and its backward siblings; the names are those of MIOpen's find-db importers.
_MIOPEN: dict[str, tuple[int, Mechanism]] = {
    "GEMM": (0, "gemm"),
    "Direct": (1, "direct"),
    "FFT": (2, "fft"),
    "Winograd": (3, "winograd"),
    "ImplicitGEMM": (5, "implicit_gemm"),
}

_REFERENCE = (
    "IMPLICIT_GEMM",
    "IMPLICIT_PRECOMP_GEMM",
    "GEMM",
    "FFT",
    "FFT_TILING",
    "WINOGRAD",
    "WINOGRAD_NONFUSED",
)

ALGORITHMS: tuple[Algorithm, ...] = (
    *_CUDNN,
    *(
        Algorithm("miopen", direction, name, mechanism, enum)
        for direction in DIRECTIONS
        for name, (enum, mechanism) in _MIOPEN.items()
    ),
    *(
        Algorithm("reference", "fwd", a.name, a.mechanism, a.enum)
        for a in _CUDNN
        if a.direction == "fwd" and a.name in _REFERENCE
    ),
)
"""Every algorithm known, by library, direction and enum value."""

CUDNN_GRAPH = "cudnn-graph"
"""cuDNN's graph API, as collected: its engines are none of the algorithms here."""
LIBRARIES: tuple[str, ...] = tuple(dict.fromkeys(a.library for a in ALGORITHMS))
_INDEX: dict[tuple[str, str, str], Algorithm] = {(a.library, a.direction, a.name): a for a in ALGORITHMS}


@cache
def algorithms(library: str, direction: str = "fwd") -> tuple[Algorithm, ...]:
    """All algorithms of a library in a direction, in enum order. Raises `InputError` for an unknown library."""
    if library == CUDNN_GRAPH:
        raise InputError(
            f"library {library} ranks engines that every release of cuDNN numbers anew, and no model predicts them;"
            " ask about library cudnn: a table without the columns library, library_version and algorithm does"
        )
    if library not in LIBRARIES:
        raise InputError(f"library {library!r} is unknown; known: {', '.join(LIBRARIES)}{nearest(library, LIBRARIES)}")
    return tuple(a for a in ALGORITHMS if a.library == library and a.direction == direction)


def algorithm(name: str, library: str = "cudnn", direction: str = "fwd") -> Algorithm:
    """The algorithm of that name. Raises `InputError` with the nearest names."""
    found = _INDEX.get((library, direction, name))
    if found is None:
        names = [a.name for a in algorithms(library, direction)]
        raise InputError(
            f"algorithm {name!r} is no {library} {direction} algorithm; known: {', '.join(names)}{nearest(name, names)}"
        )
    return found


@cache
def mechanism_of(name: str, library: str = "cudnn", direction: str = "fwd") -> Mechanism:
    """The mechanism of an algorithm; an algorithm that no registry row names is taken for an implicit GEMM."""
    found = _INDEX.get((library, direction, name))
    return found.mechanism if found else "implicit_gemm"
