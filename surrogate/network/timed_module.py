"""A torch module timed where it stands, without running it: ``from surrogate.network import time_module``."""

from pathlib import Path
from typing import Any

from surrogate.features.errors import require_known
from surrogate.network.fusion import compiled
from surrogate.network.predict import load_predictors
from surrogate.network.read import completed
from surrogate.network.result import NetworkTime
from surrogate.network.torch_module import module_network

RUNTIMES = ("eager", "compiled")


def time_module(
    module: Any,
    inputs: Any,
    gpu: str,
    *,
    training: bool = False,
    dtype: str | None = None,
    runtime: str = "eager",
    bundle: str | Path | None = None,
    workspace_limit: int | None = None,
    deterministic: bool = False,
) -> NetworkTime:
    """The predicted time of one pass of ``module`` over ``inputs`` on ``gpu``, which need not be in this machine.

    ``inputs`` is a tensor or the tuple of the module's arguments. The module runs on a copy without memory, so that
    its weights, gradients and mode stay. ``training`` times forward, backward and the optimizer's step; ``dtype``
    replaces the floating-point type (``fp16``); ``runtime`` is ``eager``, or of a forward pass ``compiled``, as in
    `seer network`. Every convolution takes the fastest algorithm whose workspace is at most ``workspace_limit`` bytes;
    the result's ``layers`` name it, with its workspace, time and interval in µs. Raises `InputError` where torch is
    missing, the module fails, or the GPU is unknown.
    """
    require_known("runtime", runtime, RUNTIMES)
    network = completed(module_network(module, inputs, training=training, dtype=dtype), training)
    predictors = load_predictors(gpu, bundle)
    return predictors.time(
        compiled(network) if runtime == "compiled" else network,
        workspace_limit=workspace_limit,
        deterministic=deterministic,
    )
