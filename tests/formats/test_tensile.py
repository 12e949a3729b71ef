"""Tensile's logic: excerpts of two untouched files (rocBLAS b520bc83f), and a compiled library made by hand."""

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest

from surrogate.dataset.checks import find_violations
from surrogate.dataset.store import read_dataset
from surrogate.features.errors import InputError
from surrogate.formats import FORMATS
from tests.conftest import Outcome
from tests.known import cases, known_answers

ANSWERS = known_answers(__file__)

SAMPLES = Path(__file__).parent / "samples"
NAVI21, VEGA20 = ((SAMPLES / f"tensile_{name}.yaml").read_text(encoding="utf-8") for name in ("navi21", "vega20"))
LIBRARY = json.loads((SAMPLES / "tensile_library.json").read_text(encoding="utf-8"))


def save(folder: Path, content: str, name: str = "logic.yaml") -> Path:
    path = folder / name
    path.write_text(content)
    return path


def test_percent_of_navi21s_peak(tmp_path: Path) -> None:
    imported = FORMATS["tensile"].read([save(tmp_path, NAVI21)])
    assert imported.notes == ("1 row left out: percents below 0.05 are rounded too coarsely",)
    first, second = imported.rows.to_dict("records")
    expected = ANSWERS["test_percent_of_navi21s_peak"]["expected"]
    assert {name: first[name] for name in expected} == expected
    # 2·768·128·256 operations at 10.988 × 443.3 GFLOP/s
    assert first["time_us"] == pytest.approx(10.333, rel=1e-3)
    assert (second["batch"], second["time_us"]) == (1280, pytest.approx(58.65, rel=1e-3))
    assert imported.candidates == "listed" and not find_violations(imported.rows)


def test_gflops_of_vega20_packed_and_in_a_folder(tmp_path: Path) -> None:
    """The fastest of a repeated size counts; other files of a folder are told and left out."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/logic.yaml.gz").write_bytes(gzip.compress(VEGA20.encode()))
    save(tmp_path, "- a\n- b\n", "other.yaml")
    imported = FORMATS["tensile"].read([tmp_path])
    rows = imported.rows.set_index("k")
    assert (rows["gpu"] == "mi60").all() and (rows["variant"] == "TT").all() and (rows["dtype"] == "fp32").all()
    assert rows.loc[3328, "time_us"] == pytest.approx(2 * 4288 * 3584 * 3328 / 9678.34e3)
    assert rows.loc[128, "time_us"] == pytest.approx(26.49, rel=1e-3)
    assert any("other.yaml: not as expected" in note for note in imported.notes)
    assert "1 row left out: the speed is not a number above 0" in imported.notes


def test_types_are_part_of_the_key(tmp_path: Path) -> None:
    """fp16 throughout is no HHS: the variant tells it."""
    half = NAVI21.replace("ComputeDataType: 0", "ComputeDataType: 4").replace("Accumulate: true", "Accumulate: false")
    rows = FORMATS["tensile"].read([save(tmp_path, NAVI21), save(tmp_path, half, "half.yaml")]).rows
    assert sorted(rows["variant"].unique()) == ["HB TN", "TN"] and len(rows) == 4


CU_110 = {"type": "And", "value": [{"type": "Processor", "value": "gfx90a"}, {"type": "CUCount", "value": 110}]}


@pytest.mark.parametrize(
    ("changes", "gpu"),
    [({}, "mi60"), ({"gfx906": "gfx90a"}, "mi250"), ({"gfx906": "gfx90a", "TruePred": CU_110}, "mi250x")],
)
def test_message_pack(tmp_path: Path, changes: dict[str, object], gpu: str) -> None:
    """Boards of one architecture are told apart by their compute units, where a condition names them."""
    path = tmp_path / "TensileLibrary_Type_HH.dat"
    text = json.dumps(LIBRARY)
    for old, new in changes.items():
        text = text.replace(f'"{old}"', json.dumps(new))
    path.write_bytes(msgpack.packb(json.loads(text)))
    (row,) = FORMATS["tensile"].read([path]).rows.to_dict("records")
    assert (row["gpu"], row["dtype"], row["variant"], row["tensile_type"]) == (gpu, "fp16", "", "HHS")
    assert (row["m"], row["n"], row["batch"], row["k"]) == (512, 256, 2, 128)
    assert row["time_us"] == pytest.approx(2 * 512 * 256 * 2 * 128 / 4e6)


def test_without_message_pack_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgpack", None)
    path = tmp_path / "TensileLibrary_gfx906.dat"
    path.write_bytes(msgpack.packb(LIBRARY))
    with pytest.raises(InputError, match="pip install msgpack"):
        FORMATS["tensile"].read([path])


@cases(__file__)
def test_copies_and_faults_are_refused_in_one_line(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    content = NAVI21
    for old, new in changes.items():
        assert old in content
        content = content.replace(old, new)
    with pytest.raises(InputError, match=reason) as refused:
        FORMATS["tensile"].read([save(tmp_path, content)])
    assert "\n" not in str(refused.value)


DAMAGED = [(b"\xc1", "is not MessagePack"), (b"\x01", "not as expected"), (b"\x91" * 4000, "is not MessagePack")]


@pytest.mark.parametrize(("content", "reason"), DAMAGED)
def test_damaged_message_pack(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "TensileLibrary_gfx906.dat"
    path.write_bytes(content)
    with pytest.raises(InputError, match=reason):
        FORMATS["tensile"].read([path])


def test_percents_of_other_boards_are_the_data_sheets(tmp_path: Path) -> None:
    content = NAVI21.replace("navi21", "gfx1201").replace("gfx1030", "gfx1201")
    imported = FORMATS["tensile"].read([save(tmp_path, content)])
    assert "3 rows hold percents, read as percents of the datasheet peak of rx-9070-xt" in imported.notes
    # 195 TFLOP/s of its matrix units in fp16
    assert imported.rows["time_us"].iloc[0] == pytest.approx(2 * 768 * 128 * 256 / (0.10988 * 195e6), rel=1e-6)


def test_on_the_command_line(tmp_path: Path, seer: Callable[..., Outcome]) -> None:
    out = tmp_path / "products.parquet"
    run = seer("import", "tensile", save(tmp_path, VEGA20), "-o", out)
    assert run.code == 0 and "2 rows, candidates listed" in run.out
    assert read_dataset(out).frame["variant"].tolist() == ["TT", "TT"]
    refused = seer("import", "tensile", "-o", out)
    assert refused.code == 2 and "give files or folders" in refused.err
