"""Predict the latency of language-model servers: time to first token (TTFT) and time per output token (TPOT).

Users send a prompt of ``input`` tokens, read ``output`` tokens and begin again. So a server always has one request per
user. It runs one step after another (continuous batching with chunked prefill):

- Between two tokens of a request, the server decodes one token of every running request and processes new prompts.
  While one request reads ``output`` tokens, each other request begins once. So TPOT is
  ``decode + (running − 1) / (output − 1) · prompt``. No constant in it is fitted to servers. If answers are short, they
  have too few steps for all prompts; then prompts wait (`MIN_ANSWER_TOKENS`).
- TTFT is ``prompt · (1 + share · (running − 1)) + start · step``, since users that begin together wait for one another.
  ``share`` and ``start``, a number of steps, are the same for all frameworks (`experiments/serving.py`). Published
  servers of a framework delay first tokens by further steps, by options of their launch or by their clients.
  Measurements cannot separate the two, so these steps are in the upper end of the interval only.
- ``running`` is the number of requests that fit in the cache: one of full length, as servers require before they start,
  and the others with half of their answers. Any other request waits until others end.

Kernel times come from a framework's tables, which were measured in CUDA graphs. Servers ship and tune the same few
libraries, so a product takes the time of the fastest kernel of all frameworks. Other frameworks' tables also replace a
time if the framework's own table lacks it or has only its harness floor.
"""

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import exp, hypot, nan
from typing import Any, NamedTuple

from surrogate.features.elementwise import MAX_INT32, ceil_div
from surrogate.features.errors import InputError
from surrogate.features.families import Operator
from surrogate.features.families.attention import AttentionOperator
from surrogate.features.families.operator import Streamed
from surrogate.features.gpu import Gpu
from surrogate.features.roofline import missing_units
from surrogate.models.json_types import from_json_types
from surrogate.network.language import Decoder, Deployment
from surrogate.network.language_step import COMMUNICATION, PARTS, PRODUCTS, Requests, Step, part_of
from surrogate.network.memory import MAX_BATCHED_TOKENS, UTILISATION, memory, usable_bytes
from surrogate.network.predict import COLLECTIVES, SERVERS, Predictors, frameworks_on, step_bounds_us, step_half_width
from surrogate.network.result import SOURCES_WITHOUT_GPU_DATA, ProblemTime
from surrogate.prediction.resolve import VENDOR_KERNELS
from surrogate.prediction.results import FLOOR, ROOFLINE

MIN_ANSWER_TOKENS = 33
"""Minimum tokens of an answer whose steps have room for all prompts. For a shorter answer, a step takes as many prompts
as for this answer, or as many as `MAX_BATCHED_TOKENS` allows if that is more; the other prompts wait. No measured
server had answers below 100 tokens."""
SLACK_TOKENS = 128
"""Tokens that a server's limit of a request exceeds the load by, for a chat template and for SGLang's own limits."""
PROMPTS = "prompts"
"""The part of TPOT that other requests' prompts take, in addition to `surrogate.network.language_step.PARTS`."""


@dataclass(frozen=True, slots=True)
class ServerModel:
    """The constants of a framework.

    ``start_steps`` is the number of steps before a prompt's first one. ``share`` is the share of the other users for
    which a prompt waits. Both are the same for all frameworks. ``delay_steps`` is the number of steps by which the
    framework's published servers delay first tokens. ``ttft`` and ``tpot`` are the lower and upper half widths of
    the 90 % intervals in log time, from families that were held out of the fit.
    """

    start_steps: float
    share: float
    delay_steps: float
    ttft: tuple[float, float]
    tpot: tuple[float, float]


@cache
def server_models() -> dict[str, ServerModel]:
    """Return the model of each framework that ships with the package."""
    return from_json_types(dict[str, ServerModel], json.loads(SERVERS.read_bytes())["laws"])


class Load(NamedTuple):
    """The tokens of a user's prompt and of the answer, and the limits of the server.

    ``cached_share`` is the share of the prompt's tokens in the prefix cache. ``utilization`` is the share of a GPU's
    memory that the server takes.
    """

    input: int
    output: int
    cached_share: float = 0.0
    utilization: float = UTILISATION

    @property
    def new(self) -> int:
        """The tokens of a prompt that a server computes."""
        return max(round(self.input * (1 - self.cached_share)), 1)

    def max_tokens(self, decoder: Decoder) -> int:
        """Return a server's limit of the tokens of a request; vLLM does not start if its cache cannot hold them."""
        return min(self.input + self.output + SLACK_TOKENS, decoder.positions or MAX_INT32)


class Setup(NamedTuple):
    """A replica of a server and the number of its users."""

    deployment: Deployment
    users: int


class TimeInterval(NamedTuple):
    """A time and the ends of its 90 % interval."""

    time: float
    low: float
    high: float

    def columns(self, name: str, unit: str = "") -> dict[str, Any]:
        """Return the fields of a `ServerRow` with this interval."""
        return {f"{name}{end}{unit}": value for end, value in zip(("", "_low", "_high"), self, strict=True)}


@dataclass(frozen=True, slots=True)
class ServerSteps:
    """The times of a replica's steps under a load, in ms, and its memory, in bytes per GPU.

    Attributes
    ----------
    users, running
        Requests of one attention group; ``running`` is the number of them that the cache holds at once.
    stages
        Stages of the pipeline.
    decode_ms, prompt_ms
        Times of a decode step and of a prompt.
    memory_bytes, fits
        Memory per GPU, and whether the replica fits.
    parts
        Shares of TPOT. `PROMPTS` does not include the prompts' all-reduces, which count as communication.
    half_width, prompt_half_width
        Additions to the half widths of TPOT and TTFT, in log time, for kernels that were not measured on the GPU and
        for sums over PCIe.
    unmeasured_share
        Share of a decode step's time in kernels that were not measured on the GPU.
    unmeasured_kernels
        Kinds and types of these kernels, if they use matrix units.
    static_share
        Share of a GPU's memory for weights and cache, within the load's utilization.
    floored_problems
        Problems whose time comes from another framework, because the framework's own table has only its harness floor.
    all_reduce_source
        Source of the times of all-reduces; "" if the step has no all-reduce.
    min_ttft_ms, min_tpot_ms
        Lower bounds of a prompt's time and of TPOT, from arithmetic and bytes at peak rates.
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
    floored_problems: tuple[Operator, ...]
    all_reduce_source: str = ""
    min_ttft_ms: float = 0.0
    min_tpot_ms: float = 0.0
    prompt_half_width: float = 0.0
    unmeasured_share: float = 0.0
    static_share: float = 0.0
    unmeasured_kernels: tuple[str, ...] = ()

    @property
    def tpot_ms(self) -> float:
        """The time per output token after the first; NaN if answers have one token."""
        return self.step_ms if self.load.output > 1 else nan

    @property
    def step_ms(self) -> float:
        """The mean time of a step, with its share of prompts."""
        return self.decode_ms + self.prompts_ms

    @property
    def prompts_ms(self) -> float:
        """The part of TPOT that other requests' prompts take."""
        return self.prompts_per_token * self.prompt_ms

    @property
    def prompts_per_token(self) -> float:
        """The number of prompts that a stage processes between two tokens of a request."""
        return min((self.running - 1) / max(self.load.output - 1, 1), self._max_prompts) / self.stages

    @property
    def _max_prompts(self) -> float:
        return max(MAX_BATCHED_TOKENS / self.load.new, (self.running - 1) / (MIN_ANSWER_TOKENS - 1))

    @property
    def queued(self) -> float:
        """The number of other prompts that a prompt waits for if the steps of an answer have no room for all."""
        return max(self.running - 1 - (self.load.output - 1) * self._max_prompts, 0.0) / self.stages

    def ttft_ms(self, start_steps: float, share: float) -> float:
        """Return the time to first token."""
        return self.admitted_ttft_ms(start_steps, share) + self.slot_ms

    def admitted_ttft_ms(self, start_steps: float, share: float) -> float:
        """Return the time to first token of a request that has a slot in the cache."""
        prompts = 1 + share * (self.running - 1) / self.stages
        return max(start_steps * self.waited_step_ms + self.prompt_ms * prompts, self.prompt_ms * (1 + self.queued))

    @property
    def waited_step_ms(self) -> float:
        """The mean time of a step before a first token: prompts are at most as frequent as for `MIN_ANSWER_TOKENS`."""
        prompts_per_token = (self.running - 1) / (MIN_ANSWER_TOKENS - 1) / self.stages
        return self.decode_ms + min(self.prompts_per_token, prompts_per_token) * self.prompt_ms

    @property
    def slot_ms(self) -> float:
        """The time for which a request waits for a slot in the cache."""
        request_ms = self.prompt_ms * (1 + self.queued) + (self.load.output - 1) * self.step_ms
        return (self.users - self.running) / self.running * request_ms

    def intervals(self, model: ServerModel) -> tuple[TimeInterval, TimeInterval, TimeInterval]:
        """Return TTFT, TPOT, and the time for which a request holds its slot in the cache.

        No lower end is below the bound by peak rates.
        """
        min_ms, delay_ms = self.min_ttft_ms * (1 + self.queued), model.delay_steps * self.waited_step_ms
        admitted_ms = self.admitted_ttft_ms(model.start_steps, model.share)
        low, high = (hypot(width, self.prompt_half_width) for width in model.ttft)
        ttft = _interval(admitted_ms + self.slot_ms, (low, high), min_ms, delay_ms)
        admitted_ttft = _interval(admitted_ms, (low, high), min_ms, delay_ms)
        low, high = (hypot(width, self.half_width) for width in model.tpot)
        tpot = _interval(self.tpot_ms, (low, high), self.min_tpot_ms)
        return ttft, tpot, self.request_ms(admitted_ttft, tpot)

    def request_ms(self, ttft: TimeInterval, tpot: TimeInterval) -> TimeInterval:
        """Return the time of a whole answer."""
        count = self.load.output - 1
        return TimeInterval(*(start + (count * token if count else 0) for start, token in zip(ttft, tpot, strict=True)))

    @property
    def bound(self) -> str:
        """The limit of the replica: "memory" if users wait for a slot in the cache, else the largest part.

        It is "memory", too, if the replica does not fit.
        """
        waits = not self.fits or (self.running < self.users and not self.queued)  # waiting prompts need no slot
        return "memory" if waits else max(self.parts, key=lambda part: self.parts[part])


def _interval(time: float, widths: tuple[float, float], minimum: float, delay_ms: float = 0.0) -> TimeInterval:
    low, high = widths
    return TimeInterval(time, min(time, max(time * exp(-low), minimum)), (time + delay_ms) * exp(high))


class ServerKernels:
    """Kernel times on a GPU from the tables of every framework on it; each table is loaded once."""

    def __init__(self, device: Gpu) -> None:
        self.device = device
        self._predictors: dict[str, Predictors] = {}

    def answers(self, library: str, problems: Sequence[Operator]) -> tuple[dict[Operator, ProblemTime], set[Operator]]:
        """Return problem → time, and the problems for which the framework's table has only its harness floor.

        Times come from the framework's own table or from other tables, as the module's docstring explains.
        """
        answers = self._own_times(library, problems)
        floored_problems = {problem for problem, answer in answers.items() if answer.source == FLOOR}
        unmeasured = {problem for problem, answer in answers.items() if answer.source in (FLOOR, ROOFLINE)}
        replaceable = {problem for problem in unmeasured if not isinstance(problem, Streamed)}
        retimed_problems = [problem for problem in problems if part_of(problem) == PRODUCTS or problem in replaceable]
        transfers = [problem for problem in replaceable if part_of(problem) == COMMUNICATION]
        others = [name for name in frameworks_on(self.device) if name != library]
        others += VENDOR_KERNELS.get(self.device.vendor, ())
        for name, subset in (*((name, retimed_problems) for name in others), (COLLECTIVES, transfers)):
            for problem, answer in self._own_times(name, subset).items() if subset else ():
                if _preference(answer) < _preference(answers[problem]):
                    answers[problem] = answer
        return answers, floored_problems

    def _own_times(self, name: str, problems: Sequence[Operator]) -> dict[Operator, ProblemTime]:
        from surrogate.prediction.shipped import load_operators

        if name not in self._predictors:
            self._predictors[name] = Predictors(self.device, None, load_operators(self.device.name, name))
        # Attention over a prefix was not measured: it takes at most the time of a whole prompt with the same context.
        attention = [each for each in problems if isinstance(each, AttentionOperator) and each.phase == "context"]
        full: dict[Operator, Operator] = {each: replace(each, query_length=each.context_length) for each in attention}
        answers = self._predictors[name].default_math_answers([*problems, *full.values()])
        times = {each: (answer, answers[full.get(each, each)]) for each, answer in answers.items()}
        return {each: min(times[each], key=lambda answer: answer.time_us) for each in problems if each in times}


def _preference(answer: ProblemTime) -> tuple[int, float]:
    """Return the sort key of a kernel's times: measured on the GPU first, then the fastest; floors last."""
    is_unknown, is_unmeasured = answer.source in (FLOOR, ROOFLINE), answer.source in SOURCES_WITHOUT_GPU_DATA
    return 2 if is_unknown else int(is_unmeasured), 0.0 if is_unknown else answer.time_us


def server_steps(
    decoder: Decoder, load: Load, kernels: ServerKernels, library: str, setups: Iterable[Setup]
) -> dict[Setup, ServerSteps | InputError]:
    """Return each setup's steps, or the error that refuses it; all kernels are predicted together."""
    results: dict[Setup, ServerSteps | InputError] = {}
    sized_steps: dict[Setup, _SizedSteps] = {}
    for setup in setups:
        try:
            sized_steps[setup] = _size_steps(decoder, load, kernels.device, setup)
        except InputError as error:
            results[setup] = error
    steps = [step for each in sized_steps.values() for step in (each.prompt, each.decode)]
    step_counts = {id(step): step.kernel_counts() for step in steps}
    problems = dict.fromkeys(problem for counts in step_counts.values() for problem in counts)
    answers, floored_problems = kernels.answers(library, list(problems))
    step_times = {key: _time(counts, answers, floored_problems, kernels.device) for key, counts in step_counts.items()}
    for setup, each in sized_steps.items():
        results[setup] = _steps(load, each, step_times[id(each.prompt)], step_times[id(each.decode)])
    return results


class _SizedSteps(NamedTuple):
    """A setup's two steps, and fields of `ServerSteps`."""

    prompt: Step
    decode: Step
    fields: Mapping[str, Any]


class _StepTime(NamedTuple):
    """The time of a step in µs.

    ``parts`` are its parts. ``half_width`` and ``unmeasured_share`` are as in `ServerSteps`, for the step alone.
    ``unmeasured_kernels``, ``floored_problems`` and ``all_reduce_source`` are, too. ``refusal`` is the reason if a GPU
    cannot run the step. The times of arithmetic and bytes at peak rates are ``compute_us`` and ``memory_us``.
    """

    time_us: float
    parts: Mapping[str, float]
    half_width: float
    unmeasured_share: float
    unmeasured_kernels: tuple[str, ...]
    floored_problems: tuple[Operator, ...]
    all_reduce_source: str
    refusal: str
    compute_us: float
    memory_us: float


@lru_cache(maxsize=256)
def _request_step(decoder: Decoder, deployment: Deployment, new: int, context: int) -> Step:
    """Return the step of one request."""
    return Step(decoder, [Requests(1, new, context)], deployment, new)


def _size_steps(decoder: Decoder, load: Load, device: Gpu, setup: Setup) -> _SizedSteps:
    """Return the number of running requests and the step that decodes them, with half of each answer in the cache.

    The cache has room for one request of full length, and for half of each other answer.
    """
    deployment = setup.deployment
    users = ceil_div(setup.users, deployment.data_parallel)
    context = load.input + load.output // 2
    prompt = _request_step(decoder, deployment, load.new, load.input)
    request = _request_step(decoder, deployment, 1, context).network
    uses = memory(request, 0, device)
    reserved_bytes = sum(uses.values()) - request.state_bytes
    full_bytes = _request_step(decoder, deployment, 1, load.max_tokens(decoder)).kv_bytes
    spare_bytes = load.utilization * usable_bytes(device) - reserved_bytes - full_bytes
    running = min(users, 1 + int(max(spare_bytes, 0.0) / request.state_bytes))
    batch = ceil_div(running, deployment.pipeline_parallel)
    decode = Step(decoder, [Requests(batch, 1, context)], deployment, batch)
    fields = {"users": users, "running": running, "stages": deployment.pipeline_parallel, "fits": spare_bytes >= 0}
    fields["static_share"] = load.utilization - (reserved_bytes - uses["weights"]) / usable_bytes(device)
    fields["memory_bytes"] = reserved_bytes + full_bytes + (running - 1) * request.state_bytes
    return _SizedSteps(prompt, decode, fields)


def _time(
    kernels: Mapping[Operator, int], answers: Mapping[Operator, ProblemTime], floored: Container[Operator], device: Gpu
) -> _StepTime:
    parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    unmeasured_us = width_us = 0.0
    refusal = ""
    for problem, count in kernels.items():
        answer = answers[problem]
        parts[part_of(problem)] += count * answer.time_us
        unmeasured_us += count * answer.time_us * (answer.source in SOURCES_WITHOUT_GPU_DATA)
        width_us += count * answer.time_us * (step_half_width(problem, answer, device) or 0.0)
        if answer.source == ROOFLINE and problem.MULTIPLIES:
            refusal = refusal or (missing_units(device, problem.dtype, problem.math) or "")
    floored_in_step = tuple(problem for problem in kernels if problem in floored)
    all_reduce_source = next((answers[problem].source for problem in kernels if part_of(problem) == COMMUNICATION), "")
    time_us = sum(parts.values())
    unmeasured = [each for each in kernels if answers[each].source in SOURCES_WITHOUT_GPU_DATA]
    names = {f"{problem.kind} {problem.dtype}" for problem in unmeasured if problem.uses_tensor_cores}
    shares = width_us / time_us, unmeasured_us / time_us, tuple(sorted(names))
    return _StepTime(
        time_us, parts, *shares, floored_in_step, all_reduce_source, refusal, *step_bounds_us(kernels.items(), device)
    )


def _steps(load: Load, sized_steps: _SizedSteps, prompt: _StepTime, decode: _StepTime) -> ServerSteps | InputError:
    if prompt.refusal or decode.refusal:
        lacks = prompt.refusal or decode.refusal
        return InputError(f"{lacks}; give {'--dtype fp16' if 'bf16' in lacks else 'another --dtype'}, or another --gpu")
    steps = ServerSteps(
        load=load,
        **sized_steps.fields,
        decode_ms=decode.time_us / 1e3,
        prompt_ms=prompt.time_us / 1e3,
        parts={},
        half_width=0.0,
        prompt_half_width=prompt.half_width,
        unmeasured_share=decode.unmeasured_share,
        unmeasured_kernels=decode.unmeasured_kernels,
        floored_problems=(*prompt.floored_problems, *decode.floored_problems),
        all_reduce_source=decode.all_reduce_source,
        min_ttft_ms=max(prompt.compute_us, prompt.memory_us) / 1e3,
    )
    # A step with a prompt and decoded tokens reads the weights once for both.
    arithmetic_us = decode.compute_us + steps.prompts_per_token * prompt.compute_us
    total_ms = steps.decode_ms + steps.prompts_ms
    parts = {name: decode.parts[name] / 1e3 / total_ms for name in PARTS}
    communication = steps.prompts_per_token * prompt.parts[COMMUNICATION] / 1e3 / total_ms
    parts[COMMUNICATION] += communication
    parts[PROMPTS] = steps.prompts_ms / total_ms - communication
    half_width = (decode.half_width * steps.decode_ms + prompt.half_width * steps.prompts_ms) / total_ms
    min_tpot_ms = max(arithmetic_us, decode.memory_us) / 1e3
    return replace(steps, parts=parts, half_width=half_width, min_tpot_ms=min_tpot_ms)
