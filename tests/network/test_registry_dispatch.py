"""Operators named as in ATen or ONNX: the row of `dispatch.toml` with that name leads to the operator."""

import pytest

from surrogate.features.families import OPERATORS
from surrogate.network.aten_call import Call, Tensor, UnsupportedError
from surrogate.network.dispatch import IGNORED, RULES, problems

NAMES = [name for name in (*RULES, *IGNORED) if name.lower() in OPERATORS]
OTHER_KINDS = {"addmm": "linear"}
"""Name → another kind that is intended: a product with a bias runs the kernel of `linear`."""
IMAGE = Tensor((2, 3, 4, 5))
ARGUMENTS = (
    {"self": IMAGE},
    {"self": IMAGE, "other": IMAGE},
    {"input": IMAGE, "normalized_shape": [5], "training": True},
    {"self": Tensor((6,)), "mat1": Tensor((4, 5)), "mat2": Tensor((5, 6))},
    {"self": Tensor((2, 4, 5)), "mat2": Tensor((2, 5, 6))},
    {"input": Tensor((4, 5)), "weight": Tensor((6, 5)), "bias": Tensor((6,))},
    {"weight": Tensor((10, 8)), "indices": Tensor((6,)), "offsets": Tensor((3,))},
    dict.fromkeys(("query", "key", "value"), Tensor((2, 3, 4, 8), "fp16")),
)
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
