"""What to buy and how to run it: the search over GPUs, frameworks, parallelism and types for a model's server."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, product
from math import ceil, floor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from surrogate.bundled import NETWORKS
from surrogate.features.elementwise import ceil_div
from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu
from surrogate.features.gpu import gpu as gpu_named
from surrogate.features.problem import ELEMENTS, QUANTISED
from surrogate.features.whole import MAX_INT32, whole
from surrogate.network.deployment import DOMAINS, NODE, ROUTING, Deployment, main_dtype
from surrogate.network.language import Decoder, read_decoder
from surrogate.network.network import FRAMEWORKS
from surrogate.network.predict import frameworks_on
from surrogate.network.serving import Load, ServerKernels, ServerSteps, Setup, server_steps, shipped_laws
from surrogate.report.tables import Format, Shown, Table, significant

if TYPE_CHECKING:
    import pandas as pd

USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of users of a replica that are tried where a caller names none."""
FORMATS: Mapping[str, Format] = dict.fromkeys(
    ("TTFT, ms", "TPOT, ms", "tokens/s per GPU"),
    lambda ends: f"{significant(ends[0])} [{significant(ends[1], floor)}, {significant(ends[2], ceil)}]",
)
"""How columns with 90 % intervals read."""
SHOWN = 12
"""Configurations that people see."""
COUNTS = (
    "concurrency", "tensor_parallel", "expert_parallel", "pipeline_parallel", "attention_parallel", "gpus",
)  # fmt: skip
"""Fields of `Choices` that are whole numbers."""
MAX_PLANS = 20_000
UNMEASURED_WIDTH = 0.1
"""Width in log time that kernels add which were not measured on the GPU, from which a note says so."""
MILLION = 1e6


class Plan(NamedTuple):
    """A replica's setup, the number of replicas, and the users of all of them."""

    setup: Setup
    replicas: int
    users: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServerRow(Shown):
    """A configuration: GPUs in all, of which each replica takes a part, and what it does under the load.

    Times in ms and tokens of output per second with their 90 % intervals; ``concurrency`` users on all replicas
    together; ``memory_gib`` on each GPU; ``meets``: it fits, and keeps the targets; ``usd_per_million_tokens`` of
    output, where a price is known.
    """

    gpu: str
    library: str
    gpus: int
    replicas: int
    tensor_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    attention_parallel: int
    dtype: str
    kv_dtype: str
    concurrency: int
    ttft_ms: float
    ttft_low_ms: float
    ttft_high_ms: float
    tpot_ms: float
    tpot_low_ms: float
    tpot_high_ms: float
    tokens_per_s_per_gpu: float
    tokens_per_s_per_gpu_low: float
    tokens_per_s_per_gpu_high: float
    tokens_per_s_per_user: float
    usd_per_million_tokens: float | None
    memory_gib: float
    fits: bool
    meets: bool
    bound: str

    def table(self) -> Table:
        """The configuration as the one row of a table."""
        return Table([_shown(self, "")], FORMATS)

    def cost(self, tokens_per_s_per_gpu: float) -> float:
        """What the search keeps small: a token's price at such a rate or, where no price is known, its GPU time."""
        usd = self.usd_per_million_tokens
        return 1 / tokens_per_s_per_gpu if usd is None else usd * self.tokens_per_s_per_gpu / tokens_per_s_per_gpu


@dataclass(frozen=True, slots=True, repr=False)
class Serving(Shown):
    """Configurations, those that meet the targets first, each part by tokens a second and GPU, or by price."""

    model: str
    load: Load
    rows: tuple[ServerRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> ServerRow | None:
        """The first that meets the targets."""
        return self.rows[0] if self.rows and self.rows[0].meets else None

    @property
    def rivals(self) -> tuple[ServerRow, ...]:
        """Those that meet the targets and may be as good as the best: it lies within their 90 % intervals."""
        if self.best is None:
            return ()
        least = self.best.cost(self.best.tokens_per_s_per_gpu)
        is_priced = self.best.usd_per_million_tokens is not None
        return tuple(
            row for row in self.rows[1:]
            if row.meets and row.cost(row.tokens_per_s_per_gpu_high) <= least
            and (row.usd_per_million_tokens is not None) == is_priced
        )  # fmt: skip

    def table(self, most: int = SHOWN) -> Table:
        """The best configurations for people, ``most`` of them."""
        some_miss = any(row.fits and not row.meets for row in self.rows)
        marks = ["meets the targets" if some_miss and row.meets else "" for row in self.rows[:most]]
        if self.best:
            rivals = f", within the intervals of {len(self.rivals)} others" if self.rivals else ""
            marks[0] = f"◀ best{rivals}"
        shown = [_shown(row, mark) for row, mark in zip(self.rows, marks, strict=False)]
        more = [f"{len(self.rows) - most} further configurations: --csv or --json"] if len(self.rows) > most else []
        title = f"{self.model}, {self.load.input} + {self.load.output} tokens"
        return Table(shown, FORMATS, title, notes=[*more, *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: ``rows``, ``best``, the number of its ``rivals``, and ``notes``."""
        rows = [asdict(row) for row in self.rows]
        best = rows[0] if self.best else None
        return {"rows": rows, "best": best, "rivals": len(self.rivals), "notes": list(self.notes)}

    def to_frame(self) -> "pd.DataFrame":
        """A row per configuration."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What is searched: each field one or several values, or nothing where the search finds them itself.

    Without ``dtypes`` the checkpoint runs as it is, as servers run it.
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
    gpus: int = NODE

    def several(self, name: str) -> Sequence[Any]:
        """The values of a field, also of one that was given alone."""
        values = getattr(self, name)
        return (values,) if isinstance(values, int | str) else tuple(values)

    def check(self) -> None:
        """Raise `InputError` for what is no count and no known type or framework."""
        for name in COUNTS:
            for number in self.several(name):
                whole("seer serving", f"--{name.replace('_', '-')}", number, most=MAX_INT32)
        for kind, field, known in (("library", "libraries", FRAMEWORKS), ("dtype", "dtypes", ELEMENTS)):
            for name in self.several(field):
                if name not in known:
                    raise InputError(f"{kind} {name!r} is unknown; known: {', '.join(known)}")

    def plans(self, decoder: Decoder, device: Gpu) -> Iterator[Plan]:
        """Every configuration of the search on a GPU."""
        node = DOMAINS.get(device.name, NODE)
        powers = [2**power for power in range(min(self.gpus, node).bit_length())]
        pipelines, dtypes, kv_dtypes = map(self.several, ("pipeline_parallel", "dtypes", "kv_dtypes"))
        concurrency = self.several("concurrency")
        for tensor, data in self._groups(decoder, powers):
            experts = self.several("expert_parallel") or ((1, tensor * data) if decoder.experts else (1,))
            ways = product(dict.fromkeys(experts), pipelines or (1,), dtypes or (None,), kv_dtypes or (None,))
            for expert, pipeline, dtype, kv_dtype in ways:
                deployment = Deployment(
                    tensor_parallel=tensor, data_parallel=data, expert_parallel=expert, pipeline_parallel=pipeline,
                    dtype=dtype, kv_dtype=kv_dtype, routing=self.routing, node=node,
                )  # fmt: skip
                for replicas in powers if concurrency else (1,):
                    if replicas * deployment.gpus > self.gpus:
                        continue
                    for users in concurrency or USERS:
                        each = ceil_div(users, replicas)
                        if each >= data and (replicas == 1 or users >= replicas):
                            yield Plan(Setup(deployment, each), replicas, users)

    def _groups(self, decoder: Decoder, powers: Sequence[int]) -> list[tuple[int, int]]:
        """Ways of tensor parallelism and of attention over requests of one's own, which pays for a latent cache."""
        asked, attention = self.several("tensor_parallel"), self.several("attention_parallel")
        tensor = asked or [way for way in powers if decoder.heads % way == 0]
        if attention or asked or not (decoder.family.latent and decoder.experts):
            return list(product(tensor, attention or (1,)))
        return [*((way, 1) for way in tensor), *((1, way) for way in powers[1:])]

    def note(self, decoder: Decoder) -> str:
        """What a reader must know of the weights' type, "" where nothing."""
        own = main_dtype(decoder, None)
        if own in QUANTISED:
            return ""
        asked = [name for name in self.several("dtypes") if name in QUANTISED]
        if asked:
            return f"{', '.join(asked)}: weights quantised from the checkpoint's {own}; their quality is not judged"
        if self.several("dtypes"):
            return ""
        return f"the checkpoint as it is, in {own}; --dtype {own},fp8 also tries quantised weights"


class Targets(NamedTuple):
    """The longest times in ms that a caller takes; None: any."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def met(self, ttft_ms: float, tpot_ms: float) -> bool:
        """Whether times keep them."""
        pairs = ((ttft_ms, self.ttft_ms), (tpot_ms, self.tpot_ms))
        return all(most is None or time <= most for time, most in pairs)


def serve(
    config: str | Path, *, gpu: str, input: int, output: int, compare_gpus: Sequence[str] = (),
    ttft_ms: float | None = None, tpot_ms: float | None = None, price: float | Mapping[str, float] | None = None,
    choices: Choices | None = None,
) -> Serving:  # fmt: skip
    """The servers of the model in a ``config.json`` (or of one that ships, by name) on the GPUs that are named.

    ``input`` and ``output`` are a user's tokens; ``ttft_ms`` and ``tpot_ms`` the targets; ``price`` in US dollars per
    GPU and hour, of all or by the GPU's name; ``choices`` narrow the search. Raises `InputError` for what cannot be
    read or is unknown, and where nothing can be said.
    """
    choices = choices or Choices()
    choices.check()
    sizes = {"--input": input, "--output": output}
    load = Load(*(whole("seer serving", name, size, most=MAX_INT32) for name, size in sizes.items()))
    path = Path(config)
    decoder = read_decoder(path if path.exists() else NETWORKS.get(str(config), path))
    devices = list({device.name: device for device in map(gpu_named, (gpu, *compare_gpus))}.values())
    prices = price if isinstance(price, Mapping) else {each.name: price for each in devices if price is not None}
    prices = {gpu_named(name).name: usd for name, usd in prices.items()}
    targets = Targets(ttft_ms, tpot_ms)
    rows: list[ServerRow] = []
    decoder.require_context(load.input + load.output)
    notes = dict.fromkeys(filter(None, [choices.note(decoder)]))
    refused: dict[str, None] = {}
    for device in devices:
        kernels = ServerKernels(device)
        for library in choices.several("libraries") or frameworks_on(device):
            try:
                planned = _planned(choices, decoder, device, library)
                answers = server_steps(decoder, load, kernels, library, [plan.setup for plan in planned])
            except InputError as error:
                refused[f"{device.name}, {library}: {error}"] = None
                continue
            for plan in planned:
                answer = answers[plan.setup]
                if isinstance(answer, InputError):
                    refused[f"{device.name}, {library}: {answer}"] = None
                    continue
                rows.append(_row(decoder, device, library, plan, answer, targets, prices.get(device.name)))
                notes |= dict.fromkeys(_notes(device, library, plan.setup, answer))
    if not rows:
        raise InputError(next(iter(refused), "no configuration has so few GPUs or users; give more of them"))
    rows.sort(key=_rank)
    if rows[0].meets and not targets.met(rows[0].ttft_high_ms, rows[0].tpot_high_ms):
        notes["the best configuration's 90 % intervals reach beyond the targets"] = None
    return Serving(decoder.name, load, tuple(rows), (*notes, *refused))


def _planned(choices: Choices, decoder: Decoder, device: Gpu, library: str) -> list[Plan]:
    if library not in frameworks_on(device):
        raise InputError(f"{library} does not run on {device.name}")
    planned = list(islice(choices.plans(decoder, device), MAX_PLANS + 1))
    if len(planned) > MAX_PLANS:
        raise InputError(f"over {MAX_PLANS} configurations; name fewer of what is searched")
    return planned


def _row(
    decoder: Decoder, device: Gpu, library: str, plan: Plan, steps: ServerSteps, targets: Targets, price: float | None
) -> ServerRow:
    how = plan.setup.deployment
    first, further = steps.intervals(shipped_laws().laws[library])
    gpus = plan.replicas * how.gpus
    request_ms = (start + (steps.load.output - 1) * token for start, token in zip(first, further, strict=True))
    rate, high, low = (1e3 * plan.users * steps.load.output / ms / gpus for ms in request_ms)
    return ServerRow(
        gpu=device.name, library=library, gpus=gpus, replicas=plan.replicas, tensor_parallel=how.tensor_parallel,
        pipeline_parallel=how.pipeline_parallel, expert_parallel=how.expert_parallel,
        attention_parallel=how.data_parallel, dtype=main_dtype(decoder, how.dtype),
        kv_dtype=how.kv_dtype or decoder.checkpoint.kv_dtype or decoder.dtype,
        concurrency=plan.users, ttft_ms=first.time, ttft_low_ms=first.low, ttft_high_ms=first.high,
        tpot_ms=further.time, tpot_low_ms=further.low, tpot_high_ms=further.high, tokens_per_s_per_gpu=rate,
        tokens_per_s_per_gpu_low=low, tokens_per_s_per_gpu_high=high, tokens_per_s_per_user=1e3 / further.time,
        usd_per_million_tokens=None if price is None else price / 3600 / rate * MILLION,
        memory_gib=steps.memory_bytes / 2**30, fits=steps.fits,
        meets=steps.fits and targets.met(first.time, further.time), bound=steps.bound,
    )  # fmt: skip


def _notes(device: Gpu, library: str, setup: Setup, steps: ServerSteps) -> Iterator[str]:
    """What a reader must know of a configuration."""
    yield from setup.deployment.notes()
    if steps.floors:
        kernels = ", ".join(steps.floors)
        yield f"{device.name}, {library}: its table of {kernels} is a harness's floor; other frameworks' stand in"
    if steps.half_width > UNMEASURED_WIDTH:
        yield f"{device.name}, {library}: kernels that nobody measured there go by specification, with wide intervals"


def _rank(row: ServerRow) -> tuple[bool, bool, bool, float]:
    """Those that meet the targets first, then those that fit, then those with a price, each at the least cost first."""
    return not row.meets, not row.fits, row.usd_per_million_tokens is None, row.cost(row.tokens_per_s_per_gpu)


def _shown(row: ServerRow, mark: str) -> dict[str, Any]:
    """A row of the table for people."""
    ways = {
        "TP": row.tensor_parallel,
        "DP": row.attention_parallel,
        "EP": row.expert_parallel,
        "PP": row.pipeline_parallel,
    }
    split = " ".join(f"{name}{ways[name]}" for name in ways if ways[name] > 1 or name == "TP")
    shown: dict[str, Any] = {
        "GPUs": f"{row.gpus} {row.gpu}", "with": f"{row.replicas} × {split}" if row.replicas > 1 else split,
        "framework": row.library, "dtype": row.dtype, "users in all": row.concurrency,
        "TTFT, ms": (row.ttft_ms, row.ttft_low_ms, row.ttft_high_ms),
        "TPOT, ms": (row.tpot_ms, row.tpot_low_ms, row.tpot_high_ms),
        "tokens/s per GPU": (row.tokens_per_s_per_gpu, row.tokens_per_s_per_gpu_low, row.tokens_per_s_per_gpu_high),
        "tokens/s per user": round(row.tokens_per_s_per_user, 1),
    }  # fmt: skip
    if row.usd_per_million_tokens is not None:
        shown["$ per M tokens"] = round(row.usd_per_million_tokens, 3)
    shown |= {"GiB per GPU": round(row.memory_gib, 1), "bound by": row.bound}
    return shown | {"": mark if row.fits else "does not fit"}
