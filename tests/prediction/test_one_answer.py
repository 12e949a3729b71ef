"""Every command and the Python API answer one question alike: time, interval, source and notes, to the last digit."""

import copy
import json
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from surrogate import InputError, Prediction, Predictor, Selection, load
from surrogate.features.families import OPERATORS, AnyProblem, family_of
from surrogate.network.predict import load_predictors
from surrogate.prediction.resolve import MAX_SETTINGS, Question
from surrogate.prediction.results import SOURCES

GPUS = ("v100-sxm2-16gb", "h100-sxm", "rtx-4090", "mi210")
"""Measured with convolutions, with products, with neither; another vendor's."""
CONVOLUTIONS = ("n32c256h14k256r3p1", "n1c64h56k64r1", "n8c96h28k96r3p1g96", "n64c3h224k64r7p3u2")
SETTINGS = ({}, {"direction": "bwd_filter"}, {"dtype": "fp16", "layout": "NHWC"})
PLACE = ("time_us", "lower_us", "upper_us", "source", "in_domain", "library", "notes")


def questions() -> list[tuple[str, dict[str, str]]]:
    """Convolutions in several settings, and the known problem of every operator."""
    kinds = [cls.KNOWN_ANSWER.problem for cls in OPERATORS.values() if cls.KNOWN_ANSWER]
    return [(text, settings) for text in CONVOLUTIONS for settings in SETTINGS] + [(text, {}) for text in kinds]


@pytest.fixture(scope="module", params=GPUS)
def predictor(request: pytest.FixtureRequest) -> Predictor:
    return load(request.param)


def answered_questions(predictor: Predictor) -> list[tuple[AnyProblem, Selection]]:
    """Every question that the predictor answers, with its selection."""
    found = []
    for text, settings in questions():
        try:
            problem = predictor.read(text, **settings)
            selection = predictor.select(problem)
        except InputError:
            continue
        if selection.estimates:
            found.append((problem, selection))
    assert len({family_of(problem).name for problem, _ in found}) >= 5
    return found


def fields(answer: Any) -> tuple[object, ...]:
    return tuple(getattr(answer, name) for name in PLACE)


def as_table(problems: list[AnyProblem]) -> pd.DataFrame:
    """Rows of sizes and settings."""
    rows = []
    for problem in problems:
        family = family_of(problem)
        settings = dict(zip(family.setting_names, family.setting_of(problem), strict=True))
        rows.append(
            {"family": family.name, **dict(zip(family.size_names, family.sizes_of(problem), strict=True)), **settings}
        )
    return pd.DataFrame(rows)


def test_a_prediction_is_the_selection_s_pick(predictor: Predictor) -> None:
    for problem, selection in answered_questions(predictor):
        estimate, best = selection.estimates[0], selection.candidates[0]
        prediction = predictor.predict(problem)
        named = predictor.predict(problem, estimate.candidate.name)
        assert fields(prediction) == (*pick_fields(selection), selection.notes) == fields(named), problem
        assert best.source in SOURCES and prediction.time_us == best.time_us
        assert prediction.in_domain == (selection.reason is None)


def pick_fields(selection: Selection) -> tuple[object, ...]:
    best = selection.estimates[0]
    return (best.time_us, best.lower_us, best.upper_us, best.source, best.in_domain, best.candidate.library)


def test_a_table_s_rows_are_the_selections_picks(predictor: Predictor) -> None:
    """Without names the best of each row; with them, and one at a time, the named candidate."""
    pairs = answered_questions(predictor)
    table = as_table([problem for problem, _ in pairs])
    for named in (table, table.assign(algorithm=[s.estimates[0].candidate.name for _, s in pairs])):
        rows = predictor.predict(named)
        for row, (problem, selection) in enumerate(pairs):
            of_row = tuple(rows[name][row] for name in ("predicted_us", *PLACE[1:]))
            assert of_row == (*pick_fields(selection), selection.notes), problem
    again = predictor.select(table)
    assert [one.estimates for one in again] == [one.estimates for _, one in pairs]


def test_kernels_of_networks_and_traces_are_the_selections_picks(predictor: Predictor) -> None:
    """A network's convolution has the pick's time; any other kernel the pick's call."""
    predictors = load_predictors(predictor.gpu or "")
    pairs = answered_questions(predictor)
    convolutions = {problem: selection for problem, selection in pairs if problem.HAS_ALGORITHMS}
    if predictors.algorithms is not None:
        answers = predictors.answers(convolutions, predictors.selections(convolutions))
        assert len(answers) == len(convolutions) > 5
        for problem, answer in answers.items():
            best = convolutions[problem].estimates[0]
            assert (answer.time_us, answer.lower_us, answer.upper_us, answer.source) == (*best[1:4], best.source)
    compared = 0
    for problem, _ in pairs:
        if problem in convolutions or problem.fallbacks() != (problem,):
            continue
        (kernel,) = predictor.kernel_times([problem])
        if kernel.library:
            ranked = predictor.select(problem, library=kernel.library).estimates[0]
            assert (kernel.call_us, kernel.algorithm) == (ranked.time_us, ranked.candidate.name), problem
            compared += 1
    assert compared >= 5


def test_commands_answer_as_python_does(seer: Callable[..., Any], tmp_path: Path) -> None:
    """`select`, `predict`, `predict --data` and `export`, of one family a list, settings as options or columns."""
    lists = {
        "conv": (["n32c256h14k256r3p1", "n1c64h56k64r1"], {"dtype": "fp16"}),
        "gemm": (["gemm:m4096n4096k4096", "gemm:m1n4096k4096"], {"dtype": "fp8"}),
        "attention": (["attention:b8h32g8d128q2048k2048"], {"kv_dtype": "fp8"}),
    }
    served = load("h100-sxm")
    for family, (texts, settings) in lists.items():
        options = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]
        expected = [served.select(text, **settings) for text in texts]
        listed = tmp_path / f"{family}.csv"
        listed.write_text("\n".join(["problem", *texts, ""]))
        seer(
            "export", "h100-sxm", "--problems", listed, *options, "--as", "json", "-o", tmp_path / "o.json"
        ).succeeded()
        exported = json.loads((tmp_path / "o.json").read_text())["picks"]
        sized = tmp_path / f"{family}.parquet"
        as_table([one.problem for one in expected]).drop(columns=[*settings, "math"]).to_parquet(sized)
        for data in (listed, sized):
            seer("predict", "--gpu", "h100-sxm", "--data", data, *options, "-o", tmp_path / "p.parquet").succeeded()
            rows = pd.read_parquet(tmp_path / "p.parquet")
            for pick, row, one in zip(exported, rows.to_dict("records"), expected, strict=True):
                best = one.estimates[0]
                times = [best.time_us, best.lower_us, best.upper_us]
                assert [row[name] for name in ("predicted_us", "lower_us", "upper_us")] == times
                assert [pick[name] for name in ("time_us", "lower_us", "upper_us")] == times
        for text, one in zip(texts, expected, strict=True):
            selected = seer("select", "--gpu", "h100-sxm", text, *options, "--json").succeeded().json
            predicted = seer("predict", "--gpu", "h100-sxm", text, *options, "--json").succeeded().json
            assert selected == one.to_dict()
            assert predicted == served.predict(text, **settings).to_dict() | {"notes": [*one.notes]}


def test_the_fast_path_of_one_problem_gives_the_bits_of_arrays(predictor: Predictor) -> None:
    compared = 0
    for problem, _ in answered_questions(predictor):
        family = family_of(problem)
        ranker = predictor._resolver.ranker(Question(family, predictor.gpu or "", family.setting_of(problem)))
        sizes = pd.DataFrame([family.sizes_of(problem)]).to_numpy()
        index = ranker.accepted(ranker.rules.of(problem))
        together = ranker.answers(sizes, 0 * index, index)
        alone = ranker.rank(problem).estimates
        by_name = {ranker.candidates[i]: us for i, us in zip(index.tolist(), together.time_us.tolist(), strict=True)}
        assert {one.candidate: one.time_us for one in alone}.items() <= by_name.items()
        compared += len(alone)
    assert compared > 50


def _times(predictor: Predictor) -> list[float]:
    return [predictor.predict(text).time_us for text in CONVOLUTIONS]


@pytest.mark.parametrize("name", ["v100", "rtx-4090"])
def test_what_load_returns_can_be_copied_pickled_shared_and_forked(name: str) -> None:
    served = load(name)
    expected = _times(served)
    for copied in (pickle.loads(pickle.dumps(served)), copy.copy(served), copy.deepcopy(served)):
        assert isinstance(copied, Predictor) and copied.gpu == served.gpu and _times(copied) == expected
        assert copied.predict("gemm:m64n64k64").time_us == served.predict("gemm:m64n64k64").time_us
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(_times, [served] * 16)) == [expected] * 16
    for method in ("spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as processes:
            assert processes.map(_times, [served]) == [expected]


def test_invented_versions_share_one_setting() -> None:
    """An unknown version is answered as the next older known one; it costs no memory and is out of domain."""
    served = load("v100")
    known = served.predict(CONVOLUTIONS[0])
    rankers = len(served._resolver._rankers)
    for number in range(50):
        invented = served.predict(CONVOLUTIONS[0], library_version=f"7.6.{100 + number}")
        assert isinstance(invented, Prediction) and not invented.in_domain
        assert (invented.time_us, invented.algorithm) == (known.time_us, known.algorithm)
        assert f"7.6.{100 + number}" in (invented.reason or "") and invented.library_version == f"7.6.{100 + number}"
    assert len(served._resolver._rankers) <= rankers + 1


def test_settings_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_SETTINGS <= 1024
    monkeypatch.setattr("surrogate.prediction.resolve.MAX_SETTINGS", 3)
    served = load("v100")
    first = _times(served)
    for direction in ("fwd", "bwd_data", "bwd_filter"):
        for layout in ("NCHW", "NHWC"):
            served.predict(CONVOLUTIONS[0], direction=direction, layout=layout)
    assert len(served._resolver._rankers) <= 3
    served.forget()
    assert _times(served) == first


def test_a_table_s_caveats_are_printed_with_their_rows(seer: Callable[..., Any], tmp_path: Path) -> None:
    table = tmp_path / "list.csv"
    table.write_text(f"problem,dtype\n{CONVOLUTIONS[0]},\n{CONVOLUTIONS[1]},\ngemm:m512n512k512,fp16\n", "utf-8")
    done = seer("predict", "--gpu", "rtx-4090", "--data", table, "-o", tmp_path / "out.json").succeeded()
    answer = load("rtx-4090")
    notes = answer.predict(CONVOLUTIONS[0]).notes, answer.predict("gemm:m512n512k512", dtype="fp16").notes
    assert notes[0] and notes[1]
    lines = [*(f"2 rows: {note}" for note in notes[0]), *(f"1 row: {note}" for note in notes[1])]
    assert [line for line in lines if line not in done.out.splitlines()] == []
