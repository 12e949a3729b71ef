"""The three directions: the same four calls, with other functions and the tensors in other roles."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surrogate.collect.cudnn import abi

ENTRIES = 16
"""Room for rankings: an algorithm may stand in them twice, with two math types."""


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction's functions, and the roles of its operands and result: ``x`` input, ``w`` filter, ``y`` output.

    Each method builds the arguments of the function beside it, from descriptors and device pointers by role.
    """

    name: str
    stem: str
    first: str
    second: str
    result: str

    @property
    def run_function(self) -> str:
        """Runs one algorithm."""
        return f"cudnnConvolution{self.stem}"

    @property
    def workspace_function(self) -> str:
        """Tells an algorithm's workspace."""
        return f"cudnnGetConvolution{self.stem}WorkspaceSize"

    @property
    def rank_function(self) -> str:
        """Ranks algorithms without timing."""
        return f"cudnnGetConvolution{self.stem}Algorithm_v7"

    @property
    def find_function(self) -> str:
        """Times every algorithm once."""
        return f"cudnnFindConvolution{self.stem}AlgorithmEx"

    @property
    def roles(self) -> tuple[str, str, str]:
        """First operand, second operand, result."""
        return self.first, self.second, self.result

    def workspace_arguments(
        self, handle: Any, d: Mapping[str, Any], algorithm: int, size: Any
    ) -> tuple[Any, ...]:
        """Arguments of `workspace_function`; ``d`` holds descriptors by role and ``conv``."""
        return handle, d[self.first], d[self.second], d["conv"], d[self.result], algorithm, ctypes.byref(size)

    def rank_arguments(self, handle: Any, d: Mapping[str, Any], count: Any, perf: Any) -> tuple[Any, ...]:
        """Arguments of `rank_function`; ``perf`` has room for `ENTRIES`."""
        return (
            handle,
            d[self.first],
            d[self.second],
            d["conv"],
            d[self.result],
            ENTRIES,
            ctypes.byref(count),
            perf,
        )

    def find_arguments(
        self,
        handle: Any,
        d: Mapping[str, Any],
        p: Mapping[str, int],
        count: Any,
        perf: Any,
        workspace: tuple[int, int],
    ) -> tuple[Any, ...]:
        """Arguments of `find_function`; ``p`` holds device pointers by role, ``workspace`` its pointer and bytes."""
        return (
            handle,
            d[self.first],
            p[self.first],
            d[self.second],
            p[self.second],
            d["conv"],
            d[self.result],
            p[self.result],
            ENTRIES,
            ctypes.byref(count),
            perf,
            *workspace,
        )

    def run_arguments(
        self,
        handle: Any,
        d: Mapping[str, Any],
        p: Mapping[str, int],
        algorithm: int,
        workspace: tuple[int, int],
        scales: tuple[Any, Any],
    ) -> tuple[Any, ...]:
        """Arguments of `run_function`; ``scales`` are references to alpha and beta."""
        alpha, beta = scales
        return (
            handle,
            alpha,
            d[self.first],
            p[self.first],
            d[self.second],
            p[self.second],
            d["conv"],
            algorithm,
            *workspace,
            beta,
            d[self.result],
            p[self.result],
        )


DIRECTIONS: Mapping[str, Direction] = {
    "fwd": Direction("fwd", "Forward", "x", "w", "y"),
    "bwd_data": Direction("bwd_data", "BackwardData", "w", "y", "x"),
    "bwd_filter": Direction("bwd_filter", "BackwardFilter", "x", "y", "w"),
}


def perf_array() -> Any:
    """Room for `ENTRIES` entries of a ranking."""
    return (abi.AlgoPerf * ENTRIES)()
