"""The incremental JSON reader against the standard one, however the bytes are cut."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.features.errors import InputError
from surrogate.trace.events.scanner import Scanner

_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False)
    | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def _pieces(data: bytes, size: int):
    return (data[at : at + size] for at in range(0, len(data), size))


@given(st.lists(_values, max_size=6), st.dictionaries(st.text(max_size=6), _values, max_size=3), st.integers(1, 40),
       st.booleans())  # fmt: skip
def test_equal_to_a_whole_parse_for_any_cut(events, header, size, ascii_only):
    header.pop("traceEvents", None)
    data = json.dumps({**header, "traceEvents": events, "end": 1}, ensure_ascii=ascii_only).encode()
    scanner = Scanner(_pieces(data, size), "x")
    assert list(scanner) == events
    assert scanner.header == {**header, "end": 1} and not scanner.cut


@given(st.integers(0, 200))
def test_a_cut_file_gives_a_prefix(length):
    events = [{"name": f"event {i}", "ts": i, "args": {"a": [1, 2, {"b": "}]"}]}} for i in range(4)]
    data = json.dumps({"traceEvents": events}).encode()[: 18 + length]
    scanner = Scanner(iter([data]), "x")
    found = list(scanner)
    assert found == events[: len(found)] and scanner.cut


def test_a_fault_is_found_without_reading_on():
    def pieces():
        yield b'{"traceEvents": [{"a" 1}, ' + b" " * 1000
        raise AssertionError("read past the fault")

    with pytest.raises(InputError, match="damaged"):
        list(Scanner(pieces(), "x"))


def test_memory_holds_a_piece_not_the_file():
    event = json.dumps({"name": "aten::conv2d", "args": {"Call stack": "x" * 1000}}).encode() + b","

    def pieces():
        yield b'{"traceEvents": ['
        for _ in range(100):
            yield event * 100
        yield b"{}]}"

    tracemalloc.start()
    try:
        assert sum(1 for _ in Scanner(pieces(), "x")) == 10_001
        assert tracemalloc.get_traced_memory()[1] < 2_000_000 < 100 * 100 * len(event)
    finally:
        tracemalloc.stop()


def test_raw_line_ends_inside_names_are_accepted():
    assert list(Scanner(iter([b'[{"name": "a\nb"}]']), "x")) == [{"name": "a\nb"}]
