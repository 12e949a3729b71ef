"""`Tuner`: propose the configuration of a described kernel to measure next, with or without a fitted bundle.

Its configurations are mappings, parameter → value; `surrogate.tuning.search` chooses among them.
"""

import json
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import compress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self

import numpy as np

from surrogate.bundle.bundle import Bundle
from surrogate.dataset.checks import FASTEST_US
from surrogate.features import Configuration, Description, InputError, UnknownGpuError, Value, nearest, read_description
from surrogate.features.elementwise import checked_int
from surrogate.features.families import DescribedFamily, DescribedProblem
from surrogate.features.gpu import Gpu, gpu, unlisted_gpu
from surrogate.models.configurations import Configurations
from surrogate.models.transfer import Prior
from surrogate.prediction.resolve import Resolver, unlisted_note
from surrogate.prediction.shipped import as_bundle
from surrogate.tuning.search import Search

MAX_UNIT_RATIO = 1000.0
"""Factor below the shortest or above the longest time of the table from which a time is likely in another unit."""
MAX_OTHERS = 64
"""Maximum number of measured problems in a search: the problems with most of its configurations measured."""
KernelSource = Bundle | Description | str | Path
"""A bundle or its folder, or a description or its TOML file."""
OpenedSource = tuple[Bundle | None, DescribedFamily]
"""A bundle, if there is one, and the family of its kernel."""


class SearchSpace(NamedTuple):
    """The configurations of a problem, with the evidence about them before the search.

    ``parameters`` (n, p) and ``terms`` (n, t) are numbers. ``prior`` is None if nothing was measured. ``others`` (g, n)
    has the scores of measured problems. ``refused`` (n,) marks configurations that cannot run. ``gpu`` and ``problem``
    identify the search.
    """

    description: Description
    gpu: str
    problem: str
    refused: np.ndarray
    texts: tuple[str, ...]
    parameters: np.ndarray
    terms: np.ndarray
    prior: Prior | None
    others: np.ndarray | None
    plausible_us: tuple[float, float]
    """The shortest and the longest time that do not suggest another unit."""

    def with_model(self, model: Configurations, columns: np.ndarray, terms: np.ndarray) -> Self:
        """Return the space with a model's prior; ``columns`` (c,) and ``terms`` (n, t) are NaN if unknown."""
        measured = measured_numbers(model, self.texts)
        scores = np.column_stack([model.transfer_.scores, np.full(len(model.problems_), np.nan)])[:, measured]
        most_measured = np.argsort(-np.isfinite(scores).sum(axis=1), kind="stable")[:MAX_OTHERS]
        ran_us = model.times_us_[np.isfinite(model.times_us_)]
        prior = model.transfer_.prior(columns, self.parameters, terms, measured)
        scored, failure = (np.where(self.refused, 1.0, each) for each in (prior.score, prior.failure))
        return self._replace(
            prior=replace(prior, score=scored, failure=failure),
            others=scores[most_measured],
            plausible_us=(max(self.plausible_us[0], ran_us.min() / MAX_UNIT_RATIO), ran_us.max() * MAX_UNIT_RATIO),
        )

    def new_search(self, seed: int) -> Search:
        """Return a search of the space without measurements. Raises `InputError` if the seed is below 0."""
        expected = (self.prior.score, self.prior.failure) if self.prior else (None, self.refused)
        return Search(self.parameters, *expected, self.others, self.terms, seed=checked_int("tuning", "seed", seed, 0))


class Tuner:
    """A sequential search for the fastest configuration of one problem on one GPU.

    Parameters
    ----------
    source
        A bundle of a described kernel or its folder, or a description or its TOML file.
    gpu
        Any name of a GPU; it may be omitted if the bundle measured one GPU.
    problem
        A text, or a mapping of sizes and settings. None means the only problem that the table measured.
    seed
        The same seed and the same measurements give the same search.
    log
        A file of JSON lines. A search with an existing log continues the interrupted search.
    configurations
        The allowed configurations, parameter → value. By default these are the configurations that the description's
        conditions allow or, if it has no conditions, the configurations of the table.

    Raises
    ------
    InputError
        If the arguments contradict each other, or if the bundle, the problem or the log cannot be used.
    """

    def __init__(
        self,
        source: KernelSource,
        gpu: str = "",
        problem: object = None,
        *,
        seed: int = 0,
        log: str | Path | None = None,
        configurations: Iterable[Mapping[str, Value]] | None = None,
    ) -> None:
        opened = open_kernel_source(source)
        self.gpu = gpu
        self._space = build_space(opened, gpu, problem, configurations)
        self._positions = {text: position for position, text in enumerate(self._space.texts)}
        self._search = self._space.new_search(seed)
        self._log = None if log is None else Path(log)
        self._times_us: dict[int, list[float]] = {}
        if self._log is not None:
            self._resume(self._log, problem)

    @property
    def configurations(self) -> list[Configuration]:
        """All configurations of the search."""
        return [*map(self._configuration, range(len(self._space.texts)))]

    @property
    def evaluations(self) -> int:
        """The number of configurations with a result, failures included."""
        return len(self._times_us)

    @property
    def best(self) -> tuple[Configuration, float] | None:
        """The fastest measured configuration and its time in µs; None before one ran."""
        best = self._search.best
        return best and (self._configuration(best[0]), best[1])

    def ask(self, count: int = 1) -> list[Configuration]:
        """Return the next configurations to measure.

        Parameters
        ----------
        count
            Number of configurations, at least 1.

        Returns
        -------
        list of dict
            Configurations that were never proposed, the most promising first. There are fewer than ``count`` if the
            space has no more.

        Raises
        ------
        InputError
            If ``count`` is not a whole number from 1.
        """
        return [*map(self._configuration, self._search.ask(checked_int("ask", "count", count)).tolist())]

    def tell(self, configuration: Mapping[str, Value], time_us: float | None) -> None:
        """Add a measurement; the median counts if a configuration has several.

        The first time that suggests another unit than µs gives a warning.

        Parameters
        ----------
        configuration
            Parameter → value.
        time_us
            The time in µs, or None if the configuration failed.

        Raises
        ------
        InputError
            If the space has no such configuration, or if the time is not finite and above 0.
        """
        position, time_us = self._checked(configuration, time_us)
        low, high = self._space.plausible_us
        if time_us is not None and not low <= time_us <= high:
            text = f"the time is {time_us:g} µs, but {low:.3g} to {high:.3g} µs are plausible; give all times in µs"
            warnings.warn(text, stacklevel=2)
            self._space = self._space._replace(plausible_us=(0.0, math.inf))
        if self._log is not None:
            record = {"configuration": self._configuration(position), "time_us": time_us}
            with self._log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        self._learn([(position, time_us)])

    def _configuration(self, position: int) -> Configuration:
        return self._space.description.configuration(self._space.texts[position])

    def _checked(self, configuration: Mapping[str, Value], time_us: Any) -> tuple[int, float | None]:
        """Return the position and the time of a measurement. Raises `InputError` if either is invalid."""
        position = self.position_of(configuration)
        if time_us is None:
            return position, None
        is_number = isinstance(time_us, int | float | np.number) and not isinstance(time_us, bool)
        if not (is_number and math.isfinite(time_us) and time_us > 0):
            raise InputError(f"the time is {time_us!r}; give µs above 0, or None if the configuration failed")
        return position, float(time_us)

    def _learn(self, measured: list[tuple[int, float | None]]) -> None:
        """Pass the median times of configurations to the search."""
        for position, time_us in measured:
            self._times_us.setdefault(position, []).extend([] if time_us is None else [time_us])
        ran = {position: self._times_us[position] for position, _ in measured}
        self._search.tell_all({position: median(each) if each else None for position, each in ran.items()})

    def position_of(self, configuration: Mapping[str, Value]) -> int:
        """Return the position of a configuration in the space.

        Raises `InputError` if the configuration lacks a parameter or is not in the space.
        """
        text = complete_text(self._space.description, configuration)
        if text not in self._positions:
            near = nearest(text, self._positions, 1)
            raise InputError(f"{text} is not one of the {len(self._positions)} configurations{near}")
        return self._positions[text]

    def _resume(self, log: Path, problem: object) -> None:
        """Read the log of an interrupted search, or begin a log. Raises `InputError` if another search wrote it."""
        kernel = self._space.description.name
        head = {"kernel": kernel, "gpu": self._space.gpu, "problem": self._space.problem}
        text = log.read_text(encoding="utf-8") if log.is_file() else ""
        complete = text[: text.rfind("\n") + 1] or json.dumps(head) + "\n"
        if complete != text:  # the log is new, or a line was interrupted
            log.write_text(complete, encoding="utf-8")
        try:
            stored, *records = map(json.loads, complete.splitlines())
            measured = [(dict(record["configuration"]), record["time_us"]) for record in records]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{log}: this is not the log of a search ({error}); give another file") from None
        if stored not in (head, {"kernel": kernel, "gpu": self.gpu, "problem": str(problem)}):  # as version 0.3.0 wrote
            raise InputError(f"{log}: this is the log of {stored}, not of {head}; give another file")
        self._learn([self._checked(*each) for each in measured])


def open_kernel_source(source: KernelSource) -> OpenedSource:
    """Return the bundle, if any, and the family of a kernel. Raises `InputError` for a bundle of built-in kernels."""
    if isinstance(source, Description):
        return None, DescribedFamily(source)
    if not isinstance(source, Bundle | str | Path):
        raise InputError(f"source has the type {type(source).__name__}; give a bundle, a description or its file")
    if not isinstance(source, Bundle) and Path(source).suffix == ".toml":
        return None, DescribedFamily(read_description(source))
    bundle = as_bundle(source)
    if bundle.described_family is None:
        remedy = "train one with `seer train TABLE --parameters …`"
        raise InputError(f"{bundle!r} is not a bundle of a described kernel; {remedy}")
    return bundle, bundle.described_family


def build_space(
    opened: OpenedSource, gpu_name: str, problem: object, configurations: Iterable[Mapping[str, Value]] | None
) -> SearchSpace:
    """Return the search space of a problem on a GPU, with a bundle's evidence about it."""
    bundle, family = opened
    model = None if bundle is None else bundle.family_model(family).model
    if model is not None and not isinstance(model, Configurations):
        raise InputError(f"the bundle's model is {model.name}; train it with {Configurations.name}, the default")
    target = find_problem(family, problem, model)
    if configurations is None:
        texts = allowed_texts(family.description, target, model)
    else:
        listed = [dict(each) for each in configurations]
        texts = tuple(dict.fromkeys(complete_text(family.description, each) for each in listed))
        family = DescribedFamily(with_values(family.description, listed))
    if not texts:
        raise InputError(f"{family.name}: no configuration is allowed for {target}; change the conditions")
    device = find_gpu(bundle, gpu_name)
    parameters = family.configurations(texts)
    refusals = family.refusals(target, parameters, device)
    if model is not None:
        refusals = model.refusals(target, device, parameters, measured_numbers(model, texts))
    refused = np.any([*refusals.values()], axis=0)
    if configurations is None:
        texts, parameters = tuple(compress(texts, (~refused).tolist())), parameters[~refused]
        refused = refused[~refused]
        if not texts:
            raise InputError(f"{family.name}: no configuration of {target} fits {device.name}; check the formulas")
    # Compute the problem's columns and the configurations' terms in the model's order.
    formula = family.formula(target.settings, device)
    of_problem = formula.problem(target)
    columns = formula.candidate(of_problem, parameters)[0][parameters.shape[1] :]
    terms = np.column_stack([np.broadcast_to(column, len(texts)) for column in columns]).astype(np.float32)
    problem_columns = np.array([*of_problem.values, *formula.constant]).astype(np.float32)
    launched = device.vendor not in ("", "cpu")  # an unknown device may be a CPU, which launches nothing
    min_us = max(FASTEST_US, float(family.min_us(target, device))) if launched else 0.0
    finite = terms[:, np.isfinite(terms).all(axis=0)]
    words = [f"{name}={value}" for name, value in target.to_dict().items() if name != "kind"]
    identity = family.description, device.name, ",".join(words), refused
    space = SearchSpace(*identity, texts, parameters, finite, None, None, plausible_us=(min_us, math.inf))
    return space if model is None else space.with_model(model, model.inside(target, device, problem_columns), terms)


def measured_numbers(model: Configurations, texts: Iterable[str]) -> np.ndarray:
    """Return the model's numbers (n,) of configurations; −1 for an unmeasured one."""
    positions = {name.rpartition("|")[2]: position for position, name in enumerate(model.configurations_)}
    return np.array([positions.get(text, -1) for text in texts], dtype=np.int64)


def find_gpu(bundle: Bundle | None, name: str) -> Gpu:
    """Return the GPU of a name as the bundle's predictor resolves it; warn if the name is unknown.

    Raises `InputError` if the name is empty and the bundle measured several GPUs.
    """
    if bundle is None:
        try:
            return gpu(name)
        except UnknownGpuError:
            return unlisted_gpu(name)
    measured = sorted(bundle.fitted_gpus)
    if not name and len(measured) > 1:
        raise InputError(f"gpu is missing; give a measured GPU ({', '.join(measured)}) or another one")
    device = Resolver(bundle).device(name or measured[0])
    if not device.vendor and device.name not in measured:
        warnings.warn(unlisted_note(device.name, measured), stacklevel=3)
    return device


def find_problem(family: DescribedFamily, problem: object, model: Configurations | None) -> DescribedProblem:
    """Return the problem of a text or a mapping, or the only measured one for None.

    Raises `InputError` if the family has no such problem, or for None if several problems were measured.
    """
    if isinstance(problem, DescribedProblem):
        return family.as_own(problem)
    if isinstance(problem, str):
        kind, _, body = family.full_text(problem).partition(":")
        if kind != family.name:
            raise InputError(f"{problem} is not a problem of {family.name}; write it as in {family.example}")
        return family.read(kind, body, {})
    if isinstance(problem, Mapping):
        values = {str(name): value for name, value in problem.items()}
        if unknown := [name for name in values if name not in (*family.size_names, *family.setting_names)]:
            raise InputError(f"{family.name} has no {unknown[0]}; give {', '.join(family.size_names)}")
        if missing := [size.name for size in family.sizes if size.default is None and size.name not in values]:
            raise InputError(f"the problem lacks {missing[0]}; give {', '.join(family.size_names)}")
        return family.problem(values, {name: str(values[name]) for name in family.setting_names if name in values})
    if problem is not None:
        raise InputError(f"problem has the type {type(problem).__name__}; give a text or {family.size_names} by name")
    if model is None:
        if family.description.sizes:
            raise InputError(f"problem is missing; give the sizes {', '.join(family.size_names)}")
        return family.problem({}, {})
    measured = {tuple(key.split("|")[1:]) for key in model.problems_}
    if len(measured) > 1:
        raise InputError(f"{len(measured)} problems were measured; give one as a text or a mapping of sizes")
    (values,) = measured
    of_problem = dict(zip((*family.setting_names, *family.size_names), values, strict=True))
    return find_problem(family, of_problem, model)


def allowed_texts(description: Description, problem: DescribedProblem, model: Configurations | None) -> tuple[str, ...]:
    """Return the configurations that the conditions allow.

    If there are no conditions, return the measured configurations or, without a model, all combinations of values.
    """
    if description.conditions is None and model is not None:
        return tuple(text for name in model.configurations_ if (text := name.rpartition("|")[2]))
    allowed = description if description.conditions is not None else replace(description, conditions=())
    return allowed.texts({name: int(value) for name, value in problem.sizes.items()})


def complete_text(description: Description, configuration: Mapping[str, Value]) -> str:
    """Return the text of a configuration. Raises `InputError` if it lacks a parameter."""
    if missing := [name for name in description.parameters if name not in configuration]:
        raise InputError(f"the configuration lacks {missing[0]}; give {', '.join(description.parameters)}")
    return description.text(configuration)


def with_values(description: Description, listed: Iterable[Mapping[str, Value]]) -> Description:
    """Return the description with the values of the configurations in addition to its own."""
    values = {
        name: tuple(dict.fromkeys((*own, *(configuration[name] for configuration in listed))))
        for name, own in description.parameters.items()
    }
    return replace(description, parameters=values)
