"""A stand-in for libcudnn's backend functions: descriptors as records, engines and rankings as a test says."""

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from surrogate.collect.graph.attributes import Attribute, Descriptor, Kind
from surrogate.collect.graph.backend import Backend

NOT_SUPPORTED = 3000


@dataclass
class FakeLibrary:
    """What `Backend` asks of a `Library`."""

    version: str = "9.19.0"
    version_number: int = 91900
    path: str = "libcudnn.so.9"

    def reason(self, code: int) -> str:
        return f"STATUS_{code}"

    def call(self, name: str, *arguments: Any) -> int:
        return 0


@dataclass
class FakeCudnn:
    """``notes``: engine → its numerical notes (its keys are the engines there are); ``ranking``: (engine, knobs)."""

    notes: dict[int, tuple[int, ...]] = field(default_factory=lambda: {0: (9,), 1: (), 2: (), 67: (0,)})
    ranking: list[tuple[int, dict[int, int]]] = field(
        default_factory=lambda: [(67, {2: 12, 14: 3}), (1, {}), (1, {2: 5}), (0, {})]
    )
    unsupported: set[int] = field(default_factory=set)
    refused_plans: set[int] = field(default_factory=set)
    has_heuristic: bool = True
    live: dict[int, dict[str, Any]] = field(default_factory=dict)
    made: int = 0
    devices: list[str] = field(default_factory=list)
    executed: list[dict[str, Any]] = field(default_factory=list)

    def functions(self) -> SimpleNamespace:
        """Plain functions, which take ``argtypes`` as ctypes' do."""
        names = (
            "CreateDescriptor",
            "DestroyDescriptor",
            "SetAttribute",
            "GetAttribute",
            "Finalize",
            "Execute",
        )

        def plain(name: str) -> Any:
            method = getattr(self, name)
            return lambda *arguments: method(*arguments)

        return SimpleNamespace(**{f"cudnnBackend{name}": plain(name) for name in names})

    def CreateDescriptor(self, kind: int, out: Any) -> int:  # noqa: N802
        self.made += 1
        out._obj.value = self.made
        self.live[self.made] = {"kind": kind}
        return 0

    def DestroyDescriptor(self, descriptor: Any) -> int:  # noqa: N802
        del self.live[descriptor.value]
        return 0

    def SetAttribute(self, descriptor: Any, attribute: int, kind: int, count: int, array: Any) -> int:  # noqa: N802
        values = array.raw.decode() if kind == Kind.CHAR else list(array)[:count]
        self.live[descriptor.value][attribute] = values
        return 0

    def Finalize(self, descriptor: Any) -> int:  # noqa: N802
        record = self.live[descriptor.value]
        if record["kind"] == Descriptor.DEVICE_PROPERTIES:
            self.devices.append(record[Attribute.DEVICE_JSON])
        if record["kind"] == Descriptor.HEURISTIC and not self.has_heuristic:
            return NOT_SUPPORTED
        if record["kind"] == Descriptor.ENGINE:
            number = record[Attribute.ENGINE_INDEX][0]
            return NOT_SUPPORTED if number in self.unsupported or number not in self.notes else 0
        if record["kind"] == Descriptor.PLAN and self._engine(record) in self.refused_plans:
            return NOT_SUPPORTED
        return 0

    def GetAttribute(  # noqa: N802
        self, descriptor: Any, attribute: int, kind: int, room: int, count: Any, array: Any
    ) -> int:
        record = self.live[descriptor.value]
        values: list[Any] = []
        if attribute == Attribute.GRAPH_ENGINE_COUNT:
            values = [max(self.notes) + 1]
        elif attribute == Attribute.ENGINE_INDEX:
            values = record[attribute]
        elif attribute == Attribute.ENGINE_NUMERICAL_NOTES:
            values = list(self.notes[record[Attribute.ENGINE_INDEX][0]])
        elif attribute == Attribute.PLAN_WORKSPACE_BYTES:
            values = [1000 * self._engine(record)]
        elif attribute in (Attribute.KNOB_TYPE, Attribute.KNOB_VALUE):
            values = record[attribute]
        elif kind == Kind.DESCRIPTOR:
            return self._descriptors(record, attribute, room, count, array)
        for at, value in enumerate(values[:room]):
            array[at] = value
        count._obj.value = len(values)
        return 0

    def Execute(self, handle: Any, plan: Any, pack: Any) -> int:  # noqa: N802
        packed = self.live[pack.value]
        self.executed.append({"engine": self._engine(self.live[plan.value]), **packed})
        return 0

    def _descriptors(self, record: dict[str, Any], attribute: int, room: int, count: Any, array: Any) -> int:
        if attribute == Attribute.HEURISTIC_RESULTS:
            fill = [{"engine": engine, "knobs": list(knobs.items())} for engine, knobs in self.ranking]
        elif attribute == Attribute.CONFIG_ENGINE:
            fill = [{Attribute.ENGINE_INDEX: [record["engine"]]}]
        else:
            fill = [
                {Attribute.KNOB_TYPE: [knob], Attribute.KNOB_VALUE: [value]}
                for knob, value in record.get("knobs", [])
            ]
        is_knobs = attribute == Attribute.CONFIG_KNOB_CHOICES
        count._obj.value = min(len(fill), room) if is_knobs else len(fill)  # as cuDNN 9.19 does
        for at in range(min(room, len(fill))):
            self.live[array[at]].update(fill[at])
        return 0

    def _engine(self, plan: dict[str, Any]) -> int:
        config = self.live[plan[Attribute.PLAN_CONFIG][0]]
        if "engine" in config:
            return config["engine"]
        return self.live[config[Attribute.CONFIG_ENGINE][0]][Attribute.ENGINE_INDEX][0]


@pytest.fixture
def fake_cudnn() -> FakeCudnn:
    return FakeCudnn()


@pytest.fixture
def backend(fake_cudnn: FakeCudnn) -> Backend:
    library: Any = FakeLibrary()
    return Backend(library, fake_cudnn.functions())


@pytest.fixture
def real_backend() -> Backend:
    """The installed cuDNN; skipped where there is none that runs without a GPU."""
    from surrogate.collect.cudnn.library import Library
    from surrogate.collect.deviceless import Deviceless
    from surrogate.features.errors import InputError
    from surrogate.features.gpu import gpu

    try:
        backend = Backend(Library.load())
        Deviceless(gpu("h200"), backend=backend).close()
    except (InputError, OSError, ctypes.ArgumentError) as error:
        pytest.skip(f"no libcudnn here that ranks without a driver: {error}")
    return backend
