"""A trace of 100 MB: whole, and in little memory. No timed asserts."""

import json

import pytest

from surrogate.trace import profile, read_trace


@pytest.mark.slow
def test_a_hundred_megabytes(make_trace, tmp_path):
    """The invented step repeated, one operator in four with a call stack, as a profiler with stacks writes it."""
    path, steps = tmp_path / "big.json", 7000
    trace = make_trace(steps=steps)
    for event in trace["traceEvents"][1::24]:
        event["args"]["Call stack"] = ";".join(
            f"/usr/lib/python/torch/module_{i}.py(12): forward" for i in range(45)
        )
    path.write_text(json.dumps(trace))
    assert path.stat().st_size > 50e6
    found = read_trace(path)
    assert len(found.activities) == 6 * steps and (found.activities.call >= 0).all()
    assert len(profile(found).layers.iterations) == steps
