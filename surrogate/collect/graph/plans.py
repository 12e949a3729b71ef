"""What cuDNN would run a graph with: its engines, the plans its heuristic ranks, their notes and workspace."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from surrogate.collect.cudnn.status import CudnnError
from surrogate.collect.graph.attributes import (
    BEHAVIOR_NOTES,
    HEURISTIC_MODES,
    NUMERICAL_NOTES,
    Attribute,
    Descriptor,
    Kind,
    note_name,
)
from surrogate.collect.graph.backend import Handle, Scope

MAX_KNOBS = 16
"""Knobs of one configuration that are read; engines had up to 8."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a plan is to run: on the GPU of a cuDNN ``handle``, or on one that ``properties`` describe."""

    handle: Handle | None = None
    properties: Handle | None = None


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine with its knobs: what the heuristic ranks. Knob types are cudnnBackendKnobType_t's numbers."""

    engine: int
    knobs: tuple[tuple[int, int], ...] = ()
    numerical: tuple[str, ...] = ()
    behavior: tuple[str, ...] = ()
    config: Any = field(default=None, compare=False, repr=False)
    """The engine configuration's descriptor, alive as long as its scope."""

    @property
    def algorithm(self) -> str:
        """The engine's name as a dataset's algorithm."""
        return f"engine:{self.engine}"

    @property
    def deterministic(self) -> bool:
        """False where cuDNN notes that two runs may differ."""
        return "nondeterministic" not in self.numerical

    def allowed(self, dtype: str, math: str) -> bool:
        """True where the plan keeps to the math type: fp32 under ``fma`` admits no tensor cores (TF32)."""
        converts = {"tensor_core", "down_convert_inputs"} & set(self.numerical)
        return not (dtype == "fp32" and math == "fma" and converts)


def engine_count(scope: Scope, graph: Handle) -> int:
    """How many engines cuDNN numbers for the graph, supported or not."""
    return int(scope.get(graph, Attribute.GRAPH_ENGINE_COUNT, Kind.INT64)[0])


def engine_plan(scope: Scope, graph: Handle, number: int, target: Target) -> EnginePlan:
    """Engine ``number`` with its default knobs; `CudnnError` where it does not support the graph."""
    engine = scope.make(Descriptor.ENGINE)
    scope.set(engine, Attribute.ENGINE_GRAPH, Kind.DESCRIPTOR, graph)
    scope.set(engine, Attribute.ENGINE_INDEX, Kind.INT64, number)
    if target.properties is not None:
        scope.set(engine, Attribute.ENGINE_DEVICE, Kind.DESCRIPTOR, target.properties)
    scope.finalize(engine, f"engine {number}")
    config = scope.make(Descriptor.ENGINE_CONFIG)
    scope.set(config, Attribute.CONFIG_ENGINE, Kind.DESCRIPTOR, engine)
    scope.finalize(config, f"engine {number}'s configuration")
    return _described(scope, number, engine, config, ())


def ranked(scope: Scope, graph: Handle, mode: str, target: Target) -> Iterator[EnginePlan]:
    """The heuristic's plans, best first; ``mode`` is A, B or fallback. `CudnnError` where it has none."""
    heuristic = scope.make(Descriptor.HEURISTIC)
    scope.set(heuristic, Attribute.HEURISTIC_GRAPH, Kind.DESCRIPTOR, graph)
    scope.set(heuristic, Attribute.HEURISTIC_MODE, Kind.HEURISTIC_MODE, HEURISTIC_MODES[mode])
    if target.properties is not None:
        scope.set(heuristic, Attribute.HEURISTIC_DEVICE, Kind.DESCRIPTOR, target.properties)
    scope.finalize(heuristic, f"heuristic {mode}")
    count = scope.count(heuristic, Attribute.HEURISTIC_RESULTS)
    configs = [scope.make(Descriptor.ENGINE_CONFIG) for _ in range(count)]
    filled = scope.get_into(heuristic, Attribute.HEURISTIC_RESULTS, configs) if configs else 0
    for config in configs[:filled]:
        engine = scope.make(Descriptor.ENGINE)
        scope.get_into(config, Attribute.CONFIG_ENGINE, [engine])
        number = int(scope.get(engine, Attribute.ENGINE_INDEX, Kind.INT64)[0])
        yield _described(scope, number, engine, config, _knobs(scope, config))


def finalized(scope: Scope, plan: EnginePlan, target: Target) -> tuple[Handle, int]:
    """An executable plan and its workspace in bytes; `CudnnError` where the engine refuses after all.

    May compile kernels (engines noted ``runtime_compilation``), which takes up to seconds.
    """
    made = scope.make(Descriptor.PLAN)
    if target.handle is not None:
        scope.set(made, Attribute.PLAN_HANDLE, Kind.HANDLE, target.handle)
    if target.properties is not None:
        scope.set(made, Attribute.PLAN_DEVICE, Kind.DESCRIPTOR, target.properties)
    scope.set(made, Attribute.PLAN_CONFIG, Kind.DESCRIPTOR, plan.config)
    scope.finalize(made, f"{plan.algorithm}'s plan")
    return made, int(scope.get(made, Attribute.PLAN_WORKSPACE_BYTES, Kind.INT64)[0])


def _described(
    scope: Scope, number: int, engine: Handle, config: Handle, knobs: tuple[tuple[int, int], ...]
) -> EnginePlan:
    numerical = _notes(scope, engine, Attribute.ENGINE_NUMERICAL_NOTES, Kind.NUMERICAL_NOTE, NUMERICAL_NOTES)
    behavior = _notes(scope, engine, Attribute.ENGINE_BEHAVIOR_NOTES, Kind.BEHAVIOR_NOTE, BEHAVIOR_NOTES)
    return EnginePlan(number, knobs, numerical, behavior, config)


def _notes(
    scope: Scope, engine: Handle, attribute: Attribute, kind: Kind, names: tuple[str, ...]
) -> tuple[str, ...]:
    try:
        found = scope.get(engine, attribute, kind, 2 * len(names))
    except CudnnError:  # an engine without notes may refuse the question
        return ()
    return tuple(note_name(names, number) for number in found)


def _knobs(scope: Scope, config: Handle) -> tuple[tuple[int, int], ...]:
    """(knob type, value) of a ranked configuration, by type."""
    try:
        # asked for their number alone, cuDNN 9.19 answers 0: room for the most must be given at once
        made = [scope.make(Descriptor.KNOB_CHOICE) for _ in range(MAX_KNOBS)]
        filled = scope.get_into(config, Attribute.CONFIG_KNOB_CHOICES, made)
        return tuple(
            sorted(
                (
                    int(scope.get(knob, Attribute.KNOB_TYPE, Kind.KNOB_TYPE)[0]),
                    int(scope.get(knob, Attribute.KNOB_VALUE, Kind.INT64)[0]),
                )
                for knob in made[:filled]
            )
        )
    except CudnnError:
        return ()
