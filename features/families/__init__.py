"""The families of kernels and their operators: by name, by problem, and by the text that names a problem.

Every file of this folder that declares a family or an operator is found here by itself (README.md says how to add one).
"""

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from ..conv import CONV, Conv
from ..description import Description
from ..errors import InputError, nearest
from ..family import DEFAULT_ALGORITHM, Candidate, Family, Formula, ProblemTerms
from ..problem import setting
from .described import DescribedFamily, DescribedProblem
from .operator import OPERATORS, Operator, operator_class
from .operator_family import FamilyDeclaration, OperatorFamily

_ORDER = ("gemm", "rowwise", "pool", "embedding", "transfer", "attention", "moe")
"""Files in the order of reports and of a table's columns; any other stands behind them."""
DEFAULT_FAMILY = CONV.name
"""The family of a table that names none, and of a problem whose text has no prefix."""
KIND_ALIASES = {"matmul": "gemm", "mm": "gemm", "sdpa": "attention", "flash_attention": "attention", "conv2d": "conv"}
"""What people call a kind of problem → its name here, where no described kernel has that name."""
NetworkProblem = Conv | Operator
"""A problem of a built-in family, of numbers: what networks and traces consist of."""
AnyProblem = NetworkProblem | DescribedProblem
"""A problem of any family, of numbers."""


class Families(dict[str, Family]):
    """Families by name, in the order of reports; and the kinds of problems, each of which has one family.

    Raises `TypeError` for two families of one name, and for a kind that two families have.
    """

    def __init__(self, families: list[Family]) -> None:
        super().__init__((family.name, family) for family in families)
        self.of_kind = {kind: family.name for family in families for kind in family.kinds}
        """Kind of problem → name of its family."""
        if len(self) < len(families) or len(self.of_kind) < sum(len(family.kinds) for family in families):
            raise TypeError("a family's name, or a kind of problem, is declared twice")

    def is_built_in(self, name: str) -> bool:
        """True for the name of a family, or kind of problem, that no description may take."""
        return name in self or name in self.of_kind

    def from_description(self, description: Description) -> DescribedFamily:
        """The family of a described kernel. It is not found by its name: two kernels of one process may share that.

        Raises `InputError` for the name of a family or kind that is built in.
        """
        if self.is_built_in(description.name):
            raise InputError(f"kernel {description.name}: a family of that name is built in; give another name")
        return DescribedFamily(description)

    def by_name(self, name: str) -> Family:
        """The family of that name, or of that kind of problem. Raises `InputError` with the nearest names."""
        family = self.get(name) or self.get(self.of_kind.get(name, ""))
        if family is None:
            hint = nearest(name, [*self, *self.of_kind])
            raise InputError(f"family {name!r} is unknown; known: {', '.join(self)}{hint}")
        return family

    def of(self, problem: object) -> Family:
        """The family of a problem of numbers or arrays. Raises `InputError` for what is no problem."""
        if isinstance(problem, DescribedProblem):
            return problem.family
        kind = getattr(problem, "kind", None)
        if kind not in self.of_kind:
            raise InputError(f"a {type(problem).__name__} is no problem; give a Conv, an operator, or its text")
        return self[self.of_kind[kind]]

    def parse(self, text: str, own: Family | None = None, /, **settings: str) -> AnyProblem:
        """The problem that a text names: ``n32c256h14k256r3``, flags, or ``softmax:n32c1000`` with a kind's name.

        ``settings``: dtype, math and the family's others, by any name that people call their values; those of another
        family are refused. The name of a described family is its own where ``own`` is one, whatever people call by it.
        Raises `InputError`.
        """
        kind, colon, body = text.strip().partition(":")
        settings = {name: setting(name, value) for name, value in settings.items()}
        if isinstance(own, DescribedFamily):
            if kind != own.name:
                raise InputError(
                    f"problem {text!r}: the bundle is of the kernel {own.name}; write it as in {own.example}"
                )
            family: Family[Any] = own
        else:
            default = self[DEFAULT_FAMILY]
            kind = KIND_ALIASES.get(kind, kind) if colon else kind
            if not colon and (kind in default.kinds or kind not in self.of_kind):
                kind = next(iter(default.kinds))
                body = text
            if kind not in self.of_kind:
                known = f"known: {', '.join(self)}, and operators{nearest(kind, self.of_kind)}"
                raise InputError(f"problem {text!r}: {kind!r} is unknown; {known}")
            family = self[self.of_kind[kind]]
        if foreign := [name for name in settings if name not in family.settings]:
            names = ", ".join(name for name in family.setting_names if name != "operator")
            raise InputError(f"{', '.join(foreign)} is no setting of {kind}, which has {names or 'none'}; leave it out")
        return family.read(kind, body, settings)


def _declared() -> list[Family]:
    """`CONV`, then a family for every `FamilyDeclaration` in a file of this folder, with the operators that name it."""
    files = [module.name for module in pkgutil.iter_modules(__path__)]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in dict.fromkeys([*_ORDER, *files])]
    values = {id(value): value for module in modules for value in vars(module).values()}
    families: list[Family] = [CONV]
    for value in values.values():
        if isinstance(value, Family):
            families.append(value)
        elif isinstance(value, FamilyDeclaration):
            families.append(OperatorFamily(value, [cls for cls in OPERATORS.values() if value.name == cls.FAMILY]))
    return families


FAMILIES = Families(_declared())
FAMILY_OF_KIND: Mapping[str, str] = FAMILIES.of_kind
"""Kind of problem → name of its family."""
family = FAMILIES.by_name
family_of = FAMILIES.of
parse_problem = FAMILIES.parse


def operator(kind: str, **sizes: Any) -> Operator:
    """An operator by kind and named sizes, as in ``operator("softmax", n=32, c=1000)``.

    Raises `InputError` for an unknown kind, and for missing, unknown or bad sizes.
    """
    cls = operator_class(kind)
    try:
        return cls(**sizes)
    except TypeError:
        raise InputError(
            f"{kind} needs {', '.join(cls.size_names())} (some have defaults) and may take"
            f" {', '.join(cls.setting_names())}; {', '.join(sizes) or 'nothing'} came"
        ) from None


__all__ = [
    "CONV",
    "DEFAULT_ALGORITHM",
    "DEFAULT_FAMILY",
    "FAMILIES",
    "FAMILY_OF_KIND",
    "OPERATORS",
    "AnyProblem",
    "Candidate",
    "DescribedFamily",
    "DescribedProblem",
    "Families",
    "Family",
    "Formula",
    "NetworkProblem",
    "Operator",
    "ProblemTerms",
    "family",
    "family_of",
    "operator",
    "parse_problem",
]
