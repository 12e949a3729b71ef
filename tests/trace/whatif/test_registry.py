"""Every what-if that the package declares is complete, and its known answer comes out."""

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from surrogate.trace import whatif
from surrogate.trace.events.tables import Trace
from surrogate.trace.graph import graph_of, simulate
from surrogate.trace.profiling import profile
from surrogate.trace.whatif import MODELS, evaluate, setting_of, what_if
from surrogate.trace.whatif.setting import Op, StepAnswer, WhatIfRule
from tests.trace.whatif.steps import trace_of

every_what_if = pytest.mark.parametrize("name", MODELS)


def file_of(rule: WhatIfRule) -> str:
    """The file that declares a what-if."""
    return rule.model.__module__.replace(".", "/") + ".py"


@every_what_if
def test_what_a_what_if_declares(name: str) -> None:
    rule = MODELS[name]
    assert rule.help, f"{file_of(rule)}: what-if {name!r} has no help; give its function a docstring"
    assert len(rule.help) <= 120, f"{file_of(rule)}: the help of {name!r}, its docstring's first paragraph, is one line"
    assert rule.value is None or rule.value.meaning, f"{file_of(rule)}: say what the number of {name!r} means"
    assert rule.evidence, f"{file_of(rule)}: say in `@rule` what is known of the errors of {name!r}: evidence=…"
    assert rule.known_answer, f"{file_of(rule)}: give an answer of {name!r} that is known by hand: known_answer=…"


def test_every_name_is_of_one_what_if() -> None:
    modules = [module for name, module in sys.modules.items() if name.startswith(f"{whatif.__name__}.")]
    rules = {id(each): each for module in modules for each in vars(module).values() if isinstance(each, WhatIfRule)}
    names = [rule.name for rule in rules.values()]
    twice = [f"{file_of(rule)}: {rule.name!r}" for rule in rules.values() if names.count(rule.name) > 1]
    assert not twice, f"one name, two what-ifs: {', '.join(twice)}"


class Ranks:
    """A model of convolutions that predicts the same times of every problem."""

    def __init__(self, times_us: dict[str, float]) -> None:
        candidates = [SimpleNamespace(algorithm=name, time_us=t, upper_us=t) for name, t in times_us.items()]
        self.selection = SimpleNamespace(candidates=candidates, source="model", gpu="v100")

    def select(self, problem: object) -> SimpleNamespace:
        return self.selection


def answer_us(read: Callable[..., Trace], known: StepAnswer, name: str = "") -> float:
    """µs per iteration of a known answer's steps as they are, or under the what-if."""
    profiled = profile(read(trace_of(known.ops)))
    setting = setting_of(profiled, target=known.target)
    if known.algorithms_us:
        ranks = Ranks(dict(known.algorithms_us))
        setting.predictors = lambda device: SimpleNamespace(convs=ranks, algorithms=ranks, gpu=device)
    text = f"{name}={known.value:g}" if name and known.value else name
    graph = graph_of(profiled.trace, profiled.layers)
    return evaluate(graph, [what_if(text)], setting)[0].predicted_us if name else simulate(graph).per_iteration_us


@every_what_if
def test_the_known_answer(name: str, read: Callable[..., Trace]) -> None:
    known = MODELS[name].known_answer
    assert known
    before_us = answer_us(read, known)
    after_us = answer_us(read, known, name)
    failure = (
        f"{file_of(MODELS[name])}: {name!r} makes {after_us:,.1f} µs of {before_us:,.1f}; it declares {known.us:,.1f}"
    )
    assert after_us == pytest.approx(known.us, rel=1e-4), failure
    assert after_us != pytest.approx(before_us, rel=1e-4), f"{failure}: an answer that changes nothing proves nothing"


def test_a_step_takes_what_its_kernels_take(read: Callable[..., Trace]) -> None:
    assert answer_us(read, StepAnswer(0)) == pytest.approx(2110)
    assert answer_us(read, StepAnswer(0, ops=[Op("aten::relu", "relu_kernel", 2)] * 5)) == pytest.approx(52)
