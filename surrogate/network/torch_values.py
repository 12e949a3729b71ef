"""Keep the values of small tensors without memory that a module computes from constants, such as positions.

A module may branch on them: transformers builds no mask if its own positions are one sequence.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from surrogate.network.torch_gpu import overridden

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload

MAX_VALUES = 2**20
"""Maximum number of values of a tensor that are computed."""
FAKE_CHECK = "transformers.utils.import_utils"
"""The module whose ``is_fake_tensor`` decides whether transformers reads the values of a tensor."""


class KnownValues:
    """The values of tensors whose arguments are all known, by storage; other tensors have none."""

    def __init__(self) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self._values = WeakIdKeyDictionary()  # storage → its values, flat

    def of(self, tensor: Any) -> "torch.Tensor | None":
        """Return the values of a tensor; None if they are unknown."""
        import torch
        from torch._subclasses.fake_tensor import FakeTensor

        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            return None
        if not isinstance(tensor, FakeTensor):
            return tensor if tensor.device.type == "cpu" else None
        flat = self._values.get(tensor.untyped_storage())
        if flat is None or flat.dtype != tensor.dtype:
            return None
        return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def item(self, tensor: "torch.Tensor") -> Any:
        """Return the one value of a tensor as a number; None if it is unknown."""
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():
            values = self.of(tensor)
            return None if values is None else values.item()

    def note(self, func: "OpOverload", args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Compute the values of a call's result if all its arguments are known; forget those that it changes."""
        import torch
        from torch.utils._python_dispatch import _disable_current_modes
        from torch.utils._pytree import tree_leaves, tree_map_only

        given = [each for each in tree_leaves((args, dict(kwargs))) if isinstance(each, torch.Tensor)]
        storages = [each.untyped_storage() for each in given if each.layout == torch.strided]
        if not hasattr(func, "_schema") or func._schema.is_mutable:
            for storage in storages:
                self._values.pop(storage, None)
            return
        if not isinstance(result, torch.Tensor) or result.layout != torch.strided or result.device.type != "cpu":
            return
        storage = result.untyped_storage()
        has_values = torch.Tag.nondeterministic_seeded not in func.tags and "empty" not in func.name()
        is_view = any(each is storage for each in storages)
        if not has_values or is_view or storage.nbytes() > MAX_VALUES * result.element_size():
            return
        with _disable_current_modes(), suppress(RuntimeError):  # some operators have no CPU kernel
            if any(self.of(each) is None for each in given):
                return
            args, kwargs = tree_map_only(torch.Tensor, self.of, (tuple(args), dict(kwargs)))
            flat = torch.empty(storage.nbytes() // result.element_size(), dtype=result.dtype)
            flat.as_strided(result.shape, result.stride(), result.storage_offset()).copy_(func(*args, **kwargs))
            self._values[storage] = flat

    @contextmanager
    def read_by_modules(self) -> Iterator[None]:
        """Let transformers read known values during the block, as on a GPU."""
        with overridden(sys.modules.get(FAKE_CHECK), is_fake_tensor=lambda value: self.of(value) is None):
            yield
