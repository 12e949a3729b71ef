"""Tests of exported functions: their answers are compared with their heads and with the bundle's predictions."""

import itertools
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from math import exp, log
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from surrogate import Conv, load
from surrogate.bundle.bundle import Bundle
from surrogate.dataset.described import KernelColumns
from surrogate.features.families import AnyProblem, family_of, parse_problem
from surrogate.models.configurations import Configurations
from surrogate.prediction.export import Picks, picks_for, sizes_and_settings
from surrogate.prediction.export_function import decision_function, export_function, triton_arguments
from surrogate.prediction.predictor import Predictor
from tests.prediction.conftest import bundle_of
from tests.prediction.test_export import convs

SHAPES = tuple(itertools.product((16, 256, 2048), (128, 1024, 8192), (64, 512)))
COLUMNS = KernelColumns(
    ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages", "order"), ("m", "n", "in"), ("dtype",), "function_kernel"
)


def times() -> pd.DataFrame:
    """Return invented times that grow with the waves of tiles; tiles of 128 × 128 fail in fp32."""
    configurations = [
        (m, n, w, s, o) for m in (16, 32, 128) for n in (32, 128) for w, s in ((4, 2), (8, 3)) for o in ("row", "col")
    ]
    rows = [(*shape, dtype, *c) for shape in SHAPES for dtype in ("fp16", "fp32") for c in configurations]
    frame = pd.DataFrame(rows, columns=["m", "n", "in", "dtype", *COLUMNS.parameters])
    tile = frame["BLOCK_M"] * frame["BLOCK_N"]
    waves = -(-(-(-frame["m"] // frame["BLOCK_M"]) * -(-frame["n"] // frame["BLOCK_N"])) // 64)
    long = 1 + np.abs(np.log2(tile / (256 * frame["num_warps"]))) / 4
    time_us = 5 + waves * frame["in"] * tile * long * np.where(frame["order"] == "row", 1.0, 1.2) / 1e4
    failed = (tile == 128 * 128) & (frame["dtype"] == "fp32")
    return frame.assign(gpu="our own", time_us=time_us.mask(failed), status=np.where(failed, "failed", "ok"))


@pytest.fixture(scope="module")
def kernel() -> Bundle:
    """Return a bundle fitted without held-out folds; its card has an invented held-out slowdown."""
    held_out = {"function_kernel": {"choice": {"all": {"slowdown_macro": 1.2345}}}}
    card = {"data": {"name": "made up", "gpus": ["our own"]}, "held_out": held_out}
    return bundle_of(times(), Configurations(), COLUMNS, card=card)


@pytest.fixture(scope="module")
def listed(kernel: Bundle) -> Picks:
    """Return picks for the measured shapes and for two others."""
    shapes = [*SHAPES, (64, 4096, 256), (4096, 64, 128)]
    texts = [f"function_kernel:m{m}n{n}in{k}" for m, n, k in shapes]
    problems = [
        parse_problem(text, kernel.described_family, dtype=dtype) for text in texts for dtype in ("fp16", "fp32")
    ]
    return picks_for(Predictor(kernel), problems, name="mine")


def defined(text: str, **modules: Any) -> dict[str, Any]:
    """Return the names that an exported file defines; assert that it imports only ``modules``."""
    imported = re.findall(r"^\s*(?:import|from) (\w+)", text, flags=re.MULTILINE)
    assert set(imported) == modules.keys()
    names: dict[str, Any] = {}
    exec(compile(re.sub(r"^import \w+$", "", text, flags=re.MULTILINE), "exported.py", "exec"), {**modules}, names)
    return names if len(names) == 1 else {**names, "configs": rebound(names)}


def rebound(names: Mapping[str, Any]) -> Callable[..., Any]:
    """Return ``configs`` with the file's names as its globals, as in a module."""
    return types.FunctionType(names["configs"].__code__, dict(names), None, names["configs"].__defaults__)


def arguments(problem: AnyProblem) -> dict[str, Any]:
    """Return sizes and settings by name; the size `in` is called `in_`, as in the exported function."""
    return {"in_" if name == "in" else name: value for name, value in sizes_and_settings(problem).items()}


def time_us(picks: Picks, problem: AnyProblem, answer: Any) -> float | None:
    """Return the bundle's prediction for the answer, None if the answer does not run."""
    estimates = next(s.estimates for s in picks.selections if s.problem == problem)
    for estimate in estimates:
        candidate = estimate.candidate
        names = tuple(filter(None, (candidate.library, candidate.algorithm, candidate.solver)))
        text = ",".join(f"{name}={value}" for name, value in answer.items()) if isinstance(answer, dict) else ""
        if candidate.solver == text if text else names == answer:
            return estimate.time_us
    return None


def slowdown(picks: Picks, select: Callable[..., Any]) -> float:
    """Return the geometric mean over the problems of the answer's predicted time over the best."""
    logs = []
    for selection in picks.feasible:
        own_us = time_us(picks, selection.problem, select(**arguments(selection.problem)))
        assert own_us is not None, f"{selection.problem} does not run"
        logs.append(log(own_us / selection.estimates[0].time_us))
    return exp(sum(logs) / len(logs))


@cache
def function_of_convolutions(gpu: str) -> tuple[Callable[..., Any], Predictor, set[tuple[int, ...]]]:
    """Return an exported function of a GPU's shipped bundle, its predictor, and the traits of the listed problems."""
    listed = [each for each in convs(60) if each.groups == 1]
    picks, family = picks_for(load(gpu), listed), family_of(listed[0])
    return defined(export_function(picks, "python")[0])["select"], load(gpu), {*map(family.traits, listed)}


def stated_slowdown(text: str) -> float:
    """Return the slowdown that the head of an exported file states."""
    return float(re.search(r"# Predicted slowdown on the listed problems: (\d+\.\d+)", text)[1])  # pyright: ignore[reportOptionalSubscript]


def test_the_slowdown_equals_the_head_and_falls_with_more_leaves(listed: Picks) -> None:
    slowdowns = []
    for leaves in (2, 4, 8, 32):
        text, summary = export_function(listed, "python", leaves=leaves)
        slowdowns.append(slowdown(listed, defined(text)["select"]))
        assert stated_slowdown(text) == pytest.approx(slowdowns[-1], abs=6e-4)
        count = text.count("return {")
        assert count <= leaves and f"leaves: {count}, predicted slowdown on the listed problems" in summary
        assert f"{stated_slowdown(text):.3f}" in summary
    assert slowdowns == sorted(slowdowns, reverse=True)
    assert slowdowns[-1] < 1.05 < slowdowns[0]


def test_the_head_states_bundle_data_and_held_out_slowdown(kernel: Bundle, listed: Picks) -> None:
    t4_picks = picks_for(Predictor(kernel, gpu="t4"), [selection.problem for selection in listed.selections])
    assert "Held-out slowdown of the bundle: not evaluated on t4." in export_function(t4_picks, "python")[0]
    text, _ = export_function(listed, "python", leaves=8)
    head = " ".join(text.partition("\n\n\n")[0].replace("#", " ").split())
    assert "function_kernel to run on our own:" in head and "Bundle: mine, model configurations" in head
    assert f"Listed problems: {len(listed.feasible)}. Leaves: {text.count('return {')}." in head
    assert "fitted on made up (our own)." in head
    assert f"predictions, not measurements, except for {2 * len(SHAPES)} problems" in head
    assert "Held-out slowdown of the bundle: 1.234 (measured shapes left out of training" in head
    held_out = decision_function(listed, 8).held_out
    assert held_out is not None and f"slowdown of the tree: {held_out.factor:.3f}" in head
    assert held_out.factor >= decision_function(listed, 8).slowdown.factor
    assert max(map(len, text.splitlines())) < 120


def test_the_function_has_default_settings_and_integer_thresholds(listed: Picks) -> None:
    """A setting's default is its commonest value; a threshold lies between listed sizes."""
    text, _ = export_function(listed, "python")
    assert 'def select(m, n, in_, dtype="fp16"):' in text
    select = defined(text)["select"]
    assert set(select(64, 64, 64)) == set(COLUMNS.parameters)
    for name, size in re.findall(r"if (m|n|in_) <= (\S+):", text):
        values = {arguments(selection.problem)[name] for selection in listed.feasible}
        assert min(values) <= int(size) < max(values)
    with pytest.raises(ValueError, match="int4"):
        select(64, 64, 64, dtype="int4")


def test_the_first_triton_config_is_the_functions_pick(listed: Picks) -> None:
    """Launch parameters are arguments of `Config`, not entries of its dictionary."""

    class Config:
        def __init__(self, kwargs: dict[str, Any], *, num_warps: int, num_stages: int) -> None:
            self.parameters = {**kwargs, "num_warps": num_warps, "num_stages": num_stages}
            self.kwargs = kwargs

    python, _ = export_function(listed, "python", leaves=6)
    text, _ = export_function(listed, "triton", leaves=6, top=2)
    configs = defined(text, triton=types.SimpleNamespace(Config=Config))["configs"]
    select = defined(python)["select"]
    assert listed.feasible
    for selection in listed.feasible:
        answer = configs(**arguments(selection.problem))
        assert len(answer) == 2 and answer[0].parameters == select(**arguments(selection.problem))
        assert answer[0].parameters != answer[1].parameters
        assert answer[0].kwargs.keys() == {"BLOCK_M", "BLOCK_N", "order"}


def test_short_names_of_launch_parameters_are_accepted() -> None:
    assert triton_arguments({"B": 16, "warps": 4, "stages": 3}) == '{"B": 16}, num_warps=4, num_stages=3'
    assert triton_arguments({"warps": 2, "num_warps": 4, "maxnreg": 64}) == '{"warps": 2}, num_warps=4, maxnreg=64'
    assert triton_arguments({"ctas": 1}) == "{}, num_ctas=1"


def test_functions_of_built_in_families_return_library_and_algorithm(many_families: Bundle, bundle: Bundle) -> None:
    predictor = Predictor(many_families, gpu="t4")
    gemms = picks_for(predictor, [parse_problem(f"gemm:m{m}n512k256") for m in (64, 200, 512, 3000)])
    text, _ = export_function(gemms, "python")
    select = defined(text)["select"]
    assert select(m=64, n=512, k=256) == ("cublas", "default")
    assert slowdown(gemms, select) == pytest.approx(stated_slowdown(text), abs=6e-4)
    picks = picks_for(Predictor(bundle, gpu="v100"), convs(30))
    text, _ = export_function(picks, "python", leaves=5)
    select = defined(text)["select"]
    assert slowdown(picks, select) == pytest.approx(stated_slowdown(text), abs=6e-4)
    assert select(n=8, c=64, h=28, k=64, r=3, pad_h=1) == select(
        n=8, c=64, h=28, w=28, k=64, r=3, s=3, pad_h=1, pad_w=1
    )


@given(conv=st.from_type(Conv), simple=st.booleans())
@pytest.mark.parametrize("gpu", ["v100", "mi300x"])
def test_a_function_never_returns_a_candidate_that_cannot_run(gpu: str, conv: Conv, simple: bool) -> None:
    """A problem of an unlisted kind gets an algorithm without conditions, or an error if no library documents one."""
    select, predictor, kinds = function_of_convolutions(gpu)
    settings = {"direction": "fwd", "dtype": "fp32", "math": "fma", "layout": "NCHW"}
    ones = {"dilation_h": 1, "dilation_w": 1, "groups": 1, "stride_w": conv.stride_h, "s": conv.r, "pad_w": conv.pad_h}
    conv = replace(conv, **settings, **(ones if simple and conv.w >= conv.h else {}))
    excluded = {name for name, _ in predictor.select(conv).excluded}
    try:
        answer = select(**arguments(conv))
    except ValueError as error:
        assert gpu == "mi300x" and family_of(conv).traits(conv) not in kinds and "no listed problem" in str(error)
        return
    assert answer[-1] not in excluded
    if gpu == "v100" and family_of(conv).traits(conv) not in kinds:
        assert answer[1] in ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM")


def test_infeasible_problems_are_counted_and_left_out(listed: Picks) -> None:
    selections = (replace(listed.selections[0], estimates=()), *listed.selections[1:])
    text, _ = export_function(replace(listed, selections=selections), "python")
    assert f"# Listed problems: {len(selections) - 1}, and 1 left out because nothing runs them." in text


def test_problems_that_a_leaf_cannot_run_are_counted_as_failures(listed: Picks) -> None:
    """One leaf serves two problems that have no feasible configuration in common."""
    first, second = (replace(s, estimates=s.estimates[i : i + 1]) for i, s in enumerate(listed.selections[:2]))
    assert first.estimates[0].candidate.solver != second.estimates[0].candidate.solver
    picks = replace(listed, selections=(first, second))
    text, summary = export_function(picks, "python", leaves=1)
    assert summary == "leaves: 1, predicted slowdown on the listed problems: 1.000, failures: 1"
    assert "# Predicted slowdown on the listed problems: 1.000, failures: 1." in text
    assert "failures" not in export_function(picks, "python", leaves=2)[1]


def test_names_of_a_bundle_never_become_code(listed: Picks) -> None:
    for name in ("a\nraise SystemExit(3)", "a\rraise SystemExit(3)", "\x0craise SystemExit(3)"):
        text, _ = export_function(replace(listed, data=name, bundle=name, gpus=(name,)), "python", leaves=1)
        assert defined(text).keys() == {"select"}


def test_a_function_of_one_problem_has_one_answer(listed: Picks) -> None:
    picks = replace(listed, selections=listed.selections[:1])
    text, _ = export_function(picks, "python")
    assert "Held-out slowdown of the tree: unknown" in text and " if m" not in text
    assert slowdown(picks, defined(text)["select"]) == 1.0


def test_impossible_exports_are_refused(listed: Picks, many_families: Bundle, refused: Callable[..., Any]) -> None:
    predictor = Predictor(many_families, gpu="t4")
    with refused("leaves is 0"):
        export_function(listed, "python", leaves=0)
    with refused("top is 0"):
        export_function(listed, "triton", top=0)
    with refused("triton", "gemm has none"):
        export_function(picks_for(predictor, [parse_problem("gemm:m64n512k256")]), "triton")
    with refused("several families", "gemm", "pointwise"):
        picks_for(predictor, [parse_problem("gemm:m64n512k256"), parse_problem("relu:n8c64h64w56")])
    nothing = replace(listed, selections=tuple(replace(s, estimates=()) for s in listed.selections))
    for form in ("python", "triton"):
        with refused("no problem has a pick"):
            export_function(nothing, form)
