"""The tables that ``seer network`` prints for people."""

from collections import Counter
from typing import Any

import click

from surrogate.network.result import Baseline, NetworkTime
from surrogate.report.tables import Table, interval_us, terminal_width, wrapped

SHOWN = ("name", "problem", "algorithm", "time_us", "bound")
"""What fits a terminal; the machine-readable forms have the interval, workspace, FLOPs, bytes and source, too."""


def print_report(
    time: NetworkTime, batches: list[dict[str, Any]], gpus: list[dict[str, Any]], *, layers: bool
) -> None:
    """Layers or types, classes, savings, batches, GPUs, and what is in no sum."""
    click.echo(wrapped(time.headline(), terminal_width()))
    if layers:
        _section("", [{name: getattr(layer, name) for name in SHOWN} for layer in time.layers])
        sources = Counter(layer.source for layer in time.layers)
        counts = ", ".join(f"{name} ×{count}" for name, count in sources.most_common())
        click.echo(f"source of the times: {counts}")
    _section("by type", [_type(row) for row in time.by_type()])
    _section("algorithms", [_type(row) for row in time.by_algorithm()])
    classes = [{"class": name, **_percent(share)} for name, share in time.classes().items()]
    _section("convolutions by what bounds them", classes if time.by_algorithm() else [])
    for baseline in time.baselines:
        click.echo("\n" + wrapped(_saved(baseline), terminal_width()))
    if time.by_algorithm():
        click.echo(f"peak workspace: {time.peak_workspace_bytes / 2**20:.1f} MiB")
    _section("batches", [_sweep(row) for row in batches])
    _section("GPUs", [_sweep(row) for row in gpus])
    told = {
        "ignored on purpose": time.ignored,
        "unsupported, in no sum": time.unsupported,
        "convolutions outside the training data": time.outside,
    }
    for title, counts in told.items():
        if counts:
            found = ", ".join(f"{name} ×{count}" for name, count in counts.items())
            click.echo(wrapped(f"{title}: {found}", terminal_width()))


def _section(title: str, rows: list[dict[str, Any]]) -> None:
    if rows:
        table = Table(rows, {"90 %": interval_us}, title).text(terminal_width())
        click.echo(f"\n{table}" if title else table)


def _type(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in row.items() if name not in ("flops", "bytes", "share")}
    return shown | {"%": round(100 * row["share"], 1), "GFLOP": row["flops"] / 1e9, "MB": row["bytes"] / 1e6}


def _percent(shares: dict[str, float]) -> dict[str, float]:
    return {f"{name} %": round(100 * share, 1) for name, share in shares.items()}


def _sweep(row: dict[str, Any]) -> dict[str, Any]:
    """A batch or a GPU; of several batches the best one is marked."""
    shown: dict[str, Any] = {name: row[name] for name in ("batch", "gpu", "total_us") if name in row}
    shown |= {
        "90 %": (row["lower_us"], row["upper_us"]),
        "samples_per_s": row["samples_per_s"],
        "coverage %": round(100 * row["coverage"], 1),
        "MiB": row["peak_workspace_bytes"] / 2**20,
    }
    shown |= {"speedup": row["speedup"]} if "speedup" in row else {}
    return shown | ({"": "◀ best" if row["best"] else ""} if "best" in row else {})


def _saved(baseline: Baseline) -> str:
    """One line: what the best algorithms save over others, and over how many convolutions that is known."""
    share = 100 * baseline.saved_us / baseline.time_us if baseline.time_us else 0.0
    missing = f", {baseline.unknown} not known" if baseline.unknown else ""
    saved = f"{baseline.saved_us / 1e3:.3f} ms ({share:.1f} %)"
    return f"saved over {baseline.name}: {saved} of {baseline.convs} convolutions{missing}"
