"""Decide which candidates a library runs on a problem, from measured statuses or documented rules.

Support does not depend on sizes smoothly: it is a table. A `Signature` holds the values that decide it: the setting,
the candidate and the family's traits of the sizes. Statuses are counted per signature and release, then per signature
over all releases. If a signature was never seen, the documented rules decide (`Family.refusal`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from surrogate.features.elementwise import MAX_INT32
from surrogate.features.families import Family
from surrogate.features.gpu import gpus
from surrogate.models.json_types import Share, from_json_types, key_text

if TYPE_CHECKING:
    import pandas as pd

    from surrogate.dataset.rows import Rows

_Shares = Mapping[str, Share]
_Limits = Mapping[str, Mapping[str, tuple[int, int]]]
MIN_SHARE = 0.5
"""A candidate is expected to run from this share of ok rows."""


class Signature(NamedTuple):
    """The values that decide whether a library runs a problem.

    ``setting`` holds the values of `Family.setting_names`, ``traits`` the family's traits of the sizes.
    """

    library: str
    setting: tuple[str, ...]
    algorithm: str
    traits: tuple[int, ...]

    @classmethod
    def from_text(cls, text: str, family: Family) -> Self:
        """Return the signature from the output of `key_text`."""
        library, *rest = text.split("|")
        settings = len(family.settings)
        return cls(library, tuple(rest[:settings]), rest[settings], tuple(map(int, rest[settings + 1 :])))


class Release(NamedTuple):
    """A GPU (registry name) and a library version, with which a status was measured."""

    gpu: str
    version: str


@dataclass(frozen=True)
class Support:
    """Shares of ok rows.

    Attributes
    ----------
    exact
        Share per signature and release.
    general
        Share per signature over all releases.
    solvers
        The solvers that ran, per signature without an algorithm. A table of solvers lists no refusals.
    limits
        GPU, library, setting and algorithm → size → minimum and maximum of its ok rows, if attempts beyond them failed.
    """

    exact: Mapping[tuple[Signature, Release], float]
    general: Mapping[Signature, float]
    solvers: Mapping[Signature, frozenset[str]] = field(default_factory=dict)
    limits: _Limits = field(default_factory=dict)

    @classmethod
    def fit(cls, rows: "Rows") -> Self:
        """Count the statuses of the training rows. Rows without a status are ignored."""
        from surrogate.dataset.problems import rows_by_code

        if "status" not in rows.frame:
            return cls({}, {})
        # A workspace limit or a failure says nothing about support.
        frame = rows.frame[rows.frame["status"].isin(("ok", "not_supported"))]
        ok = (frame["status"] == "ok").to_numpy(dtype=float)
        code, signatures = _signatures(frame, rows.family)
        by_release = _by_release(frame, code)
        exact = {(signatures[i], release): float(ok[positions].mean()) for i, release, positions in by_release}
        by_code = rows_by_code(code)
        general = {signatures[i]: float(ok[positions].mean()) for i, positions in enumerate(by_code)}
        solvers: dict[Signature, frozenset[str]] = {}
        if "solver" in frame and not rows.family.parameter_names and ok.all():
            for signature, positions in zip(signatures, by_code, strict=True):
                names = frozenset(frame["solver"].iloc[positions])
                key = signature._replace(algorithm="")
                solvers[key] = solvers.get(key, frozenset()) | names
        return cls(exact, general, solvers, _limits(rows))

    def limit_refusal(self, gpu: str, signature: Signature, problem: Any) -> tuple[Any, str]:
        """Return whether attempts on such sizes failed, a value or (rows,), and the rule; the traits do not matter."""
        limits = self.limits.get("|".join((gpu, signature.library, *signature.setting, signature.algorithm)), {})
        sizes = ((getattr(problem, name, ends[0]), ends) for name, ends in limits.items())
        outside = [(size < low) | (size > high) for size, (low, high) in sizes]
        ranges = ", ".join(
            f"{name}{f' from {low}' * (low > 0)}{f' up to {high}' * (high < MAX_INT32)}"
            for name, (low, high) in limits.items()
        )
        return np.logical_or.reduce(outside), f"it ran with {ranges}; all attempts beyond failed"

    def supported(self, rows: "Rows") -> np.ndarray:
        """Return True (rows,) if the algorithm is expected to run."""
        family, sizes = rows.family, rows.sizes
        allowed = np.ones(len(rows), dtype=bool)
        code, signatures = _signatures(rows.frame, family)
        # Rules depend on the traits alone, so the first problem of a group decides for all its rows.
        for number, release, positions in _by_release(rows.frame, code):
            signature = signatures[number]
            first_sizes = dict(zip(family.size_names, sizes[positions[:1]].T, strict=True))
            problem = family.problem(first_sizes, dict(zip(family.setting_names, signature.setting, strict=True)))
            allowed[positions] = self.refusal(family, signature, release, problem) is None
        return allowed

    def refusal(self, family: Family, signature: Signature, release: Release, problem: Any) -> str | None:
        """Return why a library is expected to refuse a problem with this signature, or None if it should run it.

        Statuses of this GPU and version decide first, then statuses of other releases, then the library's
        documentation. But a documented rule for this GPU only comes before the statuses of other GPUs.
        """
        release_share, overall_share = self.exact.get((signature, release)), self.general.get(signature)
        if release_share is not None and release_share >= MIN_SHARE:
            return None
        library, setting, algorithm, _ = signature
        registered_gpu = release.gpu if any(gpu.name == release.gpu for gpu in gpus()) else ""
        rule = family.refusal(library, setting, algorithm, problem, registered_gpu)
        runs_on_others = overall_share is not None and overall_share >= MIN_SHARE
        if release_share is None and rule and not family.refusal(library, setting, algorithm, problem, ""):
            return rule
        others = self._listed.get((signature._replace(algorithm=""), release.gpu))
        if others and algorithm not in others:
            return f"{library} ran such problems on {release.gpu} by other algorithms only"
        if release_share is None and (runs_on_others or overall_share is None):
            return None if runs_on_others else rule
        if runs_on_others:
            return f"{library} {release.version} refused such problems on {release.gpu}; other releases ran them"
        where = "" if release_share is None else f" by {library} {release.version} on {release.gpu}"
        return rule or f"problems of this kind never ran in the training data (refused{where})"

    def solver_refusal(self, signature: Signature, solver: str) -> str | None:
        """Return why a solver is expected to refuse problems with this signature, or None.

        If other solvers ran such problems, it must be one of them. Otherwise, a trait that is the same in all its
        problems must be the same in this one.
        """
        library, setting, _, traits = signature
        if not self.solvers:
            return None
        if (ran := self.solvers.get(Signature(library, setting, "", traits))) is not None:
            return None if solver in ran else "no such problem in the training data was run by this solver"
        columns = [*zip(*self._traits.get((library, setting, solver), ()), strict=True)]
        fits = columns and all(len({*seen}) > 1 or trait in seen for seen, trait in zip(columns, traits, strict=True))
        return None if fits else "this solver ran only other problems in the training data"

    @cached_property
    def _listed(self) -> Mapping[tuple[Signature, str], set[str]]:
        """Return (signature without an algorithm, GPU) → the algorithms that ran, of libraries without refusals."""
        refused = {signature.library for signature, share in self.general.items() if share < 1}
        ran: dict[tuple[Signature, str], set[str]] = {}
        for signature, release in self.exact:
            if signature.traits and signature.library not in refused:
                ran.setdefault((signature._replace(algorithm=""), release.gpu), set()).add(signature.algorithm)
        return ran

    @cached_property
    def _traits(self) -> Mapping[tuple[str, tuple[str, ...], str], list[tuple[int, ...]]]:
        """Return (library, setting, solver) → the traits of its problems."""
        traits: dict[tuple[str, tuple[str, ...], str], list[tuple[int, ...]]] = {}
        for key, names in self.solvers.items():
            for name in names:
                traits.setdefault((key.library, key.setting, name), []).append(key.traits)
        return traits

    @cached_property
    def releases(self) -> Mapping[str, frozenset[Release]]:
        """Return library → the GPUs and versions of its statuses."""
        pairs = {(signature.library, release) for signature, release in self.exact}
        libraries = {library for library, _ in pairs}
        return {name: frozenset(release for library, release in pairs if library == name) for name in libraries}

    def algorithms(self, library: str, setting: tuple[str, ...]) -> set[tuple[str, str]]:
        """Return (GPU, algorithm) of every status of a library in a setting."""
        of_setting = (entry for entry in self.exact if entry[0][:2] == (library, setting))
        return {(release.gpu, signature.algorithm) for signature, release in of_setting}

    def to_json(self) -> bytes:
        """Return the tables as JSON; the table of solvers only if there is one."""
        exact = {key_text(key): share for key, share in self.exact.items()}
        general = {key_text(signature): share for signature, share in self.general.items()}
        solvers = {key_text(key): sorted(names) for key, names in self.solvers.items()}
        tables = {"exact": exact, "general": general, **({"solvers": solvers} if solvers else {})}
        tables |= {"limits": dict(self.limits)} if self.limits else {}
        return json.dumps(tables, sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes, family: Family) -> Self:
        """Return the support of a bundle's family from the output of `to_json`."""
        tables = json.loads(content)
        signature = cache(partial(Signature.from_text, family=family))
        solvers = from_json_types(Mapping[str, frozenset[str]], tables.get("solvers", {}), "solvers").items()
        exact, general = (from_json_types(_Shares, tables[name], name).items() for name in ("exact", "general"))
        keys = [(text.rsplit("|", 2), share) for text, share in exact]
        return cls(
            {(signature(text), Release(gpu, version)): share for (text, gpu, version), share in keys},
            {signature(text): share for text, share in general},
            {signature(text): names for text, names in solvers},
            from_json_types(_Limits, tables.get("limits", {}), "limits"),
        )


def _limits(rows: "Rows") -> dict[str, dict[str, tuple[int, int]]]:
    """Return `Support.limits` of the rows."""
    from surrogate.dataset.problems import device_names, row_groups

    limits: dict[str, dict[str, tuple[int, int]]] = {}
    if rows.family.parameter_names or not (rows.frame["status"] == "failed").any():
        return limits
    frame = rows.frame.assign(gpu=device_names(rows.frame))
    for key, positions in row_groups(frame, ("gpu", "library", *rows.family.setting_names, "algorithm")):
        status, sizes = frame["status"].to_numpy()[positions], rows.sizes[positions]
        ran, failed = sizes[status == "ok"], sizes[status == "failed"]
        for i, name in enumerate(rows.family.size_names if len(ran) and len(failed) else ()):
            low, high = int(ran[:, i].min()), int(ran[:, i].max())
            if ((failed[:, i] < low) | (failed[:, i] > high)).any():
                below, above = (failed[:, i] < low).any(), (failed[:, i] > high).any()
                limits.setdefault("|".join(map(str, key)), {})[name] = (
                    low if below else 0,
                    high if above else MAX_INT32,
                )
    return limits


def _signatures(frame: "pd.DataFrame", family: Family) -> tuple[np.ndarray, list[Signature]]:
    """Return the code of each row's signature, (rows,), and the signature of every code."""
    from surrogate.dataset.problems import problems_of, row_groups

    code = np.zeros(len(frame), dtype=np.int64)
    signatures: list[Signature] = []
    for (library, *setting, algorithm), positions in row_groups(frame, ("library", *family.setting_names, "algorithm")):
        traits = family.traits(problems_of(frame.iloc[positions], family, tuple(setting)))
        # (rows, 1 + traits): the first column is for families without traits.
        table = np.zeros((len(positions), 1 + len(traits)), dtype=np.int64)
        for column, trait in enumerate(traits, 1):
            table[:, column] = trait
        distinct, number = np.unique(table, axis=0, return_inverse=True)
        code[positions] = len(signatures) + number.ravel()
        signatures += [Signature(library, tuple(setting), algorithm, tuple(row[1:])) for row in distinct.tolist()]
    return code, signatures


def _by_release(frame: "pd.DataFrame", code: np.ndarray) -> list[tuple[int, Release, np.ndarray]]:
    """Return (code, release, positions) of the rows with each signature's ``code`` (rows,) and release."""
    from surrogate.dataset.problems import device_names, row_groups

    columns = ("signature", "gpu", "library_version")
    keyed = frame.assign(signature=code, gpu=device_names(frame))
    return [(int(number), Release(*release), positions) for (number, *release), positions in row_groups(keyed, columns)]
