"""`trace_repeats` turns CUPTI's records into kernels per call; test_cudnn_chain.py uses it with the fake CUPTI."""

import ast
from pathlib import Path

import pytest

from surrogate.collect.cudnn.activity import NEEDED_KINDS, LaunchRecord, launch_record, trace_repeats
from surrogate.collect.device import MeasuredKernel

FAKE = Path(__file__).parent / "fake"


def test_cupti_python_has_the_fields_and_names():
    """The record types have different names in CUDA 13 and 12; the fake module may only have names of the real one."""
    cupti = pytest.importorskip("cupti.cupti", reason="needs cupti-python")
    import numpy as np

    newest = (("ActivityKernel10", "activity_kernel10_dtype"), ("ActivityKernel9", "c_upti_activity_kernel9_dtype"))
    record, dtype = next(names for names in newest if hasattr(cupti, names[0]))
    raw = np.zeros(1, dtype=getattr(cupti, dtype)).view(np.recarray)
    raw.grid_x, raw.registers_per_thread, raw.end = 7, 42, 900
    span = launch_record(raw[0])
    assert span.kernel is not None and span.end_ns == 900
    assert (span.kernel.grid_x, span.kernel.registers_per_thread, span.kernel.time_us) == (7, 42, 0.9)
    fields = ("kind", "name", "grid_x", "block_z", "static_shared_memory", "dynamic_shared_memory", "correlation_id")
    assert set(fields) <= set(dir(getattr(cupti, record)))
    assert {"correlation_id", "external_id"} <= set(dir(cupti.ActivityExternalCorrelation))
    assert {*NEEDED_KINDS, "RUNTIME", "KERNEL"} <= set(dir(cupti.ActivityKind))
    fake = ast.parse((FAKE / "packages" / "cupti" / "cupti.py").read_text(encoding="utf-8"))
    public = {node.name for node in fake.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assert {name for name in public if not name.startswith("_")} <= set(dir(cupti))


def span(start, end, name="k"):
    return LaunchRecord(start, end, MeasuredKernel(name, 1, 1, 1, 32, 1, 1, 1, 0, 0, (end - start) / 1e3))


def test_trace_repeats_computes_sums_spans_and_medians():
    repeats = [
        [span(0, 10_000, "a"), span(15_000, 20_000, "b")],
        [span(0, 12_000, "a"), span(13_000, 20_000, "b")],
        [span(0, 99_000, "c"), span(2_000, 8_000, "d")],  # another engine ran: its time counts, but not its kernels
    ]
    result = trace_repeats(repeats)
    assert result is not None
    assert result.times_us == (15.0, 19.0, 105.0)
    assert result.spans_us == (20.0, 20.0, 99.0)
    assert [(kernel.kernel_name, kernel.time_us) for kernel in result.kernels] == [("a", 11.0), ("b", 6.0)]


@pytest.mark.parametrize("repeats", [[], [[]], [[span(0, 1)], []]])
def test_trace_repeats_returns_none_without_records(repeats):
    assert trace_repeats(repeats) is None
