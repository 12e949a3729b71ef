"""Write the picks of a list of problems as a function that answers for any problem: Python, or lists of Triton configs.

The function is a decision tree over sizes and settings. It is learned from the predicted times of all candidates on the
listed problems. ``columns`` (problems, columns) are integers: sizes, and 0 or 1 for settings. ``cost`` (problems,
candidates) is log(time of the candidate / time of the problem's best), or infinite if the candidate does not run. The
candidate of a leaf fails for the fewest problems of the leaf. If several do, the one with the smallest total cost is
taken.
"""

import json
import keyword
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import exp, inf, isqrt, log, nan
from typing import Any, NamedTuple

import numpy as np

from surrogate.features import VENDOR_LIBRARIES, Configuration, InputError, Value, canonical
from surrogate.features.algorithms import RULES
from surrogate.features.families import DescribedFamily
from surrogate.prediction.export import EMPTY, Picks, sizes_and_settings
from surrogate.prediction.results import MEASURED, Selection, releases
from surrogate.report.tables import template

FAILURE = 1e6
"""Cost of a candidate that does not run. It exceeds the sum of all other costs of a table."""
MIN_GAIN = 1e-6
"""Minimum gain of a split, in log time summed over problems. A smaller gain is rounding."""
MAX_PAIRS = 48
"""Number of first splits, evenly drawn, that are tried together with a second split. Single splits are all tried."""
MAX_DEPTH = 60
"""Maximum number of branches above a leaf. Python refuses more than 100 levels of indentation."""
FOLDS = 5
TIE = 1e-9
"""Weight of a candidate's total cost, which breaks ties between candidates with equal gains."""


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A leaf: its ``candidate`` (column of the costs), and ``rows``, the training problems that reach it."""

    candidate: int
    rows: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A branch: a problem goes to ``low`` if its ``column`` is at most ``threshold``, else to ``high``."""

    column: int
    threshold: int
    low: "Node"
    high: "Node"


Node = Leaf | Branch


class Slowdown(NamedTuple):
    """The slowdown of a choice over problems.

    ``factor`` is the geometric mean of time / best time over the problems that the choice runs (NaN if it runs none).
    ``failures`` is the number of the other problems.
    """

    factor: float
    failures: int

    @classmethod
    def of(cls, cost: np.ndarray, choice: np.ndarray) -> "Slowdown":
        """Return the slowdown of one candidate per problem, ``choice`` (problems,); −1 is a failure."""
        own = np.where(choice < 0, inf, cost[np.arange(len(cost)), choice])
        runs = np.isfinite(own)
        return cls(exp(own[runs].mean()) if runs.any() else nan, int((~runs).sum()))


class _Split(NamedTuple):
    """A split of rows: the column is at most ``lower`` on one side, and at least ``upper`` on the other.

    ``gain`` is the cost that the split saves.
    """

    gain: float
    column: int = 0
    lower: int = 0
    upper: int = 0


def learn_tree(columns: np.ndarray, cost: np.ndarray, leaves: int) -> Node:
    """Return a tree with at most ``leaves`` leaves; each step splits the leaf with the largest gain.

    More leaves never cost more on the training problems, because the first splits are the same.
    """
    finite = np.where(np.isfinite(cost), cost, FAILURE)
    # Nodes are numbered as in a heap: the children of node i are 2i and 2i + 1.
    leaf_at = {1: _leaf(finite, np.arange(len(cost)))}
    splits: dict[int, _Split] = {}
    waiting = {1: _best_split(columns, finite, leaf_at[1].rows)}
    tree: Node = leaf_at[1]
    while waiting:
        node = max(waiting, key=lambda node: waiting[node].gain)
        split = splits[node] = waiting.pop(node)
        if split.gain <= MIN_GAIN:
            break
        is_low = columns[leaf_at[node].rows, split.column] <= split.lower
        for child, is_inside in ((2 * node, is_low), (2 * node + 1, ~is_low)):
            leaf_at[child] = _leaf(finite, leaf_at[node].rows[is_inside])
            if child.bit_length() <= MAX_DEPTH:
                waiting[child] = _best_split(columns, finite, leaf_at[child].rows)
        grown = _merged(1, splits, leaf_at)
        if len(leaves_of(grown)) > leaves:
            break
        tree = grown
    return tree


def _leaf(finite: np.ndarray, rows: np.ndarray) -> Leaf:
    return Leaf(int(finite[rows].sum(axis=0).argmin()), rows)


def _merged(node: int, splits: dict[int, _Split], leaf_at: dict[int, Leaf]) -> Node:
    """Return the tree below a node; two leaves with the same candidate become one leaf."""
    if node not in splits:
        return leaf_at[node]
    low, high = (_merged(child, splits, leaf_at) for child in (2 * node, 2 * node + 1))
    if isinstance(low, Leaf) and isinstance(high, Leaf) and low.candidate == high.candidate:
        return Leaf(low.candidate, leaf_at[node].rows)
    split = splits[node]
    return Branch(split.column, threshold_between(split.lower, split.upper), low, high)


def _best_split(columns: np.ndarray, finite: np.ndarray, rows: np.ndarray) -> _Split:
    """Return the split of the rows with the largest gain.

    A split counts with its own gain, or with half the gain of it and a second split, because an interval needs two. If
    no split gains anything and no candidate is best for all rows, the middle split is returned with a minimal gain.
    """
    options = list(_splits(columns, finite, rows))
    # If gains are equal up to rounding, the first column wins.
    best = max(options, key=lambda option: round(option.gain, 6), default=_Split(0.0))
    for option in options[:: -(-len(options) // MAX_PAIRS)] if options else ():
        is_low = columns[rows, option.column] <= option.lower
        seconds = (split for is_inside in (is_low, ~is_low) for split in _splits(columns, finite, rows[is_inside]))
        further = max((split.gain for split in seconds), default=0.0)
        if (option.gain + further) / 2 > best.gain + MIN_GAIN:
            best = option._replace(gain=(option.gain + further) / 2)
    if options and best.gain <= MIN_GAIN:
        best = options[len(options) // 2]._replace(gain=2 * MIN_GAIN)
    return best


def _splits(columns: np.ndarray, finite: np.ndarray, rows: np.ndarray) -> Iterator[_Split]:
    """Yield every split of the rows; no split if one candidate is best for all rows."""
    loss = finite[rows].sum(axis=0).min()
    for column in range(columns.shape[1]) if loss > MIN_GAIN else ():
        order = rows[columns[rows, column].argsort(kind="stable")]
        values = columns[order, column]
        ends = np.flatnonzero(values[1:] > values[:-1])
        # (rows, candidates) total cost of the first 1, 2, … rows. The column's value changes after each end.
        sums = finite[order].cumsum(axis=0)
        gains = loss - sums[ends].min(axis=1) - (sums[-1] - sums[ends]).min(axis=1)
        for end, gain in zip(ends.tolist(), gains.tolist(), strict=True):
            yield _Split(gain, column, int(values[end]), int(values[end + 1]))


def threshold_between(lower: int, upper: int) -> int:
    """Return an integer from ``lower`` to below ``upper`` with few binary digits, near their geometric mean.

    It is strictly between them if such an integer exists: between 512 and 1024 it is 768.
    """
    middle = min(max(isqrt(max(lower, 1) * upper), lower), upper - 1)
    for digits in range(1, middle.bit_length() + 1):
        step = 1 << (middle.bit_length() - digits)
        near = [number for number in (middle // step * step, (middle // step + 1) * step) if lower < number < upper]
        if near:
            return min(near, key=lambda number: abs(log(number / max(middle, 1))))
    return lower


def leaves_of(node: Node) -> list[Leaf]:
    """Return the leaves from left to right: the side up to a threshold comes first."""
    return [node] if isinstance(node, Leaf) else [*leaves_of(node.low), *leaves_of(node.high)]


def leaf_of(node: Node, row: np.ndarray) -> Leaf:
    """Return the leaf of one problem's ``row`` (columns,)."""
    while isinstance(node, Branch):
        node = node.low if row[node.column] <= node.threshold else node.high
    return node


def tree_choices(node: Node, columns: np.ndarray) -> np.ndarray:
    """Return the candidate of each problem's leaf, (problems,)."""
    return np.array([leaf_of(node, row).candidate for row in columns], dtype=np.int64)


CandidateNames = tuple[str, str, str]
"""A candidate without the problem's setting: library, algorithm, and solver ("" if solvers are not chosen)."""
Kind = tuple[tuple[str, ...], tuple[int, ...]]
"""The settings and the traits of a problem (`Family.traits`), which decide the candidates that run it."""


class Feasible(NamedTuple):
    """The candidates that run problems, by their kind.

    ``runs``: kind → the candidates that run a listed problem of the kind. ``always``: settings → the candidates for
    unlisted kinds. They run all listed kinds, and the library documents no condition for them.
    """

    runs: Mapping[Kind, frozenset[int]]
    always: Mapping[tuple[str, ...], frozenset[int]]

    @classmethod
    def of(cls, cost: np.ndarray, kinds: Sequence[Kind], candidates: Sequence[CandidateNames]) -> "Feasible":
        """Return the candidates for the problems of a table with this ``cost`` (problems, candidates)."""
        runs: dict[Kind, frozenset[int]] = {}
        always: dict[tuple[str, ...], frozenset[int]] = {}
        for kind, row in zip(kinds, np.isfinite(cost), strict=True):
            runs[kind] = runs.get(kind, frozenset()) | {*np.flatnonzero(row).tolist()}
        for (settings, _), own in runs.items():
            documented = {i for i in own if runs_every_problem(candidates[i], settings)}
            always[settings] = always.get(settings, own) & documented
        return cls(runs, always)

    def ranked(self, cost: np.ndarray, leaf: Leaf) -> list[int]:
        """Return the candidates of a leaf by their total cost, up to one that runs problems of all kinds."""
        finite = np.where(np.isfinite(cost), cost, FAILURE)
        loss = finite[leaf.rows].sum(axis=0) + TIE * finite.sum(axis=0)
        loss[leaf.candidate] = -1.0
        order = loss.argsort(kind="stable").tolist()
        every_kind = frozenset.intersection(*self.runs.values(), *filter(None, self.always.values()))
        return order[: 1 + next((i for i, candidate in enumerate(order) if candidate in every_kind), len(order))]

    def first(self, ranked: Sequence[int], kind: Kind) -> int:
        """Return the first of the ``ranked`` candidates that runs problems of a kind, or −1."""
        runs = self.runs.get(kind, self.always.get(kind[0], ()))
        return next((candidate for candidate in ranked if candidate in runs), -1)

    def choices(self, tree: Node, columns: np.ndarray, kinds: Sequence[Kind], cost: np.ndarray) -> np.ndarray:
        """Return the candidate of each problem, (problems,), or −1; ``cost`` is the cost of the training problems."""
        ranked = {id(leaf): self.ranked(cost, leaf) for leaf in leaves_of(tree)}
        pairs = zip(columns, kinds, strict=True)
        return np.array([self.first(ranked[id(leaf_of(tree, row))], kind) for row, kind in pairs], dtype=np.int64)


def runs_every_problem(candidate: CandidateNames, settings: tuple[str, ...]) -> bool:
    """Return whether a library that documents the conditions of its algorithms has no condition for this one."""
    library, name, solver = candidate
    return library == VENDOR_LIBRARIES["nvidia"] and not solver and not RULES.get((library, settings[0], name))


def held_out_slowdown(
    columns: np.ndarray,
    cost: np.ndarray,
    shape: np.ndarray,
    leaves: int,
    kinds: Sequence[Kind] = (),
    candidates: Sequence[CandidateNames] = (),
) -> Slowdown | None:
    """Return the slowdown on held-out shapes: each of `FOLDS` parts of the shapes is left out once.

    ``shape`` (problems,) is each problem's shape. Returns None if all problems have one shape. ``kinds``
    (problems,) and ``candidates`` are as in `Feasible.of`; without kinds, a problem has its leaf's candidate.
    """
    _, code = np.unique(shape, return_inverse=True)
    count = int(code.max()) + 1
    if count < 2:
        return None
    fold = (np.random.default_rng(0).permutation(count) % FOLDS)[code]
    chosen = np.empty(len(cost), dtype=np.int64)
    for number in np.unique(fold):
        holdout = fold == number
        tree = learn_tree(columns[~holdout], cost[~holdout], leaves)
        if not kinds:
            chosen[holdout] = tree_choices(tree, columns[holdout])
            continue
        trained, left_out = ([kinds[i] for i in np.flatnonzero(rows).tolist()] for rows in (~holdout, holdout))
        feasible = Feasible.of(cost[~holdout], trained, candidates)
        chosen[holdout] = feasible.choices(tree, columns[holdout], left_out, cost[~holdout])
    return Slowdown.of(cost, chosen)


def complementing(cost: np.ndarray, first: int, count: int) -> list[int]:
    """Return up to ``count`` candidates: ``first``, then one after another the candidate that adds most.

    A candidate adds the cost that it saves over the best chosen candidate, in sum over the problems of ``cost``
    (problems, candidates). Candidates that add equally much are ordered by their total cost. A candidate that runs for
    no problem is left out.
    """
    finite = np.where(np.isfinite(cost), cost, FAILURE)
    runs = np.isfinite(cost).any(axis=0)
    chosen = [first]
    for _ in range(min(count, int(runs.sum())) - 1):
        minimum = finite[:, chosen].min(axis=1, keepdims=True)
        loss = np.minimum(minimum, finite).sum(axis=0) + TIE * finite.sum(axis=0)
        loss[chosen] = loss[~runs] = np.inf
        chosen.append(int(loss.argmin()))
    return chosen


LEAVES = 32
TOP = 3
"""Number of configurations of a leaf that Triton times."""
MAX_BEST = 20
"""Number of fastest candidates of each problem that count as a vote for a candidate."""
MAX_CANDIDATES = 400
"""Number of candidates with the most votes that the tree considers, in addition to the fastest of every problem."""
TRITON_ARGUMENTS = {
    name: argument
    for argument in ("num_warps", "num_stages", "num_ctas", "maxnreg")
    for name in (argument, argument.removeprefix("num_"))
}
"""Parameter → argument of ``triton.Config``. All other parameters are arguments of the kernel."""


class SizeColumn(NamedTuple):
    """A column of the tree: a size, or 0 if a setting has the ``value`` and 1 if it has another value."""

    name: str
    value: str | None = None

    def of(self, problem: Mapping[str, Any]) -> int:
        """Return the column's number for a problem's sizes and settings."""
        return problem[self.name] if self.value is None else int(problem[self.name] != self.value)

    def text(self, threshold: int) -> str:
        """Return the comparison as a Python expression."""
        compared = f"<= {threshold}" if self.value is None else f"== {literal(self.value)}"
        return f"{argument(self.name)} {compared}"


@dataclass(frozen=True)
class DecisionFunction:
    """A decision ``tree`` that was learned from ``picks``.

    ``columns`` are the tree's inputs, and ``cost`` (problems, candidates) are the log slowdowns. ``settings``: name →
    values in the listed problems, the most frequent first. ``choice`` (problems,) are the function's answers.
    ``held_out`` is the slowdown on held-out shapes, or None if all problems have one shape. ``feasible`` are the
    candidates that run each kind of problem, or None for a family whose support does not depend on sizes.
    """

    picks: Picks
    settings: Mapping[str, tuple[str, ...]]
    columns: tuple[SizeColumn, ...]
    candidates: tuple[CandidateNames, ...]
    cost: np.ndarray
    tree: Node
    choice: np.ndarray
    held_out: Slowdown | None
    feasible: Feasible | None

    @property
    def slowdown(self) -> Slowdown:
        """The slowdown on the listed problems."""
        return Slowdown.of(self.cost, self.choice)

    def configuration(self, candidate: int) -> Configuration:
        """Return the parameters of a described kernel's candidate; empty for any other candidate."""
        family, text = self.picks.family, self.candidates[candidate][2]
        return family.description.configuration(text) if isinstance(family, DescribedFamily) and text else {}

    def candidate(self, number: int) -> str:
        """Return a candidate as a Python expression: its parameters if it has any, else its names."""
        names = ", ".join(map(literal, filter(None, self.candidates[number])))
        return dictionary(self.configuration(number)) or f"({names})"

    def answer(self, leaf: Leaf) -> str:
        """Return the expression that a leaf returns: its candidate, or the first of several that runs the problem."""
        ranked = self.feasible.ranked(self.cost, leaf) if self.feasible else [leaf.candidate]
        if len(ranked) == 1:
            return self.candidate(leaf.candidate)
        return f"candidates[next(each for each in {ranked} if each in runs)]"

    def configurations(self, leaf: Leaf, top: int) -> list[str]:
        """Return the arguments of ``triton.Config`` for a leaf's ``top`` configurations."""
        chosen = complementing(self.cost[leaf.rows], leaf.candidate, top)
        return [triton_arguments(self.configuration(candidate)) for candidate in chosen]

    def lines(self, node: Node, returned: Mapping[int, str], indent: str = "    ") -> list[str]:
        """Return the function's body below a node; ``returned``: first row of a leaf → expression that it returns."""
        if isinstance(node, Leaf):
            own = Slowdown.of(self.cost[node.rows], self.choice[node.rows])
            comment = f"{indent}# listed problems: {len(node.rows)}, slowdown: {slowdown_text(own)}"
            return [comment, f"{indent}return {returned[node.rows[0]]}"]
        inner = self.lines(node.low, returned, indent + "    ")
        question = self.columns[node.column].text(node.threshold)
        return [f"{indent}if {question}:", *inner, *self.lines(node.high, returned, indent)]


def export_function(picks: Picks, form: str, *, leaves: int = LEAVES, top: int = TOP) -> tuple[str, str]:
    """Return the picks as the text of a function, and a line with its number of leaves and its slowdown.

    The form ``python`` writes ``select``, which returns a candidate and needs no import. The form ``triton`` writes
    ``configs``, which returns a list of ``top`` ``triton.Config``: the leaf's own, then the configurations with the
    largest gains (`complementing`). Raises `InputError` as `decision_function` does, if ``top`` is less
    than 1, and if the form is ``triton`` and the family has no configurations.
    """
    family = picks.family
    is_described = isinstance(family, DescribedFamily)
    if form == "triton" and not is_described:
        raise InputError(f"triton holds configurations of a described kernel, and {family.name} has none; use python")
    if top < 1:
        raise InputError(f"top is {top}; give 1 or more configurations per leaf")
    function = decision_function(picks, leaves, configurations_only=form == "triton")
    # 1. The expression that each leaf returns: its candidate, or its position among the lists of configurations.
    every_leaf = leaves_of(function.tree)
    lists = [function.configurations(leaf, top) for leaf in every_leaf] if form == "triton" else []
    answers = [f"CONFIGS[{number}]" for number in range(len(lists))] or map(function.answer, every_leaf)
    returned = {leaf.rows[0]: answer for leaf, answer in zip(every_leaf, answers, strict=True)}
    # 2. Arguments: sizes without a default, sizes with their defaults, settings.
    sizes = [size for size in family.sizes if SizeColumn(size.name) in function.columns]
    sizes.sort(key=lambda size: size.default is not None)
    absent = {size.name: "" if size.default is None else f"={None if size.follows else size.default}" for size in sizes}
    settings = {argument(name): [literal(value) for value in values] for name, values in function.settings.items()}
    first, slowdown = picks.selections[0], slowdown_text(function.slowdown)
    bundle_figures = picks.held_out if first.gpu in map(canonical, picks.gpus) else {}
    returns = "configurations to time, the most promising first" if lists else "configuration to run"
    text = template("function.py.j2", "surrogate.prediction").render(
        picks=picks,
        family=family.name,
        notes=picks.caveats,
        folds=FOLDS,
        lists=lists,
        where=first.gpu if is_described else f"{first.gpu}, {releases(first)}",
        measured=sum(each.estimates[0].source == MEASURED for each in picks.feasible),
        problems=len(function.cost),
        left_out=len(picks.selections) - len(function.cost),
        leaves=len(every_leaf),
        slowdown=slowdown,
        held_out=function.held_out and slowdown_text(function.held_out),
        bundle_slowdown=bundle_figures.get(family.primary, {}).get("slowdown_macro"),
        gpu=first.gpu,
        name="configs" if lists else "select",
        doc=f"The {returns if is_described else '(library, algorithm) to run'}.",
        sizes=[argument(name) + default for name, default in absent.items()],
        texts=[f"{name}={values[0]}" for name, values in settings.items()],
        followers={argument(size.name): argument(size.follows) for size in sizes if size.follows},
        settings=settings,
        candidates=[*map(function.candidate, range(len(function.candidates)))] if function.feasible else [],
        feasible=function.feasible,
        always=", ".join(f"{key}: {sorted(own)}" for key, own in function.feasible.always.items())
        if function.feasible
        else "",
        body="\n".join(function.lines(function.tree, returned)),
    )
    return f"{text}\n", f"leaves: {len(every_leaf)}, predicted slowdown on the listed problems: {slowdown}"


def decision_function(picks: Picks, leaves: int = LEAVES, *, configurations_only: bool = False) -> DecisionFunction:
    """Learn a tree of at most ``leaves`` leaves from the picks of a list of problems.

    ``configurations_only`` leaves out candidates without parameters, such as a library's own kernel. Raises
    `InputError` if ``leaves`` is less than 1, or if no problem has a pick.
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
    # 2. The function's columns: settings with several values, and sizes that a listed problem has.
    sizes = [name for name in family.size_names if any(name in problem.to_dict() for problem in times)]
    settings = {
        name: tuple(value for value, _ in Counter(problem[name] for problem in problems).most_common())
        for name in family.setting_names
    }
    of_settings = [SizeColumn(name, value) for name, values in settings.items() if len(values) > 1 for value in values]
    columns = (*of_settings, *map(SizeColumn, sizes))
    # 3. The tree, and its slowdown on held-out shapes.
    table = np.array([[column.of(problem) for column in columns] for problem in problems], dtype=np.int64)
    candidates, cost = cost_table([*times.values()])
    tree, traits = learn_tree(table, cost, leaves), [*map(family.traits, times)]
    kinds = [(family.setting_of(each), (*map(int, own),)) for each, own in zip(times, traits, strict=True) if own]
    feasible = Feasible.of(cost, kinds, candidates) if kinds else None
    choice = feasible.choices(tree, table, kinds, cost) if feasible else tree_choices(tree, table)
    shape = np.array(["|".join(str(problem[name]) for name in family.shape_names) for problem in problems])
    return DecisionFunction(
        picks=picks,
        settings=settings,
        columns=columns,
        candidates=candidates,
        cost=cost,
        tree=tree,
        choice=choice,
        held_out=held_out_slowdown(table, cost, shape, leaves, kinds, candidates),
        feasible=feasible,
    )


def _times_us(selection: Selection, configurations_only: bool) -> dict[CandidateNames, float]:
    """Return choice → predicted time in µs, the fastest first."""
    return {
        (candidate.library, candidate.algorithm, candidate.solver): time_us
        for candidate, time_us, *_ in selection.estimates
        if candidate.solver or not configurations_only
    }


def cost_table(times_us: Sequence[Mapping[CandidateNames, float]]) -> tuple[tuple[CandidateNames, ...], np.ndarray]:
    """Return the considered choices, and (problems, choices) log(time / the problem's best time).

    The value is infinite if a choice does not run. ``times_us`` of every problem has the fastest choice first.
    """
    fastest = [next(iter(times)) for times in times_us]
    votes = Counter(choice for times in times_us for choice in islice(times, MAX_BEST))
    considered = tuple(dict.fromkeys((*fastest, *(choice for choice, _ in votes.most_common(MAX_CANDIDATES)))))
    rows = [
        [log(times[choice] / times[best]) if choice in times else inf for choice in considered]
        for times, best in zip(times_us, fastest, strict=True)
    ]
    return considered, np.array(rows)


def triton_arguments(configuration: Configuration) -> str:
    """Return the arguments of a call of ``triton.Config``."""
    kernel = dict(configuration)
    own: dict[str, Value] = {}
    for name, argument_name in TRITON_ARGUMENTS.items():  # if num_warps exists, warps is an argument of the kernel
        if name in kernel and argument_name not in own:
            own[argument_name] = kernel.pop(name)
    return ", ".join([dictionary(kernel) or "{}", *(f"{name}={value!r}" for name, value in own.items())])


def argument(name: str) -> str:
    """Return the argument for a size or setting; a Python keyword gets a trailing underscore."""
    return f"{name}_" if keyword.iskeyword(name) else name


def literal(value: Value) -> str:
    """Return a value as a Python literal; printable ASCII texts are in double quotes."""
    return json.dumps(value) if isinstance(value, str) and value.isascii() and value.isprintable() else ascii(value)


def dictionary(values: Mapping[str, Value]) -> str:
    """Return a Python dictionary literal, or "" if it is empty."""
    inner = ", ".join(f"{literal(name)}: {literal(value)}" for name, value in values.items())
    return f"{{{inner}}}" if inner else ""


def slowdown_text(slowdown: Slowdown) -> str:
    """Return a slowdown as text."""
    fails = f", failures: {slowdown.failures}" if slowdown.failures else ""
    return f"{slowdown.factor:.3f}{fails}" if slowdown.factor == slowdown.factor else f"unknown{fails}"
