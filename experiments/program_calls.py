"""Record the ATen calls of KernelBench's programs. `experiments.small_networks` reads them instead of the programs.

``python -m experiments.program_calls FOLDER`` runs the programs ``FOLDER/old/level1/*.py``, … on fake tensors and
writes the table. ``old`` is the folder ``KernelBench`` of a checkout from before July 2025, ``new`` the one of a later
checkout. The programs' code is executed. The script needs torch, and einops for four programs, but no GPU.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from runpy import run_path
from typing import Any

import click
import pandas as pd

from experiments.small_networks import CALLS, FOLDER, PROGRAM, REPOSITORY, measured, stored
from surrogate.dataset.files import atomic_path
from surrogate.network.aten_call import Call
from surrogate.network.network import ReadOptions
from surrogate.network.torch_recording import Arguments, record_calls


def calls_of(path: Path) -> list[Call]:
    """Return the ATen calls of a program's forward pass as its harness runs it: in training mode, without gradients.

    The names of the program's layers are dropped. Raises any exception of the program.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    source = run_path(str(path))
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    model = _built(source["Model"], source["get_init_inputs"](), fake)
    with fake:
        recorded = record_calls(model, Arguments(tuple(source["get_inputs"]()), {}), ReadOptions())
    return [replace(call, name="") for call in recorded.forward]


def _built(model: Callable[..., Any], arguments: list[Any], fake: Any) -> Any:
    """Return a program's model on fake tensors, or on real ones if its constructor reads computed values."""
    try:
        with fake:
            return model(*arguments)
    except RuntimeError:
        return model(*arguments)._apply(fake.from_tensor)


def call_rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield `PROGRAM` and a call as JSON, for every call of the measured programs in ``folder``."""
    for key in sorted(measured()[PROGRAM].drop_duplicates().itertuples(index=False, name=None)):
        path = folder.joinpath(*key)
        if not path.is_file():
            continue
        try:
            calls = calls_of(path)
        except (ImportError, RuntimeError) as error:
            click.echo(f"{path}: skipped, {error}", err=True)
            continue
        yield from ((*key, stored(call)) for call in calls)


@click.command(help=str(__doc__).split("\n")[0])
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("-o", "--output", default=FOLDER / CALLS, type=click.Path(path_type=Path), help="The table to write.")
def main(folder: Path, output: Path) -> None:
    """Write the table of the programs' calls."""
    table = pd.DataFrame(call_rows(folder), columns=[*PROGRAM, "call"])
    if table.empty:
        raise click.ClickException(f"{folder}: no measured program in old/level1, new/level1, …; give another folder")
    table.attrs = {"origin": f"recorded from the programs of {REPOSITORY}", "torch": version("torch")}
    with atomic_path(output) as temporary:
        table.to_parquet(temporary, compression="zstd", index=False)
    click.echo(f"{output}: {len(table):,} calls of {len(table[PROGRAM].drop_duplicates())} programs")


if __name__ == "__main__":
    main()
