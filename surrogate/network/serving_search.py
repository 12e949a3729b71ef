"""What to buy and how to run it: the search over GPUs, frameworks, parallelism and types for a model's server, and what
it tries: parallelism, replicas, users and types, as a caller narrows them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, product
from math import inf, nan
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from surrogate.features.elementwise import MAX_INT32, ceil_div, checked_int
from surrogate.features.errors import InputError, check_choice
from surrogate.features.gpu import Gpu
from surrogate.features.gpu import gpu as gpu_named
from surrogate.features.problem import ELEMENTS, QUANTISED
from surrogate.features.roofline import missing_units
from surrogate.network.language import (
    NVLINK_DOMAINS,
    NVLINK_GPUS,
    ROUTING,
    Decoder,
    Deployment,
    main_dtype,
    read_decoder,
)
from surrogate.network.language_step import STEPS_DIFFER
from surrogate.network.network import FRAMEWORKS, replace_fields
from surrogate.network.predict import floor_note, frameworks_on
from surrogate.network.result import UNMEASURED
from surrogate.network.serving import Load, ServerKernels, ServerSteps, Setup, TimeInterval, server_models, server_steps
from surrogate.network.serving_result import SHOWN, ServerRow, Serving, Targets, pareto

USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of users of a replica that are tried where a caller names none."""
COUNTS = ("concurrency", "tensor_parallel", "expert_parallel", "pipeline_parallel", "attention_parallel", "gpus")
"""Fields of `Choices` that are whole numbers."""
UNPACKED = {"fp8": "int8_wo", "fp8_block": "int8_wo"}
"""What stands for weights in fp8 on GPUs without units for it: kernels that unpack weights of 8 bits, too."""
UNPACKING = ("vllm", "sglang")
"""Servers that run them there (Marlin); TensorRT-LLM does not."""
MAX_PLANS = 20_000
UNMEASURED_WIDTH = 0.1
"""Width in log time that kernels add which were not measured on the GPU, from which a note says so."""
MILLION = 1e6
SEARCHED = (
    f"users of one replica: powers of two up to {USERS[-1]}, and the most that keep the targets, to a sixteenth;"
    " --concurrency names them"
)
CONDITIONS = ("compare_gpus", "price", "ttft_ms", "tpot_ms", "choices")
"""Parameters of `serve` beside the fields of `Choices`."""


class ReplicaPlan(NamedTuple):
    """A replica's setup, the number of replicas, and the users of all of them."""

    setup: Setup
    replicas: int
    users: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What is searched: each field one or several values, or nothing where the search finds them itself.

    ``libraries`` are frameworks (vllm, sglang, trtllm; without: all); ``concurrency`` users at a time on all replicas
    together (without: 1 to 256 on one); ``tensor_parallel`` GPUs share a layer, ``pipeline_parallel`` stages hold
    different layers, ``attention_parallel`` groups of GPUs attend to requests of their own and share the experts, of
    which ``expert_parallel`` GPUs hold different ones. ``dtypes`` are the products' element types (without: the
    checkpoint as it is, as servers run it), ``kv_dtypes`` the cache's (without: the model's own). ``routing`` says how
    tokens spread over experts (balanced, power_law_1.01 …); ``gpus`` is the most GPUs of all replicas.
    """

    libraries: str | Sequence[str] = ()
    concurrency: int | Sequence[int] = ()
    tensor_parallel: int | Sequence[int] = ()
    expert_parallel: int | Sequence[int] = ()
    pipeline_parallel: int | Sequence[int] = ()
    attention_parallel: int | Sequence[int] = ()
    dtypes: str | Sequence[str] = ()
    kv_dtypes: str | Sequence[str] = ()
    routing: str = ROUTING
    gpus: int = NVLINK_GPUS

    def several(self, name: str) -> Sequence[Any]:
        """The values of a field, also of one that was given alone."""
        values = getattr(self, name)
        return (values,) if isinstance(values, int | str) else tuple(values)

    def check(self) -> None:
        """Raise `InputError` for what is no count and no known type or framework."""
        for name in COUNTS:
            for number in self.several(name):
                checked_int("seer serving", f"--{name.replace('_', '-')}", number, maximum=MAX_INT32)
        for kind, several, known in (("library", "libraries", FRAMEWORKS), ("dtype", "dtypes", ELEMENTS)):
            for name in self.several(several):
                check_choice(kind, name, known)

    def plans(self, decoder: Decoder, device: Gpu) -> Iterator[ReplicaPlan]:
        """Every configuration of the search on a GPU."""
        node = NVLINK_DOMAINS.get(device.name, NVLINK_GPUS)
        powers = [2**power for power in range(self.gpus.bit_length())]
        pipelines, dtypes, kv_dtypes = map(self.several, ("pipeline_parallel", "dtypes", "kv_dtypes"))
        concurrency = self.several("concurrency")
        for tensor, data in self._groups(decoder, powers):
            ranks = tensor * data
            spread = (1, ranks) if decoder.experts and decoder.experts % ranks == 0 else (1,)
            experts = self.several("expert_parallel") or spread
            # Stages are tried of whole domains alone: within one, sums over NVLink are shorter.
            stages = pipelines or [1, *(way for way in powers[1:] if ranks == node and way <= len(decoder.windows))]
            ways = product(dict.fromkeys(experts), stages, dtypes or (None,), kv_dtypes or (None,))
            for expert, pipeline, dtype, kv_dtype in ways:
                deployment = Deployment(
                    tensor_parallel=tensor,
                    data_parallel=data,
                    expert_parallel=expert,
                    pipeline_parallel=pipeline,
                    dtype=dtype,
                    kv_dtype=kv_dtype,
                    routing=self.routing,
                    node=node,
                )
                maximum = self.gpus // deployment.gpus
                for users in concurrency or USERS:
                    before = 0
                    for replicas in range(1, min(maximum, users if concurrency else 1) + 1):
                        each = ceil_div(users, replicas)
                        if each != before and each >= data:  # a further replica that relieves none is a waste
                            yield ReplicaPlan(Setup(deployment, each), replicas, users)
                        before = each

    def _groups(self, decoder: Decoder, powers: Sequence[int]) -> list[tuple[int, int]]:
        """Ways of tensor parallelism and of attention over requests of one's own, which pays for a latent cache."""
        asked, attention = self.several("tensor_parallel"), self.several("attention_parallel")
        tensor = asked or [way for way in powers if decoder.heads % way == 0]
        if attention or asked or not (decoder.family.latent and decoder.experts):
            return list(product(tensor, attention or (1,)))
        return [*((way, 1) for way in tensor), *((1, way) for way in powers[1:] if decoder.experts % way == 0)]

    def left_out(self, plans: Sequence[ReplicaPlan]) -> Iterator[str]:
        """A note for each number that was asked for and is in no plan."""
        for name in COUNTS[:-1]:
            of = name.replace("attention_", "data_")
            planned = {plan.users if name == "concurrency" else getattr(plan.setup.deployment, of) for plan in plans}
            for number in dict.fromkeys(self.several(name)):
                if number not in planned:
                    option = name.replace("_", "-")
                    yield f"--{option} {number} is left out: no configuration within --gpus {self.gpus} has it"

    def too_few(self, decoder: Decoder) -> str:
        """Why there is no configuration."""
        stages = min(self.several("pipeline_parallel") or (1,))
        tensor, data = min(self._groups(decoder, [1]), key=lambda ways: ways[0] * ways[1])
        minimum = tensor * data * stages
        if minimum > self.gpus:
            return f"the smallest configuration takes {minimum} GPUs; give --gpus {minimum}"
        return f"each of {data} groups (--attention-parallel) needs a user; give --concurrency {data} or more"

    def unpacked(self, decoder: Decoder, device: Gpu, library: str) -> tuple["Choices", Decoder, str]:
        """The search and the model where a server unpacks fp8 weights, as itself elsewhere; and a note, or ""."""
        lacks = missing_units(device, "fp8") if device.vendor == "nvidia" and device.bf16_tensor_tflops else None
        asked = self.several("dtypes") or [main_dtype(decoder, None)]
        if not lacks or library not in UNPACKING or UNPACKED.keys().isdisjoint(asked):
            return self, decoder, ""
        choices = replace(self, dtypes=tuple(UNPACKED.get(name, name) for name in self.several("dtypes")))
        other = replace(decoder, checkpoint=decoder.checkpoint.with_types(UNPACKED))
        return choices, other, f"{lacks}: servers unpack fp8 weights to 16 bits, timed as kernels measured for int8_wo"

    def notes(self, decoder: Decoder) -> Iterator[str]:
        """What a reader must know of the types of weights and cache."""
        if "fp8" in self.several("kv_dtypes") and decoder.checkpoint.kv_dtype != "fp8":
            yield f"fp8: a cache quantised from the model's {decoder.dtype}; its quality is not judged"
        own = "own type" if decoder.checkpoint.refusal and self.several("dtypes") else main_dtype(decoder, None)
        asked = [name for name in self.several("dtypes") if name in QUANTISED and name != own]
        if asked:
            yield f"{', '.join(asked)}: weights quantised from the checkpoint's {own}; their quality is not judged"
        elif not self.several("dtypes") and own not in QUANTISED:
            yield f"the checkpoint as it is, in {own}; --dtype {own},fp8 also tries quantised weights"


def serve(
    config: str | Path | Mapping[str, object],
    *,
    gpu: str,
    input: int,
    output: int,
    compare_gpus: str | Sequence[str] = (),
    price: float | Mapping[str, float] | None = None,
    **asked: Any,
) -> Serving:
    """The servers of a language model on GPUs, those that keep the targets first.

    Parameters
    ----------
    config
        The model's ``config.json``, its folder, its content, or the name of one that ships.
    gpu, compare_gpus
        GPUs by registry name or alias.
    input, output
        Tokens of a user's prompt and of the answer.
    price
        US dollars per GPU and hour, of all GPUs or by the GPU's name.
    asked
        The targets ``ttft_ms`` and ``tpot_ms``; ``choices``, an object of `Choices` that narrows the search; and its
        fields by name, as in ``concurrency=50``.

    Returns
    -------
    Serving
        A row per configuration, with times in ms.

    Raises
    ------
    InputError
        If something cannot be read or is unknown, or if nothing can be said.
    """
    ttft_ms, tpot_ms, choices = (asked.pop(name, None) for name in CONDITIONS[2:])
    choices = Choices() if choices is None else choices
    if not isinstance(choices, Choices):
        raise InputError(f"choices is a {type(choices).__name__}; give a surrogate.network.Choices(concurrency=50, …)")
    choices = replace_fields(choices, asked, *CONDITIONS)
    choices.check()
    sizes = {"--input": input, "--output": output}
    load = Load(*(checked_int("seer serving", name, size, maximum=MAX_INT32) for name, size in sizes.items()))
    targets = Targets(_positive("--ttft", ttft_ms), _positive("--tpot", tpot_ms))
    if output == 1 and tpot_ms is not None:
        raise InputError("--tpot: an answer of one token has no further one; leave it out, or give a longer --output")
    decoder = read_decoder(config)
    devices = _devices(gpu, compare_gpus)
    search = _Search(decoder, load, targets, choices, _prices(price, devices))
    decoder.require_context(load.input + load.output)
    for device in devices:
        search.on(device)
    return search.found()


@dataclass(frozen=True, slots=True)
class _Search:
    """What is searched, and what was found so far; ``refused``: GPU and reason → frameworks."""

    decoder: Decoder
    load: Load
    targets: Targets
    choices: Choices
    prices: Mapping[str, float]
    rows: list[ServerRow] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    refused: dict[tuple[str, str], dict[str, None]] = field(default_factory=dict)

    def on(self, device: Gpu) -> None:
        """Search a GPU with every framework."""
        if self.prices and device.name not in self.prices:
            self.notes[f"no price for {device.name}: its configurations come behind those with one"] = None
        kernels = ServerKernels(device)
        for library in self.choices.several("libraries") or frameworks_on(device):
            try:
                self._with(library, kernels)
            except InputError as error:
                self._refuse(device, library, error)

    def _refuse(self, device: Gpu, library: str, reason: InputError) -> None:
        self.refused.setdefault((device.name, str(reason)), {})[library] = None

    def _with(self, library: str, kernels: ServerKernels) -> None:
        """Search a GPU with one framework. Raises `InputError` where it has no configuration."""
        device = kernels.device
        narrowed, model, unpacks = self.choices.unpacked(self.decoder, device, library)
        planned = _planned(narrowed, model, device, library)
        left_out = list(self.choices.left_out(planned))
        tried: dict[Deployment, list[ServerRow]] = {}
        while planned:
            answers = server_steps(model, self.load, kernels, library, [plan.setup for plan in planned])
            for plan in planned:
                answer = answers[plan.setup]
                if isinstance(answer, InputError):
                    self._refuse(device, library, answer)
                    continue
                row = _row(model, device, library, plan, answer, self.targets, self.prices.get(device.name))
                tried.setdefault(plan.setup.deployment, []).append(row)
                self.notes.update(dict.fromkeys(_notes(device, library, plan.setup, answer)))
            planned = [] if self.choices.concurrency else list(_between(tried))
        self.notes.update(dict.fromkeys((*filter(None, [unpacks]), *left_out)))
        for tries in tried.values():
            maximum = _most(tries)
            self.rows.extend(
                row for row in tries if self.choices.concurrency or row.concurrency in USERS or row is maximum
            )

    def found(self) -> Serving:
        """The rows in order. Raises `InputError` where there are none."""
        reasons = [f"{name}, {', '.join(libraries)}: {reason}" for (name, reason), libraries in self.refused.items()]
        if not self.rows:
            raise InputError(reasons[0])
        notes = dict.fromkeys((*self.decoder.notes, *self.choices.notes(self.decoder), *self.notes))
        rows = sorted(self.rows, key=partial(_rank, targets=self.targets))
        if not any(self.targets):
            rows = _front_first(rows)
        elif not self.choices.concurrency:
            notes[SEARCHED] = None
        told = (*notes, STEPS_DIFFER, *reasons)
        return Serving(self.decoder.name, self.load, tuple(rows), told, self.targets, self.choices.gpus)


def _devices(gpu: object, compare_gpus: str | Sequence[str]) -> list[Gpu]:
    """Each GPU once, ``gpu`` first."""
    names = (gpu, compare_gpus) if isinstance(compare_gpus, str) else (gpu, *compare_gpus)
    if wrong := next((name for name in names if not isinstance(name, str)), None):
        raise InputError(f"gpu is {wrong!r}; give one name, and further ones in compare_gpus")
    return list({device.name: device for device in (gpu_named(str(name)) for name in names)}.values())


def _prices(price: object, devices: Sequence[Gpu]) -> dict[str, float]:
    """GPU → US dollars an hour."""
    given = price if isinstance(price, Mapping) else dict.fromkeys((device.name for device in devices), price)
    prices = {gpu_named(name).name: _positive(f"--price of {name}", usd, MILLION) for name, usd in given.items()}
    if strangers := prices.keys() - {device.name for device in devices}:
        raise InputError(
            f"--price: {', '.join(sorted(strangers))} is not among the GPUs asked about; add --compare-gpus"
        )
    return {name: usd for name, usd in prices.items() if usd is not None}


def _positive(name: str, value: object, maximum: float = inf) -> float | None:
    """A number above 0, or None; `InputError` for anything else."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) <= maximum:
        raise InputError(f"seer serving: {name} is {repr(value)[:40]}; a number above 0, up to {maximum:g}, is needed")
    return float(value)


def _planned(choices: Choices, decoder: Decoder, device: Gpu, library: str) -> list[ReplicaPlan]:
    if library not in frameworks_on(device):
        raise InputError(f"{library} does not run on {device.name}")
    planned = list(islice(choices.plans(decoder, device), MAX_PLANS + 1))
    if len(planned) > MAX_PLANS:
        raise InputError(f"over {MAX_PLANS} configurations; name fewer of what is searched")
    if not planned:
        raise InputError(choices.too_few(decoder))
    return planned


def _most(rows: Sequence[ServerRow]) -> ServerRow | None:
    """The one with the most users that keeps the targets."""
    return max((row for row in rows if row.meets), key=lambda row: row.concurrency, default=None)


def _between(tried: Mapping[Deployment, Sequence[ServerRow]]) -> Iterator[ReplicaPlan]:
    """Plans half-way between the most users with whom a replica keeps the targets and the fewest with whom it does not,
    unless they lie within a sixteenth."""
    for how, rows in tried.items():
        maximum = row.concurrency if (row := _most(rows)) else MAX_INT32
        more = min((row.concurrency for row in rows if row.concurrency > maximum), default=0)
        if more - maximum > max(maximum // 16, 1):
            users = (maximum + more) // 2
            yield ReplicaPlan(Setup(how, users), 1, users)


def _row(
    decoder: Decoder,
    device: Gpu,
    library: str,
    plan: ReplicaPlan,
    steps: ServerSteps,
    targets: Targets,
    price: float | None,
) -> ServerRow:
    how = plan.setup.deployment
    unknown = TimeInterval(nan, nan, nan)
    first, further, held = steps.intervals(server_models()[library]) if steps.fits else (unknown,) * 3
    gpus = plan.replicas * how.gpus
    tokens_per_ms = plan.users * steps.load.output / gpus
    rate = 1e3 * tokens_per_ms / steps.request_ms(first, further).time
    # Where users wait, the requests that run bound the rate: those who wait do not make the server faster or slower.
    low, high = (1e3 * tokens_per_ms * steps.running / steps.users / ms for ms in (held.high, held.low))
    return ServerRow(
        gpu=device.name,
        library=library,
        gpus=gpus,
        replicas=plan.replicas,
        tensor_parallel=how.tensor_parallel,
        pipeline_parallel=how.pipeline_parallel,
        expert_parallel=how.expert_parallel,
        attention_parallel=how.data_parallel,
        dtype=main_dtype(decoder, how.dtype),
        kv_dtype=how.kv_dtype or decoder.checkpoint.kv_dtype or decoder.dtype,
        concurrency=plan.users,
        running=min(plan.users, steps.running * how.data_parallel * plan.replicas),
        ttft_ms=first.time,
        ttft_low_ms=first.low,
        ttft_high_ms=first.high,
        tpot_ms=further.time,
        tpot_low_ms=further.low,
        tpot_high_ms=further.high,
        tokens_per_s_per_gpu=rate,
        tokens_per_s_per_gpu_low=low,
        tokens_per_s_per_gpu_high=max(high, rate),
        tokens_per_s_per_user=1e3 / (further.time if steps.load.output > 1 else first.time),
        usd_per_million_tokens=None if price is None else price / 3600 / rate * MILLION,
        memory_gib=steps.memory_bytes / 2**30,
        fits=steps.fits,
        meets=steps.fits and targets.met(first.time, further.time),
        bound=steps.bound,
    )


def _notes(device: Gpu, library: str, setup: Setup, steps: ServerSteps) -> Iterator[str]:
    """What a reader must know of a configuration."""
    yield from setup.deployment.notes()
    if steps.floors:
        yield f"{device.name}, {library}: {floor_note(steps.floors)}; other frameworks' kernels stand in their place"
    if steps.half_width > UNMEASURED_WIDTH:
        yield f"{device.name}, {library}: unmeasured kernels are timed from the datasheet, with wide intervals"
    if steps.sums_source and not device.link_gbs:
        source = "by its data sheet" if steps.sums_source in UNMEASURED else "as one machine was measured"
        yield f"{device.name}: no link but PCIe is known; sums over its GPUs are timed {source}; machines differ much"


def _rank(row: ServerRow, targets: Targets) -> tuple[float, ...]:
    """Those that meet the targets, at the least cost first, those without a price last; then the others that fit,
    the closest to the targets first; then the rest, the one that lacks the least memory first."""
    if not row.fits:
        return 2, row.memory_gib, row.gpus
    cost = row.usd_per_million_tokens is None, row.cost(row.tokens_per_s_per_gpu)
    return (0, *cost) if row.meets else (1, max(targets.shares(row.ttft_ms, row.tpot_ms).values()), *cost)


def _front_first(rows: Sequence[ServerRow]) -> list[ServerRow]:
    """The rows, ahead of them `SHOWN` of those that no other beats in speed and in cost, slowest first.

    Where users wait for memory, or no price is known though others' is, a row is not among them.
    """
    is_priced = any(row.usd_per_million_tokens is not None for row in rows)
    served = [
        row
        for row in rows
        if row.fits and row.bound != "memory" and (row.usd_per_million_tokens is not None) == is_priced
    ]
    front = pareto(served, lambda row: 1 / row.cost(row.tokens_per_s_per_gpu))
    ahead = front[:: ceil_div(len(front), SHOWN) or 1]
    return [*ahead, *(row for row in rows if row not in ahead)]
