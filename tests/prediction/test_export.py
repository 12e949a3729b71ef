"""Tests of exported picks: JSON, a C header that is compiled and queried, and a find-db that is read back."""

import hashlib
import itertools
import json
import random
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from surrogate.bundle.bundle import Bundle
from surrogate.dataset.described import KernelColumns
from surrogate.features.algorithms import algorithm
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.families import parse_problem
from surrogate.features.gpu import gpu
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.formats.miopen import parse_key
from surrogate.models.configurations import Configurations
from surrogate.prediction.export import FIELDS, Picks, export, find_db_key, picks_for
from surrogate.prediction.predictor import Predictor
from surrogate.prediction.results import Limits
from tests.prediction.conftest import bundle_of

Table = Callable[..., pd.DataFrame]
CC = shutil.which("cc")
CONV_HEADER = "699b537b110f64a755d8b641d9219b4dcc4f31d07e0caa6e2da7bf7874ff7c3f"
"""SHA-256 of the header for one convolution, as the first version with headers wrote it."""


@pytest.fixture(scope="module")
def predictor(table: Table) -> Predictor:
    """Return a predictor of cuDNN's algorithms on a T4."""
    return Predictor(bundle_of(table(12, gpus=("Tesla T4", "TITAN Xp"))), gpu="t4")


@pytest.fixture(scope="module")
def amd(table: Table) -> Bundle:
    """Return a bundle with MIOpen's solvers on an MI210."""
    frame = table(12, gpus=("MI210",), algorithms=("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM"))
    names = {"IMPLICIT_GEMM": ("ImplicitGEMM", "ConvIg"), "IMPLICIT_PRECOMP_GEMM": ("GEMM", "GemmFwd")}
    solver = [names[a][1] for a in frame["algorithm"]]
    frame = frame.assign(algorithm=[names[a][0] for a in frame["algorithm"]], solver=solver)
    frame = frame.assign(library="miopen", library_version="find-db v2").drop(columns="heuristic_algorithm")
    return bundle_of(frame, candidate="solver")


def convs(count: int, seed: int = 0) -> list[Conv]:
    """Return distinct problems, some of them 1×1, strided or grouped."""
    sizes = itertools.product((1, 8, 32), (16, 48, 128), (7, 14, 28), (1, 3), (1, 2), (False, True))
    problems = [
        Conv(n=n, c=c, h=h, k=c, r=r, pad_h=r // 2, stride_h=stride, groups=c if is_grouped else 1)
        for n, c, h, r, stride, is_grouped in random.Random(seed).sample(list(sizes), count)
    ]
    return sorted(problems, key=str)


def test_json_has_every_problem_and_its_ranking(predictor: Predictor) -> None:
    problems = convs(20)
    picks = picks_for(predictor, problems, Limits(deterministic=True))
    table = json.loads(export(picks, "json"))
    expected = {"kind": "seer-picks", "schema": 1, "gpu": gpu("Tesla T4").name, "library": "cudnn"}
    assert {name: table[name] for name in expected} == expected
    assert table["deterministic"] is True and table["workspace_limit_bytes"] is None
    assert [row["problem"] for row in table["picks"]] == [str(conv) for conv in problems]
    for conv, row in zip(problems, table["picks"], strict=True):
        ranked = predictor.select(conv, deterministic=True).candidates
        assert Conv(**{name: row[name] for name in conv.to_dict()}) == conv
        assert (row["algorithm"], row["time_us"]) == (ranked[0].algorithm, ranked[0].time_us)
        assert row["enum"] == algorithm(row["algorithm"]).enum
        assert [row["algorithm"] for row in row["fallbacks"]] == [candidate.algorithm for candidate in ranked[1:]]
        assert row["lower_us"] < row["time_us"] < row["upper_us"]
        assert "solver" not in row


def test_json_has_each_problem_once_and_lists_infeasible_ones(refused, predictor: Predictor) -> None:
    problems = convs(3)
    picks = picks_for(predictor, [*problems, *problems], Limits(0))
    assert len(picks.selections) == 3
    table = json.loads(export(picks, "json"))
    assert len(table["picks"]) + len(table["infeasible"]) == 3
    nothing = Picks(tuple(replace(s, estimates=()) for s in picks.selections), Limits(0), "m", "d")
    emptied = json.loads(export(nothing, "json"))
    assert emptied["picks"] == [] and len(emptied["infeasible"]) == 3
    for form in ("c-header", "miopen-user-db"):
        with refused():
            export(nothing, form)


needs_compiler = pytest.mark.skipif(CC is None, reason="no C compiler here")


def answered(program: str, folder: Path, *defined: str, given: str = "") -> list[str]:
    """Return the lines printed by a C program of headers/, built with every warning an error."""
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-I", ".", *defined]
    source = Path(__file__).with_name("headers") / f"{program}.c"
    subprocess.run([str(CC), *flags, "-o", "main", str(source)], cwd=folder, check=True)
    run = subprocess.run([folder / "main"], input=given, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def looked_up(problems: list[Conv], folder: Path, *defined: str) -> list[str]:
    """Return the lines that a program prints for the problems, by the header ``picks.h`` of the folder."""
    fields = f"-DFIELDS={', '.join(f'&p.{name}' for name in FIELDS)}", f"-DFIELD_COUNT={len(FIELDS)}"
    lines = "\n".join(" ".join(map(str, _numbers(conv))) for conv in problems)
    return answered("conv", folder, "-pedantic", *fields, *defined, given=lines)


@needs_compiler
def test_the_header_names_the_solver_of_each_pick(amd: Bundle, tmp_path: Path) -> None:
    predictor, problems = Predictor(amd), convs(15)
    (tmp_path / "picks.h").write_text(export(picks_for(predictor, problems), "c-header"))
    solvers = [line.split()[0] for line in looked_up(problems, tmp_path, "-DSOLVERS")]
    assert solvers == [predictor.select(conv).candidates[0].solver for conv in problems]
    assert len({*solvers}) == 2


@needs_compiler
def test_the_header_compiles_and_answers(predictor: Predictor, tmp_path: Path) -> None:
    """Every exported problem is found; other batches and directions are not."""
    problems = convs(60)
    (tmp_path / "picks.h").write_text(export(picks_for(predictor, problems), "c-header"))
    others = [conv.with_batch(conv.n + 100) for conv in problems]
    backward = Conv(**{**problems[0].to_dict(), "direction": "bwd_data"})
    answers = looked_up([*problems, *others, backward], tmp_path)
    for conv, line in zip(problems, answers, strict=False):
        ranked = predictor.select(conv).candidates
        enum, fallback, time_us = line.split()
        assert int(enum) == algorithm(ranked[0].algorithm).enum
        assert int(fallback) == (algorithm(ranked[1].algorithm).enum if len(ranked) > 1 else -1)
        assert float(time_us) == pytest.approx(ranked[0].time_us, rel=1e-6)
    assert answers[len(problems) :] == ["none"] * (len(others) + 1)


@needs_compiler
def test_headers_of_other_families_compile_and_answer(many_families: Bundle, tmp_path: Path) -> None:
    """The types are named after their family, so one program can include several headers."""
    predictor = Predictor(many_families, gpu="t4")
    products = [parse_problem(f"gemm:m{m}n512k256") for m in (64, 200, 512, 3000)]
    for name, problems in (("gemm.h", products), ("relu.h", [parse_problem("relu:n8c64h56w200")])):
        (tmp_path / name).write_text(export(picks_for(predictor, problems), "c-header"))
    answers = answered("families", tmp_path)
    for problem, line in zip((products[0], products[-1]), answers, strict=False):
        best = predictor.select(problem).candidates[0]
        assert line == f"{best.library} {best.algorithm} {best.time_us:.6e}"
    assert answers[2:] == ["none", "none"]


@needs_compiler
def test_the_header_of_a_described_kernel_compiles_and_answers(tmp_path: Path) -> None:
    """A configuration is a struct of its parameters; a size may be called `int`."""
    columns = KernelColumns(("block", "share", "fast", "order"), ("m", "int"), ("dtype",), "own_kernel")
    configurations = itertools.product((16, 128), (0.5, 1), (True, False), ('a"b?', "col\\é"))
    rows = [(m, m, "fp16", *c) for m in (16, 64, 4096) for c in configurations]
    frame = pd.DataFrame(rows, columns=["m", "int", "dtype", *columns.parameters]).assign(gpu="our own")
    frame["time_us"] = 5 + abs(frame["m"] / 32 - frame["block"]) + 3 * frame["share"] - frame["fast"]
    predictor = Predictor(bundle_of(frame, Configurations(), columns))
    picks = picks_for(predictor, [predictor.read(f"m{m}int{m}") for m in (16, 64, 4096)])
    (tmp_path / "picks.h").write_text(export(picks, "c-header"))
    best = [selection.candidates[0].parameters or {} for selection in picks.selections]
    expected = [
        f"{m} {p['block']} {p['share']:g} {p['fast']:d} {p['order']}" for m, p in zip((16, 64, 4096), best, strict=True)
    ]
    assert answered("described", tmp_path) == expected
    table = json.loads(export(picks, "json"))
    assert [row["parameters"] for row in table["picks"]] == best
    assert [len(row["fallbacks"]) for row in table["picks"]] == [10] * 3


def test_json_names_the_library_of_each_candidate(many_families: Bundle) -> None:
    picks = picks_for(Predictor(many_families, gpu="t4"), [parse_problem("gemm:m64n512k256")])
    (row,) = json.loads(export(picks, "json"))["picks"]
    assert (row["library"], row["fallbacks"][0]["library"], row["m"]) == ("cublas", "torch", 64)


def test_the_header_of_convolutions_is_unchanged(predictor: Predictor) -> None:
    """Users' programs include it."""
    conv = Conv(n=8, c=64, h=28, k=64, r=3, pad_h=1)
    selection = predictor.select(conv)
    first, second = selection.estimates[:2]
    candidates = replace(first.candidate, algorithm="GEMM"), replace(second.candidate, algorithm="FFT")
    estimates = tuple(
        replaced._replace(candidate=candidate, time_us=time_us, workspace_bytes=1024)
        for replaced, candidate, time_us in zip((first, second), candidates, (12.5, 25.0), strict=True)
    )
    picks = Picks((replace(selection, estimates=estimates),), Limits(), "model", "data")
    header = export(picks, "c-header")
    assert hashlib.sha256(header.encode()).hexdigest() == CONV_HEADER


def _numbers(conv: Conv) -> list[int]:
    """Return sizes and settings as numbers; settings are the header's enumerators."""
    return [*conv.sizes, {"fwd": 0, "bwd_data": 1, "bwd_filter": 2}[conv.direction], 1, 0, 0]


def _as_miopen_reads(text: str) -> dict[str, dict[str, tuple[float, int, str]]]:
    """Parse a text database by MIOpen's rules, independently of the package's reader.

    ``DbRecord::ParseContents`` and ``FindDbData`` define them: the key ends at the first ``=``,
    ``;`` separates entries, and an id ends at its first ``:``. The values are a
    float in ms, a size_t and the algorithm.
    """
    records: dict[str, dict[str, tuple[float, int, str]]] = {}
    for line in text.splitlines():
        key, equals, contents = line.partition("=")
        assert key and equals and contents and key not in records
        for entry in contents.split(";"):
            solver, colon, values = entry.partition(":")
            time_ms, workspace, algorithm_name = values.split(",")
            assert solver and colon and solver not in records.setdefault(key, {})
            records[key][solver] = float(time_ms), int(workspace), algorithm_name
    return records


def test_the_find_db_is_read_by_miopens_rules(amd: Bundle) -> None:
    picks = picks_for(Predictor(amd), convs(15))
    records = _as_miopen_reads(export(picks, "miopen-user-db"))
    assert len(picks.feasible) == len(records) > 0
    for selection in picks.feasible:
        record = records[find_db_key(selection.problem)]
        assert min(record, key=lambda solver: record[solver][0]) == selection.candidates[0].solver
        for candidate in selection.candidates:
            time_ms, workspace, name = record[candidate.solver]
            assert time_ms == pytest.approx(candidate.time_us / 1e3) and workspace == candidate.workspace_bytes
            assert name.endswith(candidate.algorithm) and name.startswith("miopenConvolution")


@given(st.from_type(Conv))
@settings(max_examples=60)
def test_every_find_db_key_is_read_back(conv: Conv) -> None:
    key = parse_key(find_db_key(conv))
    assert key is not None
    assert (key.sizes, key.direction, key.layout, key.dtype) == (conv.sizes, conv.direction, conv.layout, conv.dtype)
    assert (key.out_h, key.out_w) == (conv.out_h, conv.out_w)


def test_keys_equal_those_of_a_real_find_db(measurements: Path) -> None:
    lines = (measurements / "raw" / "miopen_gfx90a68_v2_sample.fdb.txt").read_text().splitlines()
    compared = 0
    for line in lines:
        key = parse_key(line.partition("=")[0])
        if key is None or key.casts or key.dtype not in ("fp32", "fp16", "bf16") or key.layout not in ("NCHW", "NHWC"):
            continue
        values = dict(zip(SIZE_COLUMNS, key.sizes, strict=True))
        try:
            conv = Conv(**values, dtype=key.dtype, layout=key.layout, direction=key.direction)
        except InputError:
            continue  # MIOpen times problems whose filter does not fit
        text = line.partition("=")[0]
        assert find_db_key(conv) in (text, text.replace(f"{key.layout}-{key.layout}-{key.layout}", key.layout))
        compared += 1
    assert compared > 20


def test_a_find_db_is_refused_without_miopen_solvers(refused, predictor: Predictor, amd: Bundle, table: Table) -> None:
    with refused("cudnn"):
        export(picks_for(predictor, convs(2)), "miopen-user-db")
    picks = picks_for(Predictor(amd), convs(2))
    by_algorithm = Picks(picks.selections, Limits(), "m", "d", "algorithm")
    with refused("--candidate solver"):
        export(by_algorithm, "miopen-user-db")
    with refused("no problem was given"):
        picks_for(predictor, [])
