"""Which settings of a bundle answer a question: its libraries and versions, its candidates, and the GPUs like its own.

`SettingCache` makes each `PreparedSetting` when it is first asked for.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeGuard

import numpy as np

from surrogate.bundle.bundle import Bundle, CandidateKey, Part
from surrogate.features.errors import InputError, require_known
from surrogate.features.errors import nearest as nearest_names
from surrogate.features.families import FAMILY_OF_KIND, AnyProblem, DescribedFamily, DescribedProblem, Family
from surrogate.features.gpu import Gpu, canonical, gpu, registry, unlisted
from surrogate.features.problem import HALF
from surrogate.features.text import newest, version_number
from surrogate.models.alike import nearest, siblings
from surrogate.models.grid import Label
from surrogate.models.launch import call_cost_us
from surrogate.models.plain import joined
from surrogate.prediction.engine import (
    BesideEngine,
    Candidate,
    Context,
    CorrectedEngine,
    Engine,
    Setting,
    TableEngine,
    Tf32Engine,
)
from surrogate.prediction.habit import HabitEngine
from surrogate.prediction.prepared import PreparedSetting, SupportRules
from surrogate.prediction.results import HABIT, MODEL, OTHERS, SPEC
from surrogate.prediction.specification import LawEngine, products_of, specification_of
from surrogate.prediction.tree_engine import BoosterEngine
from surrogate.uncertainty import intervals
from surrogate.uncertainty.domain import SettingKey
from surrogate.uncertainty.intervals import ALL, Widths

LENT = "{gpu} was never measured so: its choices follow those of {sibling}, which has its architecture"
NEAR = 0.8
"""How alike a name is that a GPU's may have been meant for."""
UNCHECKED = "configurations may need more shared memory than the GPU has: no formula of the kernel says shared_bytes"
BY_NEAREST = "{gpu} was never measured so: its candidates stand in the order of {other}, the nearest measured GPU"
BY_HABIT = "{gpu} was never measured so: its candidates stand in the order that is best on average on measured GPUs"
NO_EVIDENCE = "{} was never measured on any GPU: peaks stand in"
OTHER_HALF = {"fp16": "bf16", "bf16": "fp16"}
STANDS_IN = "measurements in {} stand for {}: the GPU runs both at one rate, and their values take the same bytes"
FIRST_RELEASES = {"cudnn": ((10.0, 9), (8.0, 8)), "cublas": ((10.0, 12), (8.0, 11))}
"""Library → least compute capability, the first major release that runs there. Source: NVIDIA's support matrices."""


class Question(NamedTuple):
    """A setting as it is asked about; None: every library, and each one's newest version.

    ``named`` is a candidate that is asked about by its name, beside those that can be chosen: other GPUs alone ran it.
    """

    family: Family
    gpu: str
    values: tuple[str, ...]
    library: str | None = None
    library_version: str | None = None
    named: str | None = None


class Alike(NamedTuple):
    """The GPU asked about, and the measured ones like it: of its architecture (``siblings``, the nearest first;
    ``lenders``, those that lend their times), of its vendor, and all.

    ``is_calibrated``: a calibration alone measured the GPU itself.
    """

    own: str
    siblings: tuple[str, ...]
    lenders: tuple[str, ...]
    vendor: frozenset[str]
    everywhere: frozenset[str]
    is_calibrated: bool

    def evidence(self, of: Callable[[frozenset[str]], Iterable[str]], *, each_sibling: bool = True) -> set[str]:
        """What was measured on the GPU, else on its siblings (one by one, or together), its vendor's, all: ``of`` the
        first of these with anything. A calibration's sample adds to what others have."""
        alike = [frozenset({name}) for name in self.siblings] if each_sibling else [frozenset(self.siblings)]
        own = set(of(frozenset({self.own})))
        if own and not self.is_calibrated:
            return own
        return own | next(filter(None, (set(of(group)) for group in (*alike, self.vendor, self.everywhere))), set())


def unlisted_note(gpu: str, measured: Iterable[str]) -> str:
    """What is said of a GPU that neither the table of GPUs nor the ``measured`` ones have."""
    hint = nearest_names(gpu, [*measured, *registry().labels], cutoff=NEAR)
    return f"nobody knows a GPU {gpu}: nothing but other GPUs' times stands for it{hint}"


def is_problem(value: object) -> TypeGuard[AnyProblem]:
    """Whether it is one problem of a family."""
    kind = getattr(value, "kind", None)  # a table may have a column of that name
    return isinstance(value, DescribedProblem) or (isinstance(kind, str) and kind in FAMILY_OF_KIND)


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
                measured = {other for part in self.bundle.parts.values() for other in part.domain.gpus}
                others = [self.device(other) for other in measured if name not in measured]
                return unlisted(name, [other for other in others if other.vendor])
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
        family, gpu_name, values, library, _, named = question
        if library is not None:
            self.check_library(library)
        if (measured := self.measured(question)) != question:
            dtype = family.setting_names.index("dtype")
            note = STANDS_IN.format(measured.values[dtype], values[dtype])
            stand_in = self.prepared(measured)
            return replace(stand_in, notes={name: (*notes, note) for name, notes in stand_in.notes.items()})
        part = self.bundle.part(family, gpu_name, values)
        alike = self._alike(gpu_name, values, part)
        choosable: dict[Candidate, bool] = {}
        versions: list[tuple[str, str]] = []
        failures: list[InputError] = []
        for name in _competing(part, values, alike, named) if library is None else [library]:
            version = self._version(question, part, name)
            try:
                choosable |= _candidates(part, name, values, alike, named)
                versions.append((name, version))
            except InputError as error:
                failures.append(error)
        if not choosable:
            raise failures[0]
        return self._prepare(Setting(family, gpu_name, tuple(versions), values), choosable, part, alike)

    def naming(self, question: Question, name: str) -> PreparedSetting:
        """`prepared`; with a candidate of that ``name`` where other GPUs alone ran it."""
        prepared = self.prepared(question)
        others = self.bundle.part(question.family, question.gpu, question.values).candidates
        if prepared.has(name) or name not in {key.solver or key.algorithm for key in others}:
            return prepared
        return self.prepared(question._replace(named=name))

    def measured(self, question: Question) -> Question:
        """The question; with the other half-precision type where that alone was measured on a GPU that runs both alike.

        Of families alone whose kernels are the same in both.
        """
        family, gpu_name, values, library, *_ = question
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

    def _alike(self, gpu_name: str, values: tuple[str, ...], part: Part) -> Alike:
        """The measured GPUs like one."""
        device = self.device(gpu_name)
        others = {name: self.device(name) for name in part.domain.gpus if name != gpu_name}
        vendor = frozenset(name for name, other in others.items() if other.vendor == device.vendor)
        nearest_first, lenders = siblings(part.family, values, device, others)
        is_calibrated = part.is_calibrated(gpu_name)
        return Alike(gpu_name, nearest_first, lenders, vendor, frozenset(others), is_calibrated)

    def _prepare(self, setting: Setting, choosable: dict[Candidate, bool], part: Part, alike: Alike) -> PreparedSetting:
        """``choosable``: the setting's candidates → whether they can be chosen."""
        device = self.device(setting.gpu)
        named = setting.named
        math = named.get("math", "")
        seen = any(setting.gpu in part.domain.gpus_of(library, setting.values) for library, _ in setting.versions)
        trained = seen and not alike.is_calibrated
        measured = {(key.library, key.values) for key in part.domain.settings}
        never = {library for library, _ in setting.versions if (library, setting.values) not in measured}
        # 1. The law of tensor cores stands in for the trees where the family has kernels that it describes. In half
        #    precision those come first, and no others can be chosen; beside TF32's stand those of multiply-adds.
        mechanism = "" if trained else setting.family.tensor_core_mechanism
        law = specification_of(device, named["dtype"], math) if mechanism else None
        is_beside = law is not None and named["dtype"] not in HALF
        if law is not None and not is_beside:
            part = part if seen else law.instead_of(part)
            never = set()
            described_first = sorted(choosable, key=lambda candidate: candidate.mechanism != mechanism)
            choosable = {candidate: candidate.mechanism == mechanism for candidate in described_first}
        # 2. So does the law of matrix products, where no other boards than its own were measured, nor one like this.
        on = {name for library, _ in setting.versions for name in part.domain.gpus_of(library, setting.values)}
        on -= {setting.gpu}
        products = None if trained or on & {*alike.siblings} else products_of(setting, device, alike.vendor | on)
        if products is not None:
            part = part if seen else products.instead_of(part)
            never = set()
        candidates = tuple(choosable)
        # 3. What answers: the GPU's own measurements, those of siblings, a law, or the model alone, in its order or a
        #    habit's.
        least_us = np.array([call_cost_us(part.least_us, setting.gpu, candidate.library) for candidate in candidates])
        formula = setting.family.formula(setting.values, device)
        context = Context(setting, device, candidates, formula, least_us=least_us)
        if products is not None:
            law_of_tiles = products.law(device)
            engine = LawEngine(context, lambda problems: law_of_tiles.product_us(problems, device))
        elif law is not None and not is_beside:
            engine = LawEngine.of_convolutions(context, law.law)
        else:
            engine = _engine(context, part, alike.lenders)
        lenders = engine.lenders if isinstance(engine, BoosterEngine) else ()
        if never and device.tf32_tflops and (named.get("dtype"), math) == ("fp32", "default"):
            engine = _with_tf32(engine, part, never, alike.lenders)
        described = np.array([bool(law) and candidate.mechanism == mechanism for candidate in candidates])
        if law is not None and is_beside:
            engine = BesideEngine(context, engine, LawEngine.of_convolutions(context, law.law), described=described)
        rules = SupportRules(setting, candidates, part.support)
        widths, unseen, dtype = part.widths, (), named.get("dtype", "")
        kinds = part.unseen_gpu.by_kind
        fitting = {part.unseen_gpu.kind(device.line, dtype), *({intervals.NEVER} & {*kinds} if never else ())}
        kind = max(sorted(fitting), key=lambda name: kinds[name].half_width)
        if not seen:
            widths = Widths({ALL: kinds[kind].half_width}, own_share=part.unseen_gpu.own_share)
            unseen = (part.unseen_gpu.note(kind, described=bool(part.family.parameter_names)),)
            if not device.vendor:
                unseen = (unlisted_note(device.name, part.domain.gpus), *unseen)
            elif isinstance(part.family, DescribedFamily) and "shared_bytes" not in part.family.description.formulas:
                unseen = (*unseen, UNCHECKED)
        bases = [widths.base(setting.gpu, candidate.key, dtype) for candidate in candidates]
        if law is not None and is_beside and not seen:
            half_width = law.by_kind[""].half_width
            bases = [half_width if own else base for own, base in zip(described, bases, strict=True)]
        # Of a candidate that was never measured here no more is known than on another GPU, and no less.
        keys = [SettingKey(setting.gpu, each.library, setting.values, each.algorithm) for each in candidates]
        is_whole = [trained and key not in part.domain.settings for key in keys]
        left_out = kinds[kind].half_width
        bases = [max(base, left_out) if whole else base for base, whole in zip(bases, is_whole, strict=True)]
        source = MODEL if seen else OTHERS if part.family.parameter_names else SPEC
        if not (trained or law or products or any(lenders)):
            engine, note = self._by_habit(engine, part, rules, np.array([*choosable.values()]))
            unseen += note if not seen else ()
            source = HABIT if note and not seen else source
        # 4. What a calibration found is on top of all that.
        if setting.gpu in part.corrections:
            engine = CorrectedEngine(context, engine, part.corrections[setting.gpu])
        return PreparedSetting(
            setting=setting,
            candidates=candidates,
            ranked=tuple(np.flatnonzero(list(choosable.values())).tolist()),
            engine=engine,
            rules=rules,
            part=part,
            source=source,
            widths=widths,
            bases=tuple(bases),
            is_whole=tuple(is_whole),
            references={name: part.domain.reference_key(name, setting.values) for name, _ in setting.versions},
            notes=_notes(context, lenders, never, general=unseen),
            floors=_floors(part, setting, candidates),
        )

    def _by_habit(
        self, engine: Engine, part: Part, rules: SupportRules, choosable: np.ndarray
    ) -> tuple[Engine, tuple[str, ...]]:
        """The engine in the order of other GPUs, and a note that says so, where that was better on GPUs left out."""
        family, gpu, _, values = rules.setting
        unseen = part.unseen_gpu
        if unseen.chooser == intervals.HABIT:
            keys = (joined(Label(values, candidate.key)) for candidate in rules.candidates)
            costs = np.array([unseen.habit.get(key, np.nan) for key in keys])
            return HabitEngine(engine.context, engine, costs, None, rules, choosable), (BY_HABIT.format(gpu=gpu),)
        gpus = {key.gpu for key in part.domain.settings if key.values == values and not part.is_calibrated(key.gpu)}
        others = {name: self.device(name) for name in sorted(gpus - {gpu})}
        near = nearest(family, values, self.device(gpu), others) if unseen.chooser == intervals.NEAREST else None
        if near is None:
            return engine, ()
        keys = (SettingKey(near, each.library, values, each.algorithm) for each in rules.candidates)
        costs = np.where([key in part.domain.settings for key in keys], 0.0, np.nan)
        formula = family.formula(values, others[near])
        setting = rules.setting._replace(gpu=near)
        there = _engine(engine.context._replace(setting=setting, device=others[near], formula=formula), part, ())
        note = BY_NEAREST.format(gpu=gpu, other=near)
        return HabitEngine(engine.context, engine, costs, there, rules, choosable), (note,)


def _competing(part: Part, values: tuple[str, ...], alike: Alike, named: str | None) -> list[str]:
    """The libraries that were measured with the operator on the GPU, else on those of its architecture, its vendor's,
    any; all of them where none was. The libraries of a ``named`` candidate join them."""
    libraries = list(part.domain.libraries)

    def of(group: frozenset[str]) -> set[str]:
        return {name for name in libraries if part.domain.gpus_of(name, values) & group}

    measured = alike.evidence(of, each_sibling=False) or set(libraries)
    if named is not None:
        measured |= {key.library for key in part.candidates if (key.solver or key.algorithm) == named}
    return [name for name in libraries if name in measured]


def _candidates(
    part: Part, library: str, values: tuple[str, ...], alike: Alike, wanted: str | None
) -> dict[Candidate, bool]:
    """A library's candidates → whether they can be chosen: those that can, in the registry's order, then the
    registry's that were never measured, and the one that is ``wanted`` by its name. Raises `InputError` where there is
    none.
    """
    family = part.family
    named = dict(zip(family.setting_names, values, strict=True))
    key_values = tuple(named[name] for name in family.candidate_key[:-1])
    keys = [key for key in part.candidates if (key.library, key.values) == (library, key_values)]
    registry = {offered.algorithm: offered for offered in family.candidates(library, values)}
    by_name: set[str] = set()
    if not registry:
        # Nothing tells what the library runs in the setting but what was measured on this GPU, else on those alike.
        tried = part.support.algorithms(library, values)
        if measured_alike := alike.evidence(lambda group: {algorithm for name, algorithm in tried if name in group}):
            named_keys = {key.algorithm for key in keys if (key.solver or key.algorithm) == wanted}
            by_name = (named_keys & {algorithm for _, algorithm in tried}) - measured_alike
            keys = [key for key in keys if key.algorithm in measured_alike | by_name]
    if isinstance(family, DescribedFamily) and any(key.solver for key in keys):
        named_before = {key.solver for key in keys}
        unmeasured = (text for text in family.description.space_texts if text not in named_before)
        keys += [CandidateKey(library, key_values, family.name, text) for text in unmeasured]
    if not keys:
        setting = " ".join(filter(None, (library, *key_values)))
        raise InputError(f"the bundle holds no {setting} algorithm; train one that does")
    order = {name: rank for rank, name in enumerate(registry)}
    keys.sort(key=lambda key: (order.get(key.algorithm, len(order)), key.algorithm, key.solver or ""))
    measured = {key.algorithm for key in keys} - by_name
    keys += [CandidateKey(library, key_values, name) for name in registry if name not in measured]
    return {
        Candidate(
            key=key.name,
            library=library,
            algorithm=key.algorithm,
            solver=key.solver or "",
            mechanism=family.mechanism(library, values, key.algorithm),
            deterministic=registry[key.algorithm].deterministic if key.algorithm in registry else True,
        ): key.algorithm in measured
        for key in keys
    }


def _floors(part: Part, setting: Setting, candidates: Sequence[Candidate]) -> dict[int, float]:
    """Position of a candidate → up to which time in µs it was never timed, since its harness adds as much."""
    limits = {
        (floor.library, floor.algorithm): floor.limit_us
        for floor in part.floors
        if floor.gpu == setting.gpu and floor.settings.items() <= setting.named.items()
    }
    keys = [(candidate.library, candidate.algorithm) for candidate in candidates]
    return {i: limits[key] for i, key in enumerate(keys) if key in limits}


def _engine(context: Context, part: Part, lenders: Sequence[str]) -> Engine:
    """What answers from the part's model: arrays for trees, tables for every other."""
    if part.family.parameter_names:  # a described kernel; pandas and scikit-learn come with it
        from surrogate.prediction.configuration_engine import ConfigurationEngine

        if part.fitted.name == ConfigurationEngine.MODEL:
            return ConfigurationEngine.of(context, part.model)
    if part.times is None:
        return TableEngine(context, getattr(part.model, "base", part.model))
    return BoosterEngine.of(context, part.times, lenders)


def _with_tf32(engine: Engine, part: Part, never: set[str], lenders: Sequence[str]) -> Engine:
    """The engine for fp32 where TF32 is allowed, of libraries ``never`` measured so: beside it stands that of fma."""
    setting, device, candidates, _, _ = engine.context
    values = tuple({**setting.named, "math": "fma"}[name] for name in setting.family.setting_names)
    formula = setting.family.formula(values, device)
    plain = engine.context._replace(setting=setting._replace(values=values), formula=formula)
    able = np.array([setting.family.has_tensor_kernels(candidate.mechanism) for candidate in candidates])
    unseen = np.array([candidate.library in never for candidate in candidates])
    return Tf32Engine(engine.context, _engine(plain, part, lenders), engine, able=able, unseen=unseen)


def _notes(
    context: Context, lenders: Sequence[str], never: set[str], *, general: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Library → what a reader must know of all its answers; ``general`` holds for every library."""
    setting = context.setting
    lent = zip(lenders, context.candidates, strict=False)
    lender_of = {each.library: lender for lender, each in lent if lender not in ("", setting.gpu)}
    notes = {}
    for library, _ in setting.versions:
        of_library = list(general)
        if lender := lender_of.get(library):
            of_library.append(LENT.format(gpu=setting.gpu, sibling=lender))
        if library in never:
            of_library.append(NO_EVIDENCE.format(" ".join(filter(None, (library, *setting.values)))))
        notes[library] = tuple(of_library)
    return notes
