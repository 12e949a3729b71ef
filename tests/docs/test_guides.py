"""The guides of the rooms, followed to the letter with the code that they show."""

import json
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import surrogate.formats
from surrogate.features.gpu import gpu, gpus
from surrogate.formats import FORMATS
from surrogate.models import MODELS
from tests.docs.markdown import Block, blocks, commands, without_settings
from tests.docs.refresh import COLUMNS_PAGE, with_columns
from tests.docs.runner import run_python, run_seer
from tests.trace.conftest import whole

ROOT = Path(__file__).resolve().parents[2]
Table = Callable[..., pd.DataFrame]


def guide(room: str, language: str = "python") -> list[Block]:
    """The blocks of a room's guide in one language."""
    return [block for block in blocks(ROOT / room / "README.md") if block.language == language]


def load_module(block: Block, name: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The block as a module of that name, for this test."""
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(block.text, name, "exec"), vars(module))
    room, _, attribute = name.rpartition(".")
    monkeypatch.setattr(sys.modules[room], attribute, module, raising=False)
    return module


def run_tests(block: Block, request: pytest.FixtureRequest) -> int:
    """Run the tests that a block defines, with fixtures and parameters; the number run."""
    namespace: dict[str, Any] = {}
    exec(compile(block.text, "guide", "exec"), namespace)
    tests = [each for name, each in namespace.items() if name.startswith("test_")]
    count = 0
    for test in tests:
        code = test.__code__
        for values in _parameters(test):
            names = code.co_varnames[: code.co_argcount]
            test(
                **{name: values[name] if name in values else request.getfixturevalue(name) for name in names}
            )
            count += 1
    return count


def _parameters(test: Any) -> Iterator[dict[str, Any]]:
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    if not marks:
        yield {}
    for mark in marks:
        for value in mark.args[1]:
            yield {mark.args[0]: value}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SEER_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_add_my_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (toml,), (shell,) = guide("features", "toml"), guide("features", "sh")
    (folder / "my_gpus.toml").write_text(toml.text)
    outputs = []
    for words in commands(shell.text):
        if words[0] == "export":
            monkeypatch.setenv(*words[1].split("=", 1))
        else:
            outputs.append(run_seer(words))
    shown, picks = outputs
    assert "its maker's data sheet, 2026" in shown and "36.86" in shown
    assert " spec " in picks and " model " not in picks
    assert gpu("Example 16GB").name == "example-16gb"
    run_python(guide("features")[0], ROOT / "features" / "README.md")


def test_the_gpu_guide_names_every_key() -> None:
    from surrogate.features.gpu_file import _OWN, _SHARED

    text = (ROOT / "features" / "README.md").read_text(encoding="utf-8")
    assert all(f"| `{key}` |" in text for key in _OWN)
    assert len(_SHARED) == 10, "the guide says: all ten keys"
    assert f" has {len(gpus())} rows to" in text


def test_add_a_format(folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    reader, line, tests = guide("surrogate/formats")
    load_module(reader, "surrogate.formats.my_csv", monkeypatch)
    added = eval(line.text, vars(surrogate.formats))
    monkeypatch.setattr(surrogate.formats, "FORMATS", {**FORMATS, added.name: added})
    assert run_tests(tests, request) == 3
    assert added.how_to_get().startswith("Times of a benchmark of our own")
    (folder / "times.csv").write_text(
        "n,c,h,w,k,r,s,pad,stride,algorithm,ms\r\n8,64,56,56,64,3,3,1,1,GEMM,0.5\r\n", newline=""
    )
    rows = added.read(["times.csv"], gpu="v100").rows
    surrogate.write_dataset(rows, folder / "times.parquet")
    assert "no violations" in run_seer(["seer", "data", "check", "times.parquet"])


def test_add_a_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, table: Table
) -> None:
    model, tests = guide("surrogate/models")
    module = load_module(model, "surrogate.models.factor", monkeypatch)
    monkeypatch.setitem(MODELS, "factor", module.Factor)
    assert run_tests(tests, request) == 1
    surrogate.write_dataset(table(8, gpus=("Tesla T4",)), folder / "run.parquet")
    monkeypatch.setattr(surrogate.models, "MODELS", MODELS)
    run_seer(
        ["seer", "compare", "run.parquet", "--models", "roofline,factor", "--folds", "3", "-o", "report"]
    )
    judged = json.loads((folder / "report" / "results.json").read_text(encoding="utf-8"))["choice_rows"]
    assert {"roofline", "factor"} <= {row["model"] for row in judged}
    for words in commands(guide("surrogate/models", "sh")[0].text)[1:2]:
        run_seer(words)
    picks = run_seer(
        ["seer", "select", "--bundle", "bundle", "--gpu", "t4", "n8c64h28w28k64r3s3p1", "--json"]
    )
    assert json.loads(picks)["candidates"][0]["time_us"] > 0


def test_write_my_own_what_if(folder: Path) -> None:
    function, use = guide("surrogate/trace/whatif")
    (folder / "mine.py").write_text(function.text)
    trace = json.dumps(whole(steps=3)).replace("cudnn_wgrad_kernel", "sgemm_wgrad")
    (folder / "trace.json.gz").write_text(trace.replace("Memcpy DtoH", "Memcpy HtoD"))
    page = ROOT / "surrogate" / "trace" / "whatif" / "README.md"
    try:
        from_python = float(run_python(use, page).strip("×\n"))
        assert from_python > 1
        (words,) = commands(guide("surrogate/trace/whatif", "sh")[0].text)
        answers = json.loads(run_seer([*without_settings(words), "--json"]))
    finally:
        sys.modules.pop("mine", None)
    speedups = {answer["name"]: answer["speedup"] for answer in answers}
    assert speedups["mine:hidden_copies"] == pytest.approx(from_python, abs=1e-3)
    assert len(speedups) == 3


def test_the_columns_shown_are_those_declared() -> None:
    text = COLUMNS_PAGE.read_text(encoding="utf-8")
    assert with_columns(text) == text, "run: python -m tests.docs.refresh"


def test_guides_name_no_place_of_this_machine() -> None:
    for page in ROOT.rglob("README.md"):
        text = page.read_text(encoding="utf-8")
        assert os.sep + "tmp" not in text and str(ROOT) not in text, page
