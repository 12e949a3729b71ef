"""``seer info``: a bundle's model card."""

from pathlib import Path
from typing import Any

import click

from surrogate.cli.output import output_options, show


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@output_options
def command(bundle: Path, as_json: bool, as_csv: bool) -> None:
    """Show what BUNDLE was fitted on, its held-out errors and its licence notices."""
    from surrogate.bundle import read_index

    index = read_index(bundle)
    show(list(_flat("", index)), as_json=as_json, as_csv=as_csv, whole=index)


def _flat(prefix: str, value: Any) -> list[dict[str, Any]]:
    """Nested keys joined by dots, one record per leaf."""
    if isinstance(value, dict):
        return [
            row for key, part in value.items() for row in _flat(f"{prefix}.{key}" if prefix else key, part)
        ]
    return [{"field": prefix, "value": value}]
