"""The result of a search for servers: configurations, the best one, and the notes, as a table and as a page."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, exp, floor, hypot, isnan, log, log2
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from surrogate.features.errors import naming
from surrogate.features.gpu import gpu as gpu_by_name
from surrogate.features.problem import ELEMENTS, QUANTISED
from surrogate.network.language import NVLINK_GPUS, Decoder, Deployment
from surrogate.network.memory import MAX_BATCHED_TOKENS, UTILISATION, usable_bytes
from surrogate.network.network import TEXTS
from surrogate.network.serving import Load
from surrogate.report.tables import UNKNOWN, Cell, Format, Table, TableResult, significant

if TYPE_CHECKING:
    import pandas as pd

MAX_ROWS = 12
"""Maximum rows of a printed table."""
PARALLELISM: Mapping[str, tuple[str, str]] = TEXTS["parallelism"]
"""Short name of a kind of parallelism → its field of a `ServerRow`, and the meaning of its number."""
MAX_TARGET_RATIO = 100
"""Ratio of the nearest configuration's time to a target above which the target may be in seconds."""
MAX_OPEN_ROWS = 25
PARAMETERS = {"dtype": "dtypes", "kv-dtype": "kv_dtypes", "library": "libraries"}
"""Option of ``seer serving`` → its parameter in Python, if that is not the option's name."""
SMALLER_TYPES = ("fp8", "int4_wo")
"""Types of weights that a note suggests if a model does not fit. AWQ and GPTQ are int4_wo."""


def _interval_text(ends: tuple[float, float, float]) -> str:
    time, low, high = ends
    return UNKNOWN if isnan(time) else f"{significant(time)} [{significant(low, floor)}, {significant(high, ceil)}]"


FORMATS: Mapping[str, Format] = dict.fromkeys(("TTFT, ms", "TPOT, ms", "tokens/s per GPU"), _interval_text)
"""Formats of the columns with 90 % intervals."""


class Targets(NamedTuple):
    """The longest allowed times in ms; None means no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def target_ratios(self, ttft_ms: float, tpot_ms: float) -> dict[str, float]:
        """Return target → time / target."""
        pairs = (("TTFT", ttft_ms, self.ttft_ms), ("TPOT", tpot_ms, self.tpot_ms))
        return {name: time / maximum for name, time, maximum in pairs if maximum is not None}

    def met(self, ttft_ms: float, tpot_ms: float) -> bool:
        """Return whether the times meet the targets."""
        return all(ratio <= 1 for ratio in self.target_ratios(ttft_ms, tpot_ms).values())


NO_LIMITS = Targets()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServerRow(TableResult):
    """A configuration and its predictions under the load.

    Times are in ms, and rates are output tokens per second; both have 90 % intervals. They are NaN if the configuration
    does not fit, or if answers have no second token.

    Attributes
    ----------
    gpus, replicas
        GPUs of all replicas together, and the number of replicas.
    concurrency, running
        Users of all replicas together, and the number of their requests that the cache holds at once.
    usd_per_million_tokens
        Price of a million output tokens; None without a price.
    memory_gib
        Memory on each GPU.
    meets
        True if the configuration fits and meets the targets; with targets, the cache must hold all users' requests.
    bound
        The largest part of TPOT, or "memory" if users wait for a slot in the cache.
    launch
        The command that starts a replica; "" if the configuration does not fit.
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
    launch: str = ""

    def table(self) -> Table:
        """Return a table with the configuration as its only row."""
        return Table([_table_row(self, "")], FORMATS)

    @property
    def split(self) -> str:
        """The parallelism of a replica, such as TP4 PP2."""
        degrees = {name: getattr(self, field) for name, (field, _) in PARALLELISM.items()}
        return " ".join(f"{name}{count}" for name, count in degrees.items() if count > 1 or name == "TP")

    @property
    def users_per_slot(self) -> float:
        """Users per request that the cache holds if users wait for memory, else 1."""
        return self.concurrency / self.running if self.fits and self.bound == "memory" else 1.0

    def cost(self, tokens_per_s_per_gpu: float) -> float:
        """Return the cost of a token at a rate: its price or, without a price, its GPU time."""
        usd = self.usd_per_million_tokens
        return 1 / tokens_per_s_per_gpu if usd is None else usd * self.tokens_per_s_per_gpu / tokens_per_s_per_gpu


@dataclass(frozen=True, slots=True, repr=False)
class Serving(TableResult):
    """Configurations, those that meet the targets first; each part is sorted by tokens per second and GPU, or by price.

    Attributes
    ----------
    model
        Name of the model.
    load
        Tokens of a prompt and of an answer.
    rows
        The configurations.
    notes
        Limits and assumptions of the answer.
    targets
        The longest allowed times in ms.
    """

    model: str
    load: Load
    rows: tuple[ServerRow, ...]
    notes: tuple[str, ...] = ()
    targets: Targets = NO_LIMITS
    gpus: int = NVLINK_GPUS
    """Maximum GPUs of the search."""

    __repr__ = naming(PARAMETERS)(TableResult.__repr__)
    _repr_html_ = naming(PARAMETERS)(TableResult._repr_html_)

    @property
    def best(self) -> ServerRow | None:
        """The first configuration that meets the targets; None if there are no targets or no such configuration."""
        return self.rows[0] if any(self.targets) and self.rows[0].meets else None

    @property
    def launch(self) -> str:
        """The command that starts a replica of the best configuration or, without targets, of the first one."""
        return self.rows[0].launch

    @property
    def fits(self) -> bool:
        """Whether any configuration fits."""
        return any(row.fits for row in self.rows)

    @property
    def verdict(self) -> str:
        """The reason why no configuration is the best, or a warning that the best may miss the targets; else ""."""
        if self.best:
            return self._target_warning(self.best)
        if not self.fits:
            return f"nothing fits: {'; '.join(self._misfit_lines())}"
        if not any(self.targets):
            return TEXTS["notes"]["no_targets"]
        nearest_row = self.rows[0]
        times = zip(("TTFT", "TPOT"), (nearest_row.ttft_ms, nearest_row.tpot_ms), self.targets, strict=True)
        ratios = " and ".join(f"{name} {significant(ms)} of {maximum:g} ms" for name, ms, maximum in times if maximum)
        if nearest_row.users_per_slot > 1:
            ratios += f", and holds {nearest_row.running} of {nearest_row.concurrency} users"
        is_far = max(self.targets.target_ratios(nearest_row.ttft_ms, nearest_row.tpot_ms).values()) > MAX_TARGET_RATIO
        which = "both" if all(self.targets) else "the"
        texts = {"nearest": sentence_of(nearest_row), "units": "; targets are in ms" * is_far}
        return TEXTS["notes"]["misses"].format(which=which, gpus=self.gpus, ratios=ratios, **texts)

    def _target_warning(self, best: ServerRow) -> str:
        safe_row = next(filter(self._surely_meets, self.rows), None)
        if safe_row is best:
            return ""
        rate = f", at {significant(safe_row.tokens_per_s_per_gpu)} tokens/s per GPU" if safe_row else ""
        other = f"{sentence_of(safe_row) if safe_row else 'no configuration'} meets them with its whole intervals{rate}"
        return f"the best may miss the targets, since they lie within its 90 % intervals; {other}"

    def _surely_meets(self, row: ServerRow) -> bool:
        """Return whether a configuration meets the targets at the upper ends of its intervals."""
        return row.meets and self.targets.met(row.ttft_high_ms, row.tpot_high_ms)

    def _misfit_lines(self) -> Iterator[str]:
        """Yield a line for each GPU and type with configurations that do not fit: their memory, and a remedy."""
        groups: dict[tuple[str, str, str], list[ServerRow]] = {}
        for row in self.rows:
            groups.setdefault((row.gpu, row.dtype, row.kv_dtype), []).append(row)
        for (name, dtype, kv_dtype), rows in groups.items():
            misfits = sorted((row for row in rows if not row.fits), key=lambda row: row.memory_gib)
            if not misfits:
                continue
            minimum = misfits[0]
            available = self.load.utilization * usable_bytes(gpu_by_name(name)) / 2**30
            fitting = min((row for row in rows if row.fits), key=lambda row: row.gpus // row.replicas, default=None)
            remedy = f"it fits as {fitting.split}" if fitting else ""
            if not fitting:
                gpus = 2 ** ceil(log2(minimum.memory_gib * minimum.gpus / available))
                option = "--gpus" if gpus > self.gpus else "--tensor-parallel"
                smaller = [
                    name for name in SMALLER_TYPES if ELEMENTS[name].weight_bytes < 0.75 * ELEMENTS[dtype].weight_bytes
                ]
                types = f"--dtype {' or '.join(smaller)}, " if smaller else ""
                remedy = f"try {option} {gpus}, {types}or another --gpu"
            if minimum.memory_gib < available / self.load.utilization:
                remedy += f", or give the server more than {self.load.utilization:g} of the memory (--utilization)"
            texts = {"split": minimum.split, "gpu": name, "dtype": dtype, "kv_dtype": kv_dtype}
            sizes = {"needed": minimum.memory_gib, "available": available}
            yield TEXTS["notes"]["misfit"].format(remedy=remedy, **texts, **sizes)

    @property
    def rivals(self) -> tuple[ServerRow, ...]:
        """The configurations that meet the targets and, within their 90 % intervals, may cost as little as the best."""
        if self.best is None:
            return ()
        minimum = self.best.cost(self.best.tokens_per_s_per_gpu)
        is_priced = self.best.usd_per_million_tokens is not None
        meeting = [row for row in self.rows[1:] if row.meets and (row.usd_per_million_tokens is not None) == is_priced]
        return tuple(row for row in meeting if row.cost(row.tokens_per_s_per_gpu_high) <= minimum)

    def table(self, maximum: int = MAX_ROWS) -> Table:
        """Return the printed table.

        Parameters
        ----------
        maximum
            Maximum number of rows. With targets, the best configuration of each GPU comes before the others.
        """
        fitting = [row for row in self.rows if row.fits]
        first = {row.gpu: row for row in reversed(fitting)}
        rows = sorted(fitting, key=lambda row: any(self.targets) and row is not first[row.gpu]) or self.rows[:1]
        leading = [] if len(first) < 2 else [row for row in first.values() if row is not self.best]
        displayed = [_table_row(row, self._mark(row, row in leading)) for row in rows[:maximum]]
        further = [f"{len(rows) - maximum} further configurations: --csv or --json"] if len(rows) > maximum else []
        lacks = self._misfit_lines() if fitting else ()
        used = {name for row in rows[:maximum] for name in PARALLELISM if name in row.split}
        legend = "; ".join(f"{name}: {meaning}" for name, (_, meaning) in PARALLELISM.items() if name in used)
        title = f"{self.model}, {self.load.input} + {self.load.output} tokens"
        notes = [*filter(None, [self.verdict]), *further, legend, *lacks, *self.notes]
        return Table(displayed, FORMATS, title, notes=notes)

    def _mark(self, row: ServerRow, is_best_of_gpu: bool) -> str:
        """Return the mark at the end of a row: whether the configuration, with its intervals, meets the targets."""
        if not row.fits:
            return "does not fit"
        waiting = [f"holds {row.running} of {row.concurrency} users"] if row.users_per_slot > 1 else []
        if not any(self.targets):
            return "".join(waiting)
        ratios = self.targets.target_ratios(row.ttft_ms, row.tpot_ms)
        texts = {name: f"{ratio:.2f}" if ratio < 1e6 else "over 1,000,000" for name, ratio in ratios.items()}
        marks = [f"{name} {texts[name]}× its target" for name, ratio in ratios.items() if ratio > 1]
        marks += waiting
        if row is self.best:
            rivals = f"{self.others} may be as good" if self.rivals else ""
            marks = ["◀ best", "" if self._surely_meets(row) else "may miss the targets", rivals]
        elif row.meets:
            marks = ["meets the targets" if self._surely_meets(row) else "may meet the targets"]
        return ", ".join(filter(None, [f"best on {row.gpu}" if is_best_of_gpu else "", *marks]))

    @property
    def others(self) -> str:
        """The number of `rivals` as text."""
        return f"{len(self.rivals)} other{'s' * (len(self.rivals) != 1)}"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values: ``rows``, ``best``, the number of its ``rivals``, ``verdict``, and ``notes``."""
        rows = [{name: None if value != value else value for name, value in asdict(row).items()} for row in self.rows]
        best = {"best": rows[0] if self.best else None, "rivals": len(self.rivals)}
        return {"rows": rows, **best, "verdict": self.verdict, "notes": list(self.notes)}

    def to_frame(self) -> "pd.DataFrame":
        """Return a data frame with one row per configuration."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])


def order_note(rows: Sequence[ServerRow], targets: Targets) -> str:
    """Return a note on the ratios between the first configurations of GPUs, with 90 % intervals; "" for one GPU.

    The errors of two GPUs count as independent. Common errors would only narrow the intervals.
    """
    logs: dict[str, list[float]] = {}
    is_priced = rows[0].usd_per_million_tokens is not None
    for row in rows:
        has_unit = (row.usd_per_million_tokens is not None) == is_priced
        if has_unit and row.fits and (row.meets or not any(targets)):
            ends = row.tokens_per_s_per_gpu, row.tokens_per_s_per_gpu_low, row.tokens_per_s_per_gpu_high
            logs.setdefault(row.gpu, [-log(row.cost(rate)) for rate in ends])
    ratios: dict[str, tuple[float, float, float]] = {}
    for name, (own, own_low, own_high) in logs.items():
        best, low, high = next(iter(logs.values()))
        widths = hypot(own - own_low, high - best), hypot(own_high - own, best - low)
        ratios[name] = exp(own - best), exp(own - best - widths[0]), exp(own - best + widths[1])
    first, *others = ratios or [""]
    undecided = ", ".join(name for name in others if ratios[name][1] < 1 < ratios[name][2])
    texts = {"unit": "tokens per US dollar" if is_priced else "tokens/s per GPU", "first": first, "others": undecided}
    listed = ", ".join(f"{name} {_interval_text(ratios[name])}" for name in others)
    note = TEXTS["notes"]["order"] + TEXTS["notes"]["undecided"] * bool(undecided)
    return note.format(ratios=listed, **texts) if others else ""


def pareto(
    rows: Sequence[ServerRow], value: Callable[[ServerRow], float] = lambda row: row.tokens_per_s_per_gpu
) -> list[ServerRow]:
    """Return the rows that are Pareto-optimal in tokens per second and user and in ``value``, the slowest first."""
    front: list[ServerRow] = []
    for row in sorted(rows, key=lambda row: (-row.tokens_per_s_per_user, -value(row))):
        if not front or value(row) > value(front[-1]):
            front.append(row)
    return front[::-1]


def launch_command(
    row: ServerRow, model: str, load: Load, decoder: Decoder, deployment: Deployment, static_share: float
) -> str:
    """Return the command that starts a replica under a load.

    ``static_share`` is the share of the memory for weights and cache. The command ends with a comment if it needs
    something that no option sets.
    """
    users, ranks = ceil(row.concurrency / row.replicas), row.tensor_parallel * row.attention_parallel
    own = "" if decoder.checkpoint.refusal else decoder.main_dtype(None)
    texts = TEXTS["launch"][row.library] | TEXTS["launch"]["all"]
    counts = {name: getattr(row, name) for name, _ in PARALLELISM.values()} | {"replicas": row.replicas}
    counts |= {"parts": row.expert_parallel % ranks, "nodes": ceil(row.gpus / row.replicas / NVLINK_GPUS)}
    values: dict[str, object] = {name: count for name, count in counts.items() if count > 1}
    values |= {"start": shlex.quote(model), "tokens": load.max_tokens(decoder), "tensor_parallel": row.tensor_parallel}
    values |= {"ranks": ranks, "users": users, "group_users": ceil(users / row.attention_parallel)}
    if (dtype := deployment.dtype) and dtype != own:
        values[dtype if dtype in texts and own and own not in QUANTISED else "checkpoint"] = dtype
    elif decoder.checkpoint.method in texts.get("unread", ()):
        values["checkpoint"] = values["model_optimizer"] = own
    if Path(model).is_file():
        values["start"] = values["file"] = "MODEL"
    if "checkpoint" in values:  # without such a checkpoint, the server would run the model's own type
        values["start"] = values["checkpoint"] = f"MODEL-IN-{str(values['checkpoint']).upper()}"
    share = load.utilization if load.utilization != UTILISATION else ""
    values |= {"chunked": load.input > MAX_BATCHED_TOKENS, "utilization": share}
    values["static_share"] = share and floor(100 * static_share) / 100
    if (cache := deployment.kv_dtype) and cache != (decoder.checkpoint.kv_dtype or decoder.dtype):
        values[f"cache_{cache}" if f"cache_{cache}" in texts else "cache"] = cache
    parts = [text.format(values[name]) for name, text in texts.items() if values.get(name)]
    command = " ".join(part for part in parts if not part.startswith("# "))
    comments = "; ".join(part.removeprefix("# ") for part in parts if part.startswith("# "))
    return f"{command}  # {comments}" if comments else command


def _table_row(row: ServerRow, mark: str) -> dict[str, Any]:
    """Return a row of the printed table."""
    displayed: dict[str, Any] = {
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
        displayed["$ per M output tokens"] = round(row.usd_per_million_tokens, 3)
    return displayed | {"GiB per GPU": round(row.memory_gib, 1), "bound by": row.bound, "": mark}


def _replicas(row: ServerRow) -> str:
    return f"{row.replicas} × {row.split}" if row.replicas > 1 else row.split


def sentence_of(row: ServerRow) -> str:
    """Return a configuration as a phrase for a sentence."""
    types = f"{row.dtype} with the cache in {row.kv_dtype}"
    return f"{row.gpus} {row.gpu} as {_replicas(row)} by {row.library} in {types} for {row.concurrency} users"


def pareto_figure(rows: Sequence[ServerRow]) -> str | None:
    """Return an SVG of tokens per second and GPU over tokens per second and user; None if no configuration fits."""
    fitting = [row for row in rows if row.fits]
    names = list(dict.fromkeys(row.gpu for row in fitting))
    if not names:
        return None
    from surrogate.report.style import blank, legend, looks, number_axes, svg, theme

    styles = looks(names)
    with theme():
        figure, (axis,) = blank(3.2)
        lines = []
        for name in names:
            rows_of_gpu = [row for row in fitting if row.gpu == name]
            points = [(row.tokens_per_s_per_user, row.tokens_per_s_per_gpu) for row in rows_of_gpu]
            front = [(row.tokens_per_s_per_user, row.tokens_per_s_per_gpu) for row in pareto(rows_of_gpu)]
            axis.plot(*zip(*points, strict=True), ".", color=styles[name].colour, alpha=0.35, markersize=3)
            lines += axis.plot(*zip(*front, strict=True), **styles[name].line, markersize=3)
        axis.set(xscale="log", yscale="log")
        number_axes(axis.xaxis, axis.yaxis)
        axis.set(xlabel="tokens/s and user, log scale", ylabel="tokens/s and GPU, log scale")
        legend(figure, lines, names)
        return svg(figure)


def serving_page(serving: Serving) -> str:
    """Return the HTML page of a result; all texts are escaped."""
    from surrogate.report.page import Figure, Section, page

    best, figure_svg = serving.best, pareto_figure(serving.rows)
    table = serving.table(len(serving.rows))
    verdict = f"{serving.verdict[:1].upper()}{serving.verdict[1:]}." if serving.verdict else ""
    answer = verdict
    if best:
        further = f", {best.tpot_ms:.1f} ms per further one" if serving.load.output > 1 else ""
        first, rate = f"{best.ttft_ms:.0f} ms to the first token", f"{best.tokens_per_s_per_gpu:.0f} tokens per second"
        answer = f"{sentence_of(best)}: {first}{further}, {rate} and GPU. {serving.others} may be as good. {verdict}"
    figures = [Figure("pareto", figure_svg, TEXTS["notes"]["front"])] if figure_svg else []
    records = [{name: _page_cell(value) for name, value in record.items()} for record in table.records]
    sections = [
        Section("Speed for a user against throughput", [], figures),
        Section("Configurations", [Table(records, dict.fromkeys(FORMATS, significant), open_rows=MAX_OPEN_ROWS)]),
        Section("Command", [serving.launch] if serving.launch else []),
        Section("Notes", [note for note in table.notes if note not in ("", serving.verdict)]),
    ]
    return page(table.title, sections, kicker="servers of a language model", answer=answer)


def _page_cell(value: Any) -> Any:
    """Return a value of the table, or a time above its interval."""
    return Cell(value[0], _interval_text(value).partition(" ")[2]) if isinstance(value, tuple) else value
