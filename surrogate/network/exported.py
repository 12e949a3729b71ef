"""Read exported programs (``.pt2``): the JSON of the graph, directly from the archive and without torch.

``torch.export.load`` evaluates the expressions of sizes and unpickles sample inputs. Here nothing in the file is
executed, and neither weights nor samples are opened.
"""

import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from math import isfinite, nan, prod
from pathlib import Path
from typing import Any

import numpy as np

from surrogate.features import ElementwiseFormula, Functions, InputError, nearest, one_line_errors, parsed_json
from surrogate.formats.foreign_file import Allowance, unpacked
from surrogate.network.aten_call import DISPATCH, Call, Tensor, operator_name
from surrogate.network.dispatch import is_view
from surrogate.network.memory import network_of
from surrogate.network.network import DEFAULTS, Network, ReadOptions, refuse

MAX_JSON_BYTES = 256 * 2**20
GRAPH_FILES = ("models/model.json", "serialized_exported_program.json")
"""Path of the graph since PyTorch 2.7, and before."""
WEIGHTS_FILE = "weights/model_weights_config.json"
DTYPES = {int(code): dtype for code, dtype in DISPATCH["types"]["exported"].items()}
"""torch's ScalarType in the archive → ours; an integer type is given as the type of the same width."""
FLOAT_CODES = (6, 7, 8, 13)
_VALUE_ARGUMENTS = ("as_int", "as_ints", "as_float", "as_floats", "as_bool", "as_bools", "as_string")
MAYBE_ALIASES = ("contiguous", "to")
"""Operators that return their argument if nothing changes."""
MAX_OPERANDS = 100
_SYMBOL = re.compile(r"Symbol\('(\w+)'[^()]*\)")
_FUNCTIONS: Functions = {
    "Integer": (lambda value: value, 1, 1),
    "Add": (lambda *values: sum(values), 1, MAX_OPERANDS),
    "Mul": (lambda *values: prod(values), 1, MAX_OPERANDS),
    "Max": (max, 2, MAX_OPERANDS),
    "Min": (min, 2, MAX_OPERANDS),
    "CeilDiv": (lambda a, b: -np.floor_divide(-a, b), 2, 2),
    **dict.fromkeys(("FloorDiv", "CleanDiv"), (np.floor_divide, 2, 2)),
    **dict.fromkeys(("Mod", "PythonMod"), (np.mod, 2, 2)),
}
"""Function in the expressions of sizes, as sympy writes them → the function, and its numbers of arguments."""


def read_exported(path: str | Path, options: ReadOptions = DEFAULTS) -> Network:
    """Read the network in an exported program.

    The options ``dims``, ``dtype`` and ``training`` apply, and ``batch`` if the program was exported with a dynamic
    batch. Raises `InputError` in one line if the file is damaged or too large, or if its batch is fixed.
    """
    path = Path(path)
    program, weights = _graph(path)
    with one_line_errors(f"{path}: not the layout of an exported program; export it again"):
        graph = program["graph_module"]["graph"]
        signature = program["graph_module"]["signature"]
        arguments = (each.get("user_input", {}).get("arg", {}) for each in signature["input_specs"])
        inputs = [graph["tensor_values"][arg["as_tensor"]["name"]]["sizes"] for arg in arguments if "as_tensor" in arg]
        values, batch = _symbol_values(path, graph, inputs, options.batch, options.dims or {})
        tensors = _tensors(graph, signature, weights.get("config", {}), values, options.dtype)
        stored = list(tensors.values())
        nodes = _joined_norms(graph["nodes"])
        calls = [_call(node, tensors, graph["tensor_values"], options.training) for node in nodes]
        return network_of(path, stored, calls, batch, training=options.training)


def _graph(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON of the archive's graph, and the JSON that names the files of its weights.

    The second one is empty in older archives.
    """
    # zipfile, zlib and json raise errors without a common base
    with one_line_errors(f"{path}: no exported program; use torch.export.save"), zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(GRAPH_FILES)]
        if not names:
            raise InputError(f"{path}: no exported program in the archive; use torch.export.save")
        names = [names[0], *[name for name in archive.namelist() if name.endswith(WEIGHTS_FILE)][:1]]
        allowance = Allowance(path, sum(archive.getinfo(name).compress_size for name in names), MAX_JSON_BYTES)
        graph, *weights = (parsed_json(unpacked(archive, name, allowance)) for name in names)
        return graph, weights[0] if weights else {}


def _symbol_values(
    path: Path, graph: Mapping[str, Any], inputs: list[list[Any]], batch: int | None, dims: Mapping[str, int]
) -> tuple[dict[str, int], int | None]:
    """Return the value of each symbol, from the example's sizes, ``dims`` and ``batch``; and the batch."""
    values: dict[str, int] = {}
    sizes = (size for meta in graph["tensor_values"].values() for size in meta["sizes"])
    for expression in filter(None, (size.get("as_expr") for size in sizes)):
        names = symbol_names(expression["expr_str"])
        if len(names) == 1 and expression["expr_str"].startswith("Symbol("):
            values.setdefault(names.pop(), (expression.get("hint") or {}).get("as_int") or 1)
    for name, value in dims.items():
        if name not in values:
            raise InputError(f"{path}: --dim {name} names no symbol of the program{nearest(name, values)}")
        values[name] = value
    first = [sizes[0] for sizes in inputs if sizes]
    if batch is not None:
        for size in first:
            names = symbol_names(size["as_expr"]["expr_str"]) if size.get("as_expr") else set()
            if len(names) == 1:
                values[names.pop()] = batch
            else:
                old = _size(size, values)
                refuse({"fixed_program": old != batch}, source=path, old=old, new=batch)
    return values, _size(first[0], values) if first else batch


def _size(size: Mapping[str, Any], values: Mapping[str, int]) -> int:
    if size.get("as_int") is not None:
        return int(size["as_int"])
    return evaluate_size(size["as_expr"]["expr_str"], values)


def _tensors(
    graph: Mapping[str, Any],
    signature: Mapping[str, Any],
    files: Mapping[str, Any],
    values: Mapping[str, int],
    dtype: str | None,
) -> dict[str, Tensor]:
    """Return each tensor by name, with parameters marked; tied weights share one buffer."""
    weights, buffers = (
        {entry[kind]["arg"]["name"]: entry[kind] for entry in signature["input_specs"] if entry.get(kind)}
        for kind in ("parameter", "buffer")
    )
    tensors = {}
    paths = {name: f"weights/{each['path_name']}" for name, each in files.items()}  # tied weights share one file
    for name, meta in graph["tensor_values"].items():
        shape = tuple(_size(size, values) for size in meta["sizes"])
        floating = meta["dtype"] in FLOAT_CODES
        kind = dtype if dtype and floating else DTYPES.get(meta["dtype"], "fp32")
        steps = [_size(step, values) for step in meta.get("strides", ())]
        nhwc = len(steps) in (4, 5) and steps[1] == 1 and min(shape[1], prod(shape[2:])) > 1
        tensor = Tensor(shape, kind, floating, constant=name in weights or name in buffers, channels_last=nhwc)
        buffer = paths.get(str(weights.get(name, {}).get("parameter_name"))) or name
        tensors[name] = replace(tensor, parameter=name in weights, buffer=buffer)
    return tensors


def _call(node: Mapping[str, Any], tensors: dict[str, Tensor], values: Mapping[str, object], training: bool) -> Call:
    """Return a node as a call, with tensors instead of names; results need gradients if any input does."""
    op = operator_name(str(node["target"]))
    if op in MAYBE_ALIASES and _is_unchanged(node, values):
        op = "alias"
    module = _module(str(node.get("metadata", {}).get("nn_module_stack", "")))
    arguments = {item["name"]: _argument(item["arg"], tensors) for item in node["inputs"] if item["name"]}
    call = Call(op, arguments, name=f"{module}.{op}" if module else op)
    needs_gradient = any(tensor.needs_gradient or tensor.parameter for tensor in call.tensors())
    source = next(iter(call.tensors()), None) if is_view(call, training=training) else None
    outputs = []
    for result in node["outputs"]:
        for output in [result["as_tensor"]] if "as_tensor" in result else result.get("as_tensors") or []:
            tensor = replace(tensors[output["name"]], needs_gradient=needs_gradient)
            if source is not None:  # a view has the memory of its source
                tensor = replace(tensor, buffer=source.buffer, constant=source.constant)
            tensors[output["name"]] = tensor
            outputs.append(tensor)
    return replace(call, outputs=tuple(outputs))


def _joined_norms(nodes: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the nodes, and one node for all parts of each decomposed RMS norm, which a GPU runs as one kernel."""
    for function, group in groupby(nodes, lambda node: str(node.get("metadata", {}).get("torch_fn", ""))):
        parts = list(group)
        ops = [operator_name(str(part["target"])) for part in parts]
        if not function.endswith(".rms_norm") or "mean" not in ops:
            yield from parts
            continue
        axes = parts[ops.index("mean")]["inputs"][1]["arg"]["as_ints"]
        factors = [part["inputs"][1]["arg"] for part, op in zip(parts, ops, strict=True) if op == "mul"]
        arguments = {"input": parts[0]["inputs"][0]["arg"], "dim": {"as_int": min(axes)}}
        arguments |= zip(["weight"], factors[1:], strict=False)  # the first factor is the deviation
        inputs = [{"name": name, "arg": value} for name, value in arguments.items()]
        yield {**parts[-1], "target": "torch.ops.aten.rms_norm.default", "inputs": inputs}


def _is_unchanged(node: Mapping[str, Any], values: Mapping[str, object]) -> bool:
    """Return whether a node's result has the type, sizes and strides of its first argument."""
    source, result = node["inputs"][0]["arg"].get("as_tensor"), node["outputs"][0].get("as_tensor")
    return bool(source and result) and values[source["name"]] == values[result["name"]]


def _argument(value: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> object:
    """Return a tensor, a list of tensors, a number or a text; symbolic integers, known only at run time, give None."""
    kind, content = next(iter(value.items()))
    if kind == "as_tensor":
        return tensors[content["name"]]
    if kind in ("as_tensors", "as_optional_tensors"):
        return [tensors[inner.get("as_tensor", inner)["name"]] for inner in content if "as_none" not in inner]
    return content if kind in _VALUE_ARGUMENTS else None


def _module(stack: str) -> str:
    """Return the innermost module's path in ``key,path,class;key,path,class``."""
    parts = stack.rpartition(";")[2].split(",")
    return parts[1] if len(parts) == 3 and not parts[1].startswith("_empty") else ""


def evaluate_size(text: str, values: Mapping[str, int]) -> int:
    """Return the value of an expression. Raises `InputError` for anything but integer arithmetic."""
    try:
        value = ElementwiseFormula.parse(_SYMBOL.sub(r"\1", text), "size", values, _FUNCTIONS).value(values)
    except InputError:
        value = nan
    if not isfinite(value):
        message = f"size {text[:80]!r} is not integer arithmetic on known symbols; export with fixed sizes"
        raise InputError(message)
    return int(value)


def symbol_names(text: str) -> set[str]:
    """Return the names of an expression's symbols."""
    return set(_SYMBOL.findall(text))
