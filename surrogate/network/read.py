"""Read any model of a network as a `Network`; the form of the source decides the reader."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from surrogate.bundled import NETWORKS, find_model, not_found
from surrogate.features import ELEMENTS, HALF, INPUT, MAX_INT32, QUANTISED, WEIGHT, checked_int, element_type
from surrogate.features.errors import InputError, TooLargeError, first_bytes, nearest, require_regular
from surrogate.features.families import DescribedProblem, NetworkProblem, family_of
from surrogate.network.network import Layer, Network, NetworkBuilder, ReadOptions, refusal, refuse, with_fields
from surrogate.network.parallel import cluster_of
from surrogate.network.runtime import fuse_layers, with_options, with_runtime
from surrogate.network.training import NORM_NOTE, with_accumulation

if TYPE_CHECKING:
    from surrogate.dataset.problem_list import ListedProblem

MODEL_SUFFIXES = (".onnx", ".pt2")
TABLE_SUFFIXES = (".parquet", ".csv", ".txt", ".jsonl", ".plan")
MAX_ROWS = 100_000
"""Maximum number of layers in a table."""
PARALLEL_OPTIONS = ("tensor_parallel", "expert_parallel", "pipeline_parallel", "routing", "kv_dtype")
"""Options that distribute a language model over GPUs; the first three are numbers of GPUs."""
LANGUAGE_OPTIONS = ("prefill", "decode", "sequence", "lora", *PARALLEL_OPTIONS)
REFUSED_OPTIONS = ("optimizer", "dims", "amp", "math", "layout", "runtime", "host", "sequence", "lora", "checkpointing")
"""Options that a step of a language model does not have."""
NO_LAUNCHES_NOTE = "without launches"
NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a]")
"""Bytes that no text contains."""
MODULE_SOURCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def read_network(source: str | Path, options: ReadOptions | None = None, **overrides: Any) -> Network:
    """Read a network from a file, a table of problems, ``module:callable``, or by its name.

    Parameters
    ----------
    source
        An ``.onnx`` or ``.pt2`` file, a table of problems, ``module:callable`` or ``x.py:callable``, or a language
        model's ``config.json``; or the name of a shipped network without weights or of a shipped configuration of a
        language model (`surrogate.bundled.NETWORKS`), or a checkpoint's name on the Hugging Face Hub, as in
        `surrogate.bundled.find_model`.
    options
        How the source is read and run.
    overrides
        Fields of `ReadOptions` by name, such as ``batch=8``; they replace the fields of ``options``.

    Returns
    -------
    Network
        One forward pass; with ``training`` a whole iteration: for a module as autograd runs it, for a file derived from
        its forward pass, for a language model's ``config.json`` of ``batch`` samples of ``sequence`` tokens. Without
        ``training``, a ``config.json`` gives one step of ``batch`` requests on one of its GPUs. PyTorch launches
        modules, .pt2 files and the training of a ``config.json``, by default in eager mode on a usual host; ``runtime``
        and ``host`` change this. An .onnx file has launches only if one of the two is given. Tables and a server's
        steps have no launches.

    Raises
    ------
    InputError
        If the source cannot be read, or an option does not fit it.
    """
    text = str(source)
    options = _checked_options(text, with_fields(options or ReadOptions(), overrides))
    path = find_model(source)
    try:
        return _read_path(text, path, options)
    except TooLargeError as error:
        names = ("batch", "sequence", "prefill", "decode")
        given = ", ".join(f"--{name} {size}" for name in names if (size := getattr(options, name)))
        raise InputError(f"{text}: {error} ({given or 'its own sizes'})") from None
    except InputError as error:
        if Path(source).exists():
            raise
        raise InputError(str(error).replace(str(path), text)) from None


def _read_path(text: str, path: Path, options: ReadOptions) -> Network:
    """Read the network ``text`` from the file ``path``."""
    require_regular(path)
    kind = path.suffix.lower()
    if kind == ".json":
        return _language_step(text, path, options)
    _check_source(text, path)
    _check_options_fit(text, kind, options)
    network = _read_source(text, path, options)
    network = with_options(network, options)
    if kind not in MODEL_SUFFIXES and not _is_module(text):
        option = f"--host {options.host}" if options.host else f"--runtime {options.runtime}"
        has_launches = options.host or options.runtime not in (None, "compiled")
        refuse({"no_launches": has_launches}, source=text, option=option)
        return replace(fuse_layers(network) if options.runtime else network, headline_notes=(NO_LAUNCHES_NOTE,))
    if kind == ".onnx" and not (options.runtime or options.host):
        return replace(network, headline_notes=(f"{NO_LAUNCHES_NOTE}; --runtime eager adds them",))
    return with_runtime(network, options.runtime, options.host)


def _checked_options(source: str, options: ReadOptions) -> ReadOptions:
    """Return the options with normalised element types. Raises `InputError` for invalid values."""
    dtype, amp = element_type("dtype", options.dtype, ELEMENTS), element_type("amp", options.amp, HALF)
    names = ("prefill", "decode", "sequence", "lora", *PARALLEL_OPTIONS[:3])
    counts = {name: getattr(options, name) for name in names}
    for name, size in {"batch": options.batch, **(options.dims or {}), **counts}.items():
        if size is not None:
            checked_int(source, name, size, maximum=MAX_INT32)
    cluster_of(source, options)
    return replace(options, dtype=dtype, amp=amp)


def _language_step(source: str, path: Path, options: ReadOptions) -> Network:
    """Read the step of a language model. Raises `InputError` for options that such a step does not have."""
    from surrogate.network.language import Deployment
    from surrogate.network.language_step import read_language
    from surrogate.network.language_training import read_training

    if options.training:
        return read_training(path, options)
    option = next((name.removesuffix("s") for name in REFUSED_OPTIONS if getattr(options, name)), None)
    refuse({"step": option}, source=source, option=option)
    fields = {name: value for name in ("dtype", *PARALLEL_OPTIONS) if (value := getattr(options, name)) is not None}
    return with_accumulation(read_language(path, options, Deployment(**fields)), options.accumulate)


def _check_options_fit(source: str, kind: str, options: ReadOptions) -> None:
    """Raise `InputError` if options contradict one another, or do not fit a source with the suffix ``kind``."""
    dtype, amp = options.dtype, options.amp
    is_module = _is_module(source)
    name = next((name for name in LANGUAGE_OPTIONS if getattr(options, name) is not None), None)
    option = f"--{name.replace('_', '-')}" if name else f"--dtype {dtype}"
    refuse(
        {
            "optimizer": options.optimizer and not options.training,
            "checkpointing": options.checkpointing,
            "amp_and_dtype": amp and dtype,
            "amp": amp and not is_module,
            "language": name or dtype in QUANTISED,
            "int8": dtype == "int8" and (options.training or is_module),
            "dims": options.dims and kind not in MODEL_SUFFIXES,
        },
        **{"source": source, "optimizer": options.optimizer, "amp": amp, "option": option},
    )


def _read_source(source: str, path: Path, options: ReadOptions) -> Network:
    """Read the forward pass of a file or table, or run a module."""
    kind = path.suffix.lower()
    if kind in MODEL_SUFFIXES:
        from surrogate.network.exported import read_exported
        from surrogate.network.onnx_file import read_onnx

        network = (read_onnx if kind == ".onnx" else read_exported)(path, options)
        has_norms = any("norm" in layer.problem.kind for layer in network.layers)
        lacks_norms = options.training and path not in NETWORKS.values() and network.convs and not has_norms
        return replace(network, notes=(*network.notes, NORM_NOTE)) if lacks_norms else network
    if _is_module(source):
        from surrogate.network.torch_module import read_module

        return read_module(source, options)
    return read_problem_table(path, options)


def _check_source(source: str, path: Path) -> None:
    """Raise `InputError` if the source is binary or missing; readers of models and tables check their own files."""
    if path.suffix.lower() in (*MODEL_SUFFIXES, *TABLE_SUFFIXES) or _is_module(source):
        return
    is_missing = not path.is_file()
    suggestion = _suggestion(path) if is_missing else ""
    networks = f"a shipped network{suggestion}" if suggestion else f"one of {', '.join(NETWORKS)}"
    problem = "a folder" if path.is_dir() else not_found(source)
    is_binary = NO_TEXT.search(first_bytes(path, 4096))
    refuse({"binary": is_binary, "no_source": is_missing}, source=source, problem=problem, networks=networks)


def _suggestion(path: Path) -> str:
    """Return a hint with the most similar name of a shipped network, or of a model or table in the same folder."""
    path = Path(str(path).partition(":")[0])
    files = path.parent.iterdir() if path.parent.is_dir() else ()
    models = (each.name for each in files if each.suffix.lower() in (".py", *MODEL_SUFFIXES, *TABLE_SUFFIXES))
    return nearest(path.name, [*NETWORKS, *models], count=1)


def _is_module(source: str) -> bool:
    """Return whether the source is ``module:callable`` and no file of this name, or names an existing ``x.py``."""
    if source.partition(":")[0].endswith(".py"):
        return Path(source.partition(":")[0]).is_file()
    return MODULE_SOURCE.fullmatch(source) is not None and not Path(source).exists()


def read_problem_table(path: Path, options: ReadOptions) -> Network:
    """Read a list of problems as a network: each row is a layer, and equal rows are equal layers.

    Unknown operators are counted as unsupported, by name. With ``training``, every layer but the first has both
    gradients. Raises `InputError` for a table of measurements, which has a row per algorithm and not per layer.
    """
    from surrogate.dataset.problem_list import read_list

    rows = read_list(path)
    measurements = [row.problem for row in rows if row.algorithm is not None]
    refusals = {"rows": len(rows) > MAX_ROWS, "algorithms": len(set(measurements)) < len(measurements)}
    refuse(refusals, source=path, count=len(rows), maximum=MAX_ROWS)
    builder = NetworkBuilder()
    for row in rows:
        if row.problem is None:
            builder.omit(row.operator)
        else:
            if isinstance(row.problem, DescribedProblem):
                raise refusal("described", source=path, where=row.where, kind=row.problem.kind)
            layer = _layer(row, options, bool(builder.layers))
            samples = layer.problem.samples
            if options.batch is not None and samples is not None:
                layer = replace(layer, problem=layer.problem.at_batch(samples, options.batch) or layer.problem)
            builder.add([layer])
    refuse({"no_rows": not builder.layers}, source=path)
    batches = {layer.problem.samples for layer in builder.layers} - {None}
    return builder.network(path.stem, batches.pop() if len(batches) == 1 else None)


def _layer(row: "ListedProblem", options: ReadOptions, inner: bool) -> Layer:
    """Return a row's layer in the requested type; in training with its gradients, the input's only if ``inner``."""
    problem, keeps_math = cast("NetworkProblem", row.problem), row.states_math
    if options.dtype not in (None, problem.dtype):
        math = family_of(problem).default_math(options.dtype)
        problem, keeps_math = replace(problem, dtype=options.dtype, math=math), False
    gradients: tuple[str, ...] = ()
    if options.training and not problem.is_gradient:
        gradients = (*((INPUT,) if inner else ()), *((WEIGHT,) if problem.weights else ()))
    name = row.name or row.where
    return Layer(name, problem.kind, problem, gradients, problem.weights, row.heuristic, keeps_math)
