"""Files made to hurt: archives that explode, endless event lists, names that are no text."""

import json
import sqlite3

import pytest

from surrogate.features.errors import InputError
from surrogate.trace import profile, read_trace
from surrogate.trace.graph import graph_of
from surrogate.trace.iteration import load_overheads
from surrogate.trace.whatif import evaluate, setting_of, user_function, what_if


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
