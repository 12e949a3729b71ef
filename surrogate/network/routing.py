"""Answer calls that need the choices of a router, as if every expert got the same number of tokens.

A prediction has shapes but no values. The indices of `topk` or `argmax` choose among classes (experts). Masks and
counts that are computed from them have a known mean under balanced routing, and the mean gives the sizes of `nonzero`
and of masked selections. A call that needs other values is not answered here: torch then raises its own error.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor
from typing import TYPE_CHECKING, Any, NamedTuple

from surrogate.network.aten_call import DISPATCH, operator_name
from surrogate.network.network import TEXTS

if TYPE_CHECKING:
    from torch import Tensor
    from torch._ops import OpOverload

ROUTING_NOTE = TEXTS["notes"]["routing"]
ROUNDING = 1e-6
"""Tolerance of a sum of equal shares, which rounding would bring below a whole number."""
_CHOICE_AXES = {"topk": 2, "argmax": 1, "max": 1}
"""Operator that chooses among classes → position of the argument that names their axis."""
_KEEPING = frozenset((*DISPATCH["rules"]["copy"], "sort"))
"""Operators that copy values, and so keep a tensor's balance."""


class Balance(NamedTuple):
    """The values of a tensor that a router's choice among ``classes`` determines, under balanced routing.

    ``mean`` is the expected value of a mask or count, and None if the values are class numbers. A mask selects the
    class ``first``. ``is_per_class`` is True for counts, and masks of counts, with one value per class.
    """

    classes: int
    mean: float | None = None
    first: int = 0
    is_per_class: bool = False


class Routing:
    """The balances of the tensors of a pass. ``is_used`` is True if a size or value was derived from one."""

    def __init__(self) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self.is_used = False
        self._balances = WeakIdKeyDictionary()  # storage → balance

    def balance(self, value: Any) -> Balance | None:
        """Return the balance of a tensor; None if it is unknown."""
        import torch

        return self._balances.get(value.untyped_storage()) if isinstance(value, torch.Tensor) else None

    def call(self, func: "OpOverload", args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        """Return the result of a call, and note the balance of the result."""
        op = operator_name(func.name())
        answer = _ANSWERS.get(op)
        if op == "index" and (masks := [self.balance(each) for each in args[1]]) and any(masks):
            args = args[0], self._indices(args[1])
        balance = self.balance(args[0]) if answer and args else None
        if answer and balance:
            self.is_used = True
            result: Any = answer(args[0], balance)
        elif op == "_grouped_mm":
            self.is_used = True
            result = _grouped_mm(*args, **kwargs)
        else:
            result = func(*args, **kwargs)
        if (derived := self._derived(op, args, result)) is not None:
            results = result if isinstance(result, tuple | list) else (result,)
            self._balances[results[-1 if op in _CHOICE_AXES else 0].untyped_storage()] = derived
        return result

    def _indices(self, indices: "Sequence[Tensor | None]") -> "list[Tensor | None]":
        """Return the indices, with each mask replaced by the rows that it selects."""
        import torch

        found: list[Tensor | None] = []
        for each in indices:
            balance = self.balance(each)
            if each is not None and balance and each.dtype == torch.bool:
                self.is_used = True
                found.extend(_nonzero(each, balance).unbind(1))
            else:
                found.append(each)
        return found

    def _derived(self, op: str, args: Sequence[Any], result: Any) -> Balance | None:
        """Return the balance of a result; None if it does not follow from the arguments."""
        source = next((found for each in args if (found := self.balance(each))), None)
        if op in ("topk", "argmax") or (op == "max" and isinstance(result, tuple | list)):
            given = args[_CHOICE_AXES[op] :]
            axis = given[0] if given else -1 if op == "topk" else None
            return Balance(args[0].shape[axis]) if isinstance(axis, int) and args[0].dim() else None
        if source is None:
            return None
        classes, mean = source.classes, source.mean
        if mean is None:  # class numbers
            number = args[1] if len(args) > 1 and isinstance(args[1], int) else 0
            means = {
                "eq": 1 / classes,
                "ne": 1 - 1 / classes,
                "scatter": args[2].shape[number] / classes if op == "scatter" else 0.0,
                "bincount": args[0].numel() / classes,
                "histc": args[0].numel() / classes,
            }
            if op in means:
                return Balance(classes, means[op], number if op == "eq" else 0, op in ("bincount", "histc"))
        elif op == "nonzero":
            return Balance(classes) if source.is_per_class else None
        elif op in ("gt", "ne") and args[1] == 0:
            return source._replace(mean=min(1.0, mean))
        elif op in ("sum", "any"):
            total = mean * args[0].numel() / max(result.numel(), 1)
            return Balance(classes, min(1.0, total) if op == "any" else total, source.first, op == "sum")
        return source if op in _KEEPING and source is self.balance(args[0]) else None


def _nonzero(mask: "Tensor", balance: Balance) -> "Tensor":
    """Return the indices of a mask's elements under balanced routing.

    The masks of all classes together select every choice once, even if a class gets less than one.
    """
    import torch

    expected, position = (balance.mean or 0.0) * mask.numel(), 0
    if balance.is_per_class:
        expected = min(1.0, balance.mean or 0.0) * min(mask.numel(), balance.classes)
    else:
        position = balance.first or mask.storage_offset() // (mask.numel() if 1 in mask.stride() else 1)
    count = _share(position, expected)
    return mask.new_empty((count, mask.dim()), dtype=torch.int64)


def _number(value: "Tensor", balance: Balance) -> int | bool:
    """Return one value under balanced routing: a class, a mask's value or a count.

    Chosen classes are as far apart as possible, and the counts of all classes have the right sum.
    """
    import torch

    position, classes = value.storage_offset(), balance.classes
    if balance.mean is None:
        chosen = min(value.untyped_storage().nbytes() // value.element_size(), classes)
        return ceil((position % chosen + 1) * classes / chosen) - 1
    count = _share(balance.first or position, balance.mean)
    return count > 0 if value.dtype == torch.bool else count


def _share(position: int, mean: float) -> int:
    """Return the whole number at ``position`` of a sequence with this mean."""
    before, after = (floor(number * mean + ROUNDING) for number in (position, position + 1))
    return after - before


def _grouped_mm(left: "Tensor", right: "Tensor", offs: "Tensor | None" = None, *_: Any, **__: Any) -> "Tensor":
    """Return the result of a grouped product of any type; torch refuses other types than bf16 without memory."""
    groups = [offs.numel()] if offs is not None and left.dim() == right.dim() == 2 else []
    groups = [left.shape[0]] if left.dim() == right.dim() == 3 else groups
    return left.new_empty((*groups, left.shape[-2], right.shape[-1]))


def _bincount(numbers: "Tensor", balance: Balance) -> "Tensor":
    """Return the counts of all classes."""
    return numbers.new_empty((balance.classes,))


_ANSWERS: "dict[str, Callable[[Tensor, Balance], object]]" = {
    "nonzero": _nonzero,
    "_local_scalar_dense": _number,
    "bincount": _bincount,
}
"""Operator with a result that depends on values → its answer under balanced routing."""
