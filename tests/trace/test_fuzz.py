"""Damaged traces: every reader and analysis either works or refuses in one line."""

import contextlib
import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surrogate.features.errors import InputError
from surrogate.trace import (
    copy_table,
    kernel_table,
    layer_table,
    profile,
    read_trace,
    summary,
    trace_spans,
    trim,
    type_table,
)  # fmt: skip
from surrogate.trace.page import trace_page

_ODD = [None, True, -1, 0, 2**63, -(2**70), 1e300, float("nan"), float("inf"), "", "7", "x" * 50, "\ud800", [], [1], {},
        {"a": 1}, [[8, 3], [[]]], [-5, 2, "a"], 0.5]  # fmt: skip


def _mutated(trace, seed):
    """A few random edits: values of any type in any place, keys lost, events doubled, moved or torn."""
    draw, events = random.Random(seed), json.loads(json.dumps(trace["traceEvents"]))
    for _ in range(draw.randint(1, 12)):
        event = draw.choice(events)
        if not isinstance(event, dict) or not event:
            continue
        inner = event.get("args") if isinstance(event.get("args"), dict) and draw.random() < 0.5 else event
        if not inner:
            continue
        key = draw.choice(sorted(inner, key=str))
        action = draw.randrange(6)
        if action == 0:
            inner.pop(key)
        elif action == 1:
            events.append(json.loads(json.dumps(event)))
        elif action == 2:
            events[draw.randrange(len(events))] = draw.choice(_ODD)
        elif action == 3 and isinstance(inner[key], int | float):
            inner[key] = inner[key] + draw.choice([-1e9, -1000, -50, 0.25, 50, 1000, 1e9])
        else:
            inner[key] = draw.choice(_ODD)
    header = {
        k: draw.choice(_ODD) if draw.random() < 0.2 else v for k, v in trace.items() if draw.random() < 0.9
    }
    return header | {"traceEvents": events}


def _analyse(path: Path, *, page: bool = False) -> bool:
    """Everything a command does; True if the trace was readable."""
    try:
        one = profile(read_trace(path))
    except InputError as error:
        assert "\n" not in str(error)
        return False
    whole = one.total_us
    assert whole >= 0
    for table in (layer_table(one), type_table(one)):
        assert sum(row["total_us"] for row in table) == pytest.approx(whole)
    json.dumps([summary(one), *kernel_table(one), *copy_table(one), *trace_spans(one.trace).rows()])
    repr(kernel_table(one)).encode()
    if page:
        trace_page(one).encode()
    with contextlib.suppress(InputError):
        trim(one.trace, iterations_kept=[0], from_us=250.0, to_us=750.0)
    return True


def _fuzz(trace, path, seeds):
    readable = 0
    for seed in seeds:
        path.write_text(json.dumps(_mutated(trace, seed)))
        readable += _analyse(path, page=seed % 20 == 0)
    return readable


def test_damaged_traces(make_trace, tmp_path):
    assert _fuzz(make_trace(steps=1), tmp_path / "t.json", range(80)) > 40


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_bytes_flipped_or_cut(make_trace, tmp_path, data):
    raw = bytearray(json.dumps(make_trace(steps=1)).encode())
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "raw.json"
    path.write_bytes(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    _analyse(path)
