"""Tests that a changed bundle with recomputed hashes is refused in one line or gives finite times."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings, strategies as st

import surrogate
from surrogate import bundled
from surrogate.bundle.bundle import INDEX, index_file, load, save
from surrogate.bundle.train import train
from surrogate.cli.info import command
from surrogate.features.errors import InputError
from surrogate.features.families import AnyProblem
from surrogate.features.gpu import cpu_device
from surrogate.models.trees import Trees
from surrogate.prediction.export import export, picks_for
from tests.damage import DAMAGE, damaged_bytes, write
from tests.known import cases, known_answers

BUNDLES = known_answers(__file__)["bundles"]
"""Shipped bundle → a GPU and a problem that it answers."""
Files = dict[str, bytes]
ACCEPTED = ("answered", "refused")


def bundle_files(name: str | Path) -> Files:
    """Return the files of a bundle, a shipped one or a folder, by path."""
    folder = bundled.FOLDER / name
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def changed(good: Files, gpu: str, random: Random) -> tuple[str, Files]:
    """Return a fault's name and the damaged files, with recomputed hashes; tables of other GPUs are not damaged."""
    read = [name for name in good if ".parquet" not in name or f"grid.{gpu}" in name]
    name = random.choice([INDEX, INDEX, *read])
    kind = name.rpartition(".")[2]
    files = dict(good)
    if random.random() < 0.05:
        fault = "a file in the place of another"
        files[name] = good[random.choice(list(good))]
    elif random.random() < 0.75:
        fault = f"values in {name if name == INDEX else f'.{kind}'}"
        files[name] = DAMAGE[kind](good[name], random)
    else:
        fault = f"bytes of {name if name == INDEX else f'.{kind}'}"
        files[name] = damaged_bytes(good[name], random)
    with suppress(ValueError, TypeError, KeyError, RecursionError):  # the index itself may be damaged
        index = json.loads(files[INDEX])
        if name != INDEX:
            index["sha256"][name] = hashlib.sha256(files[name]).hexdigest()
        files[INDEX] = index_file(index)
    return fault, files


def ask(folder: Path, gpu: str, problem: str) -> None:
    """Ask a bundle every kind of question; raise `ValueError` if a time is not positive and finite."""
    predictor = surrogate.load(folder, gpu=gpu)
    selection = predictor.select(problem)
    problems: list[str | AnyProblem] = [problem] * 20
    rows = predictor.predict(problems)
    export(picks_for(predictor, [selection.problem]), "json")
    info = CliRunner().invoke(command, [str(folder)])
    if info.exception and not isinstance(info.exception, InputError):
        raise info.exception
    for answer in (*selection.candidates, *rows):
        ends = answer.lower_us, answer.time_us, answer.upper_us
        if not 0 < ends[0] <= ends[1] <= ends[2] < float("inf"):
            raise ValueError(f"{ends} µs")


def outcome_of(call: Callable[[], object]) -> str:
    """Return ``answered``, ``refused``, or the error's text."""
    try:
        call()
    except InputError as error:
        line = str(error)
        return "refused" if len(line) <= 1000 and line.isprintable() else "more than a line"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return "answered"


def outcome(name: str, seed: int, folder: Path, question: Callable[[Path, str, str], object]) -> str:
    fault, files = changed(bundle_files(name), BUNDLES[name][0], Random(seed))
    done = outcome_of(partial(question, write(files, folder / f"{name} {seed}"), *BUNDLES[name]))
    return done if done in ACCEPTED else f"{fault}: {done}"


def selected(folder: Path, gpu: str, problem: str) -> object:
    return surrogate.load(folder, gpu=gpu).select(problem)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_a_damaged_bundle_is_refused_or_answers(tmp_path: Path, seed: int) -> None:
    assert outcome("language_quantise", seed, tmp_path, selected) in ACCEPTED


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLES)
def test_many_damaged_bundles_are_refused_or_answer(tmp_path: Path, name: str) -> None:
    assert {outcome(name, seed, tmp_path, ask) for seed in range(200)} == set(ACCEPTED)


def changed_bundle(name: str | Path, file: str, change: Callable[[Any], Any], folder: Path) -> Path:
    """Write a bundle with one JSON file changed and all hashes recomputed; return its folder."""
    files = bundle_files(name)
    content = json.loads(files[file])
    change(content)
    index = content if file == INDEX else json.loads(files[INDEX])
    files[file] = json.dumps(content).encode()
    index["sha256"] |= {} if file == INDEX else {file: hashlib.sha256(files[file]).hexdigest()}
    return write(files | {INDEX: index_file(index)}, folder)


@cases(__file__)
def test_the_error_names_the_invalid_value(file, path, value, message, tmp_path):
    """The value at ``path`` is replaced; the value "removed" removes it, "as conv" copies its neighbour."""

    def change(content: Any) -> None:
        *above, last = path
        for key in above:
            content = content[key]
        if value == "removed":
            content.pop(last)
        else:
            content[last] = content["conv"] if value == "as conv" else value

    with pytest.raises(InputError) as error:
        load(changed_bundle("cudnn7", file, change, tmp_path))
    assert message in str(error.value) and str(error.value).endswith("train the bundle again with `seer train`")


def test_a_users_device_is_saved_and_loaded(tmp_path: Path) -> None:
    cpu = cpu_device("my-cpu", {"threads_used": 2, "gemm_gflops": 90.0, "copy_gbs": 12.0, "last_level_cache_bytes": 0})
    save(replace(load(bundled.FOLDER / "language_quantise"), devices={"my-cpu": cpu}), tmp_path / "b")
    assert load(tmp_path / "b").devices == {"my-cpu": cpu}


@pytest.mark.parametrize(
    "change",
    [
        lambda trees: replace(trees, feature=np.where(trees.left < 0, trees.feature, 2**30)),
        lambda trees: replace(trees, value=np.where(trees.left < 0, np.float32("nan"), trees.value)),
        lambda trees: replace(trees, value=np.where(trees.left < 0, np.float32(1e30), trees.value)),
        lambda trees: replace(trees, left=np.where(trees.left < 0, -1, trees.left.max()).astype(np.int32)),
        lambda trees: replace(trees, roots=trees.roots[::-1]),
        lambda trees: replace(trees, roots=trees.roots[:1]),
        lambda trees: replace(trees, feature=trees.feature.astype(float)),
        lambda trees: replace(trees, missing_left=trees.missing_left[:-1]),
    ],
)
def test_inconsistent_trees_are_refused(refused, change: Callable[[Trees], Trees]) -> None:
    trees = load(bundled.FOLDER / "language_quantise").family_models["quantise"].boosted_arrays.trees  # pyright: ignore
    Trees.from_bytes(trees.to_bytes())
    with refused("do not fit one another"):
        Trees.from_bytes(change(trees).to_bytes())


def test_coefficients_of_other_columns_are_refused(refused, table, tmp_path):
    save(train(table(12, noise=0.02), model="linear-terms"), tmp_path / "b")
    for change in (lambda fit: fit["weights"].pop(), lambda fit: fit.update(intercept=None)):
        each = lambda fits, change=change: [change(fit) for fit in fits.values()]  # noqa: E731
        folder = changed_bundle(tmp_path / "b", "conv/model/coefficients.json", each, tmp_path / "c")
        with refused("linear-terms"):
            surrogate.load(folder, gpu="t4").select("n8c16h14k32r3p1")
