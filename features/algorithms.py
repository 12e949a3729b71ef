"""The registry of algorithms (`algorithms.toml`, `support.toml`): cuDNN's enums for three directions, and MIOpen's.

A *mechanism* is the way in which an algorithm works. It determines the arithmetic and the analytical terms. Support
rules state the problems that an algorithm accepts, as its library documents them. Sources: cuDNN API reference,
"supported algorithms" of cudnnConvolutionForward, BackwardData and BackwardFilter; statuses of cuDNN 7.5 to 7.6.4. If a
release or a device differs, statuses in the data override the rules (surrogate.models.support).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from packaging.version import Version

from .elementwise import ElementwiseFormula, Number
from .errors import InputError, check_choice, nearest, read_toml
from .gpu import gpu
from .problem import DIRECTIONS, FLAGS, SIZE_COLUMNS, Problem

Mechanism = str
"""A key of `mechanisms.toml`."""
MECHANISM_ROWS: dict[str, dict[str, Any]] = read_toml(__file__, "mechanisms.toml")
"""Mechanism → ``kernel``, an algorithm with the same kernels, and ``tiles``, three tiles as [rows, columns]."""
MECHANISMS: tuple[Mechanism, ...] = tuple(MECHANISM_ROWS)
MECHANISM_CODE: dict[str, int] = {name: code for code, name in enumerate(MECHANISMS)}


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm of a library in one direction.

    ``enum`` is the library's own number (−1 if it has none). ``deterministic``: whether two runs give the same bits, by
    the library's documentation; None if it does not say. ``implemented`` is False for enum values that no release
    ever supported.
    """

    library: str
    direction: str
    name: str
    mechanism: Mechanism
    enum: int = -1
    deterministic: bool | None = None
    implemented: bool = True


def _rows(table: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[tuple[str, str, str, Any]]:
    """Yield library, direction, algorithm and its row; a table's direction "all" means all three directions."""
    for library, by_direction in table.items():
        for directions, rows in by_direction.items():
            for direction in DIRECTIONS if directions == "all" else (directions,):
                yield from ((library, direction, name, row) for name, row in rows.items())


_ALGORITHMS = read_toml(__file__)
ALGORITHMS = tuple(Algorithm(library, way, name, **row) for library, way, name, row in _rows(_ALGORITHMS))
"""All registered algorithms, by library, direction and enum value."""

FASTEST = "FASTEST"
"""Candidate of tables that hold only the time of a library's fastest algorithm for a problem."""
VENDOR_LIBRARIES = {"nvidia": "cudnn", "amd": "miopen", "cpu": "reference"}
"""Vendor of a GPU → the library that runs convolutions on it."""
CUDNN_GRAPH = "cudnn-graph"
"""cuDNN's graph API. Its candidates are engine configurations, such as ``eng62_k2=9_k13=1_k18=0``. This registry has
none of them, because they change with every release of cuDNN."""
BENCHMARK_LIMIT = 10
"""Number of listed configurations that PyTorch times under ``torch.backends.cudnn.benchmark``, by default
(``torch.backends.cudnn.benchmark_limit``)."""
LIBRARIES: tuple[str, ...] = tuple(dict.fromkeys(a.library for a in ALGORITHMS))
_INDEX: dict[tuple[str, str, str], Algorithm] = {(a.library, a.direction, a.name): a for a in ALGORITHMS}


@cache
def algorithms(library: str, direction: str = "fwd") -> tuple[Algorithm, ...]:
    """Return all algorithms of a library in a direction, in enum order. Raises `InputError` for an unknown library."""
    check_choice("library", library, LIBRARIES)
    return tuple(a for a in ALGORITHMS if a.library == library and a.direction == direction)


def algorithm(name: str, library: str = "cudnn", direction: str = "fwd") -> Algorithm:
    """Return an algorithm by name. Raises `InputError` with the nearest names."""
    entry = _INDEX.get((library, direction, name))
    if entry is None:
        names = [a.name for a in algorithms(library, direction)]
        listed = f"{', '.join(names)}{nearest(name, names)}"
        raise InputError(f"algorithm {name!r} is no {library} {direction} algorithm; known: {listed}")
    return entry


def mechanism_of(name: str, library: str = "cudnn", direction: str = "fwd") -> Mechanism:
    """Return the mechanism of an algorithm; an unregistered algorithm is treated as an implicit GEMM."""
    entry = _INDEX.get((library, direction, name))
    return entry.mechanism if entry else "implicit_gemm"


class SupportRule(NamedTuple):
    """A ``condition`` on a problem and its GPU's compute capability, and the ``reason`` to give if it is false."""

    reason: str
    condition: ElementwiseFormula

    def holds(self, problem: Problem, compute_capability: float) -> Number:
        """Return a value other than 0 if the condition is true: a number, or (rows,)."""
        return self.condition.value({name: getattr(problem, name, compute_capability) for name in self.condition.names})


_TABLE = read_toml(__file__, "support.toml")
_NAMES = frozenset((*SIZE_COLUMNS, *FLAGS, "compute_capability"))
_RULES = {
    name: SupportRule(reason, ElementwiseFormula.parse(condition, f"rule {name}", _NAMES))
    for name, (reason, condition) in _TABLE["rules"].items()
}
RULES: dict[tuple[str, str, str], tuple[SupportRule, ...]] = {
    (library, direction, name): tuple(_RULES[rule] for rule in rules)
    for library, direction, name, rules in _rows(_TABLE["algorithms"])
}
"""(library, direction, algorithm) → its rules; an algorithm without a row accepts every problem."""
_KERNEL_RULES = [(re.compile(pattern, re.IGNORECASE), names) for pattern, names in _TABLE["kernels"].items()]


def missing_hardware(library: str, name: str, gpu_name: str) -> str | None:
    """Return why a kernel of a framework does not run on a registered GPU, by the kernel's documentation, or None."""
    capability = gpu(gpu_name).compute_capability
    rules = (_RULES[rule] for pattern, names in _KERNEL_RULES if pattern.search(f"{library}/{name}") for rule in names)
    return next((rule.reason for rule in rules if not rule.condition.value({"compute_capability": capability})), None)


def has_fewer_flops(name: str) -> bool:
    """Return whether an algorithm or solver needs fewer operations than the direct convolution."""
    return "WINOGRAD" in name.upper() or "FFT" in name.upper()


def unsupported_reason(
    name: str, problem: Problem, *, library: str = "cudnn", direction: str = "fwd", gpu_name: str = ""
) -> str | None:
    """Return the reason why the library refuses ``problem`` (a `Conv`) with this algorithm, or None if it accepts it.

    Raises `InputError` for an unknown algorithm.
    """
    algorithm(name, library, direction)
    capability = gpu(gpu_name).compute_capability if gpu_name and library == "cudnn" else 0.0
    for rule in RULES.get((library, direction, name), ()):
        if not rule.holds(problem, capability):
            return rule.reason
    return None


RELEASE = r"\d{1,18}(?:\.\d{1,18})*(?:[._-]?(?:dev|a|b|rc|post)\d{1,18})*"
"""A release with its stages, inside any text."""


def version_number(version: str) -> tuple[int, ...]:
    """Return the first dotted number in a version's text: ``7.6.4`` → (7, 6, 4), ``find-db v2`` → (2,)."""
    number = re.search(r"\d{1,18}(?:\.\d{1,18})*", str(version))
    return tuple(int(part) for part in number[0].split(".")) if number else (0,)


def version_key(version: str) -> tuple[Version, str]:
    """Return a sort key for versions, as PEP 440 orders them: 1.3.0.dev1 < 1.3.0rc9 < 1.3.0rc20 < 1.3.0 < 1.3.0.post1.

    A text that is no such version is sorted by the first version inside it (``rocm-6.1``, ``7.6.5-cuda10``). A text
    without a number comes first. Texts of equal versions are sorted alphabetically.
    """
    try:
        return Version(version), version
    except ValueError:
        inner = re.search(RELEASE, version)
        return Version(inner[0] if inner else "0"), version


def newest(versions: Iterable[str]) -> str:
    """Return the newest version by `version_key`, or "" if there are none."""
    return max(versions, key=version_key, default="")


def version_column(version: str) -> float:
    """Return a version as one number, 7.6.4 → 7.0604, so that a threshold separates releases."""
    return sum(part / 100.0**position for position, part in enumerate(version_number(version)[:3]))
