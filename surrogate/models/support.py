"""Which candidate a library will run on a problem: learned from statuses, with rules where nothing like it was seen.

Support does not depend on sizes smoothly: it is a table. A `Signature` holds what decides it (the setting, the
candidate and the family's traits of the sizes); statuses are counted per signature and release, then per signature
alone; what was never seen falls to the documented rules (`Family.refusal`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from surrogate.features.families import Family
from surrogate.features.gpu import gpus
from surrogate.models.json_types import Share, from_json_types, key_text

if TYPE_CHECKING:
    import pandas as pd

    from surrogate.dataset.rows import Rows

_Shares = Mapping[str, Share]
MIN_SHARE = 0.5
"""Share of ok rows from which on a candidate is expected to run."""


class Signature(NamedTuple):
    """What decides whether a library runs a problem: ``setting`` the values of `Family.setting_names`, the algorithm,
    and ``traits`` the family's of the sizes."""

    library: str
    setting: tuple[str, ...]
    algorithm: str
    traits: tuple[int, ...]

    @classmethod
    def from_text(cls, text: str, family: Family) -> Self:
        """What `key_text` gave."""
        library, *rest = text.split("|")
        settings = len(family.settings)
        return cls(library, tuple(rest[:settings]), rest[settings], tuple(map(int, rest[settings + 1 :])))


class Release(NamedTuple):
    """Where a status was seen: the GPU by its registry name, and the library's version."""

    gpu: str
    version: str


@dataclass(frozen=True)
class Support:
    """Share of ok rows per signature and release (``exact``), and per signature on all of them (``general``)."""

    exact: Mapping[tuple[Signature, Release], float]
    general: Mapping[Signature, float]

    @classmethod
    def fit(cls, rows: "Rows") -> Self:
        """Count the statuses of the training rows; nothing is learned from rows without one."""
        from surrogate.dataset.problems import rows_by_code

        if "status" not in rows.frame:
            return cls({}, {})
        # A workspace limit or a failure says nothing about support.
        frame = rows.frame[rows.frame["status"].isin(("ok", "not_supported"))]
        ok = (frame["status"] == "ok").to_numpy(dtype=float)
        code, signatures = _signatures(frame, rows.family)
        exact = {
            (signatures[number], release): float(ok[positions].mean())
            for number, release, positions in _by_release(frame, code)
        }
        general = {signatures[i]: float(ok[positions].mean()) for i, positions in enumerate(rows_by_code(code))}
        return cls(exact, general)

    def supported(self, rows: "Rows") -> np.ndarray:
        """(rows,) True where the algorithm is expected to run."""
        family, sizes = rows.family, rows.sizes
        allowed = np.ones(len(rows), dtype=bool)
        code, signatures = _signatures(rows.frame, family)
        # Rules look at the traits alone, so that the first problem of a group answers for all of it.
        for number, release, positions in _by_release(rows.frame, code):
            signature = signatures[number]
            named = dict(zip(family.size_names, sizes[positions[:1]].T, strict=True))
            problem = family.problem(named, dict(zip(family.setting_names, signature.setting, strict=True)))
            allowed[positions] = self.refusal(family, signature, release, problem) is None
        return allowed

    def refusal(self, family: Family, signature: Signature, release: Release, problem: Any) -> str | None:
        """Why a library is expected to refuse a problem of this signature, None where it is expected to run it.

        Statuses of this GPU and version decide, then those of any, then the library's documentation. A documented rule
        of this GPU alone comes before the statuses of others, which say nothing of it.
        """
        here, anywhere = self.exact.get((signature, release)), self.general.get(signature)
        if here is not None and here >= MIN_SHARE:
            return None
        library, setting, algorithm, _ = signature
        known_gpu = release.gpu if any(gpu.name == release.gpu for gpu in gpus()) else ""
        rule = family.refusal(library, setting, algorithm, problem, known_gpu)
        ran_elsewhere = anywhere is not None and anywhere >= MIN_SHARE
        if here is None and rule and not family.refusal(library, setting, algorithm, problem, ""):
            return rule
        if here is None and (ran_elsewhere or anywhere is None):
            return None if ran_elsewhere else rule
        if ran_elsewhere:
            return f"{library} {release.version} refused problems of this kind on {release.gpu}, where others ran it"
        where = "" if here is None else f" by {library} {release.version} on {release.gpu}"
        return rule or f"problems of this kind never ran in the training data (refused{where})"

    @cached_property
    def releases(self) -> Mapping[str, frozenset[Release]]:
        """Library → the GPUs and versions that its statuses are of."""
        pairs = {(signature.library, release) for signature, release in self.exact}
        libraries = {library for library, _ in pairs}
        return {name: frozenset(release for library, release in pairs if library == name) for name in libraries}

    def algorithms(self, library: str, setting: tuple[str, ...]) -> set[tuple[str, str]]:
        """(GPU, algorithm) of every status of a library in a setting."""
        of_setting = (entry for entry in self.exact if entry[0][:2] == (library, setting))
        return {(release.gpu, signature.algorithm) for signature, release in of_setting}

    def to_json(self) -> bytes:
        """Both tables."""
        exact = {key_text(key): share for key, share in self.exact.items()}
        general = {key_text(signature): share for signature, share in self.general.items()}
        return json.dumps({"exact": exact, "general": general}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes, family: Family) -> Self:
        """What `to_json` wrote, of a bundle's part of this family."""
        data = {name: from_json_types(_Shares, table, name) for name, table in json.loads(content).items()}
        signatures = {text: Signature.from_text(text, family) for text in data["general"]}
        exact = {}
        for key, share in data["exact"].items():
            text, gpu, version = key.rsplit("|", 2)
            signature = signatures.get(text) or Signature.from_text(text, family)
            exact[signature, Release(gpu, version)] = share
        return cls(exact, {signatures[text]: share for text, share in data["general"].items()})


def _signatures(frame: "pd.DataFrame", family: Family) -> tuple[np.ndarray, list[Signature]]:
    """(rows,) the code of each row's signature, and the signature of every code."""
    from surrogate.dataset.problems import problems_of, row_groups

    code = np.zeros(len(frame), dtype=np.int64)
    signatures: list[Signature] = []
    for (library, *setting, algorithm), positions in row_groups(frame, ("library", *family.setting_names, "algorithm")):
        traits = family.traits(problems_of(frame.iloc[positions], family, tuple(setting)))
        # (rows, 1 + traits): the first column is there for families without traits.
        table = np.zeros((len(positions), 1 + len(traits)), dtype=np.int64)
        for column, trait in enumerate(traits, 1):
            table[:, column] = trait
        distinct, number = np.unique(table, axis=0, return_inverse=True)
        code[positions] = len(signatures) + number.ravel()
        signatures += [Signature(library, tuple(setting), algorithm, tuple(row[1:])) for row in distinct.tolist()]
    return code, signatures


def _by_release(frame: "pd.DataFrame", code: np.ndarray) -> list[tuple[int, Release, np.ndarray]]:
    """(code, release, positions) of the rows of every signature's ``code`` (rows,) and release."""
    from surrogate.dataset.problems import device_names, row_groups

    columns = ("signature", "gpu", "library_version")
    named = frame.assign(signature=code, gpu=device_names(frame))
    return [(int(number), Release(*release), positions) for (number, *release), positions in row_groups(named, columns)]
