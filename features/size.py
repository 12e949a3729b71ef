"""`Size`: the declaration of one whole-number size of a problem, which stands at the field of the problem's class."""

from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields, replace
from functools import lru_cache
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

AS_OTHER = cast(int, None)
"""The default of a size that follows another."""
STEP: dict[str, Any] = {"unit": "pixels", "per_doubling": 1.0}
PADDING: dict[str, Any] = {"least": 0, "counts": False, "per_doubling": 0.25}
"""What sizes of a window, or of a filter, have in common."""
Declared = TypeVar("Declared")


@dataclass(frozen=True, slots=True)
class Size:
    """One whole-number column of a problem: its meaning and unit, its least value, and the value where it is absent.

    Written as ``m: Annotated[int, Size("rows of the result")]``; `declared_sizes` fills in ``name`` and ``default``.
    ``follows`` names the size whose value stands where this one is not given; ``default`` is that name, or a number;
    None: the size must be given. ``counts`` is False for a size that multiplies no work, such as a padding.
    ``per_doubling`` is the distance between two problems of which one has twice the size (see
    `surrogate.uncertainty.domain`).
    """

    meaning: str
    unit: str = ""
    least: int = 1
    follows: str = ""
    counts: bool = True
    per_doubling: float = 0.35
    name: str = ""
    default: int | str | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of a text that an operator has beside the common ones: ``phase: Annotated[str, Setting(…)]``."""

    meaning: str


@lru_cache(maxsize=1024)
def declared_sizes(cls: type) -> tuple[Size, ...]:
    """The sizes that a dataclass declares, in the order of its fields."""
    sizes = []
    for field in fields(cls):
        size = _declaration(field.type, Size)
        if size is not None:
            default = size.follows or (None if field.default is MISSING else field.default)
            sizes.append(replace(size, name=field.name, default=default))
    return tuple(sizes)


@lru_cache(maxsize=1024)
def followers(cls: type) -> tuple[tuple[str, int | None, str], ...]:
    """Of every size that may be left out for another one's value: its name, what stands where it is, and the other."""
    return tuple(
        (size.name, cls.__dataclass_fields__[size.name].default, size.follows)
        for size in declared_sizes(cls)
        if size.follows
    )


def fill_followers(problem: object) -> None:
    """Give every size of a problem under construction that was left out the value of the size that it follows."""
    for name, absent, followed in followers(type(problem)):
        value = getattr(problem, name)
        if value is None or (type(value) is int and value == absent):
            object.__setattr__(problem, name, getattr(problem, followed))


@lru_cache(maxsize=1024)
def declared_settings(cls: type) -> dict[str, str]:
    """Setting that a dataclass has → its meaning, empty where it is one that all operators have."""
    settings = {}
    for field in fields(cls):
        declared = _declaration(field.type, Setting)
        if field.type is str or declared is not None:
            settings[field.name] = declared.meaning if declared else ""
    return settings


def shared_sizes(classes: Iterable[type]) -> tuple[Size, ...]:
    """The sizes of all ``classes``, each once: one that a class lacks is 0 there.

    A size that several classes declare has one meaning, since it is one column. Raises `TypeError` otherwise.
    """
    declared = [{size.name: size for size in declared_sizes(cls)} for cls in classes]
    sizes = {}
    for name in dict.fromkeys(name for columns in declared for name in columns):
        several = [columns[name] for columns in declared if name in columns]
        if len({(size.meaning, size.unit) for size in several}) > 1:
            raise TypeError(f"size {name} is declared with several meanings: {', '.join(s.meaning for s in several)}")
        if len(several) < len(declared):
            sizes[name] = replace(several[0], least=0, default=0)
        else:
            sizes[name] = replace(several[0], least=min(size.least for size in several))
    return tuple(sizes.values())


def _declaration(annotation: object, wanted: type[Declared]) -> Declared | None:
    """The ``wanted`` declaration in ``Annotated[…, declaration]``, or None."""
    if get_origin(annotation) is not Annotated:
        return None
    return next((part for part in get_args(annotation) if isinstance(part, wanted)), None)
