"""Forms of PROBLEM, BUNDLE and tables: lines of a log, capitals, names of GPUs, and tables with few columns."""

import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surrogate.cli.problem import CHOICES
from surrogate.features.conv import Conv
from surrogate.features.families import FAMILIES, parse_problem
from surrogate.prediction.shipped import load
from tests.known import cases

PROBLEM = "n8c64h28w28k64r3s3p1u1"


@cases(__file__)
def test_a_line_of_the_miopen_log_is_a_problem(seer, trained, words) -> None:
    """The line may be several words, one quoted word, or only its sizes."""
    found = seer("select", "--bundle", trained, "--gpu", "t4", "--json", *words).succeeded()
    assert found.json == seer("select", "--bundle", trained, "--gpu", "t4", "--json", PROBLEM).json


@cases(__file__)
def test_a_driver_line_gives_settings_and_the_drivers_defaults(line) -> None:
    sizes = {"n": 1, "c": 8, "h": 32, "w": 32, "k": 32, "r": 3, "s": 3}
    assert parse_problem(line) == Conv(**sizes, dtype="fp16", direction="bwd_filter", layout="NHWC")


@cases(__file__)
def test_a_driver_line_without_one_convolution_is_refused(refused, line, words) -> None:
    with refused(*words):
        parse_problem(f"MIOpenDriver {line}")


def test_capitals_are_ignored(seer, trained) -> None:
    words = ("select", "--bundle", trained, "--gpu", "T4", PROBLEM, "--json")
    lower = seer(*words, "--layout", "nhwc", "--dtype", "FP16").json
    assert lower == seer(*words, "--layout", "NHWC", "--dtype", "fp16").json


def predicted(seer, tmp_path, trained, frame: pd.DataFrame, *words: str) -> pd.DataFrame:
    frame.to_parquet(tmp_path / "in.parquet")
    out = tmp_path / "out.parquet"
    seer("predict", "--bundle", trained, *words, "--data", tmp_path / "in.parquet", "-o", out).succeeded()
    return pd.read_parquet(out)


def test_a_table_of_sizes_gets_the_fastest_algorithm(seer, trained, tmp_path) -> None:
    """Options and defaults replace missing columns, and the fastest algorithm is added."""
    frame = pd.DataFrame({"c": [64, 16], "n": [8, 1], "h": [28, 14], "k": [64, 16], "r": [3, 1], "pad_h": [1, 0]})
    out = predicted(seer, tmp_path, trained, frame, "--gpu", "t4")
    added = ["algorithm", "predicted_us", "lower_us", "upper_us", "in_domain", "supported", "library", "source"]
    assert list(out.columns) == [*frame.columns, *added]
    expected = load(trained, gpu="t4").predict(PROBLEM)
    assert out["algorithm"][0] == expected.algorithm and out["predicted_us"][0] == pytest.approx(expected.time_us)
    gemm = predicted(seer, tmp_path, trained, frame, "--gpu", "t4", "--algorithm", "GEMM")
    assert list(gemm.columns) == [*frame.columns, *added] and {*out["library"], *out["source"]} == {"cudnn", "model"}
    expected_us = load(trained, gpu="t4").predict(PROBLEM, "GEMM").time_us
    assert gemm["predicted_us"][0] == pytest.approx(expected_us)


@cases(__file__)
def test_an_invalid_table_is_refused(seer, trained, tmp_path, change, words, message) -> None:
    frame = pd.DataFrame({"n": [8], "c": [64], "h": [28], "k": [64], "r": [3]})
    frame = frame.assign(**{k: v for k, v in change.items() if v is not None})
    frame = frame.drop(columns=[k for k, v in change.items() if v is None])
    frame.to_parquet(tmp_path / "in.parquet")
    result = seer("predict", "--bundle", trained, *words, "--data", tmp_path / "in.parquet", "-o", tmp_path / "o")
    assert result.is_refusal(message), result.err
    assert not (tmp_path / "o").exists()


@pytest.mark.filterwarnings("default:columns small")
def test_reading_a_table_in_parts_gives_the_same_result(seer, trained, tmp_path, table, monkeypatch) -> None:
    """Rows, types, other columns and metadata do not depend on the size of the parts."""
    columns = pa.table(
        {
            **{name: table[name] for name in ("gpu", "algorithm", "n", "c", "h", "k", "r", "pad_h")},
            "small": pa.array([None if i % 7 else i for i in range(len(table))], pa.int16()),
            "nothing": pa.nulls(len(table), pa.string()),
            "kind": pa.array([("a", "b")[i % 2] for i in range(len(table))]).dictionary_encode(),
        }
    ).replace_schema_metadata({"seer_surrogate": json.dumps({"schema": 1, "mine": [1]})})
    pq.write_table(columns, tmp_path / "in.parquet", row_group_size=10)

    def predicted(name: str) -> pa.Table:
        words = ("--bundle", trained, "--data", tmp_path / "in.parquet", "-o", tmp_path / name)
        assert (result := seer("predict", *words)).code == 0, result.err
        assert f"{len(table)} rows" in result.out
        return pq.read_table(tmp_path / name)

    in_one = predicted("in_one.parquet")
    monkeypatch.setattr("surrogate.dataset.tables.PART_ROWS", 7)
    parts = predicted("parts.parquet")
    pd.testing.assert_frame_equal(parts.to_pandas(), in_one.to_pandas(), rtol=1e-9)
    assert parts.select(columns.column_names).cast(columns.schema).equals(columns, check_metadata=False)
    assert json.loads(parts.schema.metadata[b"seer_surrogate"]) == {"schema": 1, "mine": [1]}
    assert parts.schema.field("small").type == pa.int16() and parts.schema.field("nothing").type == pa.string()


def test_a_wrong_row_in_a_later_part_is_found(seer, trained, tmp_path, table, monkeypatch) -> None:
    """The error gives the row number in the whole table, and no file is written."""
    monkeypatch.setattr("surrogate.dataset.tables.PART_ROWS", 8)
    frame = table.head(40)[["gpu", "algorithm", "n", "c", "h", "k", "r", "pad_h"]]
    frame.loc[21, "n"] = 0
    frame.to_parquet(tmp_path / "in.parquet")
    result = seer("predict", "--bundle", trained, "--data", tmp_path / "in.parquet", "-o", tmp_path / "out.parquet")
    assert result.is_refusal("row 22: n is 0"), result.err
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


def test_a_table_is_printed_as_text(seer, tmp_path) -> None:
    (tmp_path / "in.csv").write_text("n,c,h,k,r\n8,64,28,64,3\n")
    printed = seer("predict", "--gpu", "v100", "--data", tmp_path / "in.csv", "-o", "-").succeeded()
    expected = load("v100").predict("n8c64h28k64r3").time_us
    assert str(expected)[:8] in printed.out and "/dev/stdout" in printed.err


def test_a_list_of_texts_is_a_table_and_its_notes_are_counted_by_kind(seer, tmp_path) -> None:
    """Problems above the memory differ only in their sizes; a text that is not readable has its row."""
    texts = ["n8c64h28k64r3", *(f"gemm:m{size}n400096k4096" for size in (400096, 500096))]
    (tmp_path / "list.txt").write_text("\n".join(["# mine", *texts, ""]))
    result = seer("predict", "--gpu", "v100", "--data", tmp_path / "list.txt", "-o", tmp_path / "o.csv").succeeded()
    assert result.out.count("does not fit") == 1 and "2 rows, such as: the problem does not fit" in result.out
    predicted = pd.read_csv(tmp_path / "o.csv")
    selections, predictions = load("v100").select(tmp_path / "list.txt"), load("v100").predict(texts)
    assert predicted["problem"].tolist() == texts
    assert [each.time_us for each in selections] == pytest.approx(predicted["predicted_us"])
    frame = selections.to_frame()
    assert frame.groupby("row").size().tolist() == [len(each.candidates) for each in selections]
    assert frame.groupby("row")["time_us"].min().tolist() == pytest.approx(predictions.to_frame()["time_us"])
    (tmp_path / "list.txt").write_text("n8c64h28k64r3\nn8c64\n")
    words = ["predict", "--gpu", "v100", "--data", tmp_path / "list.txt", "-o", "-"]
    assert seer(*words).is_refusal("row 2: problem 'n8c64'")


def test_the_options_of_a_problem_match_the_settings_of_the_families() -> None:
    """The choices are written out in `surrogate.cli.problem`; operators are not options."""
    settings = {name: set[str]() for family in FAMILIES.values() for name in family.settings}
    for family in FAMILIES.values():
        for name, values in family.settings.items():
            settings[name] |= set(values)
    assert {name: set(choices) for name, choices in CHOICES.items()} == {
        name: values for name, values in settings.items() if name != "operator"
    }
