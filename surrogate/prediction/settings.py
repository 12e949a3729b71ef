"""Which settings of a bundle answer a question: its libraries and versions, its candidates, and the GPUs like its own.

`SettingCache` makes each `PreparedSetting` when it is first asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import NamedTuple, TypeGuard

import numpy as np

from surrogate.bundle.bundle import Bundle, CandidateKey, Part
from surrogate.features.errors import InputError, require_known
from surrogate.features.families import FAMILY_OF_KIND, AnyProblem, DescribedFamily, Family
from surrogate.features.gpu import Gpu, canonical, gpu, unlisted
from surrogate.features.text import newest, version_number
from surrogate.models.launch import call_cost_us
from surrogate.prediction.configuration_engine import ConfigurationEngine
from surrogate.prediction.engine import Candidate, Context, Engine, Setting, TableEngine, Tf32Engine
from surrogate.prediction.prepared import PreparedSetting, SupportRules
from surrogate.prediction.results import MODEL, SPEC
from surrogate.prediction.specification import ProductEngine, TensorCoreEngine, products_of, specification_of
from surrogate.prediction.tree_engine import BoosterEngine

LENT = "{gpu} was never measured so: its choices follow those of {sibling}, which has its architecture"
NO_EVIDENCE = "{} was never measured on any GPU: peaks stand in"
OTHER_HALF = {"fp16": "bf16", "bf16": "fp16"}
STANDS_IN = "measurements in {} stand for {}: the GPU runs both at one rate, and their values take the same bytes"
FIRST_RELEASES = {"cudnn": ((10.0, 9), (8.0, 8)), "cublas": ((10.0, 12), (8.0, 11))}
"""Library → least compute capability, the first major release that runs there. Source: NVIDIA's support matrices."""


class Question(NamedTuple):
    """A setting as it is asked about; None: every library, and each one's newest version."""

    family: Family
    gpu: str
    values: tuple[str, ...]
    library: str | None = None
    library_version: str | None = None


class Alike(NamedTuple):
    """The GPU asked about, and the measured ones like it: of its architecture (``siblings``, the nearest in bandwidth
    and peak first), of its vendor, and all."""

    own: str
    siblings: tuple[str, ...]
    vendor: frozenset[str]
    everywhere: frozenset[str]

    @property
    def groups(self) -> tuple[frozenset[str], ...]:
        """The GPU, its siblings one by one, its vendor's, all: the first with any evidence is to be asked."""
        return (*(frozenset({name}) for name in (self.own, *self.siblings)), self.vendor, self.everywhere)


def is_problem(value: object) -> TypeGuard[AnyProblem]:
    """Whether it is one problem of a family."""
    kind = getattr(value, "kind", None)  # a table may have a column of that name
    return isinstance(kind, str) and kind in FAMILY_OF_KIND


@dataclass(frozen=True, slots=True)
class SettingCache:
    """The prepared settings of one bundle, each made when it is first asked for."""

    bundle: Bundle
    _prepared: dict[Question, PreparedSetting] = field(default_factory=dict, repr=False, compare=False)

    def device(self, name: str) -> Gpu:
        """A device by any name, under its registry name where it has one.

        Raises `InputError` for one that neither the bundle nor the registry knows; to a described kernel its name is
        enough.
        """
        key = canonical(name)
        stored = self.bundle.devices.get(name) or self.bundle.devices.get(key)
        if stored is None and self.bundle.described:
            try:
                return replace(gpu(name), name=key)
            except InputError:
                return unlisted(name)
        return replace(stored or gpu(name), name=key)

    def prepared(self, question: Question) -> PreparedSetting:
        """A setting on a GPU with every library that has candidates for it, or with the one asked about alone.

        Raises `InputError` for an unknown library, and where none has a candidate.
        """
        if question not in self._prepared:
            self._prepared[question] = self._made(question)
        return self._prepared[question]

    def _made(self, question: Question) -> PreparedSetting:
        """What `prepared` remembers."""
        family, gpu_name, values, library, _ = question
        if library is not None:
            self.check_library(library)
        if (measured := self.measured(question)) != question:
            dtype = family.setting_names.index("dtype")
            note = STANDS_IN.format(measured.values[dtype], values[dtype])
            stand_in = self.prepared(measured)
            return replace(stand_in, notes={name: (*notes, note) for name, notes in stand_in.notes.items()})
        part = self.bundle.part(family, gpu_name, values)
        alike = self._alike(gpu_name, part)
        choosable: dict[Candidate, bool] = {}
        versions: list[tuple[str, str]] = []
        failures: list[InputError] = []
        for name in _competing(part, values, alike) if library is None else [library]:
            version = self._version(question, part, name)
            try:
                choosable |= _candidates(part, name, values, alike)
                versions.append((name, version))
            except InputError as error:
                failures.append(error)
        if not choosable:
            raise failures[0]
        return self._prepare(Setting(family, gpu_name, tuple(versions), values), choosable, part, alike)

    def measured(self, question: Question) -> Question:
        """The question; with the other half-precision type where that alone was measured on a GPU that runs both alike.

        Of families alone whose kernels are the same in both.
        """
        family, gpu_name, values, library, _ = question
        device = self.device(gpu_name)
        other = tuple(OTHER_HALF.get(value, value) for value in values)
        if not family.halves_alike or other == values or not 0 < device.bf16_tensor_tflops == device.fp16_tensor_tflops:
            return question

        def is_measured(setting: tuple[str, ...]) -> bool:
            return any(
                key.gpu == gpu_name and key.values == setting and library in (None, key.library)
                for key in self.bundle.part(family, gpu_name, setting).domain.settings
            )

        return question._replace(values=other) if is_measured(other) and not is_measured(values) else question

    def check_library(self, wanted: str) -> None:
        """Raises `InputError`, with the nearest names, for a library that no part of the bundle knows."""
        known = {name for part in self.bundle.parts.values() for name in part.domain.libraries}
        require_known("the bundle's library", wanted, sorted(known))

    def _version(self, question: Question, part: Part, library: str) -> str:
        """The version asked about, else the newest that was measured on the GPU, else anywhere; "" where none is known.

        A GPU that is too new for it gets its own first release. Raises `InputError` where such a one is asked about.
        """
        here = {release.version for release in part.support.releases.get(library, ()) if release.gpu == question.gpu}
        version = question.library_version or newest(here or part.domain.versions_of(library))
        capability = self.device(question.gpu).compute_capability
        least = next((major for above, major in FIRST_RELEASES.get(library, ()) if capability >= above), 0)
        if version_number(version)[0] >= least:
            return version
        if question.library_version:
            raise InputError(f"{library} {version} does not run on {question.gpu}; it needs {least} or newer")
        return f"{least}+"

    def _alike(self, gpu_name: str, part: Part) -> Alike:
        """The measured GPUs like one."""
        device = self.device(gpu_name)
        others = {name: self.device(name) for name in part.domain.gpus if name != gpu_name}

        def distance(name: str) -> float:
            other = others[name]
            pairs = ((other.dram_gbs, device.dram_gbs), (other.fp32_tflops, device.fp32_tflops))
            return sum(abs(log(other_rate / rate)) for other_rate, rate in pairs)

        architecture = device.architecture or None
        siblings = [name for name, other in others.items() if other.architecture == architecture]
        nearest_first = sorted(siblings, key=distance) if len(siblings) > 1 else siblings
        vendor = frozenset(name for name, other in others.items() if other.vendor == device.vendor)
        return Alike(gpu_name, tuple(nearest_first), vendor, frozenset(others))

    def _prepare(self, setting: Setting, choosable: dict[Candidate, bool], part: Part, alike: Alike) -> PreparedSetting:
        """``choosable``: the setting's candidates → whether they can be chosen."""
        device = self.device(setting.gpu)
        named = setting.named
        math = named.get("math", "")
        seen = any(setting.gpu in part.domain.gpus_of(library, setting.values) for library, _ in setting.versions)
        measured = {(key.library, key.values) for key in part.domain.settings}
        never = {library for library, _ in setting.versions if (library, setting.values) not in measured}
        # 1. The law of tensor cores stands in for the trees where the family has kernels that it describes. Those come
        #    first, and no others can be chosen.
        mechanism = "" if seen or math == "fma" else setting.family.tensor_core_mechanism
        law = specification_of(device, named["dtype"]) if mechanism else None
        if law is not None:
            part = law.instead_of(part)
            never = set()
            described_first = sorted(choosable, key=lambda candidate: candidate.mechanism != mechanism)
            choosable = {candidate: candidate.mechanism == mechanism for candidate in described_first}
        # 2. So does the law of matrix products, where no other boards than its own were measured, nor one like this.
        on = {name for library, _ in setting.versions for name in part.domain.gpus_of(library, setting.values)}
        products = None if seen or on & {*alike.siblings} else products_of(setting, device, alike.vendor | on)
        if products is not None:
            part = products.instead_of(part)
            never = set()
        candidates = tuple(choosable)
        # 3. What answers.
        least_us = np.array([call_cost_us(part.least_us, setting.gpu, candidate.library) for candidate in candidates])
        formula = setting.family.formula(setting.values, device)
        context = Context(setting, device, candidates, formula, least_us=least_us)
        if products is not None:
            engine = ProductEngine(context, products.law(device))
        else:
            engine = TensorCoreEngine(context, law.law) if law else _engine(context, part, alike.siblings)
        lenders = engine.near.lenders if isinstance(engine, BoosterEngine) and engine.near else {}
        if never and device.tf32_tflops and (named.get("dtype"), math) == ("fp32", "default"):
            engine = _with_tf32(engine, part, never, alike.siblings)
        unseen = () if seen else (part.unseen_gpu.note(bool(part.family.parameter_names)),)
        return PreparedSetting(
            setting=setting, candidates=candidates, ranked=tuple(np.flatnonzero(list(choosable.values())).tolist()),
            engine=engine, rules=SupportRules(setting, candidates, part.support), part=part,
            source=MODEL if seen else SPEC, widening=1.0 if seen else part.unseen_gpu.factor(math),
            own_share=part.widths.own_share if seen else part.unseen_gpu.own_share,
            bases=tuple(part.widths.base(setting.gpu, candidate.key) for candidate in candidates),
            references={name: part.domain.reference_key(name, setting.values) for name, _ in setting.versions},
            notes=_notes(setting, lenders, never, general=unseen),
        )  # fmt: skip


def _competing(part: Part, values: tuple[str, ...], alike: Alike) -> list[str]:
    """The libraries that were measured with the operator on the GPU, else on those of its architecture, its vendor's,
    any; all of them where none was."""
    libraries = list(part.domain.libraries)
    for group in ({alike.own}, set(alike.siblings), alike.vendor, alike.everywhere):
        if measured := [name for name in libraries if part.domain.gpus_of(name, values) & group]:
            return measured
    return libraries


def _candidates(part: Part, library: str, values: tuple[str, ...], alike: Alike) -> dict[Candidate, bool]:
    """A library's candidates → whether they can be chosen: those that can, in the registry's order, then the
    registry's that were never measured. Raises `InputError` where none can.
    """
    family = part.family
    named = dict(zip(family.setting_names, values, strict=True))
    key_values = tuple(named[name] for name in family.candidate_key[:-1])
    keys = [key for key in part.candidates if (key.library, key.values) == (library, key_values)]
    registry = {offered.algorithm: offered for offered in family.candidates(library, values)}
    if not registry:
        # Nothing tells what the library runs in the setting but what was measured on this GPU, else on those alike.
        tried = part.support.algorithms(library, values)
        on_group = ({algorithm for name, algorithm in tried if name in group} for group in alike.groups)
        if measured_alike := next(filter(None, on_group), None):
            keys = [key for key in keys if key.algorithm in measured_alike]
    if isinstance(family, DescribedFamily) and any(key.solver for key in keys):
        named_before = {key.solver for key in keys}
        unmeasured = (text for text in family.description.space_texts if text not in named_before)
        keys += [CandidateKey(library, key_values, family.name, text) for text in unmeasured]
    if not keys:
        setting = " ".join(filter(None, (library, *key_values)))
        raise InputError(f"the bundle holds no {setting} algorithm; train one that does")
    order = {name: rank for rank, name in enumerate(registry)}
    keys.sort(key=lambda key: (order.get(key.algorithm, len(order)), key.algorithm, key.solver or ""))
    measured = {key.algorithm for key in keys}
    keys += [CandidateKey(library, key_values, name) for name in registry if name not in measured]
    return {
        Candidate(
            key=key.name, library=library, algorithm=key.algorithm, solver=key.solver or "",
            mechanism=family.mechanism(library, values, key.algorithm),
            deterministic=registry[key.algorithm].deterministic if key.algorithm in registry else True,
        ): key.algorithm in measured
        for key in keys
    }  # fmt: skip


def _engine(context: Context, part: Part, siblings: Sequence[str]) -> Engine:
    """What answers from the part's model: arrays for trees, tables for every other."""
    if part.fitted.name == ConfigurationEngine.MODEL:
        return ConfigurationEngine.of(context, part.model)
    if part.times is None:
        return TableEngine(context, part.model)
    return BoosterEngine.of(context, part.times, siblings)


def _with_tf32(engine: Engine, part: Part, never: set[str], siblings: Sequence[str]) -> Engine:
    """The engine for fp32 where TF32 is allowed, of libraries ``never`` measured so: beside it stands that of fma."""
    setting, device, candidates, _, _ = engine.context
    values = tuple({**setting.named, "math": "fma"}[name] for name in setting.family.setting_names)
    formula = setting.family.formula(values, device)
    plain = engine.context._replace(setting=setting._replace(values=values), formula=formula)
    able = np.array([setting.family.has_tensor_kernels(candidate.mechanism) for candidate in candidates])
    unseen = np.array([candidate.library in never for candidate in candidates])
    return Tf32Engine(engine.context, _engine(plain, part, siblings), engine, able=able, unseen=unseen)


def _notes(
    setting: Setting, lenders: Mapping[str, str], never: set[str], *, general: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Library → what a reader must know of all its answers; ``general`` holds for every library."""
    notes = {}
    for library, _ in setting.versions:
        of_library = list(general)
        lender = lenders.get(library, setting.gpu)
        if lender != setting.gpu:
            of_library.append(LENT.format(gpu=setting.gpu, sibling=lender))
        if library in never:
            of_library.append(NO_EVIDENCE.format(" ".join(filter(None, (library, *setting.values)))))
        notes[library] = tuple(of_library)
    return notes
