"""Predict a network's time: predict each distinct problem once, take the fastest feasible candidate, sum the layers."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from math import log
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast

from surrogate import bundled
from surrogate.features import HALF, InputError, missing_units, peak_tflops
from surrogate.features.analytical import AUTOCAST_FIELDS
from surrogate.features.families import DEFAULT_FAMILY, NetworkProblem, Operator, family_of
from surrogate.features.families.transfer import Collective, Transfer
from surrogate.features.gpu import Gpu, gpu as gpu_by_name
from surrogate.features.problem import ELEMENTS
from surrogate.features.roofline import compute_us, memory_us
from surrogate.network.language_step import BOUNDED_PARTS, part_of
from surrogate.network.memory import memory, usable_bytes
from surrogate.network.network import FRAMEWORKS, INTERVAL_FACTOR_3D, TEXTS, Cluster, Layer, Network, add_work, refusal
from surrogate.network.operators import tf32_part, with_default_math
from surrogate.network.parallel import MEASURED_DTYPE, exchange, exchange_of, memory_per_gpu
from surrogate.network.result import (
    BOUNDS,
    MAX_SHARE,
    SOURCES_WITHOUT_GPU_DATA,
    LayerTime,
    NetworkTime,
    Peak,
    ProblemTime,
)
from surrogate.network.training import is_recomputed, is_update, repeats
from surrogate.prediction.kernel_times import limited_lower_us, min_kernel_us, within_peaks
from surrogate.prediction.results import DATASHEET, FALLBACK_SOURCES, FLOOR, ROOFLINE, Estimate, KernelTime, Selection
from surrogate.prediction.sources.datasheet import (
    STEP,
    above_peak_note,
    common_share,
    datasheet_models,
    sustained_share,
)

if TYPE_CHECKING:
    from surrogate.models.seer.paper import SeerPaper
    from surrogate.prediction.predictor import Predictor

STEP_FACTORS = {"ampere-ga100": 1.12, "hopper": 1.27}
"""Architecture → time of a language model's training step / sum of its kernels' times alone.

Source: fitted to steps of MPT-350m and MPT-3b on A100 80GB and H100 (mosaicml/llm-foundry, benchmarking). Its cause
was not measured. The assumption is that, in a step, the board's power lowers the clocks and inputs are not in L2.
"""
STEP_FACTOR = 1.19
"""The same for all other architectures: the geometric mean."""
MIN_NORM_SHARE = 0.1
"""Share of a step's kernels from which gradients of layer norms have a note."""
MAX_BATCH = 2**24
"""Upper end of the search for the largest batch."""
COLLECTIVES = "nccl"
"""The library whose collectives are used if a framework has no collective kernels for the GPU."""
OUT_OF_LIMITS = "no algorithm within the limits"
SERVERS = bundled.FOLDER / "servers.json"
PCIE_HALF_WIDTH = log(2.0)
"""Minimum half width in log time of sums over PCIe.

Boards without peer access, such as GeForce boards, copy through the host, so that the bytes cross PCIe twice. Measured
machines also differ: their sums reach 0.62 (two L40S) to 0.36 (eight RTX PRO 6000) of PCIe's rate.
"""


@lru_cache(maxsize=8)
def load_collectives(device: Gpu) -> "Predictor":
    """Return a predictor of NCCL's kernels on a GPU."""
    from surrogate.prediction.shipped import load_operators

    return load_operators(device.name, COLLECTIVES)


@cache
def unmeasured_half_width() -> float:
    """Return the half width in log time of a step without measured kernels, from held-out GPUs."""
    return json.loads(SERVERS.read_bytes())["unmeasured"]


def step_bounds_us(kernels: Iterable[tuple[NetworkProblem, int]], device: Gpu) -> tuple[float, float]:
    """Return the times in µs of a language model's step at peak rates: of its arithmetic, and of its bytes.

    ``kernels`` are problems and their counts.
    """
    bounded = [(count, each) for each, count in kernels if part_of(each) in BOUNDED_PARTS]
    peaks = [(count, each, peak_tflops(device, each.dtype, each.uses_tensor_cores)) for count, each in bounded]
    peak_us = sum(count * compute_us(each.flops, peak) for count, each, peak in peaks)
    traffic_us = sum(count * memory_us(each.dram_bytes, device.dram_gbs) for count, each in bounded)
    return float(peak_us) / max(sustained_share(device), 1.0), float(traffic_us)


def step_half_width(problem: NetworkProblem, answer: ProblemTime, device: Gpu) -> float | None:
    """Return the half width in log time that a kernel adds to a language model's step; None for measured kernels.

    The width of a step is the mean of its kernels' widths, weighted by their times.
    """
    if isinstance(problem, Transfer) and not device.link_gbs:
        return max(PCIE_HALF_WIDTH, answer.half_width if answer.source in SOURCES_WITHOUT_GPU_DATA else 0.0)
    if answer.source not in SOURCES_WITHOUT_GPU_DATA:
        return None
    if answer.source == DATASHEET and ELEMENTS[problem.dtype].weight_bytes < 1:
        return max(answer.half_width, unmeasured_half_width())  # no GPU of the architecture has measured 4-bit products
    return answer.common_share * answer.half_width if answer.source == ROOFLINE else unmeasured_half_width()


class AlgorithmLimits(TypedDict, total=False):
    """The caller's limits: bytes of workspace, and whether two runs must give the same bits."""

    workspace_limit: int | None
    deterministic: bool


AnyOperator = TypeVar("AnyOperator", bound=Operator)
Selections = dict[NetworkProblem, Selection]
ProblemTimes = dict[NetworkProblem, ProblemTime]


@dataclass(frozen=True, slots=True)
class Predictors:
    """The predictors of a GPU.

    Parameters
    ----------
    gpu
        The GPU.
    algorithm_predictor
        Ranks the algorithms of problems that have several; None: such problems cannot be predicted.
    kernel_predictor
        Predicts the time of every other problem.
    paper
        A fitted seer-paper; its trees give the classes of the problems that it was trained for. None: the roofline
        gives all classes.
    utilization
        Share of the GPU's memory that a network may use.

    Only `selections` and `answers` call the two predictors.
    """

    gpu: Gpu
    algorithm_predictor: "Predictor | None"
    kernel_predictor: "Predictor"
    paper: "SeerPaper | None" = None
    utilization: float = 1.0

    def selections(self, problems: Iterable[NetworkProblem], **limits: Unpack[AlgorithmLimits]) -> Selections:
        """Return the ranked algorithms within the limits for each problem that has several algorithms."""
        with_algorithms = [problem for problem in problems if problem.HAS_ALGORITHMS]
        if self.algorithm_predictor is None or not with_algorithms:
            return {}
        return dict(
            zip(with_algorithms, self.algorithm_predictor.network_selections(with_algorithms, **limits), strict=True)
        )

    def answers(self, problems: Iterable[NetworkProblem], selections: Selections) -> ProblemTimes:
        """Return each problem's time: the best algorithm of its selection, or its own kernel's time.

        Problems that no candidate can run are left out.
        """
        single = [problem for problem in problems if isinstance(problem, Operator) and not problem.HAS_ALGORITHMS]
        times = {
            problem: self._best(problem, choice.estimates[0])
            for problem, choice in selections.items()
            if choice.estimates
        }
        times |= self._kernel_times(self.kernel_predictor, single)
        # `CustomAllreduce` of vLLM and SGLang leaves sums of more than two GPUs without links to NCCL.
        sums = [] if self.gpu.link_gbs or self.gpu.vendor != "nvidia" else single
        sums = [each for each in sums if isinstance(each, Collective) and each.ranks > 2]
        if unknown := [each for each in sums if times[each].source in SOURCES_WITHOUT_GPU_DATA]:
            times |= self._kernel_times(load_collectives(self.gpu), unknown)
        return times

    def default_math_answers(self, problems: Iterable[AnyOperator]) -> dict[AnyOperator, ProblemTime]:
        """Return the times of kernels in the math type that PyTorch uses by default on the GPU."""
        runs = {problem: with_default_math(problem, self.gpu) for problem in problems}
        answers = self.answers(dict.fromkeys(runs.values()), {})
        return {problem: answers[run] for problem, run in runs.items() if run in answers}

    def _kernel_times(self, predictor: "Predictor", problems: Sequence[Operator]) -> dict[NetworkProblem, ProblemTime]:
        kernels = predictor.kernel_times(problems) if problems else []
        return {problem: self._kernel_time(problem, kernel) for problem, kernel in zip(problems, kernels, strict=True)}

    def _kernel_time(self, problem: Operator, kernel: KernelTime) -> ProblemTime:
        kernel = within_peaks(kernel, self.gpu)
        half_width, share = log(kernel.upper_us / kernel.time_us), common_share(problem, self.gpu, kernel.source, "")
        ends = kernel.time_us, kernel.lower_us, kernel.upper_us
        return ProblemTime(*ends, half_width, kernel.source, common_share=share)

    def _best(self, problem: NetworkProblem, best: Estimate) -> ProblemTime:
        """Return the time of the best algorithm."""
        share = common_share(problem, self.gpu, best.source, best.candidate.mechanism)
        return ProblemTime(best.time_us, best.lower_us, best.upper_us, best.half_width, best.source, best, share)

    def time(self, network: Network, **limits: Unpack[AlgorithmLimits]) -> NetworkTime:
        """Predict the times of the network's layers.

        Parameters
        ----------
        network
            The network.
        limits
            ``workspace_limit`` in bytes and ``deterministic``, as in `AlgorithmLimits`.

        Returns
        -------
        NetworkTime
            A layer is counted as unsupported, with the reason, if no algorithm can run its problem within the limits,
            or if the GPU lacks the units for the element type of its product. If the network fits the memory only
            without the workspaces of the fastest algorithms, it takes those that fit, as PyTorch does.

        Raises
        ------
        InputError
            If the GPU lacks the units for most of the network's multiply-adds, or if ``network`` is no `Network`.
        """
        if not isinstance(network, Network):
            what = f"{network!r:.60}" if isinstance(network, str | Path) else f"a {type(network).__name__}"
            raise InputError(f"the network is {what}; give read_network(…), or time_module a module")
        kept = {layer.problem for layer in network.layers if layer.keeps_math}
        problems = dict.fromkeys(layer.problem for layer in network.layers)
        runs = {each: each if each in kept else with_default_math(each, self.gpu, network.tf32) for each in problems}
        distinct = dict.fromkeys(runs.values())
        selections = self.selections(distinct, **limits)
        answers = self.answers(distinct, selections)
        counts = Counter(runs[layer.problem] for layer in network.layers) if network.gap_us else {}
        missing = self._missing_units(network, runs, answers)
        classes = self._classes(selections)
        # Each distinct problem is predicted once; its layers differ only in their names.
        predicted = {
            problem: self._problem_time(problem, run, answers[run], classes.get(run), network.gap_us)
            for problem, run in runs.items()
            if run in answers and run not in missing
        }
        min_us = {each: min_kernel_us(runs[each], self.gpu, time.algorithm) for each, time in predicted.items()}
        timed = [(layer, predicted.get(layer.problem)) for layer in network.layers]
        times = tuple(_layer_time(network, layer, time, min_us[layer.problem]) for layer, time in timed if time)
        half_us = sum(time.time_us for layer, time in timed if time and layer.problem.dtype in HALF)
        if network.training and not network.is_long and 2 * half_us > sum(layer.time_us for layer in times):
            times = self._with_step_errors(times)
        step_factor = STEP_FACTORS.get(self.gpu.architecture, STEP_FACTOR) if network.is_long else 1.0
        kernels_us = [step_factor * layer.time_factor * time.time_us if time else 0.0 for layer, time in timed]
        timed_runs = [(runs[layer.problem], answers[runs[layer.problem]]) for layer, time in timed if time]
        reasons_by_problem = {problem: missing.get(run, OUT_OF_LIMITS) for problem, run in runs.items()}
        untimed = [layer for layer, time in timed if not time]
        workspace_bytes = max((layer.workspace_bytes for layer in times), default=0)  # one is allocated at a time
        choices = {problem: selections[run] for problem, run in runs.items() if run in selections}
        reasons = (choices[layer.problem].reason for layer in network.layers if layer.problem in choices)
        result = NetworkTime(
            network=network.name,
            gpu=self.gpu.name,
            layers=times,
            **_network_fields(network),
            **_unsupported_fields(network, untimed, reasons_by_problem),
            heuristic=_heuristic(network, choices),
            outside_domain=Counter(reason for reason in reasons if reason),
            memory=memory_per_gpu(network, memory(network, workspace_bytes, self.gpu)),
            gpu_memory_bytes=round(self.utilization * usable_bytes(self.gpu)),
            notes=(
                *network.notes,
                *self._step_notes(network, step_factor),
                *self._notes(selections, answers),
                *self._link_notes(network.cluster),
            ),
            headline_notes=(*network.headline_notes, *self._fp32_notes(distinct)),
            step_factor=step_factor,
            half_width=self._half_width(timed_runs) if network.gap_us else None,
            min_us=max(step_bounds_us(counts.items(), self.gpu)),
            exchange=exchange(network, kernels_us, self.default_math_answers) if network.cluster.gpus > 1 else None,
            peak=self._peak(network, runs),
        )
        result = replace(result, notes=(*result.notes, *_evidence_notes(network, result, self.gpu)))
        is_above_peak = (result.mfu or 0.0) * result.total_us > result.lower_us
        notes = filter(None, [above_peak_note(self.gpu) if is_above_peak else ""])
        result = replace(result, notes=(*result.notes, *notes))
        has_room = (result.memory_bytes or 0) <= MAX_SHARE * result.gpu_memory_bytes
        return result if has_room else self._within_memory(network, result, limits)

    def _within_memory(self, network: Network, result: NetworkTime, limits: AlgorithmLimits) -> NetworkTime:
        """Return the time with workspaces that fit `MAX_SHARE` of the memory, or else all of it, next to the tensors.

        ``result`` is returned if it cannot fit. Source: PyTorch, ``Conv_v8.cpp``: a plan whose workspace cannot be
        allocated is skipped.
        """
        workspace_bytes = result.memory["workspace"]
        tensor_bytes = sum(result.memory.values()) - workspace_bytes
        room = [int(share * result.gpu_memory_bytes) - tensor_bytes for share in (MAX_SHARE, 1)]
        left = next((each for each in room if each >= 0), -1)
        if not 0 <= left < workspace_bytes:
            return result
        limited = self.time(network, **{**limits, "workspace_limit": left})
        if not limited.fits or len(limited.layers) < len(result.layers):
            return result
        sizes = {"left": left / 2**30, "fastest": workspace_bytes / 2**30}
        return replace(limited, notes=(*limited.notes, TEXTS["notes"]["workspace"].format(**sizes)))

    def _half_width(self, answers: Collection[tuple[NetworkProblem, ProblemTime]]) -> float | None:
        """Return the half width in log time of a language model's step; None if all its kernels were measured."""
        widths = [step_half_width(problem, answer, self.gpu) for problem, answer in answers]
        if not any(widths):
            return None
        pairs = zip(widths, (answer for _, answer in answers), strict=True)
        width_us = sum(each.time_us * (each.half_width if width is None else width) for width, each in pairs)
        return width_us / sum(answer.time_us for _, answer in answers)

    def _with_step_errors(self, layers: tuple[LayerTime, ...]) -> tuple[LayerTime, ...]:
        """Return the layers of a training step whose sum has the error of measured steps in half precision.

        The errors of its kernels average out, whatever source they are from.
        """
        models = datasheet_models(self.gpu, "fp16")
        if models is None:
            return layers
        width = models.by_kind[STEP].half_width
        shares = (width / max(log(layer.upper_us / layer.time_us), width) for layer in layers)
        pairs = zip(layers, shares, strict=True)
        return tuple(replace(layer, common_share=min(layer.common_share, share)) for layer, share in pairs)

    def _peak(self, network: Network, runs: Mapping[NetworkProblem, NetworkProblem]) -> Peak | None:
        """Return the dense peak of the arithmetic that most multiply-adds have; None if the GPU has none.

        AMD's libraries use faster matrix units for every type: MIOpen's convolutions state no math type. In fp32 these
        are the units for fp32, unless the math type allows TF32.
        """
        work: Counter[tuple[str, bool]] = Counter()
        is_amd = self.gpu.vendor == "amd"
        for layer in network.layers:
            run = runs[layer.problem]
            is_faster = peak_tflops(self.gpu, run.dtype, True) > peak_tflops(self.gpu, run.dtype)
            is_faster &= is_amd and run.dtype != "fp32"
            work[run.dtype, bool(run.uses_tensor_cores) or is_faster] += run.multiply_adds
        (dtype, uses_tensor_cores), _ = max(work.items(), key=itemgetter(1), default=(("", False), 0))
        tflops = peak_tflops(self.gpu, dtype, uses_tensor_cores) if dtype else 0.0
        if dtype == "fp32" and not uses_tensor_cores:
            tflops = max(tflops, self.gpu.fp32_matrix_tflops)
        name = "TF32" if uses_tensor_cores and dtype == "fp32" and self.gpu.tf32_tflops else dtype
        return Peak(f"{name}{' tensor cores' * uses_tensor_cores}", tflops) if tflops else None

    def _fp32_notes(self, problems: Iterable[NetworkProblem]) -> Iterator[str]:
        """Yield a note on the arithmetic of fp32 products and convolutions, if there are any."""
        arithmetic = {(tf32_part(each, self.gpu), "TF32" if each.uses_tensor_cores else "fp32") for each in problems}
        if parts := [" ".join(pair) for pair in sorted(arithmetic, reverse=True) if pair[0]]:
            yield ", ".join(parts)

    def _step_notes(self, network: Network, factor: float) -> Iterator[str]:
        """Yield a note on the gaps of a server's step, or on the factor of a causal language model's training step."""
        if network.gap_us:
            gaps_ms = network.gap_us * len(network.layers) / 1e3
            yield TEXTS["notes"]["gaps"].format(gaps=gaps_ms, gap=network.gap_us, kernels=len(network.layers))
        # Attention is one kernel that its gradient repeats, or batched products.
        problems = [layer.problem for layer in network.layers if isinstance(layer.problem, Operator)]
        batched = [each for each in problems if each.MULTIPLIES and getattr(each, "batch", 1) > 1]
        has_attention = bool(batched) or any(each.recomputed_multiply_adds for each in problems)
        evidence = "the mean of A100 and H100, not evaluated"
        if self.gpu.architecture in STEP_FACTORS:
            evidence = "fitted to MPT on this architecture"
        if network.training and has_attention and not network.is_long:
            general = STEP_FACTORS.get(self.gpu.architecture, STEP_FACTOR)
            yield TEXTS["notes"]["no_factor"].format(factor=general, evidence=evidence)
        if factor > 1:
            yield TEXTS["notes"]["step_factor"].format(factor=factor, evidence=evidence)

    def _notes(self, selections: Selections, answers: ProblemTimes) -> Iterator[str]:
        """Yield notes on harness floors, and on convolutions that were measured only on other GPUs."""
        if floors := [problem for problem, answer in answers.items() if answer.source == FLOOR]:
            yield f"{floor_note(floors)}; `seer serving` takes other frameworks' kernels instead"
        part = self.algorithm_predictor.bundle.family_models.get(DEFAULT_FAMILY) if self.algorithm_predictor else None
        measured = {key.setting_values for key in part.domain.settings if key.gpu == self.gpu.name} if part else set()
        others = {_setting(run) for run in selections if run in answers and answers[run].source in FALLBACK_SOURCES}
        if measured and others:
            own, other = (", ".join(sorted(map(" ".join, settings))) for settings in (measured, others))
            yield TEXTS["notes"]["other_settings"].format(gpu=self.gpu.name, own=own, other=other)

    def _link_notes(self, cluster: Cluster) -> Iterator[str]:
        """Yield a note on the links over which the GPUs exchange weights and gradients."""
        if cluster.gpus == 1:
            return
        moved, messages, kind = exchange_of(cluster)
        between = f"the network between nodes, {cluster.node_gbps / 8:g} GB/s for each node"
        if cluster.node_gpus == 1:
            yield f"{moved} cross {between}"
            return
        gbs = self.gpu.exchange_gbs(cluster.node_gpus)
        message = kind(elements=2**23, ranks=cluster.node_gpus, dtype=MEASURED_DTYPE)
        source = self.default_math_answers([message])[message].source
        evidence = "the datasheet" if source in SOURCES_WITHOUT_GPU_DATA else f"measured {messages}"
        link = "links" if gbs != self.gpu.pcie_gbs else "PCIe, without links between GPUs"
        and_between = f", and {between}" if cluster.node_gbps else ""
        yield f"{moved} cross {link}, {gbs:g} GB/s in each direction{and_between}; their times come from {evidence}"

    def _missing_units(
        self, network: Network, runs: Mapping[NetworkProblem, NetworkProblem], answers: ProblemTimes
    ) -> dict[NetworkProblem, str]:
        """Return, for each unmeasured product, which units for its element type the GPU lacks.

        Raises `InputError` if these products do most of the network's multiply-adds.
        """
        sizes: Counter[NetworkProblem] = Counter()
        for layer in network.layers:
            run = runs[layer.problem]
            if isinstance(run, Operator) and run.MULTIPLIES and run in answers:
                sizes[run] += run.multiply_adds
        unknown = [problem for problem in sizes if answers[problem].source == ROOFLINE]
        reasons = {problem: missing_units(self.gpu, problem.dtype, problem.math) for problem in unknown}
        missing: dict[NetworkProblem, str] = {problem: reason for problem, reason in reasons.items() if reason}
        if 2 * sum(sizes[problem] for problem in missing) > sizes.total():
            first = next(iter(missing))
            instead = "fp16 (--amp fp16, --dtype fp16)" if first.dtype == "bf16" else "another --dtype"
            raise refusal("units", source=network.name, missing=missing[first], dtype=first.dtype, instead=instead)
        return missing

    def _problem_time(
        self, problem: NetworkProblem, run: NetworkProblem, answer: ProblemTime, paper_class: str | None, gap_us: float
    ) -> LayerTime:
        """Return the time of a layer without its name.

        ``run`` is the problem in the math type that PyTorch runs; ``paper_class`` is its class by the paper's trees, if
        any. A kernel's class by the roofline is computed from the arithmetic that the source states.
        """
        estimate = answer.estimate
        algorithm = estimate.candidate if estimate else None
        bound = run.seer_class(self.gpu, algorithm.mechanism) if algorithm else problem.seer_class(self.gpu)
        return LayerTime(
            name="",
            operator="",
            problem=str(problem),
            algorithm=algorithm.name if algorithm else None,
            **{name: getattr(answer, name) + gap_us for name in ("time_us", "lower_us", "upper_us")},
            workspace_bytes=(estimate.workspace_bytes if estimate else None) or 0,
            flops=problem.flops,
            bytes=problem.dram_bytes,
            bound=bound if paper_class is None else paper_class,
            source=answer.source,
            common_share=answer.common_share,
        )

    def _classes(self, selections: Selections) -> dict[NetworkProblem, str]:
        """Return the class of each pick by the paper's trees, "" if they give none; without trees an empty dict."""
        picks = {problem: choice for problem, choice in selections.items() if choice.estimates}
        if self.paper is None or not picks:
            return {}
        import pandas as pd

        frame = pd.DataFrame(map(asdict, picks))
        for name in ("gpu", "library", "library_version"):
            frame[name] = [getattr(choice, name) for choice in picks.values()]
        frame["algorithm"] = [choice.estimates[0].candidate.name for choice in picks.values()]
        classes = self.paper.bound(frame)
        return {problem: BOUNDS[bound] if bound >= 0 else "" for problem, bound in zip(picks, classes, strict=True)}


def _network_fields(network: Network) -> dict[str, Any]:
    """Return the fields of `NetworkTime` that are the same on every GPU."""
    names = ("batch", "training", "accumulate", "ignored", "parameters", "tokens")
    return {
        **{name: getattr(network, name) for name in names},
        "multiply_adds": sum(each.problem.multiply_adds * repeats(network, each) for each in network.layers)
        // network.stages,
        "model_flops": 2 * model_multiply_adds(network) // network.stages,
        "host_time": network.host,
    }


def _unsupported_fields(
    network: Network, untimed: Iterable[Layer], reasons: Mapping[NetworkProblem, str]
) -> dict[str, Any]:
    """Return the numbers and the work of unsupported operators, which include the ``untimed`` layers."""
    unsupported, work = Counter(network.unsupported), dict(network.missing)
    for layer in untimed:
        name = f"{layer.operator} ({reasons[layer.problem]})"
        unsupported[name] += 1
        add_work(work, name, layer.problem.flops, layer.problem.dram_bytes)
    return {"unsupported": dict(unsupported), "missing": work}


def model_multiply_adds(network: Network) -> int:
    """Return the multiply-adds of an iteration without recomputed activations.

    A product has two products as gradients, and a frozen one has one. Source: Chowdhery et al., "PaLM" (2022),
    appendix B.
    """
    counted = (layer.problem for layer in network.layers if not (is_update(layer) or is_recomputed(layer)))
    return network.accumulate * sum(each.multiply_adds - each.recomputed_multiply_adds for each in counted)


def _layer_time(network: Network, layer: Layer, time: LayerTime, min_us: float) -> LayerTime:
    """Return the time of all runs of a layer; a run's lower end is at least ``min_us`` and the gap, or its time."""
    factor, interval_factor = layer.time_factor, INTERVAL_FACTOR_3D if layer.is_3d else 1.0
    time_us, min_us = factor * time.time_us, min_us + network.gap_us
    lower_us, upper_us = factor / interval_factor * time.lower_us, factor * interval_factor * time.upper_us
    lower_us = limited_lower_us(time_us, lower_us, min_us, time.source)
    figures = {"time_us": time_us, "lower_us": lower_us, "upper_us": upper_us, "flops": time.flops, "bytes": time.bytes}
    sums = {name: repeats(network, layer) * value for name, value in figures.items()}
    return replace(time, name=layer.name, operator=layer.operator, **sums)


def _evidence_notes(network: Network, time: NetworkTime, device: Gpu) -> Iterator[str]:
    """Yield notes on unmeasured gradients of norms, and on the error of measured training steps like this one."""
    unmeasured = [layer for layer in time.layers if layer.source in SOURCES_WITHOUT_GPU_DATA]
    gradients_us = sum(layer.time_us for layer in unmeasured if layer.problem.partition(":")[0] in AUTOCAST_FIELDS)
    if gradients_us > MIN_NORM_SHARE * time.kernels_us:
        yield TEXTS["notes"]["norm_gradients"].format(share=gradients_us / time.kernels_us)
    if not network.training or network.is_long:
        return
    error = TEXTS["step_errors"].get(device.architecture, {}).get(time.peak.name if time.peak else "")
    weights = {layer.problem.dtype for layer in network.layers if is_update(layer)}
    is_like = error and network.convs and weights == {"fp32"}
    yield TEXTS["notes"]["measured_steps"].format(error=error) if is_like else TEXTS["notes"]["no_measured_steps"]


def _setting(problem: NetworkProblem) -> tuple[str, ...]:
    """Return a convolution's direction, types and layout, as `surrogate.uncertainty.domain.SettingKey` has them."""
    return tuple(getattr(problem, name) for name in family_of(problem).setting_names)


def load_predictors(gpu: str, bundle: str | Path | None = None, library: str | None = None) -> Predictors:
    """Load the predictors of a GPU.

    Parameters
    ----------
    gpu
        A GPU by registry name or alias.
    bundle
        A folder with a bundle that predicts convolutions; None: the shipped bundle of the GPU.
    library
        A framework or library; all other problems are then predicted from its kernels alone.

    Returns
    -------
    Predictors

    Raises
    ------
    InputError
        If the GPU or the library is unknown, the framework does not run on the GPU, or the bundle is damaged.
    """
    from surrogate.prediction.shipped import load, load_operators

    device = gpu_by_name(gpu)
    if library in FRAMEWORKS and library not in (frameworks := frameworks_on(device)):
        raise InputError(f"{library} does not run on {device.name}; give --library {' or '.join(frameworks)}")
    algorithms = load(gpu) if bundle is None else load(Path(bundle), gpu=gpu)
    part = algorithms.bundle.family_models.get(DEFAULT_FAMILY)  # None if the GPU's convolutions were never measured
    paper = cast("SeerPaper", part.model) if part and part.fitted.name == "seer-paper" else None
    return Predictors(device, algorithms, load_operators(device.name, library), paper)


def floor_note(problems: Iterable[NetworkProblem]) -> str:
    """Return a note on the framework's kernels with measured times that are mostly the harness floor."""
    kernels = ", ".join(dict.fromkeys(f"{problem.kind} {problem.dtype}" for problem in problems))
    return f"the measured times of the framework's {kernels} kernels are mostly its benchmark's launch overhead"


def frameworks_on(device: Gpu) -> list[str]:
    """Return the names of the `FRAMEWORKS` that run on the GPU; TensorRT-LLM needs an Ampere or a newer one.

    Source: TensorRT-LLM, "Supported Hardware".
    """
    runs = {"trtllm": device.compute_capability >= 8}
    return [name for name, vendors in FRAMEWORKS.items() if device.vendor in vendors and runs.get(name, True)]


def fastest_framework(network: Network, gpu: str) -> str:
    """Return the framework with the fastest predicted kernels for the network.

    Frameworks with fewer unmeasured kernels are preferred.
    """
    times = {name: load_predictors(gpu, library=name).time(network) for name in frameworks_on(gpu_by_name(gpu))}
    unknown = {name: sum(layer.source == ROOFLINE for layer in time.layers) for name, time in times.items()}
    return min(times, key=lambda name: (unknown[name], times[name].total_us))


def largest_batch(read: Callable[[int], Network], predictors: Predictors, **limits: Unpack[AlgorithmLimits]) -> int:
    """Return the largest batch that fits `MAX_SHARE` of the available memory; ``read`` returns the network at a batch.

    Raises `InputError` if not even one sample fits, or if the network's memory does not grow with the batch.
    """
    predictors = replace(predictors, utilization=MAX_SHARE * predictors.utilization)
    fits = 0  # the largest batch that fits
    fails = MAX_BATCH  # the smallest batch that does not fit
    while fails - fits > 1:
        batch = min(2 * fits or 1, (fits + fails) // 2)
        if predictors.time(read(batch), **limits).fits:
            fits = batch
        else:
            fails = batch
    if fits in (0, MAX_BATCH - 1):
        reason = "not even one sample fits" if not fits else f"all batches up to {MAX_BATCH - 1} fit"
        raise InputError(f"--max-batch: {reason} on {predictors.gpu.name}; omit --max-batch to see the memory by use")
    return fits


def _heuristic(network: Network, choices: Selections) -> dict[str, float]:
    """Return the times of the library's own picks, if the file names any; each layer counts once."""
    picks = [(layer.problem, layer.heuristic) for layer in network.layers if layer.problem.HAS_ALGORITHMS]
    if not any(pick for _, pick in picks):
        return {}
    rankings = [(choices[problem].estimates, pick) for problem, pick in picks]
    pairs = [(each, ranked[0]) for ranked, pick in rankings for each in ranked if each.candidate.name == pick]
    times = [(picked.time_us, best.time_us) for picked, best in pairs]
    picked_us = sum(picked_us for picked_us, _ in times)
    best_us = sum(best_us for _, best_us in times)
    unknown = len(picks) - len(times)
    return {"convs": len(times), "unknown": unknown, "time_us": picked_us, "saved_us": picked_us - best_us}
