"""Any model of a network → `Network`, by what the source looks like."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from surrogate.bundled import NETWORKS
from surrogate.features.elementwise import MAX_INT32, checked_int
from surrogate.features.errors import InputError, nearest, require_regular
from surrogate.features.families import DescribedProblem, NetworkProblem, family_of
from surrogate.features.problem import ELEMENTS, HALF, INPUT, QUANTISED, WEIGHT
from surrogate.network.network import Layer, Network, ReadOptions, Tally, element_type, replace_fields
from surrogate.network.runtime import fuse_layers, with_options, with_runtime
from surrogate.network.training import require_data_parallel

FILES = (".onnx", ".pt2")
TABLES = (".parquet", ".csv", ".txt", ".jsonl", ".plan")
MAX_ROWS = 100_000
"""Most layers of a table."""
SPREAD = ("tensor_parallel", "expert_parallel", "pipeline_parallel", "routing", "kv_dtype")
"""Options that say how a language model is spread over GPUs; the first three are numbers of them."""
OF_LANGUAGE = ("prefill", "decode", *SPREAD)
NOT_OF_LANGUAGE = ("training", "optimizer", "dims", "amp", "runtime", "host")
NORM_NOTE = (
    "convolutions without norms: a file exported in eval mode holds batch norms as part of them; if yours has some,"
    " their time in training is missing, so give module:callable"
)
ALONE = "kernels alone, without launches"
MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def read_network(source: str | Path, options: ReadOptions | None = None, **named: Any) -> Network:
    """The network in an ``.onnx`` or ``.pt2`` file, in a table of problems, built by ``module:callable``, or by name.

    Parameters
    ----------
    source
        The file, ``module:callable`` or ``x.py:callable``, or the name of a network that ships without its weights or
        of a language model's configuration (`surrogate.bundled.NETWORKS`).
    options
        How the source is read and run.
    named
        Fields of `ReadOptions` by name, as in ``batch=8``; they replace those of ``options``.

    Returns
    -------
    Network
        One forward pass; with ``training`` a whole iteration: a module's as autograd runs it, a file's derived from its
        forward pass. Of a language model's ``config.json`` one step of ``batch`` requests on one of the GPUs that share
        it. Modules and .pt2 files are launched by PyTorch, eager on a usual host, unless ``runtime`` and ``host`` say
        otherwise; .onnx files have launches only if one of the two is given, tables and language models never.

    Raises
    ------
    InputError
        If the source cannot be read, or an option does not fit it.
    """
    text = str(source)
    options = _checked(text, replace_fields(options or ReadOptions(), named))
    path = Path(source)
    if text in NETWORKS and not path.exists():
        path = NETWORKS[text]
    if path.is_dir() and path.joinpath("config.json").is_file():
        path = path / "config.json"
    require_regular(path)
    kind = path.suffix.lower()
    if kind == ".json":
        return _language_step(text, path, options)
    _require_fitting(text, kind, options)
    network = _read(text, path, options)
    is_table = network.keeps_math
    network = with_options(network, options)
    if is_table and (options.host or options.runtime not in (None, "compiled")):
        wrong = f"--host {options.host}" if options.host else f"--runtime {options.runtime}"
        raise InputError(f"{text}: {wrong}: a table of problems has kernels alone; leave it out")
    if is_table:
        return replace(fuse_layers(network) if options.runtime else network, told=(ALONE,))
    if kind == ".onnx" and not (options.runtime or options.host):
        return replace(network, told=(f"{ALONE}; --runtime eager adds them",))
    return with_runtime(network, options.runtime, options.host)


def _checked(source: str, options: ReadOptions) -> ReadOptions:
    """The options with the names of element types that are used here. Raises `InputError` for values of no meaning."""
    dtype, amp = element_type("dtype", options.dtype, ELEMENTS), element_type("amp", options.amp, HALF)
    counts = {name: getattr(options, name) for name in ("prefill", "decode", *SPREAD[:3])}
    for name, size in {"batch": options.batch, **(options.dims or {}), **counts}.items():
        if size is not None:
            checked_int(source, name, size, maximum=MAX_INT32)
    require_data_parallel(source, options.data_parallel, training=options.training)
    return replace(options, dtype=dtype, amp=amp)


def _language_step(source: str, path: Path, options: ReadOptions) -> Network:
    """The step of a language model. Raises `InputError` for options that its server's steps do not have."""
    from surrogate.network.language import Deployment
    from surrogate.network.language_step import read_language

    if wrong := next((name.removesuffix("s") for name in NOT_OF_LANGUAGE if getattr(options, name)), None):
        raise InputError(f"{source}: a language model's step has no --{wrong}; its server's CUDA graph runs it")
    given = {name: value for name in ("dtype", *SPREAD) if (value := getattr(options, name)) is not None}
    deployment = Deployment(**given)
    return read_language(
        path, prefill=options.prefill, decode=options.decode, batch=options.batch, deployment=deployment
    )


def _require_fitting(source: str, kind: str, options: ReadOptions) -> None:
    """Raise `InputError` for options that do not fit one another, or a ``source`` (its name ends in ``kind``) that is
    no language model."""
    dtype, amp = options.dtype, options.amp
    is_module = _is_module(source)
    given = next((name for name in OF_LANGUAGE if getattr(options, name) is not None), None)
    if options.optimizer and not options.training:
        raise InputError(f"{source}: --optimizer {options.optimizer} ends an iteration; add --training")
    if amp and dtype:
        raise InputError("--amp keeps weights in fp32, --dtype does not; leave out one of them")
    if amp and not is_module:
        raise InputError(
            f"{source}: --amp runs a module's own code under autocast, which a file no longer holds; give"
            f" module:callable or x.py:callable, or --dtype {amp} for all layers and weights in {amp}"
        )
    if given or dtype in QUANTISED:
        of_language = f"--{given.replace('_', '-')}" if given else f"--dtype {dtype}"
        raise InputError(f"{source}: {of_language} is for language models; give the model's config.json")
    if dtype == "int8" and (options.training or is_module):
        raise InputError(f"{source}: --dtype int8: torch neither trains nor multiplies in it; give fp16 or bf16")
    if options.dims and kind not in FILES:
        raise InputError(f"{source}: --dim names sizes of .onnx and .pt2 files; this source has its own sizes")


def _read(source: str, path: Path, options: ReadOptions) -> Network:
    """The forward pass of a file or a table, or what a module runs. Raises `InputError` for what is neither."""
    kind = path.suffix.lower()
    if kind in FILES:
        from surrogate.network.exported import read_exported
        from surrogate.network.onnx_file import read_onnx

        network = (read_onnx if kind == ".onnx" else read_exported)(path, options)
        normed = any("norm" in layer.problem.kind for layer in network.layers)
        is_folded = options.training and source not in NETWORKS and network.convs and not normed
        return replace(network, notes=(*network.notes, NORM_NOTE)) if is_folded else network
    if _is_module(source):
        from surrogate.network.torch_module import read_module

        return read_module(source, options)
    if kind not in TABLES and path.is_file() and _is_binary(path):
        raise InputError(
            f"{source}: a binary file whose name does not say what it is; give it the ending .onnx, .pt2 or .parquet"
        )
    if kind in TABLES or path.is_file():
        return read_table_of_problems(path, options)
    what = "a folder" if path.is_dir() else "no such file"
    raise InputError(
        f"{source}: {what}; give an .onnx or .pt2 file, a table of problems, a language model's config.json,"
        f" module:callable or x.py:callable, or one of {', '.join(NETWORKS)}{_alike(path)}"
    )


def _alike(path: Path) -> str:
    """The shipped name, or the file beside ``path`` (``x.py:callable``, too), that is nearly called that."""
    path = Path(str(path).partition(":")[0])
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    return nearest(path.name, [*NETWORKS, *(each.name for each in beside)], count=1)


def _is_module(source: str) -> bool:
    """Whether it has the form ``module:callable``, and no file that name, or that of a file ``x.py``."""
    if source.partition(":")[0].endswith(".py"):
        return Path(source.partition(":")[0]).is_file()
    return MODULE.fullmatch(source) is not None and not Path(source).exists()


def read_table_of_problems(path: Path, options: ReadOptions) -> Network:
    """Every line or row of a list of problems a layer, in order; equal rows are equal layers.

    Other operators are counted as unsupported, by name. Under ``training`` every layer but the first has both
    gradients. Raises `InputError` for a table of measurements: it has a row per algorithm, not per layer.
    """
    from surrogate.dataset.problem_list import read_list

    rows = read_list(path)
    if len(rows) > MAX_ROWS:
        raise InputError(f"{path}: {len(rows)} problems; tables up to {MAX_ROWS} are read as a network")
    measured = [row.problem for row in rows if row.algorithm is not None]
    if len(set(measured)) < len(measured):
        raise InputError(
            f"{path}: a row per algorithm is no list of layers; keep one row per layer and drop the column algorithm"
        )
    tally = Tally()
    for row in rows:
        if row.problem is None:
            tally.unsupported[row.operator] += 1
        elif isinstance(row.problem, DescribedProblem):
            raise InputError(
                f"{path}: {row.where}: {row.problem.kind} is a described kernel; ask `seer predict --bundle`"
            )
        else:
            layer = _layer(row.name or row.where, row.problem, options, bool(tally.layers))
            samples = layer.problem.samples
            if options.batch is not None and samples is not None:
                layer = replace(layer, problem=layer.problem.at_batch(samples, options.batch) or layer.problem)
            tally.add([replace(layer, heuristic=row.heuristic)])
    if not tally.layers:
        raise InputError(f"{path}: no row holds a problem; give n, c, h, k and r, or a text")
    batches = {layer.problem.samples for layer in tally.layers} - {None}
    network = tally.network(path.stem, batches.pop() if len(batches) == 1 else None)
    return replace(network, keeps_math=True)


def _layer(name: str, problem: NetworkProblem, options: ReadOptions, inner: bool) -> Layer:
    """The layer in the wanted element type; in training with its gradients, also of the input if ``inner``."""
    dtype = options.dtype
    if dtype is not None and dtype != problem.dtype:
        problem = replace(problem, dtype=dtype, math=family_of(problem).default_math(dtype))
    weights = problem.weights
    gradients: tuple[str, ...] = ()
    if options.training and not problem.is_gradient:
        gradients = (*((INPUT,) if inner else ()), *((WEIGHT,) if weights else ()))
    return Layer(name, problem.kind, problem, gradients, weights)


def _is_binary(path: Path) -> bool:
    """Whether the file begins with what no text holds."""
    try:
        with path.open("rb") as file:
            return re.search(rb"[\x00-\x08\x0e-\x1a]", file.read(4096)) is not None
    except OSError:
        return False  # the reader says why
