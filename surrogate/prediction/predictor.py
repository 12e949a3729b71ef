"""Load a bundle and ask it: the time of a kernel, or the algorithm to run on a problem. pandas-free once warm."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import exp, inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.gpu import ENVIRONMENT_VARIABLE
from surrogate.features.text import parse
from surrogate.prediction.backend import Backend, backend_for
from surrogate.prediction.limits import Limits, checked_limits
from surrogate.prediction.prediction import Prediction, Predictions
from surrogate.prediction.recent import Recent
from surrogate.prediction.selection import Excluded, Selection
from surrogate.prediction.setting import Setting
from surrogate.prediction.shipped import bundle_for, find_gpu, is_path
from surrogate.prediction.site import Ranking, Site
from surrogate.prediction.sites import Sites

if TYPE_CHECKING:
    from surrogate.bundle.bundle import Bundle

REMEMBERED = 100_000
"""Answers kept by a predictor; each takes about 2 KB."""


class Predictor:
    """A bundle and the GPU that is asked about; instances may be shared between threads.

    ``gpu`` may be left out where the bundle was fitted on one GPU alone, or where a table names it row by row.
    """

    def __init__(
        self, bundle: "Bundle", *, gpu: str | None = None, library: str | None = None, backend: str = "auto"
    ) -> None:
        self.bundle = bundle
        self._backend = backend_for(bundle.model, backend)
        self._sites = Sites(bundle, self._backend)
        fitted = sorted(bundle.fitted_gpus)
        named = gpu or (fitted[0] if len(fitted) == 1 else None)
        self._place = self._sites.place(named) if named else None
        self._library = (
            self._sites.library(self._place.name if self._place else "", library)
            if named or library
            else None
        )
        self._near: dict[tuple[Any, ...], Site] = {}
        self.forget()

    @property
    def card(self) -> Mapping[str, Any]:
        """The bundle's model card."""
        return self.bundle.card

    @property
    def gpu(self) -> str | None:
        """Registry name of the GPU asked about."""
        return self._place.name if self._place else None

    def library(self, gpu: str) -> str:
        """The library meant on a GPU (any name). Raises `InputError` where the bundle knows several there."""
        return self._library or self._sites.library(self._sites.place(gpu).name, None)

    def newest_version(self, gpu: str) -> str:
        """The library's newest version that the bundle knows on a GPU, else anywhere."""
        return self._sites.newest_version(self._sites.place(gpu).name, self.library(gpu))

    @property
    def backend(self) -> str:
        """What computes: ``numpy``, ``onnx``, ``xgboost``, or ``table`` for models that are not one booster."""
        return self._backend.name

    @property
    def notes(self) -> tuple[str, ...]:
        """Why the backend is not the one asked for; empty where it is."""
        return tuple(self._backend.notes)

    def predict(
        self, problem: Any, algorithm: str | None = None, *, library_version: str | None = None
    ) -> Any:
        """The time of ``algorithm``, or of the best one, on a problem; or on every row of a table.

        ``problem``: a `Conv` or its text → `Prediction`; a DataFrame, a mapping of columns or a structured array →
        `Predictions`, row for row (the table's own ``algorithm`` column names the algorithms; without one, the best).
        Raises `InputError` for what cannot be read, an unknown algorithm, or where nothing is feasible.
        """
        if isinstance(problem, str):
            problem = parse(problem)
        if not isinstance(problem, Conv):
            from surrogate.prediction.table import predict_table

            return predict_table(self._sites, problem, self._defaults(library_version), algorithm)
        key = (problem, algorithm, library_version)
        found = self._answers.get(key)
        if found is None:
            found = self._predict(problem, algorithm, library_version)
            self._answers.put(key, found)
        return found

    def select(
        self,
        problem: Conv | str,
        *,
        workspace_limit: int | str | None = None,
        deterministic: bool = False,
        top: int | None = None,
        library_version: str | None = None,
    ) -> Selection:
        """The algorithms of a problem in the order of their predicted times, within the limits.

        ``workspace_limit`` in bytes; ``top`` keeps the first few. A version that the bundle does not know is accepted,
        out of domain. Where nothing is feasible the selection is empty. Raises `InputError` for a bad problem or limit.
        """
        key = (problem, workspace_limit, deterministic, top, library_version)
        found = self._answers.get(key)
        if found is None:
            conv = parse(problem) if isinstance(problem, str) else problem
            limits = checked_limits(workspace_limit, deterministic, top)
            site = self._site(conv, library_version)
            found = self._selection(site, conv, self._ranking(site, conv), limits)
            self._answers.put(key, found)
        return found

    def select_many(
        self,
        problems: Iterable[Conv | str],
        *,
        workspace_limit: int | str | None = None,
        deterministic: bool = False,
        top: int | None = None,
        library_version: str | None = None,
    ) -> list[Selection]:
        """`select` for every problem of a network, in order; equal problems are computed once, all of them together."""
        limits = checked_limits(workspace_limit, deterministic, top)
        convs = [parse(one) if isinstance(one, str) else one for one in problems]
        made: dict[Conv, Selection] = {}
        new: dict[int, tuple[Site, list[Conv]]] = {}
        for conv in dict.fromkeys(convs):
            key = (conv, workspace_limit, deterministic, top, library_version)
            found = self._answers.get(key)
            if found is not None:
                made[conv] = found
                continue
            site = self._site(conv, library_version)
            new.setdefault(id(site), (site, []))[1].append(conv)
        for site, group in new.values():
            for conv, ranking in zip(group, site.rank_many(group), strict=True):
                made[conv] = self._selection(site, conv, _sound(ranking), limits)
                self._answers.put((conv, workspace_limit, deterministic, top, library_version), made[conv])
        return [made[conv] for conv in convs]

    def forget(self) -> None:
        """Drop all remembered answers; what was made ready for a setting stays."""
        self._rankings = Recent(REMEMBERED)
        self._answers = Recent(REMEMBERED)

    def __repr__(self) -> str:
        where = self.gpu or "any GPU that a table names"
        return f"Predictor({self.bundle!r}, {where}, {self.backend})"

    def _site(self, conv: Conv, library_version: str | None) -> Site:
        key = (conv.direction, conv.dtype, conv.math, conv.layout, library_version)
        found = self._near.get(key)
        if found is None:
            place, library = self._place, self._library
            if place is None or library is None:
                raise InputError(
                    f"the bundle was fitted on several GPUs: {', '.join(sorted(self.bundle.fitted_gpus))};"
                    " name one, by --gpu G or load(path, gpu=…)"
                )
            version = library_version or self._sites.newest_version(place.name, library)
            found = self._sites.site(Setting.of(conv, place.name, library, version), place)
            self._near[key] = found
        return found

    def _defaults(self, library_version: str | None) -> dict[str, str | None]:
        return {"gpu": self.gpu, "library": self._library, "library_version": library_version}

    def _ranking(self, site: Site, conv: Conv) -> Ranking:
        key = (conv, id(site))
        found = self._rankings.get(key)
        if found is None:
            found = _sound(site.rank(conv))
            self._rankings.put(key, found)
        return found

    def _selection(self, site: Site, conv: Conv, ranking: Ranking, limits: Limits) -> Selection:
        estimates, excluded, distance = ranking
        if limits.workspace_bytes is not None or limits.deterministic:
            reasons = [(one, limits.excludes(one)) for one in estimates]
            excluded += tuple(Excluded(one.candidate.name, reason) for one, reason in reasons if reason)
            estimates = tuple(one for one, reason in reasons if reason is None)
        cut = () if limits.top is None else estimates[limits.top :]
        estimates = estimates[: limits.top]
        pick = estimates[0].candidate.algorithm if estimates else site.candidates[0].algorithm
        setting = site.setting
        return Selection(
            conv,
            setting.gpu,
            setting.library,
            setting.library_version,
            estimates,
            excluded,
            site.reason(conv, pick, distance),
            site.widths.own_share,
            cut,
        )

    def _predict(self, conv: Conv, algorithm: str | None, library_version: str | None) -> Prediction:
        site = self._site(conv, library_version)
        if algorithm is None:
            estimates, excluded, distance = self._ranking(site, conv)
            if not estimates:
                raise InputError(
                    f"no algorithm runs {conv} {conv.direction} {conv.dtype}: "
                    + "; ".join(f"{name}: {reason}" for name, reason in excluded)
                )
            best, refusal = estimates[0], None
        else:
            place = site.place_of(algorithm)
            distance = site.distance(conv)
            best = site.estimates(conv, [place], distance)[0]
            refusal = site.verdicts.of(conv)[place]
        factor = exp(best.half_width)
        reason = site.reason(conv, best.candidate.algorithm, distance)
        return Prediction(
            conv,
            site.setting.gpu,
            site.setting.library_version,
            best.candidate.algorithm,
            best.time_us,
            best.time_us / factor,
            best.time_us * factor,
            best.workspace_bytes,
            best.source,
            reason is None,
            refusal or reason,
            refusal is None,
        )


def _sound(ranking: Ranking) -> Ranking:
    """The ranking. Raises `InputError` where the model gives a time that is none."""
    for one in ranking[0]:
        if not 0.0 < one.time_us < inf:
            raise InputError(
                f"the bundle's model gives {one.candidate.name} {one.time_us} µs; it is damaged, train it again with"
                " `seer train`"
            )
    return ranking


def load(
    gpu_or_path: str | Path, *, gpu: str | None = None, library: str | None = None, backend: str = "auto"
) -> Predictor:
    """A predictor for a GPU, from the bundle that ships for it; or from a bundle's folder.

    A GPU that no shipped bundle was fitted on is answered by its vendor's from its specification, with wider intervals
    and ``source`` ``spec``. ``gpu`` says which one is asked about where a path is given. ``backend``: ``auto``,
    ``numpy``, ``onnx`` or ``xgboost``. Raises `InputError` for an unknown or ambiguous GPU, or a bad bundle.
    """
    from surrogate.bundle.bundle import load as load_bundle

    if is_path(gpu_or_path):
        return Predictor(load_bundle(gpu_or_path), gpu=gpu, library=library, backend=backend)
    if gpu is not None:
        raise InputError(f"a GPU is named twice, {gpu_or_path!r} and {gpu!r}; gpu= goes with a bundle's path")
    name = str(gpu_or_path)
    return Predictor(
        load_bundle(bundle_for(find_gpu(name), library)), gpu=name, library=library, backend=backend
    )


@lru_cache(maxsize=16)
def _loaded(name: str, library: str | None, user_gpus: str) -> Predictor:
    del user_gpus  # part of the key: the file adds GPUs
    return load(name, library=library)


def _predictor(name: str, library: str | None) -> Predictor:
    import os

    return _loaded(name, library, os.environ.get(ENVIRONMENT_VARIABLE, ""))


def predict(
    problem: Any,
    *,
    gpu: str,
    algorithm: str | None = None,
    library: str | None = None,
    library_version: str | None = None,
) -> Prediction | Predictions:
    """`Predictor.predict` of the bundle that ships for ``gpu`` (or lies at that path), loaded once."""
    return _predictor(gpu, library).predict(problem, algorithm, library_version=library_version)


def select(
    problem: Conv | str,
    *,
    gpu: str,
    library: str | None = None,
    workspace_limit: int | str | None = None,
    deterministic: bool = False,
    top: int | None = None,
    library_version: str | None = None,
) -> Selection:
    """`Predictor.select` of the bundle that ships for ``gpu`` (or lies at that path), loaded once."""
    return _predictor(gpu, library).select(
        problem,
        workspace_limit=workspace_limit,
        deterministic=deterministic,
        top=top,
        library_version=library_version,
    )


__all__ = ["Backend", "Prediction", "Predictions", "Predictor", "Selection", "load", "predict", "select"]
