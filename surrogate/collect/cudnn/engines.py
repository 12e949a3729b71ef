"""The `engines` device: it times every engine configuration that cuDNN's heuristic lists, on the current GPU."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

from surrogate.collect import device
from surrogate.collect.cudnn.gpu import synchronize_after_failure
from surrogate.collect.cudnn.graph import MODES, ListedConfigurations, load_frontend, refusals
from surrogate.collect.cudnn.instruments import Instruments
from surrogate.collect.cudnn.library import DIRECTION_CALLS, Library
from surrogate.collect.device import Device, DeviceInfo, DeviceLostError, HeuristicEntry, Measurement, RepeatPolicy
from surrogate.collect.plan import GPU_CAPS, problem_key, tensor_sizes_bytes
from surrogate.features import BENCHMARK_LIMIT, CUDNN_GRAPH, Conv


@dataclass(frozen=True, slots=True)
class _ListedProblem:
    """The current problem and its listed configurations. ``buffers`` maps the graph's tensors to device pointers."""

    conv: Conv
    listed: ListedConfigurations
    buffers: dict[Any, int] = field(default_factory=dict)


class EngineDevice(Instruments, Device):
    """cuDNN's engine configurations on the current GPU, with their status, workspace, build time, times and kernels."""

    def __init__(self, *, max_tensor_bytes: int = GPU_CAPS.max_tensor_bytes) -> None:
        """Open the device.

        Raises `InputError` if libcudnn, its frontend, CuPy or a GPU is missing, or if the frontend loaded another
        cuDNN.
        """
        self._cudnn = load_frontend(Library.load())
        super().__init__(GPU_CAPS.max_workspace_bytes, max_tensor_bytes)
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
        except refusals(self._cudnn):
            return ()
        return tuple(HeuristicEntry(name, "ok", workspace_bytes=each.workspace_bytes) for name, each in built.items())

    def measure(self, conv: Conv, algorithm: str, policy: RepeatPolicy) -> Measurement:
        """Warm up and time one configuration. Raises only `DeviceLostError`, after a sticky CUDA error."""
        facts: dict[str, Any] = {}
        try:
            current = self._set(conv)
            if algorithm not in current.listed.built:
                return Measurement("not_supported", "this process does not list it")
            index, workspace_bytes, build_ms = current.listed.built[algorithm]
            facts = {"build_ms": build_ms, "workspace_bytes": workspace_bytes}
            if workspace_bytes > self.gpu.workspace_bytes:
                over = f"{workspace_bytes} bytes exceed the limit of {self.gpu.workspace_bytes}"
                return Measurement("workspace_too_large", over, **facts)
            self._place(current)
            execute = current.listed.graph.execute_plan_at_index
            timed = self.stopwatch.time(
                lambda: execute(current.buffers, self.gpu.workspace, index, handle=self._graph_handle), policy
            )
            return replace(timed, deterministic=current.listed.is_deterministic(algorithm), **facts)
        except DeviceLostError:
            raise
        except (*refusals(self._cudnn), MemoryError) as error:
            synchronize_after_failure(self.gpu, error)
            refused = isinstance(error, self._cudnn.cudnnGraphNotSupportedError)
            return Measurement("not_supported" if refused else "failed", device.one_line(error), **facts)

    def close(self) -> None:
        """Destroy both handles, and close the instruments."""
        self._current = None
        self._cudnn.destroy_handle(self._graph_handle)
        super().close()

    def _set(self, conv: Conv) -> _ListedProblem:
        """List the configurations of ``conv``, if it is not the current problem."""
        if self._current is None or self._current.conv != conv:
            self._current = None
            self._current = _ListedProblem(conv, ListedConfigurations(self._cudnn, conv, handle=self._graph_handle))
        return self._current

    def _place(self, current: _ListedProblem) -> None:
        """Place the tensors of the current problem, if they are not placed. Raises `MemoryError` if they do not fit."""
        if not current.buffers:
            roles, sizes = DIRECTION_CALLS[current.conv.direction].roles, tensor_sizes_bytes(current.conv)
            placed = self.gpu.place([sizes[role] for role in roles], current.conv.dtype)
            current.buffers.update((current.listed.tensors[role], at) for role, at in zip(roles, placed, strict=True))
