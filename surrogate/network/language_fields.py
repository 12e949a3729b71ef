"""The fields of a language model's ``config.json`` under their usual names, each checked when it is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from surrogate.features.elementwise import MAX_INT32, checked_int
from surrogate.features.errors import InputError, read_toml

TABLE = read_toml(__file__)
"""Names and meanings of fields; comments in the file explain its sections."""


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """The fields of a configuration under their usual names; ``used`` has the names of those that were read."""

    path: Path
    config: Mapping[str, object]
    used: set[str] = field(default_factory=set)

    def get(self, name: str) -> object:
        """Return a field; None if it is missing."""
        self.used.add(name)
        return self.config.get(name)

    def required(self, *names: str, maximum: int = MAX_INT32) -> int:
        """Return the first of these fields that exists, a whole number above 0, or the first of a list of layers."""
        name = next((name for name in names if self.get(name) is not None), None)
        if name is None:
            raise InputError(f"{self.path}: {' or '.join(names)} is missing; add it, a whole number above 0")
        value = self.config[name]
        if isinstance(value, list) and value and (name in TABLE["listed"] or all(each == value[0] for each in value)):
            value = value[0]
        return checked_int(str(self.path), name, value, 1, maximum)

    def optional(self, name: str, maximum: int = MAX_INT32) -> int:
        """Return a field as `required`; 0 if it is missing, null or 0."""
        return self.required(name, maximum=maximum) if self.get(name) else 0

    def part(self, name: str) -> "ConfigFields":
        """Return the fields of a nested object; empty if it is missing."""
        value = self.get(name)
        return ConfigFields(self.path, usual_names(value) if isinstance(value, dict) else {})

    def listed(self, name: str, layers: int, words: Sequence[object] | None = None) -> list[Any]:
        """Return the entry of every layer; empty if the field is no list. Entries of next-token layers may follow.

        Raises `InputError` for entries that are none of the ``words``; the default is the field's row of the table.
        """
        value = self.get(name)
        allowed: Sequence[object] = TABLE["words"].get(name, ()) if words is None else words
        listed = list(value) if isinstance(value, list) or (allowed and isinstance(value, str | dict)) else []
        if unknown := [word for word in listed[:layers] if allowed and word not in allowed]:
            rule = f"give each layer one of {', '.join(map(str, allowed))}"
            entry = value if isinstance(value, str) else unknown[0]
            raise InputError(f"{self.path}: {name} has the unknown entry {entry!r}; {rule}")
        if 0 < len(listed) < layers:
            raise InputError(f"{self.path}: {name} has {len(listed)} entries for {layers} layers; give one for each")
        return listed[:layers]

    def with_values(self, values: Mapping[str, object]) -> "ConfigFields":
        """Return the fields with some replaced."""
        return replace(self, config={**self.config, **values})


def usual_names(config: Mapping[str, object]) -> dict[str, object]:
    """Return a configuration with the usual names of fields."""
    usual = {other: name for name, others in TABLE["names"].items() for other in others}
    renamed = {usual[name]: value for name, value in config.items() if name in usual and value is not None}
    return renamed | {name: value for name, value in config.items() if name not in usual and value is not None}
