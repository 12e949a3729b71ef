"""`OperatorTime`: one operator's predicted time."""

from dataclasses import dataclass
from typing import Any

from surrogate.features.operators import Operator


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Times in µs with a 90 % interval.

    ``time_us`` is the kernel's own, as in a busy stream; ``call_us`` that of an isolated call, launch included, as the
    training data were timed. ``source``: ``model``, or ``roofline`` where no model knows the operator (then all times
    are the roofline's, the lower bound). ``library`` is the one whose kernels are predicted.
    """

    operator: Operator
    gpu: str
    time_us: float
    lower_us: float
    upper_us: float
    call_us: float
    source: str
    library: str
    in_domain: bool

    def to_dict(self) -> dict[str, Any]:
        """Field name → value; the operator as text."""
        return {name: getattr(self, name) for name in self.__slots__} | {"operator": str(self.operator)}
