"""The models by name, and the rows that models are fitted on.

A model is a class with a ``name`` in a file of this package. Its declaration is read from the file's source, so that
names and help are available at once. The file is imported when its class is requested.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surrogate.features.errors import check_choice

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from surrogate.dataset.rows import Rows
    from surrogate.dataset.store import Dataset
    from surrogate.models.base import TimeModel


@dataclass(frozen=True)
class ModelDeclaration:
    """The declaration of a model, as `TimeModel` describes it. ``home`` is the module of the class ``cls``."""

    home: str
    cls: str
    name: str
    help: str = ""
    predicts_time: bool = True
    storable: bool = False
    on_request: bool = False

    def load(self) -> "type[TimeModel]":
        """Return the class."""
        return getattr(import_module(self.home), self.cls)


def _declarations() -> Iterator[ModelDeclaration]:
    """Yield the declarations in all files: constants that a class, or its base in the same file, assigns."""
    folder = Path(__file__).parent
    flags = set(ModelDeclaration.__dataclass_fields__)
    for path in folder.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if 'name: ClassVar[str] = "' not in source:
            continue
        home = ".".join(("surrogate.models", *path.relative_to(folder).with_suffix("").parts))
        values_of: dict[str, dict[str, Any]] = {}
        for node in ast.parse(source).body:
            if not isinstance(node, ast.ClassDef):
                continue
            values = {key: value for base in node.bases for key, value in values_of.get(ast.unparse(base), {}).items()}
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.value, ast.Constant):
                    values[ast.unparse(item.target)] = item.value.value
            values_of[node.name] = {name: value for name, value in values.items() if name in flags}
            if "name" in values:
                yield ModelDeclaration(home, node.name, **values_of[node.name])


def _by_name() -> dict[str, ModelDeclaration]:
    """Return every declaration by its name. Raise `TypeError` if two models have the same name."""
    models: dict[str, ModelDeclaration] = {}
    for each in sorted(_declarations(), key=lambda each: each.name):
        if each.name in models:
            raise TypeError(f"{each.home} and {models[each.name].home} declare one model name, {each.name!r}")
        models[each.name] = each
    return models


DECLARED = _by_name()
"""Name → declaration, for all models."""
DEFAULT_MODEL = "boosted-terms"


COMPARED = tuple(name for name, each in DECLARED.items() if not each.on_request)
"""The models that are compared if the user names none."""
TRAINED = tuple(name for name, each in DECLARED.items() if each.storable and name != "calibrated")
"""The models that `seer train` fits. `seer calibrate` makes the calibrated ones."""
MODELS: "dict[str, type[TimeModel]]"
"""Name → class of the `COMPARED` models. Their files are imported when this is first used."""


def __getattr__(name: str) -> "dict[str, type[TimeModel]]":
    if name != "MODELS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return {name: DECLARED[name].load() for name in COMPARED}


def model_class(name: str) -> "type[TimeModel]":
    """Return the class of a model.

    Parameters
    ----------
    name
        Name of the model, which may be one on request.

    Returns
    -------
    type[TimeModel]
        The class.

    Raises
    ------
    InputError
        If no model has this name. The message gives the nearest names.
    """
    check_choice("model", name, DECLARED)
    return DECLARED[name].load()


def model_frame(data: "Dataset", candidate: str = "algorithm") -> "pd.DataFrame":
    """Return the rows of a dataset's candidates, from which models learn.

    Parameters
    ----------
    data
        The dataset.
    candidate
        ``algorithm`` or ``solver``: the column of the candidates (see `candidate_frame`).

    Returns
    -------
    pd.DataFrame
        The rows, with kernel metrics if the dataset has kernels.
    """
    from surrogate.dataset.store import candidate_frame
    from surrogate.models.seer.physics import with_kernel_metrics

    frame = candidate_frame(data, candidate)
    return frame if data.kernels is None else with_kernel_metrics(frame, data.kernels)


def fitted_part(combined: "TimeModel", name: str, rows: "Rows", time_us: "np.ndarray") -> "TimeModel":
    """Return the fitted model ``name``, a part of the model ``combined``, with its seed, device and `fitted_parts`."""
    if name in combined.fitted_parts:
        return combined.fitted_parts[name]
    cls = model_class(name)
    settings = cls().get_params(deep=False)
    part = cls(**{key: getattr(combined, key) for key in ("random_state", "device") if key in settings})
    part.fitted_parts = dict(combined.fitted_parts)  # a class's own mapping cannot be pickled
    return part.fit(rows, time_us)
