"""`Description`: a user's own kernel, read from a TOML file or from a table's columns. It is data, never code.

It names the kernel, the sizes of its problems, and the parameters of its configurations with their values. It may also
have conditions that a configuration must meet, and formulas (`ElementwiseFormula`) of a launch's costs.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from .elementwise import MAX_EXACT, ElementwiseFormula
from .errors import InputError, nearest, parsed_toml, read_bounded, read_toml

Value = bool | int | float | str
"""A parameter's value."""
Configuration = dict[str, Value]
"""Parameter → value."""
_TABLE = read_toml(__file__)
COSTS: Mapping[str, str] = _TABLE["costs"]
"""Cost that a formula may give → its meaning."""
UNSIZED = "size"
"""Name of the only size of a kernel that declares no sizes. Its value is 1 in the kernel's only problem."""
MAX_FILE_BYTES = 1 << 20
MAX_CONFIGURATIONS = 2_000_000
"""Maximum configurations of a kernel that are listed and ranked."""
MAX_COMBINATIONS = 20_000_000
"""Maximum combinations of values that are checked at once while conditions reduce them."""
RESERVED: frozenset[str] = frozenset(_TABLE["reserved"])
"""Columns of tables, which cannot be names of sizes, settings or parameters."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_KEYS = ("name", "sizes", "batch", "settings", "parameters", "conditions", "formulas")
_FORBIDDEN = re.compile(r"[,=|\x00-\x1f]")


@dataclass(frozen=True)
class Description:
    """A kernel of a user's own.

    Parameters
    ----------
    name : str
        The kernel's name, also of its family.
    sizes : tuple of str
        The integers of a problem.
    parameters : mapping of str to tuple of bool, int, float or str
        The parameters of a configuration and their values.
    settings : mapping of str to tuple of str
        The texts of a problem (dtype …) and their allowed values (empty: any).
    conditions : tuple of ElementwiseFormula, optional
        All must be true for a configuration to run. None: only configurations in a table may run.
    formulas : mapping of str to ElementwiseFormula
        The costs of a launch, by the keys of `COSTS`.
    batch : tuple of str
        The sizes that a shape leaves out.

    Raises
    ------
    InputError
        If a name or a value is not allowed or appears twice, or ``batch`` is not among the sizes.
    """

    name: str
    sizes: tuple[str, ...]
    parameters: Mapping[str, tuple[Value, ...]]
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    conditions: tuple[ElementwiseFormula, ...] | None = None
    formulas: Mapping[str, ElementwiseFormula] = field(default_factory=dict)
    batch: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.parameters:
            raise InputError(f"kernel {self.name}: it has no parameters; name at least one, with its values")
        names = [*self.sizes, *self.settings, *self.parameters]
        for name in (self.name, *names):
            if not _NAME.fullmatch(name):
                raise InputError(f"kernel {self.name}: {name!r} is no name; write letters, digits and underscores")
        if doubled := [name for name, count in Counter(names).items() if count > 1]:
            raise InputError(f"kernel {self.name}: {doubled[0]} is declared twice; give each name once")
        if reserved := RESERVED & {*names}:
            raise InputError(f"kernel {self.name}: {min(reserved)} is a column of every table; give another name")
        if unknown := sorted({*self.batch} - {*self.sizes}):
            raise InputError(f"kernel {self.name}: batch {unknown[0]} is none of the sizes {', '.join(self.sizes)}")
        for name, values in self.parameters.items():
            _check_values(f"kernel {self.name}: parameter {name}", values)

    @cached_property
    def codes(self) -> Mapping[str, Mapping[str, float]]:
        """Parameter → text of a value → number for models: the value itself, or its position among texts."""
        return {
            name: {str(value): float(at if isinstance(value, str) else value) for at, value in enumerate(values)}
            for name, values in self.parameters.items()
        }

    @cached_property
    def _by_text(self) -> Mapping[str, Mapping[str, Value]]:
        return {name: {str(value): value for value in values} for name, values in self.parameters.items()}

    def is_numeric(self, parameter: str) -> bool:
        """Return True if the parameter's values are numbers."""
        return not isinstance(self.parameters[parameter][0], str)

    def text(self, configuration: Mapping[str, object]) -> str:
        """Return a configuration's text, as in ``block_m=64,num_warps=4``: the name of a candidate."""
        return ",".join(f"{name}={configuration[name]}" for name in self.parameters)

    def configuration(self, text: str) -> Configuration:
        """Return the configuration from the output of `text`. Raises `InputError` for another parameter or value."""
        pairs = [word.partition("=")[::2] for word in text.split(",")]
        if [name for name, _ in pairs] != [*self.parameters]:
            raise InputError(f"{text!r} is no configuration of {self.name}, which has {', '.join(self.parameters)}")
        values = self._by_text
        if wrong := [(name, value) for name, value in pairs if value not in values[name]]:
            name, value = wrong[0]
            raise InputError(f"{self.name}: {name} is {value!r}; known: {', '.join(values[name])}")
        return {name: values[name][value] for name, value in pairs}

    def declares(self, text: str) -> bool:
        """Return whether a text is a configuration whose values are all declared."""
        words = [word.partition("=")[::2] for word in text.split(",")]
        is_complete = [name for name, _ in words] == [*self.parameters]
        return is_complete and all(value in self._by_text[name] for name, value in words)

    def space(self, sizes: Mapping[str, int] = MappingProxyType({})) -> dict[str, np.ndarray] | None:
        """Return parameter → (configurations,) values, as objects, of every configuration that the conditions allow.

        It is None if there are no conditions. Conditions may use ``sizes``. Raises `InputError` for more than
        `MAX_CONFIGURATIONS`.
        """
        if self.conditions is None:
            return None
        waiting = list(self.conditions)
        # Add one parameter after another. A condition removes combinations as soon as all its names are present.
        positions = np.zeros((1, 0), dtype=np.int32)
        numbers: dict[str, Any] = dict(sizes)
        for name, values in self.parameters.items():
            if len(positions) * len(values) > MAX_COMBINATIONS:
                raise InputError(f"kernel {self.name}: too many combinations of values; give fewer, or more conditions")
            added = np.tile(np.arange(len(values), dtype=np.int32), len(positions))
            positions = np.column_stack([np.repeat(positions, len(values), axis=0), added])
            count = len(values)
            numbers = {key: np.repeat(column, count) if np.ndim(column) else column for key, column in numbers.items()}
            numbers[name] = np.array([*self.codes[name].values()])[added]
            ready = [condition for condition in waiting if condition.names <= numbers.keys()]
            waiting = [condition for condition in waiting if condition not in ready]
            for condition in ready:
                keep = np.broadcast_to(np.nan_to_num(condition.value(numbers)) != 0, len(positions))
                positions = positions[keep]
                numbers = {key: column[keep] if np.ndim(column) else column for key, column in numbers.items()}
        if len(positions) > MAX_CONFIGURATIONS:
            raise InputError(f"kernel {self.name}: {len(positions):,} configurations; at most {MAX_CONFIGURATIONS:,}")
        columns = zip(self.parameters.items(), positions.T, strict=True)
        return {name: np.array(values, dtype=object)[column] for (name, values), column in columns}

    def texts(self, sizes: Mapping[str, int] = MappingProxyType({})) -> tuple[str, ...]:
        """Return the `text` of every configuration of the `space`; empty if there are no conditions."""
        space = self.space(sizes) or {}
        pairs = zip(*([f"{name}={value}" for value in values.tolist()] for name, values in space.items()), strict=True)
        return tuple(map(",".join, pairs))

    @cached_property
    def space_texts(self) -> tuple[str, ...]:
        """The `texts` without sizes."""
        return self.texts()

    def to_dict(self) -> dict[str, Any]:
        """Return the description as JSON values, without empty entries.

        Tables become pairs, because files may sort a mapping's keys.
        """
        content: dict[str, Any] = {"name": self.name, "sizes": list(self.sizes), "batch": list(self.batch)}
        content["settings"] = [[name, list(values)] for name, values in self.settings.items()]
        content["parameters"] = [[name, list(values)] for name, values in self.parameters.items()]
        if self.conditions is not None:
            content["conditions"] = [condition.text for condition in self.conditions]
        content["formulas"] = [[name, formula.text] for name, formula in self.formulas.items()]
        return {name: value for name, value in content.items() if value or name in ("name", "sizes", "conditions")}

    def to_toml(self) -> str:
        """Return the text of a file that `read_description` reads."""
        content = self.to_dict()
        tables = [name for name in ("settings", "parameters", "formulas") if name in content]
        lines = [f"{name} = {_toml(value)}" for name, value in content.items() if name not in tables]
        for table in tables:
            lines += ["", f"[{table}]", *(f"{name} = {_toml(value)}" for name, value in content[table])]
        return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """Return a text, a number, true, false or a list of them in TOML, which escapes DEL and has no surrogate pairs."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_description(path: str | Path) -> Description:
    """Return the description in a TOML file. Raises `InputError` that names the file, what came, and the rule."""
    try:
        content = parsed_toml(read_bounded(Path(path), MAX_FILE_BYTES))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; `seer data describe TABLE` writes a first description") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a description, a TOML file") from None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path}: not readable as TOML ({error})") from None
    return description_of(content, str(path))


def description_of(content: Mapping[str, Any], where: str) -> Description:
    """Return the description of JSON values (`Description.to_dict`). Raises `InputError`, which begins with
    ``where``."""
    if unknown := [key for key in content if key not in _KEYS]:
        raise InputError(f"{where}: {unknown[0]!r} is unknown; known: {', '.join(_KEYS)}{nearest(unknown[0], _KEYS)}")
    name = content.get("name")
    if not isinstance(name, str):
        raise InputError(f'{where}: the kernel has no name; write name = "matmul"')
    sizes, batch = (_texts(content.get(key, []), f"{where}: {key}") for key in ("sizes", "batch"))
    tables = {key: content.get(key, {}) for key in ("settings", "parameters", "formulas")}
    for key, table in tables.items():
        if isinstance(table, list | tuple) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in table):
            table = tables[key] = dict(table)
        if not isinstance(table, Mapping):
            raise InputError(f"{where}: {key} is {_short(table)}; give a table, [{key}] with a line for each name")
    settings = {key: _texts(values, f"{where}: setting {key}") for key, values in tables["settings"].items()}
    parameters: dict[str, tuple[Value, ...]] = {}
    for key, values in tables["parameters"].items():
        if not isinstance(values, list | tuple) or not values:
            raise InputError(f"{where}: parameter {key} is {_short(values)}; give a list of its values")
        parameters[key] = tuple(values)
    described = Description(name, sizes, parameters, settings, batch=batch)
    names = frozenset((*sizes, *parameters))
    conditions = None
    if "conditions" in content:
        texts = _texts(content["conditions"], f"{where}: conditions")
        conditions = tuple(ElementwiseFormula.parse(text, f"{where}: condition", names) for text in texts)
    formulas = {}
    for key, text in tables["formulas"].items():
        if key not in COSTS:
            raise InputError(f"{where}: formula {key!r} is unknown; known: {', '.join(COSTS)}{nearest(key, COSTS)}")
        formulas[key] = ElementwiseFormula.parse(str(text), f"{where}: formula {key}", names)
    used = {name for formula in (*formulas.values(), *(conditions or ())) for name in formula.names}
    if text_parameters := [name for name in sorted(used & parameters.keys()) if not described.is_numeric(name)]:
        raise InputError(f"{where}: {text_parameters[0]} holds texts; formulas and conditions need numbers")
    return replace(described, conditions=conditions, formulas=formulas)


def _check_values(where: str, values: Sequence[Value]) -> None:
    """Raise `InputError` for values of several types, values given twice, and texts that a candidate's name cannot
    hold."""
    if not values:
        raise InputError(f"{where} has no values; give at least one")
    if odd := [value for value in values if not isinstance(value, bool | int | float | str)]:
        raise InputError(f"{where} has the value {odd[0]!r}; give numbers, texts, true or false")
    if len({isinstance(value, str) for value in values}) > 1:
        raise InputError(f"{where} has texts and numbers; give one type")
    if len({*map(str, values)}) < len(values):
        raise InputError(f"{where} has a value twice; give each once")
    for value in values:
        if isinstance(value, str) and _FORBIDDEN.search(value):
            raise InputError(
                f"{where} has the value {value!r}; a text cannot hold a comma, =, | or a control character"
            )
        if not isinstance(value, str) and not abs(value) <= MAX_EXACT:
            raise InputError(f"{where} has the value {_short(value)}; give numbers from -{MAX_EXACT} to {MAX_EXACT}")


def _texts(values: object, where: str) -> tuple[str, ...]:
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise InputError(f"{where} is {_short(values)}; give a list of texts")
    return tuple(values)


def _short(value: object) -> str:
    return repr(value)[:60]
