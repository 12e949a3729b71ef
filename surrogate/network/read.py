"""Any model of a network → `Network`, by what the source looks like."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from surrogate.bundled import NETWORKS
from surrogate.features.errors import InputError, nearest, require_regular
from surrogate.features.families import DescribedProblem, family_of
from surrogate.features.problem import ELEMENTS, HALF, QUANTISED
from surrogate.features.whole import MAX_INT32, whole
from surrogate.network.memory import OPTIMIZER
from surrogate.network.network import INPUT, WEIGHT, Layer, Network, Tally, Work, element_type, with_settings
from surrogate.network.runtime import HOSTS, compiled, launched
from surrogate.network.training import completed, require_data_parallel

TABLES = (".parquet", ".csv", ".txt", ".jsonl", ".plan")
MAX_ROWS = 100_000
"""Most layers of a table."""
NORM_NOTE = (
    "convolutions without norms: a file exported in eval mode holds batch norms as part of them; if yours has some,"
    " their time in training is missing, so give module:callable"
)
ALONE = "kernels alone, without launches"
MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def read_network(
    source: str | Path,
    *,
    batch: int | None = None,
    training: bool = False,
    dims: Mapping[str, int] | None = None,
    dtype: str | None = None,
    amp: str | None = None,
    math: str | None = None,
    layout: str | None = None,
    runtime: str | None = None,
    host: str | None = None,
    optimizer: str | None = None,
    data_parallel: int = 1,
    prefill: int | None = None,
    decode: int | None = None,
    tensor_parallel: int | None = None,
    expert_parallel: int | None = None,
    pipeline_parallel: int | None = None,
    routing: str | None = None,
    kv_dtype: str | None = None,
) -> Network:
    """The network in an ``.onnx`` or ``.pt2`` file, in a table of problems, built by ``module:callable``, or by name.

    A name is that of a network that ships without its weights, or of a language model's configuration
    (`surrogate.bundled.NETWORKS`).

    ``batch`` and ``dims`` replace sizes, ``dtype`` the floating-point type; ``math`` and ``layout`` those of every
    convolution. ``amp`` runs a module under autocast to fp16 or bf16. ``runtime`` (`RUNTIMES`) and ``host`` (`HOSTS`)
    say what launches the kernels: of a module and a .pt2 file PyTorch, eager on a usual host; of an .onnx file nothing
    is known unless one of the two is given, and of tables and language models never. Under ``training`` a whole
    iteration with the step of ``optimizer`` (`OPTIMIZERS`): a module's as autograd runs it, a file's derived from its
    forward pass; on ``data_parallel`` GPUs each
    has a batch, and the gradients are summed. Of a language model's ``config.json`` one step: each of ``batch``
    requests has ``prefill`` new tokens, or one behind a context of ``decode``, on one of the GPUs of a
    `surrogate.network.language.Deployment`. Raises `InputError` for what cannot be read.
    """
    text = str(source)
    dtype, amp = element_type("dtype", dtype, ELEMENTS), element_type("amp", amp, HALF)
    path = Path(source)
    if text in NETWORKS and not path.exists():
        path = NETWORKS[text]
    if path.is_dir() and path.joinpath("config.json").is_file():
        path = path / "config.json"
    require_regular(path)
    kind = path.suffix.lower()
    spread: dict[str, Any] = {
        "tensor_parallel": tensor_parallel,
        "expert_parallel": expert_parallel,
        "pipeline_parallel": pipeline_parallel,
        "routing": routing,
        "kv_dtype": kv_dtype,
    }
    language = {"prefill": prefill, "decode": decode, **spread}
    for name, size in {"batch": batch, **(dims or {}), **language}.items():
        if size is not None and not isinstance(size, str):
            whole(text, name, size, most=MAX_INT32)
    require_data_parallel(text, data_parallel, training=training)
    if kind == ".json":
        from surrogate.network.language import Deployment
        from surrogate.network.language_step import read_language

        absent = {
            "--training": training,
            "--optimizer": optimizer,
            "--dim": dims,
            "--amp": amp,
            "--runtime": runtime,
            "--host": host,
        }
        if wrong := next((name for name, value in absent.items() if value), None):
            raise InputError(f"{text}: a language model's step has no {wrong}; its server's CUDA graph runs it")
        given = {name: value for name, value in spread.items() if value is not None}
        return read_language(
            path, prefill=prefill, decode=decode, batch=batch, deployment=Deployment(dtype=dtype, **given)
        )
    if optimizer is not None and not training:
        raise InputError(f"{text}: --optimizer {optimizer} ends an iteration; add --training")
    if amp is not None and dtype is not None:
        raise InputError("--amp keeps weights in fp32, --dtype does not; leave out one of them")
    if amp is not None and not _is_module(text):
        raise InputError(
            f"{text}: --amp runs a module's own code under autocast, which a file no longer holds; give"
            f" module:callable or x.py:callable, or --dtype {amp} for all layers and weights in {amp}"
        )
    option = next((name for name, size in language.items() if size is not None), None)
    if option or dtype in QUANTISED:
        what = f"--{option.replace('_', '-')}" if option else f"--dtype {dtype}"
        raise InputError(f"{text}: {what} is for language models; give the model's config.json")
    if dtype == "int8" and (training or _is_module(text)):
        raise InputError(f"{text}: --dtype int8: torch neither trains nor multiplies in it; give fp16 or bf16")
    if dims and kind not in (".onnx", ".pt2"):
        raise InputError(f"{text}: --dim names sizes of .onnx and .pt2 files; this source has its own sizes")
    if kind in (".onnx", ".pt2"):
        from surrogate.network.exported import read_exported
        from surrogate.network.onnx_file import read_onnx

        read = read_onnx if kind == ".onnx" else read_exported
        network = read(path, batch=batch, dims=dims, dtype=dtype, training=training)
        normed = any("norm" in layer.work.kind for layer in network.layers)
        if training and text not in NETWORKS and network.convs and not normed:
            network = replace(network, notes=(*network.notes, NORM_NOTE))
    elif _is_module(text):
        from surrogate.network.torch_module import read_module

        network = read_module(text, batch=batch, training=training, dtype=dtype, amp=amp)
    elif kind not in TABLES and path.is_file() and _is_binary(path):
        raise InputError(
            f"{text}: a binary file whose name does not say what it is; give it the ending .onnx, .pt2 or .parquet"
        )
    elif kind in TABLES or path.is_file():
        network = read_table_of_problems(path, batch=batch, dtype=dtype, training=training)
    else:
        what = "a folder" if path.is_dir() else "no such file"
        raise InputError(
            f"{text}: {what}; give an .onnx or .pt2 file, a table of problems, a language model's config.json,"
            f" module:callable or x.py:callable, or one of {', '.join(NETWORKS)}{_alike(path)}"
        )
    is_table = network.own_math
    network = with_settings(completed(network, training, optimizer or OPTIMIZER), math, layout)
    network = replace(network, gpus=data_parallel)
    if is_table:
        if host or runtime not in (None, "compiled"):
            wrong = f"--host {host}" if host else f"--runtime {runtime}"
            raise InputError(f"{text}: {wrong}: a table of problems has kernels alone; leave it out")
        return replace(compiled(network) if runtime else network, told=(ALONE,))
    if kind == ".onnx" and not (runtime or host):
        return replace(network, told=(f"{ALONE}; --runtime eager adds them",))
    return launched(network, runtime, host or HOSTS[0])


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


def read_table_of_problems(
    path: Path, *, batch: int | None = None, dtype: str | None = None, training: bool = False
) -> Network:
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
            layer = _layer(row.name or row.where, row.problem, dtype, training, bool(tally.layers))
            samples = layer.work.samples
            if batch is not None and samples is not None:
                layer = replace(layer, work=layer.work.at_batch(samples, batch) or layer.work)
            tally.add([replace(layer, heuristic=row.heuristic)])
    if not tally.layers:
        raise InputError(f"{path}: no row holds a problem; give n, c, h, k and r, or a text")
    batches = {layer.work.samples for layer in tally.layers} - {None}
    network = tally.network(path.stem, batches.pop() if len(batches) == 1 else None)
    return replace(network, own_math=True)


def _layer(name: str, problem: Work, dtype: str | None, training: bool, inner: bool) -> Layer:
    """The layer in the wanted element type; under ``training`` with its gradients, also of the input if ``inner``."""
    if dtype is not None and dtype != problem.dtype:
        problem = replace(problem, dtype=dtype, math=family_of(problem).default_math(dtype))
    weights = problem.weights
    gradients: tuple[str, ...] = ()
    if training and not problem.is_gradient:
        gradients = (*((INPUT,) if inner else ()), *((WEIGHT,) if weights else ()))
    return Layer(name, problem.kind, problem, gradients, weights)


def _is_binary(path: Path) -> bool:
    """Whether the file begins with what no text holds."""
    try:
        with path.open("rb") as file:
            return re.search(rb"[\x00-\x08\x0e-\x1a]", file.read(4096)) is not None
    except OSError:
        return False  # the reader says why
