"""A network's time: every distinct problem predicted once, the best feasible candidate taken, layers summed."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack, cast

from surrogate.features.errors import InputError
from surrogate.features.families import DEFAULT_FAMILY, NetworkProblem, Operator, family_of
from surrogate.features.gpu import Gpu
from surrogate.features.gpu import gpu as gpu_named
from surrogate.features.problem import HALF
from surrogate.features.roofline import compute_us, missing_units, peak_tflops, roofline_us
from surrogate.network.memory import memory, usable_bytes
from surrogate.network.network import FRAMEWORKS, INTERVAL_FACTOR_3D, PART_3D, Layer, Network
from surrogate.network.operators import all_reduce, tf32_part, with_default_math
from surrogate.network.result import BOUNDS, LayerTime, NetworkTime
from surrogate.network.training import exchange
from surrogate.prediction.results import FLOOR, ROOFLINE, UNMEASURED, Estimate, KernelTime, Selection

if TYPE_CHECKING:
    from surrogate.models.seer.paper import SeerPaper
    from surrogate.prediction.predictor import Predictor

MAX_BATCH = 2**24
"""Where the search for the largest batch ends."""
SUSTAINED = 0.94
"""Share of a tensor peak that long products reach where nothing else limits them. Source: fp8 products on H20, whose
units are held down, in zksainx/pipeweave's table (median 0.93 of those over 4096 × 4096 × 2048, best 0.95)."""
OUT_OF_LIMITS = "no algorithm within the limits"
SAVES = ("WINOGRAD", "FFT")
"""Of whose algorithms the arithmetic is less than a convolution's."""
GEFORCE_PIPE = 520.0
"""Most half-precision operations a clock on an SM of GeForce boards, whose units are held down, and no others'."""
GEFORCE_SUSTAINED = 1.05
"""The same share of theirs, which run above the specified clock. Source: timm's transformers on RTX 3090 and 4090, half
of their families."""


class AlgorithmLimits(TypedDict, total=False):
    """What a caller allows: bytes of workspace, and whether two runs must give the same bits."""

    workspace_limit: int | None
    deterministic: bool


class ProblemTime(NamedTuple):
    """What a problem takes on the GPU, in µs with its 90 % interval and that one's half width in log time.

    ``estimate`` is that of the chosen algorithm, None where there is nothing to choose.
    """

    time_us: float
    lower_us: float
    upper_us: float
    half_width: float
    source: str
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Predictors:
    """What predicts on ``gpu``: ``algorithms`` ranks those of problems that have several (None: of such problems
    nothing is known), ``kernels`` times everything else.

    `selections` and `answers` are the only places that ask them. ``paper``: a fitted seer-paper, whose trees tell the
    classes of the problems that it knows; None: they go by the roofline.
    """

    gpu: Gpu
    algorithms: "Predictor | None"
    kernels: "Predictor"
    paper: "SeerPaper | None" = None
    utilization: float = 1.0
    """Share of the GPU's memory that a network may take."""

    def selections(
        self, problems: Iterable[NetworkProblem], **allowed: Unpack[AlgorithmLimits]
    ) -> dict[NetworkProblem, Selection]:
        """Problem → its algorithms, ranked and within the limits, of those problems that have several."""
        several = [problem for problem in problems if problem.HAS_ALGORITHMS]
        if self.algorithms is None or not several:
            return {}
        return dict(zip(several, self.algorithms.select_many(several, **allowed), strict=True))

    def answers(
        self, problems: Iterable[NetworkProblem], selections: Mapping[NetworkProblem, Selection]
    ) -> dict[NetworkProblem, ProblemTime]:
        """Problem → the best of its selection, or its own kernel's time; what nothing can run is left out."""
        alone = [problem for problem in problems if isinstance(problem, Operator) and not problem.HAS_ALGORITHMS]
        kernels = self.kernels.kernel_times(alone) if alone else []
        return {
            **{problem: _chosen(choice.estimates[0]) for problem, choice in selections.items() if choice.estimates},
            **{problem: self._of_kernel(problem, kernel) for problem, kernel in zip(alone, kernels, strict=True)},
        }

    def _of_kernel(self, problem: Operator, kernel: KernelTime) -> ProblemTime:
        """The kernel's time; by a specification no shorter than `SUSTAINED` of the peak and the board's power allow."""
        longer = 1.0
        if kernel.source in UNMEASURED and problem.uses_tensor_cores:
            peak = peak_tflops(self.gpu, problem.dtype, True) * sustained_share(self.gpu)
            longer = max(compute_us(problem.flops, peak) / kernel.time_us, 1.0)
        time_us, lower_us, upper_us = (longer * us for us in (kernel.time_us, kernel.lower_us, kernel.upper_us))
        return ProblemTime(time_us, lower_us, upper_us, half_width=log(upper_us / time_us), source=kernel.source)

    def time(self, network: Network, **allowed: Unpack[AlgorithmLimits]) -> NetworkTime:
        """Predicted times of the network's layers.

        A problem that no algorithm can run within the limits is counted as unsupported, by the reason, and so is a
        product of a type whose units the GPU lacks. Raises `InputError` where it lacks those of all products.
        """
        problems = dict.fromkeys(layer.problem for layer in network.layers)
        runs = {
            work: work if network.keeps_math else with_default_math(work, self.gpu, network.tf32) for work in problems
        }
        distinct = dict.fromkeys(runs.values())
        selections = self.selections(distinct, **allowed)
        answers = self.answers(distinct, selections)
        lacks = self._missing_units(network, runs, answers)
        classes = self._classes(selections)
        # Everything about a distinct problem is worked out once; its layers differ in their names alone.
        of_problem = {
            problem: self._problem_time(problem, run, answers[run], classes.get(run), network.gap_us)
            for problem, run in runs.items()
            if run in answers and run not in lacks
        }
        min_us = {work: min_kernel_us(runs[work], self.gpu, time.algorithm) for work, time in of_problem.items()}
        arithmetic = {(tf32_part(run, self.gpu), "TF32" if run.uses_tensor_cores else "fp32") for run in distinct}
        fp32 = ", ".join(" ".join(pair) for pair in sorted(arithmetic, reverse=True) if pair[0])
        by_layer = [(layer, of_problem.get(layer.problem)) for layer in network.layers]
        times = tuple(
            _layer_time(layer, time, min_us[layer.problem] + network.gap_us) for layer, time in by_layer if time
        )
        kernels_us = [layer.time_factor * time.time_us if time else 0.0 for layer, time in by_layer]
        unsupported = Counter(network.unsupported)
        unsupported.update(
            f"{layer.operator} ({lacks.get(runs[layer.problem], OUT_OF_LIMITS)})"
            for layer, time in by_layer
            if not time
        )
        choices = {problem: selections[run] for problem, run in runs.items() if run in selections}
        reasons = (choices[layer.problem].reason for layer in network.layers if layer.problem in choices)
        return NetworkTime(
            network=network.name,
            gpu=self.gpu.name,
            layers=times,
            batch=network.batch,
            training=network.training,
            ignored=network.ignored,
            unsupported=dict(unsupported),
            heuristic=_heuristic(network, choices),
            outside=Counter(reason for reason in reasons if reason),
            parameters=network.parameters,
            multiply_adds=sum(layer.problem.multiply_adds for layer in network.layers),
            memory=memory(network, max((layer.workspace_bytes for layer in times), default=0), self.gpu),
            gpu_memory_bytes=round(self.utilization * usable_bytes(self.gpu)),
            notes=(*network.notes, *self._notes(selections, answers), *self._link(network.gpus)),
            told=(*network.told, fp32) if fp32 else network.told,
            host_time=network.host,
            exchange=exchange(network, kernels_us, self._messages_us) if network.gpus > 1 else None,
        )

    def _notes(
        self, selections: Iterable[NetworkProblem], answers: Mapping[NetworkProblem, ProblemTime]
    ) -> Iterator[str]:
        """Floors; and which convolutions were measured on this GPU, if some of the network's were on others alone."""
        if floors := [work for work, answer in answers.items() if answer.source == FLOOR]:
            yield f"{floor_note(floors)}; these times are too long, and `seer serving` takes other frameworks'"
        part = self.algorithms.bundle.parts.get(DEFAULT_FAMILY) if self.algorithms else None
        measured = {key.values for key in part.domain.settings if key.gpu == self.gpu.name} if part else set()
        others = {_setting(run) for run in selections if run in answers and answers[run].source in UNMEASURED}
        if measured and others:
            own, other = (", ".join(sorted(map(" ".join, settings))) for settings in (measured, others))
            yield (
                f"convolutions measured on {self.gpu.name}: {own}; not {other}: their times go by other GPUs', and"
                " the wide interval is theirs"
            )

    def _link(self, gpus: int) -> Iterator[str]:
        """What the GPUs that train together exchange their gradients over."""
        gbs = self.gpu.link_gbs or self.gpu.pcie_gbs
        if gpus > 1:
            source = self.kernels.kernel_times([with_default_math(all_reduce(2**22, gpus, "fp32"), self.gpu)])[0].source
            told = "its data sheet" if source in UNMEASURED else "all-reduces that were measured"
            name = "links" if self.gpu.link_gbs else "PCIe, without links between GPUs"
            yield f"gradients cross {name}, {gbs:g} GB/s in each direction; their times go by {told}"

    def _messages_us(self, works: Sequence[NetworkProblem]) -> list[tuple[float, float, float]]:
        """Of each problem its time and the ends of its interval, in µs."""
        runs = [with_default_math(work, self.gpu) for work in works]
        answers = self.answers(dict.fromkeys(runs), {})
        return [(answers[run].time_us, answers[run].lower_us, answers[run].upper_us) for run in runs]

    def _missing_units(
        self,
        network: Network,
        runs: Mapping[NetworkProblem, NetworkProblem],
        answers: Mapping[NetworkProblem, ProblemTime],
    ) -> dict[NetworkProblem, str]:
        """Product that nobody measured → which units of its type the GPU lacks.

        Raises `InputError` where most of the network's multiply-adds are theirs.
        """
        sizes: Counter[NetworkProblem] = Counter()
        for layer in network.layers:
            run = runs[layer.problem]
            if isinstance(run, Operator) and run.MULTIPLIES and run in answers:
                sizes[run] += run.multiply_adds
        unknown = [problem for problem in sizes if answers[problem].source == ROOFLINE]
        reasons = {problem: missing_units(self.gpu, problem.dtype, problem.math) for problem in unknown}
        lacks: dict[NetworkProblem, str] = {problem: reason for problem, reason in reasons.items() if reason}
        if 2 * sum(sizes[problem] for problem in lacks) > sizes.total():
            first = next(iter(lacks))
            instead = "fp16 (--amp fp16, --dtype fp16)" if first.dtype == "bf16" else "another --dtype"
            raise InputError(
                f"{network.name}: {lacks[first]} for products in {first.dtype}; give {instead}, or another --gpu"
            )
        return lacks

    def _problem_time(
        self, problem: NetworkProblem, run: NetworkProblem, answer: ProblemTime, known: str | None, gap_us: float
    ) -> LayerTime:
        """The time of a layer without its name: ``run`` is the problem as PyTorch runs it, ``known`` its class.

        A kernel's class is that of the arithmetic which the source states.
        """
        estimate = answer.estimate
        algorithm = estimate.candidate if estimate else None
        bound = run.seer_class(self.gpu, algorithm.mechanism) if algorithm else problem.seer_class(self.gpu)
        return LayerTime(
            name="",
            operator="",
            problem=str(problem),
            algorithm=algorithm.name if algorithm else None,
            time_us=answer.time_us + gap_us,
            lower_us=answer.lower_us + gap_us,
            upper_us=answer.upper_us + gap_us,
            workspace_bytes=int(estimate.workspace_bytes) if estimate else 0,
            flops=problem.flops,
            bytes=problem.dram_bytes,
            bound=bound if known is None else known,
            source=answer.source,
        )

    def _classes(self, selections: Mapping[NetworkProblem, Selection]) -> dict[NetworkProblem, str]:
        """Problem → the class of its pick by the paper's trees, "" where they tell none; empty without them."""
        picks = {problem: choice for problem, choice in selections.items() if choice.estimates}
        if self.paper is None or not picks:
            return {}
        import pandas as pd

        records = [
            {
                **asdict(problem),
                "gpu": choice.gpu,
                "library": choice.library,
                "library_version": choice.library_version,
                "algorithm": choice.estimates[0].candidate.name,
            }
            for problem, choice in picks.items()
        ]
        classes = self.paper.bound(pd.DataFrame(records))
        return {problem: BOUNDS[bound] if bound >= 0 else "" for problem, bound in zip(picks, classes, strict=True)}


def _layer_time(layer: Layer, time: LayerTime, min_us: float) -> LayerTime:
    """A layer's time from that of its problem; no lower end is before ``min_us``, unless the time itself is."""
    within = INTERVAL_FACTOR_3D if layer.operator.endswith(f".{PART_3D}") else 1.0
    time = time.longer(layer.time_factor, within)
    lower_us = max(time.lower_us, min_us) if min_us < time.time_us else time.lower_us
    return replace(time, name=layer.name, operator=layer.operator, lower_us=lower_us)


def _setting(work: NetworkProblem) -> tuple[str, ...]:
    """Direction, types and layout of a convolution, as `surrogate.uncertainty.domain.SettingKey` has them."""
    return tuple(getattr(work, name) for name in family_of(work).setting_names)


def _chosen(best: Estimate) -> ProblemTime:
    """The time of the best algorithm."""
    return ProblemTime(
        best.time_us, best.lower_us, best.upper_us, half_width=best.half_width, source=best.source, estimate=best
    )


def min_kernel_us(work: NetworkProblem, gpu: Gpu, algorithm: str | None = None) -> float:
    """What the GPU's peaks allow, in µs: all operations, save by an ``algorithm`` with fewer, and weights beyond L2.

    Other bytes set no bound: what a kernel wrote may lie in L2 for the next one, and a compiler leaves kernels out
    (passes of timm's networks were measured that are shorter than such bounds).
    """
    saves = algorithm is not None and any(word in algorithm.upper() for word in SAVES)
    peak = peak_tflops(gpu, work.dtype, work.uses_tensor_cores) * max(sustained_share(gpu), 1.0)
    weight_bytes = work.weight_bytes if isinstance(work, Operator) else 0
    return float(roofline_us(0 if saves else work.flops, max(weight_bytes - gpu.l2_bytes, 0), peak, gpu.dram_gbs))


def sustained_share(gpu: Gpu) -> float:
    """What long products reach of a tensor peak: no more than `SUSTAINED`, nor than the board's power allows."""
    at_peak = gpu.tensor_pj_per_flop * gpu.bf16_tensor_tflops  # watts
    if at_peak:
        return min(SUSTAINED, gpu.board_watts / at_peak)
    pipe = gpu.bf16_tensor_tflops * 1e6 / (gpu.sms * gpu.boost_mhz)
    return GEFORCE_SUSTAINED if gpu.vendor == "nvidia" and 0 < pipe <= GEFORCE_PIPE else SUSTAINED


def sustained_us(work: NetworkProblem, gpu: Gpu) -> float:
    """The roofline time of a problem at the rates that long kernels reach on the GPU, in µs.

    The board's power counts in 16 bits, of which the energy of a FLOP is known: H100 SXM's kernels in TF32 reach 93 %
    of that peak (VGG13's training), where its 700 W would allow 74 %.
    """
    if isinstance(work, Operator) and (work.dtype == "fp32" or not work.uses_tensor_cores):  # AMD's units for fp32, too
        return float(work.roofline_us(gpu))
    peak = peak_tflops(gpu, work.dtype, work.uses_tensor_cores)
    limited = gpu if work.dtype in HALF else replace(gpu, tensor_pj_per_flop=0.0)
    peak = peak * sustained_share(limited) if work.uses_tensor_cores else gpu.sustained_tflops(peak)
    return float(roofline_us(work.flops, int(work.dram_bytes), peak, gpu.dram_share * gpu.dram_gbs))


def load_predictors(gpu: str, bundle: str | Path | None = None, library: str | None = None) -> Predictors:
    """Predictors for a GPU by name; algorithms by the ``bundle`` in a folder, or by the one shipped for the GPU.

    ``library`` narrows everything else to the kernels of one framework. Raises `InputError` for an unknown
    GPU or library, a framework that does not run on the GPU, or a damaged bundle.
    """
    from surrogate.prediction.shipped import load, load_operators

    device = gpu_named(gpu)
    if library in FRAMEWORKS and library not in frameworks_on(device):
        raise InputError(
            f"{library} does not run on {device.name}; give --library {' or '.join(frameworks_on(device))}"
        )
    algorithms = load(gpu) if bundle is None else load(Path(bundle), gpu=gpu)
    part = algorithms.bundle.parts.get(DEFAULT_FAMILY)  # the paper's; of some GPUs it was never measured
    paper = cast("SeerPaper", part.model) if part and part.fitted.name == "seer-paper" else None
    return Predictors(device, algorithms, load_operators(device.name, library), paper)


def floor_note(works: Iterable[NetworkProblem]) -> str:
    """Of what kernels a framework's table has only the floor of the harness that timed them."""
    kernels = ", ".join(dict.fromkeys(f"{work.kind} {work.dtype}" for work in works))
    return f"what was measured of the framework's {kernels} kernels is mostly its benchmark's launch overhead"


def frameworks_on(device: Gpu) -> list[str]:
    """Those of `FRAMEWORKS` that run on the GPU."""
    return [name for name, makers in FRAMEWORKS.items() if device.vendor in makers]


def fastest_framework(network: Network, gpu: str) -> str:
    """The framework whose kernels are expected to run the network fastest, of those most of them known."""
    times = {name: load_predictors(gpu, library=name).time(network) for name in frameworks_on(gpu_named(gpu))}
    unknown = {name: sum(layer.source == ROOFLINE for layer in time.layers) for name, time in times.items()}
    return min(times, key=lambda name: (unknown[name], times[name].total_us))


def largest_batch(read: Callable[[int], Network], predictors: Predictors, **allowed: Unpack[AlgorithmLimits]) -> int:
    """The largest batch that fits the GPU's memory; ``read`` gives the network at a batch.

    Raises `InputError` where not even one sample fits, or the source's memory does not grow with the batch.
    """
    fits = 0  # the largest batch that is known to fit, and `fails` the smallest that does not
    fails = MAX_BATCH
    while fails - fits > 1:
        batch = min(2 * fits or 1, (fits + fails) // 2)
        if predictors.time(read(batch), **allowed).fits:
            fits = batch
        else:
            fails = batch
    if fits in (0, MAX_BATCH - 1):
        wrong = "not even one sample fits" if not fits else f"all batches up to {MAX_BATCH - 1} fit"
        raise InputError(f"--max-batch: {wrong} on {predictors.gpu.name}; leave it out to see what holds memory")
    return fits


def _heuristic(network: Network, choices: Mapping[NetworkProblem, Selection]) -> dict[str, float]:
    """The library's own picks, where the file names any; a problem counts as often as the network has it."""
    picks = [(layer.problem, layer.heuristic) for layer in network.layers if layer.problem.HAS_ALGORITHMS]
    if not any(pick for _, pick in picks):
        return {}
    times = [
        (estimate.time_us, choices[problem].estimates[0].time_us)
        for problem, pick in picks
        for estimate in choices[problem].estimates
        if estimate.candidate.name == pick
    ]
    picked_us = sum(picked_us for picked_us, _ in times)
    best_us = sum(best_us for _, best_us in times)
    unknown = len(picks) - len(times)
    return {"convs": len(times), "unknown": unknown, "time_us": picked_us, "saved_us": picked_us - best_us}
