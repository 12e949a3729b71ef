"""``seer doctor``: what of the measuring chain works on this machine, line by line, each with its remedy."""

import sys
from pathlib import Path

import click

from surrogate.cli.options import choice_option, output_options, show


@click.command(name="doctor")
@choice_option("--device", ("cudnn",), "What would measure.", "cudnn")
@output_options
def command(device: str, as_json: bool, as_csv: bool) -> None:
    """Say what of the measuring chain works on this machine: driver, cuDNN, CUPTI, clocks, counters and the rest.

    A line for each part: ok, note (measuring works all the same) or failed, what was found, and what mends it. Exit
    status 1 where measurements could not be trusted.

    Examples:
      seer doctor
      seer doctor --json
    """
    from dataclasses import asdict

    from surrogate.collect.doctor import FAILED, examine
    from surrogate.collect.open_device import open_device

    opened = open_device(device)
    try:
        checks = examine(opened, Path.cwd())
    finally:
        opened.close()
    if as_json or as_csv:
        show([asdict(check) for check in checks], as_json=as_json, as_csv=as_csv)
    else:
        for check in checks:
            click.echo(f"{check.status:6} {check.name:11} {check.value}")
            if check.remedy:
                click.echo(f"{'':18} {check.remedy}")
    sys.exit(int(any(check.status == FAILED for check in checks)))
