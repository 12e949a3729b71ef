"""The what-ifs by name, and how a name on the command line is read."""

from collections.abc import Callable
from dataclasses import dataclass

from surrogate.features.errors import InputError, nearest
from surrogate.trace.graph.tasks import Graph
from surrogate.trace.whatif import convolutions, distributed, faster, fusion, precision
from surrogate.trace.whatif.setting import Change, Setting

Model = Callable[[Graph, Setting, float | None], Change]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """An optimisation by name; ``value`` is its number where one was given (``faster-kernels=4``)."""

    name: str
    model: Model
    value: float | None = None

    @property
    def label(self) -> str:
        """As on the command line."""
        return self.name if self.value is None else f"{self.name}={self.value:g}"

    def __call__(self, graph: Graph, setting: Setting) -> Change:
        return self.model(graph, setting, self.value)


MODELS: dict[str, tuple[Model, str, bool]] = {
    "amp": (precision.amp, "mixed precision as published: sgemm and wgrad kernels ÷3, others ÷2", False),
    "amp-tensor": (precision.amp_tensor, "mixed precision: matrix kernels ÷3, others ÷2, optimizer as is", False),
    "amp-roofline": (precision.amp_roofline, "mixed precision: each kernel by its fp16 and fp32 rooflines", False),
    "fused-adam": (fusion.fused_adam, "the optimizer's kernels as one", False),
    "batch-norm": (fusion.restructured_batch_norm, "batch norm merged into its neighbours", False),
    "cuda-graphs": (fusion.cuda_graphs, "one graph launch per iteration", False),
    "best-convolution": (convolutions.best_convolutions, "each convolution by the fastest algorithm predicted", False),
    "batch": (faster.batch, "N samples a step (default: twice as many)", True),
    "gpu": (faster.other_gpu, "the kernels on the GPU of --gpu", False),
    "faster-kernels": (faster.faster_kernels, "kernels N times as fast (default 2)", True),
    "faster-host": (faster.faster_host, "host N times as fast (default 2)", True),
    "faster-network": (faster.faster_network, "the trace's collectives N times as fast (default 2)", True),
    "data-parallel": (distributed.data_parallel, "N workers, ring all-reduce in buckets (--workers)", True),
    "parameter-server": (distributed.parameter_server, "push and pull of gradients, N GB/s (--bandwidth)", True),
    "p3": (distributed.priority_propagation, "the same in slices, urgent ones first, N GB/s", True),
}  # fmt: skip
"""Name → (model, one-line help, whether it takes a number)."""


def what_if(text: str) -> WhatIf:
    """``amp`` or ``faster-kernels=4``. Raises `InputError` for an unknown name or a value that is no number."""
    name, equals, number = text.partition("=")
    if name not in MODELS:
        raise InputError(f"what-if {name!r} is unknown; known: {', '.join(MODELS)}{nearest(name, MODELS)}")
    model, _, takes_number = MODELS[name]
    if not equals:
        return WhatIf(name, model)
    if not takes_number:
        raise InputError(f"what-if {name!r} takes no number; write it without {text[len(name) :]!r}")
    try:
        return WhatIf(name, model, float(number))
    except ValueError:
        raise InputError(f"{number!r} in {text!r} is no number; write such as {name}=2") from None


def user_function(text: str) -> WhatIf:
    """``module:callable`` of the user's own, which takes a graph and returns one.

    The module is imported, which runs it: give only one of your own. Raises `InputError` where it cannot be had
    or fails.
    """
    from surrogate.network.torch_module import imported_callable, in_one_line

    function = imported_callable(text, "it must take a graph and return one")

    def model(graph: Graph, setting: Setting, value: float | None) -> Change:
        del setting, value
        with in_one_line(text):
            changed = function(graph)
        if not isinstance(changed, Graph):
            raise InputError(f"{text} returned {type(changed).__name__}; it must return a graph")
        return Change(changed)

    return WhatIf(text, model)
