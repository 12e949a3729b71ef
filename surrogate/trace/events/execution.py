"""Shapes from a PyTorch execution trace, joined to the operators of a profiler trace of the same program."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from surrogate.features.errors import InputError
from surrogate.trace.events import kinds
from surrogate.trace.events.iterations import Iteration, iterations
from surrogate.trace.events.raw import Interner, clean_name, clean_shapes, clean_texts
from surrogate.trace.events.tables import Ints, Trace, grouped

MAX_BYTES = 1 << 30
_LEAST_JOINED = 0.25


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of an execution trace: its thread there, shapes of inputs and outputs, types, scalar inputs."""

    name: str
    thread: int
    shapes: tuple[object, ...]
    types: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[object, ...]


def with_execution_trace(trace: Trace, path: str | Path) -> Trace:
    """``trace`` with shapes, types, scalar inputs and output shapes of the execution trace in ``path``.

    Joined per iteration: where an iteration of the one and of the other use an operator name equally often, the
    k-th use is the same operator (by thread first; the program may differ elsewhere, such as in a wrapper for
    data-parallel training). What the profiler recorded itself is kept. A note says how many operators were joined.

    Raises `InputError` for a file that is no execution trace, or where fewer than a quarter of the operators agree.
    """
    pairs = _pairs(trace, iterations(trace), read_execution_trace(path))
    operators = int(np.sum(trace.ranges.kind == kinds.OPERATOR))
    if len(pairs) < max(_LEAST_JOINED * operators, 1):
        raise InputError(
            f"{path}: only {len(pairs):,} of the {operators:,} operators of {trace.source} occur equally often in it;"
            " give the execution trace of the same program"
        )
    joined = ("shapes", "types", "inputs")
    columns = {column: getattr(trace.ranges, column).copy() for column in (*joined, "outputs")}
    texts = {column: Interner[Any](lambda value: value, getattr(trace, column)) for column in joined}
    for row, node in pairs:
        columns["outputs"][row] = texts["shapes"].index(node.outputs)
        for column, values in texts.items():
            if columns[column][row] < 0:
                columns[column][row] = values.index(getattr(node, column))
    note = f"{len(pairs):,} of {operators:,} operators have shapes of the execution trace"
    every = {column: tuple(values.distinct) for column, values in texts.items()}
    return replace(trace, ranges=replace(trace.ranges, **columns), notes=(*trace.notes, note), **every)


def read_execution_trace(path: str | Path) -> list[Node]:
    """The operators of an execution trace in the order they began; both schemas (1.0.x flat, 1.1.x Chakra).

    Raises `InputError` for a damaged file or one that is no execution trace.
    """
    from surrogate.formats.foreign_file import read_bytes

    content = read_bytes(path, max_bytes=MAX_BYTES)
    try:
        nodes = json.loads(content)["nodes"]
        return [_node(node) for node in sorted(nodes, key=lambda node: node["id"])]
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path}: is no execution trace or damaged ({str(error)[:80]}); record it with torch's"
            " ExecutionTraceObserver"
        ) from None


def _node(raw: dict[str, Any]) -> Node:
    values = raw["inputs"]
    if isinstance(values, dict):  # Chakra
        thread = next((entry["value"] for entry in raw["attrs"] if entry["name"] == "tid"), 0)
        shapes = values["shapes"]
        types = values["types"]
        outputs = raw["outputs"]["shapes"]
        values = values["values"]
    else:
        thread = raw.get("tid", 0)
        shapes = raw["input_shapes"]
        types = raw["input_types"]
        outputs = raw["output_shapes"]
    types = clean_texts(types)
    # The profiler writes float where the execution trace writes Tensor(float).
    plain_types = tuple(text.removeprefix("Tensor(").removesuffix(")") for text in types)
    return Node(
        name=clean_name(raw["name"]),
        thread=int(thread),
        shapes=_without_scalars(clean_shapes(shapes)),
        types=plain_types,
        inputs=_scalars(values, types),
        outputs=_without_scalars(clean_shapes(outputs)),
    )


def _without_scalars(shapes: tuple[object, ...]) -> tuple[object, ...]:
    """Argument shapes as the profiler writes them: () for a list of scalars, whose "shapes" are lists of nothing."""
    return tuple(() if isinstance(s, tuple) and s and all(x == () for x in s) else s for s in shapes)


def _scalars(values: Sequence[object], types: Sequence[str]) -> tuple[str, ...]:
    """Values of what is no tensor, as text; "" for a tensor, as the profiler writes it."""
    padded = [*types, *[""] * (len(values) - len(types))]
    return tuple(
        "" if "Tensor" in kind else clean_name(json.dumps(value)) for value, kind in zip(values, padded, strict=False)
    )


def _pairs(trace: Trace, parts: Sequence[Iteration], nodes: Sequence[Node]) -> list[tuple[int, Node]]:
    """(row of ranges, node) that correspond."""
    steps = _steps(nodes)
    fallback = list(steps.values())[len(steps) // 2]  # the middle one is neither warming up nor cut off
    pairs: list[tuple[int, Node]] = []
    ranges = trace.ranges
    for iteration in parts:
        by_name: dict[str, list[Node]] = defaultdict(list)
        for node in steps.get(iteration.label, fallback):
            by_name[node.name].append(node)
        inside = (ranges.start_ns >= iteration.start_ns) & (ranges.start_ns < iteration.end_ns)
        for name, rows in grouped(ranges.name, np.flatnonzero(inside & (ranges.kind == kinds.OPERATOR))):
            pairs += _match(trace, rows, by_name.get(trace.names[name], []))
    return pairs


def _steps(nodes: Sequence[Node]) -> dict[str, Sequence[Node]]:
    """Label → nodes of one iteration, in order: from each ProfilerStep to the next, else all."""
    marks = [at for at, node in enumerate(nodes) if node.name.startswith("ProfilerStep")]
    if not marks:
        return {"": nodes}
    return {nodes[a].name: nodes[a:b] for a, b in zip(marks, [*marks[1:], len(nodes)], strict=True)}


def _match(trace: Trace, rows: Ints, nodes: Sequence[Node]) -> list[tuple[int, Node]]:
    """Rows and nodes of one name: thread by thread where the counts of the threads agree, else all in order."""
    if len(rows) != len(nodes):
        return []
    by_thread: dict[int, list[Node]] = defaultdict(list)
    for node in nodes:
        by_thread[node.thread].append(node)
    # Threads are numbered differently in both traces, so those that use the name equally often correspond.
    node_groups = sorted(by_thread.values(), key=len)
    row_groups = sorted((group for _, group in grouped(trace.ranges.thread, rows)), key=len)
    sizes = [len(group) for group in node_groups]
    if len(set(sizes)) == len(sizes) and sizes == [len(group) for group in row_groups]:
        matched = zip(row_groups, node_groups, strict=True)
        return [pair for group, members in matched for pair in zip(group.tolist(), members, strict=True)]
    return list(zip(rows.tolist(), nodes, strict=True)) if len(node_groups) == len(row_groups) == 1 else []
