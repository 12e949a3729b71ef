"""cuDNN's own ranking for a GPU that is not there: the graph heuristic over a described device.

Needs libcudnn 9.8 to 9.26 and no driver (the extra ``heuristic``). It is the graph API's heuristic, not
``cudnnGetConvolution…Algorithm_v7``: FFT and non-fused Winograd engines are invisible to it. Plans on tensor
cores (TF32) are left out of an fp32 problem's ranking under ``fma`` math.
"""

import time
from collections.abc import Iterator
from typing import Any

from surrogate.collect.cudnn.library import Library
from surrogate.collect.cudnn.status import CudnnError
from surrogate.collect.device import DeviceInfo
from surrogate.collect.graph.backend import Backend, Scope
from surrogate.collect.graph.device import LIBRARY
from surrogate.collect.graph.plans import EnginePlan, Target, engine_count, engine_plan, finalized, ranked
from surrogate.collect.graph.problem import operation_graph
from surrogate.collect.graph.properties import described_gpu, properties_json
from surrogate.collect.log import Header, RunLog
from surrogate.collect.plan import Plan
from surrogate.collect.records import problem_record
from surrogate.collect.run import Progress
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu
from surrogate.features.gpu import gpu as gpu_named

FIRST_VERSION = 90800
"""The first cuDNN that takes a described device."""
REMEDY = "pip install 'seer-surrogate[heuristic]' (cuDNN 9.8 to 9.26; later ones need a driver to load)"
MODE = "A"
KEPT = 8
"""Plans of a ranking that are kept; rankings hold up to about 40, mostly one engine with other knobs."""


class Deviceless:
    """cuDNN's engines and heuristic for one described GPU."""

    def __init__(self, gpu: Gpu, *, mode: str = MODE, backend: Backend | None = None) -> None:
        """Raises `InputError` where libcudnn is missing or too old, or ``gpu`` cannot be described to it."""
        self.gpu, self.mode = gpu, mode
        properties_json(gpu)  # refuses a GPU that cuDNN cannot know, before the library is looked for
        self._backend = backend or Backend(_library())
        self._scope = Scope(self._backend)
        try:
            self._target = Target(properties=described_gpu(self._scope, gpu))
        except CudnnError as error:
            self.close()
            raise InputError(
                f"cuDNN {self._backend.library.version} cannot describe {gpu.name} ({error}); {REMEDY}"
            ) from None

    def describe(self) -> DeviceInfo:
        """For a run's header: no time was taken, and by which mode was ranked."""
        version = self._backend.library.version
        facts = {"deviceless": True, "heuristic_mode": self.mode}
        return DeviceInfo(self.gpu.name, LIBRARY, version, {"cudnn": version}, facts)

    def ranking(self, conv: Conv) -> tuple[EnginePlan, ...]:
        """The heuristic's plans that ``conv``'s math allows, best first; empty where cuDNN has none."""
        with Scope(self._backend) as scope:
            return tuple(self._ranked(scope, conv))

    def engines(self, conv: Conv) -> dict[int, int]:
        """Every engine that supports ``conv`` with its default knobs → its workspace in bytes."""
        found: dict[int, int] = {}
        with Scope(self._backend) as scope:
            graph = operation_graph(scope, conv)
            for number in range(engine_count(scope, graph)):
                try:
                    plan = engine_plan(scope, graph, number, self._target)
                    if plan.allowed(conv.dtype, conv.math):
                        found[number] = finalized(scope, plan, self._target)[1]
                except CudnnError:
                    continue
        return found

    def entries(self, conv: Conv) -> list[dict[str, Any]]:
        """The first `KEPT` plans of the ranking as a log keeps them: choices with knobs and notes.

        A plan that cuDNN ranks but refuses to finalise stands there as ``not_supported``.
        """
        with Scope(self._backend) as scope:
            return [
                self._entry(scope, plan)
                for plan, _ in zip(self._ranked(scope, conv), range(KEPT), strict=False)
            ]

    def close(self) -> None:
        """Destroy the device's description."""
        self._scope.close()

    def _ranked(self, scope: Scope, conv: Conv) -> Iterator[EnginePlan]:
        try:
            graph = operation_graph(scope, conv)
            for plan in ranked(scope, graph, self.mode, self._target):
                if plan.allowed(conv.dtype, conv.math):
                    yield plan
        except CudnnError:  # nothing ranked: cuDNN supports the problem in no engine
            return

    def _entry(self, scope: Scope, plan: EnginePlan) -> dict[str, Any]:
        entry: dict[str, Any] = {"algorithm": plan.algorithm, "deterministic": plan.deterministic}
        if plan.knobs:
            entry["knobs"] = [list(knob) for knob in plan.knobs]
        if plan.numerical:
            entry["notes"] = list(plan.numerical)
        try:
            _, workspace_bytes = finalized(scope, plan, self._target)
            return {**entry, "status": "ok", "workspace_bytes": workspace_bytes}
        except CudnnError as error:
            return {**entry, "status": error.status}


def collect_heuristic(
    plan: Plan, gpu: str, output: str, progress: Progress | None = None, *, device: Deviceless | None = None
) -> int:
    """Write cuDNN's ranking of ``plan``'s problems for ``gpu`` to the log ``output``; returns how many anew.

    The log is a run's, with ``problem`` records alone (no times), and goes on where it was interrupted.
    Raises `InputError` where the library, the GPU or the log does not allow it.
    """
    device = device or Deviceless(gpu_named(gpu))
    try:
        protocol = {"heuristic_only": True, "mode": device.mode}
        header = Header(
            device.describe(),
            plan.digest,
            plan.shard,
            plan.description,
            plan.seed,
            protocol,
            round(time.time(), 3),
        )
        with RunLog(output, header) as log:
            begun = {record["problem"] for record in log.records if record["kind"] == "problem"}
            added = 0
            for done, problem in enumerate(plan.problems, 1):
                if problem.key not in begun:
                    entries = device.entries(problem.conv)
                    names = tuple(dict.fromkeys(entry["algorithm"] for entry in entries))
                    log.append({**problem_record(problem, names, ()), "heuristic": entries})
                    added += 1
                if progress:
                    progress(done, len(plan), problem.key)
    finally:
        device.close()
    return added


def _library() -> Library:
    try:
        library = Library.load()
    except InputError as error:
        reason = str(error).split(";")[0]
        raise InputError(f"the heuristic needs cuDNN: {reason}; {REMEDY}") from None
    if library.version_number < FIRST_VERSION:
        raise InputError(f"cuDNN {library.version} cannot rank for a GPU that is not there; {REMEDY}")
    return library
