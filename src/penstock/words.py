"""Numbers as words, the same in messages, tables and pages."""


def counted(count: int, noun: str) -> str:
    """Return a number with what it counts: ``1 replica``, ``2 replicas``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def span(low: int, high: int, noun: str) -> str:
    """Return a number of things, or from how many to how many: ``1 to 4 replicas``."""
    return counted(low, noun) if low == high else f"{low:,} to {counted(high, noun)}"


def amount(value: float) -> str:
    """Return money or accelerators: four digits, and all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
