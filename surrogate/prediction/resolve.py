"""Find the evidence for a question: for each candidate of a setting, the first source that covers it.

A source covers a complete setting: one combination of direction, element type, math and layout. `Resolver` makes the
`surrogate.prediction.ranking.Ranker` of a setting when a question first needs it, and keeps the latest rankers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from math import exp, inf
from operator import eq
from typing import NamedTuple, TypeGuard

import numpy as np

from surrogate.bundle.bundle import Bundle, CandidateKey, FamilyModel
from surrogate.features import (
    DEFAULT_ALGORITHM,
    HALF,
    BoundedCache,
    InputError,
    UnknownGpuError,
    check_choice,
    nearest,
    peak_tflops,
)
from surrogate.features.algorithms import CUDNN_GRAPH, has_fewer_flops, newest, version_number
from surrogate.features.families import FAMILY_OF_KIND, AnyProblem, DescribedFamily, DescribedProblem, Family
from surrogate.features.families.operator_family import OperatorFamily
from surrogate.features.gpu import Gpu, canonical, gpu, registry, uncapped, unlisted_gpu
from surrogate.features.kernels import max_shared_bytes
from surrogate.features.problem import QUANTISED
from surrogate.models.call_cost import CallCost, CallKey, call_cost_of, call_cost_us
from surrogate.models.grid import Label
from surrogate.models.json_types import key_text
from surrogate.prediction.ranking import MAX_ROOFLINES, CandidateEvidence, Ranker, SupportRules
from surrogate.prediction.results import DATASHEET, MODEL, NOTES, SIMILAR_GPU
from surrogate.prediction.sources import datasheet
from surrogate.prediction.sources.model import TreeSource, model_source
from surrogate.prediction.sources.similar_gpu import AverageRankSource, FastestSource, SimilarGpus
from surrogate.prediction.sources.source import CalibratedSource, Context, LibraryCandidate, Mixed, QuerySetting, Source
from surrogate.uncertainty import intervals
from surrogate.uncertainty.domain import SettingKey
from surrogate.uncertainty.intervals import ALL, Widths

MAX_RANKER_BYTES = 128 << 20
"""Maximum size of the rankers that a resolver keeps: 10 to 60 settings of grids, hundreds of convolutions."""
RANKER_BYTES, CANDIDATE_BYTES = 200_000, 1000
"""Size of a ranker without its arrays, and of each of its candidates."""
VENDOR_KERNELS = {"amd": ("aiter",)}
"""Vendor → libraries of kernels that the `CALLERS` call on its GPUs."""
CALLERS = ("vllm", "sglang")
"""Frameworks that call `VENDOR_KERNELS`."""
MIN_SIMILARITY = 0.8
"""Minimum similarity of names for a GPU's name to be taken for a misspelling."""
OTHER_HALF = {"fp16": "bf16", "bf16": "fp16"}
FIRST_RELEASES = {"cudnn": ((10.0, 9), (8.0, 8)), "cublas": ((10.0, 12), (8.0, 11))}
"""Library → (minimum compute capability, required major release). Source: NVIDIA's support matrices."""


class Question(NamedTuple):
    """The setting of a query. None means every library, and each one's newest version.

    ``requested`` are candidates that the caller names. They join the others even if only other GPUs ran them, or if
    they are configurations that a description does not list. ``follows_forward``: whether an unmeasured gradient
    follows its measured forward pass.
    """

    family: Family
    gpu: str
    setting_values: tuple[str, ...]
    library: str | None = None
    library_version: str | None = None
    requested: tuple[str, ...] = ()
    is_measured_version: bool = True
    follows_forward: bool = True


class SettingFacts(NamedTuple):
    """The facts that decide the sources of a setting.

    ``board`` is the GPU. ``device`` is the GPU without the caps of its tensor units if a family of operators was never
    measured on it: its kernels are then like those of other boards, and the board's peak limits their times.
    ``choosable``: candidate → whether it can be chosen. ``is_measured``: whether a library was measured in the setting
    on the GPU. ``is_trained``: whether those measurements were training data and not only a calibration.
    ``unmeasured_libraries``: libraries that no GPU was measured with in the setting. ``fastest`` answers the measured
    time of the fastest candidate, without TF32, on the GPU or on a similar one. ``analytical`` are the models of
    its kernels; they cover the whole setting or only some candidates. ``forward`` answers the forward passes of an
    unmeasured gradient if they come from measurements. ``kernel_times`` answers for an operator without
    candidates.
    """

    setting: QuerySetting
    board: Gpu
    device: Gpu
    family_model: FamilyModel
    similar: SimilarGpus
    choosable: Mapping[LibraryCandidate, bool]
    is_measured: bool
    is_trained: bool
    unmeasured_libraries: frozenset[str]
    fastest: Ranker | None = None
    is_measured_version: bool = True
    kernel_times: datasheet.KernelFunction | None = None
    analytical: datasheet.DatasheetModels | datasheet.ProductModels | None = None
    covers_whole_setting: bool = False
    forward: Ranker | None = None

    @property
    def support_setting(self) -> QuerySetting:
        """The setting for support rules. An unknown version gets a name that no release has."""
        if self.is_measured_version:
            return self.setting
        return self.setting._replace(versions=tuple((name, f"{version}?") for name, version in self.setting.versions))

    @property
    def shapes_if_few(self) -> int:
        """`Domain.shapes_if_few` of a measured GPU."""
        return self.family_model.domain.shapes_if_few(self.setting.gpu) if self.is_trained else 0

    @property
    def covered(self) -> np.ndarray:
        """(candidates,) True if the analytical model of convolutions describes the candidate's kernels."""
        return np.array([each.mechanism == self.setting.family.tensor_core_mechanism for each in self.choosable])


def unlisted_note(gpu: str, measured: Iterable[str]) -> str:
    """Return the caveat for a GPU that is neither registered nor among the ``measured`` GPUs."""
    hint = nearest(gpu, [*measured, *registry().labels], cutoff=MIN_SIMILARITY)
    return f"the GPU {gpu} is not registered: its times come from other GPUs{hint}"


def is_problem(value: object) -> TypeGuard[AnyProblem]:
    """Return whether a value is a problem of a family."""
    kind = getattr(value, "kind", None)  # a table may have a column of that name
    return isinstance(value, DescribedProblem) or (isinstance(kind, str) and kind in FAMILY_OF_KIND)


def array_bytes(value: object) -> int:
    """Return the bytes of the arrays in a value, in its fields, and so on."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    names = value.__dataclass_fields__ if is_dataclass(value) else ()
    parts = value if isinstance(value, tuple) else (getattr(value, name) for name in names)
    return sum(map(array_bytes, parts))


def ranker_bytes(ranker: Ranker) -> int:
    """Return the size of a ranker. The trees that it specialises to its setting take up to twice the stored ones."""
    return RANKER_BYTES + CANDIDATE_BYTES * len(ranker.candidates) + 2 * array_bytes(ranker.source)


@dataclass(frozen=True, slots=True)
class Resolver:
    """Finds the rankers of one bundle's settings. The latest rankers are kept, up to `MAX_RANKER_BYTES`."""

    bundle: Bundle
    _rankers: BoundedCache[Question, Ranker] = field(
        default_factory=lambda: BoundedCache(MAX_RANKER_BYTES, ranker_bytes), repr=False, compare=False
    )

    def device(self, name: str) -> Gpu:
        """Return a device by any of its names, under its registry name if it has one.

        Raises `InputError` if neither the bundle nor the registry has it. For a described kernel the name is enough.
        """
        key = canonical(name)
        stored = self.bundle.devices.get(name) or self.bundle.devices.get(key)
        if stored is None and self.bundle.described_family:
            try:
                return replace(gpu(name), name=key)
            except UnknownGpuError:
                measured = self.bundle.fitted_gpus
                if name not in measured and registry().fitting(name):
                    raise  # the name of several boards
                others = [self.device(other) for other in measured if name not in measured]
                return unlisted_gpu(name, [other for other in others if other.vendor])
        return replace(stored or gpu(name), name=key)

    def ranker(self, question: Question) -> Ranker:
        """Return the ranker for a question, with the requested candidates.

        Raises `InputError` for an unknown library, and if no library has a candidate.
        """
        question = self.with_vendor_kernels(question)
        family, version = question.family, question.library_version
        if family.parameter_names and version not in (
            None,
            *(each.version for each in self.family_model(question).domain.versions),
        ):
            raise InputError(f"version {version} of {family.name} was never measured; leave the library version out")
        if question.requested and not question.family.parameter_names:
            ranker = self.ranker(question._replace(requested=()))
            all_names = {key.solver or key.algorithm for key in self.family_model(question).candidates}
            if not any(name in all_names and not ranker.has(name) for name in question.requested):
                return ranker
        if question.library_version is not None and question.is_measured_version:
            return self._ranker_of_version(question, question.library_version)
        return self._kept_ranker(question)

    def _kept_ranker(self, question: Question) -> Ranker:
        """Return the kept ranker of a question, or a new one."""
        return self._rankers.get(question) or self._rankers.put(question, self._new_ranker(question))

    def _ranker_of_version(self, question: Question, version: str) -> Ranker:
        """Return the ranker for the version of a question.

        Unmeasured versions share the ranker of the next older measured version, so that they need no memory of their
        own.
        """
        family_model = self.family_model(question)
        libraries = family_model.domain.libraries if question.library is None else [question.library]
        measured = set().union(*map(family_model.domain.versions_of, libraries))
        if version in measured or not measured:
            return self._kept_ranker(question)
        for library in libraries:
            self._version(question, family_model, library)
        older = [each for each in measured if version_number(each) <= version_number(version)]
        nearest_version = newest(older) if older else min(measured, key=version_number)
        shared = self._kept_ranker(question._replace(library_version=nearest_version, is_measured_version=False))
        versions = {library: version for library, _ in shared.setting.versions}
        keys = _setting_keys(shared.setting, shared.candidates)
        return replace(
            shared,
            setting=shared.setting._replace(versions=tuple(versions.items())),
            evidence=shared.evidence.outside_of(family_model.domain, keys, versions),
        )

    def with_vendor_kernels(self, question: Question) -> Question:
        """Return the question for all libraries if the framework was never measured, but `VENDOR_KERNELS` were."""
        names = VENDOR_KERNELS.get(self.device(question.gpu).vendor, ()) if question.library in CALLERS else ()
        every = question._replace(library=None)
        libraries = {*self.family_model(every).domain.libraries} if names else set[str]()
        return every if question.library not in libraries and libraries.intersection(names) else question

    def in_measured_type(self, question: Question) -> Question:
        """Return the question in the other half-precision type if only that type was measured, on the GPU or anywhere.

        The GPU must run both types at the same rate, and the family must run them with the same kernels. All other
        questions are returned unchanged.
        """
        family, gpu_name, values, library, *_ = question
        device = self.device(gpu_name)
        other = tuple(OTHER_HALF.get(value, value) for value in values)
        has_one_rate = 0 < device.bf16_tensor_tflops == device.fp16_tensor_tflops
        if other == values or not (family.half_types_share_algorithms and has_one_rate):
            return question

        def gpus(setting: tuple[str, ...]) -> set[str]:
            settings = self.family_model(question._replace(setting_values=setting)).domain.settings
            return {each.gpu for each in settings if each.setting_values == setting and library in (None, each.library)}

        own, others = gpus(values), gpus(other)
        # Tiled products of both types take the same time on every GPU. Other families have models for the other type.
        is_better = gpu_name not in own if gpu_name in others else family.tiled_kinds and not own and others
        return question._replace(setting_values=other) if is_better else question

    def family_model(self, question: Question) -> FamilyModel:
        """Return the model that answers a question."""
        return self.bundle.family_model(question.family, question.gpu, question.setting_values, question.library)

    def check_library(self, name: str) -> None:
        """Raise `InputError`, with the nearest names, for a library that is not in the bundle."""
        libraries = self.bundle.libraries
        if name == CUDNN_GRAPH and name not in libraries:
            raise InputError(NOTES["no_engine_configuration"].format("any GPU of the bundle"))
        check_choice("the bundle's library", name, sorted(libraries))

    def _new_ranker(self, question: Question) -> Ranker:
        if question.library is not None:
            self.check_library(question.library)
        if (measured := self.in_measured_type(question)) != question:
            dtype = question.family.setting_names.index("dtype")
            note = NOTES["from_other_half"].format(measured.setting_values[dtype], question.setting_values[dtype])
            other = self.ranker(measured)
            return replace(other, notes={name: (*notes, note) for name, notes in other.notes.items()})
        facts = self._facts(question)
        context = _context(facts)
        if facts.kernel_times is not None:
            ranker = _ranker(facts, context, datasheet.KernelSource(context, facts.kernel_times), ("",), {"": ()})
            reason = NOTES["as_in_networks"].format(question.setting_values[0], question.gpu)
            return replace(ranker, evidence=replace(ranker.evidence, outside=(reason,)))
        source, donors, note = _source(facts, context)
        general = () if facts.is_measured else tuple(self._unmeasured_notes(facts, note))
        general += self._math_note(facts)
        if count := facts.shapes_if_few:
            general += (NOTES["few_shapes"].format(facts.setting.gpu, count),)
        return _ranker(facts, context, source, donors, notes=_notes(facts, donors, general, self.bundle.call_costs))

    def _math_note(self, facts: SettingFacts) -> tuple[str, ...]:
        """Return the caveat for a math type that is the default only because the bundle has no other one."""
        family, device, values = facts.setting.family, facts.device, facts.setting.by_name
        if "math" not in values or values["math"] == (usual := family.default_math(values["dtype"], device)):
            return ()
        is_default = self.bundle.default_math(family, values["dtype"], device) == values["math"]
        return (NOTES["only_math"].format(values["math"], values["dtype"], usual, device.name),) if is_default else ()

    def _facts(self, question: Question) -> SettingFacts:
        """Return the facts that decide the sources of a question."""
        family, gpu_name, values, library, _, requested, *_ = question
        family_model = self.family_model(question)
        board = device = self.device(gpu_name)
        if isinstance(family, OperatorFamily) and not self.bundle.has_measured(gpu_name):
            device = uncapped(board)
        others = {name: self.device(name) for name in family_model.domain.gpus if name != gpu_name}
        similar = SimilarGpus.of(family_model, values, device, others)
        choosable: dict[LibraryCandidate, bool] = {}
        versions: list[tuple[str, str]] = []
        failures: list[InputError] = []
        kernel_times: datasheet.KernelFunction | None = None
        for name in _competing(family_model, values, similar, requested) if library is None else [library]:
            version = self._version(question, family_model, name)
            try:
                choosable |= _candidates(question, family_model, name, similar)
                versions.append((name, version))
            except InputError as error:
                failures.append(error)
        is_measured = any(gpu_name in family_model.domain.gpus_of(name, values) for name, _ in versions)
        costs = self.bundle.call_costs
        are_calls = all(call_cost_of(costs, gpu_name, name).launch_us for name, _ in versions)  # or there are none
        if are_calls and not is_measured and library is None and isinstance(family, OperatorFamily):
            kernel_times = self.bundle.operator_times(gpu_name)
        if kernel_times is not None:
            choosable, versions = {LibraryCandidate(DEFAULT_ALGORITHM, "", DEFAULT_ALGORITHM): True}, [("", "")]
        elif not choosable:
            raise failures[0]
        settings = {(key.library, key.setting_values) for key in family_model.domain.settings}
        facts = _with_datasheet(
            SettingFacts(
                setting=QuerySetting(family, gpu_name, tuple(versions), values),
                board=board,
                device=device,
                family_model=family_model,
                similar=similar,
                choosable=choosable,
                is_measured=is_measured,
                is_trained=is_measured and not similar.is_calibrated,
                unmeasured_libraries=frozenset(name for name, _ in versions if (name, values) not in settings),
                fastest=None if is_measured else self._fastest(question, device),
                is_measured_version=question.is_measured_version,
                kernel_times=kernel_times,
            )
        )
        return facts._replace(forward=self._forward(question)) if facts.covers_whole_setting else facts

    def _forward(self, question: Question) -> Ranker | None:
        """Return `SettingFacts.forward` of a question, or None."""
        usual = question.family.setting_defaults.get("direction", "")
        names = question.family.setting_names
        values = tuple(
            usual if name == "direction" else value for name, value in zip(names, question.setting_values, strict=True)
        )
        if values == question.setting_values or not question.follows_forward:
            return None
        ranker = self._kept_ranker(question._replace(setting_values=values, requested=()))
        return ranker if ranker.source_name in (MODEL, SIMILAR_GPU) else None

    def _fastest(self, question: Question, device: Gpu) -> Ranker | None:
        """Return `SettingFacts.fastest` of a question, or None. Another release that was measured is another answer."""
        family, _, values, _, version, _, is_measured_version, _ = question
        family_model = self.bundle.fastest_model(family, device)
        if family_model is None or (version is not None and is_measured_version):
            return None
        values = tuple("fma" if value == "default" else value for value in values)
        settings = family_model.domain.settings
        measured = {key.gpu: self.device(key.gpu) for key in settings if key.setting_values == values}
        donors = SimilarGpus.of(family_model, values, device, measured).donors
        resolver = Resolver(Bundle({family.name: family_model}))
        return resolver.ranker(Question(family, next(iter(donors)), values)) if donors else None

    def _version(self, question: Question, family_model: FamilyModel, library: str) -> str:
        """Return the version of the question, else the newest that was measured on the GPU, else anywhere, else "".

        A GPU that is too new for the version gets the first release that supports it. Raises `InputError` if the
        question has a version that does not run on the GPU.
        """
        releases = family_model.support.releases.get(library, ())
        measured = {release.version for release in releases if release.gpu == question.gpu}
        if measured and question.library_version is None:
            return newest(measured)
        version = question.library_version or newest(family_model.domain.versions_of(library))
        capability = self.device(question.gpu).compute_capability
        first = next((major for above, major in FIRST_RELEASES.get(library, ()) if capability >= above), 0)
        if version_number(version)[0] >= first:
            return version
        if question.library_version and question.is_measured_version:
            raise InputError(f"{library} {version} does not run on {question.gpu}; it needs {first} or newer")
        return f"{first}+"

    def _unmeasured_notes(self, facts: SettingFacts, rank_note: str) -> Iterable[str]:
        """Yield the caveats of a setting that was not measured on the GPU."""
        family_model, family, device = facts.family_model, facts.family_model.family, facts.device
        if not device.vendor:
            yield unlisted_note(device.name, family_model.domain.gpus)
        if not facts.covers_whole_setting:
            yield family_model.unmeasured_gpu.note(_width_group(facts), is_described=bool(family.parameter_names))
        if facts.forward is not None:
            factors = (exp(half_width) for half_width in datasheet.GRADIENT_HALF_WIDTHS[facts.setting.values[0]])
            yield NOTES["follows_forward"].format(device.name, *factors)
        elif facts.analytical is not None:
            covered = [each.name for each, modelled in zip(facts.choosable, facts.covered, strict=True) if modelled]
            names = "" if facts.covers_whole_setting else f"{', '.join(covered)}: "
            yield f"{names}{facts.analytical.note}"
        description = family.description if isinstance(family, DescribedFamily) else None
        if description is not None and device.vendor and "shared_bytes" not in description.formulas:
            yield NOTES["shared_memory_unchecked"]
        if description is not None and "shared_bytes" in description.formulas and not max_shared_bytes(device):
            yield NOTES["shared_limit_unknown"].format(device.name)
        if rank_note:
            yield rank_note
        if _sustained_tflops(facts) < inf and (note := datasheet.above_peak_note(facts.board)):
            yield note
        if facts.fastest is not None:
            (version,), gpu = dict(facts.fastest.setting.versions).values(), facts.fastest.setting.gpu
            yield NOTES["from_fastest"].format(MODEL if gpu == device.name else SIMILAR_GPU, version, gpu)


def _with_datasheet(facts: SettingFacts) -> SettingFacts:
    """Return the facts with the analytical models that cover the setting, if the GPU has no training data in it.

    In half precision the model of convolutions covers the whole setting: only candidates with the modelled kernels can
    be chosen, and they come first. In TF32 the model covers only these candidates. On a GPU that was measured in other
    settings, the model of convolutions covers the settings that were measured on no GPU.
    """
    setting, device, family_model = facts.setting, facts.device, facts.family_model
    if facts.is_trained and not facts.unmeasured_libraries:
        return facts
    choosable, dtype = facts.choosable, setting.by_name.get("dtype", "")
    mechanism = setting.family.tensor_core_mechanism
    if mechanism in {candidate.mechanism for candidate in choosable} - {""}:
        analytical = datasheet.datasheet_models(device, dtype, setting.by_name.get("math", ""))
        if dtype not in HALF:
            return facts if facts.is_trained else facts._replace(analytical=analytical)
        described_first = sorted(choosable, key=lambda candidate: candidate.mechanism != mechanism)
        choosable = {candidate: candidate.mechanism == mechanism for candidate in described_first}
    else:
        # The model of products covers a setting if only its own boards were measured, and no board gives measurements.
        domain = family_model.domain
        gpus = {name for library, _ in setting.versions for name in domain.gpus_of(library, setting.values)}
        gpus -= {setting.gpu}
        is_new = not facts.is_trained and not gpus & {*facts.similar.donors}
        analytical = datasheet.product_models(setting, device, facts.similar.vendor | gpus) if is_new else None
    if analytical is None:
        return facts
    is_measured = facts.is_measured and not facts.is_trained
    return facts._replace(
        analytical=analytical,
        covers_whole_setting=True,
        is_measured=is_measured,
        is_trained=False,
        family_model=family_model if is_measured else analytical.instead_of(family_model),
        unmeasured_libraries=frozenset(),
        choosable=choosable,
    )


def _context(facts: SettingFacts) -> Context:
    candidates = tuple(facts.choosable)
    min_us = [call_cost_us(facts.family_model.min_us, facts.setting.gpu, candidate.library) for candidate in candidates]
    formula = facts.setting.family.formula(facts.setting.values, facts.device)
    return Context(facts.setting, facts.device, candidates, formula, min_us=np.array(min_us))


def _setting_keys(setting: QuerySetting, candidates: Iterable[LibraryCandidate]) -> list[SettingKey]:
    """Return each candidate's key in the training settings."""
    return [SettingKey(setting.gpu, each.library, setting.values, each.algorithm) for each in candidates]


def _source(facts: SettingFacts, context: Context) -> tuple[Source, tuple[str, ...], str]:
    """Return the source, each candidate's donor GPU ("" for none), and a note on the order of candidates."""
    family_model, setting = facts.family_model, facts.setting
    note = ""
    if facts.analytical is not None and facts.covers_whole_setting:
        source = datasheet.AnalyticalSource(context, facts.analytical, facts.forward)
    else:
        source = model_source(context, family_model, facts.similar.donors)
    donors = source.donors if isinstance(source, TreeSource) else ("",) * len(context.candidates)
    dtype_math = setting.by_name.get("dtype"), setting.by_name.get("math", "")
    if facts.unmeasured_libraries and facts.device.tf32_tflops and dtype_math == ("fp32", "default"):
        source = _with_tf32(facts, source)
    else:
        source = _with_fastest(facts, source)
    if facts.unmeasured_libraries and dtype_math[0] == "fp32":
        source = _not_below_bf16(facts, source)
    if facts.analytical is not None and not facts.covers_whole_setting:
        sources = source, datasheet.AnalyticalSource(context, facts.analytical)
        source = Mixed(context, sources, covers=np.array([~facts.covered, facts.covered]))
    is_covered = facts.is_trained or facts.analytical or any(donors)
    if not is_covered and family_model.unmeasured_gpu.ranking_source == intervals.AVERAGE_RANK:
        source = _by_average_rank(facts, source)
        note = NOTES["by_average_rank"].format(gpu=setting.gpu)
    if setting.gpu in family_model.corrections:
        source = CalibratedSource(context, source, family_model.corrections[setting.gpu])
    return source, donors, note


def _with_tf32(facts: SettingFacts, tensor: Source) -> Source:
    """Return the source for fp32 with TF32 allowed, for libraries without measurements in TF32.

    A candidate with both kinds of kernels takes the shorter time: of multiply-adds, or at TF32's peak.
    """
    setting, _, candidates, _, _ = tensor.context
    has_both = np.array([setting.family.has_tensor_kernels(candidate.mechanism) for candidate in candidates])
    unmeasured = np.array([candidate.library in facts.unmeasured_libraries for candidate in candidates])
    multiply_adds = _with_fastest(facts, _in_setting(facts, tensor.context, {"math": "fma"}))
    return Mixed(tensor.context, (multiply_adds, tensor), covers=np.array([unmeasured, ~unmeasured | has_both]))


def _not_below_bf16(facts: SettingFacts, source: Source) -> Source:
    """Return the source for fp32; no time is below the time in bf16 if that type was measured on the GPU."""
    family, values = facts.setting.family, facts.setting.by_name
    changes = {name: "bf16" for name, value in values.items() if value == "fp32"}
    changes["math"] = family.default_math("bf16", facts.device)
    half = _in_setting(facts, source.context, changes)
    keys = _setting_keys(half.context.setting, source.context.candidates)
    measured = np.flatnonzero([key in facts.family_model.domain.settings for key in keys])
    return datasheet.NotBelow(source.context, source, half, measured) if len(measured) else source


def _in_setting(facts: SettingFacts, context: Context, changes: Mapping[str, str]) -> Source:
    """Return the source of the model in the setting with some of its values changed."""
    setting = context.setting
    values = tuple({**setting.by_name, **changes}[name] for name in setting.family.setting_names)
    formula = setting.family.formula(values, context.device)
    context = context._replace(setting=setting._replace(values=values), formula=formula)
    return model_source(context, facts.family_model, facts.similar.donors)


def _by_average_rank(facts: SettingFacts, model: Source) -> Source:
    """Return the model's times in the order of the candidates' average rank on measured GPUs."""
    context = model.context
    mean_log_slowdowns = facts.family_model.unmeasured_gpu.mean_log_slowdowns
    keys = (key_text(Label(facts.setting.values, candidate.key)) for candidate in context.candidates)
    costs = np.array([mean_log_slowdowns.get(key, np.nan) for key in keys])
    return AverageRankSource(context, model, *_competition(facts, context), costs)


def _competition(facts: SettingFacts, context: Context) -> tuple[SupportRules, np.ndarray]:
    """Return the support rules of a setting, and whether its candidates can be chosen."""
    rules = SupportRules(facts.support_setting, context.candidates, facts.family_model.support, facts.board)
    return rules, np.array([*facts.choosable.values()])


def _with_fastest(facts: SettingFacts, model: Source) -> Source:
    """Return the model's times, in which the fastest candidate takes the measured time of the fastest, if any."""
    if facts.fastest is None:
        return model
    return FastestSource(model.context, model, *_competition(facts, model.context), facts.fastest)


def _ranker(
    facts: SettingFacts, context: Context, source: Source, donors: tuple[str, ...], notes: Mapping[str, tuple[str, ...]]
) -> Ranker:
    family_model, setting = facts.family_model, facts.setting
    libraries = [name for name, _ in setting.versions]
    keys, widths = _setting_keys(setting, context.candidates), family_model.widths
    unmeasured = _unmeasured_widths(facts)
    if not facts.is_measured:
        widths = unmeasured
    evidence = _evidence(facts, context, widths, donors)
    fallback = SIMILAR_GPU if family_model.family.parameter_names or any(donors) else DATASHEET
    return Ranker(
        setting=setting,
        candidates=context.candidates,
        choosable=np.flatnonzero([*facts.choosable.values()]),
        source=source,
        rules=SupportRules(facts.support_setting, context.candidates, family_model.support, facts.board),
        family_model=family_model,
        evidence=evidence,
        source_name=MODEL if MODEL in evidence.source else fallback,
        aligned_only=_aligned_only(facts),
        measured_groups={} if facts.analytical is not None else _measured_groups(facts),
        device=facts.board,
        sustained_tflops=_sustained_tflops(facts),
        max_rooflines=MAX_ROOFLINES if {*setting.values[:1]} & {*getattr(setting.family, "tiled_kinds", ())} else inf,
        unmeasured_value=family_model.domain.unmeasured_value(keys) if facts.is_trained else "",
        widths=widths,
        references={name: family_model.domain.reference_key(name, setting.values) for name in libraries},
        library_of=np.array([libraries.index(candidate.library) for candidate in context.candidates]),
        notes=notes,
        unmeasured_half_width=unmeasured.by_key[ALL],
    )


def _unmeasured_widths(facts: SettingFacts) -> Widths:
    """Return the widths of the setting on an unmeasured GPU.

    If they are an assumption, the configurations of a described kernel keep their independent errors.
    """
    errors, widths = facts.family_model.unmeasured_gpu, facts.family_model.widths
    half_width, share = errors.by_group[_width_group(facts)].half_width, errors.independent_share
    if not errors.by_group[_width_group(facts)].gpus:
        half_width = max(half_width, widths.max_half_width)
        share *= widths.by_key[ALL] / half_width if facts.setting.family.parameter_names else 1.0
    return Widths({ALL: half_width}, independent_share=share)


def _sustained_tflops(facts: SettingFacts) -> float:
    """Return `Ranker.sustained_tflops` of a setting."""
    family, dtype = facts.setting.family, facts.setting.by_name.get("dtype", "")
    if not isinstance(family, OperatorFamily):
        return inf
    if not family.kinds[facts.setting.values[0]].tensor_cores(dtype, facts.setting.by_name["math"]):
        return inf
    return peak_tflops(facts.board, dtype, True) * datasheet.sustained_share(facts.board)


def _measured_groups(facts: SettingFacts) -> dict[str, frozenset[str]]:
    """Return `Ranker.measured_groups` of the libraries with statuses."""
    family, _, versions, values = facts.setting
    signatures = {signature for signature, _ in facts.family_model.support.exact} if family.kernel_groups else set()
    measured: dict[str, set[str]] = {each.library: {*family.kernel_groups[:1]} for each in signatures}
    for each in signatures:
        if each.setting == values:
            measured[each.library].add(family.kernel_group_of(each.traits))
    incomplete = {name for name, groups in measured.items() if len(groups) < len(family.kernel_groups)}
    return {library: frozenset(measured[library]) for library, _ in versions if library in incomplete}


def _aligned_only(facts: SettingFacts) -> frozenset[str]:
    """Return `Ranker.aligned_only` of a setting."""
    setting, domain = facts.setting, facts.family_model.domain
    names = [name for name, _ in setting.versions]
    shapes = {name: domain.references.get(domain.reference_key(name, setting.values)) for name in names}

    def has_unaligned(sizes: np.ndarray) -> bool:
        return bool(np.any(setting.family.unaligned_us(setting.problem(sizes.T), facts.board)))

    return frozenset(name for name, each in shapes.items() if each is not None and not has_unaligned(each.shapes))


def _evidence(facts: SettingFacts, context: Context, widths: Widths, donors: tuple[str, ...]) -> CandidateEvidence:
    """Return the evidence of each candidate: kind of source, base of the half width, floor of the harness."""
    family_model, setting, candidates = facts.family_model, facts.setting, context.candidates
    keys = _setting_keys(setting, candidates)
    is_measured = np.array([key in family_model.domain.settings for key in keys])
    half_width, limits = _half_widths(facts, candidates, widths, facts.is_trained & ~is_measured)
    return CandidateEvidence(
        source=_source_names(facts, is_measured, donors),
        half_width=half_width,
        half_width_limits=limits,
        floor_us=_floors(family_model, setting, candidates),
        unlisted=_unlisted(family_model, candidates),
        counts_flops=np.array([not has_fewer_flops(each.name) for each in candidates], dtype=np.int64),
        outside=(),
        is_inside=np.empty(0),
        has_workspace=np.array([each.has_workspace_formula for each in candidates]),
    ).outside_of(family_model.domain, keys, dict(setting.versions))


def _half_widths(
    facts: SettingFacts, candidates: Iterable[LibraryCandidate], widths: Widths, is_fixed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the base of each candidate's half width in log time, (candidates,), and its limits, (2, candidates).

    For a candidate that ``is_fixed``, or on a GPU with few shapes, it is at least the half width of an unmeasured GPU.
    On a calibrated GPU, that half width is the limit.
    """
    setting = facts.setting
    dtype = setting.by_name.get("dtype", "")
    bases = np.array([widths.base(setting.gpu, each.key, dtype) for each in candidates])
    if facts.analytical is not None and not facts.covers_whole_setting and not facts.is_measured:
        bases = np.where(facts.covered, facts.analytical.by_kind[""].half_width, bases)
    unmeasured = np.maximum(bases, facts.family_model.unmeasured_gpu.by_group[_width_group(facts)].half_width)
    bases = np.where(is_fixed | bool(facts.shapes_if_few), unmeasured, bases)
    limits = np.array([widths.limit(each.key) for each in candidates])
    limits = unmeasured if facts.is_measured and not facts.is_trained else limits
    return bases, np.where(is_fixed, bases, [np.zeros(len(bases)), limits])


def _source_names(facts: SettingFacts, is_measured: np.ndarray, donors: tuple[str, ...]) -> np.ndarray:
    """Return the name of each candidate's source, (candidates,). ``is_measured`` is about the GPU and the setting."""
    has_model = facts.is_measured & (is_measured | (not facts.is_trained))
    is_described = bool(facts.family_model.family.parameter_names)
    gpu = facts.setting.gpu
    fallbacks = [SIMILAR_GPU if is_described or donor not in ("", gpu) else DATASHEET for donor in donors]
    names = [MODEL if own else fallback for own, fallback in zip(has_model, fallbacks, strict=True)]
    return np.array(names, dtype=object)


def _unlisted(family_model: FamilyModel, candidates: Sequence[LibraryCandidate]) -> dict[int, str]:
    """Return position of a configuration → its parameter value that is not in the training data."""
    if not isinstance(family_model.family, DescribedFamily):
        return {}
    listed = family_model.family.description.parameters.items()
    trained = {f"{name}={value}" for name, values in listed for value in values}
    out: dict[int, str] = {}
    for i, candidate in enumerate(candidates):
        if wrong := next((word for word in candidate.solver.split(",") if word and word not in trained), None):
            out[i] = f"{wrong} was never measured"
    return out


def _width_group(facts: SettingFacts) -> str:
    """Return the key of the held-out GPUs' half width: the widest that applies to the setting."""
    errors = facts.family_model.unmeasured_gpu
    fitting = {errors.group_key(facts.device.product_line, facts.setting.by_name.get("dtype", ""))}
    if facts.unmeasured_libraries:
        fitting |= {intervals.NEVER} & {*errors.by_group}
    return max(sorted(fitting), key=lambda name: errors.by_group[name].half_width)


def _floors(family_model: FamilyModel, setting: QuerySetting, candidates: Iterable[LibraryCandidate]) -> np.ndarray:
    """Return the time in µs that the harness adds to each candidate, (candidates,); 0 without a floor."""
    limits = {
        (floor.library, floor.algorithm): floor.limit_us
        for floor in family_model.floors
        if floor.gpu == setting.gpu and floor.settings.items() <= setting.by_name.items()
    }
    return np.array([limits.get((candidate.library, candidate.algorithm), 0.0) for candidate in candidates])


def _notes(
    facts: SettingFacts, donors: tuple[str, ...], general: tuple[str, ...], costs: Mapping[CallKey, CallCost]
) -> dict[str, tuple[str, ...]]:
    """Return library → caveats of all its answers; ``general`` caveats apply to every library."""
    setting = facts.setting
    pairs = zip(facts.choosable, donors, strict=True)
    donor_of = {each.library: donor for each, donor in pairs if donor not in ("", setting.gpu)}
    notes = {}
    for library, _ in setting.versions:
        own = list(general)
        if library in donor_of:
            own.append(NOTES["from_donor"].format(gpu=setting.gpu, donor=donor_of[library]))
        if library in facts.unmeasured_libraries:
            own.append(NOTES["no_evidence"].format(" ".join(filter(None, (library, *setting.values)))))
        if setting.family.has_call_cost and call_cost_of(costs, setting.gpu, library).launch_us:
            own.append(NOTES["call_alone"])
        notes[library] = tuple(own)
    return notes


def _competing(
    family_model: FamilyModel, values: tuple[str, ...], similar: SimilarGpus, requested: tuple[str, ...]
) -> list[str]:
    """Return the libraries that were measured with the operator on the most similar GPUs, or all if there is none.

    If libraries were measured in a quantised type, the others do not compete in it. The libraries of ``requested``
    candidates join them. Engine configurations compete only if they are requested, or if no other library was measured,
    because they need cuDNN's own list.
    """
    domain = family_model.domain
    requested_libraries = {key.library for key in family_model.candidates if (key.solver or key.algorithm) in requested}
    libraries = [name for name in domain.libraries if name in requested_libraries or name in domain.default_libraries]

    def measured_on(group: frozenset[str]) -> set[str]:
        return {name for name in libraries if domain.gpus_of(name, values) & group}

    measured = similar.evidence(measured_on, each=False) or set(libraries)
    if not QUANTISED.keys().isdisjoint(values):
        measured = measured & {key.library for key in domain.settings if key.setting_values == values} or measured
    return [name for name in libraries if name in measured | requested_libraries]


def _candidates(
    question: Question, family_model: FamilyModel, library: str, similar: SimilarGpus
) -> dict[LibraryCandidate, bool]:
    """Return a library's candidate → whether it can be chosen.

    Choosable candidates are in the registry's order. They are followed by registered candidates without measurements
    and by requested ones. Raises `InputError` if there is no candidate.
    """
    family, values, key_values = question.family, question.setting_values, _key_values(question)
    registered = {offered.algorithm: offered for offered in family.candidates(library, values)}
    own = [key for key in family_model.candidates if key.library == library]
    keys = [key for key in own if key.candidate_values == key_values]
    requested_only: set[str] = set()
    if not registered:
        keys, requested_only = _measured_keys(question, family_model, library, similar, keys)
    keys += _listed_keys(question, library, keys)
    if not keys:
        setting = " ".join(filter(None, (library, *key_values)))
        available = sorted({" ".join(filter(None, key.candidate_values)) for key in own})[:12]
        remedy = f"choose among {', '.join(available)}" if available else "train one that does"
        raise InputError(f"the bundle holds no {setting} algorithm; {remedy}")
    order = {name: rank for rank, name in enumerate(registered)}
    keys.sort(key=lambda key: (order.get(key.algorithm, len(order)), key.algorithm, key.solver or ""))
    choosable = {key.algorithm for key in keys} - requested_only
    keys += [CandidateKey(library, key_values, name) for name in registered if name not in choosable]
    return {
        LibraryCandidate(
            key=key.name,
            library=library,
            algorithm=key.algorithm,
            solver=key.solver or "",
            mechanism=family.mechanism(library, values, key.algorithm),
            deterministic=_is_deterministic(family_model, values, key),
            has_workspace_formula=key.algorithm in registered,
        ): key.algorithm in choosable
        for key in keys
    }


def _is_deterministic(family_model: FamilyModel, values: tuple[str, ...], key: CandidateKey) -> bool | None:
    """Return the determinism that the training data state, else the library's documentation; None: unknown."""
    stated = family_model.requirements and family_model.requirements.is_deterministic(key.name)
    return family_model.family.is_deterministic(key.library, values, key.algorithm) if stated is None else stated


def _key_values(question: Question) -> tuple[str, ...]:
    """Return the question's settings that are part of a candidate's key."""
    settings = dict(zip(question.family.setting_names, question.setting_values, strict=True))
    return tuple(settings[name] for name in question.family.candidate_key[:-1])


def _measured_keys(
    question: Question, family_model: FamilyModel, library: str, similar: SimilarGpus, keys: list[CandidateKey]
) -> tuple[list[CandidateKey], set[str]]:
    """Return the keys that were measured in the setting on this GPU, else on the most similar GPUs.

    An unmeasured setting has the keys of the measured one with the most equal values. An unmeasured quantised type has
    the keys of bf16, and an unmeasured half type has all keys. Keys of requested algorithms are kept if any GPU ran
    them; the second value has their names.
    """
    domain, values = family_model.domain, question.setting_values
    half = tuple("bf16" if value in QUANTISED else value for value in values)
    settings = sorted({key.setting_values for key in domain.settings if key.library == library})
    is_unmeasured_half = any(value in HALF and all(value not in each for each in settings) for value in values)
    nearest_setting = max(
        [] if is_unmeasured_half else settings,
        key=lambda each: (sum(map(eq, each, values)), sum(map(eq, each, half))),
        default=values,
    )
    gpus_and_algorithms = family_model.support.algorithms(library, nearest_setting)
    measured = similar.evidence(lambda group: {algorithm for name, algorithm in gpus_and_algorithms if name in group})
    if not measured:
        return keys, set()
    requested = {key.algorithm for key in keys if (key.solver or key.algorithm) in question.requested}
    requested_only = (requested & {algorithm for _, algorithm in gpus_and_algorithms}) - measured
    return [key for key in keys if key.algorithm in measured | requested_only], requested_only


def _listed_keys(question: Question, library: str, keys: Iterable[CandidateKey]) -> list[CandidateKey]:
    """Return the listed and requested configurations of a described kernel that are not among the trained ``keys``."""
    family, key_values = question.family, _key_values(question)
    trained = {key.solver for key in keys}
    if not isinstance(family, DescribedFamily) or not any(trained):
        return []
    listed = (*family.description.space_texts, *filter(family.description.declares, question.requested))
    further = (text for text in dict.fromkeys(listed) if text not in trained)
    return [CandidateKey(library, key_values, family.name, text) for text in further]
