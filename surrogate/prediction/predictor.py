"""Load a bundle and ask it: the time of a kernel, or the algorithm to run on a problem of any family."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard, overload

import numpy as np

from surrogate.bundle.bundle import Bundle
from surrogate.features.description import RESERVED
from surrogate.features.errors import InputError
from surrogate.features.families import AnyProblem, DescribedProblem, family_of, parse_problem
from surrogate.features.gpu import Gpu
from surrogate.features.problem import setting
from surrogate.prediction.kernel_times import KernelTimes
from surrogate.prediction.prepared import PreparedSetting, Ranking
from surrogate.prediction.results import Estimate, Excluded, KernelTime, Limits, Prediction, Predictions, Selection
from surrogate.prediction.settings import Question, SettingCache, is_problem

Problems = list[AnyProblem | str] | tuple[AnyProblem | str, ...]
REMEMBERED = 100_000
"""Answers kept by a predictor; each takes about 2 KB."""


class Predictor:
    """A bundle and the GPU that is asked about; instances may be shared between threads.

    ``gpu`` may be left out where the bundle was fitted on one GPU alone, or where a table names it row by row.
    ``library`` narrows the candidates to one library's. Raises `InputError` for a GPU or library that is unknown.
    """

    def __init__(self, bundle: Bundle, *, gpu: str | None = None, library: str | None = None) -> None:
        self.bundle = bundle
        self._settings = SettingCache(bundle)
        named = gpu or (next(iter(bundle.fitted_gpus)) if len(bundle.fitted_gpus) == 1 else None)
        self._target: Gpu | None = self._settings.device(named) if named else None
        self._library = library
        if library is not None:
            self._settings.check_library(library)
        self._kernels = KernelTimes(self._settings, library)
        self.forget()

    @property
    def card(self) -> Mapping[str, Any]:
        """The bundle's model card."""
        return self.bundle.card

    @property
    def gpu(self) -> str | None:
        """Registry name of the GPU asked about."""
        return self._target.name if self._target else None

    @property
    def target(self) -> Gpu:
        """The GPU asked about. Raises `InputError` where none is named."""
        if self._target is None:
            raise InputError(
                f"the bundle was fitted on several GPUs: {', '.join(sorted(self.bundle.fitted_gpus))};"
                " name one, by --gpu G or load(path, gpu=…)"
            )
        return self._target

    def read(self, problem: AnyProblem | str, **settings: str) -> AnyProblem:
        """The problem that a text names, or that is one, under the ``settings``; its math, where they name none, is as
        PyTorch runs it on the GPU. Raises `InputError` for a setting that the problem does not have."""
        described = self.bundle.described
        if described and isinstance(problem, DescribedProblem):
            problem = described.as_own(problem)
        if isinstance(problem, str):
            parsed = parse_problem(described.whole_text(problem) if described else problem, described, **settings)
        elif settings:
            if foreign := [name for name in settings if not hasattr(problem, name)]:
                raise InputError(f"{', '.join(foreign)} is no setting of {problem.kind}; leave it out")
            parsed = replace(problem, **{name: setting(name, value) for name, value in settings.items()})
        else:
            return problem
        if "math" in settings or isinstance(parsed, DescribedProblem):
            return parsed
        return replace(parsed, math=family_of(parsed).default_math(parsed.dtype, self.target))

    @overload
    def predict(  # pyright: ignore[reportOverlappingOverload]
        self,
        problem: AnyProblem | str,
        algorithm: str | None = ...,
        *,
        library_version: str | None = ...,
        library: str | None = ...,
        **settings: str,
    ) -> Prediction: ...
    @overload
    def predict(
        self,
        problem: Problems,
        algorithm: str | None = ...,
        *,
        library_version: str | None = ...,
        library: str | None = ...,
        **settings: str,
    ) -> list[Prediction]: ...
    @overload
    def predict(
        self,
        problem: object,
        algorithm: str | None = ...,
        *,
        library_version: str | None = ...,
        library: str | None = ...,
        **settings: str,
    ) -> Predictions: ...
    def predict(
        self,
        problem: object,
        algorithm: str | None = None,
        *,
        library_version: str | None = None,
        library: str | None = None,
        **settings: str,
    ) -> Prediction | list[Prediction] | Predictions:
        """The time of ``algorithm``, or of the best one, on a problem; or on every row of a table.

        ``problem``: a `Conv` or operator, or its text → `Prediction`; a list of them → a list; a table (a DataFrame, a
        mapping of columns, a list of rows, a structured array, a `Path`) → `Predictions`, row for row (the table's own
        ``algorithm`` column names the algorithms; without one, the best). ``settings`` are those of the problem: dtype,
        math, layout, direction, kv_dtype and so on, by any name that people call their values (``float16``); those of a
        table are columns. Raises `InputError` for what cannot be read, an unknown algorithm, or where nothing is
        feasible.
        """
        if not isinstance(algorithm, str | None):
            raise InputError(f"algorithm is a {type(algorithm).__name__}; give a candidate's name, a text")
        if isinstance(problem, str) or is_problem(problem):
            key = (problem, algorithm, library_version, library, *settings.items())
            if key not in self._answers:
                asked = self.read(problem, **settings)
                self._remember(key, self._predict_one(asked, algorithm, library_version, library))
            return self._answers[key]
        if _is_list(problem):
            return [
                self.predict(item, algorithm, library_version=library_version, library=library, **settings)
                for item in problem
            ]
        from surrogate.prediction.table import predict_table

        _require_columns(settings)
        self._check_names(problem)
        defaults = {"gpu": self.gpu, "library": library or self._library, "library_version": library_version}
        return predict_table(self._settings, problem, defaults, algorithm)

    def select(
        self,
        problem: object,
        *,
        workspace_limit: int | str | None = None,
        deterministic: bool = False,
        top: int | None = None,
        library_version: str | None = None,
        library: str | None = None,
        **settings: str,
    ) -> Any:
        """The candidates of a problem in the order of their predicted times, within the limits.

        Of a list, a list; of a table (as `predict` takes it) a list of one selection for each distinct problem, in the
        order of the rows; of a mapping to single values, which is one problem, a `Selection`.

        ``settings`` as `predict` takes them. ``workspace_limit`` in bytes, or as in ``64MiB``; ``top`` keeps the first
        few. A version that the bundle does not know is accepted, out of domain. Where nothing is feasible the selection
        is empty. Raises `InputError` for a bad problem or limit.
        """
        if not isinstance(problem, str) and not is_problem(problem):
            limits = Limits.of(workspace_limit, deterministic, top)
            if _is_list(problem):
                asked = [self.read(each, **settings) for each in problem]
                return self._select(asked, limits, library_version, library)
            _require_columns(settings)
            self._check_names(problem)
            selections = self._select_table(problem, limits, library_version, library)
            return selections[0] if _is_one(problem) else selections
        key = (problem, workspace_limit, deterministic, top, library_version, library, *settings.items())
        if key not in self._answers:
            limits = Limits.of(workspace_limit, deterministic, top)
            asked = [self.read(problem, **settings)]
            self._remember(key, self._select(asked, limits, library_version, library)[0])
        return self._answers[key]

    def select_many(self, problems: Iterable[AnyProblem | str], **options: Any) -> list[Selection]:
        """`select` for every problem of a network, in order; equal problems are computed once, all of them together."""
        return self.select(list(problems), **options)

    def _check_names(self, table: object) -> None:
        """Raises `InputError` for a name in a mapping of one problem that a described kernel does not have."""
        family = self.bundle.described
        if family is None or not _is_one(table):
            return
        known = (*family.size_names, *family.setting_names)
        if unknown := {*map(str, table)} - {*known, *family.parameter_names, *RESERVED}:
            raise InputError(f"{family.name} has no {min(unknown)}; a problem has {', '.join(known)}")

    def _select(
        self, problems: Iterable[AnyProblem | str], limits: Limits, library_version: str | None, library: str | None
    ) -> list[Selection]:
        conditions = (limits, library_version, library)
        asked = [self.read(problem) for problem in problems]
        answers: dict[AnyProblem, Selection] = {}
        new: dict[PreparedSetting, list[AnyProblem]] = {}
        for problem in dict.fromkeys(asked):
            if (answer := self._answers.get((problem, *conditions))) is not None:
                answers[problem] = answer
            else:
                prepared = self._settings.prepared(self._question(problem, library_version, library))
                new.setdefault(prepared, []).append(problem)
        for prepared, group in new.items():
            for problem, ranking in zip(group, prepared.rank_many(group), strict=True):
                answers[problem] = _selection(prepared, problem, ranking, limits)
                self._remember((problem, *conditions), answers[problem])
        return [answers[problem] for problem in asked]

    def _select_table(
        self, table: object, limits: Limits, library_version: str | None, library: str | None
    ) -> list[Selection]:
        """The distinct problems of a table, by the GPU, library and version that each row names."""
        from surrogate.prediction.table import asked_problems

        defaults = {"gpu": self.gpu, "library": library or self._library, "library_version": library_version}
        listed = asked_problems(self._settings, table, defaults)
        answers: dict[tuple[AnyProblem, tuple[str, ...]], Selection] = {}
        for where in dict.fromkeys(where for _, where in listed):
            gpu, named, version = (name or None for name in where)
            predictor = self if gpu in (None, self.gpu) else Predictor(self.bundle, gpu=gpu)
            problems = [problem for problem, other in listed if other == where]
            selections = predictor._select(problems, limits, version, named)
            answers.update(zip(((problem, where) for problem in problems), selections, strict=True))
        return [answers[key] for key in listed]

    def kernel_times(self, problems: Sequence[AnyProblem]) -> list[KernelTime]:
        """The kernel of each problem alone, as in a busy stream: what a network or a trace adds up.

        A kind of problem that was never measured goes by one that moves the same bytes, else by its roofline.
        """
        return self._kernels.of(problems, self.target)

    def forget(self) -> None:
        """Drop all remembered answers; what was made ready for a setting stays."""
        self._answers: dict[tuple[object, ...], Any] = {}

    def __repr__(self) -> str:
        return f"Predictor({self.bundle!r}, {self.gpu or 'any GPU that a table names'})"

    def _remember(self, key: tuple[object, ...], answer: Selection | Prediction) -> None:
        if len(self._answers) >= REMEMBERED:
            self._answers.clear()
        self._answers[key] = answer

    def _question(self, problem: AnyProblem, library_version: str | None, library: str | None) -> Question:
        family = family_of(problem)
        values = family.setting_of(problem)
        return Question(family, self.target.name, values, library or self._library, library_version=library_version)

    def _predict_one(
        self, problem: AnyProblem, algorithm: str | None, library_version: str | None, library: str | None
    ) -> Prediction:
        question = self._question(problem, library_version, library)
        if algorithm is None:
            selection = self.select(problem, library_version=library_version, library=library)
            return _best(self._settings.prepared(question), selection)
        return _named(self._settings.naming(question, algorithm), problem, algorithm)


def _require_columns(settings: Mapping[str, str]) -> None:
    """Raises `InputError` where settings come with a table, whose rows have their own."""
    if settings:
        raise InputError(f"{', '.join(settings)} beside a table; give it as a column, a value for each row")


def _is_list(problems: object) -> TypeGuard[Problems]:
    """Whether it is a list of problems; one of mappings is a table, row by row."""
    return isinstance(problems, list | tuple) and not any(isinstance(item, Mapping) for item in problems)


def _is_one(table: object) -> TypeGuard[Mapping[object, object]]:
    """Whether it is one problem: a mapping to single values."""
    return isinstance(table, Mapping) and not any(map(np.ndim, table.values()))


def _selection(prepared: PreparedSetting, problem: AnyProblem, ranking: Ranking, limits: Limits) -> Selection:
    """What the limits leave of a ranking."""
    estimates, refused = within(problem, ranking.estimates, limits)
    pick = (estimates or ranking.estimates)[0].candidate if ranking.estimates else prepared.candidates[0]
    return Selection(
        problem=problem,
        gpu=prepared.setting.gpu,
        library=", ".join(library for library, _ in prepared.setting.versions),
        library_version=", ".join(version for _, version in prepared.setting.versions),
        estimates=estimates,
        excluded=ranking.excluded + refused,
        reason=prepared.reason(problem, pick, ranking.distances),
        own_share=prepared.widths.own_share,
        top=limits.top,
        source=prepared.source,
        notes=prepared.notes[pick.library],
    )


def within(
    problem: AnyProblem, estimates: Iterable[Estimate], limits: Limits
) -> tuple[tuple[Estimate, ...], tuple[Excluded, ...]]:
    """A problem's estimates that the limits allow, in order, and the others with the reason.

    Raises `InputError` for limits on a described kernel, of which nothing says what they would rule out.
    """
    if limits.workspace_bytes is None and not limits.deterministic:
        return tuple(estimates), ()
    if isinstance(problem, DescribedProblem):
        raise InputError(
            f"nothing tells the workspace of a configuration of {problem.kind}, nor whether it gives the same bits"
            " twice; leave the limit on workspaces, and deterministic, out"
        )
    judged = [(e, limits.refusal(e.workspace_bytes, e.candidate.deterministic)) for e in estimates]
    refused = tuple(Excluded(estimate.candidate.name, reason) for estimate, reason in judged if reason)
    return tuple(estimate for estimate, reason in judged if reason is None), refused


def limited(selection: Selection, limits: Limits) -> Selection:
    """What ``limits`` leave of a selection; the rest is excluded with the reason."""
    allowed, refused = within(selection.problem, selection.estimates, limits)
    return replace(selection, estimates=allowed, excluded=selection.excluded + refused, top=limits.top)


def _best(prepared: PreparedSetting, selection: Selection) -> Prediction:
    """The fastest candidate. Raises `InputError` where nothing is feasible."""
    problem = selection.problem
    if not selection.estimates:
        reasons = {reason for _, reason in selection.excluded}
        several = "; ".join(f"{name}: {reason}" for name, reason in selection.excluded)
        setting = " ".join(filter(None, prepared.setting.values))
        raise InputError(f"no algorithm runs {problem} {setting}: {several if len(reasons) > 1 else ''.join(reasons)}")
    return _prediction(prepared, problem, selection.estimates[0], reason=selection.reason, refusal=None)


def _named(prepared: PreparedSetting, problem: AnyProblem, algorithm: str) -> Prediction:
    """The candidate of that name, in the first library that has it. Raises `InputError` with the nearest names."""
    index = prepared.named(algorithm)[0]
    ranking = prepared.rank(problem, [index])
    if not ranking.estimates:
        reasons = {excluded.algorithm: excluded.reason for excluded in ranking.excluded}
        raise InputError(f"{algorithm} on {problem}: {reasons[algorithm]}")
    reason = prepared.reason(problem, prepared.candidates[index], ranking.distances)
    refusal = prepared.rules.of(problem)[index]
    return _prediction(prepared, problem, ranking.estimates[0], reason=reason, refusal=refusal)


def _prediction(
    prepared: PreparedSetting, problem: AnyProblem, estimate: Estimate, *, reason: str | None, refusal: str | None
) -> Prediction:
    candidate = estimate.candidate
    library = candidate.library
    lower_us, upper_us = estimate.ends_us
    described = isinstance(problem, DescribedProblem)
    return Prediction(
        problem=problem,
        gpu=prepared.setting.gpu,
        library=library,
        library_version=dict(prepared.setting.versions)[library],
        algorithm=candidate.name if described else candidate.algorithm,
        time_us=estimate.time_us,
        lower_us=lower_us,
        upper_us=upper_us,
        workspace_bytes=None if described else estimate.workspace_bytes,
        source=estimate.source,
        in_domain=reason is None,
        reason=refusal or reason,
        supported=refusal is None,
        notes=prepared.notes[library],
    )
