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
from surrogate.trace.events.iteration import Iteration, iterations
from surrogate.trace.events.names import Interner, clean_name, clean_shape, clean_texts
from surrogate.trace.events.tables import Ints, Trace

MAX_BYTES = 1 << 30
_LEAST_JOINED = 0.25


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of an execution trace: its thread there, shapes of inputs and outputs, types, scalar inputs."""

    name: str
    thread: int
    shapes: Any
    types: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: Any


def with_execution_trace(trace: Trace, path: str | Path) -> Trace:
    """``trace`` with shapes, types, scalar inputs and output shapes of the execution trace in ``path``.

    Joined per iteration: where an iteration of the one and of the other use an operator name equally often, the
    k-th use is the same operator (by thread first; the program may differ elsewhere, such as in a wrapper for
    data-parallel training). What the profiler recorded itself is kept. A note says how many operators were joined.

    Raises `InputError` for a file that is no execution trace, or where fewer than a quarter of the operators agree.
    """
    nodes = read_execution_trace(path)
    columns = {c: getattr(trace.ranges, c).copy() for c in ("shapes", "types", "inputs", "outputs")}
    shapes, types, inputs = _interned(trace.shapes), _interned(trace.types), _interned(trace.inputs)
    pairs = _pairs(trace, iterations(trace), nodes)
    operators = int(np.sum(trace.ranges.kind == kinds.OPERATOR))
    if len(pairs) < max(_LEAST_JOINED * operators, 1):
        raise InputError(
            f"{path}: only {len(pairs):,} of the {operators:,} operators of {trace.source} occur equally often in it;"
            " give the execution trace of the same program"
        )
    for row, node in pairs:
        columns["outputs"][row] = shapes.index(node.outputs)
        if columns["shapes"][row] < 0:
            columns["shapes"][row] = shapes.index(node.shapes)
        if columns["types"][row] < 0:
            columns["types"][row] = types.index(node.types)
        if columns["inputs"][row] < 0:
            columns["inputs"][row] = inputs.index(node.inputs)
    note = f"{len(pairs):,} of {operators:,} operators have shapes of the execution trace"
    return replace(
        trace,
        ranges=replace(trace.ranges, **columns),
        shapes=tuple(shapes.values),
        types=tuple(types.values),
        inputs=tuple(inputs.values),
        notes=(*trace.notes, note),
    )


def read_execution_trace(path: str | Path) -> list[Node]:
    """The operators of an execution trace in the order they began; both schemas (1.0.x flat, 1.1.x Chakra).

    Raises `InputError` for a damaged file or one that is no execution trace.
    """
    from surrogate.formats.foreign_file import read_bytes

    try:
        whole = json.loads(read_bytes(path, max_bytes=MAX_BYTES))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: is no readable JSON ({str(error)[:80]}); record the execution trace again"
        ) from None
    nodes = whole.get("nodes") if isinstance(whole, dict) else None
    if not isinstance(nodes, list):
        raise InputError(f"{path}: has no list of nodes; record it with torch's ExecutionTraceObserver")
    keyed = [
        n
        for n in nodes
        if isinstance(n, dict) and type(n.get("id")) is int and isinstance(n.get("name"), str)
    ]
    return [_node(n) for n in sorted(keyed, key=lambda n: n["id"])]


def _node(raw: dict[str, Any]) -> Node:
    if isinstance(raw.get("inputs"), dict):
        given, made = raw["inputs"], raw.get("outputs")
        made = made if isinstance(made, dict) else {}
        attributes = raw.get("attrs")
        pairs = [a for a in attributes if isinstance(a, dict)] if isinstance(attributes, list) else []
        thread = next((a.get("value") for a in pairs if a.get("name") == "tid"), 0)
        shapes, types, values = given.get("shapes"), given.get("types"), given.get("values")
        outputs = made.get("shapes")
    else:
        thread, shapes, types = raw.get("tid", 0), raw.get("input_shapes"), raw.get("input_types")
        values, outputs = raw.get("inputs"), raw.get("output_shapes")
    types = clean_texts(types)
    return Node(
        name=clean_name(raw["name"]),
        thread=thread if type(thread) is int else 0,
        shapes=_flat(clean_shape(shapes if isinstance(shapes, list) else [])),
        types=tuple(_plain_type(t) for t in types),
        inputs=_scalars(values, types),
        outputs=_flat(clean_shape(outputs if isinstance(outputs, list) else [])),
    )


def _flat(shapes: Any) -> Any:
    """Argument shapes as the profiler writes them: () for a list of scalars, whose "shapes" are lists of nothing."""
    return tuple(() if isinstance(s, tuple) and s and all(x == () for x in s) else s for s in shapes)


def _plain_type(text: str) -> str:
    """``Tensor(float)`` → ``float``, as the profiler writes it."""
    return text[7:-1] if text.startswith("Tensor(") and text.endswith(")") else text


def _scalars(values: Any, types: Sequence[str]) -> tuple[str, ...]:
    """Values of what is no tensor, as text; "" for a tensor, as the profiler writes it."""
    if not isinstance(values, list):
        return ()
    kinds_ = [*types, *[""] * (len(values) - len(types))]
    return tuple(
        "" if "Tensor" in kind else clean_name(json.dumps(v)) for v, kind in zip(values, kinds_, strict=False)
    )


def _interned(values: Sequence[Any]) -> Interner[Any]:
    known: Interner[Any] = Interner(lambda value: value)
    for value in values:
        known.index(value)
    return known


def _pairs(trace: Trace, found: Sequence[Iteration], nodes: Sequence[Node]) -> list[tuple[int, Node]]:
    """(row of ranges, node) that correspond."""
    steps = _steps(nodes)
    fallback = list(steps.values())[len(steps) // 2]  # the middle one is neither warming up nor cut off
    pairs: list[tuple[int, Node]] = []
    ranges = trace.ranges
    for one in found:
        by_thread: dict[tuple[str, int], list[Node]] = defaultdict(list)
        by_name: dict[str, list[Node]] = defaultdict(list)
        for node in steps.get(one.label, fallback):
            by_thread[node.name, node.thread].append(node)
            by_name[node.name].append(node)
        inside = (
            (ranges.start_ns >= one.start_ns)
            & (ranges.start_ns < one.end_ns)
            & (ranges.kind == kinds.OPERATOR)
        )
        rows = np.flatnonzero(inside)
        for name, group in _grouped(ranges.name, rows):
            pairs += _match(trace, group, by_name.get(trace.names[name], []), by_thread)
    return pairs


def _steps(nodes: Sequence[Node]) -> dict[str, Sequence[Node]]:
    """Label → nodes of one iteration, in order: from each ProfilerStep to the next, else all."""
    marks = [at for at, node in enumerate(nodes) if node.name.startswith("ProfilerStep")]
    if not marks:
        return {"": nodes}
    return {nodes[a].name: nodes[a:b] for a, b in zip(marks, [*marks[1:], len(nodes)], strict=True)}


def _match(
    trace: Trace, rows: Ints, nodes: Sequence[Node], by_thread: dict[tuple[str, int], list[Node]]
) -> list[tuple[int, Node]]:
    """Rows and nodes of one name: thread by thread where the counts of the threads agree, else all in order."""
    if len(rows) != len(nodes):
        return []
    threads = {node.thread for node in nodes}
    counts = sorted((len(by_thread[nodes[0].name, t]), t) for t in threads)
    groups = sorted(
        (len(group), -int(thread), group) for thread, group in _grouped(trace.ranges.thread, rows)
    )
    sizes = [count for count, _ in counts]
    if len(set(sizes)) == len(sizes) and sizes == [size for size, _, _ in groups]:
        matched = zip(counts, groups, strict=True)
        return [
            pair
            for (_, thread), (_, _, group) in matched
            for pair in zip(group.tolist(), by_thread[nodes[0].name, thread], strict=True)
        ]
    return list(zip(rows.tolist(), nodes, strict=True)) if len(threads) == len(groups) == 1 else []


def _grouped(column: Ints, rows: Ints) -> list[tuple[int, Ints]]:
    """(value, rows with it) of ``column``, rows in order."""
    order = rows[np.argsort(column[rows], kind="stable")]
    values, starts = np.unique(column[order], return_index=True)
    return list(zip(values.tolist(), np.split(order, starts[1:]), strict=True)) if len(rows) else []
