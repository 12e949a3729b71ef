"""The public names, signatures, result fields, commands and options, beside the list that was agreed to.

A change that is meant is accepted by ``python tests/test_api.py``, which writes `tests/golden/api.json` anew.
"""

import dataclasses
import importlib
import inspect
import json
import re
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

GOLDEN = Path(__file__).parent / "golden" / "api.json"
ACCEPT = "python tests/test_api.py"
ROOMS = (
    "surrogate", "surrogate.dataset", "surrogate.prediction.export", "surrogate.formats", "surrogate.models",
    "surrogate.network", "surrogate.operators", "surrogate.streaming", "surrogate.trace", "surrogate.trace.graph",
    "surrogate.trace.whatif", "surrogate.evaluation.tune",
)  # fmt: skip
"""The packages whose ``__all__`` is public."""


def surface() -> dict[str, dict[str, str]]:
    """Everything public: name → what it takes, holds or is, in one line; Python's names, then the commands."""
    python: dict[str, str] = {}
    homes: dict[int, str] = {}
    for room, short, each in _public():
        name = f"{room}.{short}"
        first = homes.setdefault(id(each), name)
        python |= _described(name, each) if first == name else {name: f"is {first}"}
    return {"python": python, "commands": dict(sorted(_commands()))}


def _public() -> Iterator[tuple[str, str, Any]]:
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in sorted(module.__all__):
            yield room, name, getattr(module, name)


def _described(name: str, each: Any) -> dict[str, str]:
    if inspect.isclass(each):
        return {name: f"class{_signature(each)}", **_members(name, each)}
    if callable(each):
        return {name: f"def{_signature(each)}"}
    keys = f": {', '.join(map(str, each))}" if isinstance(each, Mapping | tuple) else ""
    return {name: f"{type(each).__name__}{keys}"}


def _members(name: str, cls: type) -> dict[str, str]:
    """Fields, methods and properties, inherited ones too, those of Python's own classes left out."""
    found: dict[str, str] = {}
    if dataclasses.is_dataclass(cls):
        frozen = " (frozen)" if cls.__dataclass_params__.frozen else ""  # type: ignore[attr-defined]
        for one in dataclasses.fields(cls):
            if not one.name.startswith("_"):
                found[f"{name}.{one.name}"] = f"field {_plain(inspect.formatannotation(one.type))}{frozen}"
    for base in reversed(cls.__mro__):
        if base.__module__ in ("builtins", "typing"):
            continue
        for member, value in vars(base).items():
            if not member.startswith("_"):
                found |= _member(f"{name}.{member}", value)
    return dict(sorted(found.items()))


def _member(name: str, value: Any) -> dict[str, str]:
    if isinstance(value, property):
        return {name: "property"}
    if isinstance(value, classmethod | staticmethod):
        return {name: f"{type(value).__name__}{_signature(value.__func__)}"}
    if isinstance(value, types.FunctionType):
        return {name: f"method{_signature(value)}"}
    return {}


def _signature(each: Any) -> str:
    try:
        return _plain(str(inspect.signature(each)))
    except ValueError:  # a built-in exception's constructor
        return "(…)"


def _plain(text: str) -> str:
    """Annotations as every version of Python, NumPy and pandas prints them: names without their modules."""
    text = re.sub(r"[A-Za-z_][\w.]*\.(\w+)", r"\1", text.replace("'", ""))
    return re.sub(r"ndarray\[(?:[^\[\]]|\[[^\]]*\])*?dtype\[(\w+?)_?\]\]", r"ndarray[\1]", text)


def _commands() -> Iterator[tuple[str, str]]:
    from surrogate.cli import seer

    def walk(path: str, command: click.Command) -> Iterator[tuple[str, str]]:
        for param in command.params:
            flags = "/".join([*param.opts, *param.secondary_opts])
            yield f"{path} {flags}", _parameter(param)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None, f"{path} {name} is listed, but not there"
                yield f"{path} {name}", "command"
                yield from walk(f"{path} {name}", found)

    return walk("seer", seer)


def _parameter(param: click.Parameter) -> str:
    flag = isinstance(param, click.Option) and param.is_flag
    kind = "flag" if flag else "|".join(getattr(param.type, "choices", ())) or param.type.name
    words = [
        kind,
        "required" if param.required else "",
        "repeatable" if getattr(param, "multiple", False) else "",
    ]
    if isinstance(param, click.Argument):
        words += ["argument", "any number" if param.nargs == -1 else ""]
    if isinstance(param.default, str | int | float) and not flag:
        words.append(f"default {param.default}")
    return ", ".join(word for word in words if word)


def difference(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    """One line for each name that was added, removed or changed."""
    lines = []
    for part in now:
        old, new = before.get(part, {}), now[part]
        lines += [f"removed: {name} ({old[name]})" for name in old if name not in new]
        lines += [f"added: {name} ({new[name]})" for name in new if name not in old]
        lines += [
            f"changed: {name}: {old[name]} → {new[name]}"
            for name in new
            if old.get(name, new[name]) != new[name]
        ]
    return lines


def test_the_public_surface_is_the_agreed_one() -> None:
    before = json.loads(GOLDEN.read_text(encoding="utf-8"))
    lines = difference(before, json.loads(json.dumps(surface())))
    assert not lines, "\n".join(
        ["the public surface changed:", *lines, f"If that is meant, say so in CHANGELOG.md and run: {ACCEPT}"]
    )


def test_a_change_is_named() -> None:
    before = {"python": {"a": "def()", "b": "def(x)"}, "commands": {}}
    now = {"python": {"b": "def(x, y)", "c": "class()"}, "commands": {}}
    assert difference(before, now) == [
        "removed: a (def())", "added: c (class())", "changed: b: def(x) → def(x, y)",
    ]  # fmt: skip


def test_the_top_level_names_are_all_listed() -> None:
    """``__all__``, the homes that resolve it and ``dir`` say the same."""
    import surrogate

    for name in surrogate.__all__:
        assert getattr(surrogate, name) is not None
    assert set(dir(surrogate)) >= set(surrogate.__all__)
    assert len(surrogate.__all__) == len(set(surrogate.__all__))


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(surface(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
