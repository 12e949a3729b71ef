"""The data that ship with the package: bundles, the table of ``seer compare``, networks without weights, and a trace.

They are public measurements or were fitted on them. NOTICE names the authors of the measurements. `find_model` finds
these and other networks by name.
"""

import json
import os
import re
from pathlib import Path

FOLDER = Path(__file__).parent
DATASET = FOLDER / "cudnn_forward.parquet"
"""The forward fp32 rows of the public cuDNN 7 table, on which ``seer compare`` evaluates models by default."""
TRAINING_DATASET = FOLDER / "cudnn_partial.parquet"
"""Rows of networks with two measured algorithms per problem. By default ``seer compare`` also trains on them. They are
not used to evaluate choices."""
NETWORKS = {path.stem: path for path in sorted((FOLDER / "networks").iterdir())}
"""Name → network without weights, or configuration of a language model, as in ``seer network resnet50``."""
CHECKPOINTS: dict[str, list[str]] = json.loads((FOLDER / "checkpoints.json").read_bytes())
"""Shipped configuration → checkpoints on the Hugging Face Hub with the same configuration; servers load the first by
default."""
_BY_HUB_NAME = {name.casefold(): NETWORKS[own] for own, names in CHECKPOINTS.items() for name in names}
_SHIPPED = _BY_HUB_NAME | {name.rpartition("/")[2]: path for name, path in _BY_HUB_NAME.items()}
_SHIPPED |= {name.casefold(): path for name, path in NETWORKS.items()}
"""Name in lower case, with or without the organisation → shipped network."""
TRACES = {path.name.partition(".")[0]: path for path in sorted((FOLDER / "traces").iterdir())}
"""Name → profiler trace, as in ``seer trace summary vgg13_h100``."""

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(?<!\.json|\.onnx)")
"""Names of checkpoints on the Hub."""


def find_model(source: str | Path) -> Path:
    """Return the path of a network by its path, its name in `NETWORKS`, or the name of a checkpoint on the Hub.

    The configuration of a checkpoint is in a folder with its name, with or without the organisation, or in the Hub's
    cache on this machine, or it ships with the package. A source that is not found is returned as a path.
    """
    path = Path(source)
    if path.exists():
        return path / "config.json" if path.joinpath("config.json").is_file() else path
    name, beside = path.as_posix(), Path(path.name, "config.json")
    local = (beside if beside.is_file() else _cached_config(name)) if HUB_NAME.fullmatch(name) else None
    return local or _SHIPPED.get(name.casefold(), path)


def server_model(source: str | Path) -> str:
    """Return the name by which a server loads a model: a folder, or the name of a checkpoint on the Hub.

    A shipped name gives its first checkpoint, which follows instructions if the maker has one that does.
    """
    path = Path(source)
    name = path.as_posix().casefold()
    if path.exists() or name not in _SHIPPED:
        return str(path.parent if path.name == "config.json" else path)
    names = CHECKPOINTS[_SHIPPED[name].stem]
    return next((each for each in names if each.casefold().endswith(name) and name not in NETWORKS), names[0])


def not_found(source: str) -> str:
    """Return the reason why `find_model` does not find a source, and a remedy if it may be a checkpoint."""
    if not HUB_NAME.fullmatch(source):
        return "no such file"
    base = re.sub(r"-(awq|gptq[\w-]*)$", "", source.casefold())
    if base != source.casefold() and base in _SHIPPED:
        name = source[: len(base)]
        return f"no such folder, and not in the Hub's cache; {name} with --dtype int4_wo has the same shapes and type"
    places = f"no such folder, not in the Hub's cache {_hub_cache()}, and no shipped configuration is this checkpoint's"
    return f"{places}; `hf download {source} config.json` fetches it"


def _hub_cache() -> Path:
    """Return the folder of the Hub's cache, as huggingface_hub finds it."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    folder = os.environ.get("HF_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expanduser(folder))  # noqa: PTH111  Path.expanduser fails without a home


def _cached_config(name: str) -> Path | None:
    """Return the configuration of a checkpoint in the Hub's cache: of the revision ``main``, else of the newest."""
    folder = f"models--{name.replace('/', '--')}".casefold()
    folders = [each for each in _hub_cache().glob("models--*") if each.name.casefold() == folder]
    revisions = [path.read_text(errors="replace").strip() for each in folders for path in each.glob("refs/main")]
    configs = [path for each in folders for path in each.glob("snapshots/*/config.json") if path.is_file()]
    return max(configs, key=lambda path: (path.parent.name in revisions, path.stat().st_mtime), default=None)
