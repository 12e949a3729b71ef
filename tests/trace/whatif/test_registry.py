"""Every registered what-if has a complete declaration and gives its known answer."""

import sys
from collections.abc import Callable

import pytest

from surrogate.trace import whatif
from surrogate.trace.events.tables import Trace
from surrogate.trace.graph import graph_of, simulate
from surrogate.trace.profiling import profile
from surrogate.trace.whatif import WHAT_IF_RULES, evaluate, setting_of, what_if
from surrogate.trace.whatif.setting import WhatIfRule
from tests.trace.whatif.steps import FakeAlgorithms, Op, StepAnswer, known_answer, trace_of

every_what_if = pytest.mark.parametrize("name", WHAT_IF_RULES)


def file_of(rule: WhatIfRule) -> str:
    """Return the file that declares a what-if."""
    return rule.apply.__module__.replace(".", "/") + ".py"


@every_what_if
def test_what_if_declaration_is_complete(name: str) -> None:
    rule = WHAT_IF_RULES[name]
    assert rule.help, f"{file_of(rule)}: what-if {name!r} has no help; give its function a docstring"
    assert len(rule.help) <= 120, f"{file_of(rule)}: the help of {name!r}, its docstring's first paragraph, is one line"
    assert rule.value is None or rule.value.meaning, f"{file_of(rule)}: say what the number of {name!r} means"
    assert rule.evidence, f"{file_of(rule)}: say in `@rule` what is known of the errors of {name!r}: evidence=…"
    assert known_answer(rule), f"{file_of(rule)}: give an answer of {name!r} that is known by hand: known_answer=…"


def test_what_if_names_are_unique() -> None:
    modules = [module for name, module in sys.modules.items() if name.startswith(f"{whatif.__name__}.")]
    values = [value for module in modules for value in vars(module).values()]
    rules = {id(value): value for value in values if isinstance(value, WhatIfRule)}
    names = [rule.name for rule in rules.values()]
    twice = [f"{file_of(rule)}: {rule.name!r}" for rule in rules.values() if names.count(rule.name) > 1]
    assert not twice, f"one name, two what-ifs: {', '.join(twice)}"


def answer_us(read: Callable[..., Trace], answer: StepAnswer, name: str = "") -> float:
    """Return µs per iteration of a known answer's steps, unchanged or under the what-if."""
    profiled = profile(read(trace_of(answer.ops)))
    setting = setting_of(profiled, target=answer.target)
    if answer.algorithms_us:
        FakeAlgorithms(dict(answer.algorithms_us)).put_into(setting)
    text = f"{name}={answer.value:g}" if name and answer.value else name
    graph = graph_of(profiled.trace, profiled.layers)
    return evaluate(graph, [what_if(text)], setting)[0].predicted_us if name else simulate(graph).per_iteration_us


@every_what_if
def test_what_if_gives_its_known_answer(name: str, read: Callable[..., Trace]) -> None:
    rule = WHAT_IF_RULES[name]
    answer = known_answer(rule)
    assert answer
    before_us = answer_us(read, answer)
    after_us = answer_us(read, answer, name)
    failure = f"{file_of(rule)}: {name!r} makes {after_us:,.1f} µs of {before_us:,.1f}; it declares {answer.us:,.1f}"
    assert after_us == pytest.approx(answer.us, rel=1e-4), failure
    assert after_us != pytest.approx(before_us, rel=1e-4), f"{failure}: an answer that changes nothing proves nothing"


def test_step_time_is_the_sum_of_its_kernels(read: Callable[..., Trace]) -> None:
    assert answer_us(read, StepAnswer(0)) == pytest.approx(2110)
    assert answer_us(read, StepAnswer(0, ops=[Op("aten::relu", "relu_kernel", 2)] * 5)) == pytest.approx(52)
