"""What the tests of formats of autotuners share."""

from typing import Any

from surrogate.formats.imported import Imported


def kernel(imported: Imported) -> Any:
    """The described kernel in the metadata, as plain tables."""
    plain: Any = imported.metadata["kernel"]
    return plain | {key: dict(plain[key]) for key in ("settings", "parameters", "formulas") if key in plain}
