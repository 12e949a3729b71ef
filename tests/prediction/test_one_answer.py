"""Tests that every command and the Python API give the same time, interval, source and notes, to the last digit."""

import copy
import json
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate import InputError, Prediction, Predictor, Selection, load
from surrogate.features.families import OPERATORS, AnyProblem, family_of
from surrogate.features.problem import ELEMENTS
from surrogate.network.network import Layer, NetworkBuilder
from surrogate.network.predict import load_predictors
from surrogate.prediction.resolve import MAX_RANKER_BYTES, Question
from surrogate.prediction.results import SOURCES
from tests.known import cases

GPUS = ("v100-sxm2-16gb", "h100-sxm", "rtx-4090", "mi210")
"""GPUs with measured convolutions, with measured products, with neither, and of another vendor."""
CONVOLUTIONS = ("n32c256h14k256r3p1", "n1c64h56k64r1", "n8c96h28k96r3p1g96", "n64c3h224k64r7p3u2")
SETTINGS = ({}, {"direction": "bwd_filter"}, {"dtype": "fp16", "layout": "NHWC"})
COMPARED_FIELDS = ("time_us", "lower_us", "upper_us", "source", "in_domain", "library", "notes")


def questions() -> list[tuple[str, dict[str, str]]]:
    """Return convolutions in several settings, the known problem of every operator, and long products."""
    kinds = [(cls.KNOWN_ANSWER.problem, {}) for cls in OPERATORS.values() if cls.KNOWN_ANSWER]
    products = [("gemm:m2000n27648k5120", {"dtype": dtype}) for dtype in ("bf16", "int4_wo", "fp8")]
    return [(text, settings) for text in CONVOLUTIONS for settings in SETTINGS] + kinds + products


@pytest.fixture(scope="module", params=GPUS)
def predictor(request: pytest.FixtureRequest) -> Predictor:
    return load(request.param)


def answered(predictor: Predictor) -> list[tuple[AnyProblem, Selection]]:
    """Return every problem that the predictor answers, with its selection."""
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


def fields_of(answer: Any) -> tuple[object, ...]:
    return tuple(getattr(answer, name) for name in COMPARED_FIELDS)


def as_table(problems: list[AnyProblem]) -> pd.DataFrame:
    """Return problems as rows of sizes and settings."""
    rows = []
    for problem in problems:
        family = family_of(problem)
        settings = dict(zip(family.setting_names, family.setting_of(problem), strict=True))
        sizes = dict(zip(family.size_names, family.sizes_of(problem), strict=True))
        rows.append({"family": family.name, **sizes, **settings})
    return pd.DataFrame(rows)


def test_a_prediction_equals_the_selections_pick(predictor: Predictor) -> None:
    for problem, selection in answered(predictor):
        estimate, best = selection.estimates[0], selection.candidates[0]
        prediction = predictor.predict(problem)
        by_name = predictor.predict(problem, estimate.candidate.name)
        assert fields_of(prediction) == (*pick_of(selection), selection.notes) == fields_of(by_name), problem
        assert best.source in SOURCES and prediction.time_us == best.time_us
        assert prediction.in_domain == (selection.reason is None)


def pick_of(selection: Selection) -> tuple[object, ...]:
    """Return the compared fields of a selection's best estimate, without the notes."""
    best = selection.estimates[0]
    return (best.time_us, best.lower_us, best.upper_us, best.source, best.in_domain, best.candidate.library)


def test_the_rows_of_a_table_equal_the_selections_picks(predictor: Predictor) -> None:
    """A row without an algorithm gets the best one, a row with an algorithm gets that one."""
    pairs = answered(predictor)
    table = as_table([problem for problem, _ in pairs])
    for query in (table, table.assign(algorithm=[s.estimates[0].candidate.name for _, s in pairs])):
        rows = predictor.predict(query)
        for row, (problem, selection) in enumerate(pairs):
            of_row = tuple(rows[name][row] for name in ("predicted_us", *COMPARED_FIELDS[1:]))
            assert of_row == (*pick_of(selection), selection.notes), problem
    assert [s.estimates for s in predictor.select(table)] == [s.estimates for _, s in pairs]


def test_kernels_of_networks_and_traces_equal_the_selections_picks(predictor: Predictor) -> None:
    """Convolutions of a network have the time of the pick, other kernels its time per call."""
    predictors = load_predictors(predictor.gpu or "")
    pairs = answered(predictor)
    convolutions = {problem: selection for problem, selection in pairs if problem.HAS_ALGORITHMS}
    if predictors.algorithm_predictor is not None:
        answers = predictors.answers(convolutions, predictors.selections(convolutions))
        assert len(answers) == len(convolutions) > 5
        for problem, answer in answers.items():
            best = convolutions[problem].estimates[0]
            assert (answer.time_us, answer.lower_us, answer.upper_us, answer.source) == (*best[1:4], best.source)
    compared = 0
    for problem, _ in pairs:
        if problem in convolutions or problem.fallbacks() != (problem,):
            continue
        (kernel,) = predictors.kernel_predictor.kernel_times([problem])
        if kernel.library:
            ranked = predictor.select(problem, library=kernel.library).estimates[0]
            assert (kernel.call_us, kernel.algorithm) == (ranked.time_us, ranked.candidate.name), problem
            if not family_of(problem).has_call_cost:
                answer = predictors.default_math_answers([problem])[problem]
                assert answer[:3] == pytest.approx(ranked[1:4]), problem
            compared += 1
    assert compared >= 5


@cases(__file__)
def test_commands_answer_as_the_python_api(seer, tmp_path, texts, settings) -> None:
    """Tested with `select`, `predict`, `predict --data` and `export`; settings are options or columns."""
    predictor = load("h100-sxm")
    options = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]
    selections = [predictor.select(text, **settings) for text in texts]
    text_file = tmp_path / "texts.csv"
    text_file.write_text("\n".join(["problem", *texts, ""]))
    seer("export", "h100-sxm", "--problems", text_file, *options, "--as", "json", "-o", tmp_path / "o.json").succeeded()
    exported = json.loads((tmp_path / "o.json").read_text())["picks"]
    size_file = tmp_path / "sizes.parquet"
    as_table([selection.problem for selection in selections]).drop(columns=[*settings, "math"]).to_parquet(size_file)
    for data in (text_file, size_file):
        seer("predict", "--gpu", "h100-sxm", "--data", data, *options, "-o", tmp_path / "p.parquet").succeeded()
        rows = pd.read_parquet(tmp_path / "p.parquet")
        for pick, row, selection in zip(exported, rows.to_dict("records"), selections, strict=True):
            best = selection.estimates[0]
            times = [best.time_us, best.lower_us, best.upper_us]
            assert [row[name] for name in ("predicted_us", "lower_us", "upper_us")] == times
            assert [pick[name] for name in ("time_us", "lower_us", "upper_us")] == times
    for text, selection in zip(texts, selections, strict=True):
        selected = seer("select", "--gpu", "h100-sxm", text, *options, "--json").succeeded().json
        predicted = seer("predict", "--gpu", "h100-sxm", text, *options, "--json").succeeded().json
        assert selected == selection.to_dict()
        assert predicted == predictor.predict(text, **settings).to_dict() | {"notes": [*selection.notes]}


BOARDS = ("v100", "t4", "a100", "h100", "b200", "rtx-4090", "mi210", "mi300x", "b60")
"""One GPU of each kind: architectures, vendors, with and without measured kernels."""


@pytest.mark.parametrize(
    ("board", "types"),
    [
        *((board, {"fp32", "bf16"}) for board in ("v100", "h100", "mi300x")),
        *(pytest.param(board, {*ELEMENTS}, marks=pytest.mark.slow) for board in BOARDS),
    ],
)
def test_every_operator_answers_alone_or_is_refused_in_one_line(board: str, types: set[str]) -> None:
    """An operator without measured candidates has the answer of its layer in a network."""
    predictor, predictors = load(board), load_predictors(board)
    alone: dict[AnyProblem, Prediction] = {}
    for cls in OPERATORS.values():
        assert cls.KNOWN_ANSWER
        for dtype in types.intersection(cls.CHOICES["dtype"]):
            problem = predictor.read(cls.KNOWN_ANSWER.problem, dtype=dtype)
            if not (selection := predictor.select(problem)).estimates:
                reasons = r"(has no \w+ units|it needs [^;]+|products need [^;]+); give other settings or another GPU$"
                with pytest.raises(InputError, match=reasons):
                    predictor.predict(problem)
                continue
            answer = predictor.predict(problem)
            assert fields_of(answer)[:-1] == pick_of(selection)
            assert 0 < answer.lower_us <= answer.time_us <= answer.upper_us
            if not answer.library:
                assert "as in a network or a trace" in (answer.reason or "")
                alone[problem] = answer
    assert len(alone) >= 40
    builder = NetworkBuilder()
    builder.add([Layer(str(problem), problem.kind, problem) for problem in alone])
    layers = predictors.time(builder.network("all", None, False)).layers
    times = [(layer.time_us, layer.lower_us, layer.upper_us, layer.source) for layer in layers]
    assert times == [fields_of(answer)[:4] for answer in alone.values()]


@cases(__file__)
def test_an_unknown_operator_lists_operators(refused: Any, text: str, message: str) -> None:
    with refused(message, "rms_norm"):
        load("h200").select(text)


def test_a_call_s_answer_says_that_networks_leave_out_its_launch() -> None:
    predictor = load("v100")
    notes = [predictor.predict(text).notes for text in ("relu:n32c64h7w7", "gemm:m64n64k64", "silu:n32c64h7w7")]
    say_so = [any("networks and traces count the kernel" in note for note in each) for each in notes]
    assert say_so == [True, False, False]


def test_one_problem_gets_exactly_the_times_of_an_array(predictor: Predictor) -> None:
    compared = 0
    for problem, _ in answered(predictor):
        family = family_of(problem)
        ranker = predictor._resolver.ranker(Question(family, predictor.gpu or "", family.setting_of(problem)))
        sizes = pd.DataFrame([family.sizes_of(problem)]).to_numpy()
        index = ranker.accepted(ranker.rules.of(problem))
        together = ranker.answers(sizes, 0 * index, index)
        alone = ranker.rank(problem).estimates
        by_name = {ranker.candidates[i]: us for i, us in zip(index.tolist(), together.time_us.tolist(), strict=True)}
        assert {estimate.candidate: estimate.time_us for estimate in alone}.items() <= by_name.items()
        compared += len(alone)
    assert compared > 50


def _times(predictor: Predictor) -> list[float]:
    return [predictor.predict(text).time_us for text in CONVOLUTIONS]


@pytest.mark.parametrize("name", ["v100", "rtx-4090"])
def test_a_predictor_can_be_copied_pickled_and_sent_to_processes(name: str) -> None:
    predictor = load(name)
    expected = _times(predictor)
    for copied in (pickle.loads(pickle.dumps(predictor)), copy.copy(predictor), copy.deepcopy(predictor)):
        assert isinstance(copied, Predictor) and copied.gpu == predictor.gpu and _times(copied) == expected
        assert copied.predict("gemm:m64n64k64").time_us == predictor.predict("gemm:m64n64k64").time_us
    with multiprocessing.get_context("spawn" if name == "v100" else "forkserver").Pool(1) as processes:
        assert processes.map(_times, [predictor]) == [expected]


def test_unknown_versions_share_one_ranker() -> None:
    """An unknown version is answered as the next older known one, out of domain."""
    predictor = load("v100")
    newest = predictor.predict(CONVOLUTIONS[0])
    rankers = len(predictor._resolver._rankers)
    for number in range(50):
        invented = predictor.predict(CONVOLUTIONS[0], library_version=f"7.6.{100 + number}")
        assert isinstance(invented, Prediction) and not invented.in_domain
        assert (invented.time_us, invented.algorithm) == (newest.time_us, newest.algorithm)
        assert f"7.6.{100 + number}" in (invented.reason or "")
        assert invented.library_version == f"7.6.{100 + number}"
    assert len(predictor._resolver._rankers) <= rankers + 1


def test_the_number_of_cached_rankers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surrogate.prediction.resolve.ranker_bytes", lambda ranker: MAX_RANKER_BYTES // 3)
    predictor = load("v100")
    first = _times(predictor)
    for direction in ("fwd", "bwd_data", "bwd_filter"):
        for layout in ("NCHW", "NHWC"):
            predictor.predict(CONVOLUTIONS[0], direction=direction, layout=layout)
    assert len(predictor._resolver._rankers) <= 3
    predictor.forget()
    assert _times(predictor) == first


def test_notes_of_a_table_are_printed_with_their_number_of_rows(seer: Callable[..., Any], tmp_path: Path) -> None:
    table = tmp_path / "list.csv"
    table.write_text(f"problem,dtype\n{CONVOLUTIONS[0]},\n{CONVOLUTIONS[1]},\ngemm:m512n512k512,fp16\n", "utf-8")
    done = seer("predict", "--gpu", "rtx-4090", "--data", table, "-o", tmp_path / "out.json").succeeded()
    predictor = load("rtx-4090")
    notes = predictor.predict(CONVOLUTIONS[0]).notes, predictor.predict("gemm:m512n512k512", dtype="fp16").notes
    assert notes[0] and notes[1]
    lines = [*(f"2 rows: {note}" for note in notes[0]), *(f"1 row: {note}" for note in notes[1])]
    assert [line for line in lines if line not in done.out.splitlines()] == []


def test_chunks_of_a_table_give_the_answers_of_the_whole_table(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor, sizes = load("h200-sxm"), np.random.default_rng(0).integers(1, 5000, (3, 300))
    table = {"family": "gemm", "dtype": "bf16", **dict(zip("mnk", sizes, strict=True))}
    whole = predictor.predict(table)
    monkeypatch.setattr("surrogate.prediction.table.CHUNK_ROWS", 40)
    parts = predictor.predict(table)
    assert parts.predicted_us.tolist() == whole.predicted_us.tolist()
    assert parts.algorithm.tolist() == whole.algorithm.tolist()
    for i in range(0, 300, 100):
        m, n, k = sizes[:, i].tolist()
        assert predictor.predict(f"gemm:m{m}n{n}k{k}", dtype="bf16").time_us == whole.predicted_us[i]
