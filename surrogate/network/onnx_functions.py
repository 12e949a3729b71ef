"""Local functions of an ONNX model, put in the place of their calls; what would grow beyond reason is refused first."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from surrogate.features.errors import InputError

MAX_NODES = 200_000
"""Most nodes of a graph, its functions expanded."""
MAX_DEPTH = 100
"""Deepest chain of functions that call each other; ONNX's inliner has the same limit."""
Key = tuple[str, str, str]


def expand_functions(model: Any, path: Path) -> None:
    """Inline the model's local functions, in place.

    Raises `InputError` where they call themselves, nest deeper than `MAX_DEPTH` or expand to more than `MAX_NODES`
    nodes (forty functions that each call the next one twice would make 10¹² of them), or where ONNX refuses them.
    """
    from onnx.inliner import inline_local_functions

    bodies = {(one.domain, one.name, one.overload): one.node for one in model.functions}
    count = _expanded(model.graph.node, bodies, {}, (), path)
    if count > MAX_NODES:
        raise InputError(
            f"{path}: its local functions expand to more than {MAX_NODES} nodes; export them inlined"
        )
    try:
        model.CopyFrom(inline_local_functions(model))
    except Exception as error:  # onnx raises errors without a common base
        raise InputError(f"{path}: its local functions cannot be expanded ({one_line(error)})") from None


def one_line(error: Exception) -> str:
    """The first line of a foreign error, cut to what a terminal shows."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:159]}…"


def _expanded(
    nodes: Iterable[Any],
    bodies: Mapping[Key, Any],
    known: dict[Key, int],
    within: tuple[Key, ...],
    path: Path,
) -> int:
    """Nodes after expansion, those of subgraphs included; counts of functions are kept in ``known``."""
    count = 0
    for node in nodes:
        key = (node.domain, node.op_type, node.overload)
        if key in bodies and key not in known:
            if key in within or len(within) >= MAX_DEPTH:
                fault = "calls itself" if key in within else f"lies over {MAX_DEPTH} calls deep"
                raise InputError(f"{path}: local function {node.op_type!r} {fault}; export the model inlined")
            known[key] = _expanded(bodies[key], bodies, known, (*within, key), path)
        count += known.get(key, 1)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                count += _expanded(graph.node, bodies, known, within, path)
    return count
