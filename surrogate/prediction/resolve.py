"""Find the evidence for a question: for each candidate of a setting, the first source that covers it.

A question is covered as a whole: direction, element type, math and layout together, never one by one. `Resolver` makes
the `surrogate.prediction.ranking.Ranker` of a setting when a question first needs it, and keeps the latest ones.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeGuard

import numpy as np

from surrogate.bundle.bundle import Bundle, CandidateKey, FamilyModel
from surrogate.features.algorithms import newest, version_number
from surrogate.features.errors import InputError, check_choice
from surrogate.features.errors import nearest as nearest_names
from surrogate.features.families import FAMILY_OF_KIND, AnyProblem, DescribedFamily, DescribedProblem, Family
from surrogate.features.gpu import Gpu, canonical, gpu, registry, unlisted
from surrogate.features.problem import HALF
from surrogate.models.grid import Label
from surrogate.models.json_types import key_text
from surrogate.models.launch import call_cost_us
from surrogate.prediction.ranking import CandidateEvidence, Ranker
from surrogate.prediction.results import DATASHEET, MODEL, SIMILAR_GPU
from surrogate.prediction.sources.datasheet import (
    AnalyticalSource,
    DatasheetModels,
    ProductModels,
    Tf32Source,
    datasheet_models,
    product_models,
)
from surrogate.prediction.sources.model import TreeSource, model_source
from surrogate.prediction.sources.similar_gpu import AverageRankSource, SimilarGpus
from surrogate.prediction.sources.source import CalibratedSource, CandidateSetting, Context, Mixed, Setting, Source
from surrogate.prediction.support_rules import SupportRules
from surrogate.uncertainty import intervals
from surrogate.uncertainty.domain import SettingKey
from surrogate.uncertainty.intervals import ALL, Widths

MAX_SETTINGS = 256
"""Settings kept by a resolver, each of up to a megabyte: more than a large network or trace has."""
MIN_LIKENESS = 0.8
"""From this likeness on, a GPU's name is taken for a misspelled one."""
FROM_DONOR = "{gpu} was never measured so: its choices follow those of {donor}, which has its architecture"
UNCHECKED = "configurations may need more shared memory than the GPU has: no formula of the kernel says shared_bytes"
BY_AVERAGE_RANK = (
    "{gpu} was never measured so: its candidates stand in the order that is best on average on measured GPUs"
)
NO_EVIDENCE = "{} was never measured on any GPU: peaks stand in"
OTHER_HALF = {"fp16": "bf16", "bf16": "fp16"}
FROM_OTHER_HALF = "measurements in {} stand for {}: the GPU runs both at one rate, and their values take the same bytes"
FIRST_RELEASES = {"cudnn": ((10.0, 9), (8.0, 8)), "cublas": ((10.0, 12), (8.0, 11))}
"""Library → compute capability from which on a major release is needed. Source: NVIDIA's support matrices."""


class Question(NamedTuple):
    """A setting that a caller asks about; None: every library, and each one's newest version.

    ``named`` are candidates that the caller names, which join the others if other GPUs alone ran them, or if they are
    configurations that a description does not list.
    """

    family: Family
    gpu: str
    values: tuple[str, ...]
    library: str | None = None
    library_version: str | None = None
    named: tuple[str, ...] = ()
    is_known_version: bool = True


class SettingFacts(NamedTuple):
    """What decides the sources of a setting.

    ``choosable``: candidate → whether it can be chosen. ``is_measured``: a library was measured in the setting on the
    GPU; ``is_trained``: and training saw it, not a calibration alone. ``never``: libraries that were never measured in
    the setting on any GPU. ``convolutions`` and ``products`` are the analytical models that cover it.
    """

    setting: Setting
    device: Gpu
    part: FamilyModel
    similar: SimilarGpus
    choosable: Mapping[CandidateSetting, bool]
    is_measured: bool
    is_trained: bool
    never: frozenset[str]
    is_known_version: bool = True
    convolutions: DatasheetModels | None = None
    products: ProductModels | None = None

    @property
    def supported_as(self) -> Setting:
        """The setting in which support is looked up: no release is known by the name of an unknown version."""
        if self.is_known_version:
            return self.setting
        return self.setting._replace(versions=tuple((name, f"{version}?") for name, version in self.setting.versions))

    @property
    def is_half(self) -> bool:
        """Whether the analytical model of convolutions is that of half precision, which covers the whole setting."""
        return self.convolutions is not None and self.setting.named["dtype"] in HALF

    @property
    def covered(self) -> np.ndarray:
        """(candidates,) True if the analytical model of convolutions describes the candidate's kernels."""
        mechanism = self.setting.family.tensor_core_mechanism
        return np.array([self.convolutions is not None and each.mechanism == mechanism for each in self.choosable])


def unlisted_note(gpu: str, measured: Iterable[str]) -> str:
    """Return the caveat for a GPU that neither the table of GPUs nor the ``measured`` ones have."""
    hint = nearest_names(gpu, [*measured, *registry().labels], cutoff=MIN_LIKENESS)
    return f"nobody knows a GPU {gpu}: nothing but other GPUs' times stands for it{hint}"


def is_problem(value: object) -> TypeGuard[AnyProblem]:
    """Return whether a value is one problem of a family."""
    kind = getattr(value, "kind", None)  # a table may have a column of that name
    return isinstance(value, DescribedProblem) or (isinstance(kind, str) and kind in FAMILY_OF_KIND)


@dataclass(frozen=True, slots=True)
class Resolver:
    """The rankers of one bundle's settings; the `MAX_SETTINGS` that were made last are kept."""

    bundle: Bundle
    _rankers: OrderedDict[Question, Ranker] = field(default_factory=OrderedDict, repr=False, compare=False)

    def device(self, name: str) -> Gpu:
        """Return a device by any name, under its registry name if it has one.

        Raises `InputError` for one that neither the bundle nor the registry knows; a described kernel needs no more
        than its name.
        """
        key = canonical(name)
        stored = self.bundle.devices.get(name) or self.bundle.devices.get(key)
        if stored is None and self.bundle.described:
            try:
                return replace(gpu(name), name=key)
            except InputError:
                measured = {other for part in self.bundle.parts.values() for other in part.domain.gpus}
                others = [self.device(other) for other in measured if name not in measured]
                return unlisted(name, [other for other in others if other.vendor])
        return replace(stored or gpu(name), name=key)

    def ranker(self, question: Question) -> Ranker:
        """Return the ranker for a question, with the candidates that it names.

        Raises `InputError` for an unknown library, and if no library has a candidate.
        """
        if question.named and not question.family.parameter_names:
            known = self.ranker(question._replace(named=()))
            others = self.bundle.part(question.family, question.gpu, question.values).candidates
            other_names = {key.solver or key.algorithm for key in others}
            if not any(name in other_names and not known.has(name) for name in question.named):
                return known
        if question.library_version is not None and question.is_known_version:
            return self._of_version(question, question.library_version)
        return self._kept(question)

    def _kept(self, question: Question) -> Ranker:
        """Return the ranker that is kept for a question, or a new one."""
        ranker = self._rankers.get(question)
        if ranker is None:
            ranker = self._rankers[question] = self._resolved(question)
            while len(self._rankers) > MAX_SETTINGS:
                self._rankers.popitem(last=False)
        return ranker

    def _of_version(self, question: Question, version: str) -> Ranker:
        """Return the ranker for a version that the question names.

        Versions that no measurement knows share one ranker, that of the next older known version: an invented name
        costs no memory.
        """
        part = self.bundle.part(question.family, question.gpu, question.values)
        libraries = part.domain.libraries if question.library is None else [question.library]
        known = set().union(*map(part.domain.versions_of, libraries))
        if version in known or not known:
            return self._kept(question)
        for library in libraries:
            self._version(question, part, library)
        older = [each for each in known if version_number(each) <= version_number(version)]
        nearest_version = newest(older) if older else min(known, key=version_number)
        shared = self._kept(question._replace(library_version=nearest_version, is_known_version=False))
        versions = {library: version for library, _ in shared.setting.versions}
        return replace(
            shared,
            setting=shared.setting._replace(versions=tuple(versions.items())),
            evidence=shared.evidence.outside_of(part.domain, _keys(shared.setting, shared.candidates), versions),
        )

    def measured(self, question: Question) -> Question:
        """Return the question in the other half-precision type, if it alone was measured on a GPU that runs both alike.

        Families whose kernels differ between the two keep the question.
        """
        family, gpu_name, values, library, *_ = question
        device = self.device(gpu_name)
        other = tuple(OTHER_HALF.get(value, value) for value in values)
        if (
            not family.half_types_share_algorithms
            or other == values
            or not 0 < device.bf16_tensor_tflops == device.fp16_tensor_tflops
        ):
            return question

        def is_measured(setting: tuple[str, ...]) -> bool:
            return any(
                key.gpu == gpu_name and key.values == setting and library in (None, key.library)
                for key in self.bundle.part(family, gpu_name, setting).domain.settings
            )

        return question._replace(values=other) if is_measured(other) and not is_measured(values) else question

    def check_library(self, name: str) -> None:
        """Raise `InputError`, with the nearest names, for a library that no part of the bundle knows."""
        known = {library for part in self.bundle.parts.values() for library in part.domain.libraries}
        check_choice("the bundle's library", name, sorted(known))

    def _resolved(self, question: Question) -> Ranker:
        if question.library is not None:
            self.check_library(question.library)
        if (measured := self.measured(question)) != question:
            dtype = question.family.setting_names.index("dtype")
            note = FROM_OTHER_HALF.format(measured.values[dtype], question.values[dtype])
            other = self.ranker(measured)
            return replace(other, notes={name: (*notes, note) for name, notes in other.notes.items()})
        facts = self._facts(question)
        context = _context(facts)
        source, donors, note = _source(facts, context)
        general = () if facts.is_measured else tuple(self._unmeasured_notes(facts, note))
        return _ranker(facts, context, source, donors, notes=_notes(facts, donors, general))

    def _facts(self, question: Question) -> SettingFacts:
        """Return what decides the sources of a question, with the part that holds it."""
        family, gpu_name, values, library, _, named, _ = question
        part = self.bundle.part(family, gpu_name, values)
        device = self.device(gpu_name)
        others = {name: self.device(name) for name in part.domain.gpus if name != gpu_name}
        similar = SimilarGpus.of(part, values, device, others)
        choosable: dict[CandidateSetting, bool] = {}
        versions: list[tuple[str, str]] = []
        failures: list[InputError] = []
        for name in _competing(part, values, similar, named) if library is None else [library]:
            version = self._version(question, part, name)
            try:
                choosable |= _candidates(question, part, name, similar)
                versions.append((name, version))
            except InputError as error:
                failures.append(error)
        if not choosable:
            raise failures[0]
        is_measured = any(gpu_name in part.domain.gpus_of(name, values) for name, _ in versions)
        settings = {(key.library, key.values) for key in part.domain.settings}
        return _with_datasheet(
            SettingFacts(
                setting=Setting(family, gpu_name, tuple(versions), values),
                device=device,
                part=part,
                similar=similar,
                choosable=choosable,
                is_measured=is_measured,
                is_trained=is_measured and not similar.is_calibrated,
                never=frozenset(name for name, _ in versions if (name, values) not in settings),
                is_known_version=question.is_known_version,
            )
        )

    def _version(self, question: Question, part: FamilyModel, library: str) -> str:
        """Return the version that the question names, else the newest that was measured on the GPU, else anywhere, else
        "". A GPU that is too new for it gets its own first release. Raises `InputError` if the question names one that
        does not run there.
        """
        here = {release.version for release in part.support.releases.get(library, ()) if release.gpu == question.gpu}
        if here and question.library_version is None:
            return newest(here)
        version = question.library_version or newest(part.domain.versions_of(library))
        capability = self.device(question.gpu).compute_capability
        first = next((major for above, major in FIRST_RELEASES.get(library, ()) if capability >= above), 0)
        if version_number(version)[0] >= first:
            return version
        if question.library_version:
            raise InputError(f"{library} {version} does not run on {question.gpu}; it needs {first} or newer")
        return f"{first}+"

    def _unmeasured_notes(self, facts: SettingFacts, rank_note: str) -> Iterable[str]:
        """Yield the caveats of a setting that was never measured on the GPU."""
        part, device = facts.part, facts.device
        if not device.vendor:
            yield unlisted_note(device.name, part.domain.gpus)
        yield part.unseen_gpu.note(_width_kind(facts), described=bool(part.family.parameter_names))
        description = part.family.description if isinstance(part.family, DescribedFamily) else None
        if description is not None and device.vendor and "shared_bytes" not in description.formulas:
            yield UNCHECKED
        if rank_note:
            yield rank_note


def _with_datasheet(facts: SettingFacts) -> SettingFacts:
    """Return the facts with the analytical models that cover the setting, if training did not see it on the GPU.

    In half precision the model of convolutions covers the whole setting: candidates with the kernels that it describes
    come first, and no others can be chosen. In TF32 it covers those candidates, beside kernels of multiply-adds.
    """
    if facts.is_trained:
        return facts
    setting, device, part = facts.setting, facts.device, facts.part
    mechanism = setting.family.tensor_core_mechanism
    convolutions = (
        datasheet_models(device, setting.named["dtype"], setting.named.get("math", "")) if mechanism else None
    )
    facts = facts._replace(convolutions=convolutions)
    if convolutions is not None and facts.is_half:
        described_first = sorted(facts.choosable, key=lambda candidate: candidate.mechanism != mechanism)
        facts = facts._replace(
            part=part if facts.is_measured else convolutions.instead_of(part),
            never=frozenset(),
            choosable={candidate: candidate.mechanism == mechanism for candidate in described_first},
        )
    # The model of matrix products covers a setting that no other boards than its own measured, nor one of this kind.
    gpus = {name for library, _ in setting.versions for name in part.domain.gpus_of(library, setting.values)}
    gpus -= {setting.gpu}
    if gpus & {*facts.similar.architecture}:
        return facts
    products = product_models(setting, device, facts.similar.vendor | gpus)
    if products is None:
        return facts
    own = facts.part if facts.is_measured else products.instead_of(facts.part)
    return facts._replace(products=products, part=own, never=frozenset())


def _context(facts: SettingFacts) -> Context:
    candidates = tuple(facts.choosable)
    min_us = [call_cost_us(facts.part.min_us, facts.setting.gpu, candidate.library) for candidate in candidates]
    formula = facts.setting.family.formula(facts.setting.values, facts.device)
    return Context(facts.setting, facts.device, candidates, formula, min_us=np.array(min_us))


def _keys(setting: Setting, candidates: Iterable[CandidateSetting]) -> list[SettingKey]:
    """Return each candidate's key in what training saw."""
    return [SettingKey(setting.gpu, each.library, setting.values, each.algorithm) for each in candidates]


def _source(facts: SettingFacts, context: Context) -> tuple[Source, tuple[str, ...], str]:
    """Return what answers; the GPU whose measurements each candidate uses, "" for none; and a note on their order."""
    part, setting = facts.part, facts.setting
    note = ""
    if facts.products is not None:
        source = AnalyticalSource.of_products(context, facts.products)
    elif facts.convolutions is not None and facts.is_half:
        source = AnalyticalSource.of_convolutions(context, facts.convolutions.model)
    else:
        source = model_source(context, part, facts.similar.donors)
    donors = source.donors if isinstance(source, TreeSource) else ("",) * len(context.candidates)
    dtype_math = setting.named.get("dtype"), setting.named.get("math", "")
    if facts.never and facts.device.tf32_tflops and dtype_math == ("fp32", "default"):
        source = _with_tf32(facts, source)
    if facts.convolutions is not None and not facts.is_half:
        analytical = AnalyticalSource.of_convolutions(context, facts.convolutions.model)
        source = Mixed(context, analytical, source, covers=facts.covered)
    is_covered = facts.is_trained or facts.convolutions or facts.products or any(donors)
    if not is_covered and part.unseen_gpu.ranking_source == intervals.AVERAGE_RANK:
        source = _by_average_rank(facts, source)
        note = BY_AVERAGE_RANK.format(gpu=setting.gpu)
    if setting.gpu in part.corrections:
        source = CalibratedSource(context, source, part.corrections[setting.gpu])
    return source, donors, note


def _with_tf32(facts: SettingFacts, tensor: Source) -> Source:
    """Return the source for fp32 with TF32 allowed, for libraries that were never measured so."""
    setting, device, candidates, _, _ = tensor.context
    values = tuple({**setting.named, "math": "fma"}[name] for name in setting.family.setting_names)
    formula = setting.family.formula(values, device)
    plain = tensor.context._replace(setting=setting._replace(values=values), formula=formula)
    able = np.array([setting.family.has_tensor_kernels(candidate.mechanism) for candidate in candidates])
    never = np.array([candidate.library in facts.never for candidate in candidates])
    multiply_adds = model_source(plain, facts.part, facts.similar.donors)
    return Tf32Source(tensor.context, multiply_adds, tensor, able=able, never=never)


def _by_average_rank(facts: SettingFacts, model: Source) -> Source:
    """Return the model's times in the order of the candidates' average rank on measured GPUs."""
    context = model.context
    average_rank = facts.part.unseen_gpu.average_rank
    keys = (key_text(Label(facts.setting.values, candidate.key)) for candidate in context.candidates)
    costs = np.array([average_rank.get(key, np.nan) for key in keys])
    rules = SupportRules(facts.supported_as, context.candidates, facts.part.support)
    return AverageRankSource(context, model, costs, rules, np.array([*facts.choosable.values()]))


def _ranker(
    facts: SettingFacts, context: Context, source: Source, donors: tuple[str, ...], notes: Mapping[str, tuple[str, ...]]
) -> Ranker:
    part, setting = facts.part, facts.setting
    libraries = [name for name, _ in setting.versions]
    widths = part.widths
    if not facts.is_measured:
        unseen = part.unseen_gpu
        widths = Widths(
            {ALL: unseen.by_kind[_width_kind(facts)].half_width}, independent_share=unseen.independent_share
        )
    evidence = _evidence(facts, context.candidates, widths, donors)
    fallback = SIMILAR_GPU if part.family.parameter_names or any(donors) else DATASHEET
    return Ranker(
        setting=setting,
        candidates=context.candidates,
        choosable=np.flatnonzero([*facts.choosable.values()]),
        source=source,
        rules=SupportRules(facts.supported_as, context.candidates, part.support),
        part=part,
        evidence=evidence,
        source_name=MODEL if facts.is_measured else fallback,
        is_unmeasured=not facts.is_measured,
        widths=widths,
        references={name: part.domain.reference_key(name, setting.values) for name in libraries},
        library_of=np.array([libraries.index(candidate.library) for candidate in context.candidates]),
        notes=notes,
    )


def _evidence(
    facts: SettingFacts, candidates: tuple[CandidateSetting, ...], widths: Widths, donors: tuple[str, ...]
) -> CandidateEvidence:
    """Return what is known of each candidate: the kind of source, the base of its half width, its harness's floor."""
    part, setting = facts.part, facts.setting
    kinds = part.unseen_gpu.by_kind
    keys = _keys(setting, candidates)
    measured_here = {key for key in keys if key in part.domain.settings}
    is_own = [facts.is_measured and (not facts.is_trained or key in measured_here) for key in keys]
    # 1. A candidate that was never measured here is known as well as on a GPU that was never measured, and no better.
    bases = [widths.base(setting.gpu, each.key, setting.named.get("dtype", "")) for each in candidates]
    if facts.convolutions is not None and not facts.is_half and not facts.is_measured:
        analytical = facts.convolutions.by_kind[""].half_width
        bases = [analytical if own else base for own, base in zip(facts.covered, bases, strict=True)]
    is_fixed = [facts.is_trained and key not in measured_here for key in keys]
    left_out = kinds[_width_kind(facts)].half_width
    bases = [max(base, left_out) if fixed else base for base, fixed in zip(bases, is_fixed, strict=True)]
    # 2. The kind of source.
    is_described = bool(part.family.parameter_names)
    fallbacks = [SIMILAR_GPU if is_described or donor not in ("", setting.gpu) else DATASHEET for donor in donors]
    source = [MODEL if own else fallback for own, fallback in zip(is_own, fallbacks, strict=True)]
    return CandidateEvidence(
        source=np.array(source, dtype=object),
        half_width=np.array(bases),
        is_fixed=np.array(is_fixed),
        floor_us=_floors(part, setting, candidates),
        unlisted=_unlisted(part, candidates),
        outside=(),
        is_inside=np.empty(0),
    ).outside_of(part.domain, keys, dict(setting.versions))


def _unlisted(part: FamilyModel, candidates: Sequence[CandidateSetting]) -> dict[int, str]:
    """Return the position of each configuration with a value that training never saw → what it is."""
    if not isinstance(part.family, DescribedFamily):
        return {}
    listed = part.family.description.parameters.items()
    known = {f"{name}={value}" for name, values in listed for value in values}
    out: dict[int, str] = {}
    for i, candidate in enumerate(candidates):
        if wrong := next((word for word in candidate.solver.split(",") if word and word not in known), None):
            out[i] = f"{wrong} was never measured"
    return out


def _width_kind(facts: SettingFacts) -> str:
    """Return the key of the widths that GPUs left out of training gave: the widest that applies to the setting."""
    unseen = facts.part.unseen_gpu
    fitting = {unseen.kind(facts.device.line, facts.setting.named.get("dtype", ""))}
    if facts.never:
        fitting |= {intervals.NEVER} & {*unseen.by_kind}
    return max(sorted(fitting), key=lambda name: unseen.by_kind[name].half_width)


def _floors(part: FamilyModel, setting: Setting, candidates: Iterable[CandidateSetting]) -> np.ndarray:
    """Return (candidates,) up to which time in µs each was never timed, since its harness adds as much; 0: none."""
    limits = {
        (floor.library, floor.algorithm): floor.limit_us
        for floor in part.floors
        if floor.gpu == setting.gpu and floor.settings.items() <= setting.named.items()
    }
    return np.array([limits.get((candidate.library, candidate.algorithm), 0.0) for candidate in candidates])


def _notes(facts: SettingFacts, donors: tuple[str, ...], general: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return library → the caveats of all its answers; ``general`` ones hold for every library."""
    setting = facts.setting
    pairs = zip(facts.choosable, donors, strict=True)
    donor_of = {each.library: donor for each, donor in pairs if donor not in ("", setting.gpu)}
    notes = {}
    for library, _ in setting.versions:
        own = list(general)
        if library in donor_of:
            own.append(FROM_DONOR.format(gpu=setting.gpu, donor=donor_of[library]))
        if library in facts.never:
            own.append(NO_EVIDENCE.format(" ".join(filter(None, (library, *setting.values)))))
        notes[library] = tuple(own)
    return notes


def _competing(part: FamilyModel, values: tuple[str, ...], similar: SimilarGpus, named: tuple[str, ...]) -> list[str]:
    """Return the libraries that were measured with the operator on the most similar GPUs, all if none was.

    The libraries of ``named`` candidates join them.
    """
    libraries = list(part.domain.libraries)

    def of(group: frozenset[str]) -> set[str]:
        return {name for name in libraries if part.domain.gpus_of(name, values) & group}

    measured = similar.evidence(of, each=False) or set(libraries)
    measured |= {key.library for key in part.candidates if (key.solver or key.algorithm) in named}
    return [name for name in libraries if name in measured]


def _candidates(
    question: Question, part: FamilyModel, library: str, similar: SimilarGpus
) -> dict[CandidateSetting, bool]:
    """Return a library's candidates → whether they can be chosen.

    Those that can come in the registry's order, then the registry's that were never measured, and those that the
    question names. Raises `InputError` if there is none.
    """
    family, values = question.family, question.values
    named = dict(zip(family.setting_names, values, strict=True))
    key_values = tuple(named[name] for name in family.candidate_key[:-1])
    keys = [key for key in part.candidates if (key.library, key.values) == (library, key_values)]
    registry_of_library = {offered.algorithm: offered for offered in family.candidates(library, values)}
    by_name: set[str] = set()
    if not registry_of_library:
        # Measurements alone tell what the library runs in the setting: on this GPU, else on the most similar ones.
        tried = part.support.algorithms(library, values)
        if measured := similar.evidence(lambda group: {algorithm for name, algorithm in tried if name in group}):
            asked = {key.algorithm for key in keys if (key.solver or key.algorithm) in question.named}
            by_name = (asked & {algorithm for _, algorithm in tried}) - measured
            keys = [key for key in keys if key.algorithm in measured | by_name]
    if isinstance(family, DescribedFamily) and any(key.solver for key in keys):
        known = {key.solver for key in keys}
        listed = (*family.description.space_texts, *filter(family.description.lists, question.named))
        further = (text for text in dict.fromkeys(listed) if text not in known)
        keys += [CandidateKey(library, key_values, family.name, text) for text in further]
    if not keys:
        setting = " ".join(filter(None, (library, *key_values)))
        raise InputError(f"the bundle holds no {setting} algorithm; train one that does")
    order = {name: rank for rank, name in enumerate(registry_of_library)}
    keys.sort(key=lambda key: (order.get(key.algorithm, len(order)), key.algorithm, key.solver or ""))
    measured_keys = {key.algorithm for key in keys} - by_name
    keys += [CandidateKey(library, key_values, name) for name in registry_of_library if name not in measured_keys]
    return {
        CandidateSetting(
            key=key.name,
            library=library,
            algorithm=key.algorithm,
            solver=key.solver or "",
            mechanism=family.mechanism(library, values, key.algorithm),
            deterministic=getattr(registry_of_library.get(key.algorithm), "deterministic", True),
        ): key.algorithm in measured_keys
        for key in keys
    }
