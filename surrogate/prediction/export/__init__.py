"""Picks as tables that other programs load: JSON, a C header, MIOpen's user find-db."""

from collections.abc import Callable

from surrogate.features.errors import InputError, nearest
from surrogate.prediction.export.c_header import c_header
from surrogate.prediction.export.json_table import json_table
from surrogate.prediction.export.miopen_user_db import miopen_user_db
from surrogate.prediction.export.picks import Picks, picks_for

EXPORTS: dict[str, Callable[[Picks], str]] = {
    "json": json_table,
    "c-header": c_header,
    "miopen-user-db": miopen_user_db,
}
"""Format → what renders it as text."""


def export(picks: Picks, form: str) -> str:
    """The table as text. Raises `InputError` for an unknown format, or one that cannot hold these picks."""
    if form not in EXPORTS:
        raise InputError(f"format {form!r} is unknown; known: {', '.join(EXPORTS)}{nearest(form, EXPORTS)}")
    return EXPORTS[form](picks)


__all__ = ["EXPORTS", "Picks", "export", "picks_for"]
