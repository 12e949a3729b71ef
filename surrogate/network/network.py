"""The common form of every network, `Network`: operators with sizes, whatever source it was read from.

`ReadOptions` holds how a source is read and how the network runs.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from surrogate.features import BANDWIDTH_FIELDS, BATCH_FIELDS, LAYOUTS, MATHS, InputError, check_choice, read_toml
from surrogate.features.families import NetworkProblem
from surrogate.features.families.operator import Image
from surrogate.features.families.rowwise import CHANNELS_LAST

if TYPE_CHECKING:
    from surrogate.features.conv import Conv

TEXTS = read_toml(__file__)
"""Texts and tables of networks."""
BATCH_KINDS = {kind for kind, share in BANDWIDTH_FIELDS.items() if share in BATCH_FIELDS}
"""Kinds of norms by the statistics of a batch, whose kernels depend on the layout of images."""
PART_3D = "3d"
"""Last part of the name of an operator over three axes, which is timed as an operator over two."""
TIME_FACTORS_3D = {"": 1.4, "bwd_data": 2.0}
"""Time of kernels over three axes / time of the same work over two, by direction ("": all others).

Source: medians of half of KernelBench's 3-D programs on eleven GPUs (`experiments/small_networks.py`).
"""
INTERVAL_FACTOR_3D = 2.0
"""Factor by which the intervals of 3-D operators are wider.

In nine of ten fitted passes, KernelBench's 3-D convolutions are off by at most 4.2 times, its 2-D ones by 2.1 times.
"""
NOTE_3D = "3-D operators (…3d) are timed as 2-D kernels of the same work, with their depth in batch and window"
TF32 = ("convolutions",)
"""The fp32 operations, of ``products`` and ``convolutions``, that PyTorch runs in TF32 by default if the GPU has it."""
FRAMEWORKS = {"vllm": ("nvidia", "amd", "intel"), "sglang": ("nvidia", "amd", "intel"), "trtllm": ("nvidia",)}
"""Servers of language models with their own kernels → vendors of the GPUs that they support."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How a source is read as a network, and how the network runs; None keeps the source's own value or the default.

    Parameters
    ----------
    batch
        First size of all inputs; for a language model the number of requests.
    dims
        Other symbolic sizes of an .onnx or .pt2 file, by name.
    training
        Whether a whole iteration is read: forward pass, backward pass and the step of ``optimizer``.
    optimizer
        One of `surrogate.network.optimizers.OPTIMIZERS` (default: adam).
    data_parallel, fsdp
        Number of GPUs that train together, each with ``batch`` samples: with whole copies of the model, or fully
        sharded. At most one of the two is above 1.
    gpus_per_node, node_gbps
        GPUs of a node (default: 8), and the bandwidth of a node's network in Gbit/s.
    dtype
        Floating-point type that replaces the source's types.
    amp
        Type (fp16, bf16) of the autocast block around a module's forward pass; its weights stay in fp32.
    math, layout
        Math type and layout of all convolutions.
    runtime, host
        Runtime and host that launch the kernels: one of `surrogate.network.runtime.RUNTIMES` and of
        `surrogate.network.runtime.HOSTS`.
    accumulate
        Number of microbatches of ``batch`` samples in a training iteration; their gradients are added.
    sequence
        Tokens of each sample in the training of a language model.
    checkpointing
        Whether the training of a language model keeps only the inputs of its layers, and computes them again.
    lora
        Rank of the adapters that the training of a language model trains instead of the weights.
    prefill, decode
        Kind of a language model's step: new tokens of each request, or tokens of context before one new token.
    tensor_parallel, expert_parallel, pipeline_parallel, routing, kv_dtype
        Fields of a language model's `surrogate.network.language.Deployment`.
    """

    batch: int | None = None
    dims: Mapping[str, int] | None = None
    training: bool = False
    optimizer: str | None = None
    data_parallel: int = 1
    fsdp: int = 1
    gpus_per_node: int | None = None
    node_gbps: float | None = None
    dtype: str | None = None
    amp: str | None = None
    math: str | None = None
    layout: str | None = None
    runtime: str | None = None
    host: str | None = None
    accumulate: int = 1
    sequence: int | None = None
    checkpointing: bool = False
    lora: int | None = None
    prefill: int | None = None
    decode: int | None = None
    tensor_parallel: int | None = None
    expert_parallel: int | None = None
    pipeline_parallel: int | None = None
    routing: str | None = None
    kv_dtype: str | None = None


DEFAULTS = ReadOptions()


T = TypeVar("T")


def with_fields(options: T, changes: Mapping[str, Any], *other_names: str, allowed: Collection[str] = ()) -> T:
    """Return the dataclass ``options`` with the fields in ``changes``; a change to None keeps the field.

    Raises `InputError` for a name that is not in ``allowed`` (by default all fields). The message lists these names and
    ``other_names``.
    """
    instance = cast(Any, options)
    for name in changes:
        check_choice("parameter", name, (*other_names, *(allowed or (each.name for each in fields(instance)))))
    return replace(instance, **{name: value for name, value in changes.items() if value is not None})


def refuse(refusals: Mapping[str, object], /, **fields: object) -> None:
    """Raise the `refusal` with the first name that holds."""
    if text := next((text for text, holds in refusals.items() if holds), None):
        raise refusal(text, **fields)


def refusal(text: str, /, **fields: object) -> InputError:
    """Return the error with a text of `TEXTS` and the text's ``fields``."""
    return InputError(TEXTS["refusals"][text].format(**fields))


@dataclass(frozen=True, slots=True)
class Layer:
    """One operator of a network, as the model has it.

    Parameters
    ----------
    name
        Name of the layer, unique in the network.
    operator
        The model's own name of the operator.
    problem
        The layer's computation: a problem of any family, or an operator with a known memory traffic only.
    gradients
        The gradients that a training iteration adds: those of `INPUT`, `WEIGHT`, both, or neither.
    parameters
        Number of weights that the layer trains. For a layer of the backward pass it is the number of weights with a
        complete gradient after it. In a module's forward pass, the first layer of a unit has all weights of the unit.
    heuristic
        The library's own pick of an algorithm, if the file states it.
    keeps_math
        Whether the source states the math type; else the problem runs in PyTorch's default math on the GPU.
    """

    name: str
    operator: str
    problem: NetworkProblem
    gradients: tuple[str, ...] = ()
    parameters: int = 0
    heuristic: str | None = None
    keeps_math: bool = False

    @property
    def is_3d(self) -> bool:
        """Whether the operator works over three axes and is timed as one over two."""
        return self.operator.endswith(f".{PART_3D}")

    @property
    def time_factor(self) -> float:
        """Time of the layer / time of its problem's kernel; it differs from 1 only for 3-D convolutions."""
        if not (self.problem.HAS_ALGORITHMS and self.is_3d):
            return 1.0
        return TIME_FACTORS_3D.get(getattr(self.problem, "direction", ""), TIME_FACTORS_3D[""])


class Work(NamedTuple):
    """Floating-point operations and bytes of DRAM traffic; NaN if unknown."""

    flops: float
    bytes: float


UNKNOWN_WORK = Work(nan, nan)


def add_work(works: dict[str, Work], name: str, flops: float, moved_bytes: float) -> None:
    """Add to the work of the operators with this name, in place."""
    work = works.get(name, Work(0.0, 0.0))
    works[name] = Work(work.flops + flops, work.bytes + moved_bytes)


@dataclass(frozen=True, slots=True)
class HostTime:
    """The time that a ``runtime`` on a kind of ``host`` takes to launch the kernels of a pass, in µs.

    ``floor_us`` is the time before the first and after the last kernel. ``interval_factor`` is the factor of the 90 %
    interval of both times.
    """

    runtime: str
    host: str
    launch_us: float
    floor_us: float
    interval_factor: float


class Cluster(NamedTuple):
    """GPUs that train together: their number, the GPUs of a node, and a node's network in Gbit/s (0: one node).

    ``is_sharded`` is true if each GPU holds a share of weights, gradients and states, and false if each holds all.
    """

    gpus: int = 1
    node_gpus: int = 1
    node_gbps: float = 0.0
    is_sharded: bool = False

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return self.gpus // self.node_gpus


ONE_GPU = Cluster()


@dataclass(frozen=True, slots=True)
class Network:
    """The layers of a network in the order of the model, with its memory and its runtime.

    Parameters
    ----------
    name
        Name of the network.
    layers
        Its operators; an equal problem may occur several times.
    batch
        Samples of a pass; None if unknown.
    training
        Whether the layers form a training iteration.
    ignored, unsupported
        Number of operators by name. Ignored operators cost nothing on a device (views, constants). Unsupported
        operators are unknown or lack sizes; no sum contains their time.
    missing
        Estimated work of all unsupported operators with a name. A name without an entry has unknown work.
    """

    name: str
    layers: tuple[Layer, ...]
    batch: int | None = None
    training: bool = False
    ignored: Mapping[str, int] = field(default_factory=dict)
    unsupported: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, Work] = field(default_factory=dict)
    host: HostTime | None = None
    """Host that launches the kernels; None if unknown."""
    runtime: str = "eager"
    """The default runtime: "compiled" for a module returned by `torch.compile`."""
    gap_us: float = 0.0
    """Time between two kernels, in µs."""
    forward_layers: int = 0
    """Number of layers of a training iteration's forward pass; the backward pass follows them."""
    cluster: Cluster = ONE_GPU
    """The GPUs that train together, each with this batch."""
    is_long: bool = False
    """Whether it takes longer than its kernels alone: the training step of a language model."""
    accumulate: int = 1
    """Number of microbatches of an iteration; every layer but the optimizer's runs once for each of them."""
    notes: tuple[str, ...] = ()
    """Notes for the reader about the whole network."""
    headline_notes: tuple[str, ...] = ()
    """Notes that the headline states, such as missing launches."""
    tf32: tuple[str, ...] = TF32
    """The fp32 operations that run in TF32 if the GPU has it."""
    parameters: int | None = None
    """Stored weights; None if the source does not say."""
    weights_bytes: int | None = None
    activation_bytes: int | None = None
    """Peak of the bytes of inputs, activations and gradients; None if the source has no tensors."""
    gradient_bytes: int | None = None
    """Bytes of the weights' gradients, which `activation_bytes` contains."""
    peak_activation_bytes: int | None = None
    """Peak of the same bytes without gradients of weights, which a sharded GPU holds only in part."""
    rounding_bytes: int | None = None
    """Bytes that an allocator adds by rounding."""
    tokens: int | None = None
    """Tokens of a batch; None if the source has no tokens."""
    stages: int = 1
    """GPUs that compute the layers one after another; each has a share of the weights and of the work."""
    state_bytes: int = 0
    """Bytes of the KV cache or of the optimizer's state."""

    @property
    def convs(self) -> "tuple[Conv, ...]":
        """All problems with a choice of algorithms, in order and with repetitions."""
        return cast("tuple[Conv, ...]", tuple(layer.problem for layer in self.layers if layer.problem.HAS_ALGORITHMS))


class NetworkBuilder:
    """Collects the layers of a model and builds its network; it makes names unique and counts all other operators."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.ignored: Counter[str] = Counter()
        self.unsupported: Counter[str] = Counter()
        self.missing: dict[str, Work] = {}
        self._seen: Counter[str] = Counter()

    def add(self, layers: Iterable[Layer]) -> None:
        """Append layers; the second layer of one name becomes ``name#2``."""
        for layer in layers:
            self._seen[layer.name] += 1
            count = self._seen[layer.name]
            self.layers.append(replace(layer, name=f"{layer.name}#{count}") if count > 1 else layer)

    def omit(self, name: str, work: Work = UNKNOWN_WORK) -> None:
        """Count an operator that has no prediction, and its estimated work."""
        self.unsupported[name] += 1
        add_work(self.missing, name, *work)

    def network(self, name: str, batch: int | None, training: bool = False, **memory: Any) -> Network:
        """Return everything collected as a network; ``memory`` are its fields on memory."""
        counts: dict[str, Any] = {name: dict(getattr(self, name)) for name in ("ignored", "unsupported", "missing")}
        notes = (NOTE_3D,) if any(layer.is_3d for layer in self.layers) else ()
        return Network(name, tuple(self.layers), batch, training, notes=notes, **counts, **memory)


def with_settings(network: Network, math: str | None, layout: str | None) -> Network:
    """Return the network with another math type for its convolutions, or another layout for them and batch norms."""
    for name, value, values in (("math", math, MATHS), ("layout", layout, LAYOUTS)):
        if value:
            check_choice(name, value, values)
    layers = network.layers
    if math:
        fixed = [replace(each.problem, math=math) if each.problem.HAS_ALGORITHMS else None for each in layers]
        pairs = zip(layers, fixed, strict=True)
        layers = tuple(replace(each, problem=problem, keeps_math=True) if problem else each for each, problem in pairs)
    if layout:
        layers = tuple(replace(each, problem=in_layout(each.problem, layout)) for each in layers)
    return replace(network, layers=layers)


def in_layout(problem: NetworkProblem, layout: str) -> NetworkProblem:
    """Return a convolution or a batch norm of images in one of `LAYOUTS`, and any other problem as it is."""
    if problem.HAS_ALGORITHMS:
        return replace(problem, layout=layout)
    if not isinstance(problem, Image) or problem.kind not in BATCH_KINDS or min(problem.c, problem.h * problem.w) == 1:
        return problem
    return replace(problem, variant=CHANNELS_LAST if layout == CHANNELS_LAST else "")
