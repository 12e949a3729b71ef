"""Compare the times of a network: batches, GPUs, and what a step costs on them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu as gpu_by_name
from surrogate.network.network import TEXTS, refuse
from surrogate.network.result import NetworkTime
from surrogate.report.tables import Table, TableResult, interval_us

if TYPE_CHECKING:
    import pandas as pd

Key = TypeVar("Key", int, str)
"""A batch or a GPU."""
Answer = TypeVar("Answer")
FIGURES = TEXTS["fields"]["compared"].split()
"""Figures that comparisons of batches and GPUs list."""
COSTS: Mapping[str, str] = TEXTS["costs"]
"""Keys of `NetworkTime.cost` → titles of their columns."""
MIN_PRICE, MAX_PRICE = 1e-6, 1e6
"""Limits of a price in US dollars per GPU and hour."""


@dataclass(frozen=True, slots=True, repr=False)
class GpuComparison(TableResult):
    """The times of one network on several GPUs.

    Attributes
    ----------
    times
        The time on each GPU.
    refused
        The reason for each GPU without a time.
    prices
        US dollars per GPU and hour, by GPU.
    samples
        Samples of an epoch; None: no figures of an epoch.
    """

    times: Mapping[str, NetworkTime]
    refused: Mapping[str, str]
    prices: Mapping[str, float]
    samples: int | None = None

    @property
    def is_comparison(self) -> bool:
        """Whether several GPUs are compared."""
        return len(self.times) + len(self.refused) > 1

    def records(self) -> list[dict[str, Any]]:
        """Return a record for each GPU; ``best`` marks the highest throughput of the GPUs that it fits."""
        costs = {name: time.cost(self.prices.get(name), self.samples) for name, time in self.times.items()}
        records = [record | costs[record["gpu"]] for record in comparison_records("gpu", self.times)]
        return [*records, *({"gpu": name, "refused": reason} for name, reason in self.refused.items())]

    def to_frame(self) -> "pd.DataFrame":
        """Return a DataFrame with one row per GPU."""
        import pandas as pd

        return pd.DataFrame(self.records())

    def table(self) -> Table:
        """Return the table that `seer network --compare-gpus` prints."""
        count = next((time.gpus for time in self.times.values()), 1)
        all_gpus = f"; samples/s of all {count} GPUs" if count > 1 else ""
        title = f"GPUs{all_gpus}; a speedup is the ratio of expected times per sample, without an interval of its own"
        return Table([comparison_row(record) for record in self.records()], {"90 %, µs": interval_us}, title)


def compare_gpus(
    names: Sequence[str],
    predict: Callable[[str], NetworkTime],
    prices: Mapping[str, float] | None = None,
    samples: int | None = None,
) -> GpuComparison:
    """Return the times that ``predict`` returns for GPUs, in order, and the refusals.

    Raises `InputError` for an unknown GPU, and if no GPU has a time.
    """
    devices = dict.fromkeys(gpu_by_name(name).name for name in names)
    times, refused = try_each(list(devices), predict)
    if not times:
        raise InputError("; ".join(refused.values()))
    return GpuComparison(times, refused, prices or {}, samples)


def try_each(
    keys: Sequence[Key], answer: Callable[[Key], Answer], step: Callable[[int, int, str], None] | None = None
) -> tuple[dict[Key, Answer], dict[Key, str]]:
    """Return key → answer, and key → message for each key that raises `InputError`; call ``step`` after each key."""
    answers: dict[Key, Answer] = {}
    refused: dict[Key, str] = {}
    for done, key in enumerate(keys, 1):
        try:
            answers[key] = answer(key)
        except InputError as error:
            refused[key] = str(error)
        if step:
            step(done, len(keys), str(key))
    return answers, refused


def prices_of(price: object, gpus: Sequence[str], source: str) -> dict[str, float]:
    """Return GPU → US dollars per hour, given one number or GPU → number; empty for None.

    Raises `InputError` for an invalid price, and for the price of a GPU that is not in ``gpus``.
    """
    names = [gpu_by_name(name).name for name in gpus]
    if price is None:
        return {}
    by_name: Mapping[str, Any] = price if isinstance(price, Mapping) else dict.fromkeys(names, price)
    prices = {}
    for name, usd in by_name.items():
        is_price = isinstance(usd, int | float) and not isinstance(usd, bool) and MIN_PRICE <= usd <= MAX_PRICE
        limits = {"minimum": MIN_PRICE, "maximum": MAX_PRICE}
        refuse({"price": not is_price}, source=source, name=name, usd=repr(usd)[:40], **limits)
        prices[gpu_by_name(name).name] = float(usd)
    unrelated = ", ".join(sorted(prices.keys() - set(names)))
    refuse({"unrelated": unrelated}, names=unrelated)
    return prices


def comparison_records(name: str, times: Mapping[Key, NetworkTime]) -> list[dict[str, Any]]:
    """Return a record for each batch or GPU; ``name`` is the key of the first field.

    ``best`` marks the highest throughput among those that fit, the first if several are equal. Its ``rivals`` may be as
    fast, since their intervals overlap it. A GPU's ``speedup`` is relative to the first GPU.
    """
    sample_us = {key: time.total_us / (time.batch or 1) for key, time in times.items()}
    fitting = {key: time for key, time in times.items() if time.layers and time.fits is not False}
    best_us = min((sample_us[key] for key in fitting), default=0.0)
    best = next((key for key in fitting if sample_us[key] == best_us), None)
    rivals = [key for key, time in fitting.items() if key != best and time.lower_us / (time.batch or 1) < best_us]
    records = []
    for key, time in times.items():
        record = {name: key, **{figure: getattr(time, figure) for figure in FIGURES}, "best": key == best}
        if name == "gpu":
            first_us, own_us = next(iter(sample_us.values())), sample_us[key]
            record |= {"batch": time.batch, "speedup": first_us / own_us if own_us else None}
        records.append(record | {"rivals": rivals if key == best else []})
    return records


def comparison_row(record: dict[str, Any]) -> dict[str, Any]:
    """Return the displayed row of a record; the best one has a mark, and the row of a refused GPU its reason."""
    if "refused" in record:
        return record
    row: dict[str, Any] = {name: record[name] for name in ("gpu", "batch", "total_us") if name in record}
    row |= {"90 %, µs": (record["lower_us"], record["upper_us"]), "samples/s": record["samples_per_s"]}
    if record["tokens_per_s"]:
        row["tokens/s"] = record["tokens_per_s"]
    row |= {"MFU %": percent(record["mfu"]), "coverage %": percent(record["coverage"])}
    row |= {"GiB per GPU": gib(record["memory_bytes"]), "fits": record["fits"]}
    if "gpu" in record:
        row["measured %"] = percent(record["measured_share"])
    row |= {title: record[name] for name, title in COSTS.items() if name in record}
    row |= {"speedup": record["speedup"]} if "speedup" in record else {}
    rivals = ", ".join(map(str, record.get("rivals", ())))
    best = f"◀ best, within the interval of {rivals}" if rivals else "◀ best"
    return row | {"": best if record["best"] else ""}


def percent(share: float | None) -> float | None:
    """Return a share in percent, with one decimal."""
    return None if share is None else round(100 * share, 1)


def gib(size: int | None) -> float | None:
    """Return bytes in GiB, with two decimals."""
    return None if size is None else round(size / 2**30, 2)
