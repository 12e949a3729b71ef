"""ATen calls → `Network`: every call handled, ignored on purpose, or named as unsupported."""

from surrogate.features.errors import InputError
from surrogate.network.aten_call import Call
from surrogate.network.aten_names import IGNORED
from surrogate.network.aten_ops import HANDLED
from surrogate.network.network import Tally
from surrogate.network.tensor import UnsupportedError

IN_INFERENCE = ("dropout", "native_dropout", "feature_dropout", "alpha_dropout")
"""What an exported program may still name, and inference passes through."""


def base_name(target: str) -> str:
    """``aten::add_.Tensor``, ``torch.ops.aten.add_.Tensor`` or ``aten.add_.Tensor`` → ``add``."""
    name = target.removeprefix("torch.ops.").replace("::", ".")
    namespace, _, rest = name.partition(".")
    operator = rest.split(".")[0] if namespace == "aten" else name
    return operator.rstrip("_") if not operator.startswith("__") else operator


def tell(call: Call, tally: Tally, *, training: bool) -> None:
    """Add the call's layers, or count it."""
    passed = call.op in IN_INFERENCE and not training and not call.arguments.get("train")
    if passed or call.op in IGNORED or call.op.startswith(("prim.", "_operator.")):
        tally.ignored[call.op] += 1
    elif call.op not in HANDLED:
        tally.unsupported[call.op] += 1
    else:
        try:
            tally.add(list(HANDLED[call.op](call)))
        except UnsupportedError as why:
            tally.unsupported[f"{call.op} ({why.label})"] += 1
        except InputError as why:
            tally.unsupported[f"{call.op} ({str(why).split(';')[0]})"] += 1
