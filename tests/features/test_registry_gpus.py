"""Every GPU of `gpus.toml` brings what it is checked against: its names, its source, and figures of its data sheet.

There is no list of GPUs here, so a new row is checked as it stands; a message says which key of which row to mend.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from surrogate import bundled
from surrogate.features.errors import InputError
from surrogate.features.gpu import BUNDLED, Gpu, gpu, registry
from surrogate.features.kernels import device_attributes
from tests.features.known_answers import ANSWERS

TEXT = BUNDLED.read_text(encoding="utf-8")
ROWS = tomllib.loads(TEXT)["gpu"]
TOLERANCE = 0.015
"""Relative difference up to which a computed figure agrees with the printed one."""
SIZE_OF_THE_CHIP = {"fp32_tflops", "fp32_dual_tflops", "cores"}
"""One of these is printed for every GPU."""
HBM_BITS = 2048
"""From this width of the interface on, the memory is HBM."""
GBITS_PER_PIN = {"HBM": (0.9, 10), "GDDR": (5, 29)}
NO_GPUS = set(ANSWERS["no_gpus"])
"""Processors of other kinds in the tables of measurements."""


def computed(board: Gpu) -> dict[str, object]:
    """All that follows from a row, by the names that `datasheet` uses."""
    chip = {"fp32_dual_tflops": 2 * board.fp32_tflops, "cores": board.sms * board.cores_per_sm}
    return board.to_dict() | device_attributes(board) | chip


def agrees(printed: float, figure: float) -> bool:
    """Within `TOLERANCE`, or rounded to the digits that are printed (a "7" is anything from 6.5 to 7.5)."""
    last_digit = 10.0 ** int(Decimal(repr(printed)).as_tuple().exponent)
    return abs(figure - printed) <= max(TOLERANCE * printed, last_digit / 2)


def remark(text: str, name: str) -> str:
    """The comment directly above a row."""
    return re.findall(rf"((?:^#.*\n)*)^{re.escape(name)} = ", text, re.MULTILINE)[-1]


def faults(name: str, row: Mapping[str, object], board: Gpu, comment: str) -> list[str]:
    """What a row lacks or contradicts, each with the key to mend."""
    missing = [
        f"`{key}` is missing or empty: {what}"
        for key, what in ANSWERS["gpu_row_needs"].items()
        if row.get(key) in (None, [], {})
    ]
    if board.datasheet and not SIZE_OF_THE_CHIP & set(board.datasheet):
        missing.append(f"`datasheet` needs one of {', '.join(sorted(SIZE_OF_THE_CHIP))}")
    if board.memory_bus_bits:
        low, high = GBITS_PER_PIN["HBM" if board.memory_bus_bits >= HBM_BITS else "GDDR"]
        rate = board.dram_gbs * 8 / board.memory_bus_bits
        if not low <= rate <= high:
            missing.append(f"`dram_gbs` over `memory_bus_bits` is {rate:.3g} Gbit/s a pin, not {low} to {high}")
    facts = computed(board)
    for key, printed in board.datasheet.items():
        figure = facts.get(key)
        if key in row or not isinstance(figure, int | float):
            missing.append(f"`datasheet.{key}` does not follow from other figures; leave it out")
        elif not agrees(printed, figure) and repr(printed) not in re.findall(r"\d+(?:\.\d+)?", comment):
            missing.append(
                f"`datasheet.{key}` is {printed!r}, computed is {figure:.5g}: mend `sms`, `boost_mhz` or what else it"
                " follows from; where the maker's figures disagree, say so in a comment above the row, with this figure"
            )
    return [f"features/gpus.toml, [gpu] {name}: {what}" for what in missing]


@pytest.mark.parametrize("name", ROWS)
def test_a_row_agrees_with_its_data_sheet(name: str) -> None:
    wrong = faults(name, ROWS[name], gpu(name), remark(TEXT, name))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_plausible(name: str) -> None:
    board = gpu(name)
    assert 1 < board.fp32_tflops < 200 and 100 <= board.dram_gbs <= 8000
    assert board.l2_bytes % 2**18 == 0
    assert board.fp64_tflops <= board.fp32_tflops * 1.001
    assert (board.vendor == "nvidia") == (board.compute_capability > 0)
    assert (board.vendor == "amd") == board.architecture.startswith("gfx")
    assert board.fp16_tensor_tflops == 0 or board.fp16_tensor_tflops > board.fp32_tflops
    assert all(gpu(alias) is board for alias in board.aliases)


EXAMPLE = "\n" + ANSWERS["gpu_row"]


@pytest.mark.parametrize(("old", "new", "mend"), ANSWERS["lacking_gpu_rows"])
def test_what_a_row_lacks_is_told_with_its_key(tmp_path: Path, old: str, new: str, mend: str) -> None:
    assert old in EXAMPLE
    text = "[gpu]" + EXAMPLE.replace(old, new).replace(",\n", ",")
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    row = tomllib.loads(text)["gpu"]["example"]
    wrong = faults("example", row, registry().with_file(path).find("example"), remark(text, "example"))
    assert len(wrong) == bool(mend), wrong
    assert all("features/gpus.toml, [gpu] example" in line and mend in line for line in wrong)


def test_every_name_of_the_shipped_data_is_known(measurements: Path) -> None:
    names: dict[str, str] = {}
    for index in bundled.FOLDER.glob("*/bundle.json"):
        known_to_bundle = json.loads(index.read_bytes())["card"]["data"]["gpus"]
        names |= dict.fromkeys(known_to_bundle, index.parent.name)
    for path in measurements.glob("*.parquet"):
        for column in {"gpu", "device"} & set(pq.read_schema(path).names):
            names |= dict.fromkeys(pc.unique(pq.read_table(path, columns=[column])[column]).to_pylist(), path.name)
    assert len(names) > 40
    for name in names.keys() - NO_GPUS:
        try:
            gpu(name)
        except InputError as error:
            pytest.fail(
                f"{names[name]}: {error}\nadd it to the board's `aliases` in features/gpus.toml, or a row to it"
            )
