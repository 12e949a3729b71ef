"""Servers of language models: the time to a first token and between further ones at a number of users, from steps.

Users send a prompt of ``input`` tokens, read ``output`` tokens and begin again, so that a server always has as many
requests as users. It runs one step after the other (continuous batching with chunked prefill):

- Between two tokens of a request lies a step that decodes one token of every running request, and the prompts that
  arrive meanwhile: while one request reads ``output`` tokens, each other one begins once. So a further token takes
  ``decode + (running − 1) / (output − 1) · prompt``. Nothing in it is fitted to servers. Answers of few tokens have too
  few steps for all those prompts, which then wait for their first token (`SHORT_ANSWER`).
- A first token takes ``start + prompt · (1 + share · (running − 1))``: users that began together wait for one another.
  ``start`` and ``share`` are fitted for each framework (`experiments/serving.py`).
- Running is what the cache holds; who finds no place waits for as many others to end.

Kernel times are those of a framework's tables, taken in CUDA graphs. A product takes the fastest kernel of any
framework, since servers ship and tune the same few libraries, and what a framework's own table lacks, or has only as
the floor of a harness, goes by the others'.
"""

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp, hypot, log1p, nan
from typing import NamedTuple

from surrogate import bundled
from surrogate.features.elementwise import ceil_div
from surrogate.features.errors import InputError
from surrogate.features.families import Operator
from surrogate.features.families.operator import Streamed
from surrogate.features.gpu import Gpu
from surrogate.features.problem import ELEMENTS
from surrogate.features.roofline import compute_us, memory_us, missing_units, peak_tflops
from surrogate.models.json_types import from_json_types
from surrogate.network.language import Decoder, Deployment
from surrogate.network.language_step import (
    ATTENTION,
    COMMUNICATION,
    EXPERTS,
    PARTS,
    PRODUCTS,
    Requests,
    Step,
    StepKernel,
    part_of,
)
from surrogate.network.memory import UTILISATION, context_bytes, usable_bytes
from surrogate.network.operators import with_default_math
from surrogate.network.predict import Predictors, ProblemTime, frameworks_on
from surrogate.network.result import UNMEASURED
from surrogate.prediction.results import FLOOR, ROOFLINE

FILE = "servers.json"
BATCHED_TOKENS = 8192
"""Tokens of a step at most, which bounds what its activations hold: vLLM's and SGLang's default on data-centre GPUs."""
SHORT_ANSWER = 33
"""Tokens of an answer below which a step takes no more prompts than `BATCHED_TOKENS`, or than go beside an answer of so
many tokens: the others queue. No measured server had answers of less than 100 tokens."""
LIMITED = (PRODUCTS, EXPERTS, ATTENTION)
"""Parts whose operands no cache holds from step to step, so that peak rates bound their time."""
COLLECTIVES = "nccl"
"""The library of collective operations that a framework has no kernels of its own for."""
PROMPTS = "prompts"
"""What a further token's time is spent on beside `surrogate.network.language_step.PARTS`."""


@dataclass(frozen=True, slots=True)
class ServerModel:
    """Constants of a framework: ms before a prompt's first step, and the share of the other users that a prompt waits
    for; ``ttft`` and ``tpot`` are the ends of their 90 % intervals, in log time, on families left out of the fit."""

    start_ms: float
    share: float
    ttft: tuple[float, float]
    tpot: tuple[float, float]


@cache
def server_models() -> dict[str, ServerModel]:
    """Return the model of each framework that ships with the package."""
    return from_json_types(dict[str, ServerModel], json.loads((bundled.FOLDER / FILE).read_bytes())["laws"])


class Load(NamedTuple):
    """Tokens of a user's prompt, and of the answer."""

    input: int
    output: int


class Setup(NamedTuple):
    """A replica of a server, and how many users it has."""

    deployment: Deployment
    users: int


class TimeInterval(NamedTuple):
    """A time with the ends of its 90 % interval."""

    time: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ServerSteps:
    """What a replica's steps take under a load, in ms, and what it holds, in bytes on each GPU.

    ``users`` and ``running`` are requests of one group of GPUs that attends to its own, ``running`` those that the
    cache holds at once. ``parts`` has the shares in a further token's time, `PROMPTS` among them without their sums
    over GPUs, which count as communication. ``half_width`` is what kernels that nobody measured on the GPU add to its
    interval, in log time; of ``floors`` the framework's own table has only the floor of its harness, so that another's
    stand in; ``sums`` is the source of its sums over GPUs, "" without. No prompt is done before ``min_ttft_ms`` and
    no further token comes before ``min_tpot_ms``: peak rates need as long for the arithmetic and the bytes.
    """

    load: Load
    users: int
    running: int
    stages: int
    decode_ms: float
    prompt_ms: float
    memory_bytes: float
    fits: bool
    parts: Mapping[str, float]
    half_width: float
    floors: tuple[Operator, ...]
    sums: str = ""
    min_ttft_ms: float = 0.0
    min_tpot_ms: float = 0.0

    @property
    def tpot_ms(self) -> float:
        """Time per output token behind the first; NaN where answers have no other."""
        return self.decode_ms + self.prompts_ms if self.load.output > 1 else nan

    @property
    def prompts_ms(self) -> float:
        """Of it, what others' prompts take."""
        return self.prompts_per_token * self.prompt_ms

    @property
    def prompts_per_token(self) -> float:
        """Prompts that a stage takes between two tokens of a request."""
        return min((self.running - 1) / max(self.load.output - 1, 1), self._max_prompts) / self.stages

    @property
    def _max_prompts(self) -> float:
        return max(BATCHED_TOKENS / self.load.input, (self.running - 1) / (SHORT_ANSWER - 1))

    @property
    def queued(self) -> float:
        """Prompts that a request's own waits for, since the steps of an answer have no room for all others'."""
        return max(self.running - 1 - (self.load.output - 1) * self._max_prompts, 0.0) / self.stages

    def ttft_ms(self, start_ms: float, share: float) -> float:
        """Time to the first token."""
        request_ms = self.prompt_ms * (1 + self.queued) + (self.load.output - 1) * (self.decode_ms + self.prompts_ms)
        return self.placed_ms(start_ms, share) + (self.users - self.running) / self.running * request_ms

    def placed_ms(self, start_ms: float, share: float) -> float:
        """Time to the first token of a request that has its place in the cache."""
        return start_ms + self.prompt_ms * (1 + max(share * (self.running - 1) / self.stages, self.queued))

    def intervals(self, model: ServerModel) -> tuple[TimeInterval, TimeInterval, TimeInterval]:
        """Time to the first token, per further one, and that a request holds its place; no lower end is before what
        peak rates allow."""
        min_ms = self.min_ttft_ms * (1 + self.queued)
        first = self._interval(self.ttft_ms(model.start_ms, model.share), model.ttft, min_ms)
        further = self._interval(self.tpot_ms, model.tpot, self.min_tpot_ms)
        placed = self._interval(self.placed_ms(model.start_ms, model.share), model.ttft, min_ms)
        return first, further, self.request_ms(placed, further)

    def request_ms(self, first: TimeInterval, further: TimeInterval) -> TimeInterval:
        """Time of a whole answer."""
        count = self.load.output - 1
        times = (start + (count * token if count else 0) for start, token in zip(first, further, strict=True))
        return TimeInterval(*times)

    def _interval(self, time: float, widths: tuple[float, float], minimum: float) -> TimeInterval:
        low, high = (hypot(width, self.half_width) for width in widths)
        return TimeInterval(time, min(time, max(time * exp(-low), minimum)), time * exp(high))

    @property
    def bound(self) -> str:
        """What limits it: the cache's memory where users wait for it, else the largest part."""
        waits = self.running < self.users and not self.queued  # prompts that queue need no more places
        return "memory" if waits else max(self.parts, key=lambda part: self.parts[part])


class ServerKernels:
    """Kernel times on a GPU by the tables of every framework that runs there, each loaded once."""

    def __init__(self, device: Gpu) -> None:
        self.device = device
        self._predictors: dict[str, Predictors] = {}

    def answers(self, library: str, works: Sequence[Operator]) -> tuple[dict[Operator, ProblemTime], set[Operator]]:
        """Kernel → its time by a framework's own table, or by the others' as the module says; and the kernels of which
        that table has only the floor of its harness."""
        answers = self._asked(library, works)
        floors = {work for work, answer in answers.items() if answer.source == FLOOR}
        unknown = {work for work, answer in answers.items() if answer.source in (FLOOR, ROOFLINE)}
        lacking = unknown - {work for work in unknown if isinstance(work, Streamed)}
        open_works = [work for work in works if part_of(work) == PRODUCTS or work in lacking]
        transfers = [work for work in lacking if part_of(work) == COMMUNICATION]
        others = [name for name in frameworks_on(self.device) if name != library]
        for name, some in (*((name, open_works) for name in others), (COLLECTIVES, transfers)):
            for work, answer in self._asked(name, some).items() if some else ():
                is_known = answer.source not in (FLOOR, ROOFLINE)
                if is_known and (work in unknown or answer.time_us < answers[work].time_us):
                    answers[work] = answer
                    unknown.discard(work)
        return answers, floors

    def _asked(self, name: str, works: Sequence[Operator]) -> dict[Operator, ProblemTime]:
        from surrogate.prediction.shipped import load_operators

        if name not in self._predictors:
            self._predictors[name] = Predictors(self.device, None, load_operators(self.device.name, name))
        runs = {work: with_default_math(work, self.device) for work in works}
        answers = self._predictors[name].answers(dict.fromkeys(runs.values()), {})
        return {work: answers[run] for work, run in runs.items() if run in answers}


def server_steps(
    decoder: Decoder, load: Load, kernels: ServerKernels, library: str, setups: Iterable[Setup]
) -> dict[Setup, ServerSteps | InputError]:
    """What the steps of each setup take, or why it is refused: all kernels are asked for together."""
    prompt_of = cache(lambda deployment: Step(decoder, [Requests(1, load.input, load.input)], deployment, load.input))
    results: dict[Setup, ServerSteps | InputError] = {}
    sized: dict[Setup, _Sized] = {}
    for setup in setups:
        try:
            sized[setup] = _sized(decoder, load, kernels.device, setup, prompt_of(setup.deployment))
        except InputError as error:
            results[setup] = error
    counts_by_step = {id(step): step.kernel_counts() for each in sized.values() for step in (each.prompt, each.decode)}
    works = dict.fromkeys(work for counts in counts_by_step.values() for work in counts)
    answers, floors = kernels.answers(library, list(works))
    timed = {key: _time(counts, answers, floors, kernels.device) for key, counts in counts_by_step.items()}
    for setup, each in sized.items():
        results[setup] = _steps(load, each, timed[id(each.prompt)], timed[id(each.decode)])
    return results


class _Sized(NamedTuple):
    """A setup's two steps and what they hold."""

    prompt: Step
    decode: Step
    users: int
    running: int
    memory_bytes: float
    fits: bool


class _Timed(NamedTuple):
    """A step's time in µs, its parts, the share that is not measured with its upper end, floors, the source of its sums
    over GPUs, and a refusal; what its arithmetic and its bytes take at peak rates."""

    time_us: float
    parts: Mapping[str, float]
    unmeasured_us: float
    floors: tuple[Operator, ...]
    sums: str
    refused: str
    compute_us: float
    memory_us: float


def room_bytes(device: Gpu) -> float:
    """Bytes of a GPU that a server fills with weights, cache and activations."""
    return UTILISATION * usable_bytes(device) - context_bytes(device)


def _sized(decoder: Decoder, load: Load, device: Gpu, setup: Setup, prompt: Step) -> _Sized:
    """How many requests run at once, and the step that decodes them: half of an answer is there on average."""
    deployment = setup.deployment
    stages, users = deployment.pipeline_parallel, ceil_div(setup.users, deployment.data_parallel)
    context = load.input + load.output // 2
    one = Step(decoder, [Requests(1, 1, context)], deployment, 1)
    moved = max(_moved(kernel) for kernels in prompt.by_kind.values() for kernel in kernels)
    held = prompt.weights_bytes() / stages + moved * min(1.0, BATCHED_TOKENS / load.input)
    request_bytes = one.kv_bytes / stages
    places = int((room_bytes(device) - held) / request_bytes)
    running = max(1, min(users, places))
    batch = ceil_div(running, stages)
    decode = Step(decoder, [Requests(batch, 1, context)], deployment, batch)
    return _Sized(prompt, decode, users, running, held + running * request_bytes, places >= 1)


def _moved(kernel: StepKernel) -> float:
    """Bytes of a kernel's activations."""
    return kernel.problem.dram_bytes - kernel.weights * ELEMENTS[kernel.problem.dtype].weight_bytes


def _time(
    kernels: Mapping[Operator, int], answers: Mapping[Operator, ProblemTime], floors: Container[Operator], device: Gpu
) -> _Timed:
    parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    unmeasured_us = 0.0
    refused = ""
    for work, count in kernels.items():
        answer = answers[work]
        parts[part_of(work)] += count * answer.time_us
        if answer.source in UNMEASURED:
            unmeasured_us += count * (answer.upper_us - answer.time_us)
        if answer.source == ROOFLINE and work.MULTIPLIES:
            refused = refused or (missing_units(device, work.dtype, work.math) or "")
    floored = tuple(work for work in kernels if work in floors)
    sums = next((answers[work].source for work in kernels if part_of(work) == COMMUNICATION), "")
    limited = [(count, work) for work, count in kernels.items() if part_of(work) in LIMITED]
    arithmetic_us = sum(
        count * compute_us(work.flops, peak_tflops(device, work.dtype, work.uses_tensor_cores))
        for count, work in limited
    )
    traffic_us = sum(count * memory_us(work.dram_bytes, device.dram_gbs) for count, work in limited)
    limits = float(arithmetic_us), float(traffic_us)
    return _Timed(sum(parts.values()), parts, unmeasured_us, floored, sums, refused, *limits)


def _steps(load: Load, sized: _Sized, prompt: _Timed, decode: _Timed) -> ServerSteps | InputError:
    if prompt.refused or decode.refused:
        return InputError(f"{prompt.refused or decode.refused}; give another --dtype, or --gpu")
    steps = ServerSteps(
        load=load,
        users=sized.users,
        running=sized.running,
        stages=sized.decode.deployment.pipeline_parallel,
        decode_ms=decode.time_us / 1e3,
        prompt_ms=prompt.time_us / 1e3,
        memory_bytes=sized.memory_bytes,
        fits=sized.fits,
        parts={},
        half_width=log1p(decode.unmeasured_us / decode.time_us),
        floors=(*prompt.floors, *decode.floors),
        sums=decode.sums,
        min_ttft_ms=max(prompt.compute_us, prompt.memory_us) / 1e3,
    )
    # A step that takes a prompt beside decoded tokens reads its weights once for both.
    arithmetic_us = decode.compute_us + steps.prompts_per_token * prompt.compute_us
    whole_ms = steps.decode_ms + steps.prompts_ms
    parts = {name: decode.parts[name] / 1e3 / whole_ms for name in PARTS}
    summed = steps.prompts_per_token * prompt.parts[COMMUNICATION] / 1e3 / whole_ms
    parts[COMMUNICATION] += summed
    return replace(
        steps,
        parts=parts | {PROMPTS: steps.prompts_ms / whole_ms - summed},
        min_tpot_ms=max(arithmetic_us, decode.memory_us) / 1e3,
    )
