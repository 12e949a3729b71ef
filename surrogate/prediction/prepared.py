"""One setting of one bundle made ready to be asked: its candidates, times, intervals, support and domain.

`SettingCache` makes each setting when it is first asked for, and says which libraries and versions a question means.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate.features.errors import InputError, nearest
from surrogate.features.families import Family
from surrogate.features.gpu import Gpu, canonical, gpu, gpus
from surrogate.features.roofline import compute_us, peak_tflops
from surrogate.features.text import version_number
from surrogate.prediction.engine import (
    BoosterEngine,
    Candidate,
    Engine,
    Setting,
    TableEngine,
    TensorCoreEngine,
    Tf32Engine,
    specification_of,
)
from surrogate.prediction.results import MODEL, ROOFLINE, SPEC, Estimate, Excluded

if TYPE_CHECKING:
    from surrogate.bundle.bundle import Bundle, Part
    from surrogate.models.support import Support

ROOFLINE_HALF_WIDTH = log(10.0)
"""Half width in log time of a roofline time: nothing is known but that kernels take up to some ten times as long."""
NEVER_MEASURED = "never measured in the bundle's training data"
LENT = "{gpu} was never measured so: its choices follow those of {sibling}, which has its architecture"
NO_EVIDENCE = "{} was never measured on any GPU: peaks stand in"
OTHER_HALF = {"fp16": "bf16", "bf16": "fp16"}
STANDS_IN = "measurements in {} stand for {}: the GPU runs both at one rate, and their values take the same bytes"
ARRAYS_PAY = 12
"""Problems from which on arrays are faster than one problem after another."""
FIRST_RELEASES = {"cudnn": ((10.0, 9), (8.0, 8)), "cublas": ((10.0, 12), (8.0, 11))}
"""Library → least compute capability, the first major release that runs there. Source: NVIDIA's support matrices."""

Reasons = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Of a problem: estimates, the fastest first; what is refused; library → distance to its training data."""

    estimates: tuple[Estimate, ...]
    excluded: tuple[Excluded, ...]
    distances: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SupportRules:
    """The reasons, per candidate, why a problem is refused; None where it is expected to run.

    Every rule asks for nothing but the family's traits of a problem, so that reasons are kept by them.
    """

    setting: Setting
    candidates: tuple[Candidate, ...]
    support: "Support"
    rules_gpu: str
    _known_reasons: dict[tuple[int, ...], Reasons] = field(default_factory=dict, repr=False, compare=False)

    def of(self, problem: Any) -> Reasons:
        """Reason or None for every candidate, for one problem."""
        traits = self.setting.family.traits(problem)
        if traits not in self._known_reasons:
            names = [(candidate.library, candidate.algorithm) for candidate in self.candidates]
            by_name = {name: self._reason(*name, problem, traits) for name in dict.fromkeys(names)}
            self._known_reasons[traits] = tuple(by_name[name] for name in names)
        return self._known_reasons[traits]

    def allowed(self, sizes: np.ndarray) -> np.ndarray:
        """(problems, candidates) True where the library is expected to run it; ``sizes`` (problems, sizes)."""
        traits = self.setting.family.traits(self.setting.problem(sizes.T)) if len(sizes) else ()
        # Problems of equal traits get one code: columns are joined one by one, so that codes stay small.
        code = np.zeros(len(sizes), dtype=np.int64)
        for column in traits:
            values = np.asarray(column, dtype=np.int64)
            code = code * (int(values.max()) + 1) + values
            if code.max() > 2**30:
                code = np.unique(code, return_inverse=True)[1]
        _, first, code = np.unique(code, return_index=True, return_inverse=True)
        # Libraries also time problems that are none (a filter larger than its input): nothing is known against those.
        unknown = (None,) * len(self.candidates)
        known = [
            self._of_any(sizes[start : start + 1]) or self._of_any(sizes[code == i]) or unknown
            for i, start in enumerate(first)
        ]
        table = np.array([[reason is None for reason in reasons] for reasons in known], dtype=bool)
        return table.reshape(len(first), len(self.candidates))[code]

    def _of_any(self, sizes: np.ndarray) -> Reasons | None:
        """`of` the first of these sizes that make a problem; None where none does."""
        for row in sizes.tolist():
            try:
                return self.of(self.setting.problem(row))
            except InputError:
                continue
        return None

    def _reason(self, library: str, algorithm: str, problem: Any, traits: tuple[Any, ...]) -> str | None:
        """Statuses of this GPU and version decide, then those of any, then the library's documentation."""
        s, version = self.setting, dict(self.setting.versions)[library]
        signature = "|".join((library, *s.values, algorithm, *(str(int(trait)) for trait in traits)))
        share = self.support.exact.get(f"{signature}|{s.gpu}|{version}")
        where = "" if share is None else f" by {library} {version} on {s.gpu}"
        overall = self.support.general.get(signature)
        rule = s.family.refusal(library, s.values, algorithm, problem, self.rules_gpu)
        if rule and not where and not s.family.refusal(library, s.values, algorithm, problem, ""):
            return rule  # this GPU's own, of which statuses of other GPUs say nothing
        share = overall if share is None else share
        if share is not None and share >= 0.5:
            return None
        if where and overall is not None and overall >= 0.5:
            return f"{library} {version} refused problems of this kind on {s.gpu}, where others ran it"
        if share is None:
            return rule
        return rule or f"problems of this kind never ran in the training data (refused{where})"


@dataclass(frozen=True, slots=True, eq=False)
class PreparedSetting:
    """The ``candidates`` of all libraries, of which those at ``ranked`` can be chosen; training never saw the others.

    ``bases`` are their half widths before distance and time count, ``widening`` multiplies all: 1 for a GPU that
    training saw. ``references``: library → the domain's key of the setting; ``notes``: library → what a reader must
    know of all its answers.
    """

    setting: Setting
    candidates: tuple[Candidate, ...]
    ranked: tuple[int, ...]
    engine: Engine
    rules: SupportRules
    part: "Part"
    source: str
    widening: float
    own_share: float
    bases: tuple[float, ...]
    references: Mapping[str, str]
    notes: Mapping[str, tuple[str, ...]]
    _setting_reasons: dict[str, str | None] = field(default_factory=dict, repr=False, compare=False)

    def rank(self, problem: Any, wanted: Sequence[int] | None = None) -> Ranking:
        """The candidates at ``wanted``, by default all that the library accepts, by time (ties: as registered)."""
        reasons = self.rules.of(problem)
        wanted = self._accepted(reasons) if wanted is None else wanted
        times_us, workspaces = self.engine.one(problem, wanted) if wanted else ([], [])
        return self._ranking(problem, reasons, wanted, times_us, workspaces)

    def rank_many(self, problems: Sequence[Any]) -> list[Ranking]:
        """`rank` of several problems: through arrays where there are enough of them."""
        if len(problems) < ARRAYS_PAY:
            return [self.rank(problem) for problem in problems]
        sizes = np.array([self.setting.family.sizes_of(problem) for problem in problems])
        reasons = [self.rules.of(problem) for problem in problems]
        accepted = [self._accepted(row) for row in reasons]
        counts = [len(wanted) for wanted in accepted]
        index = np.array([i for wanted in accepted for i in wanted], dtype=int)
        time_us, workspace = self.engine.many(sizes, np.repeat(np.arange(len(problems)), counts), index)
        times_us, workspaces = iter(time_us.tolist()), iter(workspace.tolist())
        return [self._ranking(*row, times_us, workspaces) for row in zip(problems, reasons, accepted, strict=True)]

    def _accepted(self, reasons: Reasons) -> list[int]:
        return [i for i in self.ranked if reasons[i] is None]

    def _ranking(
        self,
        problem: Any,
        reasons: Reasons,
        wanted: Sequence[int],
        times_us: Iterable[float],
        workspaces: Iterable[float],
    ) -> Ranking:
        """The candidates at ``wanted`` with their intervals; times and workspaces begin with theirs."""
        sizes, distance = self.setting.family.sizes_of(problem), self.part.domain.distance
        distances = {library: distance(key, sizes) for library, key in self.references.items()}
        near, by_time = self.part.widths.distance, self.part.widths.time_us
        factors = {
            library: near.values[bisect_right(near.edges, far)] * self.widening for library, far in distances.items()
        }
        estimates, least_us = [], self._least_us(sizes)
        for i, time_us, workspace in zip(wanted, times_us, workspaces, strict=False):
            half, source = self.bases[i] * factors[self.candidates[i].library], self.source
            half *= by_time.values[bisect_right(by_time.edges, time_us)]
            if not 0.0 < time_us < inf:
                (time_us,) = self._stand_in(
                    np.array([time_us]), np.array([sizes]), np.zeros(1, dtype=int), np.array([i])
                ).tolist()
                half, source = ROOFLINE_HALF_WIDTH, ROOFLINE
            estimates.append(Estimate(self.candidates[i], time_us, half, int(workspace), source, least_us))
        estimates.sort(key=attrgetter("time_us"))
        refused = [i for i, reason in enumerate(reasons) if reason is not None or i not in self.ranked]
        excluded = tuple([Excluded(self.candidates[i].name, reasons[i] or NEVER_MEASURED) for i in refused])
        return Ranking(tuple(estimates), excluded, distances)

    def _least_us(self, sizes: Sequence[Any] | np.ndarray) -> Any:
        """What products of these sizes (each a number, or (problems,)) take at the GPU's peak, where answers go by its
        specification; 0 for everything else.
        """
        problem: Any = self.setting.problem(sizes) if self.source == SPEC else None
        if not getattr(problem, "MULTIPLIES", False):
            return 0.0
        return compute_us(problem.flops, peak_tflops(self.engine.device, problem.dtype, problem.uses_tensor_cores))

    def _stand_in(self, time_us: np.ndarray, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> np.ndarray:
        """The rooflines' times (rows,) where the model does not know the candidates at ``index`` (rows,).

        Raises `InputError` for a ``time_us`` (rows,) that is not NaN.
        """
        if not np.isnan(time_us).all():
            raise InputError(
                f"the bundle's model gives {time_us[~np.isnan(time_us)][0]} µs; it is damaged, train it again with"
                " `seer train`"
            )
        return self.engine.roofline_us(sizes, problem, index)

    def named(self, name: str) -> list[int]:
        """Where candidates of this name stand: the first of each library.

        Raises `InputError`, with the nearest names, where none does.
        """
        names = [candidate.name for candidate in self.candidates]
        if name in names:
            places = [i for i, known in enumerate(names) if known == name]
            return sorted({self.candidates[i].library: i for i in reversed(places)}.values())
        where = " ".join(filter(None, (self.setting.versions[0][0], self.setting.values[0])))
        raise InputError(f"algorithm {name!r} is none of {where}; known: {', '.join(names)}{nearest(name, names)}")

    def reason(self, problem: Any, candidate: Candidate, distances: Mapping[str, float]) -> str | None:
        """What of the question training did not see, or None; ``distances`` as in `Ranking`."""
        sizes, library = self.setting.family.sizes_of(problem), candidate.library
        return self._setting_reason(candidate) or self.part.domain.size_reason(
            self.references[library], sizes, distances[library]
        )

    def _setting_reason(self, candidate: Candidate) -> str | None:
        """What of the setting training did not see with this candidate, or None."""
        if candidate.key not in self._setting_reasons:
            s, library = self.setting, candidate.library
            self._setting_reasons[candidate.key] = self.part.domain.setting_reason(
                s.gpu, library, s.values, candidate.algorithm, dict(s.versions)[library]
            )
        return self._setting_reasons[candidate.key]

    def many(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> dict[str, np.ndarray]:
        """Columns (rows,) of `Predictions`, for candidate ``index[i]`` on problem ``problem[i]`` of ``sizes``."""
        time_us, workspace = self.engine.many(sizes, problem, index)
        distance, inside = np.stack([self._near(sizes, key) for key in self.references.values()], axis=1)
        libraries, widths = list(self.references), self.part.widths
        library = np.array([libraries.index(candidate.library) for candidate in self.candidates])[index]
        half = np.array(self.bases)[index] * widths.distance.at(distance)[library, problem]
        half *= widths.time_us.at(time_us) * self.widening
        unknown = np.flatnonzero(~((time_us > 0) & (time_us < inf)))
        if len(unknown):
            time_us[unknown] = self._stand_in(time_us[unknown], sizes, problem[unknown], index[unknown])
            half[unknown] = ROOFLINE_HALF_WIDTH
        unseen = np.array([self._setting_reason(candidate) is not None for candidate in self.candidates])
        factor, least_us = np.exp(half), self._least_us(sizes.T)
        least_us = np.broadcast_to(least_us, len(sizes))[problem]
        return {
            "predicted_us": time_us,
            "lower_us": np.minimum(time_us, np.maximum(time_us / factor, least_us)),
            "upper_us": time_us * factor,
            "in_domain": (inside[library, problem] > 0) & ~unseen[index],
            "workspace_bytes": workspace,
        }

    def _near(self, sizes: np.ndarray, reference: str) -> tuple[np.ndarray, np.ndarray]:
        """(problems,) distances to a library's training shapes; 1.0 where in range, within reach or itself measured."""
        domain = self.part.domain
        references = domain.references.get(reference)
        if references is None:
            return np.full(len(sizes), inf), np.zeros(len(sizes))
        distance = references.distances(sizes)
        near = distance <= references.reach
        for row in np.flatnonzero(~near).tolist():
            near[row] = domain.size_reason(reference, sizes[row].tolist(), distance[row]) is None
        return distance, (near & references.inside(sizes)).astype(float)


@dataclass(frozen=True, slots=True)
class SettingCache:
    """The prepared settings of one bundle, each made when it is first asked for."""

    bundle: "Bundle"
    _prepared: dict[tuple[Any, ...], PreparedSetting] = field(default_factory=dict, repr=False, compare=False)

    def device(self, name: str) -> Gpu:
        """A device by any name, under its registry name where it has one.

        Raises `InputError` for one that neither the bundle nor the registry knows.
        """
        key = canonical(name)
        return replace(self.bundle.devices.get(name) or self.bundle.devices.get(key) or gpu(name), name=key)

    def prepared(
        self,
        kind: Family,
        gpu_name: str,
        values: tuple[str, ...],
        library: str | None = None,
        library_version: str | None = None,
    ) -> PreparedSetting:
        """A setting on a GPU with every library that has candidates for it, or with ``library`` alone.

        Raises `InputError` for an unknown library, and where none has a candidate.
        """
        key = (kind, gpu_name, values, library, library_version)
        if key in self._prepared:
            return self._prepared[key]
        if library is not None:
            self.check_library(library)
        alike_values = self.measured_values(kind, gpu_name, values, library)
        if alike_values != values:
            known = self.prepared(kind, gpu_name, alike_values, library, library_version)
            dtype = kind.setting_names.index("dtype")
            note = STANDS_IN.format(alike_values[dtype], values[dtype])
            self._prepared[key] = replace(known, notes={name: (*own, note) for name, own in known.notes.items()})
            return self._prepared[key]
        part = self.bundle.part(kind, gpu_name, values)
        alike = self._alike(gpu_name, part)
        # Libraries compete that were measured with the operator on the GPU, else on those of its architecture.
        near, known = (alike[0], frozenset().union(*alike[1:-2]), *alike[-2:]), list(part.domain.libraries)
        ran = ([name for name in known if part.domain.gpus_of(name, values) & group] for group in near)
        candidates, versions, failures = {}, [], []
        for name in next(filter(None, ran), known) if library is None else [library]:
            version = library_version or _newest_version(part, gpu_name, name)
            capability, releases = self.device(gpu_name).compute_capability, FIRST_RELEASES.get(name, ())
            least = next((major for above, major in releases if capability >= above), 0)
            if version_number(version)[0] < least:
                if library_version:
                    raise InputError(f"{name} {version} does not run on {gpu_name}; it needs {least} or newer")
                version = f"{least}+"
            try:
                candidates |= _candidates(kind, part, name, values, alike)
                versions.append((name, version))
            except InputError as error:
                failures.append(error)
        if not candidates:
            raise failures[0]
        setting = Setting(kind, gpu_name, tuple(versions), values)
        self._prepared[key] = self._prepare(setting, candidates, part, alike)
        return self._prepared[key]

    def measured_values(
        self, kind: Family, gpu_name: str, values: tuple[str, ...], library: str | None = None
    ) -> tuple[str, ...]:
        """The setting; with the other half-precision type where that alone was measured on a GPU that runs both alike.

        Of operators only: libraries choose other algorithms for convolutions.
        """
        device = self.device(gpu_name)
        if "operator" not in kind.settings or not 0 < device.bf16_tensor_tflops == device.fp16_tensor_tflops:
            return values

        def measured(setting: tuple[str, ...]) -> bool:
            rows = (text.split("|", 2) for text in self.bundle.part(kind, gpu_name, setting).domain.settings)
            start = "|".join(setting) + "|"
            return any(on == gpu_name and library in (None, by) and of.startswith(start) for on, by, of in rows)

        other = tuple(OTHER_HALF.get(value, value) for value in values)
        return other if other != values and measured(other) and not measured(values) else values

    def check_library(self, wanted: str) -> None:
        """Raises `InputError`, with the nearest names, for a library that no part of the bundle knows."""
        known = sorted({name for part in self.bundle.parts.values() for name in part.domain.libraries})
        if wanted not in known:
            raise InputError(
                f"library {wanted!r} is not in the bundle; known: {', '.join(known)}{nearest(wanted, known)}"
            )

    def _prepare(
        self, setting: Setting, known: Mapping[Candidate, bool], part: "Part", alike: Sequence[frozenset[str]]
    ) -> PreparedSetting:
        """``known``: the setting's candidates → whether they can be chosen; ``alike`` as of `_alike`."""
        kind, device, names = setting.family, self.device(setting.gpu), setting.named
        math = names.get("math", "")
        seen = any(setting.gpu in part.domain.gpus_of(library, setting.values) for library, _ in setting.versions)
        mechanism = "" if seen or math == "fma" else kind.tensor_core_mechanism
        law = specification_of(device, names["dtype"]) if mechanism else None
        tried = {tuple(text.split("|")[1 : len(setting.values) + 2]) for text in part.domain.settings}
        never = {library for library, _ in setting.versions if (library, *setting.values) not in tried}
        candidates, choosable, lenders = tuple(known), tuple(known.values()), {}
        if law is not None:
            part = law.instead_of(part)
            candidates = tuple(sorted(known, key=lambda candidate: candidate.mechanism != mechanism))
            choosable = [candidate.mechanism == mechanism for candidate in candidates]
            formula = kind.formula(setting.values, device)
            engine = TensorCoreEngine(setting, device, candidates, formula, np.zeros(len(candidates)), law.law)
        else:
            siblings = [name for group in alike[1:-2] for name in group]
            engine = _engine(setting, device, candidates, part, siblings)
            lenders = engine.lenders if isinstance(engine, BoosterEngine) else {}
            if never and device.tf32_tflops and (names.get("dtype"), math) == ("fp32", "default"):
                values = tuple({**names, "math": "fma"}[name] for name in kind.setting_names)
                plain = _engine(setting._replace(values=values), device, candidates, part, siblings)
                able = np.array([kind.has_tensor_kernels(candidate.mechanism) for candidate in candidates])
                unseen = np.array([candidate.library in never for candidate in candidates])
                shared = (setting, device, candidates, engine.formula, engine.least_us)
                engine = Tf32Engine(*shared, plain, engine, able, unseen)
        notes = {}
        for library, _ in setting.versions:
            lender, library_notes = lenders.get(library, setting.gpu), [] if seen else [part.unseen_gpu.note]
            if lender != setting.gpu:
                library_notes.append(LENT.format(gpu=setting.gpu, sibling=lender))
            if law is None and library in never:
                library_notes.append(NO_EVIDENCE.format(" ".join(filter(None, (library, *setting.values)))))
            notes[library] = tuple(library_notes)
        rules_gpu = setting.gpu if any(known_gpu.name == setting.gpu for known_gpu in gpus()) else ""
        return PreparedSetting(
            setting,
            candidates,
            tuple(np.flatnonzero(choosable).tolist()),
            engine,
            SupportRules(setting, candidates, part.support, rules_gpu),
            part,
            MODEL if seen else SPEC,
            1.0 if seen else part.unseen_gpu.factor(math),
            part.widths.own_share if seen else part.unseen_gpu.own_share,
            tuple(part.widths.base(setting.gpu, candidate.key) for candidate in candidates),
            {library: part.domain.reference_key(library, setting.values) for library, _ in setting.versions},
            notes,
        )

    def _alike(self, gpu_name: str, part: "Part") -> list[frozenset[str]]:
        """The GPU, each measured one of its architecture (nearest in bandwidth and peak first), its vendor's, all."""
        device = self.device(gpu_name)
        known = {name: self.device(name) for name in part.domain.gpus if name != gpu_name}

        def distance(name: str) -> float:
            pairs = ((known[name].dram_gbs, device.dram_gbs), (known[name].fp32_tflops, device.fp32_tflops))
            return sum(abs(log(known_rate / rate)) for known_rate, rate in pairs)

        siblings = [name for name, other in known.items() if other.architecture == device.architecture]
        vendor = frozenset(name for name, other in known.items() if other.vendor == device.vendor)
        nearest_first = sorted(siblings, key=distance) if len(siblings) > 1 else siblings
        return [*(frozenset({name}) for name in (gpu_name, *nearest_first)), vendor, frozenset(known)]


def _engine(
    setting: Setting, device: Gpu, candidates: tuple[Candidate, ...], part: "Part", siblings: Sequence[str]
) -> Engine:
    """What answers from the part's model: arrays for trees, tables for every other."""
    from surrogate.models.trees import call_cost_us

    least_us = np.array([call_cost_us(part.least_us, setting.gpu, candidate.library) for candidate in candidates])
    if part.times is not None:
        return BoosterEngine.of(setting, device, candidates, part.times, least_us, siblings)
    formula = setting.family.formula(setting.values, device)
    return TableEngine(setting, device, candidates, formula, least_us, part.model)


def _newest_version(part: "Part", gpu_name: str, library: str) -> str:
    """The newest version that was measured on the GPU, else anywhere; "" where none is known."""
    parts = (key.rsplit("|", 2) for key in part.support.exact if key.startswith(f"{library}|"))
    here = {version for _, name, version in parts if name == gpu_name}
    return newest(here or {v.partition("|")[2] for v in part.domain.versions if v.startswith(f"{library}|")})


def _candidates(
    kind: Family, part: "Part", library: str, values: tuple[str, ...], alike: Sequence[frozenset[str]]
) -> dict[Candidate, bool]:
    """A library's candidates → whether they can be chosen: those that can, in the registry's order, then the
    registry's that were never measured. Raises `InputError` where none can.
    """
    named = dict(zip(kind.setting_names, values, strict=True))
    start = "|".join((library, *(named[name] for name in kind.candidate_key[:-1]))) + "|"
    pairs = [
        tuple(key.removeprefix(start).partition("|")[::2]) for key in part.candidates if key.startswith(start)
    ]  # of algorithm and solver
    registry = {known.algorithm: known for known in kind.candidates(library, values)}
    if not registry:
        # Nothing tells what the library runs in the setting but what was measured on this GPU, else on those alike.
        prefix = "|".join((library, *values)) + "|"
        keys = (key.removeprefix(prefix).split("|") for key in part.support.exact if key.startswith(prefix))
        ran = {(key[-2], key[0]) for key in keys}
        measured = ({algorithm for name, algorithm in ran if name in group} for group in alike)
        if known := next(filter(None, measured), None):
            pairs = [pair for pair in pairs if pair[0] in known]
    order = {name: rank for rank, name in enumerate(registry)}
    pairs.sort(key=lambda pair: (order.get(pair[0], len(order)), pair))
    if not pairs:
        setting = " ".join(filter(None, (library, *start.split("|")[1:])))
        raise InputError(f"the bundle holds no {setting} algorithm; train one that does")
    measured = {algorithm for algorithm, _ in pairs}
    others = ((name, "") for name in registry if name not in measured)
    return {
        Candidate(
            start + "|".join(filter(None, (algorithm, solver))),
            library,
            algorithm,
            solver,
            kind.mechanism(library, values, algorithm),
            registry[algorithm].deterministic if algorithm in registry else True,
        ): algorithm in measured
        for algorithm, solver in (*pairs, *others)
    }


def newest(versions: Iterable[str]) -> str:
    """The newest of some versions, "" of none."""
    return max(versions, key=lambda version: (version_number(version), version), default="")
