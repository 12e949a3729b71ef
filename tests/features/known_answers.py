"""`known_answers.toml` by table, for the tests that ask for them."""

import tomllib
from pathlib import Path
from typing import Any

KNOWN: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
