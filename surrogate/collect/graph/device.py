"""cuDNN's graph engines on the current GPU as a `Device`: candidates ``engine:0`` … with default knobs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surrogate.collect.caps import GPU_CAPS, tensor_sizes_bytes
from surrogate.collect.cudnn.gpu import GpuFaultError
from surrogate.collect.cudnn.instruments import Instruments, Parts
from surrogate.collect.cudnn.library import Library
from surrogate.collect.cudnn.recovery import settle
from surrogate.collect.cudnn.status import CudnnError
from surrogate.collect.device import Choice, DeviceInfo, Measurement
from surrogate.collect.graph.attributes import Attribute, Descriptor, Kind
from surrogate.collect.graph.backend import Backend, Handle, Scope
from surrogate.collect.graph.plans import EnginePlan, Target, engine_count, engine_plan, finalized, ranked
from surrogate.collect.graph.problem import UNIQUE_IDS, operation_graph
from surrogate.collect.protocol import RepeatPolicy
from surrogate.features.conv import Conv

LIBRARY = "cudnn-graph"
"""The library's name in a dataset: its candidates are other ones than those of the legacy functions."""
ROLES: Mapping[str, tuple[str, str, str]] = {
    "fwd": ("x", "w", "y"),
    "bwd_data": ("w", "y", "x"),
    "bwd_filter": ("x", "y", "w"),
}
"""Direction → operands and result, as the arena places them."""


@dataclass(slots=True)
class _Current:
    """The problem whose graph is built and whose tensors are placed."""

    conv: Conv
    scope: Scope
    graph: Handle
    pointers: Mapping[str, int]
    engines: Mapping[str, EnginePlan | str]
    """Every engine by name: its plan, or why it is not to be run."""

    def runs(self, algorithm: str) -> bool:
        """True for an engine that supports the problem and keeps to its math."""
        return isinstance(self.engines.get(algorithm), EnginePlan)


class GraphDevice:
    """Times of graph engines; the ranking of heuristic mode A as the heuristic; no Find."""

    def __init__(
        self,
        *,
        max_workspace_bytes: int = GPU_CAPS.max_workspace_bytes,
        max_tensor_bytes: int = GPU_CAPS.max_tensor_bytes,
        backend: Backend | None = None,
        **parts: Any,
    ) -> None:
        """``parts``: fields of `Parts`. Raises `InputError` where libcudnn, CuPy or a GPU is missing."""
        self._backend = backend or Backend(Library.load())
        parts = {"library": self._backend.library, **parts}
        self._bench = Instruments(max_workspace_bytes, max_tensor_bytes, Parts(**parts))
        self._gpu, self._handle = self._bench.gpu, self._bench.handle
        self._target = Target(handle=self._handle)
        self._current: _Current | None = None

    def describe(self) -> DeviceInfo:
        """As the legacy device's, under the library name `LIBRARY`."""
        return self._bench.describe(LIBRARY)

    def candidates(self, conv: Conv) -> tuple[str, ...]:
        """Every engine that cuDNN numbers for the graph; none where it refuses the problem as a whole."""
        try:
            return tuple(self._set(conv).engines)
        except (CudnnError, MemoryError):
            return ()

    def heuristic(self, conv: Conv) -> tuple[Choice, ...]:
        """Mode A's engines, best first, each once (its knobs may differ from the defaults that are timed)."""
        try:
            current = self._set(conv)
            plans = ranked(current.scope, current.graph, "A", self._target)
            names = dict.fromkeys(plan.algorithm for plan in plans if plan.allowed(conv.dtype, conv.math))
        except (CudnnError, MemoryError):
            return ()
        return tuple(Choice(name, "ok" if current.runs(name) else "not_supported") for name in names)

    def find(self, conv: Conv) -> tuple[Choice, ...]:
        """None: the graph API times nothing itself."""
        return ()

    def measure(self, conv: Conv, algorithm: str, policy: RepeatPolicy) -> Measurement:
        """Finalise the engine's plan, warm it, time it. Raises `DeviceLostError` after a sticky CUDA error."""
        workspace_bytes: int | None = None
        try:
            current = self._set(conv)
            plan = current.engines.get(algorithm, f"{algorithm} is no engine of this problem")
            if isinstance(plan, str):
                return Measurement("not_supported", plan)
            with Scope(self._backend) as scope:
                executable, workspace_bytes = finalized(scope, plan, self._target)
                if workspace_bytes > self._gpu.workspace_bytes:
                    over = f"{workspace_bytes} bytes exceed the limit of {self._gpu.workspace_bytes}"
                    return Measurement("workspace_too_large", over, workspace_bytes=workspace_bytes)
                pack = self._pack(scope, current)
                return self._bench.stopwatch.time(
                    lambda: self._execute(executable, pack), policy, workspace_bytes, plan.deterministic
                )
        except CudnnError as error:
            settle(self._gpu, error.code)
            return Measurement(error.status, str(error), workspace_bytes=workspace_bytes)
        except (GpuFaultError, MemoryError) as error:
            settle(self._gpu)
            return Measurement("failed", str(error), workspace_bytes=workspace_bytes)

    def conditions(self) -> Mapping[str, float]:
        """Clocks, temperature, power, throttle reasons."""
        return self._bench.conditions()

    def close(self) -> None:
        """Destroy graph and handle, and switch the instruments off."""
        self._forget()
        self._bench.close()

    def _set(self, conv: Conv) -> _Current:
        """The graph of ``conv`` with its engines, built anew only when the problem changes."""
        if self._current is not None and self._current.conv == conv:
            return self._current
        self._forget()
        scope = Scope(self._backend)
        try:
            graph = operation_graph(scope, conv, self._handle)
            sizes, roles = tensor_sizes_bytes(conv), ROLES[conv.direction]
            placed = self._gpu.place([sizes[role] for role in roles], conv.dtype)
            engines = {
                f"engine:{number}": self._engine(scope, graph, number, conv)
                for number in range(engine_count(scope, graph))
            }
        except BaseException:
            scope.close()
            raise
        self._current = _Current(conv, scope, graph, dict(zip(roles, placed, strict=True)), engines)
        return self._current

    def _engine(self, scope: Scope, graph: Handle, number: int, conv: Conv) -> EnginePlan | str:
        """Engine ``number``'s plan for the graph of ``conv``, or why it is not to be run."""
        try:
            plan = engine_plan(scope, graph, number, self._target)
        except CudnnError as error:
            return str(error)
        if not plan.allowed(conv.dtype, conv.math):
            return f"{' and '.join(plan.numerical)}: math {conv.math} forbids it"
        return plan

    def _pack(self, scope: Scope, current: _Current) -> Handle:
        pack = scope.make(Descriptor.VARIANT_PACK)
        scope.set(pack, Attribute.PACK_UNIQUE_IDS, Kind.INT64, *UNIQUE_IDS.values())
        pointers = [current.pointers[role] for role in UNIQUE_IDS]
        scope.set(pack, Attribute.PACK_POINTERS, Kind.POINTER, *pointers)
        scope.set(pack, Attribute.PACK_WORKSPACE, Kind.POINTER, self._gpu.workspace)
        scope.finalize(pack, "the variant pack")
        return pack

    def _execute(self, plan: Handle, pack: Handle) -> None:
        self._backend.call("executing the plan", "cudnnBackendExecute", self._handle, plan, pack)

    def _forget(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.scope.close()
