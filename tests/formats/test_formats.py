"""The registry of formats, and that its tables are the dataset's."""

import subprocess
import sys
from pathlib import Path

import pytest

from surrogate.dataset import schema
from surrogate.features.errors import InputError
from surrogate.formats import FORMATS
from surrogate.formats.imported import KERNEL_NUMBERS, KEY_COLUMNS, no_rows, plural


def test_names_are_those_of_the_command() -> None:
    assert list(FORMATS) == ["seer-xls", "nvprof", "ncu", "miopen", "cudnn-scope", "lin-csv"]


def test_columns_are_the_datasets() -> None:
    assert KEY_COLUMNS == schema.ROW_KEY
    assert KERNEL_NUMBERS == schema.KERNEL_NUMBERS
    assert set(schema.REQUIRED_COLUMNS) == set(no_rows().columns)


@pytest.mark.parametrize("name", FORMATS)
def test_each_says_how_to_get_its_files(name: str) -> None:
    assert "How to get" in FORMATS[name].how_to_get()


@pytest.mark.parametrize("name", FORMATS)
def test_missing_files_and_no_files(name: str, tmp_path: Path) -> None:
    options = dict.fromkeys(FORMATS[name].required, "v100")
    with pytest.raises(InputError, match=f"no {name} file given"):
        FORMATS[name].read([], **options)
    with pytest.raises(InputError, match="cannot be read"):
        FORMATS[name].read([tmp_path / "gfx90a68.none"], **options)


def test_unknown_option() -> None:
    with pytest.raises(
        InputError, match=r"^miopen takes no --numbering; known: --gpu, --library-version, --max-bytes"
    ):
        FORMATS["miopen"].read(["x"], numbering="enum")


def test_registry_loads_no_reader_and_no_heavy_package() -> None:
    code = "import sys, surrogate.formats; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "surrogate.formats" in loaded
    assert not {"xlrd", "openpyxl", "surrogate.formats.miopen", "surrogate.formats.seer_xls"} & set(loaded)


def test_plural() -> None:
    assert [plural(1, "row"), plural(2000, "row"), plural(2, "launch")] == [
        "1 row",
        "2,000 rows",
        "2 launches",
    ]
