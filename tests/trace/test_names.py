"""Short kernel names: known answers, and distinct names stay distinct."""

import numpy as np
from hypothesis import given, strategies as st

from surrogate.trace import events, find_layers
from surrogate.trace.events.parts import layer_type
from surrogate.trace.result import MAX_NAME_LENGTH, short_names
from tests.known import cases, known_answers
from tests.trace.events import event


@cases(__file__)
def test_short_names_equal_known_answers(short):
    assert short_names(short) == short


PIECE = st.sampled_from([*"<>(){},:_ x7", "::", "at::native::", "void ", "Kernel2<", "reduce_kernel<", "_ZN1a"])


@given(st.lists(st.lists(PIECE, max_size=40).map("".join) | st.text(max_size=80), max_size=12, unique=True))
def test_short_names_are_distinct_and_bounded(names):
    short = short_names(names)
    assert list(short) == names and len(set(short.values())) == len(names)
    assert all(len(text) <= MAX_NAME_LENGTH for text in short.values())


@cases(__file__)
def test_short_names_of_real_traces_are_distinct(real, name):
    trace = real(name)
    kernels = np.unique(trace.activities.name[trace.activities.kind == events.KERNEL])
    short = set(short_names(trace.names[i] for i in kernels).values())
    assert len(short) == len(kernels) > 5 and max(map(len, short)) <= MAX_NAME_LENGTH
    assert not any(part in text for text in short for part in ("void ", "at::", "cutlass::", "std::", "("))


def test_a_label_has_neither_arguments_nor_numbers():
    labels = known_answers(__file__)["labels"]
    assert {text: layer_type(text) for text in labels} == labels


def test_numbers_stay_in_labels_that_recur(read):
    """Each step has the same two layers; epochs and steps differ, and "epoch 3" has two ranges one after the other."""
    texts = ["epoch 3", "layer1.0", "layer1.1", "loss2d", "IO 1", "epoch 3", "layer1.0", "layer1.1", "loss2d", "IO 2"]
    texts += ["epoch 4"]
    trace = read({"traceEvents": [event("user_annotation", text, 10 * i, 5) for i, text in enumerate(texts)]})
    assert trace.repeated == {"layer1.0", "layer1.1", "loss2d"}
    assert {layer_type(text, trace.repeated) for text in texts} == {*trace.repeated, "epoch #", "IO #"}


def test_layers_have_the_path_of_their_modules(read):
    """A module's later runs and the operators outside leaf modules are numbered."""

    def module(name, start, length):
        return event("python_function", f"nn.Module: {name}", start, length)

    events = [module("Net_0", 0, 100), event("python_function", "net.py(3): forward", 5, 90)]
    for name, operator, start in known_answers(__file__)["modules"]:
        events += [module(name, start, 8)] if name else []
        events.append(event("cpu_op", operator, start + 1, 5))
    layers = find_layers(read({"traceEvents": [*events, event("cpu_op", "aten::sum", 110, 5)]}))
    paths = ("Conv2d_0", "ReLU_0", "Conv2d_1", "ReLU_0.1", "add.0", "add.1")
    assert layers.name == (*(f"Net_0/{path}" for path in paths), "sum.0")
    assert layers.type == ("Conv2d", "ReLU", "Conv2d", "ReLU", "add", "add", "sum")
