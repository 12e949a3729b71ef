"""The families of kernels and their operators, by name, by problem, and by a problem's text.

Each file of this folder that declares a family or an operator is found automatically (README.md: how to add one).
"""

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from ..conv import CONV, Conv, is_driver_line
from ..description import Description
from ..errors import InputError, nearest, refusal
from ..family import Family
from ..problem import setting
from .described import DescribedFamily, DescribedProblem
from .operator import OPERATORS, Operator, operator_class
from .operator_family import FamilyDeclaration, OperatorFamily

_ORDER = ("gemm", "rowwise", "pool", "embedding", "transfer", "attention", "moe")
"""The order of families in reports and of columns in tables; other files follow."""
DEFAULT_FAMILY = CONV.name
"""The family of tables without a ``family`` column, and of problem texts without a prefix."""
KIND_ALIASES = {"matmul": "gemm", "mm": "gemm", "sdpa": "attention", "flash_attention": "attention", "conv2d": "conv"}
"""Other name of a kind of problem → its name here, unless a described kernel has that name."""
NetworkProblem = Conv | Operator
"""A problem, of numbers, of a built-in family: a layer of a network or a kernel of a trace."""
AnyProblem = NetworkProblem | DescribedProblem
"""A problem, of numbers, of any family."""


class Families(dict[str, Family]):
    """The families by name, in the order of reports. Each kind of problem belongs to one family.

    Raises `TypeError` if two families have the same name or the same kind of problem.
    """

    def __init__(self, families: list[Family]) -> None:
        super().__init__((family.name, family) for family in families)
        self.of_kind = {kind: family.name for family in families for kind in family.kinds}
        """Kind of problem → name of its family."""
        if len(self) < len(families) or len(self.of_kind) < sum(len(family.kinds) for family in families):
            raise TypeError("a family's name, or a kind of problem, is declared twice")

    def is_built_in(self, name: str) -> bool:
        """Return True if a built-in family or kind of problem has the name, which no description may take."""
        return name in self or name in self.of_kind

    def from_description(self, description: Description) -> DescribedFamily:
        """Return the family of a described kernel. It is not registered: two kernels of a process may have the same
        name.

        Raises `InputError` if a built-in family or kind has the name.
        """
        if self.is_built_in(description.name):
            raise InputError(f"kernel {description.name}: a family of that name is built in; give another name")
        return DescribedFamily(description)

    def by_name(self, name: str) -> Family:
        """Return a registered family. `surrogate.features.families.family` is this method.

        Parameters
        ----------
        name : str
            The name of a family, or of a kind of problem.

        Returns
        -------
        Family

        Raises
        ------
        InputError
            If there is no such family; the message suggests the nearest names.
        """
        family = self.get(name) or self.get(self.of_kind.get(name, ""))
        if family is None:
            hint = nearest(name, [*self, *self.of_kind])
            raise InputError(f"family {name!r} is unknown; known: {', '.join(self)}{hint}")
        return family

    def of(self, problem: object) -> Family:
        """Return the family of a problem of numbers or arrays. Raises `InputError` if ``problem`` is no problem."""
        if isinstance(problem, DescribedProblem):
            return problem.family
        kind = getattr(problem, "kind", None)
        if kind not in self.of_kind:
            raise InputError(f"a {type(problem).__name__} is no problem; give a Conv, an operator, or its text")
        return self[self.of_kind[kind]]

    def parse(self, text: str, described: Family | None = None, /, **settings: str) -> AnyProblem:
        """Return the problem that a text describes. `surrogate.features.families.parse_problem` is this method.

        Parameters
        ----------
        text : str
            ``n32c256h14k256r3``, flags of MIOpenDriver, or a kind and sizes, as in ``softmax:n32c1000``.
        described : Family, optional
            The family of a described kernel. The text must then begin with its name.
        **settings : str
            The dtype, the math and other settings of the family, by their names or aliases.

        Returns
        -------
        Conv, Operator or DescribedProblem

        Raises
        ------
        InputError
            If the text is not readable, a size is missing or out of range, or the family does not have a setting.
        """
        kind, colon, body = text.strip().partition(":")
        settings = {name: setting(name, value) for name, value in settings.items()}
        if isinstance(described, DescribedFamily):
            if kind != described.name:
                raise refusal("other_kernel", text=text, name=described.name, example=described.example)
            family: Family[Any] = described
        else:
            default = self[DEFAULT_FAMILY]
            kind = KIND_ALIASES.get(kind, kind) if colon else kind
            if is_driver_line(text) or (not colon and (kind in default.kinds or kind not in self.of_kind)):
                kind = next(iter(default.kinds))
                body = text
            if kind not in self.of_kind:
                kinds = self[kind].kinds if kind in self else self.of_kind
                state = "a family; name one of its operators" if kind in self else "unknown; known operators"
                listed = f"{', '.join(kinds)}{nearest(kind, kinds)}"
                raise InputError(f"problem {text!r}: {kind!r} is {state}: {listed}")
            family = self[self.of_kind[kind]]
        if foreign := [name for name in settings if name not in family.settings]:
            names = ", ".join(name for name in family.setting_names if name != "operator")
            raise InputError(f"{', '.join(foreign)} is no setting of {kind}, which has {names or 'none'}; leave it out")
        return family.read(kind, body, settings)


def _declared() -> list[Family]:
    """Return `CONV`, then one family for each `FamilyDeclaration` in this folder, with the operators that name it."""
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
    """Return an operator by its kind and its sizes, as in ``operator("softmax", n=32, c=1000)``.

    Parameters
    ----------
    kind : str
        A key of `OPERATORS`, such as ``"gemm"``.
    **sizes : int or str
        Sizes (integers, or int64 arrays of one length) and settings of the kind.

    Returns
    -------
    Operator

    Raises
    ------
    InputError
        If the kind is unknown, or a size is missing, unknown or out of range.
    """
    cls = operator_class(kind)
    try:
        return cls(**sizes)
    except TypeError:
        names = map(", ".join, (cls.size_names(), cls.setting_names(), sizes or ["nothing"]))
        texts = dict(zip(("sizes", "settings", "given"), names, strict=True))
        raise refusal("operator", kind=kind, **texts) from None
