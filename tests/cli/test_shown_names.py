"""Names from files, options and devices with commands for terminals, markup and formulas, wherever they are shown."""

import ast
import csv
import io
import json
import re
import shlex
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from importlib import resources
from itertools import cycle
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from surrogate.bundle.bundle import save
from surrogate.bundle.train import train
from surrogate.report.charts import dots
from surrogate.report.comparison import report_page
from tests.known import known_answers
from tests.report.conftest import HtmlPage, invented_results
from tests.trace.conftest import trace_json

TABLE = known_answers(__file__)
NAMES: list[str] = TABLE["names"]


def is_clean(text: str) -> bool:
    """Return True if a text holds no control, invisible or direction character besides line ends and hard spaces."""
    return text.replace("\n", "").replace("\xa0", "").isprintable()


def check_page(text: str) -> None:
    """Check that a page holds no injected element and no character for terminals."""
    page = HtmlPage(text)
    assert is_clean(text) and "table" in page.tags
    assert not (page.tags | page.attributes) & {"script", "img", "onerror", "iframe"}


@pytest.fixture(scope="module")
def folder(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the inputs of the commands."""
    path = tmp_path_factory.mktemp("names")
    layer = {"n": 4, "c": 3, "h": 32, "w": 32, "k": 16, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1}
    operators = [{"name": name, "op": name, "n": 4, "c": 3, "h": 32, "w": 32} for name in NAMES]
    pd.DataFrame([*({"name": name, **layer} for name in NAMES), *operators]).to_parquet(path / "net.parquet")
    trace = trace_json()
    for number, event in enumerate(trace["traceEvents"]):
        if isinstance(event.get("name"), str) and not event["name"].startswith(("ProfilerStep", "cuda")):
            event["name"] = f"{NAMES[number % len(NAMES)]}{event['name']}"
    (path / "trace.json").write_text(json.dumps(trace))
    repeated = pd.Series(NAMES * len(table)).head(len(table)).to_numpy()
    table.assign(status=repeated).to_parquet(path / "bad.parquet")
    table.assign(networks=repeated, origin=repeated, **dict.fromkeys(NAMES, 1)).to_parquet(path / "data.parquet")
    rows = [
        {"gpu": "v100", "m": m, "n": 64, "block": block, "mode": name, "time_us": m / block + len(name)}
        for m in (64, 128, 256)
        for block in (16, 32)
        for name in NAMES
        if not re.search(r"[,=|\x00-\x1f]", name)  # a configuration's text holds the others
    ]
    pd.DataFrame(rows).to_csv(path / "own.csv", index=False)
    save(train(path / "own.csv", sizes="m,n", parameters="block,mode"), path / "OWN")
    config = resources.files("surrogate.bundled").joinpath("networks/llama-3.1-8b.json")
    (path / f"{NAMES[0]}.json").write_text(config.read_text(encoding="utf-8"))
    return path


@pytest.fixture
def run(seer: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that runs a command of the table for a name; its streams hold clean text."""
    monkeypatch.chdir(folder)

    def call(line: str, name: str = "", *words: str) -> Any:
        places = {"NAME": name, "--NAME": f"--{name}", "gpu=NAME": f"gpu={name}", "CONFIG": f"{NAMES[0]}.json"}
        result = seer(*(places.get(word, word) for word in shlex.split(line)), *words)
        assert is_clean(result.out) and is_clean(result.err), result
        return result

    return call


@pytest.mark.parametrize("line", TABLE["tables"])
def test_a_table_shows_names_without_control_characters_and_formulas(run: Any, line: str) -> None:
    assert run(line).code == line.startswith("data check")
    assert json.loads(run(line, "", "--json").out)
    rows = list(csv.reader(io.StringIO(run(line, "", "--csv").out)))
    cells = [cell for row in rows for cell in row if not re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", cell)]
    assert len(rows) > 1 and not any(cell.startswith(tuple("=+-@")) for cell in cells)


@pytest.mark.parametrize("line", TABLE["lines"])
def test_a_line_or_file_shows_names_without_control_characters(run: Any, line: str, folder: Path) -> None:
    for name in NAMES if "NAME" in line else NAMES[:1]:
        result = run(line, name)
        assert result.code in (0, 1) or (result.code == 2 and result.err.count("\n") == 1), result
    for file in folder.glob("shown.*"):
        text = file.read_text(encoding="utf-8")
        assert is_clean(text)
        if file.suffix == ".html":
            check_page(text)
        if file.suffix == ".py":
            assert [type(each).__name__ for each in ast.parse(text).body] == ["FunctionDef"]
        file.unlink()


def test_json_keeps_every_name(run: Any) -> None:
    names = {layer["name"] for layer in run("network net.parquet --gpu v100", "", "--json").json["layers"]}
    assert names == set(NAMES)


def test_a_report_and_its_figures_hold_names_as_text() -> None:
    names = [*NAMES, "\0", "\ud800"]
    models = {row["model"]: names[number % len(names)] for number, row in enumerate(invented_results()["choice_rows"])}

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {renamed(key): renamed(inner) for key, inner in value.items()}
        return [*map(renamed, value)] if isinstance(value, list) else models.get(value, value)

    results = renamed(invented_results())
    results["dataset"] |= {"name": "".join(names), "gpus": names, **dict.fromkeys(names, names)}
    results["settings"] = {name: {name: name} for name in names}
    for name, row in zip(cycle(names), results["choice_rows"] + results["time_rows"], strict=False):
        row["reason"] = name
    check_page(report_page(results, {}, dict.fromkeys(names, "no rows")))
    arrow_names = names[:-1]  # a table of Arrow holds no half of a character
    frame = pd.DataFrame({"model": arrow_names, "gpu": arrow_names[::-1], "x": 1.0})
    svg = dots(frame, "gpu", "model", "x", "x") or ""
    words = [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert is_clean(svg) and {"_hidden", "$\\frac{1$", "\\x00", "@SUM(1+1)"} <= set(words)
