"""Every counted metric and every device is registered completely; a failure names the file to edit."""

import csv
import tomllib
from pathlib import Path

import click
import pytest

from surrogate.cli.collect import command
from surrogate.collect import counting
from surrogate.collect.counting import metrics_of
from surrogate.collect.open_device import ALIASES, DEVICES, caps_for, open_device
from surrogate.dataset.columns import columns
from surrogate.features.gpu import gpus
from surrogate.formats import FORMATS

TESTS = Path(__file__).parents[1]
FILE = Path(counting.__file__).with_suffix(".toml")
TABLE = tomllib.loads(FILE.read_text(encoding="utf-8"))
PLACE = "surrogate/collect/counting.toml"
KERNEL_COLUMNS = {column.name: column for column in columns("kernels")}
NCU = {**TABLE["launch"], **TABLE["metrics"], **TABLE["dram"]}


def _by_ncu(name: str, entry: list, folder: Path) -> float:
    """Return the kernel table's value for a metric that ncu printed, with the metrics that b_max needs."""
    printed = {name: entry}
    if entry[2] == "b_max":
        printed |= {other: values for other, values in NCU.items() if values[2] == "b_max" or "grid_dim" in other}
    path = folder / "raw.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["ID", "Kernel Name", *printed])
        writer.writerow(["", "", *(values[0] for values in printed.values())])
        writer.writerow(["0", "sgemm", *(values[3] for values in printed.values())])
    kernels = FORMATS["ncu"].read([path]).kernels
    assert kernels is not None
    return kernels[entry[2]].iloc[0]


def lacking(name: str, entry: list, folder: Path) -> list[str]:
    """Return the missing parts of a metric, each with the file to edit."""
    if len(entry) != 5 or not (entry[1] and entry[2] and entry[3]):
        return [f"{PLACE}: {name} needs [unit, meaning, column, printed value, value in the kernel table]"]
    _, _, column, printed, value = entry
    if column not in KERNEL_COLUMNS or not KERNEL_COLUMNS[column].meaning:
        return [f"surrogate/dataset/columns.toml: the kernel table has no column {column} with a meaning"]
    is_read = _by_ncu(name, entry, folder) == value
    return [] if is_read else [f"surrogate/formats/ncu_metrics.toml: {printed} of {name} is not {column} {value}"]


@pytest.mark.parametrize(("name", "entry"), NCU.items(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_metric_is_complete_and_read_as_declared(name: str, entry: list, tmp_path: Path) -> None:
    assert not lacking(name, entry, tmp_path), "\n".join(lacking(name, entry, tmp_path))


def test_missing_parts_of_a_metric_are_reported(tmp_path: Path) -> None:
    for entry, file in (
        (["inst", "", "sm_cycles", "1", 1], PLACE),
        (["inst", "heat", "heat", "1", 1], "surrogate/dataset/columns.toml"),
        (["inst", "cycles", "sm_cycles", "1", 2], "surrogate/formats/ncu_metrics.toml"),
    ):
        (message,) = lacking("sm__cycles_elapsed.max", entry, tmp_path)
        assert message.startswith(file)


def test_every_requested_metric_is_declared() -> None:
    chips = {gpu.compute_capability for gpu in gpus() if gpu.vendor == "nvidia"}
    assert len(chips) > 5
    requested = {name for chip in chips for name in metrics_of(chip)}
    assert requested <= set(NCU), f"{PLACE}: {', '.join(sorted(requested - set(NCU)))} is asked for and not declared"


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_has_option_help_limits_and_a_test(name: str) -> None:
    (option,) = (parameter for parameter in command.params if "--device" in parameter.opts)
    assert isinstance(option, click.Option) and isinstance(option.type, click.Choice)
    assert set(option.type.choices) == {*DEVICES, *ALIASES}, "surrogate/cli/collect.py: the choices of --device"
    assert DEVICES[name] in str(option.help), f"surrogate/cli/collect.py: the help of --device lacks {DEVICES[name]!r}"
    assert caps_for(name).max_flops > 0
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    assert any(f'"--device", "{name}"' in text for text in texts), f"tests/collect: no test measures on {name}"
    if name != "replay":  # a replay needs a recording
        open_device(name).close()
