"""Fixtures with an invented comparison in the files of `seer compare`; its numbers are random."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate.features.problem import SIZE_COLUMNS
from tests.tables import every

MODELS = {"stacked-terms": 0.10, "boosted-terms": 0.16, "seer-time-only": 0.30, "roofline": 0.80, "linear-terms": 0.24}
REFERENCES = {"cudnn-heuristic": 0.3, "always-best-single": 0.6, "oracle": 0.0}
GPUS = ("Tesla V100-SXM2-16GB", "Tesla T4", "TITAN Xp", "Tesla K80")
STRATA = ("1x1s1", "1x1s2", "3x3s1", "grouped", "other")
ALGORITHMS = {"IMPLICIT_GEMM": "GEMM", "GEMM": "GEMM", "FFT": "FFT", "FFT_TILING": "FFT", "WINOGRAD": "WINOGRAD"}
SIZES = tuple(name for name in SIZE_COLUMNS if name != "groups")


RESULTS = Path(__file__).with_name("results.json")
"""Results with evaluated rows, and with rows that have a reason instead."""


VOID = {"meta", "link", "br", "img", "wbr", "input"}


class HtmlPage(HTMLParser):
    """A parser that asserts closed tags and collects ids, links, text, tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        values = dict(attrs)
        self.attributes |= values.keys()
        self.ids += [values["id"] or ""] if "id" in values else []
        self.links += [value or "" for key, value in attrs if key in ("href", "src", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def invented_results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def invented_frames(problems: int = 300) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return predictions and choices of ``problems`` problems and two seeds, in the documented columns."""
    random = np.random.default_rng(21)
    base = pd.DataFrame({name: random.choice([1, 2, 4, 8, 16], problems) for name in SIZES}).assign(groups=1)
    setting = {"direction": "fwd", "dtype": "fp32", "math": "fma", "layout": "NCHW"}
    base = base.assign(gpu=random.choice(GPUS, problems), fold=random.integers(0, 10, problems), **setting)
    base["time_us"] = 10 ** random.uniform(0.8, 5.2, problems)
    rows = base.merge(pd.DataFrame(ALGORITHMS.items(), columns=["algorithm", "family"]), how="cross")
    rows["status"] = np.where(random.random(len(rows)) < 0.1, "not_supported", "ok")
    rows["time_us"] = (rows["time_us"] * 10 ** random.normal(0.1, 0.25, len(rows))).where(rows["status"] == "ok")
    rows = rows.merge(every(model=MODELS, seed=(0, 1)), how="cross")
    noise = np.exp(random.normal(0, rows["model"].map(MODELS) * np.where(rows["family"] == "FFT", 2, 1)))
    choices = base.drop(columns="time_us").merge(every(model=(*MODELS, *REFERENCES), seed=(0, 1)), how="cross")
    lost = random.exponential(0.6 * choices["model"].map({**MODELS, **REFERENCES}))
    slowdown = np.exp(np.where(random.random(len(choices)) < 0.3, lost, 0.0))
    strata = random.choice(STRATA, len(choices))
    return rows.assign(predicted_us=rows["time_us"] * noise, supported=True), choices.assign(
        slowdown=slowdown, stratum=strata, infeasible=False, top2_slowdown=1.0
    )


def write_folder(directory: Path, results: dict[str, Any]) -> Path:
    """Write a folder as `seer compare` does before the report; return it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_text(json.dumps(results), encoding="utf-8")
    predictions, choices = invented_frames()
    predictions.to_parquet(directory / "predictions.parquet")
    choices.to_parquet(directory / "choices.parquet")
    return directory


@pytest.fixture
def results() -> dict[str, Any]:
    """Return a new copy of the invented results."""
    return invented_results()


@pytest.fixture(scope="session")
def _written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from surrogate.report.comparison import write_report

    folder = write_folder(tmp_path_factory.mktemp("report") / "run", invented_results())
    write_report(folder)
    return folder


@pytest.fixture
def written(_written: Path) -> Path:
    """Return a folder with a report. It is shared; tests must not change it."""
    return _written
