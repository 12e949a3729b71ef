"""Numbers in sentences. A number may come from any cell of a table."""

import math
from typing import Any


def percent(value: Any) -> str:
    """``12.3 %``; ``no figure`` where there is none."""
    return (
        "no figure"
        if not math.isfinite(value)
        else f"{value:.1f} %"
        if abs(value) < 99.95
        else f"{value:,.0f} %"
    )


def ratio(value: Any) -> str:
    """``1.034``; ``no figure`` where there is none."""
    return f"{value:.3f}" if math.isfinite(value) else "no figure"


def interval(low: Any, high: Any) -> str:
    """``[1.011, 1.034]``."""
    return f"[{ratio(low)}, {ratio(high)}]"


def listing(words: list[str]) -> str:
    """``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "none"
