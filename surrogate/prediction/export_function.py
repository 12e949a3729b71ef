"""Picks for a list of problems as a function that answers for any problem: plain Python, or lists of Triton's configs.

The function is a decision tree over sizes and settings (`surrogate.prediction.decision_tree`), learned from the
predicted times of all candidates on the listed problems.
"""

import json
import keyword
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, log
from typing import Any, NamedTuple

import numpy as np

from surrogate.features.description import Configuration, Value
from surrogate.features.errors import InputError
from surrogate.features.families import DescribedFamily
from surrogate.features.gpu import canonical
from surrogate.prediction import decision_tree
from surrogate.prediction.decision_tree import Leaf, Node, Slowdown
from surrogate.prediction.export import EMPTY, Picks, sizes_and_settings
from surrogate.prediction.results import MEASURED, Selection
from surrogate.report.tables import template

LEAVES = 32
TOP = 3
"""Configurations of a leaf for Triton to time."""
MAX_BEST = 20
"""Of each problem so many of its fastest candidates are looked at,"""
MAX_CANDIDATES = 400
"""and together, beside the fastest of every problem, those that are among the fastest most often."""
TRITON_ARGUMENTS = {
    "num_warps": "num_warps",
    "warps": "num_warps",
    "num_stages": "num_stages",
    "stages": "num_stages",
    "num_ctas": "num_ctas",
    "ctas": "num_ctas",
    "maxnreg": "maxnreg",
}
"""Parameter → which of ``triton.Config``'s own arguments it is; others are the kernel's."""


Choice = tuple[str, str, str]
"""A candidate, whatever the setting of the problem: library, algorithm, and the solver, "" where none is chosen."""


class SizeColumn(NamedTuple):
    """What the tree asks for: the number of a size, or (``value`` given) 0 where a setting has the value, else 1."""

    name: str
    value: str | None = None

    def of(self, problem: Mapping[str, Any]) -> int:
        """The number for a problem's sizes and settings."""
        return problem[self.name] if self.value is None else int(problem[self.name] != self.value)

    def text(self, threshold: int) -> str:
        """As an expression of Python."""
        compared = f"<= {threshold}" if self.value is None else f"== {literal(self.value)}"
        return f"{argument(self.name)} {compared}"


@dataclass(frozen=True)
class DecisionFunction:
    """A ``tree`` that was learned from ``picks``.

    ``columns`` are what it asks for, ``cost`` (problems, candidates) as of `surrogate.prediction.decision_tree`;
    ``settings``: name → values among the listed problems, the commonest first. ``slowdown`` is that of the tree on the
    listed problems, ``held_out`` that of trees on shapes that they never saw (None: there is one shape).
    """

    picks: Picks
    settings: Mapping[str, tuple[str, ...]]
    columns: tuple[SizeColumn, ...]
    candidates: tuple[Choice, ...]
    cost: np.ndarray
    tree: Node
    slowdown: Slowdown
    held_out: Slowdown | None

    def configuration(self, candidate: int) -> Configuration:
        """The parameters of a described kernel's candidate; none where it has none."""
        family, text = self.picks.family, self.candidates[candidate][2]
        return family.description.configuration(text) if isinstance(family, DescribedFamily) and text else {}

    def candidate(self, leaf: Leaf) -> str:
        """A leaf's candidate as an expression of Python: its parameters if it has any, else its names."""
        names = ", ".join(map(literal, filter(None, self.candidates[leaf.candidate])))
        return dictionary(self.configuration(leaf.candidate)) or f"({names})"

    def configurations(self, leaf: Leaf, top: int) -> list[str]:
        """The arguments of ``triton.Config`` of a leaf's ``top`` configurations."""
        places = decision_tree.complementing(self.cost[leaf.rows], leaf.candidate, top)
        return [triton_arguments(self.configuration(place)) for place in places]

    def lines(self, node: Node, returned: Mapping[int, str], indent: str = "    ") -> list[str]:
        """The function's body from a node on; ``returned``: first row of a leaf → what it returns."""
        if isinstance(node, Leaf):
            own = Slowdown.of(self.cost[node.rows], np.full(len(node.rows), node.candidate))
            comment = f"{indent}# listed problems: {len(node.rows)}, slowdown: {slowdown_text(own)}"
            return [comment, f"{indent}return {returned[node.rows[0]]}"]
        inner = self.lines(node.low, returned, indent + "    ")
        question = self.columns[node.column].text(node.threshold)
        return [f"{indent}if {question}:", *inner, *self.lines(node.high, returned, indent)]


def export_function(picks: Picks, form: str, *, leaves: int = LEAVES, top: int = TOP) -> tuple[str, str]:
    """The picks as a function, and a line that says how large and how good it is.

    ``python``: ``select``, which gives a candidate and needs no import. ``triton``: ``configs``, which gives a list of
    ``top`` ``triton.Config``: the leaf's, then each time what adds most to those before it. Raises `InputError` as
    `decision_function`, for fewer than one configuration, and for ``triton`` of a family that has none.
    """
    family = picks.family
    described = isinstance(family, DescribedFamily)
    if form == "triton" and not described:
        raise InputError(f"triton holds configurations of a described kernel, {family.name} has none; use python")
    if top < 1:
        raise InputError(f"top is {top}; give 1 or more configurations of a leaf")
    function = decision_function(picks, leaves, configurations_only=form == "triton")
    # 1. What each leaf returns: its candidate, or its place among lists of configurations.
    every_leaf = decision_tree.leaves_of(function.tree)
    lists = [function.configurations(leaf, top) for leaf in every_leaf] if form == "triton" else []
    answers = [f"CONFIGS[{number}]" for number in range(len(lists))] or map(function.candidate, every_leaf)
    returned = {leaf.rows[0]: answer for leaf, answer in zip(every_leaf, answers, strict=True)}
    # 2. Arguments: sizes that may be left out come behind the others, with what stands for them; then settings.
    sizes = [size for size in family.sizes if SizeColumn(size.name) in function.columns]
    sizes.sort(key=lambda size: size.default is not None)
    absent = {size.name: "" if size.default is None else f"={None if size.follows else size.default}" for size in sizes}
    settings = {argument(name): [literal(value) for value in values] for name, values in function.settings.items()}
    first = picks.selections[0]
    evaluated = picks.held_out if first.gpu in map(canonical, picks.gpus) else {}
    what = "configurations to time, the most promising first" if lists else "configuration to run"
    text = template("function.py.j2", "surrogate.prediction").render(
        picks=picks,
        family=family.name,
        notes=first.notes,
        folds=decision_tree.FOLDS,
        lists=lists,
        where=first.gpu if described else f"{first.gpu}, {picks.releases}",
        measured=sum(each.estimates[0].source == MEASURED for each in picks.feasible),
        problems=len(function.cost),
        left_out=len(picks.selections) - len(function.cost),
        leaves=len(every_leaf),
        slowdown=slowdown_text(function.slowdown),
        held_out=function.held_out and slowdown_text(function.held_out),
        bundle_slowdown=evaluated.get(family.primary, {}).get("slowdown_macro"),
        gpu=first.gpu,
        name="configs" if lists else "select",
        doc=f"The {what if described else '(library, algorithm) to run'}.",
        sizes=[argument(name) + default for name, default in absent.items()],
        texts=[f"{name}={values[0]}" for name, values in settings.items()],
        followers={argument(size.name): argument(size.follows) for size in sizes if size.follows},
        settings=settings,
        body="\n".join(function.lines(function.tree, returned)),
    )
    plain = "".join(char if char.isprintable() or char == "\n" else "?" for char in text)
    summary = (
        f"leaves: {len(every_leaf)}, predicted slowdown on the listed problems: {slowdown_text(function.slowdown)}"
    )
    return f"{plain}\n", summary


def decision_function(picks: Picks, leaves: int = LEAVES, *, configurations_only: bool = False) -> DecisionFunction:
    """Learn a tree of at most ``leaves`` leaves from the picks of a list of problems.

    ``configurations_only`` leaves out candidates without parameters, such as a library's own kernel. Raises
    `InputError` for no leaf, and where no problem has a pick.
    """
    if leaves < 1:
        raise InputError(f"leaves is {leaves}; a tree has 1 or more")
    # 1. The listed problems with a pick: their times, sizes and settings.
    times = {each.problem: _times_us(each, configurations_only) for each in picks.feasible}
    times = {problem: times_us for problem, times_us in times.items() if times_us}
    if not times:
        raise InputError(EMPTY)
    family = picks.family
    problems = [sizes_and_settings(problem) for problem in times]
    # 2. What the function is asked with: sizes that a listed problem has, and every setting.
    sizes = [name for name in family.size_names if any(name in problem.to_dict() for problem in times)]
    settings = {
        name: tuple(value for value, _ in Counter(problem[name] for problem in problems).most_common())
        for name in family.setting_names
    }
    asked = [SizeColumn(name, value) for name, values in settings.items() if len(values) > 1 for value in values]
    columns = (*asked, *map(SizeColumn, sizes))
    # 3. The tree, and trees that did not see a shape.
    table = np.array([[column.of(problem) for column in columns] for problem in problems], dtype=np.int64)
    candidates, cost = cost_table([*times.values()])
    tree = decision_tree.learn(table, cost, leaves)
    shape = np.array(["|".join(str(problem[name]) for name in family.shape_names) for problem in problems])
    return DecisionFunction(
        picks=picks,
        settings=settings,
        columns=columns,
        candidates=candidates,
        cost=cost,
        tree=tree,
        slowdown=Slowdown.of(cost, decision_tree.choices(tree, table)),
        held_out=decision_tree.held_out_slowdown(table, cost, shape, leaves),
    )


def _times_us(selection: Selection, configurations_only: bool) -> dict[Choice, float]:
    """Choice → predicted time in µs, the fastest first."""
    return {
        (candidate.library, candidate.algorithm, candidate.solver): time_us
        for candidate, time_us, *_ in selection.estimates
        if candidate.solver or not configurations_only
    }


def cost_table(times_us: Sequence[Mapping[Choice, float]]) -> tuple[tuple[Choice, ...], np.ndarray]:
    """The choices that are worth looking at, and (problems, choices) log(time / the problem's best), inf where one does
    not run. ``times_us`` of every problem has the fastest first.
    """
    fastest = [next(iter(times)) for times in times_us]
    votes = Counter(choice for times in times_us for choice in islice(times, MAX_BEST))
    known = tuple(dict.fromkeys((*fastest, *(choice for choice, _ in votes.most_common(MAX_CANDIDATES)))))
    rows = [
        [log(times[choice] / times[best]) if choice in times else inf for choice in known]
        for times, best in zip(times_us, fastest, strict=True)
    ]
    return known, np.array(rows)


def triton_arguments(configuration: Configuration) -> str:
    """What ``triton.Config`` is called with."""
    kernel = dict(configuration)
    own: dict[str, Value] = {}
    for name, argument_name in TRITON_ARGUMENTS.items():  # beside num_warps, warps is the kernel's
        if name in kernel and argument_name not in own:
            own[argument_name] = kernel.pop(name)
    return ", ".join([dictionary(kernel) or "{}", *(f"{name}={value!r}" for name, value in own.items())])


def argument(name: str) -> str:
    """The argument for a size or setting; a word of Python's gets an underscore behind it."""
    return f"{name}_" if keyword.iskeyword(name) else name


def literal(value: Value) -> str:
    """A value in Python; plain texts in double quotes."""
    return json.dumps(value) if isinstance(value, str) and value.isascii() and value.isprintable() else ascii(value)


def dictionary(values: Mapping[str, Value]) -> str:
    """In Python; nothing for an empty one."""
    inner = ", ".join(f"{literal(name)}: {literal(value)}" for name, value in values.items())
    return f"{{{inner}}}" if inner else ""


def slowdown_text(slowdown: Slowdown) -> str:
    """A slowdown in words."""
    fails = f", failures: {slowdown.failures}" if slowdown.failures else ""
    return f"{slowdown.factor:.3f}{fails}" if slowdown.factor == slowdown.factor else f"unknown{fails}"
