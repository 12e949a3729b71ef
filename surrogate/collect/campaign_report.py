"""Whether a campaign's tables are fit to be published, and the page that goes with them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from surrogate.collect.doctor import Check
from surrogate.dataset.store import Dataset

LEAST_CUPTI = 0.99
"""Share of the times that must be CUPTI's: events hold launch gaps, and a table of both is neither."""


def untrustworthy(table: Dataset) -> list[str]:
    """What is wrong with a table of times, in whole phrases. A CPU's times are the wall clock's and are accepted."""
    ok = table.frame[table.frame["status"] == "ok"]
    if ok.empty:
        reasons = table.frame["reason"].dropna()
        return [f"nothing was measured{': ' + reasons.iloc[0] if len(reasons) else ''}"]
    if (ok["timer"] == "wall").all():
        return []
    faults = []
    share = float((ok["timer"] == "cupti").mean())
    if share < LEAST_CUPTI:
        reasons = ok.loc[ok["timer"] != "cupti", "reason"].dropna().mode()
        why = f" ({reasons.iloc[0]})" if len(reasons) else ""
        faults.append(f"CUPTI took {share:.1%} of {len(ok)} times, {LEAST_CUPTI:.0%} are needed{why}")
    family = set(table.frame.get("family", ["conv"]))
    seen = len(table.kernels) if table.kernels is not None else 0
    if family == {"conv"} and not seen:
        faults.append("no kernel was seen")
    counted, joined = (int(table.metadata.get(f"counted_kernels{end}", 0)) for end in ("", "_joined"))
    if joined < counted:
        faults.append(f"{counted - joined} of {counted} counted kernels belong to no measured one")
    return faults


def publishing_command(gpu: str) -> str:
    """What publishes the folder as a data set of its own."""
    name = "-".join(re.findall(r"[a-z0-9]+", gpu.lower()))
    return f"hf upload YOUR-NAME/seer-{name} . --repo-type dataset"


def verdict(device_name: str, faults: Sequence[str], uncounted: Sequence[str]) -> str:
    """Whether the times are fit to be published, and whether counters are missing beside them, in a line."""
    if faults:
        return f"not fit to be published: {'; '.join(faults)}"
    counters = f"; counters are incomplete: {'; '.join(uncounted)}" if uncounted else ""
    return f"fit to be published{counters}" if device_name == "cudnn" else f"rehearsed on device {device_name}"


def page(conclusion: str, lines: Sequence[str], tables: Mapping[str, Dataset], checks: Sequence[Check]) -> str:
    """The page as Markdown: the verdict ``conclusion``, what was measured on what, and how to use and publish it."""
    conclusion = conclusion[0].upper() + conclusion[1:] + "."
    if not tables:
        return f"# Nothing was measured\n\n{conclusion}\n"
    device = next(iter(tables.values())).metadata["runs"][0]["device"]
    facts = {device["library"]: device["library_version"], **device.get("versions", {}), **device["properties"]}
    shown = [(name, value) for name, value in facts.items() if not isinstance(value, Mapping)]
    results = [(check.name, check.status, check.value) for check in checks]
    publish = "" if device["library"] == "reference" else f"\n    {publishing_command(device['gpu'])}"
    parts = [
        f"# Kernel times of {device['gpu']}", conclusion,
        _table(("table", "what"), ((name, _described(table)) for name, table in tables.items())),
        "## Slices\n\n" + "\n".join(f"- {line}" for line in lines),
        "## Machine", _table(("what", "value"), shown),
        _table(("check", "status", "value"), results) if results else "",
        "## Use\n\nIn this folder, with seer-surrogate installed:\n\n    seer data info convolutions.parquet\n"
        f"    seer compare convolutions.parquet -o report{publish}",
    ]  # fmt: skip
    return "\n\n".join(filter(None, parts)) + "\n"


def _described(table: Dataset) -> str:
    frame = table.frame
    ok = frame[frame["status"] == "ok"]
    counts = ", ".join(f"{count} {status}" for status, count in frame["status"].value_counts().items())
    parts = [f"{len(frame)} rows: {counts}"]
    parts += [f"{share:.1%} timed by {timer}" for timer, share in ok["timer"].value_counts(normalize=True).items()]
    doubted = (ok["timer"] == "cupti") & ok["reason"].notna()
    if doubted.any():
        parts.append(f"CUPTI's labels miss launches of {doubted.mean():.1%}, which the cache's flushes split")
    if table.kernels is not None and len(table.kernels):
        parts.append(f"{len(table.kernels)} kernels")
        parts.append(f"{table.metadata.get('counted_kernels_joined', 0)} of them counted")
    drifts = [anchor["drift"] for anchor in table.metadata.get("anchors", ())]
    if drifts:
        parts.append(f"repeated problems differ by {median(drifts):.1%} in the median")
    for column, text in (("slow_clock", "at a low clock"), ("throttled", "while the clock was held down")):
        if column in frame:
            parts.append(f"{frame[column].mean():.1%} {text}")
    return "; ".join(parts)


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    texts = ((str(cell).replace("|", "\\|") for cell in line) for line in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in texts)
