"""Predict with a bundle: the time of a kernel, or the fastest algorithm, for a problem of any family."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, overload

import numpy as np

from surrogate.bundle.bundle import Bundle, FamilyModel
from surrogate.features import RESERVED, BoundedCache, Gpu, InputError, setting
from surrogate.features.families import AnyProblem, DescribedProblem, Family, family_of, parse_problem
from surrogate.prediction.kernel_times import KernelTimes
from surrogate.prediction.ranking import Ranker, Ranking, rankings_of
from surrogate.prediction.resolve import Question, Resolver, is_problem
from surrogate.prediction.results import (
    MEASURED,
    Answers,
    Estimate,
    Excluded,
    KernelTime,
    Limits,
    Prediction,
    Predictions,
    Selection,
)
from surrogate.uncertainty.intervals import ALL

if TYPE_CHECKING:
    from surrogate.prediction.table import Defaults

Problems = list[AnyProblem | str] | tuple[AnyProblem | str, ...]
MAX_ESTIMATES = 8192
"""Maximum number of candidates in the answers that a predictor keeps. A candidate takes about 1 KB."""


class LibraryRequest(NamedTuple):
    """The library and version of a question. None means every library, and each one's newest version.

    ``follows_forward`` is as in `Question`.
    """

    library: str | None = None
    library_version: str | None = None
    follows_forward: bool = True


class Predictor:
    """Predicts times and ranks candidates for one GPU with a bundle. Threads may share an instance.

    Parameters
    ----------
    bundle
        The fitted models.
    gpu
        Name of the GPU. It may be left out if the bundle was fitted on a single GPU, or if a table names the GPUs.
    library
        Library whose candidates compete; None means all of them.

    Raises
    ------
    InputError
        If the GPU or the library is unknown.
    """

    def __init__(self, bundle: Bundle, *, gpu: str | None = None, library: str | None = None) -> None:
        self.bundle = bundle
        self._resolver = Resolver(bundle)
        name = gpu or (next(iter(bundle.fitted_gpus)) if len(bundle.fitted_gpus) == 1 else None)
        self._target: Gpu | None = self._resolver.device(name) if name else None
        self._library = library
        if library is not None:
            self._resolver.check_library(library)
        self._kernels = KernelTimes(self._resolver, library)
        self.forget()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the bundle, the GPU and the library, without the kept answers."""
        return partial(Predictor, gpu=self.gpu, library=self._library), (self.bundle,)

    @property
    def card(self) -> Mapping[str, Any]:
        """The bundle's model card."""
        return self.bundle.card

    @property
    def gpu(self) -> str | None:
        """Registry name of the GPU, or None if a table must name it."""
        return self._target.name if self._target else None

    @property
    def target(self) -> Gpu:
        """The GPU. Raises `InputError` if none was given."""
        if self._target is None:
            raise InputError(
                f"the bundle was fitted on several GPUs: {', '.join(sorted(self.bundle.fitted_gpus))};"
                " name one, by --gpu G or load(path, gpu=…)"
            )
        return self._target

    def read(self, problem: AnyProblem | str, **settings: str) -> AnyProblem:
        """Return the problem of a text, or a problem, with the ``settings``.

        If the settings do not hold the math type, it is `Bundle.default_math`. Raises `InputError` for a setting
        that the problem does not have.
        """
        family = self.bundle.described_family
        if family and isinstance(problem, DescribedProblem):
            problem = family.as_own(problem)
        if isinstance(problem, str):
            parsed = parse_problem(family.full_text(problem) if family else problem, family, **settings)
        elif settings:
            if unknown := [name for name in settings if not hasattr(problem, name)]:
                raise InputError(f"{', '.join(unknown)} is not a setting of {problem.kind}; leave it out")
            parsed = replace(problem, **{name: setting(name, value) for name, value in settings.items()})
        else:
            return problem
        if "math" in settings or isinstance(parsed, DescribedProblem):
            return parsed
        return replace(parsed, math=self.default_math(family_of(parsed), parsed.dtype))

    def default_math(self, family: Family, dtype: str) -> str:
        """Return the math type of a problem that does not state it."""
        return self.bundle.default_math(family, dtype, self.target)

    @overload
    def predict(  # pyright: ignore[reportOverlappingOverload]
        self, problem: AnyProblem | str, algorithm: str | None = ..., **where: str | None
    ) -> Prediction: ...
    @overload
    def predict(self, problem: Problems, algorithm: str | None = ..., **where: str | None) -> Answers[Prediction]: ...
    @overload
    def predict(self, problem: object, algorithm: str | None = ..., **where: str | None) -> Predictions: ...
    def predict(
        self,
        problem: object,
        algorithm: str | None = None,
        *,
        library_version: str | None = None,
        library: str | None = None,
        **settings: Any,
    ) -> Prediction | Answers[Prediction] | Predictions:
        """Predict the time of an algorithm, or of the fastest one.

        Parameters
        ----------
        problem
            A problem (`Conv` or operator), its text, a list of them, or a table: a DataFrame, a mapping of columns, a
            list of rows, a structured array, or a `Path`.
        algorithm
            Name of the candidate; None means the fastest one. A table may name the candidates in its column
            ``algorithm``.
        library_version
            Version of the library; None means the newest one.
        library
            Library to predict for; None means the fastest of all libraries.
        **settings
            Settings of the problem: ``dtype``, ``math``, ``layout``, ``direction``, ``kv_dtype`` and so on. Usual
            aliases of values are accepted (``float16``). For a table they apply to rows without their own values.

        Returns
        -------
        Prediction, Answers of Prediction, or Predictions
            For a problem, for a list, or for a table, row by row. Times are in µs. All have ``to_frame()``.

        Raises
        ------
        InputError
            If the problem or the table cannot be read, if the algorithm is unknown, or if no candidate is feasible.
        """
        if not isinstance(algorithm, str | None):
            raise InputError(f"algorithm is a {type(algorithm).__name__}; give the name of a candidate as text")
        if isinstance(problem, str) or is_problem(problem):
            key = (problem, algorithm, library_version, library, *settings.items())
            if (answer := self._answers.get(key)) is None:
                request = LibraryRequest(library or self._library, library_version)
                answer = self._answers.put(key, self._predict_one(self.read(problem, **settings), algorithm, request))
            return answer
        if _is_list(problem):
            options = {"library_version": library_version, "library": library, **settings}
            return Answers(self.predict(item, algorithm, **options) for item in problem)
        from surrogate.prediction.table import predict_table

        self._check_names(problem)
        return predict_table(self._resolver, problem, self._defaults(library, library_version, settings), algorithm)

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
        """Rank the candidates of a problem by their predicted times, within limits.

        Parameters
        ----------
        problem
            A problem, its text, a list of them, or a table, as in `predict`. A mapping to single values is one problem.
        workspace_limit
            Maximum workspace in bytes, or a text such as ``64MiB``.
        deterministic
            Whether only deterministic candidates are allowed.
        top
            Number of candidates to list; None means all.
        library_version
            Version of the library; None means the newest one. An unknown version is accepted as out of domain.
        library
            Library whose candidates compete; None means all of them.
        **settings
            Settings of the problem, as in `predict`.

        Returns
        -------
        Selection or Answers of Selection
            For a problem, or for a list or a table, row by row. Both have ``to_frame()``. A selection is empty if no
            candidate is feasible.

        Raises
        ------
        InputError
            If the problem or a limit cannot be read.
        """
        if not isinstance(problem, str) and not is_problem(problem):
            limits = Limits.of(workspace_limit, deterministic, top)
            if _is_list(problem):
                listed = [self.read(each, **settings) for each in problem]
                return Answers(self._select(listed, limits, LibraryRequest(library or self._library, library_version)))
            self._check_names(problem)
            selections = self._select_table(problem, limits, self._defaults(library, library_version, settings))
            return selections[0] if _is_one(problem) else Answers(selections)
        key = (problem, workspace_limit, deterministic, top, library_version, library, *settings.items())
        if (answer := self._answers.get(key)) is None:
            limits = Limits.of(workspace_limit, deterministic, top)
            request = LibraryRequest(library or self._library, library_version)
            answer = self._answers.put(key, self._select([self.read(problem, **settings)], limits, request)[0])
        return answer

    def select_many(self, problems: Iterable[AnyProblem | str], **options: Any) -> Answers[Selection]:
        """Return the selection of every problem, in order. Equal problems are computed once."""
        return self.select(list(problems), **options)

    def network_selections(
        self, problems: Sequence[AnyProblem], *, workspace_limit: int | None = None, deterministic: bool = False
    ) -> list[Selection]:
        """Return the selections of a network's convolutions. Unmeasured gradients keep the datasheet's time.

        Networks run on newer releases than the measured forward passes. A V100 trains ResNet-50 in half precision and
        NHWC on 1,200 images/s (NVIDIA's examples). The prediction is 950, and 730 if gradients follow cuDNN 7.6.
        """
        limits = Limits.of(workspace_limit, deterministic)
        return self._select(problems, limits, LibraryRequest(self._library, follows_forward=False))

    def _check_names(self, table: object) -> None:
        """Raise `InputError` if a mapping of one problem has a name that the described kernel does not have."""
        family = self.bundle.described_family
        if family is None or not _is_one(table):
            return
        names = (*family.size_names, *family.setting_names)
        if unknown := {*map(str, table)} - {*names, *family.parameter_names, *RESERVED}:
            raise InputError(f"{family.name} has no {min(unknown)}; a problem has {', '.join(names)}")

    def _defaults(self, library: str | None, library_version: str | None, settings: Mapping[str, str]) -> "Defaults":
        """Return the values for the rows of a table that lack their own."""
        from surrogate.prediction.table import Defaults

        values = {name: setting(name, value) for name, value in settings.items()}
        return Defaults(self.gpu, library or self._library, library_version, values)

    def _select(self, problems: Sequence[AnyProblem], limits: Limits, request: LibraryRequest) -> list[Selection]:
        answers: dict[AnyProblem, Selection] = {}
        new: dict[Question, list[AnyProblem]] = {}
        for problem in dict.fromkeys(problems):
            if (answer := self._answers.get((problem, limits, request))) is not None:
                answers[problem] = answer
            else:
                new.setdefault(self._question(problem, request), []).append(problem)
        for question, group in new.items():
            ranker = self._resolver.ranker(question)
            for problem, ranking in zip(group, rankings_of(ranker, group), strict=True):
                selection = _selection(ranker, problem, ranking, limits)
                answers[problem] = self._answers.put((problem, limits, request), selection)
        return [answers[problem] for problem in problems]

    def _select_table(self, table: object, limits: Limits, defaults: "Defaults") -> list[Selection]:
        """Return the selection of each row of a table, for its GPU, library and version."""
        from surrogate.prediction.table import table_problems

        listed = table_problems(self._resolver, table, defaults)
        answers: dict[tuple[AnyProblem, tuple[str, ...]], Selection] = {}
        for where in dict.fromkeys(where for _, where in listed):
            gpu, library, version = (name or None for name in where)
            predictor = self if gpu in (None, self.gpu) else Predictor(self.bundle, gpu=gpu)
            problems = [problem for problem, other in listed if other == where]
            selections = predictor._select(problems, limits, LibraryRequest(library, version))
            answers.update(zip(((problem, where) for problem in problems), selections, strict=True))
        return [answers[key] for key in listed]

    def family_models(self, problems: Iterable[AnyProblem], library_version: str | None = None) -> list[FamilyModel]:
        """Return the distinct models that answer the problems, in order."""
        request = LibraryRequest(self._library, library_version)
        questions = dict.fromkeys(self._question(problem, request) for problem in problems)
        models = {id(model.fitted): model for model in (self._resolver.ranker(each).family_model for each in questions)}
        return [*models.values()]

    def kernel_times(self, problems: Sequence[AnyProblem], *, keep: bool = True) -> list[KernelTime]:
        """Return the kernel time of each problem in a busy stream, as networks and traces add them up.

        An unmeasured kind of problem gets the time of a kind that moves the same bytes, else its roofline time. If
        ``keep`` is False, answers are neither kept nor looked up, which is faster for the rows of a table.
        """
        return (self._kernels.of if keep else self._kernels.computed)(problems, self.target)

    def forget(self) -> None:
        """Drop all kept answers. The rankers of settings are kept."""
        self._answers: BoundedCache[tuple[object, ...], Any] = BoundedCache(MAX_ESTIMATES, _estimates)

    def __repr__(self) -> str:
        return f"Predictor({self.bundle!r}, {self.gpu or 'GPUs named by a table'})"

    def _question(self, problem: AnyProblem, request: LibraryRequest, requested: tuple[str, ...] = ()) -> Question:
        family = family_of(problem)
        library, version, follows = request
        follows |= not getattr(problem, "is_gradient", False)  # other problems share their rankers
        setting = family.setting_of(problem)
        return Question(family, self.target.name, setting, library, version, requested, follows_forward=follows)

    def _predict_one(self, problem: AnyProblem, algorithm: str | None, request: LibraryRequest) -> Prediction:
        ranker = self._resolver.ranker(self._question(problem, request, () if algorithm is None else (algorithm,)))
        if algorithm is None:
            estimate, refusal = _fastest(ranker, self._select([problem], Limits(), request)[0]), None
        else:
            estimate, refusal = ranker.estimate(problem, ranker.positions_of([algorithm])[algorithm])
        candidate = estimate.candidate
        is_described = isinstance(problem, DescribedProblem)
        return Prediction(
            problem=problem,
            gpu=ranker.setting.gpu,
            library=candidate.library,
            library_version=dict(ranker.setting.versions)[candidate.library],
            algorithm=candidate.name if is_described else candidate.algorithm,
            time_us=estimate.time_us,
            lower_us=estimate.lower_us,
            upper_us=estimate.upper_us,
            workspace_bytes=estimate.workspace_bytes,
            source=estimate.source,
            in_domain=estimate.in_domain,
            reason=refusal or ranker.reason(problem, estimate),
            supported=refusal is None,
            notes=ranker.notes_of(problem, candidate.library),
            unmeasured_value=ranker.unmeasured_value,
        )


def _estimates(answer: Prediction | Selection) -> int:
    """Return the number of candidates in an answer."""
    return 1 + len(answer.estimates) + len(answer.excluded) if isinstance(answer, Selection) else 1


def _is_list(problems: object) -> TypeGuard[Problems]:
    """Return whether ``problems`` is a list of problems. A list of mappings is a table, row by row."""
    return isinstance(problems, list | tuple) and not any(isinstance(item, Mapping) for item in problems)


def _is_one(table: object) -> TypeGuard[Mapping[object, object]]:
    """Return whether ``table`` is one problem: a mapping to single values."""
    return isinstance(table, Mapping) and not any(map(np.ndim, table.values()))


def _selection(ranker: Ranker, problem: AnyProblem, ranking: Ranking, limits: Limits) -> Selection:
    """Return the selection of a ranking within the limits."""
    estimates, refused = split_by_limits(problem, ranking.estimates, limits)
    pick = (estimates or ranking.estimates or [None])[0]
    share = ranker.widths.independent_share
    predicted = [each.half_width for each in estimates if each.source != MEASURED]
    if predicted and isinstance(problem, DescribedProblem):  # a GPU's wider intervals have more errors in common
        extra_width = ranker.family_model.domain.extrapolation_width(np.array([problem.values]))[0]
        share *= (ranker.widths.by_key[ALL] + extra_width) / predicted[0]
    return Selection(
        problem=problem,
        gpu=ranker.setting.gpu,
        library=", ".join(library for library, _ in ranker.setting.versions),
        library_version=", ".join(version for _, version in ranker.setting.versions),
        estimates=estimates,
        excluded=ranking.excluded + refused,
        reason=ranker.reason(problem, pick),
        independent_share=share,
        top=limits.top,
        source=ranker.source_name,
        notes=ranker.notes_of(problem, (pick.candidate if pick else ranker.candidates[0]).library),
        unmeasured_value=ranker.unmeasured_value,
    )


def split_by_limits(
    problem: AnyProblem, estimates: Iterable[Estimate], limits: Limits
) -> tuple[tuple[Estimate, ...], tuple[Excluded, ...]]:
    """Return the estimates that the limits allow, in order, and the others with the reason.

    Raises `InputError` for limits on a described kernel, because its data do not state workspace and determinism.
    """
    if limits.workspace_bytes is None and not limits.deterministic:
        return tuple(estimates), ()
    if isinstance(problem, DescribedProblem):
        raise InputError(
            f"the workspace and the determinism of configurations of {problem.kind} are unknown;"
            " leave out the workspace limit and deterministic"
        )
    pairs = [(e, limits.refusal(e.workspace_bytes, e.candidate.deterministic)) for e in estimates]
    refused = tuple(Excluded(estimate.candidate.name, reason) for estimate, reason in pairs if reason)
    return tuple(estimate for estimate, reason in pairs if reason is None), refused


def _fastest(ranker: Ranker, selection: Selection) -> Estimate:
    """Return the fastest candidate. Raises `InputError` if no candidate is feasible."""
    if selection.estimates:
        return selection.estimates[0]
    reasons = {reason for _, reason in selection.excluded}
    several = "; ".join(f"{name}: {reason}" for name, reason in selection.excluded)
    setting = " ".join(filter(None, ranker.setting.values))
    why = several if len(reasons) > 1 else "".join(reasons)
    raise InputError(f"no algorithm runs {selection.problem} {setting}: {why}; give other settings or another GPU")
