"""CUPTI's records → kernels per call, with a stand-in for cupti-python."""

import ctypes
import sys
from types import SimpleNamespace

import pytest

from surrogate.collect.cudnn.activity import Activity, Span, span_of, traced
from surrogate.collect.device import Kernel

KINDS = SimpleNamespace(
    MEMCPY=1, MEMSET=2, KERNEL=3, DRIVER=4, RUNTIME=5, CONCURRENT_KERNEL=10, EXTERNAL_CORRELATION=39
)
FLUSH_BYTES = 1 << 20
FIELDS = {
    "kind": 10, "start": 5_000, "end": 9_000, "name": "volta_sgemm", "grid_x": 4, "grid_y": 3, "grid_z": 2,
    "block_x": 128, "block_y": 1, "block_z": 1, "registers_per_thread": 96, "static_shared_memory": 1024,
    "dynamic_shared_memory": 16, "correlation_id": 77,
}  # fmt: skip


class CuptiError(Exception):
    """cupti-python's own error, which is no RuntimeError."""


class FakeCupti:
    """CUPTI's rules: a kind that is not enabled has no records, a correlation comes only with an API call's record.

    ``refused`` are kinds that cannot be enabled, ``failing`` functions that raise; records come at the first flush, or
    only at a forced one.
    """

    ActivityKind = KINDS
    ExternalCorrelationKind = SimpleNamespace(CUSTOM0=3)
    cuptiError = CuptiError  # noqa: N815

    def __init__(self, forced_only=False, refused=(), failing=()):
        self.pending, self.stack, self.enabled, self.forced_only = [], [], set(), forced_only
        self.refused, self.failing, self.dropped = refused, failing, 0

    def __getattribute__(self, name):
        if name.startswith("activity_") and name in object.__getattribute__(self, "failing"):
            raise_it = CuptiError(f"{name} is\nnot permitted")
            return lambda *_: (_ for _ in ()).throw(raise_it)
        return object.__getattribute__(self, name)

    def activity_register_callbacks(self, requested, completed):
        assert requested()[1] == 0
        self.completed = completed

    def activity_enable(self, kind):
        if kind in self.refused:
            raise CuptiError("CUPTI_ERROR_INVALID_KIND")
        self.enabled.add(kind)

    def activity_disable(self, kind):
        self.enabled.remove(kind)

    def activity_push_external_correlation_id(self, kind, number):
        self.stack.append((kind, number))

    def activity_pop_external_correlation_id(self, kind):
        return self.stack.pop()[1]

    def activity_flush_all(self, flag):
        if flag or not self.forced_only:
            records, self.pending = self.pending, []
            self.completed(records)

    def activity_get_num_dropped_records(self, context, stream, address):
        ctypes.c_size_t.from_address(address).value = self.dropped

    def launch(self, correlation, **changes):
        record = SimpleNamespace(**{**FIELDS, "correlation_id": correlation, **changes})
        if self.stack and self.enabled & {KINDS.RUNTIME, KINDS.DRIVER}:
            label = SimpleNamespace(kind=39, correlation_id=correlation, external_id=self.stack[-1][1])
            self.pending.append(label)
        if record.kind in self.enabled or record.kind == KINDS.KERNEL:
            self.pending.append(record)

    def memset(self, correlation, start, size=16, kind=KINDS.MEMSET):
        self.launch(correlation, kind=kind, start=start, end=start + 100, bytes=size)


@pytest.mark.parametrize("refused", [(), (KINDS.RUNTIME,)])
@pytest.mark.parametrize("forced_only", [False, True])
def test_launches_are_found_under_their_label(forced_only, refused):
    cupti = FakeCupti(forced_only, refused)
    activity = Activity(cupti, FLUSH_BYTES)
    cupti.launch(1, name="warm-up")  # outside any label
    with activity.label(5):
        cupti.launch(3, start=20_000, end=21_000, name="second")
        cupti.launch(2, start=10_000, end=12_000, name="first")
    with activity.label(6):
        cupti.launch(4, kind=3)
    first, second, none = activity.collect([5, 6, 7])
    assert [span.kernel and span.kernel.kernel_name for span in first] == ["first", "second"]
    assert len(second) == 1
    assert none == []
    assert activity.collect([5]) == [[]]
    assert cupti.stack == [] and not activity.broken
    activity.close()
    assert cupti.enabled == set()


def test_memsets_and_memcpys_of_a_call_count_and_the_flush_does_not():
    cupti = FakeCupti()
    activity = Activity(cupti, FLUSH_BYTES)
    cupti.memset(1, 0, FLUSH_BYTES)
    with activity.label(1):
        cupti.memset(2, 1_000)
        cupti.memset(3, 2_000, kind=KINDS.MEMCPY)
        cupti.launch(4)
    (spans,) = activity.collect([1])
    assert spans[:2] == [Span(1_000, 1_100), Span(2_000, 2_100)] and len(spans) == 3
    result = traced([spans])
    assert result is not None
    assert result.times_us == (4.2,) and [kernel.kernel_name for kernel in result.kernels] == ["volta_sgemm"]


def test_without_correlations_the_flushes_split_the_repeats():
    cupti = FakeCupti()
    activity = Activity(cupti, FLUSH_BYTES)
    cupti.enabled -= {KINDS.RUNTIME, KINDS.DRIVER}
    for number in (1, 2):
        cupti.memset(10 * number, 10_000 * number, FLUSH_BYTES)
        with activity.label(number):
            cupti.launch(10 * number + 1, start=10_000 * number + 500, end=10_000 * number + 600 + number)
    assert [[span.end_ns for span in spans] for spans in activity.collect([1, 2])] == [[10_601], [20_602]]


def test_the_label_ends_with_an_exception():
    cupti = FakeCupti()
    activity = Activity(cupti)
    with pytest.raises(KeyError), activity.label(1):
        raise KeyError
    cupti.dropped = 5
    assert cupti.stack == []
    assert activity.dropped() == 5


@pytest.mark.parametrize(
    "function",
    ["activity_push_external_correlation_id", "activity_flush_all", "activity_pop_external_correlation_id"],
)
def test_an_error_of_cupti_is_kept_and_ends_its_use(function):
    cupti = FakeCupti()
    activity = Activity(cupti)
    cupti.failing = (function, "activity_disable")
    with activity.label(1):
        cupti.launch(1)
    activity.collect([1])
    assert activity.broken == f"{function} is not permitted"
    activity.close()


def test_an_instrument_that_does_not_open_says_why(monkeypatch):
    for cupti, words in (
        (FakeCupti(failing=("activity_register_callbacks",)), "not permitted"),
        (FakeCupti(refused=(KINDS.DRIVER,)), "INVALID_KIND"),
    ):
        monkeypatch.setitem(sys.modules, "cupti", SimpleNamespace(cupti=cupti))
        activity, why = Activity.open(FLUSH_BYTES)
        assert activity is None and words in why and "\n" not in why
    monkeypatch.setitem(sys.modules, "cupti", None)
    assert Activity.open(FLUSH_BYTES)[1] == "cupti-python is not installed"


def test_a_real_record_type_has_the_fields():
    """A kernel record of cupti-python's own type, of CUDA 13 or 12; and the names used of its module exist."""
    cupti = pytest.importorskip("cupti.cupti", reason="needs cupti-python")
    import numpy as np

    newest = (
        ("ActivityKernel10", "activity_kernel10_dtype"),
        ("ActivityKernel9", "c_upti_activity_kernel9_dtype"),
    )
    record, dtype = next(names for names in newest if hasattr(cupti, names[0]))
    raw = np.zeros(1, dtype=getattr(cupti, dtype)).view(np.recarray)
    raw.grid_x, raw.registers_per_thread, raw.end = 7, 42, 900
    span = span_of(raw[0])
    assert span.kernel is not None and span.end_ns == 900
    assert (span.kernel.grid_x, span.kernel.registers_per_thread, span.kernel.time_us) == (7, 42, 0.9)
    assert set(FIELDS) <= set(dir(getattr(cupti, record)))
    assert {"correlation_id", "external_id"} <= set(dir(cupti.ActivityExternalCorrelation))
    assert set(vars(KINDS)) <= set(dir(cupti.ActivityKind))
    assert {name for name in dir(FakeCupti) if name.startswith("activity_")} <= set(dir(cupti))


def span(start, end, name="k"):
    return Span(start, end, Kernel(name, 1, 1, 1, 32, 1, 1, 1, 0, 0, (end - start) / 1e3))


def test_sums_spans_and_medians_by_hand():
    repeats = [
        [span(0, 10_000, "a"), span(15_000, 20_000, "b")],
        [span(0, 12_000, "a"), span(13_000, 20_000, "b")],
        [
            span(0, 99_000, "c"),
            span(2_000, 8_000, "d"),
        ],  # another engine: its time counts, its kernels do not
    ]
    result = traced(repeats)
    assert result is not None
    assert result.times_us == (15.0, 19.0, 105.0)
    assert result.spans_us == (20.0, 20.0, 99.0)
    assert [(kernel.kernel_name, kernel.time_us) for kernel in result.kernels] == [("a", 11.0), ("b", 6.0)]


@pytest.mark.parametrize("repeats", [[], [[]], [[span(0, 1)], []]])
def test_missing_records_say_nothing(repeats):
    assert traced(repeats) is None
