"""The `engines` device: it times every engine configuration that cuDNN's heuristic lists, on the current GPU."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from surrogate.collect.cudnn.gpu import synchronize_after_failure
from surrogate.collect.cudnn.graph import MODES, ListedConfigurations, load_frontend, refusals
from surrogate.collect.cudnn.instruments import Instruments
from surrogate.collect.cudnn.library import DIRECTION_CALLS
from surrogate.collect.device import (
    Device,
    DeviceInfo,
    DeviceLostError,
    HeuristicEntry,
    Measurement,
    RepeatPolicy,
    one_line,
)
from surrogate.collect.plan import GPU_CAPS, problem_key, tensor_sizes_bytes
from surrogate.features.algorithms import BENCHMARK_LIMIT, CUDNN_GRAPH
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError


@dataclass(frozen=True, slots=True)
class _ListedProblem:
    """The current problem: its listed configurations, and device pointers by role once its tensors are placed."""

    conv: Conv
    listed: ListedConfigurations
    pointers: Mapping[str, int]


class EngineDevice(Instruments, Device):
    """cuDNN's engine configurations on the current GPU, with their status, workspace, build time, times and kernels."""

    def __init__(
        self,
        *,
        max_workspace_bytes: int = GPU_CAPS.max_workspace_bytes,
        max_tensor_bytes: int = GPU_CAPS.max_tensor_bytes,
        **parts: Any,
    ) -> None:
        """Open the device. ``parts`` are arguments of `Instruments` that replace its own parts.

        Raises `InputError` if libcudnn, its frontend, CuPy or a GPU is missing, or if the frontend loaded another
        cuDNN.
        """
        self._cudnn = load_frontend()
        super().__init__(max_workspace_bytes, max_tensor_bytes, **parts)
        loaded = self._cudnn.backend_version()
        if loaded != self.library.version_number:
            other = f"cuDNN's frontend loaded cuDNN {loaded}, this process {self.library.version_number}"
            raise InputError(f"{other} ({self.library.path}); keep one of them, or name it by SEER_CUDNN")
        self._graph_handle = self._cudnn.create_handle()
        self._cudnn.set_stream(handle=self._graph_handle, stream=self.gpu.stream)
        self._current: _ListedProblem | None = None

    def device_info(self) -> DeviceInfo:
        """Return the facts of the instruments, the frontend's version, and the modes of the heuristic."""
        return self.facts(CUDNN_GRAPH, frontend=str(self._cudnn.__version__), heuristic_mode="+".join(MODES))

    def candidates(self, conv: Conv) -> tuple[str, ...]:
        """Return the listed configurations in the order in which they are measured.

        The `BENCHMARK_LIMIT` best come first. The rest follow in a random order, so a part of them is a fair sample.
        """
        names = [entry.algorithm for entry in self.heuristic(conv)]
        rest = names[BENCHMARK_LIMIT:]
        random.Random(problem_key(conv)).shuffle(rest)
        return (*names[:BENCHMARK_LIMIT], *rest)

    def heuristic(self, conv: Conv) -> tuple[HeuristicEntry, ...]:
        """Return the listed configurations, best first; empty if cuDNN refuses the problem."""
        try:
            built = self._set(conv).listed.built
        except DeviceLostError:
            raise
        except (*refusals(self._cudnn), MemoryError):
            return ()
        return tuple(HeuristicEntry(name, "ok", workspace_bytes=each.workspace_bytes) for name, each in built.items())

    def measure(self, conv: Conv, algorithm: str, policy: RepeatPolicy) -> Measurement:
        """Warm up and time one configuration. Raises only `DeviceLostError`, after a sticky CUDA error."""
        facts: dict[str, Any] = {}
        try:
            current = self._set(conv)
            index, workspace_bytes, build_ms = current.listed.built[algorithm]
            facts = {"build_ms": build_ms, "workspace_bytes": workspace_bytes}
            if workspace_bytes > self.gpu.workspace_bytes:
                over = f"{workspace_bytes} bytes exceed the limit of {self.gpu.workspace_bytes}"
                return Measurement("workspace_too_large", over, **facts)
            buffers = {current.listed.tensors[role]: pointer for role, pointer in current.pointers.items()}
            execute = current.listed.graph.execute_plan_at_index
            timed = self.stopwatch.time(
                lambda: execute(buffers, self.gpu.workspace, index, handle=self._graph_handle), policy
            )
            return replace(timed, deterministic=current.listed.is_deterministic(algorithm), **facts)
        except DeviceLostError:
            raise
        except (*refusals(self._cudnn), MemoryError) as error:
            synchronize_after_failure(self.gpu, error)
            refused = isinstance(error, self._cudnn.cudnnGraphNotSupportedError)
            return Measurement("not_supported" if refused else "failed", one_line(error), **facts)

    def close(self) -> None:
        """Destroy both handles, and close the instruments."""
        self._current = None
        self._cudnn.destroy_handle(self._graph_handle)
        super().close()

    def _set(self, conv: Conv) -> _ListedProblem:
        """List the configurations and place the tensors of ``conv``, if it is not the current problem."""
        if self._current is None or self._current.conv != conv:
            self._current = None
            listed = ListedConfigurations(self._cudnn, conv, handle=self._graph_handle)
            roles, sizes = DIRECTION_CALLS[conv.direction].roles, tensor_sizes_bytes(conv)
            placed = self.gpu.place([sizes[role] for role in roles], conv.dtype)
            self._current = _ListedProblem(conv, listed, dict(zip(roles, placed, strict=True)))
        return self._current
