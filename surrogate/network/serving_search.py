"""Search the servers of a language model: GPUs, frameworks, parallelism, replicas, users and element types."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import islice, product
from math import inf, nan, nextafter
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from surrogate.bundled import server_model
from surrogate.features.elementwise import MAX_INT32, ceil_div, checked_int
from surrogate.features.errors import InputError, check_choice, naming
from surrogate.features.gpu import Gpu, gpu as gpu_by_name
from surrogate.features.problem import ELEMENTS, QUANTISED, setting
from surrogate.features.roofline import missing_units
from surrogate.network.language import NVLINK_DOMAINS, NVLINK_GPUS, ROUTING, Decoder, Deployment, arithmetic_of
from surrogate.network.language_config import read_decoder
from surrogate.network.memory import UTILISATION
from surrogate.network.network import FRAMEWORKS, TEXTS, refusal, with_fields
from surrogate.network.predict import floor_note, frameworks_on
from surrogate.network.result import SOURCES_WITHOUT_GPU_DATA, prices_of
from surrogate.network.serving import Load, ServerKernels, ServerSteps, Setup, TimeInterval, server_models, server_steps
from surrogate.network.serving_result import (
    MAX_ROWS,
    PARAMETERS,
    ServerRow,
    Serving,
    Targets,
    launch_command,
    order_note,
    pareto,
)

USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of users of a replica that the search tries by default."""
WAYS = ("tensor_parallel", "expert_parallel", "pipeline_parallel", "attention_parallel")
COUNTS = {"concurrency": 1_000_000, **dict.fromkeys((*WAYS, "gpus"), MAX_INT32)}
"""Fields of `Choices` that are whole numbers → their maximum."""
SPLITS = ("tensor_parallel", "pipeline_parallel", "expert_parallel")
"""Fields of a `Deployment` that a `ServerRow` has, too."""
UNPACKED_TYPES = {"fp8": "int8_wo", "fp8_block": "int8_wo"}
"""Type of fp8 weights → type of the kernels that are timed on GPUs without fp8 units; both unpack 8-bit weights."""
UNPACKING_FRAMEWORKS = ("vllm", "sglang")
"""Frameworks that unpack fp8 weights on such GPUs (Marlin); TensorRT-LLM does not."""
FP8_BLOCK = 128
"""Width of a block of ``fp8_block`` weights; vLLM and SGLang do not load parts of products that are no multiples of it.
Source: their ``Fp8MoEMethod.create_weights`` and ``validate_fp8_block_shape``."""
GROUPED_TYPES = ("int4_wo", "int8_wo")
"""Types of weights in groups with a scale; vLLM and SGLang do not load parts of rows that are no multiples of it."""
MAX_PLANS = 20_000
MAX_UNMEASURED_SHARE = 0.1
"""Share of unmeasured kernels in a decode step above which an answer has a note."""
MILLION = 1e6


class ReplicaPlan(NamedTuple):
    """A replica's setup, the number of replicas, and the users of all replicas together."""

    setup: Setup
    replicas: int
    users: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The limits of a search; a field has one value, several values, or () if the search chooses the values.

    Parameters
    ----------
    libraries
        Frameworks: vllm, sglang, trtllm; by default all.
    concurrency
        Users at a time on all replicas together; by default 1 to 256 on one replica.
    tensor_parallel
        GPUs that share every layer.
    expert_parallel
        GPUs with different experts.
    pipeline_parallel
        Stages with different layers.
    attention_parallel
        Groups of GPUs that process the attention of their own requests and share the experts.
    dtypes
        Element types of the products; by default the checkpoint's, as servers run it.
    kv_dtypes
        Element types of the cache; by default the model's own.
    routing
        Distribution of tokens over experts: balanced, power_law_1.01 …
    gpus
        Maximum GPUs of all replicas together.
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

    def values_of(self, name: str) -> Sequence[Any]:
        """Return the values of a field, also if the field is one value, or a text with commas between names."""
        values = getattr(self, name)
        if isinstance(values, str):
            values = dict.fromkeys(each.strip().casefold() for each in values.split(",") if each.strip())
        values = tuple(values) if isinstance(values, Iterable) else (values,)
        if not values and getattr(self, name) != ():
            raise InputError(f"seer serving: no value in {name}; give one, or leave it out")
        if name in COUNTS:
            option = f"--{name.replace('_', '-')}"
            return tuple(checked_int("seer serving", option, each, maximum=COUNTS[name]) for each in values)
        return tuple(setting("dtype", value) for value in values) if name.endswith("dtypes") else values

    def checked(self) -> "Choices":
        """Return the choices with tuples of values.

        Raises `InputError` for an invalid count, or an unknown element type or framework.
        """
        for kind, several, allowed in (("library", "libraries", FRAMEWORKS), ("dtype", "dtypes", ELEMENTS)):
            for name in self.values_of(several):
                check_choice(kind, name, allowed)
        several = ("libraries", "kv_dtypes", "dtypes", "concurrency", *WAYS)
        return replace(self, **{name: self.values_of(name) for name in several}, gpus=self.values_of("gpus")[0])

    def plans(self, decoder: Decoder, device: Gpu) -> Iterator[ReplicaPlan]:
        """Yield every configuration of the search on a GPU."""
        node = NVLINK_DOMAINS.get(device.name, NVLINK_GPUS)
        powers = [2**power for power in range(self.gpus.bit_length())]
        pipelines, dtypes, kv_dtypes = map(self.values_of, ("pipeline_parallel", "dtypes", "kv_dtypes"))
        concurrency = self.values_of("concurrency")
        for tensor, data in self._groups(decoder, powers):
            ranks = tensor * data
            group = {"tensor_parallel": tensor, "data_parallel": data, "node": node}
            spread = (1, ranks) if decoder.experts and decoder.experts % ranks == 0 else (1,)
            experts = self.values_of("expert_parallel") or spread
            # Try several stages only if a stage fills an NVLink domain, since all-reduces within a domain are faster.
            stages = pipelines or [1, *(way for way in powers[1:] if ranks == node and way <= len(decoder.layers))]
            ways = product(dict.fromkeys(experts), stages, dtypes or (None,), kv_dtypes or (None,))
            for expert, pipeline, dtype, kv_dtype in ways:
                split = {"expert_parallel": expert, "pipeline_parallel": pipeline}
                deployment = Deployment(**group, **split, dtype=dtype, kv_dtype=kv_dtype, routing=self.routing)
                maximum = self.gpus // deployment.gpus
                for users in concurrency or USERS:
                    previous = 0
                    for replicas in range(1, min(maximum, users if concurrency else 1) + 1):
                        each = ceil_div(users, replicas)
                        if each != previous and each >= data:  # skip a replica that does not reduce the users of each
                            yield ReplicaPlan(Setup(deployment, each), replicas, users)
                        previous = each

    def _groups(self, decoder: Decoder, powers: Sequence[int]) -> list[tuple[int, int]]:
        """Return pairs of tensor and attention parallelism; attention parallelism is tried for latent caches only."""
        requested, attention = self.values_of("tensor_parallel"), self.values_of("attention_parallel")
        tensor = requested or [way for way in powers if decoder.heads % way == 0]
        if attention or requested or not (decoder.family.latent and decoder.experts):
            return list(product(tensor, attention or (1,)))
        return [*((way, 1) for way in tensor), *((1, way) for way in powers[1:] if decoder.experts % way == 0)]

    def missing_notes(self, plans: Sequence[ReplicaPlan]) -> Iterator[str]:
        """Yield a note for each requested number that no plan has."""
        for name in ("concurrency", *WAYS):
            key = name.replace("attention_", "data_")
            planned = {plan.users if name == "concurrency" else getattr(plan.setup.deployment, key) for plan in plans}
            for number in dict.fromkeys(number for number in self.values_of(name) if number not in planned):
                option = name.replace("_", "-")
                yield f"--{option} {number} is ignored, since no configuration within --gpus {self.gpus} has it"

    def no_plan_reason(self, decoder: Decoder) -> str:
        """Return why there is no configuration. Raises `InputError` if the model cannot be divided like this."""
        stages = min(self.values_of("pipeline_parallel") or (1,))
        tensor, data = min(self._groups(decoder, [1]), key=lambda ways: ways[0] * ways[1])
        Deployment(tensor_parallel=tensor, data_parallel=data, pipeline_parallel=stages).check(decoder)
        minimum = tensor * data * stages
        if minimum > self.gpus:
            ways = f"{tensor} × {data} × {stages}, tensor × attention × pipeline; SGLang's --tp is the first two"
            return f"the smallest configuration needs {minimum} GPUs ({ways}); give --gpus {minimum}"
        return f"each of {data} groups (--attention-parallel) needs a user; give --concurrency {data} or more"

    def with_unpacked_weights(self, decoder: Decoder, device: Gpu, library: str) -> tuple[Decoder, str]:
        """Return the model and a note for a server that unpacks fp8 weights, else the model and ""."""
        lacks = missing_units(device, "fp8") if device.vendor == "nvidia" and device.bf16_tensor_tflops else None
        dtypes = self.values_of("dtypes") or [decoder.main_dtype(None)]
        if not lacks or library not in UNPACKING_FRAMEWORKS or UNPACKED_TYPES.keys().isdisjoint(dtypes):
            return decoder, ""
        note = f"{lacks}: servers unpack fp8 weights to 16 bits; their times come from kernels for int8 weights"
        return replace(decoder, checkpoint=decoder.checkpoint.with_types(UNPACKED_TYPES)), note

    def notes(self, decoder: Decoder) -> Iterator[str]:
        """Yield the notes about the types of weights and cache."""
        if "fp8" in self.values_of("kv_dtypes") and decoder.checkpoint.kv_dtype != "fp8":
            yield f"fp8: the cache is quantised from the model's {decoder.dtype}; quality is not evaluated"
        own = "own type" if decoder.checkpoint.refusal and self.values_of("dtypes") else decoder.main_dtype(None)
        if dtypes := [name for name in self.values_of("dtypes") if name in QUANTISED and name != own]:
            yield f"{', '.join(dtypes)}: weights are quantised from the checkpoint's {own}; quality is not evaluated"
        elif not self.values_of("dtypes") and own not in QUANTISED:
            yield f"the weights have the checkpoint's type, {own}; --dtype {own},fp8 also tries quantised weights"


@naming(PARAMETERS)
def serve(
    config: str | Path | Mapping[str, object],
    *,
    gpu: str,
    input: int,
    output: int,
    cached_share: float = 0.0,
    utilization: float = UTILISATION,
    compare_gpus: str | Sequence[str] = (),
    price: float | Mapping[str, float] | None = None,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    choices: Choices | None = None,
    **options: Any,
) -> Serving:
    """Return the servers of a language model on GPUs, the servers that meet the targets first.

    Parameters
    ----------
    config
        The model's ``config.json``, its folder, its content, or a name that `surrogate.bundled.find_model` finds.
    gpu, compare_gpus
        GPUs by registry name or alias.
    input, output
        Tokens of a user's prompt and of the answer.
    cached_share
        Share of each prompt's tokens that a server has in its prefix cache, below 1.
    utilization
        Share of a GPU's memory that a server takes.
    price
        US dollars per GPU and hour, one number or GPU → number.
    ttft_ms, tpot_ms
        The targets: the longest times to first token and per output token, in ms.
    choices
        The limits of the search.
    options
        Fields of `Choices` by name, as in ``concurrency=50``.

    Returns
    -------
    Serving
        One row per configuration, with times in ms.

    Raises
    ------
    InputError
        If an argument is invalid, the model cannot be read, or no configuration can be predicted.
    """
    if not isinstance(choices, Choices | None):
        raise InputError(f"choices is a {type(choices).__name__}; give a surrogate.network.Choices(concurrency=50, …)")
    others = ("cached_share", "utilization", "compare_gpus", "price", "ttft_ms", "tpot_ms", "choices")
    kept = {each.name for each in fields(Choices) if getattr(choices, each.name, each.default) != each.default}
    if twice := sorted(kept & options.keys()):
        raise InputError(f"{twice[0]} is in choices and is also given by itself; give it once")
    choices = with_fields(choices or Choices(), options, *others).checked()
    checked_tokens = partial(checked_int, "seer serving", maximum=MAX_INT32)
    share = _positive("--cached-share", cached_share or None, "from 0 to less than 1", 1.0)
    memory_share = _positive("--utilization", utilization, "above 0, up to 1", nextafter(1, 2)) or UTILISATION
    load = Load(checked_tokens("--input", input), checked_tokens("--output", output), share or 0.0, memory_share)
    targets = Targets(_positive("--ttft", ttft_ms), _positive("--tpot", tpot_ms))
    if output == 1 and tpot_ms is not None:
        raise InputError("--tpot: an answer of one token has no TPOT; leave it out, or give a longer --output")
    decoder = read_decoder(config)
    devices = _devices(gpu, compare_gpus)
    prices = prices_of(price, [device.name for device in devices], "seer serving")
    model = decoder.name if isinstance(config, Mapping) else server_model(config)
    search = _Search(model, decoder, load, targets, choices, prices)
    decoder.require_context(load.input + load.output)
    for device in devices:
        search.search_gpu(device)
    return search.result()


@dataclass(frozen=True, slots=True)
class _Search:
    """The limits and the state of a search.

    ``model`` is the name by which a server loads the model, and ``remarks`` is (GPU, note or refusal) → frameworks.
    """

    model: str
    decoder: Decoder
    load: Load
    targets: Targets
    choices: Choices
    prices: Mapping[str, float]
    rows: list[ServerRow] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    remarks: dict[tuple[str, str], dict[str, None]] = field(default_factory=dict)

    def search_gpu(self, device: Gpu) -> None:
        """Search the configurations of a GPU with every framework."""
        if self.prices and device.name not in self.prices:
            self.notes[f"{device.name} has no price; its configurations come after those with a price"] = None
        kernels = ServerKernels(device)
        for library in self.choices.values_of("libraries") or frameworks_on(device):
            try:
                self._search_framework(library, kernels)
            except InputError as error:
                self._remark(device, library, error)

    def _remark(self, device: Gpu, library: str, text: InputError | str) -> None:
        self.remarks.setdefault((device.name, str(text)), {})[library] = None

    def _search_framework(self, library: str, kernels: ServerKernels) -> None:
        """Search the configurations of a GPU with one framework. Raises `InputError` if there are none."""
        device = kernels.device
        model, unpack_note = self.choices.with_unpacked_weights(self.decoder, device, library)
        planned = _planned(self.choices, self.decoder, device, library)
        self.notes.update(dict.fromkeys((*filter(None, [unpack_note]), *self.choices.missing_notes(planned))))
        tried: dict[Deployment, list[ServerRow]] = {}
        while planned:
            setups = [_unpacked(plan.setup) if unpack_note else plan.setup for plan in planned]
            answers = server_steps(model, self.load, kernels, library, setups)
            for plan, setup in zip(planned, setups, strict=True):
                answer = _load_refusal(self.decoder, plan.setup.deployment, device, library) or answers[setup]
                if isinstance(answer, InputError):
                    self._remark(device, library, answer)
                    continue
                tried.setdefault(plan.setup.deployment, []).append(self._row(device, library, plan, answer))
                self.notes.update(dict.fromkeys(setup.deployment.notes()))
                for text in _remarks(device, answer):
                    self._remark(device, library, text)
            planned = [] if self.choices.concurrency else list(_bisection_plans(tried))
        for tries in tried.values():
            maximum = _most_users(tries)
            numbers = self.choices.values_of("concurrency") or USERS
            self.rows.extend(row for row in tries if row.concurrency in numbers or row is maximum)

    def _row(self, device: Gpu, library: str, plan: ReplicaPlan, steps: ServerSteps) -> ServerRow:
        """Return a configuration with its predictions."""
        decoder, deployment, price = self.decoder, plan.setup.deployment, self.prices.get(device.name)
        unknown, checkpoint = TimeInterval(nan, nan, nan), arithmetic_of(decoder, deployment.dtype)[0]
        ttft, tpot, request = steps.intervals(server_models()[library]) if steps.fits else (unknown,) * 3
        gpus = plan.replicas * deployment.gpus
        tokens_per_ms = plan.users * steps.load.output / gpus
        rate = 1e3 * tokens_per_ms / steps.request_ms(ttft, tpot).time
        # If users wait, the running requests limit the rate; waiting users do not change the server's speed.
        low, high = (1e3 * tokens_per_ms * steps.running / steps.users / ms for ms in (request.high, request.low))
        waits = steps.bound == "memory"
        row = ServerRow(
            gpu=device.name,
            library=library,
            gpus=gpus,
            replicas=plan.replicas,
            **{name: getattr(deployment, name) for name in SPLITS},
            attention_parallel=deployment.data_parallel,
            dtype=decoder.main_dtype(deployment.dtype),
            kv_dtype=deployment.kv_dtype or checkpoint.kv_dtype or checkpoint.base_dtype,
            concurrency=plan.users,
            running=min(plan.users, steps.running * deployment.data_parallel * plan.replicas),
            **ttft.columns("ttft", "_ms"),
            **tpot.columns("tpot", "_ms"),
            **TimeInterval(rate, low, max(high, rate)).columns("tokens_per_s_per_gpu"),
            tokens_per_s_per_user=1e3 / (tpot.time if steps.load.output > 1 else ttft.time),
            usd_per_million_tokens=None if price is None else price / 3600 / rate * MILLION,
            memory_gib=steps.memory_bytes / 2**30,
            fits=steps.fits,
            meets=steps.fits and not (any(self.targets) and waits) and self.targets.met(ttft.time, tpot.time),
            bound=steps.bound,
        )
        load = self.load, decoder, deployment, steps.static_share
        launch = launch_command(row, self.model, *load) if steps.fits else ""
        return replace(row, launch=launch)

    def result(self) -> Serving:
        """Return the rows in order. Raises `InputError` if there are none."""
        remarks = [f"{name}, {', '.join(libraries)}: {text}" for (name, text), libraries in self.remarks.items()]
        if not self.rows:
            raise InputError(remarks[0])
        notes = dict.fromkeys((*self.decoder.notes, *self.choices.notes(self.decoder), *self.notes))
        rows = sorted(self.rows, key=partial(_rank, targets=self.targets))
        if not any(self.targets):
            rows = _front_first(rows)
        elif not self.choices.concurrency:
            notes[TEXTS["notes"]["search"].format(users=USERS[-1])] = None
        names = dict.fromkeys(row.library for row in rows)
        delays = {name: server_models()[name].delay_steps for name in names}
        if waits := [f"{steps:.0f} ({library})" for library, steps in delays.items() if steps >= 1]:
            notes[TEXTS["notes"]["delays"].format(waits=", ".join(waits))] = None
        if order := order_note(rows, self.targets):
            notes[order] = None
        requests = self.decoder.experts / max(self.decoder.topk, 1)
        if any(requests / 2 < row.running < 2 * requests for row in rows):
            notes[TEXTS["notes"]["expert_draws"].format(requests=requests)] = None
        if self.load.cached_share:
            notes[TEXTS["notes"]["cached"].format(new=self.load.new, input=self.load.input)] = None
        all_notes = (*notes, TEXTS["notes"]["no_gaps"], *remarks)
        return Serving(self.decoder.name, self.load, tuple(rows), all_notes, self.targets, self.choices.gpus)


def _devices(gpu: object, compare_gpus: str | Sequence[str]) -> list[Gpu]:
    """Return each GPU once, ``gpu`` first."""
    names = (gpu, compare_gpus) if isinstance(compare_gpus, str) else (gpu, *compare_gpus)
    if wrong := next((name for name in names if not isinstance(name, str)), None):
        raise InputError(f"gpu is {wrong!r}; give one name, and other names in compare_gpus")
    return list({device.name: device for device in (gpu_by_name(str(name)) for name in names)}.values())


def _positive(name: str, value: object, limits: str = "above 0", maximum: float = inf) -> float | None:
    """Return a number above 0 and below the maximum, or None. Raises `InputError` for other values."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0 or float(value) >= maximum:
        raise InputError(f"seer serving: {name} is {repr(value)[:40]}; give a number {limits}")
    return float(value)


def _unpacked(setup: Setup) -> Setup:
    """Return the setup whose kernels are timed if the server unpacks fp8 weights."""
    dtype = setup.deployment.dtype
    return setup._replace(deployment=replace(setup.deployment, dtype=UNPACKED_TYPES.get(dtype or "", dtype)))


def _planned(choices: Choices, decoder: Decoder, device: Gpu, library: str) -> list[ReplicaPlan]:
    if library not in frameworks_on(device):
        raise InputError(f"{library} does not run on {device.name}")
    planned = list(islice(choices.plans(decoder, device), MAX_PLANS + 1))
    if len(planned) > MAX_PLANS:
        raise InputError(f"the search has over {MAX_PLANS} configurations; give fewer values")
    if not planned:
        raise InputError(choices.no_plan_reason(decoder))
    return planned


def _most_users(rows: Sequence[ServerRow]) -> ServerRow | None:
    """Return the row with the most users that meets the targets."""
    return max((row for row in rows if row.meets), key=lambda row: row.concurrency, default=None)


def _bisection_plans(tried: Mapping[Deployment, Sequence[ServerRow]]) -> Iterator[ReplicaPlan]:
    """Yield plans halfway between the most users that meet the targets and the fewest users that do not.

    A replica has no further plan if these two numbers differ by at most a sixteenth.
    """
    for deployment, rows in tried.items():
        maximum = row.concurrency if (row := _most_users(rows)) else MAX_INT32
        too_many = min((row.concurrency for row in rows if row.concurrency > maximum), default=0)
        if too_many - maximum > max(maximum // 16, 1):
            users = (maximum + too_many) // 2
            yield ReplicaPlan(Setup(deployment, users), 1, users)


def _load_refusal(decoder: Decoder, deployment: Deployment, device: Gpu, library: str) -> InputError | None:
    """Return the reason why a framework does not load the model in this way; None if it does.

    Source of the limits of TensorRT-LLM: its ``enable_attention_dp``, and "WFP4A16 MoE is unsupported on SM89".
    Groups of integer weights limit dense products only, since vLLM's ``moe_wna16`` halves the groups of experts.
    """
    tensor, ranks = deployment.tensor_parallel, deployment.ranks
    if library == "trtllm":
        has_mxfp4 = decoder.main_dtype(deployment.dtype) == "w4a16_mxfp4"
        reasons = {"mxfp4": has_mxfp4 and device.compute_capability < 9, "attention_groups": 1 < tensor < ranks}
        return next((refusal(name) for name, holds in reasons.items() if holds), None)
    checkpoint, kinds = arithmetic_of(decoder, deployment.dtype)
    parts = max(ranks // deployment.expert_parallel, 1)
    blocks = {"fp8_block": ("fp8 blocks", FP8_BLOCK)}
    if group := decoder.checkpoint.quantisation.group:
        blocks |= {dtype: (f"{dtype} groups", group) for dtype in GROUPED_TYPES}
    routed = {"experts": (decoder.expert_inter, parts), "shared.gate_up_proj": (decoder.shared_inter, tensor)}
    for layer, kind in enumerate(kinds):
        products = {"gate_up_proj": (kind.inter, tensor)} | (routed if kind.routes else {})
        for name, (width, parts) in products.items():
            dtype = checkpoint.product_dtype(name, layer)
            kind_of_blocks, block = blocks.get(dtype, ("", 1))
            if block > 1 and width % (parts * block) and not (name == "experts" and dtype in GROUPED_TYPES):
                product_name = name.replace("gate_up", "down") if dtype in GROUPED_TYPES else name
                texts = {"name": product_name, "width": width, "parts": parts}
                return refusal("blocks", **texts, blocks=kind_of_blocks, block=block)
    return None


def _remarks(device: Gpu, steps: ServerSteps) -> Iterator[str]:
    """Yield the notes about the kernels of a framework in a configuration."""
    if steps.floored_problems:
        yield f"{floor_note(steps.floored_problems)}; other frameworks' times replace them"
    if steps.unmeasured_share > MAX_UNMEASURED_SHARE:
        share = f"over {100 * MAX_UNMEASURED_SHARE:.0f} % of a decode step"
        kernels = ", ".join(steps.unmeasured_kernels) or "without matrix units"
        yield f"unmeasured kernels, {share} ({kernels}), are timed from other GPUs, with errors of held-out GPUs"
    if steps.all_reduce_source and not device.link_gbs:
        is_measured = steps.all_reduce_source not in SOURCES_WITHOUT_GPU_DATA
        source = "measurements of one machine" if is_measured else "other GPUs with peer access"
        unknown = "" if is_measured else "; boards without it (GeForce) were not measured, and may take longer"
        yield f"the only known link is PCIe; all-reduce times are from {source}; machines differ{unknown}"


def _rank(row: ServerRow, targets: Targets) -> tuple[float, ...]:
    """Return the sort key of a row.

    Rows that meet the targets come first, by cost; rows without a price come last among them. Other rows that fit
    follow, by distance to the targets. Rows that do not fit come last, by memory.
    """
    if not row.fits:
        return 2, row.memory_gib, row.gpus
    cost = row.usd_per_million_tokens is None, row.cost(row.tokens_per_s_per_gpu)
    distances = [row.users_per_slot, *targets.target_ratios(row.ttft_ms, row.tpot_ms).values()]
    return (0, *cost) if row.meets else (1, max(distances), *cost)


def _front_first(rows: Sequence[ServerRow]) -> list[ServerRow]:
    """Return the rows with Pareto-optimal ones (speed and cost) of each GPU first, the slowest and cheapest first.

    They are about `MAX_ROWS` of all GPUs. Rows with users that wait for memory are not among them, unless a GPU has no
    others.
    """
    names = dict.fromkeys(row.gpu for row in rows if row.fits)
    displayed_first: list[ServerRow] = []
    for name in names:
        fitting = [row for row in rows if row.fits and row.gpu == name]
        served = [row for row in fitting if row.bound != "memory"] or fitting
        front = pareto(served, lambda row: 1 / row.cost(row.tokens_per_s_per_gpu))
        displayed_first += front[:: ceil_div(len(front), MAX_ROWS // len(names) or 1)]
    return [*displayed_first, *(row for row in rows if row not in displayed_first)]
