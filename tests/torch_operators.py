"""Count torch's own operators by their answers: ``python -m tests.torch_operators`` prints both passes.

The operators are the ``OpInfo`` entries of torch's tests, each with its first sample that launches a kernel, in fp32 or
in its first other type. Training takes the entries with a gradient in fp32. An entry is answered if its time is finite
and names no unsupported operator. ``--by-operator`` adds the unsupported operators, the commonest first, and entries.
"""

import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from math import isfinite

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from surrogate.features.errors import InputError
from surrogate.network.network import ReadOptions
from surrogate.network.predict import Predictors, load_predictors
from surrogate.network.torch_module import module_network

NO_KERNEL = "launches no kernel"
REFUSALS = {NO_KERNEL: NO_KERNEL, "needs the values": "needs values", "needs no gradient": "needs no gradient"}
"""Text of a refusal → its status; other refusals are "refused in a line"."""
MAX_SAMPLES = 12


class OperatorModule(torch.nn.Module):
    """One operator as a module."""

    def __init__(self, entry: OpInfo) -> None:
        super().__init__()
        self.function = entry.op

    def forward(self, *args: object, **kwargs: object) -> object:
        """Return the operator's result."""
        return self.function(*args, **kwargs)


def entries(*, training: bool) -> Iterator[tuple[str, OpInfo, torch.dtype]]:
    """Yield the name, the entry and the type of its samples."""
    for entry in op_db:
        types = entry.supported_backward_dtypes("cpu") if training else entry.supported_dtypes("cpu")
        dtype = torch.float32 if torch.float32 in types else min(types, key=str, default=torch.float32)
        if not training or (entry.supports_autograd and torch.float32 in types):
            yield f"{entry.name}.{entry.variant_test_name}".rstrip("."), entry, dtype


def answer(entry: OpInfo, sample: SampleInput, predictors: Predictors, *, training: bool) -> tuple[str, list[str]]:
    """Return the status of a sample, and its unsupported operators or its refusal."""
    inputs = (sample.input, *sample.args), sample.kwargs
    try:
        time = predictors.time(module_network(OperatorModule(entry), inputs, ReadOptions(training=training)))
    except InputError as error:
        return next((status for text, status in REFUSALS.items() if text in str(error)), "refused in a line"), [
            str(error)
        ]
    except Exception as error:
        return "traceback", [f"{type(error).__name__}: {error}"]
    if time.unsupported:
        return "names unsupported operators", [part.partition(" (")[0] for part in time.unsupported]
    return "answered" if isfinite(time.total_us) else "infinite", []


def print_counts(*, training: bool, by_operator: bool, gpu: str = "h100-sxm") -> None:
    """Print the number of entries by status."""
    predictors = load_predictors(gpu)
    found: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for name, entry, dtype in entries(training=training):
        samples = islice(entry.sample_inputs("cpu", dtype, requires_grad=training), MAX_SAMPLES)
        answers = (answer(entry, sample, predictors, training=training) for sample in samples)
        status, reasons = next((each for each in answers if each[0] != NO_KERNEL), (NO_KERNEL, []))
        found[status][name] = reasons
    print("training" if training else "forward")
    for status, names in sorted(found.items(), key=lambda item: -len(item[1])):
        print(f"  {status:30}{len(names):6,}")
    behind: dict[str, list[str]] = defaultdict(list)
    for status in found.keys() - {"answered"} if by_operator else ():
        for name, reasons in found[status].items():
            for reason in set(reasons or [status]):
                behind[reason].append(name)
    for reason, names in sorted(behind.items(), key=lambda item: -len(item[1])):
        print(f"    {len(names):4} {reason}: {' '.join(sorted(names))}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print_counts(training=False, by_operator="--by-operator" in sys.argv)
    print_counts(training=True, by_operator="--by-operator" in sys.argv)
