"""Reading Tensile's logic: excerpts of two files (rocBLAS b520bc83f), and a hand-made compiled library."""

import gzip
import json
import sys
from pathlib import Path

import msgpack
import pytest

from surrogate.dataset.checks import find_violations
from surrogate.features.errors import InputError
from surrogate.formats import FORMATS
from tests.known import cases, known_answers

ANSWERS = known_answers(__file__)

SAMPLES = Path(__file__).parent / "samples"
NAVI21, VEGA20 = ((SAMPLES / f"tensile_{name}.yaml").read_text(encoding="utf-8") for name in ("navi21", "vega20"))
LIBRARY = json.loads((SAMPLES / "tensile_library.json").read_text(encoding="utf-8"))


def save(folder: Path, content: str, name: str = "logic.yaml") -> Path:
    path = folder / name
    path.write_text(content)
    return path


def test_percentages_of_navi21_become_times(tmp_path: Path) -> None:
    imported = FORMATS["tensile"].read([save(tmp_path, NAVI21)])
    assert imported.notes == ("1 row left out: percents below 0.05 are rounded too coarsely",)
    first, second = imported.rows.to_dict("records")
    expected = ANSWERS["test_percentages_of_navi21_become_times"]["expected"]
    assert {name: first[name] for name in expected} == expected
    # The row does 2·768·128·256 operations at 10.988 × 443.3 GFLOP/s.
    assert first["time_us"] == pytest.approx(10.333, rel=1e-3)
    assert (second["batch"], second["time_us"]) == (1280, pytest.approx(58.65, rel=1e-3))
    assert imported.candidates == "listed" and not find_violations(imported.rows)


def test_gflops_of_vega20_in_a_folder_become_times(tmp_path: Path) -> None:
    """The fastest row of a repeated size counts; a note names the other files of the folder."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/logic.yaml.gz").write_bytes(gzip.compress(VEGA20.encode()))
    save(tmp_path, "- a\n- b\n", "other.yaml")
    imported = FORMATS["tensile"].read([tmp_path])
    rows = imported.rows.set_index("k")
    assert rows[["gpu", "variant", "dtype"]].drop_duplicates().to_numpy().tolist() == [["mi60", "TT", "fp32"]]
    assert rows.loc[3328, "time_us"] == pytest.approx(2 * 4288 * 3584 * 3328 / 9678.34e3)
    assert rows.loc[128, "time_us"] == pytest.approx(26.49, rel=1e-3)
    assert any("other.yaml: not as expected" in note for note in imported.notes)
    assert "1 row left out: the speed is not a number above 0" in imported.notes


def test_compute_types_are_part_of_the_variant(tmp_path: Path) -> None:
    """Products that accumulate in fp16 differ from HHS, so the variant names the type."""
    half = NAVI21.replace("ComputeDataType: 0", "ComputeDataType: 4").replace("Accumulate: true", "Accumulate: false")
    rows = FORMATS["tensile"].read([save(tmp_path, NAVI21), save(tmp_path, half, "half.yaml")]).rows
    assert sorted(rows["variant"].unique()) == ["HB TN", "TN"] and len(rows) == 4


CU_110 = {"type": "And", "value": [{"type": "Processor", "value": "gfx90a"}, {"type": "CUCount", "value": 110}]}


@pytest.mark.parametrize(
    ("changes", "gpu"),
    [({}, "mi60"), ({"gfx906": "gfx90a"}, "mi250"), ({"gfx906": "gfx90a", "TruePred": CU_110}, "mi250x")],
)
def test_message_pack_library_is_read(tmp_path: Path, changes: dict[str, object], gpu: str) -> None:
    """If a condition names the compute units, they identify the board of an architecture."""
    path = tmp_path / "TensileLibrary_Type_HH.dat"
    text = json.dumps(LIBRARY)
    for old, new in changes.items():
        text = text.replace(f'"{old}"', json.dumps(new))
    path.write_bytes(msgpack.packb(json.loads(text)))
    (row,) = FORMATS["tensile"].read([path]).rows.to_dict("records")
    assert (row["gpu"], row["dtype"], row["variant"], row["tensile_type"]) == (gpu, "fp16", "", "HHS")
    assert (row["m"], row["n"], row["batch"], row["k"]) == (512, 256, 2, 128)
    assert row["time_us"] == pytest.approx(2 * 512 * 256 * 2 * 128 / 4e6)


def test_missing_msgpack_is_named_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgpack", None)
    path = tmp_path / "TensileLibrary_gfx906.dat"
    path.write_bytes(msgpack.packb(LIBRARY))
    with pytest.raises(InputError, match="pip install msgpack"):
        FORMATS["tensile"].read([path])


@cases(__file__)
def test_copied_figures_and_faulty_files_are_refused(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    content = NAVI21
    for old, new in changes.items():
        assert old in content
        content = content.replace(old, new)
    with pytest.raises(InputError, match=reason) as refused:
        FORMATS["tensile"].read([save(tmp_path, content)])
    assert "\n" not in str(refused.value)


DAMAGED = [(b"\xc1", "is not MessagePack"), (b"\x01", "not as expected"), (b"\x91" * 4000, "is not MessagePack")]


@pytest.mark.parametrize(("content", "reason"), DAMAGED)
def test_damaged_message_pack_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "TensileLibrary_gfx906.dat"
    path.write_bytes(content)
    with pytest.raises(InputError, match=reason):
        FORMATS["tensile"].read([path])


def test_percentages_of_other_boards_refer_to_the_datasheet_peak(tmp_path: Path) -> None:
    content = NAVI21.replace("navi21", "gfx1201").replace("gfx1030", "gfx1201")
    imported = FORMATS["tensile"].read([save(tmp_path, content)])
    assert "3 rows hold percents, read as percents of the datasheet peak of rx-9070-xt" in imported.notes
    # Its matrix units have a peak of 195 TFLOP/s in fp16.
    assert imported.rows["time_us"].iloc[0] == pytest.approx(2 * 768 * 128 * 256 / (0.10988 * 195e6), rel=1e-6)
