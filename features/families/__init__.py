"""The families of kernels, by name, by problem, and by the text that names a problem."""

import re
from typing import Any

from ..conv import Conv
from ..errors import InputError, nearest
from ..operators import OPERATORS, Operator
from ..text import MAX_DIGITS, parse
from .conv import CONV
from .family import DEFAULT_ALGORITHM, Candidate, Family, Formula, ProblemTerms, Size
from .language import ATTENTION, MLA, MOE
from .operators import EMBEDDING, GEMM, POINTWISE, POOL, QUANTISE, ROWWISE, TRANSFER, OperatorFamily

_OPERATOR_FAMILIES = (GEMM, POINTWISE, ROWWISE, POOL, EMBEDDING, TRANSFER, QUANTISE, ATTENTION, MLA, MOE)
FAMILIES: dict[str, Family] = {family.name: family for family in (CONV, *_OPERATOR_FAMILIES)}
"""Name → family, in the order of reports."""
DEFAULT_FAMILY = CONV.name
"""The family of a table that names none, and of a problem whose text has no prefix."""
FAMILY_OF_KIND: dict[str, str] = {
    "conv": CONV.name,
    **{kind: family.name for family in _OPERATOR_FAMILIES for kind in family.kinds},
}
"""Kind of problem → name of its family."""
AnyProblem = Conv | Operator
"""A problem of any family, of numbers."""


def family(name: str) -> Family:
    """The family of that name, or of that kind of problem. Raises `InputError` with the nearest names."""
    known = FAMILIES.get(name) or FAMILIES.get(FAMILY_OF_KIND.get(name, ""))
    if known is None:
        names = [*FAMILIES, *FAMILY_OF_KIND]
        raise InputError(f"family {name!r} is unknown; known: {', '.join(FAMILIES)}{nearest(name, names)}")
    return known


def family_of(problem: Any) -> Family:
    """The family of a problem of numbers or arrays. Raises `InputError` for what is no problem."""
    kind = getattr(problem, "kind", None)
    if kind not in FAMILY_OF_KIND:
        raise InputError(f"a {type(problem).__name__} is no problem; give a Conv, an operator, or its text")
    return FAMILIES[FAMILY_OF_KIND[kind]]


def parse_problem(text: str, **settings: str) -> AnyProblem:
    """The problem that a text names: ``n32c256h14k256r3``, flags, or ``softmax:n32c1000`` with an operator's name.

    ``settings``: dtype, math and the family's others; those of another family are refused. Raises `InputError`.
    """
    kind, colon, body = text.strip().partition(":")
    if not colon and kind not in OPERATORS:
        kind, body = "conv", text
    if kind in ("driver", "MIOpenDriver") or kind not in FAMILY_OF_KIND:
        raise InputError(
            f"problem {text!r}: {kind!r} is unknown; known: conv, {', '.join(OPERATORS)}{nearest(kind, OPERATORS)}"
        )
    kind_family = FAMILIES[FAMILY_OF_KIND[kind]]
    foreign = [name for name in settings if name not in kind_family.settings]
    if foreign:
        names = ", ".join(name for name in kind_family.setting_names if name != "operator")
        raise InputError(f"{', '.join(foreign)} is no setting of {kind}; it has {names}")
    if kind == "conv":
        return parse(body, **settings)
    cls = OPERATORS[kind]
    sizes: dict[str, int] = {}
    letters = cls.LETTERS or {"b": "batch"}
    position = 0
    for match in re.finditer(r"([a-z_]+)(\d+)", body):
        name = letters.get(match[1], match[1])
        if match.start() != position or name in sizes or len(match[2]) > MAX_DIGITS:
            break
        sizes[name], position = int(match[2]), match.end()
    names = cls.size_names()
    known = f"{kind} has {_sizes_of(cls)}, as in {cls.EXAMPLE or f'{kind}:' + ''.join(f'{name}8' for name in names)}"
    if position != len(body) or not sizes or not set(sizes) <= set(names):
        raise InputError(f"problem {text!r} is not readable at {body[position:]!r}; {known}")
    try:
        return cls(**sizes, **settings)
    except TypeError:
        raise InputError(f"problem {text!r} lacks a size; {known}") from None


def _sizes_of(cls: type[Operator]) -> str:
    """Names of an operator's sizes, with their short ones."""
    short = {name: letter for letter, name in cls.LETTERS.items()}
    return ", ".join(f"{short[name]} ({name})" if name in short else name for name in cls.size_names())


__all__ = [
    "ATTENTION", "CONV", "DEFAULT_ALGORITHM", "DEFAULT_FAMILY", "FAMILIES", "FAMILY_OF_KIND", "GEMM", "MLA", "MOE",
    "AnyProblem", "Candidate", "Family", "Formula", "OperatorFamily", "ProblemTerms", "Size", "family", "family_of",
    "parse_problem",
]  # fmt: skip
