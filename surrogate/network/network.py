"""`Network`: what a model of a network does, as operators with sizes, whatever source it was read from; and
`ReadOptions`: how it is read and run."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast

from surrogate.features.errors import check_choice
from surrogate.features.families import NetworkProblem
from surrogate.features.problem import LAYOUTS, MATHS, setting

if TYPE_CHECKING:
    from surrogate.features.conv import Conv

PART_3D = "3d"
"""The part of an operator over three axes that is timed as one over two."""
TIME_FACTORS_3D = {"": 1.4, "bwd_data": 2.0}
"""Direction (the others "") → how many times longer their kernels take than those over two axes. Source: half of
KernelBench's 3-D programs on eleven GPUs, in the median (`experiments/small_networks.py`)."""
INTERVAL_FACTOR_3D = 2.0
"""What the intervals of such times are wider by: KernelBench's 3-D convolutions alone are off by 4.2 times at most in
nine of ten passes of the half that is fitted, where those over two axes are by 2.1."""
NOTE_3D = "3-D operators (…3d) are timed as 2-D kernels of the same work, their depth folded into batch and window"
TF32 = ("convolutions",)
"""Which of fp32's ``products`` and ``convolutions`` run in TF32 where the GPU has it, by PyTorch's defaults."""
TRAINING_DTYPES = ("fp64", "fp32", "fp16", "bf16")
"""Element types of what torch trains, and of what its modules run in."""
FRAMEWORKS = {"vllm": ("nvidia", "amd", "intel"), "sglang": ("nvidia", "amd", "intel"), "trtllm": ("nvidia",)}
"""Servers of language models, each with kernels of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How a source is read as a network, and how the network runs; None keeps the source's own, or the default.

    Parameters
    ----------
    batch
        First size of all inputs; of a language model, requests.
    dims
        Other symbolic sizes of an .onnx or .pt2 file, by name.
    training
        Whether a whole iteration is read: forward, backward, and the step of ``optimizer``.
    optimizer
        One of `surrogate.network.memory.OPTIMIZERS` (adam).
    data_parallel
        GPUs of one machine that train together, each with ``batch``.
    dtype
        Floating-point type in the place of the source's.
    amp
        Type (fp16, bf16) of the autocast block that a module's forward pass runs in; its weights stay in fp32.
    math, layout
        Of every convolution.
    runtime, host
        What launches the kernels: one of `surrogate.network.runtime.RUNTIMES` and `surrogate.network.runtime.HOSTS`.
    prefill, decode
        Of a language model's step: new tokens of each request, or tokens of context before one new token.
    tensor_parallel, expert_parallel, pipeline_parallel, routing, kv_dtype
        Of a language model: those of a `surrogate.network.language.Deployment`.
    """

    batch: int | None = None
    dims: Mapping[str, int] | None = None
    training: bool = False
    optimizer: str | None = None
    data_parallel: int = 1
    dtype: str | None = None
    amp: str | None = None
    math: str | None = None
    layout: str | None = None
    runtime: str | None = None
    host: str | None = None
    prefill: int | None = None
    decode: int | None = None
    tensor_parallel: int | None = None
    expert_parallel: int | None = None
    pipeline_parallel: int | None = None
    routing: str | None = None
    kv_dtype: str | None = None


DEFAULT_OPTIONS = ReadOptions()


class IsDataclass(Protocol):
    """What `dataclasses.replace` takes."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Options = TypeVar("Options", bound=IsDataclass)


def replace_fields(options: Options, named: Mapping[str, Any], *others: str, known: Collection[str] = ()) -> Options:
    """``options`` with the fields that a caller gave by ``named``; None keeps a field.

    Raises `InputError` for a name that is not ``known`` (without: no field), and names those and ``others``.
    """
    for name in named:
        check_choice("parameter", name, (*others, *(known or (each.name for each in fields(options)))))
    return replace(options, **{name: value for name, value in named.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Layer:
    """One operator of a network, as it stands in the model.

    ``operator`` is the model's own word for it; ``gradients`` says what a training iteration computes behind it (the
    gradient of its `INPUT`, of its `WEIGHT`, or neither); ``parameters`` counts the weights it trains, of a
    layer of the backward pass those whose gradients are complete behind it;
    ``heuristic`` is the library's own pick of an algorithm, where the file says it.
    """

    name: str
    operator: str
    problem: NetworkProblem
    gradients: tuple[str, ...] = ()
    parameters: int = 0
    heuristic: str | None = None

    @property
    def time_factor(self) -> float:
        """Than the kernel of ``work`` alone: of a convolution over three axes, which stands as one over two."""
        if not (self.problem.HAS_ALGORITHMS and self.operator.endswith(f".{PART_3D}")):
            return 1.0
        return TIME_FACTORS_3D.get(getattr(self.problem, "direction", ""), TIME_FACTORS_3D[""])


@dataclass(frozen=True, slots=True)
class HostTime:
    """What a ``runtime`` on a kind of ``host`` takes to launch a pass's kernels, in µs, and before and behind them.

    ``within`` is the factor of their 90 % interval.
    """

    runtime: str
    host: str
    launch_us: float
    floor_us: float
    within: float


@dataclass(frozen=True, slots=True)
class Network:
    """Layers in the order of the model, and what stands beside them.

    ``ignored`` and ``unsupported`` count operators by name: the first cost nothing on a device (views, constants), the
    second are unknown to this package or have no known sizes, and their time is in no sum.
    """

    name: str
    layers: tuple[Layer, ...]
    batch: int | None = None
    training: bool = False
    ignored: Mapping[str, int] = field(default_factory=dict)
    unsupported: Mapping[str, int] = field(default_factory=dict)
    host: HostTime | None = None
    """What launches the kernels; None where nothing is known of it."""
    runtime: str = "eager"
    """What does where nobody says: "compiled" of a module that `torch.compile` gave."""
    gap_us: float = 0.0
    """Time between a kernel and the next one."""
    forward_layers: int = 0
    """Of a training iteration, how many layers the forward pass has; the backward pass follows."""
    gpus: int = 1
    """How many GPUs of a machine train together, each with this batch."""
    notes: tuple[str, ...] = ()
    """What a reader must know of the whole."""
    told: tuple[str, ...] = ()
    """What the headline says of the time: that launches are not in it."""
    tf32: tuple[str, ...] = TF32
    """What runs in TF32 where the GPU has it."""
    keeps_math: bool = False
    """True where the source gave the math types; else all problems run as PyTorch runs them on the GPU."""
    parameters: int | None = None
    """Stored weights; None where the source does not say."""
    weights_bytes: int | None = None
    activation_bytes: int | None = None
    """Most bytes that inputs, activations and gradients take at once; None where the source has no tensors."""
    gradient_bytes: int | None = None
    """Of those, the gradients of weights."""
    rounding_bytes: int | None = None
    """What an allocator keeps beyond tensors."""
    state_bytes: int = 0
    """KV cache, or what the optimizer keeps."""

    @property
    def convs(self) -> "tuple[Conv, ...]":
        """Every problem that algorithms are chosen for, in order; one that occurs twice stands twice."""
        return cast("tuple[Conv, ...]", tuple(layer.problem for layer in self.layers if layer.problem.HAS_ALGORITHMS))


def element_type(name: str, value: object, known: Collection[str]) -> str | None:
    """The element type that ``name`` is given, by any name that people call it (``torch.bfloat16``); None for none.

    Raises `InputError` for one that is not ``known``.
    """
    word = None if value is None else setting("dtype", value)
    if word is not None:
        check_choice(name, word, known)
    return word


class Tally:
    """Collects layers while a model is read; names of layers become distinct, the rest is counted by name."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.ignored: Counter[str] = Counter()
        self.unsupported: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()

    def add(self, layers: Iterable[Layer]) -> None:
        """Append layers; the second of one name becomes ``name#2``."""
        for layer in layers:
            self._seen[layer.name] += 1
            count = self._seen[layer.name]
            self.layers.append(replace(layer, name=f"{layer.name}#{count}") if count > 1 else layer)

    def network(self, name: str, batch: int | None, training: bool = False, **held: Any) -> Network:
        """Everything collected; ``held`` are the fields on memory."""
        folded = any(layer.operator.endswith(f".{PART_3D}") for layer in self.layers)
        return Network(
            name=name,
            layers=tuple(self.layers),
            batch=batch,
            training=training,
            ignored=dict(self.ignored),
            unsupported=dict(self.unsupported),
            notes=(NOTE_3D,) if folded else (),
            **held,
        )


def with_settings(network: Network, math: str | None, layout: str | None) -> Network:
    """Every problem that algorithms are chosen for (a convolution) under another math type or layout."""
    chosen = {name: value for name, value in (("math", math), ("layout", layout)) if value}
    if not chosen:
        return network
    for name, value in chosen.items():
        check_choice(name, value, {"math": MATHS, "layout": LAYOUTS}[name])
    layers = tuple(
        replace(layer, problem=replace(layer.problem, **chosen)) if layer.problem.HAS_ALGORITHMS else layer
        for layer in network.layers
    )
    return replace(network, layers=layers, keeps_math=network.keeps_math or math is not None)
