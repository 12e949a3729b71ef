"""Files made to hurt: archives that explode, endless event lists, names that are no text."""

import gzip
import json
import sqlite3
import tarfile

import pytest

from surrogate.features.errors import InputError
from surrogate.trace import profile, read_trace
from surrogate.trace.events import kineto, read
from surrogate.trace.graph import graph_of
from surrogate.trace.iteration import load_overheads
from surrogate.trace.whatif import evaluate, setting_of, user_function, what_if


def test_padding_is_refused_long_before_the_limit(tmp_path, monkeypatch):
    """16 MiB of blanks in 16 KB, by a lowered allowance; as much plain text is read to its end."""
    monkeypatch.setattr(read, "FREE_BYTES", 1 << 20)
    blanks = b'{"traceEvents":[' + b" " * (16 << 20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(blanks))
    seen = []
    with pytest.raises(InputError, match="over 200 times its size"):
        read_trace(path, progress=lambda done, total: seen.append(done))
    assert len(seen) < 16
    plain = tmp_path / "plain.json"
    plain.write_bytes(blanks)
    with pytest.raises(InputError, match="holds no operators"):
        read_trace(plain)


def test_a_real_traces_ratio_is_far_from_the_limit(make_trace):
    """A small trace of many equal steps packs tightly and still is no padding."""
    raw = json.dumps(make_trace(steps=300)).encode()
    assert len(raw) / len(gzip.compress(raw)) < read.MAX_RATIO / 3


def test_more_events_than_memory_should_hold(make_trace, tmp_path, monkeypatch):
    path = tmp_path / "long.json"
    path.write_text(json.dumps(make_trace(steps=2)))
    count = len(make_trace(steps=2)["traceEvents"])
    monkeypatch.setattr(kineto, "MAX_EVENTS", count)
    assert len(read_trace(path).calls) == 12
    monkeypatch.setattr(kineto, "MAX_EVENTS", count - 1)
    with pytest.raises(InputError, match="record fewer iterations"):
        read_trace(path)


def test_an_archive_of_several_traces(make_trace, tmp_path):
    one, path = tmp_path / "worker0.json", tmp_path / "workers.tar.gz"
    one.write_text(json.dumps(make_trace()))
    with tarfile.open(path, "w:gz") as archive:
        archive.add(one, "worker0.json")
    with pytest.raises(InputError, match=r"unpack it .tar xf. and give one trace"):
        read_trace(path)


def test_an_execution_trace_in_the_place_of_a_trace(tmp_path):
    """It holds operators without times: said, with the option that takes it."""
    path = tmp_path / "et.json"
    path.write_text(json.dumps({"schema": "1.0.1", "pid": 1, "nodes": [{"id": 1, "name": "aten::relu"}]}))
    with pytest.raises(InputError, match="--execution-trace"):
        read_trace(path)


def test_sqlite_with_a_column_name_that_is_no_text(tmp_path):
    """sqlite quotes it in an error that Python cannot decode."""
    path = tmp_path / "odd.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, XXXXXXXX)")
        connection.execute('CREATE VIEW v AS SELECT "start" FROM CUPTI_ACTIVITY_KIND_RUNTIME')
    connection.close()
    path.write_bytes(path.read_bytes().replace(b"start, XXXXXXXX", b"start, \xbb\xbb XXX X("))
    with pytest.raises(InputError) as error:
        read_trace(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mean", ["[]", "[1]", "[1, 1e999]", "{}", '"x"', "[" * 100_000])
def test_damaged_overheads(tmp_path, mean):
    path = tmp_path / "o.json"
    path.write_text('{"schema": 1, "overall": {"t1": %s}, "by_name": {}}' % mean)  # noqa: UP031
    with pytest.raises(InputError) as error:
        load_overheads(path)
    assert "\n" not in str(error.value)


def test_another_gpu_for_a_trace_without_device_tasks(make_trace, read):
    """Nothing to make faster, and no mean of nothing."""
    trace = make_trace()
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") not in ("kernel", "gpu_memcpy")]
    one = profile(read(trace))
    answer = evaluate(graph_of(one.trace, one.layers), [what_if("gpu")], setting_of(one, target="t4"))[0]
    assert answer.speedup == 1 and any("no device task" in note for note in answer.notes)


def test_a_users_function_from_the_current_folder_and_its_faults(make_trace, read, tmp_path, monkeypatch):
    """Found without PYTHONPATH, as ``seer network`` finds a module; what it raises is one line."""
    (tmp_path / "own_what_ifs.py").write_text(
        "def same(graph):\n    return graph\ndef broken(graph):\n    raise KeyError('two\\nlines')\n"
    )
    (tmp_path / "own_broken_module.py").write_text("def (:\n")
    monkeypatch.chdir(tmp_path)
    one = profile(read(make_trace()))
    graph, setting = graph_of(one.trace, one.layers), setting_of(one)
    assert evaluate(graph, [user_function("own_what_ifs:same")], setting)[0].speedup == 1
    with pytest.raises(InputError, match="KeyError") as error:
        evaluate(graph, [user_function("own_what_ifs:broken")], setting)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="SyntaxError"):
        user_function("own_broken_module:x")
