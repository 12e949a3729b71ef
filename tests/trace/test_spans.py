"""Spans of a trace, the live tracer, and leveled experiments."""

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st

import surrogate.trace
from surrogate.collect.cudnn.activity import Activity, LaunchRecord
from surrogate.collect.device import MeasuredKernel
from surrogate.trace.spans import LEVELS, Spans, parents_by_inclusion, trace_spans
from surrogate.trace.tracer import Tracer, leveled, merge_levels, module_spans, operator_spans
from tests.known import cases, known_answers

BEHIND_NS = 7_000_000_000


def _named(spans, name):
    return next(row for row in range(len(spans)) if spans.name[row] == name)


def _chain(spans, row):
    found = []
    while row >= 0:
        found.append([LEVELS[spans.level[row]], spans.name[row]])
        row = int(spans.parent[row])
    return found


def test_parents_of_a_kernel_span_lead_to_its_iteration(make_trace, read):
    spans = trace_spans(read(make_trace(steps=1)))
    chains = known_answers(__file__)["chains"]
    assert _chain(spans, _named(spans, "volta_scudnn_128x64_relu_interior_nn_v1")) == chains["forward"]
    # A backward kernel belongs to the layer of its forward operator, although it runs on another thread.
    assert _chain(spans, _named(spans, "cudnn_wgrad_kernel"))[-3:] == chains["backward"]


def test_launch_and_kernel_are_two_spans_with_the_same_tags(make_trace, read):
    spans = trace_spans(read(make_trace(steps=1)))
    kernel = _named(spans, "relu_kernel")
    call = int(spans.parent[kernel])
    assert spans.tags[kernel] == spans.tags[call] != {}
    assert (spans.time_us[call], spans.time_us[kernel]) == (10.0, 20.0)
    assert spans.track[kernel] == "GPU 0 stream 7" and spans.track[call] == "100"


def test_parents_in_resnet50_are_at_a_higher_level(resnet):
    spans = trace_spans(resnet)
    has_parent = spans.parent >= 0
    upper = spans.level[spans.parent[has_parent]]
    level = spans.level[has_parent]
    assert ((upper < level) | ((upper == level) & (level == LEVELS.index("operator")))).all()
    kernels = spans.level == LEVELS.index("kernel")
    assert kernels.sum() == 9096 and (spans.level[spans.parent[kernels]] == LEVELS.index("call")).all()
    assert sorted(row for row, _ in spans.depth_first()) == list(range(len(spans)))
    assert len(spans.rows("layer")) == 6 + int((spans.level == 1).sum())


def test_a_live_span_is_recorded_with_its_parent():
    tracer = Tracer("model", "layer")
    with tracer.span("model", "net", batch=4), tracer.span("layer", "conv"):
        time.sleep(0.002)
    spans = tracer.spans()
    assert spans.name == ("net", "conv") and spans.parent.tolist() == [-1, 0]
    assert spans.tags[0] == {"batch": 4} and spans.time_us[0] >= spans.time_us[1] >= 2000
    tracer.clear()
    with pytest.raises(ZeroDivisionError), tracer.span("layer", "bad"):
        _ = 1 / 0
    assert tracer.spans().tags == ({"error": "ZeroDivisionError"},)


def test_levels_can_change_while_spans_are_open(refused):
    tracer = Tracer()
    with tracer.span("layer", "unseen"):
        tracer.enable("layer", "model")
    with tracer.span("layer", "seen"), tracer.span("kernel", "off"):
        tracer.disable("layer")
    with tracer.span("layer", "unseen"):
        pass
    assert tracer.spans().name == ("seen",) and tracer.levels == ("model",)
    tracer.disable()
    assert tracer.levels == ()
    with refused("did you mean layer"):
        tracer.enable("layers")


def test_spans_of_threads_nest_separately():
    tracer = Tracer("model", "layer", "operator")
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        barrier.wait()
        for i in range(50):
            with tracer.span("layer", f"{number}.{i}"), tracer.span("operator", f"{number}.{i}.op"):
                pass

    with tracer.span("model", "net"), ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    spans = tracer.spans()
    assert len(spans) == 1 + 8 * 100
    for row in range(len(spans)):
        if spans.name[row].endswith(".op"):
            assert spans.name[int(spans.parent[row])] + ".op" == spans.name[row]
        elif spans.name[row] != "net":
            assert spans.name[int(spans.parent[row])] == "net"


ROW = st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(1, 15), st.integers(0, 1))


@given(st.lists(ROW, min_size=1, max_size=20))
def test_parents_enclose_their_children_at_a_higher_level(rows):
    level, start, length, thread = (np.array([r[i] for r in rows], dtype=np.int64) for i in range(4))
    parent = parents_by_inclusion(level, start, start + length, thread)
    assert len(parent) == len(rows)
    for row, up in enumerate(parent.tolist()):
        encloses = (level < level[row]) & (start <= start[row]) & (start[row] + length[row] <= start + length)
        around = np.flatnonzero(encloses).tolist()
        assert (up >= 0) == bool(around) and (up < 0 or up in around)
        same_thread = [r for r in around if thread[r] == thread[row]]
        assert up < 0 or not same_thread or thread[up] == thread[row]


def test_shared_tracer_records_only_after_enable():
    with surrogate.trace.span("layer", "x"):
        pass
    assert len(surrogate.trace.recorded()) == 0
    surrogate.trace.enable("layer")
    try:
        with surrogate.trace.span("layer", "x"):
            pass
        assert surrogate.trace.recorded().name == ("x",)
    finally:
        surrogate.trace.disable()
        surrogate.trace.clear()


def test_leveled_adds_one_level_per_run():
    seen = []

    def run(tracer: Tracer) -> None:
        seen.append(tracer.levels)
        with tracer.span("model", "net"):
            for i in range(3):
                with tracer.span("layer", f"l{i}"):
                    time.sleep(0.01 * (len(tracer.levels) - 1))  # a deeper level costs more, as profilers do

    found = leveled(run, ("model", "layer"), repeats=3, warmup=1)
    assert seen == [("model", "layer"), *[("model",), ("model", "layer")] * 3]
    rows = found.rows().rows
    assert [row["level"] for row in rows] == ["model", "layer"] and [row["spans"] for row in rows] == [1, 3]
    assert rows[0]["overhead_us"] == 0 and rows[1]["overhead_us"] > 0
    assert found.runs[1].spans.name[0] == "net" and "overhead_us" in repr(found)


@cases(__file__)
def test_leveled_refuses_invalid_arguments(refused, levels, repeats, why):
    with refused(why):
        leveled(lambda tracer: None, levels, repeats=repeats)


def test_leveled_records_layers_and_operators_of_a_torch_model():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10))
    image = torch.randn(2, 3, 16, 16)

    def run(tracer: Tracer) -> None:
        with torch.no_grad(), module_spans(model, tracer), operator_spans(tracer), tracer.span("model", "net"):
            model(image)

    found = leveled(run, ("model", "layer", "operator"), repeats=5, warmup=2)
    layers = found.runs[1].spans
    assert layers.name == ("net", "0", "1", "2", "3")
    assert [tags.get("type") for tags in layers.tags[1:]] == ["Conv2d", "ReLU", "Flatten", "Linear"]
    assert layers.tags[1]["shape"] == (2, 3, 16, 16) and layers.parent.tolist() == [-1, 0, 0, 0, 0]
    operators = found.runs[2].spans
    of_layer = {operators.name[row]: operators.name[operators.parent[row]] for row in range(len(operators))}
    assert of_layer["aten.convolution.default"] == "0" and of_layer["aten.addmm.default"] == "3"
    assert all(row["model_us"] > 0 for row in found.rows().rows)
    assert not any(module._forward_hooks for module in model.modules())


def _spans(*rows) -> Spans:
    """Return spans of (name, level, start, end, parent) in ns; kernels have their own track."""
    name, level, start, end, parent = zip(*rows, strict=True)
    track = tuple("GPU" if number == 4 else "host" for number in level)
    ints = [np.array(column) for column in (level, start, end, parent)]
    return Spans(name, *ints[:3], track, ints[3], ({},) * len(rows)).in_time_order()


def test_merge_levels_places_separate_runs_on_one_timeline():
    """The model takes 100 alone and 160 with layers, so the gaps of 20, 32 and 28 shrink to a quarter."""
    found, lost = merge_levels([_spans(*rows) for rows in known_answers(__file__)["separate_runs"]])
    table = {found.name[i] + str(found.start_ns[i]): int(found.time_us[i] * 1e3) for i in range(len(found))}
    # The first kernel lies inside a (100 there, 40 here), whose other 85 shrink to 25: from 70 to 21.
    assert table == {"step 51000": 100, "a1005": 40, "k1026": 15, "b1053": 40, "k1078": 10, "k1094": 10}
    assert [found.name[p] for p in found.parent[1:]] == ["step 5", "a", "step 5", "b", "b"]
    assert lost == 1


def test_merge_levels_notes_spans_that_do_not_fit_into_their_parent():
    """The step takes 100 alone, its layers 110 and 20 in another run: they follow each other without a gap."""
    layers = _spans(("step", 0, 0, 160, -1), ("a", 1, 10, 120, 0), ("b", 1, 130, 150, 0))
    found, lost = merge_levels([_spans(("step", 0, 1000, 1100, -1)), layers])
    assert lost == 0 and found.end_ns.tolist() == [1100, 1110, 1130]
    assert found.notes[0].startswith("2 of 3 spans end after their parent ends") and found.rows().notes == found.notes


def test_merge_levels_starts_no_kernel_before_its_launch():
    """Scaled from the deep step, the first kernel would begin at 10, but its launch ends at 42."""
    found, lost = merge_levels([_spans(*rows) for rows in known_answers(__file__)["calls_and_kernels"]])
    assert lost == 0 and found.start_ns[found.level == 4].tolist() == [42, 62]


def test_leveled_times_every_batch_of_a_run(monkeypatch):
    now_ns = iter([0, 1000, 1000, 4000, 4000, 6000] * 2)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(now_ns))

    def run(tracer: Tracer) -> None:
        for number in range(3):
            with tracer.span("model", f"batch {number}"):
                pass

    found = leveled(run, ("model",), repeats=2, warmup=0)
    assert found.runs[0].model_us == (1.0, 3.0, 2.0) * 2 and found.rows().rows[0]["model_us"] == 2.0


class FakeActivity:
    """Replaces CUPTI: a kernel of 2 µs, 5 µs after its launch, on a clock 7 s behind the host's."""

    broken = ""

    def __init__(self, lost: int = 0) -> None:
        self.launched: list[tuple[int, LaunchRecord]] = []
        self.labels: list[int] = []
        self.lost = lost

    @contextmanager
    def label(self, number: int) -> Iterator[None]:
        self.labels.append(number)
        yield
        self.labels.pop()

    def kernel(self, name: str = "_Z4reluPf") -> None:
        start = time.perf_counter_ns() - BEHIND_NS + 5000
        kernel = MeasuredKernel(name, 4, 1, 1, 32, 1, 1, 1, 0, 0, 2.0)
        self.launched += [(number, LaunchRecord(start, start + 2000, kernel)) for number in self.labels[-1:]]

    def launches_by_label(self, numbers: Iterable[int]) -> list[list[LaunchRecord]]:
        return [[span for label, span in self.launched if label == number] for number in numbers]

    def dropped(self) -> int:
        return self.lost

    def close(self) -> None:
        assert not self.labels
        self.launched.clear()


@pytest.fixture
def recorder(monkeypatch) -> FakeActivity:
    """Install `FakeActivity` and its clock in place of CUPTI."""
    activity = FakeActivity()
    clock = SimpleNamespace(get_timestamp=lambda: time.perf_counter_ns() - BEHIND_NS)
    monkeypatch.setitem(sys.modules, "cupti", SimpleNamespace(cupti=clock))
    monkeypatch.setattr(Activity, "open", lambda number: (activity, ""))
    return activity


def test_live_kernels_are_children_of_the_launching_span(recorder):
    tracer = Tracer("model", "layer", "kernel")
    with tracer.kernels(), tracer.span("model", "net"):
        with tracer.span("layer", "conv"):
            recorder.kernel()
        with tracer.span("layer", "pool"):
            recorder.kernel("pool")
        recorder.kernel("late")
    spans = tracer.spans()
    above = {spans.name[i]: spans.name[spans.parent[i]] for i in range(len(spans)) if spans.level[i] == 4}
    assert above == {"relu(float*)": "conv", "pool": "pool", "late": "net"}
    kernel = _named(spans, "relu(float*)")
    assert spans.time_us[kernel] == 2 and spans.tags[kernel]["grid_x"] == 4 and spans.track[kernel] == "GPU"
    # The kernel starts 5 µs after a launch inside conv, on the host's clock.
    assert 0 < spans.start_ns[kernel] - spans.start_ns[_named(spans, "conv")] < 1e9

    def run(tracer: Tracer) -> None:
        with tracer.kernels(), tracer.span("model", "net"), tracer.span("layer", "conv"):
            recorder.kernel()

    experiment = leveled(run, ("model", "layer", "kernel"), repeats=3)
    assert [row["spans"] for row in experiment.rows()] == [1, 1, 1]
    merged, lost = experiment.merged()
    assert merged.name == ("net", "conv", "relu(float*)") and lost == 0


def test_kernel_recording_reports_lost_records_and_missing_cupti(monkeypatch, refused, recorder):
    tracer = Tracer("kernel")
    recorder.lost = 5
    with refused("lost 5 records"), tracer.kernels():
        pass
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cupti", None)
    with refused("cupti-python is not installed"), tracer.kernels():
        pass
    tracer.disable()
    with tracer.kernels():  # disabled: CUPTI is not called
        pass
