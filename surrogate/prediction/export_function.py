"""Picks for a list of problems as a function that answers for any problem: plain Python, or lists of Triton's configs.

The function is a decision tree over sizes and settings (`surrogate.prediction.decision_tree`), learned from the
predicted times of all candidates on the listed problems.
"""

import json
import keyword
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, log
from textwrap import wrap
from typing import Any, NamedTuple, Self

import numpy as np

from surrogate.features.description import Configuration, Value
from surrogate.features.errors import InputError
from surrogate.features.families import DescribedFamily
from surrogate.prediction.decision_tree import (
    FOLDS,
    Leaf,
    Node,
    Slowdown,
    choices,
    complementing,
    held_out_slowdown,
    learn,
    leaves_of,
)
from surrogate.prediction.engine import Candidate
from surrogate.prediction.export import EMPTY, Picks, key_of
from surrogate.prediction.results import MEASURED, Selection

LEAVES = 32
TOP = 3
"""Configurations of a leaf for Triton to time."""
MOST_BEST = 20
"""Of each problem so many of its fastest candidates are looked at,"""
MOST_CANDIDATES = 400
"""and together, beside the fastest of every problem, those that are among the fastest most often."""
WIDTH = 118
"""Characters of a line of comment."""
TRITON_ARGUMENTS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Parameters that are ``triton.Config``'s own arguments."""


class Choice(NamedTuple):
    """A candidate, whatever the setting of the problem; ``solver`` is "" where none is chosen."""

    library: str
    algorithm: str
    solver: str

    @classmethod
    def of(cls, candidate: Candidate) -> Self:
        """Without what depends on the setting."""
        return cls(candidate.library, candidate.algorithm, candidate.solver)


class Column(NamedTuple):
    """What the tree asks for: the number of a size, or (``value`` given) 0 where a setting has the value, else 1."""

    name: str
    value: str | None = None

    def of(self, problem: Mapping[str, Any]) -> int:
        """The number for a problem's sizes and settings."""
        return int(problem[self.name]) if self.value is None else int(problem[self.name] != self.value)

    def text(self, threshold: int) -> str:
        """As an expression of Python."""
        name = argument(self.name)
        return f"{name} <= {threshold}" if self.value is None else f"{name} == {_literal(self.value)}"


@dataclass(frozen=True)
class DecisionFunction:
    """A ``tree`` that was learned from ``picks``.

    ``columns`` are what it asks for, ``cost`` (problems, candidates) as of `surrogate.prediction.decision_tree`;
    ``settings``: name → values among the listed problems, the commonest first. ``slowdown`` is that of the tree on the
    listed problems, ``held_out`` that of trees on shapes that they never saw (None: there is one shape).
    """

    picks: Picks
    sizes: tuple[str, ...]
    settings: Mapping[str, tuple[str, ...]]
    columns: tuple[Column, ...]
    candidates: tuple[Choice, ...]
    cost: np.ndarray
    tree: Node
    slowdown: Slowdown
    held_out: Slowdown | None

    @property
    def leaves(self) -> list[Leaf]:
        """From left to right."""
        return leaves_of(self.tree)

    @property
    def summary(self) -> str:
        """How large and how good the function is."""
        count = len(self.leaves)
        leaves = f"{count} {'leaf' if count == 1 else 'leaves'}"
        return (
            f"{leaves}, predicted slowdown {_said(self.slowdown, len(self.cost))} on {len(self.cost)} listed problems"
        )

    @property
    def head(self) -> list[str]:
        """What a comment at the head says, line by line."""
        picks = self.picks
        first = picks.selections[0]
        where = first.gpu if picks.releases == picks.family.name else f"{first.gpu}, {picks.releases}"
        measured = sum(each.estimates[0].source == MEASURED for each in picks.feasible)
        problems = len(self.cost)
        left_out = len(picks.selections) - problems
        held_out = picks.held_out.get(picks.family.primary, {}).get("slowdown_macro")
        tree = (
            f"{_said(self.held_out, problems)} (shapes of the listed problems left out in {FOLDS} folds or fewer;"
            " predicted time of the tree's choice against that of the bundle's own pick)"
            if self.held_out
            else "not known, since all listed problems have one shape"
        )
        bundle = (
            f"{held_out:.3f} (measured shapes left out of training; measured time of the bundle's pick against the"
            " fastest's)"
            if held_out
            else "not known"
        )
        return [
            f"What to run of {picks.family.name} on {where}: a decision tree by SEER Surrogate.",
            "Times behind it are predictions, not measurements"
            + (f", but for {_counted(measured, 'problem')} of the bundle's own data." if measured else "."),
            f"Bundle: {picks.bundle or 'without a name'}, model {picks.model}, fitted on {picks.data}"
            f" ({', '.join(picks.gpus) or 'unknown GPUs'}).",
            f"Listed problems: {problems}" + (f", and {left_out} left out, which nothing runs" if left_out else "")
            + f". Leaves: {len(self.leaves)}.",
            f"Predicted slowdown on the listed problems: {_said(self.slowdown, problems)}.",
            f"Held-out slowdown of the tree: {tree}.",
            f"Held-out slowdown of the bundle: {bundle}.", *first.notes,
        ]  # fmt: skip


def decision_function(picks: Picks, leaves: int = LEAVES, *, configurations_only: bool = False) -> DecisionFunction:
    """Learn a tree of at most ``leaves`` leaves from the picks of a list of problems.

    ``configurations_only`` leaves out candidates without parameters, such as a library's own kernel. Raises
    `InputError` for no leaf, and where no problem has a pick.
    """
    if leaves < 1:
        raise InputError(f"leaves is {leaves}; a tree has 1 or more")
    # 1. The listed problems with a pick: their times, sizes and settings.
    listed = [(each.problem, _times_us(each, configurations_only)) for each in picks.feasible]
    listed = [(problem, times_us) for problem, times_us in listed if times_us]
    if not listed:
        raise InputError(EMPTY)
    family = picks.family
    names = (*family.size_names, *family.setting_names)
    problems = [dict(zip(names, [*sizes, *texts], strict=True)) for sizes, texts in (key_of(p) for p, _ in listed)]
    # 2. What the function is asked with: sizes that a listed problem has, and every setting.
    sizes = family.description.sizes if isinstance(family, DescribedFamily) else family.size_names
    sizes = tuple(name for name in sizes if any(name in problem.to_dict() for problem, _ in listed))
    settings = {
        name: tuple(str(value) for value, _ in Counter(problem[name] for problem in problems).most_common())
        for name in family.setting_names
    }
    asked = [Column(name, value) for name, values in settings.items() if len(values) > 1 for value in values]
    columns = (*asked, *map(Column, sizes))
    # 3. The tree, and trees that did not see a shape.
    table = np.array([[column.of(problem) for column in columns] for problem in problems], dtype=np.int64)
    known, cost = cost_table([times_us for _, times_us in listed])
    tree = learn(table, cost, leaves)
    shape = np.array(["|".join(str(problem[name]) for name in family.shape_names) for problem in problems])
    return DecisionFunction(
        picks=picks, sizes=sizes, settings=settings, columns=columns, candidates=known, cost=cost, tree=tree,
        slowdown=Slowdown.of(cost, choices(tree, table)), held_out=held_out_slowdown(table, cost, shape, leaves),
    )  # fmt: skip


def _times_us(selection: Selection, configurations_only: bool) -> dict[Choice, float]:
    """Choice → predicted time in µs, the fastest first."""
    return {
        Choice.of(estimate.candidate): estimate.time_us
        for estimate in selection.estimates
        if estimate.candidate.solver or not configurations_only
    }


def cost_table(times_us: Sequence[Mapping[Choice, float]]) -> tuple[tuple[Choice, ...], np.ndarray]:
    """The choices that are worth looking at, and (problems, choices) log(time / the problem's best), inf where one does
    not run. ``times_us`` of every problem has the fastest first.
    """
    fastest = [next(iter(times)) for times in times_us]
    votes = Counter(choice for times in times_us for choice in islice(times, MOST_BEST))
    known = tuple(dict.fromkeys((*fastest, *(choice for choice, _ in votes.most_common(MOST_CANDIDATES)))))
    rows = [
        [log(times[choice] / times[best]) if choice in times else inf for choice in known]
        for times, best in zip(times_us, fastest, strict=True)
    ]
    return known, np.array(rows)


def python_function(function: DecisionFunction) -> str:
    """A file with ``select``, which needs no import."""
    doc = f"The {'configuration' if isinstance(function.picks.family, DescribedFamily) else '(library, algorithm)'} to run."

    def leaf_lines(leaf: Leaf) -> list[str]:
        own = Slowdown.of(function.cost[leaf.rows], np.full(len(leaf.rows), leaf.candidate))
        said = f"# {_counted(len(leaf.rows), 'problem')}, slowdown {_said(own, len(leaf.rows))}"
        return [said, f"return {_answer(function, function.candidates[leaf.candidate])}"]

    body = _lines(function, function.tree, leaf_lines)
    return _file(function, [*_definition(function, "select", doc), *body])


def triton_configs(function: DecisionFunction, top: int = TOP) -> str:
    """A file with ``configs``, which gives the ``top`` configurations to let Triton choose among.

    The first is the leaf's; each further one is the best addition to those before it. Raises `InputError` for a family
    without configurations, and for fewer than one.
    """
    if top < 1:
        raise InputError(f"top is {top}; give 1 or more configurations of a leaf")
    lists = ["CONFIGS = ["]
    number_of: dict[int, int] = {}
    for number, leaf in enumerate(function.leaves):
        number_of[id(leaf)] = number
        lists += [f"    [  # {number}: {_counted(len(leaf.rows), 'problem')}"]
        for place in complementing(function.cost[leaf.rows], leaf.candidate, top):
            lists.append(f"        {_triton_config(_configuration(function, function.candidates[place]))},")
        lists += ["    ],"]
    body = _lines(function, function.tree, lambda leaf: [f"return CONFIGS[{number_of[id(leaf)]}]"])
    what = "The configurations to time, the most promising first."
    defined = _definition(function, "configs", what)
    return _file(function, ["import triton", "", *lists, "]", "", "", *defined, *body])


class Written(NamedTuple):
    """The text of a file, and what is to be said of it."""

    text: str
    summary: str


def export_function(picks: Picks, form: str, *, leaves: int = LEAVES, top: int = TOP) -> Written:
    """The decision function as ``python`` or ``triton``.

    Raises `InputError` as `decision_function` and `triton_configs`, and for ``triton`` of a family that has no
    configurations.
    """
    if form == "triton" and not isinstance(picks.family, DescribedFamily):
        raise InputError(f"triton holds configurations of a described kernel, {picks.family.name} has none; use python")
    function = decision_function(picks, leaves, configurations_only=form == "triton")
    text = triton_configs(function, top) if form == "triton" else python_function(function)
    return Written(text, function.summary)


def _file(function: DecisionFunction, lines: Sequence[str]) -> str:
    plain = ("".join(char if char.isprintable() else "?" for char in line) for line in function.head)
    head = [text for line in plain for text in wrap(line, WIDTH, initial_indent="# ", subsequent_indent="#   ")]
    return "\n".join([*head, "", *lines]) + "\n"


def _definition(function: DecisionFunction, name: str, doc: str) -> list[str]:
    """The first lines of a function: its arguments, and refusals of settings that no listed problem has.

    Sizes that may be left out come behind the others, with what stands for them.
    """
    sizes = [size for size in function.picks.family.sizes if size.name in function.sizes]
    needed = [argument(size.name) for size in sizes if size.default is None]
    optional = [f"{argument(s.name)}={None if s.follows else s.default}" for s in sizes if s.default is not None]
    texts = [f"{argument(setting)}={_literal(values[0])}" for setting, values in function.settings.items()]
    signature = wrap(
        f"def {name}({', '.join([*needed, *optional, *texts])}):", WIDTH, subsequent_indent=" " * len(f"def {name}(")
    )
    lines = [*signature, f'    """{doc}"""']
    for size in sizes:
        if size.follows:
            own, other = argument(size.name), argument(size.follows)
            lines.append(f"    {own} = {other} if {own} is None else {own}")
    for setting, values in function.settings.items():
        known = ", ".join(map(_literal, values))
        lines.append(f"    if {argument(setting)} not in ({known}{',' * (len(values) == 1)}):")
        lines.append(f"        raise ValueError({f'{setting}: the listed problems have only {known}'!r})")
    return lines


def _lines(
    function: DecisionFunction, node: Node, leaf_lines: Callable[[Leaf], list[str]], indent: str = "    "
) -> list[str]:
    """The part of the function from a node on."""
    if isinstance(node, Leaf):
        return [indent + line for line in leaf_lines(node)]
    question = function.columns[node.column].text(node.threshold)
    inner = _lines(function, node.low, leaf_lines, indent + "    ")
    return [f"{indent}if {question}:", *inner, *_lines(function, node.high, leaf_lines, indent)]


def _configuration(function: DecisionFunction, choice: Choice) -> Configuration:
    """The parameters of a described kernel's candidate; none where it has none."""
    family = function.picks.family
    return (
        family.description.configuration(choice.solver) if isinstance(family, DescribedFamily) and choice.solver else {}
    )


def _answer(function: DecisionFunction, choice: Choice) -> str:
    """What the function returns for a choice."""
    configuration = _configuration(function, choice)
    return _dictionary(configuration) if configuration else f"({', '.join(map(_literal, filter(None, choice)))})"


def _dictionary(values: Mapping[str, Value]) -> str:
    return "{" + ", ".join(f"{_literal(name)}: {_literal(value)}" for name, value in values.items()) + "}"


def _triton_config(configuration: Configuration) -> str:
    own = "".join(f", {name}={configuration[name]!r}" for name in TRITON_ARGUMENTS if name in configuration)
    kernel = {name: value for name, value in configuration.items() if name not in TRITON_ARGUMENTS}
    return f"triton.Config({_dictionary(kernel)}{own})"


def argument(name: str) -> str:
    """The argument for a size or setting; a word of Python's gets an underscore behind it."""
    return f"{name}_" if keyword.iskeyword(name) else name


def _literal(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _said(slowdown: Slowdown, problems: int) -> str:
    fails = f", fails on {slowdown.failures} of {problems}" if slowdown.failures else ""
    return f"{slowdown.factor:.3f}{fails}" if slowdown.failures < problems else f"unknown{fails}"
