"""Reading PyTorch profiler JSON: both generations, missing keys, damage, archives."""

import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from surrogate.trace import events
from surrogate.trace.events.read import read_trace
from surrogate.trace.events.tables import take_rows
from surrogate.trace.profiling import profile
from surrogate.trace.tables import sources_by_layer, summary
from surrogate.trace.whatif import what_ifs
from tests.known import cases, known_answers
from tests.trace.events import call, device, event


def test_reader_fills_and_links_every_table(make_trace, read):
    trace = read(make_trace(steps=2))
    assert (len(trace.ranges), len(trace.calls), len(trace.activities)) == (20, 12, 12)
    assert trace.rank == 3
    assert trace.devices[0].compute_capability == 7.0 and trace.devices[0].sms == 80
    launched = [trace.name_of(trace.calls, call) for call in trace.activities.call]
    assert launched.count("cudaLaunchKernel") == 10 and launched.count("cudaMemcpyAsync") == 2
    rows = enumerate(trace.activities.range)
    around = {trace.name_of(trace.activities, i): trace.name_of(trace.ranges, r) for i, r in rows}
    assert around.items() >= known_answers(__file__)["operator_of_kernel"].items()


def test_columns_equal_the_values_of_the_file(make_trace, read):
    trace = read(make_trace(steps=1))
    kernel = int(np.flatnonzero(trace.activities.kind == events.KERNEL)[0])
    row = take_rows(trace.activities, np.array([kernel]))
    assert row.grid.tolist() == [[160, 1, 1]] and row.block.tolist() == [[256, 1, 1]]
    assert (row.registers[0], row.shared_bytes[0]) == (32, 4096)
    assert row.time_us.tolist() == [100.0] and row.start_ns.tolist() == [50_000]
    copy = take_rows(trace.activities, trace.activities.kind == events.COPY)
    assert (copy.bytes[0], copy.copy_kind[0]) == (400_000, events.TO_HOST)
    conv = next(r for r in range(len(trace.ranges)) if trace.name_of(trace.ranges, r) == "aten::conv2d")
    assert trace.shapes_of(conv)[:2] == ((8, 3, 32, 32), (16, 3, 3, 3))
    assert trace.types[trace.ranges.types[conv]][0] == "float"
    assert trace.allocations.bytes.tolist() == [460_800]
    assert trace.name_of(trace.ranges, trace.allocations.range[0]) == "aten::cudnn_convolution"


def test_loader_and_collections_are_frames_of_their_own_kind(make_trace, read):
    """Lines of torch and of Python are not kept; only the line of the program is the source of its layers."""
    names = known_answers(__file__)["frames"]
    trace = make_trace(steps=1)
    start = trace["traceEvents"][0]["ts"]
    trace["traceEvents"] += [event("python_function", name, start + 9, 150, 100) for name in names]
    found = read(trace)
    kinds = {found.name_of(found.frames, row): int(kind) for row, kind in enumerate(found.frames.kind)}
    assert kinds == {name: getattr(events, kind) for name, kind in names.items() if kind}
    assert set(sources_by_layer(profile(found)).values()) == {"train.py(3): main"}


def test_both_kineto_generations_give_the_same_tables(make_trace, make_older, read):
    new, old = read(make_trace()), read(make_older(make_trace()), "old.json")
    for table in ("ranges", "calls", "activities"):
        a, b = getattr(new, table), getattr(old, table)
        names_a, names_b = [new.names[i] for i in a.name], [old.names[i] for i in b.name]
        assert names_a == names_b
        assert a.start_ns.tolist() == b.start_ns.tolist() and a.end_ns.tolist() == b.end_ns.tolist()
    assert new.activities.call.tolist() == old.activities.call.tolist()
    assert new.activities.range.tolist() == old.activities.range.tolist()
    assert new.ranges.parent.tolist() == old.ranges.parent.tolist()
    assert all([(s.device, s.stream) for s in trace.streams] == [(0, 7)] for trace in (new, old))


def test_tables_are_sorted_and_times_start_at_zero(make_trace, read):
    found_events = make_trace()
    found_events["traceEvents"].reverse()
    trace = read(found_events)
    for table in (trace.ranges, trace.calls, trace.activities):
        assert (np.diff(table.start_ns) >= 0).all()
    assert trace.span_ns[0] == 0 and trace.origin_ns == 1_700_000_000_000_000_000


def test_compressed_file_and_bare_list_give_the_same_trace(refused, make_trace, read, saved, tmp_path):
    expected = read(make_trace())
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(make_trace()).encode()))
    for path in (packed, saved(make_trace()["traceEvents"], "bare.json")):
        other = read_trace(path)
        assert len(other.ranges) == len(expected.ranges) and len(other.activities) == len(expected.activities)
    packed.write_bytes(lzma.compress(packed.read_bytes()))
    with refused("is an archive"):
        read_trace(packed)


def test_fractions_of_a_microsecond_are_kept(read):
    event = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 12.345, "dur": 0.125}
    trace = read({"traceEvents": [event, {**event, "ts": 13.0, "dur": 1}]})
    assert trace.ranges.start_ns.tolist() == [0, 655] and trace.ranges.end_ns.tolist() == [125, 1655]


@pytest.mark.parametrize("bad", [{"dur": -5}, {"dur": None}, {"ts": "soon"}, {"ts": 1e300}, {"ts": float("nan")}])
def test_events_without_a_usable_time_are_dropped_with_a_note(make_trace, read, bad):
    trace = make_trace(steps=1)
    trace["traceEvents"][1] |= bad
    found = read(trace)
    assert len(found.ranges) == 9
    assert any("1 events without a usable time" in note for note in found.notes)


def test_events_without_args_or_thread_are_read(make_trace, read):
    trace = make_trace(steps=1)
    for record in trace["traceEvents"]:
        record.pop("args", None)
        record.pop("tid", None)
    found = read({"traceEvents": trace["traceEvents"]})
    assert len(found.activities) == 6 and (found.activities.call == -1).all()
    assert found.rank is None and found.devices == ()


def test_external_id_equal_to_a_correlation_id_links_no_operator(make_trace, read):
    trace = make_trace(steps=1)
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") != "cuda_runtime"]
    found = read(trace)
    kernels = found.activities.kind == events.KERNEL
    assert (found.activities.range[kernels] == -1).all()


def test_external_id_links_a_kernel_to_its_operator_without_a_call(make_trace, make_older, read):
    trace = make_older(make_trace(steps=1))
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") != "Runtime"]
    relu = next(e for e in trace["traceEvents"] if e["name"] == "aten::relu")
    kernel = next(e for e in trace["traceEvents"] if e["name"] == "relu_kernel")
    kernel["args"]["external id"] = relu["args"]["External id"]
    found = read(trace)
    row = next(i for i in range(6) if found.name_of(found.activities, i) == "relu_kernel")
    assert found.name_of(found.ranges, found.activities.range[row]) == "aten::relu"


def test_kernels_of_a_cuda_graph_share_their_launch(read):
    kernels = [device(f"k{i}", 10 + 5 * i, 4, 9, 7, "kernel", **{"graph node id": i + 1}) for i in range(3)]
    trace = read({"traceEvents": [call("cudaGraphLaunch", 0, 5, 9), *kernels]})
    assert trace.activities.call.tolist() == [0, 0, 0] and trace.activities.graph_node.tolist() == [1, 2, 3]
    assert trace.calls.kind.tolist() == [events.GRAPH_LAUNCH]


def test_synchronisation_records_are_read(make_trace, read):
    trace = make_trace(steps=1)
    awaited = {"wait_on_cuda_event_record_corr_id": 101}
    start_us = 1_700_000_000_000_700
    trace["traceEvents"].append(device("Stream Wait Event", start_us, 3, 106, category="cuda_sync", **awaited))
    found = read(trace)
    assert found.syncs.kind.tolist() == [events.SYNC_STREAM_WAIT]
    assert found.name_of(found.calls, found.syncs.call[0]) == "cudaMemcpyAsync"


def test_truncated_file_gives_its_complete_events(refused, make_trace, saved):
    text = json.dumps(make_trace())
    path = saved(text[: len(text) * 2 // 3])
    trace = read_trace(path)
    assert 0 < len(trace.ranges) < 20
    assert len(trace.notes) == 2 and "ends early" in trace.notes[0] and "ends early" in summary(trace)["notes"]
    with refused("ends early"):
        what_ifs(path, ["faster-host"])
    assert (trace.rank, trace.devices[0].sms) == (3, 80)  # the keys before the events are read


@pytest.mark.slow
def test_every_activity_of_resnet50_is_linked(resnet, measurements: Path):
    with gzip.open(measurements / "traces" / "resnet50_b32_training_v100.json.gz") as file:
        found_events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
    kernels = [e for e in found_events if e["cat"] in ("Kernel", "Memcpy", "Memset")]
    assert len(resnet.activities) == len(kernels) == 9096
    assert resnet.activities.time_us.sum() == sum(e["dur"] for e in kernels)
    assert (resnet.activities.call >= 0).all() and (resnet.activities.range >= 0).all()
    # The older Kineto records the operator of each kernel: a reference for the attribution by time.
    recorded = sorted((e["ts"], e["args"]["correlation"], e["args"]["external id"]) for e in kernels)
    order = np.lexsort((resnet.activities.correlation, resnet.activities.start_ns))
    assert resnet.ranges.external_id[resnet.activities.range[order]].tolist() == [i for _, _, i in recorded]


def test_execution_trace_is_refused_with_advice_on_recording(refused, read):
    """An execution trace has operators without times."""
    with refused("record_shapes=True"):
        read({"schema": "1.0.1", "pid": 1, "nodes": [{"id": 1, "name": "aten::relu"}]})


@cases(__file__)
def test_files_of_other_programs_are_named(content, name, tmp_path, refused):
    path = tmp_path / "given"
    path.write_bytes(content.encode("latin-1"))
    with refused(f"{path}: this is {name}"):
        read_trace(path)
