"""A helper for the tests of autotuner formats."""

from typing import Any

from surrogate.formats.imported import Imported


def kernel(imported: Imported) -> Any:
    """Return the kernel description in the metadata as dictionaries."""
    described: Any = imported.metadata["kernel"]
    return described | {key: dict(described[key]) for key in ("settings", "parameters", "formulas") if key in described}
