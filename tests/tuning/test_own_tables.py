"""A described kernel with formulas: limits of datasheets, units, conditions, and refused tables and queries."""

import itertools
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from surrogate.bundle.bundle import Bundle
from surrogate.bundle.train import train
from surrogate.dataset.checks import unit_warnings
from surrogate.dataset.rows import rows_of
from surrogate.dataset.store import as_dataset
from surrogate.evaluation.compare import compare
from surrogate.evaluation.coverage import allowed_evaluation_rows
from surrogate.features.description import description_of
from surrogate.features.gpu import gpu
from surrogate.models.configurations import Configurations
from surrogate.models.linear import LinearTerms
from surrogate.prediction.predictor import Predictor
from surrogate.tuning import Tuner, perf_model
from tests.known import cases, known_answers
from tests.tuning.made_up import COLUMNS, PARAMETERS, SHAPES, VALUES, times

FORMULAS = known_answers(__file__)["formulas"]
MEASURED = ("v100-sxm2-16gb", "a100-sxm4-80gb")
LARGE = "made_up:m4096n2048"
FLOPS = 2.0 * 4096 * 2048 * 768
TRUTH_US = times(((4096, 2048),), ("a100-sxm4-80gb",))["time_us"].min()
DESCRIPTION = COLUMNS.of(times(), "here").to_dict()


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Return the rows of every second made-up shape on the measured GPUs."""
    return times(SHAPES[::2], MEASURED)


@pytest.fixture(scope="module")
def own_bundle(table: pd.DataFrame) -> Bundle:
    """Return a bundle fitted on the table, with formulas and a condition."""
    described = {**DESCRIPTION, "formulas": FORMULAS, "conditions": ["warps < 9"]}
    return train(table, kernel=description_of(described, "here"))


@pytest.mark.parametrize("name", ["rtx-4090", "l4", "mi300x"])
def test_times_on_an_unmeasured_gpu_respect_its_datasheet(own_bundle: Bundle, name: str) -> None:
    selection = Predictor(own_bundle, gpu=name).select(LARGE)
    datasheet = gpu(name)
    max_tflops = max(datasheet.fp8_tensor_tflops, datasheet.int8_tensor_tflops, datasheet.fp16_tensor_tflops)
    for ranked in selection.candidates:
        assert ranked.time_us >= FLOPS / datasheet.fp16_tensor_tflops / 1e6 * 0.999
        assert ranked.lower_us >= FLOPS / max_tflops / 1e6 * 0.999
    limit = "65,536" if name == "mi300x" else "101,376"
    assert any(f"shared_bytes is above {limit}, the most on" in excluded.reason for excluded in selection.excluded)


def test_no_time_on_a_measured_gpu_is_shorter_than_its_flops(own_bundle: Bundle) -> None:
    """Caches may be faster than memory, so the bytes give no bound inside the measured sizes."""
    family = own_bundle.described_family
    model = own_bundle.family_models["made_up"].fitted
    assert isinstance(model, Configurations) and family is not None
    problem, board = family.problem({"m": 4000, "n": 2000}, {}), gpu("v100-sxm2-16gb")
    assert model.min_us("", problem, board) == pytest.approx(2 * 4000 * 2000 * 768 / board.fp16_tensor_tflops / 1e6)


def test_an_unmeasured_gpu_is_as_close_to_its_roofline_as_measured_gpus(table: pd.DataFrame) -> None:
    """The kernel moves 800 bytes per element at two thirds of the bandwidth of each GPU."""
    moved = 800.0 * table["m"] * table["n"]
    rate = table["gpu"].map(lambda name: gpu(str(name)).dram_gbs * 1e3)
    slower = 1 + 0.05 * table["warps"]
    formulas = {"flops": "2 * m * n", "bytes": "800 * m * n"}
    kernel = description_of({**DESCRIPTION, "name": "moved", "formulas": formulas}, "here")
    measured = table.assign(time_us=(1.5 * moved / rate * slower).where(table["status"] == "ok"))
    bundle = train(measured, kernel=kernel)
    for name in ("t4", "l4", "rtx-4090"):
        answer = Predictor(bundle, gpu=name).select("moved:m4096n2048")
        truth = 1.5 * 800 * 4096 * 2048 / gpu(name).dram_gbs / 1e3
        assert truth / 1.5 < answer.time_us < 1.5 * truth, name
        assert answer.candidates[0].lower_us < truth < answer.candidates[0].upper_us, name


def test_times_of_an_unknown_gpu_are_between_those_of_measured_gpus(own_bundle: Bundle) -> None:
    best = {name: Predictor(own_bundle, gpu=name).select(LARGE).time_us for name in (*MEASURED, "foo9")}
    low, high = sorted(best[name] for name in MEASURED)
    assert 0.7 * low <= best["foo9"] <= 1.4 * high
    notes = Predictor(own_bundle, gpu="foo9").select(LARGE).notes
    assert "the shared-memory limit of foo9 is unknown, so shared_bytes was not checked" in notes


def test_configurations_that_cannot_run_come_last_and_have_the_reason(own_bundle: Bundle) -> None:
    """On an RTX 4090 a block has at most 101,376 bytes of shared memory; 128 × 64 tiles need 16 × 128 × 64 bytes."""
    values = [dict(zip(PARAMETERS, each, strict=True)) for each in itertools.product(*VALUES.values())]
    cannot_run = np.array([each["block_m"] * each["block_n"] * 16 > 101_376 for each in values])
    size = {"m": 4096, "n": 2048}
    model = perf_model(own_bundle, gpu="rtx-4090")
    scores = np.array([model(**size, **each) for each in values])
    assert 0 < cannot_run.sum() < len(values) and scores[cannot_run].min() > scores[~cannot_run].max()
    order = Tuner(own_bundle, "rtx-4090", size, configurations=values).ask(len(values))
    assert [cannot_run[values.index(each)] for each in order] == sorted(cannot_run)
    answers = Predictor(own_bundle, gpu="rtx-4090").predict(pd.DataFrame([{**size, **each} for each in values]))
    reasons = ["cannot run: shared_bytes is above 101,376" in " ".join(notes) for notes in answers.notes]
    assert reasons == cannot_run.tolist() and not answers.supported[cannot_run].any()


def test_a_gpu_with_few_shapes_has_the_width_of_an_unmeasured_gpu(own_bundle: Bundle) -> None:
    """Without two other GPUs the width is an assumption, a factor of 3. The domain is the GPU's own."""
    few = times(SHAPES[:2], ("a100-sxm4-80gb",))
    table = pd.concat([times(SHAPES, ("v100-sxm2-16gb",)), few])
    bundle = train(table, kernel=own_bundle.kernel)
    best = Predictor(bundle, gpu="a100").select("m4096n2048").best
    selection = Predictor(bundle, gpu="a100").select("m4096n2048")
    assert best is not None and best.upper_us / best.time_us >= 3.0 > best.time_us / TRUTH_US > 1 / 3
    assert "measurements of 2 shapes alone" in selection.notes[0]
    assert "m 4096 lies outside the measured 64 … 64 on a100-sxm4-80gb" in str(selection.reason)
    measured = Predictor(bundle, gpu="v100").select("m2000n2000").best
    assert measured is not None and measured.upper_us / measured.time_us < 2.0


def test_the_slowdown_counts_configurations_that_the_conditions_allow(table: pd.DataFrame) -> None:
    """In a problem whose two-warp rows alone are allowed, the fastest of them is the reference."""
    kernel = description_of({**DESCRIPTION, "conditions": ["warps < 4"]}, "here")
    data = as_dataset(table, kernel)
    rows = rows_of(data.frame, data.described_family, data.devices)
    assert set(rows.frame["warps"][allowed_evaluation_rows(rows, data.candidates)]) == {2}


@pytest.mark.slow
def test_the_first_ten_hold_the_fastest_as_often_as_stated() -> None:
    """Half of the shapes of a measured kernel are held out; the bound is three standard errors."""
    table = pd.read_parquet(Path(__file__).parents[2] / "experiments/data/cpu_matmul.parquet")
    shapes = table[["m", "n", "k"]].drop_duplicates()
    names = ["tile_m", "tile_n", "item_m", "item_n", "vector", "unroll_k", "staged"]
    trained = table.merge(shapes.iloc[::2])[["gpu", "m", "n", "k", *names, "status", "time_us"]]
    predictor = Predictor(train(trained, sizes=["m", "n", "k"], parameters=names, name="product"))
    stated, held = [], []
    for m, n, k in shapes.iloc[1::2].to_numpy().tolist():
        own = table[(table["m"] == m) & (table["n"] == n) & (table["k"] == k)]
        fastest = own.loc[own["time_us"].idxmin(), names].to_dict()
        first = predictor.select(f"m{m}n{n}k{k}").candidates[:10]
        stated.append(sum(each.probability_best for each in first))
        held.append(fastest in [each.parameters for each in first])
    mean = np.mean(stated)
    assert abs(mean - np.mean(held)) < 3 * np.sqrt(mean * (1 - mean) / len(held))


def test_a_launch_takes_at_least_1_us_and_a_size_of_0_is_refused(refused, own_bundle: Bundle) -> None:
    predictor = Predictor(own_bundle, gpu="v100")
    tiny = predictor.select("m1n1")
    assert tiny.candidates[0].lower_us >= 1.0
    assert [size for size in "mn" if f"{size} 1 lies outside" not in str(tiny.reason)] == []
    with refused("m is 0, which was never measured"):
        predictor.select("m0n1")
    with refused("version 9 of made_up was never measured"):
        predictor.select("m64n128", library_version="9")


def test_excluded_configurations_are_counted_by_reason(own_bundle: Bundle) -> None:
    measured = Predictor(own_bundle, gpu="v100").select("made_up:m64n128")
    notes = [note for note in measured.table().notes if "excluded" in note]
    assert notes == ["excluded 2 configurations: failed in its measurement"]
    assert (measured.candidates[0].workspace_bytes, measured.candidates[0].deterministic) == (None, None)


@cases(__file__)
def test_a_description_that_contradicts_the_rows_is_refused(refused, table, change, words):
    with refused(words):
        train(table, kernel=description_of({**DESCRIPTION, **change}, "here"))


def test_suspicious_units_and_conditions_give_warnings(table: pd.DataFrame) -> None:
    kernel = description_of({**DESCRIPTION, "formulas": FORMULAS, "conditions": ["warps < 8"]}, "here")
    for factor, words in ((1.0, []), (1e-6, ["are these s"] * 2), (1e-3, ["are these ms"] * 2)):
        data = as_dataset(table.assign(time_us=table["time_us"] * factor), kernel)
        over, *units, condition = unit_warnings(data.frame, described_family=data.described_family)
        assert over.startswith("24 of 420 rows ran although shared_bytes is above 98,304, the most on v100-sxm2-16gb")
        expected = [f"{word}, or are flops or bytes too large?" for word in words]
        assert [warning.rpartition("µs, ")[2] for warning in units] == expected
        assert f"'warps < 8' excludes {(table['warps'] == 8).sum():,} of" in condition


def test_columns_that_are_not_used_are_named(table: pd.DataFrame) -> None:
    """Alternating texts look like a setting; a column of one value does not."""
    types = ["fp16", "fp32"] * (len(table) // 2)
    data = as_dataset(table.assign(dtype=types, host="a"), description_of(DESCRIPTION, "here"))
    first, *_ = unit_warnings(data.frame, described_family=data.described_family)
    assert first.startswith("columns that are not used: dtype; ")


def test_repeated_configurations_become_their_median(table: pd.DataFrame) -> None:
    first = table[table["status"] == "ok"].head(1)
    repeats = [first.assign(time_us=time_us) for time_us in (1.0, 5.0, 9.0)]
    data = as_dataset(pd.concat([table.drop(first.index), *repeats]), COLUMNS)
    assert (len(data), data.metadata["repeats"], data.frame["time_us"].iloc[-1]) == (len(table), 2, 5.0)


def test_models_are_compared_on_a_table_without_formulas(table: pd.DataFrame, monkeypatch) -> None:
    """A model that cannot be fitted has a reason and no rows."""
    monkeypatch.setattr(LinearTerms, "_fit", lambda *_: 1 / 0)
    names = {"sizes": ["m", "n"], "parameters": PARAMETERS}
    rows = compare(table, models="linear-terms,linear-dims", folds_count=3, **names).results["choice_rows"]
    outcome = {row["model"]: (bool(row["n"]), row.get("reason")) for row in rows}
    assert outcome["linear-dims"] == (True, None)
    assert outcome["linear-terms"] == (False, "linear-terms: ZeroDivisionError: division by zero")


def test_kept_fits_are_not_reused_for_another_description(tmp_path: Path) -> None:
    kept_files = []
    for flops in ("m * n", "m * n * 4096"):
        kernel = description_of({**DESCRIPTION, "formulas": {"flops": flops}}, "here")
        train(times(SHAPES[:2], MEASURED[:1]), kernel=kernel, keep=tmp_path)
        kept_files.append(len(list(tmp_path.iterdir())))
    assert kept_files[1] == 2 * kept_files[0] > 0


@cases(__file__)
def test_invalid_options_are_refused_in_one_line(refused, table, options, words):
    with refused(words):
        train(table, **options)


def test_a_tuner_uses_the_median_and_warns_of_other_units(own_bundle: Bundle) -> None:
    tuner = Tuner(own_bundle, "l4", LARGE)
    assert all(16 * c["block_m"] * c["block_n"] <= 101_376 for c in tuner.configurations)
    (configuration,) = tuner.ask()
    with pytest.warns(UserWarning, match="give all times in µs"):
        tuner.tell(configuration, 1e-3)
    for time_us in (500.0, 700.0):
        tuner.tell(configuration, time_us)
    assert tuner.evaluations == 1
    assert tuner.best == (configuration, 500.0)


@pytest.mark.usefixtures("few_rounds")
def test_commands_lead_from_a_table_to_answers(seer, tmp_path, monkeypatch) -> None:
    """Files that are no tables are refused."""
    monkeypatch.chdir(tmp_path)
    table = times(SHAPES[:6], ("v100-sxm2-16gb", "our own gpu"))
    table.to_csv("mine.csv", index=False)
    table.head(40).drop(columns=["time_us", "status"]).to_csv("ask.csv", index=False)
    pd.DataFrame({"gpu": ["v10", "v100"], "m": 64, "n": 128}).to_csv("near.csv", index=False)
    given = known_answers(__file__)
    for name, content, *words in given["other_files"]:
        Path(name).write_text(content)
        assert seer("train", name, "--sizes", "m,n", "--parameters", "w", "-o", "C").is_refusal(*words)
    for command, *words in given["commands"]:
        done = seer(*shlex.split(command.format(columns=given["columns"]))).succeeded()
        assert [word for word in words if word not in done.out + done.err] == [], command
    for command, *words in given["refused_commands"]:
        assert seer(*shlex.split(command)).is_refusal(*words), command
    chosen = seer("select", "--bundle", "B", "--gpu", "a100", "mine:m64n300", "--top", 3, "--json")
    assert [each["parameters"].keys() for each in chosen.json["candidates"]] == [VALUES.keys()] * 3
    (first, *_) = seer("data", "info", "mine.csv", *given["columns"].split(), "--json").json
    assert (first["problems"], first["shapes"]) == (6, 6)
    assert len(pd.read_parquet("out.parquet")) == 40
    assert pd.read_csv("out.csv")["source"].tolist() == ["similar-gpu", "measured"]
    assert 'name = "mine"' in Path("k.toml").read_text()
