"""Reading a trace in batches: all events, truncated and damaged files, memory."""

import json
import subprocess
import sys
from itertools import count

import pytest
from hypothesis import given, settings, strategies as st

from surrogate.trace.events.batches import BATCH_BYTES, EventFile
from surrogate.trace.events.read import read_kineto
from tests.known import known_answers

_BAIT = ('}, {"ph"', '"traceEvents": [', "}\\", '\\"},{', "]", "\u2028", "\U0001f600", "\x00", "é")
_TEXTS = st.text(max_size=8) | st.sampled_from(_BAIT)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=12,
)
_EVENTS = st.lists(st.fixed_dictionaries({"ph": st.sampled_from("XifsM"), "args": _VALUES}) | _VALUES, max_size=40)
_HEADERS = st.dictionaries(_TEXTS.filter(lambda key: key != "traceEvents"), _VALUES, max_size=3)


def in_pieces(content: bytes, size: int) -> list[bytes]:
    return [content[at : at + size] for at in range(0, len(content), size)]


@settings(max_examples=60, deadline=None)
@given(_EVENTS, _HEADERS, _HEADERS, st.sampled_from([None, 1]), st.booleans(), st.integers(1, 300), st.integers(1, 200))
def test_batches_contain_all_events_of_the_file(events, before, after, indent, escaped, piece, batch):
    document = {**before, "traceEvents": events, **after}
    content = json.dumps(document, indent=indent, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    document = json.loads(content.decode("utf-8", "replace"))
    file = EventFile(in_pieces(content, piece), batch)
    assert [event for part in file for event in part] == document["traceEvents"]
    assert file.header == document | {"traceEvents": []} and not file.ends_early


@settings(max_examples=25, deadline=None)
@given(_EVENTS, st.integers(1, 300), st.integers(1, 200), st.sampled_from(["", "\ufeff", " \n"]))
def test_bare_event_list_is_read_in_batches(events, piece, batch, start):
    content = (start + json.dumps(events)).encode()
    assert [event for part in EventFile(in_pieces(content, piece), batch) for event in part] == events


def test_events_that_msgspec_rejects_are_still_read():
    texts = [b'{"ph": "X", "n": NaN}', b'{"ph": "X", "n": "\xff\x01"}', b'{"ph": "X", "n": "\\ud800"}', b'{"ph": "M"}']
    content = b'{"traceEvents": [%b]}' % b", ".join(texts * 9)
    events = [event for part in EventFile([content[:50], content[50:]], 40) for event in part]
    assert len(events) == 36 and events[1]["n"] == "\ufffd\x01" and events[2]["n"] == "\ud800"


def test_batches_of_small_events_stay_near_the_requested_size(make_trace):
    content = json.dumps(make_trace(steps=40)).encode()
    sizes = [len(json.dumps(part)) for part in EventFile(in_pieces(content, 1000), 4000)]
    assert len(sizes) > 10 and max(sizes) < 8000


def test_events_larger_than_a_batch_are_read():
    event = {"ph": "X", "args": {"parts": [{"a": 1}, {"b": 2}] * 50}}
    content = json.dumps({"traceEvents": [event] * 20, "after": [{}, {}] * 100}).encode()
    file = EventFile(in_pieces(content, 100), 60)
    assert [entry for part in file for entry in part] == [event] * 20 and len(file.header["after"]) == 200


def test_truncated_file_gives_its_complete_events_or_input_error(refused, make_trace):
    """The reader returns the events that end before the cut, or raises `InputError` if there are none."""
    trace = make_trace(steps=1)
    content = json.dumps(trace).encode()
    ends = []
    position = content.index(b"[", content.index(b'"traceEvents"')) + 1
    for event in trace["traceEvents"]:
        position = content.index(json.dumps(event).encode(), position) + len(json.dumps(event))
        ends.append(position)
    for cut in range(len(content)):
        file = EventFile(in_pieces(content[:cut], 70), 300)
        expected = trace["traceEvents"][: sum(end <= cut for end in ends)]
        try:
            events = [event for part in file for event in part]
        except json.JSONDecodeError:
            assert not expected
        else:
            assert events == expected and (file.ends_early or cut < 1)
    for cut in (0, 1, ends[0] - 1):
        with refused("is not JSON or is damaged"):
            read_kineto(in_pieces(content[:cut], 70), "cut.json")


@pytest.mark.parametrize("damage", [b"!", b'"', b"}", b"]", b'{"a": ', b"\\"])
def test_damage_in_the_middle_raises_input_error(refused, make_trace, damage):
    content = json.dumps(make_trace(steps=20)).encode()
    position = content.index(b'"dur"', len(content) // 2)
    with refused("damaged"):
        read_kineto(in_pieces(content[:position] + damage + content[position:], 1000), "t.json")


@pytest.mark.slow
def test_memory_does_not_grow_with_discarded_events(tmp_path):
    """Of 60 MB a thousandth is kept; a batch needs its text, two copies and objects of 10 times its text."""
    path = tmp_path / "large.json"
    number = count()
    with path.open("w") as file:
        file.write('{"traceEvents": [')
        while file.tell() < 60e6:
            arrow = {"ph": "s", "cat": "ac2g", "pid": 1, "tid": 1, "ts": next(number), "args": {"text": "x" * 100}}
            file.write(",\n".join([json.dumps(arrow)] * 1000) + ",\n")
            file.write(json.dumps({"ph": "X", "cat": "cpu_op", "name": "a", "ts": next(number), "dur": 1}) + ",\n")
        file.write('{"ph": "M"}]}')
    command = [sys.executable, "-c", known_answers(__file__)["reader"], str(path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    ranges, grown = map(int, answer.stdout.split())
    assert ranges == next(number) // 2
    assert grown < 20 * BATCH_BYTES + 10 * 2**20 < 60e6 / 1.9
