"""What to buy and how to run it: the search over GPUs, frameworks, parallelism and types for a model's server."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from math import ceil, floor, inf, isnan, log2, nan
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from surrogate.features.elementwise import MAX_INT32, ceil_div, whole
from surrogate.features.errors import InputError, require_known
from surrogate.features.gpu import Gpu
from surrogate.features.gpu import gpu as gpu_named
from surrogate.network.language import NODE, Decoder, Deployment, main_dtype, read_decoder
from surrogate.network.language_step import GAP_US
from surrogate.network.predict import floor_note, frameworks_on
from surrogate.network.result import UNMEASURED
from surrogate.network.serving import (
    Interval,
    Load,
    ServerKernels,
    ServerSteps,
    Setup,
    room_bytes,
    server_steps,
    shipped_laws,
)
from surrogate.network.serving_choices import USERS, Choices, Plan
from surrogate.report.tables import UNKNOWN, Format, Shown, Table, significant

if TYPE_CHECKING:
    import pandas as pd


def _interval(ends: tuple[float, float, float]) -> str:
    time, low, high = ends
    return UNKNOWN if isnan(time) else f"{significant(time)} [{significant(low, floor)}, {significant(high, ceil)}]"


FORMATS: Mapping[str, Format] = dict.fromkeys(("TTFT, ms", "TPOT, ms", "tokens/s per GPU"), _interval)
"""How columns with 90 % intervals read."""
SHOWN = 12
"""Configurations that people see."""
WAYS = {
    "TP": ("tensor_parallel", "GPUs that share every layer"),
    "EP": ("expert_parallel", "GPUs with different experts (without EP all share each)"),
    "DP": ("attention_parallel", "groups of GPUs that attend to requests of their own"),
    "PP": ("pipeline_parallel", "stages of layers"),
}
"""Short name of a way to share a model → its field of a `ServerRow`, and what it counts."""
MAX_PLANS = 20_000
UNMEASURED_WIDTH = 0.1
"""Width in log time that kernels add which were not measured on the GPU, from which a note says so."""
FAR = 100
"""Times a target that the nearest configuration takes, from which the target may have been meant in seconds."""
MILLION = 1e6
NO_TARGETS = (
    "without --ttft or --tpot none is the best: those shown first trade the speed of a user for throughput, or price,"
    " and no other beats them in both"
)
SEARCHED = (
    f"users of one replica: powers of two up to {USERS[-1]}, and the most that keep the targets, to a sixteenth;"
    " --concurrency names them"
)
FASTEST = (
    "each product takes the fastest kernel that any framework has on the GPU, without gaps, as fits measured servers;"
    f" `seer network` takes one framework's own kernels, {GAP_US:g} µs apart, so that its steps are longer"
)


class Targets(NamedTuple):
    """The longest times in ms that a caller takes; None: any."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def shares(self, ttft_ms: float, tpot_ms: float) -> dict[str, float]:
        """Of each target, its name and the time over it."""
        pairs = (("TTFT", ttft_ms, self.ttft_ms), ("TPOT", tpot_ms, self.tpot_ms))
        return {name: time / most for name, time, most in pairs if most is not None}

    def met(self, ttft_ms: float, tpot_ms: float) -> bool:
        """Whether times keep them."""
        return all(share <= 1 for share in self.shares(ttft_ms, tpot_ms).values())


ANY = Targets()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServerRow(Shown):
    """A configuration: GPUs in all, of which each replica takes a part, and what it does under the load.

    Times in ms and tokens of output per second with their 90 % intervals, NaN where it does not fit or there is none;
    ``concurrency`` users on all replicas together, of whose requests ``running`` have a place in the cache at a time;
    ``memory_gib`` on each GPU; ``meets``: it fits, and keeps the
    targets; ``usd_per_million_tokens`` of output, where a price is known.
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
    running: int
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

    @property
    def split(self) -> str:
        """How a replica shares the model, as TP4 PP2."""
        ways = {name: getattr(self, field) for name, (field, _) in WAYS.items()}
        return " ".join(f"{name}{many}" for name, many in ways.items() if many > 1 or name == "TP")

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
    targets: Targets = ANY
    gpus: int = NODE
    """Most that the search took."""

    @property
    def best(self) -> ServerRow | None:
        """The first that meets the targets; without any, none is best."""
        return self.rows[0] if any(self.targets) and self.rows[0].meets else None

    @property
    def fits(self) -> bool:
        """Whether any configuration does."""
        return any(row.fits for row in self.rows)

    @property
    def verdict(self) -> str:
        """Why none is best, or what does better than one that may miss the targets; "" where one is that keeps them."""
        if self.best:
            return self._caution(self.best)
        if not self.fits:
            return f"nothing fits: {'; '.join(self._lacks())}"
        if not any(self.targets):
            return NO_TARGETS
        near = self.rows[0]
        reached = zip(("TTFT", "TPOT"), (near.ttft_ms, near.tpot_ms), self.targets, strict=True)
        said = " and ".join(f"{name} {significant(ms)} of {most:g} ms" for name, ms, most in reached if most)
        far = max(self.targets.shares(near.ttft_ms, near.tpot_ms).values()) > FAR
        which = "both" if all(self.targets) else "the"
        return (
            f"no configuration keeps {which} targets with at most {self.gpus} GPUs; the nearest, {named(near)}, has"
            f" {said}{'; targets are in ms' if far else ''}"
        )

    def _caution(self, best: ServerRow) -> str:
        sure = next(filter(self._is_sure, self.rows), None)
        if sure is best:
            return ""
        rate = f", at {significant(sure.tokens_per_s_per_gpu)} tokens/s per GPU" if sure else ""
        keeps = f"{named(sure) if sure else 'no configuration'} keeps them with its whole intervals{rate}"
        return f"the best may miss the targets, since they lie within its 90 % intervals; {keeps}"

    def _is_sure(self, row: ServerRow) -> bool:
        """Whether it keeps the targets at the upper ends of its intervals."""
        return row.meets and self.targets.met(row.ttft_high_ms, row.tpot_high_ms)

    def _lacks(self) -> Iterator[str]:
        """A line for each GPU and type in which some configurations do not fit: what they need, and what fits."""
        groups: dict[tuple[str, str, str], list[ServerRow]] = {}
        for row in self.rows:
            groups.setdefault((row.gpu, row.dtype, row.kv_dtype), []).append(row)
        for (name, dtype, kv_dtype), rows in groups.items():
            small = sorted((row for row in rows if not row.fits), key=lambda row: row.memory_gib)
            if not small:
                continue
            least = small[0]
            room = room_bytes(gpu_named(name)) / 2**30
            gpus = min((row.gpus // row.replicas for row in rows if row.fits), default=0)
            remedy = f"from {gpus} GPUs on it fits"
            if not gpus:
                gpus = 2 ** ceil(log2(least.memory_gib * least.gpus / room))
                option = "--gpus" if gpus > self.gpus else "--tensor-parallel"
                remedy = f"try {option} {gpus}, a smaller --dtype, or another --gpu"
            others = len({row.split for row in small}) - 1
            more = f", {others} other way{'s' * (others > 1)} as much or more" if others else ""
            yield (
                f"{least.split} does not fit {name} in {dtype}, cache {kv_dtype}: it needs {least.memory_gib:.1f} of"
                f" {room:.1f} GiB on each{more}; {remedy}"
            )

    @property
    def rivals(self) -> tuple[ServerRow, ...]:
        """Those that meet the targets and may be as good as the best: it lies within their 90 % intervals."""
        if self.best is None:
            return ()
        least = self.best.cost(self.best.tokens_per_s_per_gpu)
        is_priced = self.best.usd_per_million_tokens is not None
        return tuple(
            row
            for row in self.rows[1:]
            if row.meets
            and row.cost(row.tokens_per_s_per_gpu_high) <= least
            and (row.usd_per_million_tokens is not None) == is_priced
        )

    def table(self, most: int = SHOWN) -> Table:
        """The best configurations for people, ``most`` of them, before the others the best of each GPU."""
        fitting = [row for row in self.rows if row.fits]
        first = {row.gpu: row for row in reversed(fitting)}
        rows = sorted(fitting, key=lambda row: row is not first[row.gpu]) or self.rows[:1]
        leading = [] if len(first) < 2 else [row for row in first.values() if row is not self.best]
        shown = [_shown(row, self._mark(row, row in leading)) for row in rows[:most]]
        more = [f"{len(rows) - most} further configurations: --csv or --json"] if len(rows) > most else []
        lacks = self._lacks() if fitting else ()
        used = {name for row in rows[:most] for name in WAYS if name in row.split}
        legend = "; ".join(f"{name}: {said}" for name, (_, said) in WAYS.items() if name in used)
        title = f"{self.model}, {self.load.input} + {self.load.output} tokens"
        return Table(shown, FORMATS, title, notes=[*filter(None, [self.verdict]), *more, legend, *lacks, *self.notes])

    def _mark(self, row: ServerRow, leads: bool) -> str:
        """What stands behind a configuration: whether it keeps the targets, up to where its intervals reach."""
        if not row.fits:
            return "does not fit"
        if not any(self.targets):
            return ""
        shares = self.targets.shares(row.ttft_ms, row.tpot_ms)
        marks = [f"{name} {share:.2f}× its target" for name, share in shares.items() if share > 1]
        if row is self.best:
            rivals = f"{self.others} may be as good" if self.rivals else ""
            marks = ["◀ best", "" if self._is_sure(row) else "may miss the targets", rivals]
        elif row.meets:
            marks = ["meets the targets" if self._is_sure(row) else "may meet the targets"]
        return ", ".join(filter(None, [f"best on {row.gpu}" if leads else "", *marks]))

    @property
    def others(self) -> str:
        """The number of `rivals` in words."""
        return f"{len(self.rivals)} other{'s' * (len(self.rivals) != 1)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: ``rows``, ``best``, the number of its ``rivals``, ``verdict``, and ``notes``."""
        rows = [{name: None if value != value else value for name, value in asdict(row).items()} for row in self.rows]
        said = {"rivals": len(self.rivals), "verdict": self.verdict, "notes": list(self.notes)}
        return {"rows": rows, "best": rows[0] if self.best else None, **said}

    def to_frame(self) -> "pd.DataFrame":
        """A row per configuration."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])


CONDITIONS = ("compare_gpus", "ttft_ms", "tpot_ms", "price", "choices")
"""Parameters of `serve` beside the fields of `Choices`."""


def serve(
    config: str | Path | Mapping[str, object],
    *,
    gpu: str,
    input: int,
    output: int,
    compare_gpus: Sequence[str] = (),
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    price: float | Mapping[str, float] | None = None,
    choices: Choices | None = None,
    **searched: Any,
) -> Serving:
    """The servers of the model in a ``config.json`` (its folder, its content, or the name of one that ships) on GPUs.

    ``input`` and ``output`` are a user's tokens; ``ttft_ms`` and ``tpot_ms`` the targets; ``price`` in US dollars per
    GPU and hour, of all or by the GPU's name; ``choices`` narrow the search, and so do their fields by name, as in
    ``concurrency=50``. Raises `InputError` for what cannot be read or is unknown, and where nothing can be said.
    """
    choices = choices or Choices()
    if not isinstance(choices, Choices):
        raise InputError(f"choices is a {type(choices).__name__}; give a surrogate.network.Choices(concurrency=50, …)")
    for name in searched:
        require_known("parameter", name, (*CONDITIONS, *Choices.__slots__))
    choices = replace(choices, **{name: value for name, value in searched.items() if value is not None})
    choices.check()
    sizes = {"--input": input, "--output": output}
    load = Load(*(whole("seer serving", name, size, most=MAX_INT32) for name, size in sizes.items()))
    targets = Targets(_positive("--ttft", ttft_ms), _positive("--tpot", tpot_ms))
    if output == 1 and tpot_ms is not None:
        raise InputError("--tpot: an answer of one token has no further one; leave it out, or give a longer --output")
    decoder = read_decoder(config)
    devices = _devices(gpu, compare_gpus)
    prices = _prices(price, devices)
    rows: list[ServerRow] = []
    decoder.require_context(load.input + load.output)
    notes = dict.fromkeys((*decoder.notes, *choices.notes(decoder)))
    refused: dict[tuple[str, str], dict[str, None]] = {}  # GPU and reason → frameworks
    for device in devices:
        kernels = ServerKernels(device)
        if prices and device.name not in prices:
            notes[f"no price for {device.name}: its configurations come behind those with one"] = None
        for library in choices.several("libraries") or frameworks_on(device):
            narrowed, model, unpacks = choices.unpacked(decoder, device, library)
            tried: dict[Deployment, list[ServerRow]] = {}
            try:
                planned = _planned(narrowed, model, device, library)
                left_out = list(choices.left_out(planned))
                while planned:
                    answers = server_steps(model, load, kernels, library, [plan.setup for plan in planned])
                    for plan in planned:
                        answer = answers[plan.setup]
                        if isinstance(answer, InputError):
                            refused.setdefault((device.name, str(answer)), {})[library] = None
                            continue
                        row = _row(model, device, library, plan, answer, targets, prices.get(device.name))
                        tried.setdefault(plan.setup.deployment, []).append(row)
                        notes |= dict.fromkeys(_notes(device, library, plan.setup, answer))
                    planned = [] if choices.concurrency else list(_between(tried))
            except InputError as error:
                refused.setdefault((device.name, str(error)), {})[library] = None
                continue
            notes |= dict.fromkeys((*filter(None, [unpacks]), *left_out))
            for tries in tried.values():
                most = _most(tries)
                rows += [row for row in tries if choices.concurrency or row.concurrency in USERS or row is most]
    reasons = [f"{name}, {', '.join(libraries)}: {reason}" for (name, reason), libraries in refused.items()]
    if not rows:
        raise InputError(reasons[0])
    rows.sort(key=partial(_rank, targets=targets))
    if not any(targets):
        rows = _front_first(rows)
    elif not choices.concurrency:
        notes[SEARCHED] = None
    return Serving(decoder.name, load, tuple(rows), (*notes, FASTEST, *reasons), targets, choices.gpus)


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


def _positive(name: str, value: object, most: float = inf) -> float | None:
    """A number above 0, or None; `InputError` for anything else."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) <= most:
        raise InputError(f"seer serving: {name} is {repr(value)[:40]}; a number above 0, up to {most:g}, is needed")
    return float(value)


def _planned(choices: Choices, decoder: Decoder, device: Gpu, library: str) -> list[Plan]:
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


def _between(tried: Mapping[Deployment, Sequence[ServerRow]]) -> Iterator[Plan]:
    """Plans half-way between the most users with whom a replica keeps the targets and the fewest with whom it does not,
    unless they lie within a sixteenth."""
    for how, rows in tried.items():
        most = row.concurrency if (row := _most(rows)) else MAX_INT32
        more = min((row.concurrency for row in rows if row.concurrency > most), default=0)
        if more - most > max(most // 16, 1):
            users = (most + more) // 2
            yield Plan(Setup(how, users), 1, users)


def _row(
    decoder: Decoder, device: Gpu, library: str, plan: Plan, steps: ServerSteps, targets: Targets, price: float | None
) -> ServerRow:
    how = plan.setup.deployment
    unknown = Interval(nan, nan, nan)
    first, further, held = steps.intervals(shipped_laws().laws[library]) if steps.fits else (unknown,) * 3
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
        yield f"{device.name}, {library}: kernels that nobody measured there go by specification, with wide intervals"
    if steps.sums and not device.link_gbs:
        source = "by its data sheet" if steps.sums in UNMEASURED else "as one machine was measured"
        yield f"{device.name}: no link but PCIe is known; sums over its GPUs are timed {source}; machines differ much"


def _rank(row: ServerRow, targets: Targets) -> tuple[float, ...]:
    """Those that meet the targets, at the least cost first, those without a price last; then the others that fit,
    the closest to the targets first; then the rest, the one that lacks the least memory first."""
    if not row.fits:
        return 2, row.memory_gib, row.gpus
    cost = row.usd_per_million_tokens is None, row.cost(row.tokens_per_s_per_gpu)
    return (0, *cost) if row.meets else (1, max(targets.shares(row.ttft_ms, row.tpot_ms).values()), *cost)


def pareto(
    rows: Sequence[ServerRow], worth: Callable[[ServerRow], float] = lambda row: row.tokens_per_s_per_gpu
) -> list[ServerRow]:
    """The rows that no other beats both in tokens a second and user and in ``worth``, slowest first."""
    front: list[ServerRow] = []
    for row in sorted(rows, key=lambda row: (-row.tokens_per_s_per_user, -worth(row))):
        if not front or worth(row) > worth(front[-1]):
            front.append(row)
    return front[::-1]


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


def _shown(row: ServerRow, mark: str) -> dict[str, Any]:
    """A row of the table for people."""
    shown: dict[str, Any] = {
        "GPUs": f"{row.gpus} {row.gpu}",
        "with": _replicas(row),
        "framework": row.library,
        "dtype": row.dtype,
        "cache": row.kv_dtype,
        "users in all": row.concurrency,
        "TTFT, ms": (row.ttft_ms, row.ttft_low_ms, row.ttft_high_ms),
        "TPOT, ms": (row.tpot_ms, row.tpot_low_ms, row.tpot_high_ms),
        "tokens/s per GPU": (row.tokens_per_s_per_gpu, row.tokens_per_s_per_gpu_low, row.tokens_per_s_per_gpu_high),
        "tokens/s per user": round(row.tokens_per_s_per_user, 1),
    }
    if row.usd_per_million_tokens is not None:
        shown["$ per M output tokens"] = round(row.usd_per_million_tokens, 3)
    return shown | {"GiB per GPU": round(row.memory_gib, 1), "bound by": row.bound, "": mark}


def _replicas(row: ServerRow) -> str:
    return f"{row.replicas} × {row.split}" if row.replicas > 1 else row.split


def named(row: ServerRow) -> str:
    """A configuration in a sentence."""
    types = f"{row.dtype} with the cache in {row.kv_dtype}"
    return f"{row.gpus} {row.gpu} as {_replicas(row)} by {row.library} in {types} for {row.concurrency} users"
