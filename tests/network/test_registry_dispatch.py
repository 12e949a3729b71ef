"""Operators named as in ATen or ONNX: the row of `dispatch.toml` with that name leads to the operator."""

import pytest

from surrogate.features.families import OPERATORS
from surrogate.network.aten_call import Call, Tensor, UnsupportedError
from surrogate.network.dispatch import IGNORED, RULES, problems
from tests.known import known_answers

NAMES = [name for name in (*RULES, *IGNORED) if name.lower() in OPERATORS]
OTHER_KINDS = {"addmm": "linear"}
"""Name → another kind that is intended: a product with a bias runs the kernel of `linear`."""
ARGUMENTS = [
    {name: Tensor(tuple(shape), row["dtype"]) for name, shape in row["shapes"].items()} | row["values"]
    for row in known_answers(__file__)["arguments"]
]
"""Arguments of calls; at least one set fits each name."""


def reached_kinds(name: str) -> set[str]:
    """Return the kinds of the problems of calls of ``name`` with any of `ARGUMENTS`."""
    kinds: set[str] = set()
    for arguments in ARGUMENTS:
        try:
            kinds |= {problem.kind for problem in problems(Call(name, arguments))}
        except UnsupportedError:
            continue
    return kinds


def hidden_by(name: str) -> str:
    """Return the message for a name whose row does not lead to its operator; "" if it does."""
    kinds = reached_kinds(name)
    if OTHER_KINDS.get(name, name.lower()) in kinds:
        return ""
    instead = ", ".join(sorted(kinds)) or "no kernel"
    return (
        f"surrogate/network/dispatch.toml: the row of {name} gives {instead} and hides the operator {name.lower()};"
        " move the name as features/families/README.md says"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_the_table_leads_to_the_operator_of_that_name(name: str) -> None:
    assert not hidden_by(name), hidden_by(name)


@pytest.mark.parametrize(("name", "instead"), [("logsumexp", "streamed"), ("flip", "copy"), ("view", "no kernel")])
def test_a_row_that_hides_an_operator_is_named(name: str, instead: str) -> None:
    """If an operator had this name, modules would not reach it."""
    assert f"the row of {name} gives {instead} and hides" in hidden_by(name)
