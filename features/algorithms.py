"""The algorithm registry (`algorithms.toml`): cuDNN's enums for three directions and MIOpen's, by common mechanisms.

A *mechanism* says how an algorithm works (what arithmetic is really done); it decides which analytical terms apply.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .errors import InputError, nearest, require_known
from .problem import DIRECTIONS

Mechanism = str
"""A key of `mechanisms.toml`."""
MECHANISM_ROWS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("mechanisms.toml").read_text(encoding="utf-8")
)
"""Mechanism → ``kernel``, the algorithm whose kernels stand for it, and ``tiles``, its three as [rows, columns]."""
MECHANISMS: tuple[Mechanism, ...] = tuple(MECHANISM_ROWS)
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


def _read() -> Iterator[Algorithm]:
    content = tomllib.loads(Path(__file__).with_name("algorithms.toml").read_text(encoding="utf-8"))
    for library, of_library in content.items():
        for named, rows in of_library.items():
            for direction in DIRECTIONS if named == "all" else (named,):
                yield from (Algorithm(library, direction, name, **row) for name, row in rows.items())


ALGORITHMS = tuple(_read())
"""Every algorithm known, by library, direction and enum value."""

VENDOR_LIBRARIES = {"nvidia": "cudnn", "amd": "miopen", "cpu": "reference"}
"""Vendor of a GPU → the library that runs convolutions there."""
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
    require_known("library", library, LIBRARIES)
    return tuple(a for a in ALGORITHMS if a.library == library and a.direction == direction)


def algorithm(name: str, library: str = "cudnn", direction: str = "fwd") -> Algorithm:
    """The algorithm of that name. Raises `InputError` with the nearest names."""
    entry = _INDEX.get((library, direction, name))
    if entry is None:
        names = [a.name for a in algorithms(library, direction)]
        raise InputError(
            f"algorithm {name!r} is no {library} {direction} algorithm; known: {', '.join(names)}{nearest(name, names)}"
        )
    return entry


@cache
def mechanism_of(name: str, library: str = "cudnn", direction: str = "fwd") -> Mechanism:
    """The mechanism of an algorithm; an algorithm that no registry row names is taken for an implicit GEMM."""
    entry = _INDEX.get((library, direction, name))
    return entry.mechanism if entry else "implicit_gemm"
