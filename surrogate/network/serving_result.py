"""What a search for servers found: configurations, the best one, what fits, and all of it as a table and a page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, floor, isnan, log2
from typing import TYPE_CHECKING, Any, NamedTuple

from surrogate.features.gpu import gpu as gpu_named
from surrogate.network.language import NVLINK_GPUS
from surrogate.network.serving import Load, room_bytes
from surrogate.report.tables import UNKNOWN, Format, Table, TableResult, significant

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 12
"""Configurations that people see."""
WAYS = {
    "TP": ("tensor_parallel", "GPUs that share every layer"),
    "EP": ("expert_parallel", "GPUs with different experts (without EP all share each)"),
    "DP": ("attention_parallel", "groups of GPUs that attend to requests of their own"),
    "PP": ("pipeline_parallel", "stages of layers"),
}
"""Short name of a way to share a model → its field of a `ServerRow`, and what it counts."""
FAR = 100
"""Times a target that the nearest configuration takes, from which the target may have been meant in seconds."""
NO_TARGETS = (
    "without --ttft or --tpot none is the best: those shown first trade the speed of a user for throughput, or price,"
    " and no other beats them in both"
)
FRONT = (
    "Each dot is a configuration that fits; the line joins those of a GPU that no other of its own beats in both. To"
    " the right a user reads faster, upward a GPU serves more."
)
MAX_OPEN_ROWS = 25


def _interval_text(ends: tuple[float, float, float]) -> str:
    time, low, high = ends
    return UNKNOWN if isnan(time) else f"{significant(time)} [{significant(low, floor)}, {significant(high, ceil)}]"


FORMATS: Mapping[str, Format] = dict.fromkeys(("TTFT, ms", "TPOT, ms", "tokens/s per GPU"), _interval_text)
"""How columns with 90 % intervals read."""


class Targets(NamedTuple):
    """The longest times in ms that a caller takes; None: any."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def shares(self, ttft_ms: float, tpot_ms: float) -> dict[str, float]:
        """Of each target, its name and the time over it."""
        pairs = (("TTFT", ttft_ms, self.ttft_ms), ("TPOT", tpot_ms, self.tpot_ms))
        return {name: time / maximum for name, time, maximum in pairs if maximum is not None}

    def met(self, ttft_ms: float, tpot_ms: float) -> bool:
        """Whether times keep them."""
        return all(share <= 1 for share in self.shares(ttft_ms, tpot_ms).values())


ANY = Targets()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServerRow(TableResult):
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
class Serving(TableResult):
    """Configurations, those that meet the targets first, each part by tokens a second and GPU, or by price."""

    model: str
    load: Load
    rows: tuple[ServerRow, ...]
    notes: tuple[str, ...] = ()
    targets: Targets = ANY
    gpus: int = NVLINK_GPUS
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
        said = " and ".join(f"{name} {significant(ms)} of {maximum:g} ms" for name, ms, maximum in reached if maximum)
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
            minimum = small[0]
            room = room_bytes(gpu_named(name)) / 2**30
            gpus = min((row.gpus // row.replicas for row in rows if row.fits), default=0)
            remedy = f"from {gpus} GPUs on it fits"
            if not gpus:
                gpus = 2 ** ceil(log2(minimum.memory_gib * minimum.gpus / room))
                option = "--gpus" if gpus > self.gpus else "--tensor-parallel"
                remedy = f"try {option} {gpus}, a smaller --dtype, or another --gpu"
            others = len({row.split for row in small}) - 1
            more = f", {others} other way{'s' * (others > 1)} as much or more" if others else ""
            yield (
                f"{minimum.split} does not fit {name} in {dtype}, cache {kv_dtype}: it needs"
                f" {minimum.memory_gib:.1f} of"
                f" {room:.1f} GiB on each{more}; {remedy}"
            )

    @property
    def rivals(self) -> tuple[ServerRow, ...]:
        """Those that meet the targets and may be as good as the best: it lies within their 90 % intervals."""
        if self.best is None:
            return ()
        minimum = self.best.cost(self.best.tokens_per_s_per_gpu)
        is_priced = self.best.usd_per_million_tokens is not None
        return tuple(
            row
            for row in self.rows[1:]
            if row.meets
            and row.cost(row.tokens_per_s_per_gpu_high) <= minimum
            and (row.usd_per_million_tokens is not None) == is_priced
        )

    def table(self, maximum: int = SHOWN) -> Table:
        """The best configurations for people, ``maximum`` of them, before the others the best of each GPU."""
        fitting = [row for row in self.rows if row.fits]
        first = {row.gpu: row for row in reversed(fitting)}
        rows = sorted(fitting, key=lambda row: row is not first[row.gpu]) or self.rows[:1]
        leading = [] if len(first) < 2 else [row for row in first.values() if row is not self.best]
        shown = [_shown(row, self._mark(row, row in leading)) for row in rows[:maximum]]
        more = [f"{len(rows) - maximum} further configurations: --csv or --json"] if len(rows) > maximum else []
        lacks = self._lacks() if fitting else ()
        used = {name for row in rows[:maximum] for name in WAYS if name in row.split}
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


def pareto(
    rows: Sequence[ServerRow], worth: Callable[[ServerRow], float] = lambda row: row.tokens_per_s_per_gpu
) -> list[ServerRow]:
    """The rows that no other beats both in tokens a second and user and in ``worth``, slowest first."""
    front: list[ServerRow] = []
    for row in sorted(rows, key=lambda row: (-row.tokens_per_s_per_user, -worth(row))):
        if not front or worth(row) > worth(front[-1]):
            front.append(row)
    return front[::-1]


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


def pareto_figure(rows: Sequence[ServerRow]) -> str | None:
    """Tokens a second and GPU over tokens a second and user, a series for each GPU, as SVG; None where nothing fits."""
    fitting = [row for row in rows if row.fits]
    names = list(dict.fromkeys(row.gpu for row in fitting))
    if not names:
        return None
    from surrogate.report.style import blank, legend, looks, number_axes, svg, theme

    look = looks(names)
    with theme():
        figure, (axis,) = blank(3.2)
        lines = []
        for name in names:
            own = [row for row in fitting if row.gpu == name]
            points = [(row.tokens_per_s_per_user, row.tokens_per_s_per_gpu) for row in own]
            front = [(row.tokens_per_s_per_user, row.tokens_per_s_per_gpu) for row in pareto(own)]
            axis.plot(*zip(*points, strict=True), ".", color=look[name].colour, alpha=0.25, markersize=2)
            lines += axis.plot(*zip(*front, strict=True), **look[name].line, markersize=3)
        axis.set_xscale("log")
        axis.set_yscale("log")
        number_axes(axis.xaxis, axis.yaxis)
        axis.set(xlabel="tokens/s and user, log scale", ylabel="tokens/s and GPU, log scale")
        legend(figure, lines, names)
        return svg(figure)


def serving_page(serving: Serving) -> str:
    """The whole page; all texts are escaped."""
    from surrogate.report.page import Figure, Section, page

    best, drawn = serving.best, pareto_figure(serving.rows)
    table = serving.table(len(serving.rows))
    verdict = f"{serving.verdict[:1].upper()}{serving.verdict[1:]}." if serving.verdict else ""
    answer = verdict
    if best:
        further = f", {best.tpot_ms:.1f} ms per further one" if serving.load.output > 1 else ""
        answer = (
            f"{named(best)}: {best.ttft_ms:.0f} ms to the first token{further},"
            f" {best.tokens_per_s_per_gpu:.0f} tokens per second and GPU. {serving.others} may be as good. {verdict}"
        )
    sections = [
        Section("Speed for a user against throughput", [], [Figure("pareto", drawn, FRONT)] if drawn else []),
        Section("Configurations", [Table(table.records, table.formats, open_rows=MAX_OPEN_ROWS)]),
        Section("What to know", list(serving.notes)),
    ]
    return page(table.title, sections, kicker="servers of a language model", answer=answer)
