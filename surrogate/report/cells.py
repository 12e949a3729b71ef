"""Numbers as a reader sees them; an unknown number is an en dash."""

import math

UNKNOWN = "–"


def ratio(value: float | None) -> str:
    """A slowdown or other ratio: three decimals near 1, fewer where they say nothing."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "∞"
    if abs(value) >= 1e6:
        return f"{value:.1e}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"


def percent(fraction: float | None) -> str:
    """A fraction as percent, without the sign's column: ``0.1234`` → ``12.3``."""
    if fraction is None or math.isnan(fraction):
        return UNKNOWN
    value = 100 * fraction
    if math.isinf(value):
        return "∞"
    if abs(value) >= 1e6:
        return f"{value:.1e}"
    return f"{value:.2f}" if abs(value) < 1 else f"{value:.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def share(fraction: float | None) -> str:
    """A share of problems in percent; never ``100`` for what is not all of them."""
    if fraction is None or math.isnan(fraction):
        return UNKNOWN
    return f"{100 * fraction:.0f}" if fraction in (0.0, 1.0) else f"{min(100 * fraction, 99.9):.1f}"


def whole(value: float | None) -> str:
    """A count, with thousands separated."""
    return UNKNOWN if value is None or math.isnan(value) else f"{value:,.0f}"


def interval(low: float | None, high: float | None) -> str:
    """An interval of ratios: ``1.008–1.017``."""
    return UNKNOWN if low is None or high is None else f"{ratio(low)}–{ratio(high)}"


def log_change(log_difference: float | None) -> str:
    """A log difference as a signed change in percent: ``-0.075`` → ``−7.2``."""
    if log_difference is None or math.isnan(log_difference):
        return UNKNOWN
    change = 100 * math.expm1(min(log_difference, 700.0))
    return f"{change:+.1f}".replace("-", "−") if abs(change) < 1e4 else f"{change:+.0e}"


def time(time_us: float, _position: float = 0) -> str:
    """A time with the unit that suits it: ``250`` → ``250 µs``. Also a tick formatter, hence the index."""
    for unit, size in (("s", 1e6), ("ms", 1e3), ("µs", 1.0)):
        if time_us >= size:
            return f"{time_us / size:g} {unit}"
    return f"{time_us * 1e3:g} ns"
