"""Which problems an algorithm accepts, as its library documents it: rules per library, direction and algorithm.

Sources: cuDNN API reference, "supported algorithms" of cudnnConvolutionForward, BackwardData and BackwardFilter;
statuses of cuDNN 7.5 to 7.6.4. Where a release or a device differs, statuses in the data win
(surrogate.models.support).
"""

import tomllib
from pathlib import Path
from typing import NamedTuple

from .algorithms import algorithm
from .arithmetic import Formula
from .elementwise import Number
from .gpu import gpu
from .problem import DIRECTIONS, FLAGS, SIZE_COLUMNS, Problem


class Rule(NamedTuple):
    """A ``condition`` over a problem and its GPU's compute capability, and what is said where it does not hold."""

    reason: str
    condition: Formula

    def holds(self, problem: Problem, compute_capability: float) -> Number:
        """Not 0 where it holds; a number, or (rows,)."""
        return self.condition.value({name: getattr(problem, name, compute_capability) for name in self.condition.names})


_TABLE = tomllib.loads(Path(__file__).with_name("support.toml").read_text(encoding="utf-8"))
_NAMES = frozenset((*SIZE_COLUMNS, *FLAGS, "compute_capability"))
_RULES = {
    name: Rule(reason, Formula.parse(condition, f"rule {name}", _NAMES))
    for name, (reason, condition) in _TABLE["rules"].items()
}
RULES: dict[tuple[str, str, str], tuple[Rule, ...]] = {
    (library, direction, algorithm): tuple(_RULES[rule] for rule in rules)
    for library, of_library in _TABLE["algorithms"].items()
    for named, rows in of_library.items()
    for direction in (DIRECTIONS if named == "all" else (named,))
    for algorithm, rules in rows.items()
}
"""(library, direction, algorithm) → its rules; an algorithm without a row accepts every problem."""


def unsupported_reason(
    name: str, problem: Problem, *, library: str = "cudnn", direction: str = "fwd", gpu_name: str = ""
) -> str | None:
    """Why the library refuses ``problem`` (a `Conv`) with this algorithm, or None where it takes it.

    Raises `InputError` for an unknown algorithm.
    """
    algorithm(name, library, direction)
    capability = gpu(gpu_name).compute_capability if gpu_name and library == "cudnn" else 0.0
    for rule in RULES.get((library, direction, name), ()):
        if not rule.holds(problem, capability):
            return rule.reason
    return None
