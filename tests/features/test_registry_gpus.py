"""Every row of `gpus.toml` has names and a source, and agrees with its datasheet.

The tests iterate over the file, so a new row needs no test; a message names the row and the key to correct."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from surrogate import bundled
from surrogate.features.errors import InputError
from surrogate.features.gpu import BUNDLED, Gpu, gpu, registry
from tests.features.known_answers import ANSWERS

TEXT = BUNDLED.read_text(encoding="utf-8")
ROWS = tomllib.loads(TEXT)["gpu"]
SIZE_OF_THE_CHIP = {"fp32_tflops", "fp32_dual_tflops", "cores"}
"""Every GPU's datasheet prints one of these."""
HBM_BITS = 2048
"""Memory with an interface of at least this width is HBM."""
GBITS_PER_PIN = {"HBM": (0.9, 10), "GDDR": (5, 31)}
NO_GPUS = set(ANSWERS["no_gpus"])
"""Processors of other kinds in the tables of measurements."""


def remark(text: str, name: str) -> str:
    """Return the comment directly above a row."""
    return re.findall(rf"((?:^#.*\n)*)^{re.escape(name)} = ", text, re.MULTILINE)[-1]


def faults(name: str, row: Mapping[str, object], board: Gpu, comment: str) -> list[str]:
    """Return a message for each key that a row lacks or contradicts."""
    needs = {key: what for key, what in ANSWERS["gpu_row_needs"].items() if row.get(key) in (None, [], {})}
    missing = [f"`{key}` is missing or empty: {what}" for key, what in needs.items()]
    if board.datasheet and not SIZE_OF_THE_CHIP & set(board.datasheet):
        missing.append(f"`datasheet` needs one of {', '.join(sorted(SIZE_OF_THE_CHIP))}")
    if board.memory_bus_bits:
        low, high = GBITS_PER_PIN["HBM" if board.memory_bus_bits >= HBM_BITS else "GDDR"]
        rate = board.dram_gbs * 8 / board.memory_bus_bits
        if not low <= rate <= high:
            missing.append(f"`dram_gbs` over `memory_bus_bits` is {rate:.3g} Gbit/s a pin, not {low} to {high}")
    stated = re.findall(r"\d+(?:\.\d+)?", comment)
    wrong = (text for text in board.contradictions() if not any(f" is {figure}, " in text for figure in stated))
    remedy = "mend `sms`, `boost_mhz` or others; if the maker's figures disagree, say so in a comment above the row"
    missing += [f"{text}: {remedy}" for text in wrong]
    return [f"features/gpus.toml, [gpu] {name}: {what}" for what in missing]


@pytest.mark.parametrize("name", ROWS)
def test_row_agrees_with_its_datasheet(name: str) -> None:
    messages = faults(name, ROWS[name], gpu(name), remark(TEXT, name))
    assert not messages, "\n".join(messages)


@pytest.mark.parametrize("name", ROWS)
def test_row_has_plausible_figures(name: str) -> None:
    board = gpu(name)
    assert 1 < board.fp32_tflops < 200 and 100 <= board.dram_gbs <= 8000
    assert board.l2_bytes % 2**18 == 0
    assert board.fp64_tflops <= board.fp32_tflops * 1.001
    assert (board.vendor == "nvidia") == (board.compute_capability > 0)
    assert (board.vendor == "amd") == board.architecture.startswith("gfx")
    assert board.fp16_tensor_tflops == 0 or board.fp16_tensor_tflops > board.fp32_tflops
    assert all(gpu(alias) is board for alias in board.aliases)


EXAMPLE = "\n" + ANSWERS["gpu_row"]


@pytest.mark.parametrize(("old", "new", "key"), ANSWERS["lacking_gpu_rows"])
def test_fault_message_names_the_row_and_key(tmp_path: Path, old: str, new: str, key: str) -> None:
    assert old in EXAMPLE
    text = "[gpu]" + EXAMPLE.replace(old, new).replace(",\n", ",")
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    row = tomllib.loads(text)["gpu"]["example"]
    messages = faults("example", row, registry().with_file(path).find("example"), remark(text, "example"))
    assert len(messages) == bool(key), messages
    assert all("features/gpus.toml, [gpu] example" in line and key in line for line in messages)


def test_every_gpu_name_of_the_shipped_data_is_registered(measurements: Path) -> None:
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
            remedy = "add it to the board's `aliases` in features/gpus.toml, or a row to it"
            pytest.fail(f"{names[name]}: {error}\n{remedy}")
