"""Reading Kernel Tuner's caches, T4 and T1 files; samples: AutoTuningAssociation/benchmark_hub (MIT)."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from surrogate.features.description import description_of
from surrogate.features.errors import InputError
from surrogate.formats import FORMATS
from surrogate.formats.imported import Imported
from surrogate.formats.tuned import is_time
from tests.formats.conftest import kernel
from tests.known import cases, known_answers

SAMPLES = Path(__file__).parent / "samples"
CACHE, T4, T1 = (SAMPLES / f"convolution_milo{name}.json" for name in ("_A4000.cache", "_A4000.T4", ".T1"))
PARAMETERS = known_answers(__file__)["parameters"]
TIMES = ["status", "time_us", "time_us_min", "time_us_max", "repeats", "reason"]


def read(*paths: Path, **options: str) -> Imported:
    return FORMATS["kernel-tuner"].read(paths, **options)


def save(folder: Path, name: str = "a.json", **changes: Any) -> Path:
    """Write the sample cache with changed fields; None removes a field."""
    content = json.loads(CACHE.read_text()) | changes
    (folder / name).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    return folder / name


def test_real_cache_becomes_rows_and_a_kernel() -> None:
    imported = read(CACHE)
    rows = imported.rows
    assert rows.columns.tolist() == ["gpu", "size_x", "size_y", *PARAMETERS, *TIMES, "origin"]
    assert rows[["size_x", "size_y", *PARAMETERS]].dtypes.eq("int64").all()
    assert set(rows["gpu"]) == {"NVIDIA RTX A4000"} and set(rows["size_x"]) == {4096}
    first = rows.iloc[0]
    assert first[PARAMETERS].tolist() == [16, 1, 1, 1, 0, 0, 0, 1, 15, 15]
    assert first["time_us"] == pytest.approx(5900.493) and first["time_us_min"] == pytest.approx(5220.352)
    assert first[["status", "repeats"]].tolist() == ["ok", 32] and rows["reason"].isna().sum() == 5
    assert rows["status"].tolist() == ["ok", "ok", "ok", "failed", "ok", "ok", "failed"]
    assert rows.loc[rows["status"] == "failed", "reason"].tolist() == ["RuntimeFailedConfig"] * 2
    assert rows["time_us"].isna().tolist() == (rows["status"] == "failed").tolist()
    assert imported.candidates == "listed" and not imported.notes
    assert "conditions" not in kernel(imported)
    described = description_of(kernel(imported), "the table")
    assert (described.name, described.sizes) == ("convolution_kernel", ("size_x", "size_y"))
    assert described.parameters["tile_size_y"] == (1, 2, 3, 4)  # the excerpt measured only some of them


def test_rows_satisfy_the_conditions_of_the_t1_file() -> None:
    imported = read(CACHE, T1)
    described = description_of(kernel(imported), "the table")
    space = described.space({"size_x": 4096, "size_y": 4096})
    assert space is not None and len(space["block_size_x"]) == 4362
    assert len(described.conditions or ()) == 4
    allowed = set(zip(*(space[name].tolist() for name in PARAMETERS), strict=True))
    assert allowed.issuperset(imported.rows[PARAMETERS].itertuples(index=False, name=None))


def test_t4_file_gives_the_same_rows_as_the_cache(refused, tmp_path: Path) -> None:
    with refused("T4.json: the file names no GPU; give it with --gpu"):
        read(T4, T1)
    cache = read(CACHE, T1, gpu="a4000")
    results = read(T4, T1, gpu="a4000")
    assert kernel(results) == kernel(cache)
    assert set(results.rows["reason"].dropna()) == {"runtime"}
    differing = ["origin", "reason"]
    assert results.rows.drop(columns=differing).round(6).equals(cache.rows.drop(columns=differing).round(6))
    without_t1 = read(T4, gpu="a4000", name="my_kernel")
    assert (kernel(without_t1)["name"], kernel(without_t1)["sizes"]) == ("my_kernel", [])
    assert "size_x" not in without_t1.rows


def test_t4_times_are_converted_and_repeats_are_merged(tmp_path: Path) -> None:
    def result(value: object, **rest: Any) -> dict[str, Any]:
        measured = [{"name": "time", "value": value, "unit": "us"}]
        return {"configuration": {"a": 1}, "times": {}, "invalidity": "correct", "measurements": measured, **rest}

    runs = {"times": {"runtimes": [2e6, 4e6, 9e6]}, "measurements": []}
    results = [result(1000.0), result(3000), result(50.0, invalidity="correctness"), result(0, **runs)]
    (tmp_path / "a.json").write_text(json.dumps({"metadata": {"timeunit": "nanoseconds"}, "results": results}))
    rows = read(tmp_path / "a.json", gpu="t4").rows
    assert rows[["a", *TIMES[:-1]]].to_numpy().tolist() == [[1, "ok", 3000.0, 1000.0, 9000.0, 5]]
    (tmp_path / "a.json").write_text(json.dumps({"results": [results[2]]}))
    (row,) = read(tmp_path / "a.json", gpu="t4").rows[["status", "reason"]].to_numpy().tolist()
    assert row == ["failed", "correctness"]


def test_files_of_several_sizes_and_devices_become_one_table(refused, tmp_path: Path) -> None:
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(CACHE.read_bytes()))
    on_t4 = save(tmp_path, problem_size=100_000, device_name="Tesla T4")
    rows = read(tmp_path / "b.json.gz", on_t4, CACHE).rows
    counts = rows.groupby(["gpu", "size_x", "size_y"]).size().to_dict()
    assert counts == {("NVIDIA RTX A4000", 4096, 4096): 7, ("Tesla T4", 100_000, 1): 7}
    assert rows["repeats"].tolist()[:4] == [64, 64, 64, 0]
    unsized = save(tmp_path, problem_size="callable")
    assert kernel(read(unsized))["sizes"] == []
    with refused("a.json: the file has no problem size"):
        read(CACHE, unsized)


def test_one_of_several_kernels_is_chosen_by_name(refused, tmp_path: Path) -> None:
    other = save(tmp_path, kernel_name="conv<float, 4>")
    with refused("choose with --name: conv<float, 4>, convolution_kernel"):
        read(CACHE, other)
    for name in ("conv<float, 4>", "conv_float_4"):
        imported = read(CACHE, other, name=name)
        assert kernel(imported)["name"] == "conv_float_4" and set(imported.rows["origin"]) == {"a.json"}
    assert kernel(read(save(tmp_path, kernel_name="softmax")))["name"] == "softmax_kernel"


def test_parameters_may_be_texts_or_missing(tmp_path: Path) -> None:
    answers = known_answers(__file__)["texts_or_missing"]
    values: dict[str, list[Any]] = answers["values"]
    drawn = ({name: choices[-place % len(choices)] for name, choices in values.items()} for place in (0, 1))
    entries = {str(place): configuration | {"time": 1.5} for place, configuration in enumerate(drawn)}
    imported = read(save(tmp_path, tune_params=values, tune_params_keys=list(values), cache=entries))
    assert kernel(imported)["parameters"] == answers["parameters"]
    assert imported.rows["limit"].dtype == "int64" and imported.rows["scale"].dtype == "float64"
    assert [*imported.notes] == answers["notes"]


def test_conditions_other_than_arithmetic_are_dropped(tmp_path: Path) -> None:
    content = json.loads(T1.read_text())
    space = content["ConfigurationSpace"]
    space["Conditions"] += [{"Expression": "block_size_x in (16, 32)"}, {"Expression": "__import__('os')"}]
    space["TuningParameters"][0]["Values"] = "[16 * i for i in range(1, 17)]"
    (tmp_path / "T1.json").write_text(json.dumps(content))
    imported = read(CACHE, tmp_path / "T1.json")
    assert len(kernel(imported)["conditions"]) == 4 and len(imported.notes) == 3
    assert len(kernel(imported)["parameters"]["block_size_x"]) == 16
    assert "block_size_x are not a list" in imported.notes[0] and "no arithmetic" in imported.notes[1]


def test_truncated_cache_gives_its_complete_entries(refused, tmp_path: Path) -> None:
    """Kernel Tuner writes the closing brackets only at the end of a run."""
    path = tmp_path / "cut.json"
    text = CACHE.read_text()
    path.write_text(text.removesuffix("}\n}\n") + ",")
    imported = read(path)
    assert imported.rows.drop(columns="origin").equals(read(CACHE).rows.drop(columns="origin"))
    assert imported.notes == ("cut.json: the file is cut off; 7 complete configurations read",)
    paths = [tmp_path / f"{end}.json" for end in range(len(text) - 300, len(text) - 2)]
    for cut in paths:
        cut.write_text(text[: int(cut.stem)])
    imported = read(*paths)
    counts = {note.partition("off; ")[2] for note in imported.notes}
    assert counts == {f"{n} complete configurations read" for n in (6, 7)}
    assert len(imported.notes) == 298 and len(imported.rows) == 7
    path.write_text(text[: text.index('"16,1')])
    with refused("no configuration found"):
        read(path)


@cases(__file__)
def test_wrong_files_are_refused(refused, tmp_path: Path, changes: str, message: str) -> None:
    with refused("a.json", message):
        read(save(tmp_path, **json.loads(changes)))


def test_incompatible_files_are_refused(refused, tmp_path: Path) -> None:
    entry = {"a": 1, "time": 1}
    other = save(tmp_path, tune_params_keys=["a"], tune_params={"a": [1]}, cache={"1": entry})
    with refused("not all files have the parameters a, block_size_x"):
        read(CACHE, other)
    with refused("T1.json", "1 T1 files and 0 others given"):
        read(T1)
    with refused("a.json", "not JSON"):
        other.write_text('{"cache')
        read(other)


@cases(__file__)
def test_other_files_are_read(tmp_path: Path, sample: str, old: str, new: str, rows: list[Any], note: str) -> None:
    """KTT's T4 and JSON, and lists of Kernel Tuner before 1.0. Rows have the GPU, the first parameter and the time."""
    path = tmp_path / "a.json"
    path.write_text((SAMPLES / sample).read_text().replace(old, new))
    imported = read(path, **({} if sample == "ktt_own.json" else {"gpu": "t4"}))
    parameter = next(iter(kernel(imported)["parameters"]))
    assert imported.rows[["gpu", parameter, "time_us"]].fillna(0.0).to_numpy().tolist() == rows
    assert [note in each for each in imported.notes] == [True] * bool(note)


@cases(__file__)
def test_times_of_contradictory_or_unknown_units_are_refused(refused, tmp_path, sample, old, new, message):
    (tmp_path / "a.json").write_text((SAMPLES / sample).read_text().replace(old, new))
    with refused("a.json", message):
        read(tmp_path / "a.json", gpu="t4")


VALUES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.sampled_from(["", "a", "b,c", "0"])


@settings(max_examples=40)
@given(cells=st.lists(st.tuples(VALUES, VALUES | st.just("CompilationFailedConfig")), min_size=1, max_size=5))
def test_any_parameter_values_give_a_table_or_an_input_error(tmp_path_factory, cells):
    entries = {str(place): {"a": value, "b": 1, "time": time} for place, (value, time) in enumerate(cells)}
    folder = tmp_path_factory.getbasetemp()
    path = save(folder, "any.json", tune_params_keys=["a", "b"], tune_params={}, cache=entries)
    if any(value == "b,c" for value, _ in cells):
        with pytest.raises(InputError, match=r"any.json: .* has the value 'b,c'; a text cannot hold a comma"):
            read(path)
        return
    imported = read(path)
    described = description_of(kernel(imported), "the table")
    values = described.parameters.get("a", ())
    assert all(value in values for value in imported.rows.get("a", values))
    assert imported.rows["time_us"].notna().tolist() == (imported.rows["status"] == "ok").tolist()
    assert (imported.rows["status"] == "ok").any() == any(is_time(time) for _, time in cells)
