"""`Tuner`: which configuration of a described kernel to measure next, from what a bundle knows, or from nothing.

What is asked and told are plain configurations (parameter → value); `surrogate.tuning.search` chooses among them.
"""

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self

import numpy as np

from surrogate.bundle.bundle import Bundle
from surrogate.dataset.checks import FASTEST_US
from surrogate.dataset.described import merge_descriptions
from surrogate.features.description import Configuration, Description, Value, read_description
from surrogate.features.errors import InputError, nearest
from surrogate.features.families import DescribedFamily, DescribedProblem
from surrogate.features.gpu import Gpu, gpu, unlisted
from surrogate.models.configurations import Configurations
from surrogate.models.transfer import Prior
from surrogate.prediction.resolve import Resolver, unlisted_note
from surrogate.prediction.shipped import as_bundle
from surrogate.tuning.search import Search

UNIT = 1000.0
"""A time so many times off the table's least and greatest is likely in another unit."""
MAX_OTHERS = 64
"""Measured problems whose scores a search looks at: those that measured most of its configurations."""
Source = Bundle | Description | str | Path
"""What a tuner knows: a bundle or its folder, or a description or its TOML file."""


class Space(NamedTuple):
    """The configurations of a problem, with what a search knows of them.

    ``parameters`` (n, p) and ``terms`` (n, t) as numbers; ``prior`` None where nothing was measured; ``others`` (g, n)
    scores of measured problems.
    """

    description: Description
    texts: tuple[str, ...]
    parameters: np.ndarray
    terms: np.ndarray
    prior: Prior | None
    others: np.ndarray | None
    plausible_us: tuple[float, float]
    """The least and the greatest time that does not look like another unit's."""

    def informed(self, model: Configurations, columns: np.ndarray, terms: np.ndarray) -> Self:
        """The space with what a model knows of a problem with ``columns`` (c,) and ``terms`` (n, t), NaN if unknown."""
        places = {name.rpartition("|")[2]: place for place, name in enumerate(model.configurations_)}
        known = np.array([places.get(text, -1) for text in self.texts], dtype=np.int64)
        scores = np.column_stack([model.transfer_.scores, np.full(len(model.problems_), np.nan)])[:, known]
        measured = np.argsort(-np.isfinite(scores).sum(axis=1), kind="stable")[:MAX_OTHERS]
        ran_us = model.times_us_[np.isfinite(model.times_us_)]
        return self._replace(
            prior=model.transfer_.prior(columns, self.parameters, terms, known),
            others=scores[measured],
            plausible_us=(max(self.plausible_us[0], ran_us.min() / UNIT), ran_us.max() * UNIT),
        )


class Tuner:
    """A sequential search for the fastest configuration of one problem on one GPU.

    ``source`` is a bundle of a described kernel or a description; ``gpu`` any name; ``problem`` a text, or a mapping of
    sizes and settings (None: the only problem that the table measured). ``configurations`` are those that may be asked
    for; by default what the description's conditions allow, without conditions what the table holds. With ``log``, a
    file of JSON lines, a search goes on where it was interrupted. The same ``seed`` gives the same search.

    Raises `InputError` for what does not fit together.
    """

    def __init__(
        self,
        source: Source,
        gpu: str = "",
        problem: object = None,
        *,
        seed: int = 0,
        log: str | Path | None = None,
        configurations: Iterable[Mapping[str, Value]] | None = None,
    ) -> None:
        known = opened(source)
        self.gpu = gpu
        self._space = space_of(known, gpu, problem, configurations)
        self._places = {text: place for place, text in enumerate(self._space.texts)}
        prior = self._space.prior
        self._search = Search(
            self._space.parameters,
            prior and prior.score,
            prior and prior.failure,
            self._space.others,
            self._space.terms if self._space.terms.size else None,
            seed=seed,
        )
        self._log = None if log is None else Path(log)
        self._told: dict[int, list[float]] = {}
        if self._log is not None:
            self._resume(self._log, problem)

    @property
    def configurations(self) -> list[Configuration]:
        """All that may be asked for."""
        return [self._space.description.configuration(text) for text in self._space.texts]

    @property
    def evaluations(self) -> int:
        """How many configurations were told."""
        return len(self._told)

    @property
    def best(self) -> tuple[Configuration, float] | None:
        """The fastest configuration that was told, and its time in µs; None before one ran."""
        best = self._search.best
        if best is None:
            return None
        index, time_us = best
        return self._space.description.configuration(self._space.texts[index]), time_us

    def ask(self, count: int = 1) -> list[Configuration]:
        """Up to ``count`` configurations that were never asked for, the most promising first; fewer at the end."""
        if count < 1:
            raise InputError(f"{count} configurations came; ask for 1 or more")
        return [self._space.description.configuration(self._space.texts[i]) for i in self._search.ask(count).tolist()]

    def tell(self, configuration: Mapping[str, Value], time_us: float | None) -> None:
        """What a configuration took, in µs; None where it failed. Of one that is told again the median counts. A time
        that looks like another unit's is warned of, once.

        Raises `InputError` for a configuration that is none of the space's, and for a time that is none.
        """
        place = self.place(configuration)
        is_number = isinstance(time_us, int | float | np.number) and not isinstance(time_us, bool)
        if time_us is not None and not (is_number and math.isfinite(time_us) and time_us > 0):
            raise InputError(f"the time is {time_us!r}; give µs above 0, or None where the configuration failed")
        low, high = self._space.plausible_us
        if time_us is not None and not low <= time_us <= high:
            text = f"{time_us:g} µs came, and {low:.3g} to {high:.3g} are likely here; are all times in µs?"
            warnings.warn(text, stacklevel=2)
            self._space = self._space._replace(plausible_us=(0.0, math.inf))
        if self._log is not None:
            record = {"configuration": dict(configuration), "time_us": time_us}
            with self._log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        self._learn(place, time_us)

    def _learn(self, place: int, time_us: float | None) -> None:
        """Pass on what a configuration took, of several times their median."""
        ran = self._told.setdefault(place, [])
        ran += [] if time_us is None else [float(time_us)]
        self._search.tell(place, median(ran) if ran else None)

    def place(self, configuration: Mapping[str, Value]) -> int:
        """The configuration's number. Raises `InputError` where it is none of the space's."""
        names = self._space.description.parameters
        if missing := [name for name in names if name not in configuration]:
            raise InputError(f"the configuration lacks {missing[0]}; it has {', '.join(names)}")
        text = self._space.description.text(configuration)
        if text not in self._places:
            near = nearest(text, self._places, 1)
            raise InputError(f"{text} is none of the {len(self._places)} configurations{near}")
        return self._places[text]

    def _resume(self, log: Path, problem: object) -> None:
        """Tell what an interrupted search measured, or begin the log. Raises `InputError` for another search's log."""
        head = {"kernel": self._space.description.name, "gpu": self.gpu, "problem": str(problem)}
        lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
        if not lines:
            log.write_text(json.dumps(head) + "\n", encoding="utf-8")
            return
        try:
            stored, *records = [json.loads(line) for line in lines if line.endswith("}")]
            if stored != head:
                raise InputError(f"{log}: the log of {stored}, not of {head}; give another file")
            for record in records:
                self._learn(self.place(record["configuration"]), record["time_us"])
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{log}: not the log of a search ({error}); give another file") from None


def opened(source: Source) -> Bundle | Description:
    """The bundle or description that ``source`` names. Raises `InputError` for a bundle of built-in kernels."""
    if isinstance(source, Description):
        return source
    if not isinstance(source, Bundle) and Path(source).suffix == ".toml":
        return read_description(source)
    bundle = as_bundle(source)
    if bundle.described is None:
        remedy = "train one with `seer train TABLE --parameters …`"
        raise InputError(f"{bundle!r} is no bundle of a described kernel; {remedy}")
    return bundle


def space_of(
    known: Bundle | Description, gpu_name: str, problem: object, configurations: Iterable[Mapping[str, Value]] | None
) -> Space:
    """The space of a problem on a GPU, and what is known of it beforehand."""
    family = described_of(known)
    model = None
    if isinstance(known, Bundle):
        model = known.part(family).model
        if not isinstance(model, Configurations):
            raise InputError(f"the bundle's model is {model.name}; a search needs {Configurations.name}, the default")
    asked = problem_of(family, problem, model)
    if configurations is not None:
        listed = [dict(each) for each in configurations]
        family = DescribedFamily(extended(family.description, listed))
        texts = tuple(dict.fromkeys(family.description.text(each) for each in listed))
    else:
        texts = listed_texts(family.description, asked, model)
    if not texts:
        raise InputError(f"{family.name}: no configuration is allowed for {asked}; look at the conditions")
    device = device_of(known, gpu_name)
    parameters = family.configurations(texts)
    if configurations is None:
        fits = ~np.any([*family.refusals(asked, parameters, device).values()], axis=0)
        texts = tuple(text for text, fit in zip(texts, fits.tolist(), strict=True) if fit)
        parameters = parameters[fits]
        if not texts:
            raise InputError(f"{family.name}: no configuration of {asked} fits {device.name}; look at the formulas")
    # The columns of the problem and the terms of its configurations, as the model had them.
    formula = family.formula(asked.settings, device)
    of_problem = formula.problem(asked)
    columns = formula.candidate(of_problem, parameters)[0][parameters.shape[1] :]
    terms = np.column_stack([np.broadcast_to(column, len(texts)) for column in columns]).astype(np.float32)
    problem_columns = np.concatenate([np.array(of_problem.values), np.array(formula.constant)]).astype(np.float32)
    launched = device.vendor not in ("", "cpu")  # what nobody knows may be a CPU, which launches nothing
    min_us = max(FASTEST_US, float(family.min_us(asked, device))) if launched else 0.0
    known_terms = terms[:, np.isfinite(terms).all(axis=0)]
    space = Space(family.description, texts, parameters, known_terms, None, None, plausible_us=(min_us, math.inf))
    return space if model is None else space.informed(model, model.inside(asked, device, problem_columns), terms)


def device_of(known: Bundle | Description, name: str) -> Gpu:
    """The GPU of any name, as a bundle's answers take it; a name that nobody knows is warned of.

    Raises `InputError` where none is named and the bundle measured several.
    """
    if isinstance(known, Bundle):
        measured = sorted(known.fitted_gpus)
        if not name and len(measured) > 1:
            raise InputError(f"no GPU is named; give gpu, of those measured ({', '.join(measured)}) or another")
        device = Resolver(known).device(name or measured[0])
        if not device.vendor and device.name not in measured:
            warnings.warn(unlisted_note(device.name, measured), stacklevel=3)
        return device
    try:
        return gpu(name)
    except InputError:
        return unlisted(name)


def described_of(known: Bundle | Description) -> DescribedFamily:
    """The family of a bundle's kernel, or of a description."""
    family = known.described if isinstance(known, Bundle) else DescribedFamily(known)
    assert family is not None, "`opened` refuses bundles of built-in kernels"
    return family


def problem_of(family: DescribedFamily, problem: object, model: Configurations | None) -> DescribedProblem:
    """The problem that a caller names. Raises `InputError` where it is none, and for None where there are several."""
    if isinstance(problem, DescribedProblem):
        return family.as_own(problem)
    if isinstance(problem, str):
        kind, colon, body = problem.partition(":")
        return family.read(family.name, body if colon else "" if kind == family.name else kind, {})
    if isinstance(problem, Mapping):
        named = {str(name): value for name, value in problem.items()}
        if unknown := [name for name in named if name not in (*family.size_names, *family.setting_names)]:
            raise InputError(f"{family.name} has no {unknown[0]}; a problem has {', '.join(family.size_names)}")
        if missing := [size.name for size in family.sizes if size.default is None and size.name not in named]:
            raise InputError(f"the problem lacks {missing[0]}; {family.name} has {', '.join(family.size_names)}")
        return family.problem(named, {name: str(named[name]) for name in family.setting_names if name in named})
    if problem is not None:
        raise InputError(f"a {type(problem).__name__} is no problem; give a text or a mapping of {family.size_names}")
    if model is not None:
        measured = {tuple(key.split("|")[1:]) for key in model.problems_}
        if len(measured) == 1:
            values = next(iter(measured))
            settings = dict(zip(family.setting_names, values, strict=False))
            sizes = zip(family.size_names, map(int, values[len(settings) :]), strict=True)
            return family.problem(dict(sizes), settings)
        raise InputError(f"{len(measured)} problems were measured; name one, as a text or a mapping of sizes")
    if family.description.sizes:
        raise InputError(f"name the problem: {family.name} has the sizes {', '.join(family.size_names)}")
    return family.problem({}, {})


def listed_texts(description: Description, problem: DescribedProblem, model: Configurations | None) -> tuple[str, ...]:
    """The configurations that the conditions allow, without conditions those that were measured, else all values'."""
    if description.conditions is None and model is not None:
        return tuple(text for name in model.configurations_ if (text := name.rpartition("|")[2]))
    allowed = description if description.conditions is not None else replace(description, conditions=())
    return allowed.texts({name: int(value) for name, value in problem.sizes.items()})


def extended(description: Description, listed: Sequence[Mapping[str, Value]]) -> Description:
    """The description with the values of further configurations. Raises `InputError` where one lacks a parameter."""
    for configuration in listed:
        if missing := [name for name in description.parameters if name not in configuration]:
            raise InputError(f"a configuration lacks {missing[0]}; it has {', '.join(description.parameters)}")
    values: dict[str, tuple[Any, ...]] = {
        name: tuple(dict.fromkeys(configuration[name] for configuration in listed)) for name in description.parameters
    }
    further = Description(description.name, description.sizes, values, dict.fromkeys(description.settings, ()))
    return merge_descriptions(description, further)
