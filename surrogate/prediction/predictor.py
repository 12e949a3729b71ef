"""Load a bundle and ask it: the time of a kernel, or the algorithm to run on a problem of any family."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, overload

import numpy as np

from surrogate.bundle.bundle import Bundle
from surrogate.features.description import RESERVED
from surrogate.features.errors import InputError
from surrogate.features.families import AnyProblem, DescribedProblem, family_of, parse_problem
from surrogate.features.gpu import Gpu
from surrogate.features.problem import setting
from surrogate.prediction.kernel_times import KernelTimes
from surrogate.prediction.ranking import Ranker, Ranking
from surrogate.prediction.resolve import Question, Resolver, is_problem
from surrogate.prediction.results import Estimate, Excluded, KernelTime, Limits, Prediction, Predictions, Selection

if TYPE_CHECKING:
    from surrogate.prediction.table import Defaults

Problems = list[AnyProblem | str] | tuple[AnyProblem | str, ...]
MAX_ANSWERS = 100_000
"""Answers kept by a predictor; each takes about 2 KB."""


class Place(NamedTuple):
    """Where a question is asked: None stands for every library, and for the newest version."""

    library: str | None = None
    library_version: str | None = None


class Predictor:
    """A bundle and the GPU that is asked about; instances may be shared between threads.

    ``gpu`` may be left out where the bundle was fitted on one GPU alone, or where a table names it row by row.
    ``library`` narrows the candidates to one library's. Raises `InputError` for a GPU or library that is unknown.
    """

    def __init__(self, bundle: Bundle, *, gpu: str | None = None, library: str | None = None) -> None:
        self.bundle = bundle
        self._resolver = Resolver(bundle)
        named = gpu or (next(iter(bundle.fitted_gpus)) if len(bundle.fitted_gpus) == 1 else None)
        self._target: Gpu | None = self._resolver.device(named) if named else None
        self._library = library
        if library is not None:
            self._resolver.check_library(library)
        self._kernels = KernelTimes(self._resolver, library)
        self._answers: dict[tuple[object, ...], Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the bundle and the question, without the remembered answers."""
        return _predictor, (self.bundle, self.gpu, self._library)

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
            parsed = parse_problem(described.full_text(problem) if described else problem, described, **settings)
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
        self, problem: AnyProblem | str, algorithm: str | None = ..., **where: str | None
    ) -> Prediction: ...
    @overload
    def predict(self, problem: Problems, algorithm: str | None = ..., **where: str | None) -> list[Prediction]: ...
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
    ) -> Prediction | list[Prediction] | Predictions:
        """The time of ``algorithm``, or of the best one, on a problem; or on every row of a table.

        ``problem``: a `Conv` or operator, or its text → `Prediction`; a list of them → a list; a table (a DataFrame, a
        mapping of columns, a list of rows, a structured array, a `Path`) → `Predictions`, row for row (the table's own
        ``algorithm`` column names the algorithms; without one, the best). ``settings`` are those of the problem: dtype,
        math, layout, direction, kv_dtype and so on, by any name that people call their values (``float16``); of a table
        they hold for rows that do not state their own. Raises `InputError` for what cannot be read, an unknown
        algorithm, or where nothing is feasible.
        """
        if not isinstance(algorithm, str | None):
            raise InputError(f"algorithm is a {type(algorithm).__name__}; give a candidate's name, a text")
        if isinstance(problem, str) or is_problem(problem):
            key = (problem, algorithm, library_version, library, *settings.items())
            if (answer := self._answers.get(key)) is None:
                place = Place(library or self._library, library_version)
                answer = self._remember(key, self._predict_one(self.read(problem, **settings), algorithm, place))
            return answer
        if _is_list(problem):
            return [
                self.predict(item, algorithm, library_version=library_version, library=library, **settings)
                for item in problem
            ]
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
                return self._select(asked, limits, Place(library or self._library, library_version))
            self._check_names(problem)
            selections = self._select_table(problem, limits, self._defaults(library, library_version, settings))
            return selections[0] if _is_one(problem) else selections
        key = (problem, workspace_limit, deterministic, top, library_version, library, *settings.items())
        if (answer := self._answers.get(key)) is None:
            limits = Limits.of(workspace_limit, deterministic, top)
            place = Place(library or self._library, library_version)
            answer = self._remember(key, self._select([self.read(problem, **settings)], limits, place)[0])
        return answer

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

    def _defaults(self, library: str | None, library_version: str | None, settings: Mapping[str, str]) -> "Defaults":
        """Return what a table's rows do not state."""
        from surrogate.prediction.table import Defaults

        named = {name: setting(name, value) for name, value in settings.items()}
        return Defaults(self.gpu, library or self._library, library_version, named)

    def _select(self, problems: Sequence[AnyProblem], limits: Limits, place: Place) -> list[Selection]:
        answers: dict[AnyProblem, Selection] = {}
        new: dict[Question, list[AnyProblem]] = {}
        for problem in dict.fromkeys(problems):
            if (answer := self._answers.get((problem, limits, place))) is not None:
                answers[problem] = answer
            else:
                new.setdefault(self._question(problem, place), []).append(problem)
        for question, group in new.items():
            ranker = self._resolver.ranker(question)
            for problem, ranking in zip(group, ranker.rank_many(group), strict=True):
                selection = _selection(ranker, problem, ranking, limits)
                answers[problem] = self._remember((problem, limits, place), selection)
        return [answers[problem] for problem in problems]

    def _select_table(self, table: object, limits: Limits, defaults: "Defaults") -> list[Selection]:
        """Return the selections of a table's distinct problems, by the GPU, library and version that each row names."""
        from surrogate.prediction.table import distinct_problems

        listed = distinct_problems(self._resolver, table, defaults)
        answers: dict[tuple[AnyProblem, tuple[str, ...]], Selection] = {}
        for where in dict.fromkeys(where for _, where in listed):
            gpu, library, version = (name or None for name in where)
            predictor = self if gpu in (None, self.gpu) else Predictor(self.bundle, gpu=gpu)
            problems = [problem for problem, other in listed if other == where]
            selections = predictor._select(problems, limits, Place(library, version))
            answers.update(zip(((problem, where) for problem in problems), selections, strict=True))
        return [answers[key] for key in listed]

    def kernel_times(self, problems: Sequence[AnyProblem]) -> list[KernelTime]:
        """The kernel of each problem alone, as in a busy stream: what a network or a trace adds up.

        A kind of problem that was never measured goes by one that moves the same bytes, else by its roofline.
        """
        return self._kernels.of(problems, self.target)

    def forget(self) -> None:
        """Drop all remembered answers; rankers of settings stay."""
        self._answers = {}

    def __repr__(self) -> str:
        return f"Predictor({self.bundle!r}, {self.gpu or 'any GPU that a table names'})"

    def _remember(self, key: tuple[object, ...], answer: Any) -> Any:
        if len(self._answers) >= MAX_ANSWERS:
            self.forget()
        self._answers[key] = answer
        return answer

    def _question(self, problem: AnyProblem, place: Place, named: tuple[str, ...] = ()) -> Question:
        family = family_of(problem)
        return Question(family, self.target.name, family.setting_of(problem), *place, named)

    def _predict_one(self, problem: AnyProblem, algorithm: str | None, place: Place) -> Prediction:
        ranker = self._resolver.ranker(self._question(problem, place, () if algorithm is None else (algorithm,)))
        if algorithm is not None:
            return _named(ranker, problem, algorithm)
        return _best(ranker, self._select([problem], Limits(), place)[0])


def _predictor(bundle: Bundle, gpu: str | None, library: str | None) -> Predictor:
    return Predictor(bundle, gpu=gpu, library=library)


def _is_list(problems: object) -> TypeGuard[Problems]:
    """Whether it is a list of problems; one of mappings is a table, row by row."""
    return isinstance(problems, list | tuple) and not any(isinstance(item, Mapping) for item in problems)


def _is_one(table: object) -> TypeGuard[Mapping[object, object]]:
    """Whether it is one problem: a mapping to single values."""
    return isinstance(table, Mapping) and not any(map(np.ndim, table.values()))


def _selection(ranker: Ranker, problem: AnyProblem, ranking: Ranking, limits: Limits) -> Selection:
    """Return what the limits leave of a ranking."""
    estimates, refused = within(problem, ranking.estimates, limits)
    pick = (estimates or ranking.estimates or [None])[0]
    reason = None
    if pick is None or not pick.in_domain:
        reason = ranker.reason(problem, pick.candidate if pick else ranker.candidates[0], pick)
    return Selection(
        problem=problem,
        gpu=ranker.setting.gpu,
        library=", ".join(library for library, _ in ranker.setting.versions),
        library_version=", ".join(version for _, version in ranker.setting.versions),
        estimates=estimates,
        excluded=ranking.excluded + refused,
        reason=reason,
        independent_share=ranker.widths.independent_share,
        top=limits.top,
        source=ranker.source_name,
        notes=ranker.notes[(pick.candidate if pick else ranker.candidates[0]).library],
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
    evaluated = [(e, limits.refusal(e.workspace_bytes, e.candidate.deterministic)) for e in estimates]
    refused = tuple(Excluded(estimate.candidate.name, reason) for estimate, reason in evaluated if reason)
    return tuple(estimate for estimate, reason in evaluated if reason is None), refused


def limited(selection: Selection, limits: Limits) -> Selection:
    """What ``limits`` leave of a selection; the rest is excluded with the reason."""
    allowed, refused = within(selection.problem, selection.estimates, limits)
    return replace(selection, estimates=allowed, excluded=selection.excluded + refused, top=limits.top)


def _best(ranker: Ranker, selection: Selection) -> Prediction:
    """Return the fastest candidate. Raises `InputError` if nothing is feasible."""
    problem = selection.problem
    if not selection.estimates:
        reasons = {reason for _, reason in selection.excluded}
        several = "; ".join(f"{name}: {reason}" for name, reason in selection.excluded)
        setting = " ".join(filter(None, ranker.setting.values))
        raise InputError(f"no algorithm runs {problem} {setting}: {several if len(reasons) > 1 else ''.join(reasons)}")
    return _prediction(ranker, problem, selection.estimates[0], reason=selection.reason, refusal=None)


def _named(ranker: Ranker, problem: AnyProblem, algorithm: str) -> Prediction:
    """Return the fastest candidate of that name. Raises `InputError` with the nearest names."""
    estimate, refusal = ranker.estimate(problem, ranker.named(algorithm))
    reason = None if estimate.in_domain else ranker.reason(problem, estimate.candidate, estimate)
    return _prediction(ranker, problem, estimate, reason=reason, refusal=refusal)


def _prediction(
    ranker: Ranker, problem: AnyProblem, estimate: Estimate, *, reason: str | None, refusal: str | None
) -> Prediction:
    candidate = estimate.candidate
    described = isinstance(problem, DescribedProblem)
    return Prediction(
        problem=problem,
        gpu=ranker.setting.gpu,
        library=candidate.library,
        library_version=dict(ranker.setting.versions)[candidate.library],
        algorithm=candidate.name if described else candidate.algorithm,
        time_us=estimate.time_us,
        lower_us=estimate.lower_us,
        upper_us=estimate.upper_us,
        workspace_bytes=None if described else estimate.workspace_bytes,
        source=estimate.source,
        in_domain=estimate.in_domain,
        reason=refusal or reason,
        supported=refusal is None,
        notes=ranker.notes[candidate.library],
    )
