"""What a search for servers tries: parallelism, replicas, users and types, as a caller narrows them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from surrogate.features.elementwise import MAX_INT32, ceil_div, whole
from surrogate.features.errors import require_known
from surrogate.features.gpu import Gpu
from surrogate.features.problem import ELEMENTS, QUANTISED
from surrogate.features.roofline import missing_units
from surrogate.network.language import DOMAINS, NODE, ROUTING, Decoder, Deployment, main_dtype
from surrogate.network.network import FRAMEWORKS
from surrogate.network.serving import Setup

USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of users of a replica that are tried where a caller names none."""
COUNTS = ("concurrency", "tensor_parallel", "expert_parallel", "pipeline_parallel", "attention_parallel", "gpus")
"""Fields of `Choices` that are whole numbers."""
UNPACKED = {"fp8": "int8_wo", "fp8_block": "int8_wo"}
"""What stands for weights in fp8 on GPUs without units for it: kernels that unpack weights of 8 bits, too."""
UNPACKING = ("vllm", "sglang")
"""Servers that run them there (Marlin); TensorRT-LLM does not."""


class Plan(NamedTuple):
    """A replica's setup, the number of replicas, and the users of all of them."""

    setup: Setup
    replicas: int
    users: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What is searched: each field one or several values, or nothing where the search finds them itself.

    ``libraries`` are frameworks (vllm, sglang, trtllm; without: all); ``concurrency`` users at a time on all replicas
    together (without: 1 to 256 on one); ``tensor_parallel`` GPUs share a layer, ``pipeline_parallel`` stages hold
    different layers, ``attention_parallel`` groups of GPUs attend to requests of their own and share the experts, of
    which ``expert_parallel`` GPUs hold different ones. ``dtypes`` are the products' element types (without: the
    checkpoint as it is, as servers run it), ``kv_dtypes`` the cache's (without: the model's own). ``routing`` says how
    tokens spread over experts (balanced, power_law_1.01 …); ``gpus`` is the most GPUs of all replicas.
    """

    libraries: str | Sequence[str] = ()
    concurrency: int | Sequence[int] = ()
    tensor_parallel: int | Sequence[int] = ()
    expert_parallel: int | Sequence[int] = ()
    pipeline_parallel: int | Sequence[int] = ()
    attention_parallel: int | Sequence[int] = ()
    dtypes: str | Sequence[str] = ()
    kv_dtypes: str | Sequence[str] = ()
    routing: str = ROUTING
    gpus: int = NODE

    def several(self, name: str) -> Sequence[Any]:
        """The values of a field, also of one that was given alone."""
        values = getattr(self, name)
        return (values,) if isinstance(values, int | str) else tuple(values)

    def check(self) -> None:
        """Raise `InputError` for what is no count and no known type or framework."""
        for name in COUNTS:
            for number in self.several(name):
                whole("seer serving", f"--{name.replace('_', '-')}", number, most=MAX_INT32)
        for kind, field, known in (("library", "libraries", FRAMEWORKS), ("dtype", "dtypes", ELEMENTS)):
            for name in self.several(field):
                require_known(kind, name, known)

    def plans(self, decoder: Decoder, device: Gpu) -> Iterator[Plan]:
        """Every configuration of the search on a GPU."""
        node = DOMAINS.get(device.name, NODE)
        powers = [2**power for power in range(self.gpus.bit_length())]
        pipelines, dtypes, kv_dtypes = map(self.several, ("pipeline_parallel", "dtypes", "kv_dtypes"))
        concurrency = self.several("concurrency")
        for tensor, data in self._groups(decoder, powers):
            ranks = tensor * data
            spread = (1, ranks) if decoder.experts and decoder.experts % ranks == 0 else (1,)
            experts = self.several("expert_parallel") or spread
            # Stages are tried of whole domains alone: within one, sums over NVLink are shorter.
            stages = pipelines or [1, *(way for way in powers[1:] if ranks == node and way <= len(decoder.windows))]
            ways = product(dict.fromkeys(experts), stages, dtypes or (None,), kv_dtypes or (None,))
            for expert, pipeline, dtype, kv_dtype in ways:
                deployment = Deployment(
                    tensor_parallel=tensor,
                    data_parallel=data,
                    expert_parallel=expert,
                    pipeline_parallel=pipeline,
                    dtype=dtype,
                    kv_dtype=kv_dtype,
                    routing=self.routing,
                    node=node,
                )
                most = self.gpus // deployment.gpus
                for users in concurrency or USERS:
                    before = 0
                    for replicas in range(1, min(most, users if concurrency else 1) + 1):
                        each = ceil_div(users, replicas)
                        if each != before and each >= data:  # a further replica that relieves none is a waste
                            yield Plan(Setup(deployment, each), replicas, users)
                        before = each

    def _groups(self, decoder: Decoder, powers: Sequence[int]) -> list[tuple[int, int]]:
        """Ways of tensor parallelism and of attention over requests of one's own, which pays for a latent cache."""
        asked, attention = self.several("tensor_parallel"), self.several("attention_parallel")
        tensor = asked or [way for way in powers if decoder.heads % way == 0]
        if attention or asked or not (decoder.family.latent and decoder.experts):
            return list(product(tensor, attention or (1,)))
        return [*((way, 1) for way in tensor), *((1, way) for way in powers[1:] if decoder.experts % way == 0)]

    def left_out(self, plans: Sequence[Plan]) -> Iterator[str]:
        """A note for each number that was asked for and is in no plan."""
        for name in COUNTS[:-1]:
            of = name.replace("attention_", "data_")
            planned = {plan.users if name == "concurrency" else getattr(plan.setup.deployment, of) for plan in plans}
            for number in dict.fromkeys(self.several(name)):
                if number not in planned:
                    option = name.replace("_", "-")
                    yield f"--{option} {number} is left out: no configuration within --gpus {self.gpus} has it"

    def too_few(self, decoder: Decoder) -> str:
        """Why there is no configuration."""
        stages = min(self.several("pipeline_parallel") or (1,))
        tensor, data = min(self._groups(decoder, [1]), key=lambda ways: ways[0] * ways[1])
        least = tensor * data * stages
        if least > self.gpus:
            return f"the smallest configuration takes {least} GPUs; give --gpus {least}"
        return f"each of {data} groups (--attention-parallel) needs a user; give --concurrency {data} or more"

    def unpacked(self, decoder: Decoder, device: Gpu, library: str) -> tuple["Choices", Decoder, str]:
        """The search and the model where a server unpacks fp8 weights, as itself elsewhere; and a note, or ""."""
        lacks = missing_units(device, "fp8") if device.vendor == "nvidia" and device.bf16_tensor_tflops else None
        asked = self.several("dtypes") or [main_dtype(decoder, None)]
        if not lacks or library not in UNPACKING or UNPACKED.keys().isdisjoint(asked):
            return self, decoder, ""
        choices = replace(self, dtypes=tuple(UNPACKED.get(name, name) for name in self.several("dtypes")))
        other = replace(decoder, checkpoint=decoder.checkpoint.with_types(UNPACKED))
        return choices, other, f"{lacks}: servers unpack fp8 weights to 16 bits, timed as kernels measured for int8_wo"

    def notes(self, decoder: Decoder) -> Iterator[str]:
        """What a reader must know of the types of weights and cache."""
        if "fp8" in self.several("kv_dtypes") and decoder.checkpoint.kv_dtype != "fp8":
            yield f"fp8: a cache quantised from the model's {decoder.dtype}; its quality is not judged"
        own = "own type" if decoder.checkpoint.refusal and self.several("dtypes") else main_dtype(decoder, None)
        asked = [name for name in self.several("dtypes") if name in QUANTISED and name != own]
        if asked:
            yield f"{', '.join(asked)}: weights quantised from the checkpoint's {own}; their quality is not judged"
        elif not self.several("dtypes") and own not in QUANTISED:
            yield f"the checkpoint as it is, in {own}; --dtype {own},fp8 also tries quantised weights"
