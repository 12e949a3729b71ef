"""Tables of known answers that lie beside a test module, as `test_conv.toml` beside `test_conv.py`."""

import tomllib
from pathlib import Path
from typing import Any


def known(module: str) -> dict[str, Any]:
    """The tables beside the module whose ``__file__`` this is."""
    return tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))
