"""The one schema of a table of questions: how its columns name a problem.

A row names its problem by a column ``problem`` with a text, by ``operator`` (or ``family``, or ``op``) and sizes, or by
sizes alone if one family has them: ``m,n,k`` is a matrix product, ``n,c,h,k,r`` a convolution. Settings such as
``dtype`` are columns; constant ones may be left out.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from surrogate.dataset.columns import LAYOUT_ALIASES
from surrogate.features.errors import InputError, RowError, nearest
from surrogate.features.families import DEFAULT_FAMILY, FAMILIES, AnyProblem, Family, family_of, parse_problem
from surrogate.features.families import family as family_named
from surrogate.features.problem import setting

Cells = Any
"""A column as it comes: a Series, an array or a list."""
PLACE = ("gpu", "library", "library_version")
FAMILY_COLUMNS = ("operator", "op", "family")
"""Columns that name a family or an operator: of each row the first one that is not empty."""
SETTINGS = tuple(dict.fromkeys(name for family in FAMILIES.values() for name in family.setting_names))


def family_of_columns(names: Iterable[str], where: str) -> Family:
    """Return the family whose sizes the columns ``names`` are. Raises `InputError` if no family, or several, fit."""
    have = {*names}
    sized = {size for family in FAMILIES.values() for size in family.size_names} & have
    # The family that has most of the sizes, and of several the one that lacks the fewest.
    scores = {
        family.name: (len(sized & {*family.size_names}), len({*required(family)} & have) - len(required(family)))
        for family in FAMILIES.values()
    }
    best = [FAMILIES[name] for name, score in scores.items() if sized and score == max(scores.values())]
    if not best:
        alone = "; ".join(f"{','.join(required(f))} ({f.name})" for f in FAMILIES.values() if f.name in f.kinds)
        raise InputError(
            f"{where}: no column names a problem; a table has a column problem with texts, operator and its sizes, or"
            f" sizes alone: {alone}"
        )
    family, *others = best
    if others or family.name not in family.kinds:
        named = ", ".join(each.name for each in best)
        default = FAMILIES[DEFAULT_FAMILY]
        raise InputError(
            f"{where}: {', '.join(sorted(sized))} are sizes of several operators ({named}); add a column operator, or"
            f" the sizes of a {default.name}, {', '.join(required(default))}"
        )
    if missing := [name for name in required(family) if name not in have]:
        rule = f"a problem of {family.name} has {', '.join(required(family))}"
        hint = nearest(missing[0], [*have - sized])
        raise InputError(f"{where}: column {', '.join(missing)} is missing; {rule}{hint}")
    return family


def required(family: Family) -> tuple[str, ...]:
    """Return the sizes that every problem of a family gives."""
    return tuple(size.name for size in family.sizes if size.default is None)


def problem_of(text: str, own: Family | None, stated: Mapping[str, str], settings: Mapping[str, str]) -> AnyProblem:
    """Return the problem of a text, with the ``settings`` of its family that are not ``stated``."""
    text = own.whole_text(text) if own else text
    problem = parse_problem(text, own, **stated)
    further = unstated(family_of(problem), stated, settings)
    return parse_problem(text, own, **further, **stated) if further else problem


def unstated(family: Family, stated: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return the ``settings`` that a family has and a row does not state."""
    return {name: value for name, value in settings.items() if name in family.setting_names and name not in stated}


def stated_setting(name: str, value: object) -> str:
    """Return a cell of a setting as a problem has it, whatever people call it."""
    return setting(name, LAYOUT_ALIASES.get(str(value), value) if name == "layout" else value)


def expanded(
    columns: Mapping[str, Cells], own: Family | None, where: str, settings: Mapping[str, str]
) -> Mapping[str, Cells]:
    """Return the columns with ``family``, and with the sizes and settings of texts.

    Parameters
    ----------
    columns : name → cells, as a user's table has them.
    own : the described kernel that rows are of if they do not name a family.
    where : how an error begins.
    settings : settings of rows that do not state them.

    Raises
    ------
    InputError
        for a table that names no problem, and for the first text that cannot be read.
    """
    import pandas as pd

    stated = [pd.Series(np.asarray(columns[name], dtype=object)) for name in FAMILY_COLUMNS if name in columns]
    if stated:
        number, values = pd.factorize(reduce(pd.Series.combine_first, stated), use_na_sentinel=False)
        families = [_family(value, own) for value in values]
        known = {**columns, "family": np.array([family.name for family in families], dtype=object)[number]}
        if "operator" not in columns:
            pairs = zip(values, families, strict=True)
            operators = [value if value in family.kinds else None for value, family in pairs]
            known["operator"] = np.array(operators, dtype=object)[number]
        complete = all({*required(family)} <= columns.keys() for family in families)
    elif own is not None:
        known, complete = {**columns, "family": own.name}, {*required(own)} <= columns.keys()
    else:
        known, complete = columns, "problem" not in columns
    if "problem" in columns and not complete:
        return _read(columns, own, where, settings)
    if not stated and own is None:
        known = {**columns, "family": family_of_columns(columns, where).name}
    return {
        name: [value] * len(next(iter(columns.values()))) if isinstance(value, str) else value
        for name, value in known.items()
    }


def _family(name: object, own: Family | None) -> Family:
    """Return the family of an operator's or a family's name; a missing name is a convolution or the own kernel."""
    text = str(name) if name is not None and name == name else ""
    if own is not None and text in ("", own.name):
        return own
    return family_named(text or DEFAULT_FAMILY)


def _read(
    columns: Mapping[str, Cells], own: Family | None, where: str, settings: Mapping[str, str]
) -> Mapping[str, Cells]:
    """Return the columns with those of the problems that the column ``problem`` names; equal ones are read once."""
    import pandas as pd

    names = [
        name for name in (*SETTINGS, *(own.setting_names if own else ())) if name in columns and name != "operator"
    ]
    frame = pd.DataFrame({name: np.asarray(columns[name], dtype=object) for name in ("problem", *names)})
    number = frame.groupby(list(frame), sort=False, dropna=False).ngroup().to_numpy()
    first = np.unique(number, return_index=True)[1]
    problems: list[AnyProblem] = []
    for row in first.tolist():
        stated = {
            name: stated_setting(name, frame[name].iloc[row]) for name in names if not pd.isna(frame[name].iloc[row])
        }
        try:
            problems.append(problem_of(str(frame["problem"].iloc[row]), own, stated, settings))
        except InputError as error:
            raise RowError(where, row, str(error)) from None
    out: dict[str, Cells] = {name: cells for name, cells in columns.items() if name not in FAMILY_COLUMNS}
    records = []
    for problem in problems:
        family = family_of(problem)
        texts = dict(zip(family.setting_names, family.setting_of(problem), strict=True))
        if "math" not in names and "math" not in settings:
            texts.pop("math", None)  # as PyTorch runs it on the GPU
        records.append(
            {"family": family.name, **dict(zip(family.size_names, family.sizes_of(problem), strict=True)), **texts}
        )
    table = pd.DataFrame(records).iloc[number].reset_index(drop=True)
    return {**out, **{str(name): table[name] for name in table}}
