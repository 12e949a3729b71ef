"""``seer info``: a bundle's model card."""

from typing import Any

import click

from surrogate.cli.options import output_options, show


@click.command()
@click.argument("bundle")
@output_options
def command(bundle: str, as_json: bool, as_csv: bool) -> None:
    """Show what BUNDLE was fitted on, its held-out errors and intervals, and its licence notices.

    BUNDLE is a folder, or a GPU's name for the bundle that ships for it.
    """
    from surrogate.bundle.bundle import read_index
    from surrogate.cli.options import bundle_path

    index = read_index(bundle_path(bundle))
    show(list(_flat("", index)), as_json=as_json, as_csv=as_csv, whole=index)


def _flat(prefix: str, value: Any) -> list[dict[str, Any]]:
    """Nested keys joined by dots, one record per leaf; a list of records goes by each one's text, or its place."""
    if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        texts = ([text for text in part.values() if isinstance(text, str)] for part in value)
        value = {
            (text or [str(place)])[0]: part
            for place, (text, part) in enumerate(zip(texts, value, strict=True))
        }
    if isinstance(value, dict):
        return [
            row for key, part in value.items() for row in _flat(f"{prefix}.{key}" if prefix else key, part)
        ]
    return [{"field": prefix, "value": value}]
