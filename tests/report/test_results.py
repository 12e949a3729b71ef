"""Reading results.json: what is refused, and in how many lines."""

import json
from pathlib import Path
from typing import Any

import pytest

from surrogate.features.errors import InputError
from surrogate.report.results import SCHEMA, check_results, read_results
from surrogate.report.terminal import terminal_summary
from surrogate.report.write import write_report


def _refused(path: Path, text: str | bytes) -> str:
    path.mkdir(exist_ok=True)
    (path / "results.json").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InputError) as raised:
        write_report(path)
    assert "\n" not in str(raised.value)
    assert {entry.name for entry in path.iterdir()} == {"results.json"}
    return str(raised.value)


def test_a_missing_file_names_the_command_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no results.json in .*; `seer compare -o .*` writes one"):
        write_report(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1, 2", b"\xff\xfe\x00", "[" * 100_000])
def test_what_is_not_json_is_refused(tmp_path: Path, text: str | bytes) -> None:
    assert "write it again with seer compare" in _refused(tmp_path, text)


def test_a_newer_schema_is_refused_politely(tmp_path: Path) -> None:
    message = _refused(tmp_path, json.dumps({"schema": SCHEMA + 1, "time_rows": [], "choice_rows": []}))
    assert f"has schema {SCHEMA + 1}" in message and "update seer-surrogate" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": None}, "schema is None"),
        ({"schema": "1"}, "schema is '1'"),
        ({"dataset": []}, "dataset is []"),
        ({"time_rows": None}, "no list time_rows"),
        ({"choice_rows": [3]}, "choice_rows[0] is not an object with a model"),
        ({"choice_rows": [{"model": "a", "slowdown_macro": "fast"}]}, "slowdown_macro is 'fast'"),
        ({"choice_rows": [{"model": "a", "n": 10**400}]}, "n is 1000"),
        ({"choice_rows": [{"model": "a", "paired_vs_heuristic": [1, 2]}]}, "paired_vs_heuristic is [1, 2]"),
        ({"time_rows": [{"model": "a", "gpu": 7}]}, "gpu is 7"),
        ({"time_rows": [{"model": "\ud800"}]}, "half a character"),
    ],
)
def test_a_broken_part_is_named(
    tmp_path: Path, results: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    assert message in _refused(tmp_path, json.dumps({**results, **change}))


def test_an_object_that_is_not_results_is_refused() -> None:
    for other in ([], None, "results"):
        with pytest.raises(InputError, match="not an object"):
            check_results(other)
    with pytest.raises(InputError, match="schema is None"):
        terminal_summary({})


def test_reading_gives_what_was_written(tmp_path: Path, results: dict[str, Any]) -> None:
    (tmp_path / "results.json").write_text(json.dumps(results), encoding="utf-8")
    assert read_results(tmp_path) == json.loads(json.dumps(results))
