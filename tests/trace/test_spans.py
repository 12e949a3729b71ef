"""Spans of a trace, and merged recordings of one program."""

import numpy as np

from surrogate.trace.leveled import merge_levels
from surrogate.trace.spans import LEVELS, Spans, trace_spans


def _named(spans, name):
    return next(row for row in range(len(spans)) if spans.name[row] == name)


def _chain(spans, row):
    found = []
    while row >= 0:
        found.append((LEVELS[spans.level[row]], spans.name[row]))
        row = int(spans.parent[row])
    return found


def test_parents_of_a_kernel_span_lead_to_its_iteration(make_trace, read):
    spans = trace_spans(read(make_trace(steps=1)))
    assert _chain(spans, _named(spans, "volta_scudnn_128x64_relu_interior_nn_v1")) == [
        ("kernel", "volta_scudnn_128x64_relu_interior_nn_v1"),
        ("call", "cudaLaunchKernel"),
        ("operator", "aten::cudnn_convolution"),
        ("layer", "conv2d.0"),
        ("model", "ProfilerStep#5"),
    ]
    # A backward kernel belongs to the layer of its forward operator, although it runs on another thread.
    assert _chain(spans, _named(spans, "cudnn_wgrad_kernel"))[-3:] == [
        ("operator", "ConvolutionBackward0"),
        ("layer", "conv2d.0"),
        ("model", "ProfilerStep#5"),
    ]


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


def _spans(*rows) -> Spans:
    """Return spans of (name, level, start, end, parent) in ns; kernels have their own track."""
    name, level, start, end, parent = zip(*rows, strict=True)
    track = tuple("GPU" if number == 4 else "host" for number in level)
    ints = [np.array(column) for column in (level, start, end, parent)]
    return Spans(name, *ints[:3], track, ints[3], ({},) * len(rows)).in_time_order()


def test_merge_levels_places_separate_runs_on_one_timeline():
    """The model takes 100 alone and 160 with layers, so the gaps of 20, 32 and 28 shrink to a quarter."""
    model = _spans(("step 5", 0, 1000, 1100, -1))
    layers = _spans(("step 8", 0, 0, 160, -1), ("a", 1, 20, 60, 0), ("b", 1, 92, 132, 0))
    kernels = _spans(
        ("step 9", 0, 0, 320, -1),
        ("a", 1, 10, 110, 0),
        ("b", 1, 120, 220, 0),
        ("k", 4, 80, 95, 1),
        ("k", 4, 250, 260, 2),
        ("k", 4, 300, 310, 2),
        ("step 10", 0, 400, 500, -1),
        ("a", 1, 410, 430, 6),
        ("new", 1, 440, 480, 0),
        ("l", 4, 450, 460, 8),
    )
    found, lost = merge_levels([model, layers, kernels])
    table = {found.name[i] + str(found.start_ns[i]): int(found.time_us[i] * 1e3) for i in range(len(found))}
    # The first kernel lies inside a (100 there, 40 here), whose other 85 shrink to 25: from 70 to 21.
    assert table == {"step 51000": 100, "a1005": 40, "k1026": 15, "b1053": 40, "k1078": 10, "k1094": 10}
    assert [found.name[p] for p in found.parent[1:]] == ["step 5", "a", "step 5", "b", "b"]
    assert lost == 1


def test_merge_levels_starts_no_kernel_before_its_launch():
    """Scaled from the deep step, the first kernel would begin at 10, but its launch ends at 42."""
    calls = _spans(("step", 0, 0, 100, -1), ("op", 2, 25, 60, 0), ("launch", 3, 27, 42, 1))
    deep = _spans(
        ("step", 0, 0, 1000, -1),
        ("op", 2, 50, 80, 0),
        ("launch", 3, 60, 75, 1),
        ("k", 4, 100, 120, 2),
        ("k", 4, 500, 510, 2),
    )
    found, lost = merge_levels([calls, deep])
    assert lost == 0 and found.start_ns[found.level == 4].tolist() == [42, 62]
