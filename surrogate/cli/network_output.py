"""The tables that ``seer network`` prints for people."""

from typing import Any

import click

from surrogate.cli.output import to_table
from surrogate.network.result import LayerTime, NetworkTime
from surrogate.network.savings import Rival


def print_report(
    time: NetworkTime, batches: list[dict[str, Any]], gpus: list[dict[str, Any]], *, layers: bool
) -> None:
    """Layers or types, classes, savings, batches, GPUs, and what is in no sum."""
    click.echo(time.headline())
    if layers:
        _section("", [_layer(layer) for layer in time.layers])
    _section("by type", [_type(row) for row in time.by_type()])
    _section("algorithms", [_type(row) for row in time.by_algorithm()])
    classes = [{"class": name, **_percent(share)} for name, share in time.classes().items()]
    _section("convolutions by what bounds them, %", classes if time.by_algorithm() else [])
    for rival in time.savings.rivals:
        click.echo(_saved(rival))
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
            click.echo(f"{title}: {', '.join(f'{name} ×{count}' for name, count in counts.items())}")


def _section(title: str, rows: list[dict[str, Any]]) -> None:
    if rows:
        click.echo(f"\n{title}\n{to_table(rows)}" if title else to_table(rows))


def _layer(layer: LayerTime) -> dict[str, Any]:
    return {
        "layer": layer.name,
        "problem": layer.problem,
        "algorithm": layer.algorithm,
        "time_us": layer.time_us,
        "90 %": f"{layer.lower_us:.4g}–{layer.upper_us:.4g}",
        "MiB": layer.workspace_bytes / 2**20 if layer.algorithm else None,
        "GFLOP": layer.flops / 1e9,
        "MB": layer.bytes / 1e6,
        "bound": layer.bound,
        "source": layer.source,
    }


def _type(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in row.items() if name not in ("flops", "bytes", "share")}
    return shown | {"%": 100 * row["share"], "GFLOP": row["flops"] / 1e9, "MB": row["bytes"] / 1e6}


def _percent(shares: dict[str, float]) -> dict[str, float]:
    return {name: 100 * share for name, share in shares.items()}


def _sweep(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in row.items() if not name.endswith("_bytes") and name != "best"}
    shown["workspace_mib"] = row["peak_workspace_bytes"] / 2**20
    return shown | ({"best": "◀ best" if row["best"] else ""} if "best" in row else {})


def _saved(rival: Rival) -> str:
    """One line: what the best algorithms save over the rival, and over how many convolutions that is known."""
    if not rival.convs:
        return f"saved over {rival.name}: not known ({rival.note or 'it is no candidate here'})"
    share = 100 * rival.saved_us / rival.time_us if rival.time_us else 0.0
    missing = f", {rival.unknown} not known" if rival.unknown else ""
    saved = f"{rival.saved_us / 1e3:.3f} ms ({share:.1f} %)"
    return f"saved over {rival.name}: {saved} of {rival.convs} convolutions{missing}"
