"""What a checkpoint's ``quantization_config`` says: the arithmetic of a decoder's products, and of its KV cache.

Every form is read into the same two things: rules (names of modules → arithmetic), and names that are kept as they are.
Sources: the configurations of ``transformers``; compressed-tensors' schemes and its matching of targets; NVIDIA Model
Optimizer's and AMD Quark's exported files; GPTQModel's ``dynamic``; torchao's ``quant_type``.
"""

import fnmatch
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from surrogate.features.errors import InputError, read_bounded
from surrogate.features.problem import QUANTISED

Json = Mapping[str, object]

BESIDE = "hf_quant_config.json"
"""Where Model Optimizer writes what other tools write into the ``config.json`` beside it."""
MAX_BYTES = 1 << 22
MAX_REPEATS = 5
"""Repeats of a pattern: more of them could take minutes on a name of sixty letters."""
GROUP = 128
"""Weights that share a scale in ``int4_wo`` (`surrogate.features.problem.QUANTISED`)."""
HEAD = "lm_head"
MIXED = "MIXED_PRECISION"
TABLE = tomllib.loads(Path(__file__).with_name("checkpoint.toml").read_text(encoding="utf-8"))
"""What the words of files mean; the file says what its sections are."""


class _UnreadError(Exception):
    """What came, in words that an `InputError` takes up."""


class Names:
    """Module names and patterns.

    Those are ``re:`` and an expression as compressed-tensors matches it, ``*`` as in Model Optimizer's, and whole
    parts of a dotted name. ``Linear`` stands for all products of layers.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        texts = list(texts)
        self.all = "Linear" in texts
        patterns = [_expression(text.removeprefix("re:")) for text in texts if text.startswith("re:")]
        for text in (_in_text_model(text) for text in texts if "*" in text and not text.startswith("re:")):
            patterns += [fnmatch.translate(text), fnmatch.translate(f"{text}.*")]
        self._patterns = [re.compile(pattern) for pattern in dict.fromkeys(patterns)]
        self._parts = {_in_text_model(text).strip(".") for text in texts if "*" not in text}

    def has(self, module: str) -> bool:
        """Whether the module, or one that it is part of, is among them."""
        words = module.split(".")
        ends = range(1, len(words) + 1)
        parts = {".".join(words[start:end]) for end in ends for start in range(end)}
        inner = module.removeprefix("model.")
        names = (module, f"model.language_model.{inner}", f"language_model.{module}")
        return (
            (self.all and module != HEAD)
            or not self._parts.isdisjoint(parts)
            or any(pattern.match(name) for pattern in self._patterns for name in names)
        )


def _in_text_model(name: str) -> str:
    """The name within the language model of one that also sees."""
    return name.replace("language_model.", "", 1)


def _expression(text: str) -> str:
    """A regular expression of which matching takes no more than moments."""
    repeats = sum(text.count(sign) for sign in "*+{?")
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError):
        raise _UnreadError(f"the pattern {text[:40]!r} is no regular expression") from None
    if repeats > MAX_REPEATS or re.search(r"\)[*+{]", text):
        raise _UnreadError(f"the pattern {text[:40]!r} repeats more than {MAX_REPEATS} times, or a group")
    return text


EVERY = Names(["Linear"])


class Read(NamedTuple):
    """Rules in the order in which they are asked, and names that stay as they are; ``scale_bytes``: of a 4-bit weight,
    beyond those that ``int4_wo`` has."""

    rules: tuple[tuple[Names, str], ...] = ()
    kept: Names = Names()
    kv_dtype: str = ""
    scale_bytes: float = 0.0


PLAIN = Read()


@dataclass(frozen=True)
class Checkpoint:
    """The arithmetic of every product of a decoder whose other values are ``plain``.

    ``kv_dtype`` is the KV cache's element type, "" where it is as the rest. ``refusal`` says why the products of the
    file cannot be timed; another arithmetic (`all_in`) can be.
    """

    plain: str = "bf16"
    model_type: str = ""
    read: Read = PLAIN
    refusal: str = ""
    _answers: dict[tuple[str, int | None], str] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def kv_dtype(self) -> str:
        return self.read.kv_dtype

    def all_in(self, dtype: str, plain: str) -> "Checkpoint":
        """Every product of a layer in ``dtype``, whatever the file says of them."""
        read = Read(((EVERY, dtype),), Names(), self.read.kv_dtype)
        return Checkpoint(plain, self.model_type, read)

    def with_types(self, types: Mapping[str, str]) -> "Checkpoint":
        """The same products, those in a type that is a key of ``types`` in the other."""
        rules = tuple((names, types.get(dtype, dtype)) for names, dtype in self.read.rules)
        return replace(self, read=self.read._replace(rules=rules))

    def of(self, word: str, layer: int | None = None) -> str:
        """The arithmetic of a kernel's product by its word, within a layer or, as the head, outside.

        A router stays plain: servers compute it so whatever the file says. Raises `InputError` for a file that cannot
        be timed, and for products of one kernel that differ.
        """
        if self.refusal:
            raise InputError(self.refusal)
        if word == "router":
            return self.plain
        key = word, layer
        if key not in self._answers:
            self._answers[key] = self._found(word, layer)
        return self._answers[key]

    def _found(self, word: str, layer: int | None) -> str:
        modules = [_renamed(name, self.model_type) for name in TABLE["modules"].get(word, (word,))]
        if layer is not None:
            modules = [f"model.layers.{layer}.{name}" for name in modules]
        found = dict.fromkeys(self._of_module(module) for module in modules)
        if len(found) > 1:
            raise InputError(
                f"quantization_config: {' and '.join(modules)} are one product, and {' and '.join(found)};"
                " give --dtype to time all products alike"
            )
        return next(iter(found))

    def _of_module(self, module: str) -> str:
        if self.read.kept.has(module):
            return self.plain
        return next((dtype for names, dtype in self.read.rules if names.has(module)), "") or self.plain


def _renamed(module: str, model_type: str) -> str:
    for ours, theirs in TABLE["renamed"].get(model_type, {}).items():
        module = module.replace(ours, theirs)
    return module


def read_checkpoint(path: Path, config: Json, plain: str) -> Checkpoint:
    """The `Checkpoint` of a ``config.json``'s content, where it has none of the file beside it.

    What cannot be timed is refused only when a product is asked for. Raises `InputError` for a KV cache of a type that
    is not known, and a damaged file beside.
    """
    model_type = str(config.get("model_type"))
    text = _object(config.get("text_config"))
    keys = ("quantization_config", "compression_config", "quantization")
    said = next((each[key] for each in (config, text) for key in keys if each.get(key)), None) or _beside(path)
    if said is None:
        return Checkpoint(plain, model_type)
    method = _method(said)
    try:
        if method not in READERS:
            raise _UnreadError(f"quant_method {method!r} is none of {', '.join(sorted(filter(None, READERS)))}")
        return Checkpoint(plain, model_type, READERS[method](_object(said)))
    except _UnreadError as reason:
        return Checkpoint(
            plain,
            model_type,
            refusal=f"{path}: quantization_config: {reason}; give --dtype, one of"
            f" {', '.join((plain, *QUANTISED))}, to time products of that type in their place",
        )


def _beside(path: Path) -> object:
    """What stands in the file that Model Optimizer writes; None where there is none."""
    other = path.with_name(BESIDE)
    if not other.is_file():
        return None
    try:
        return json.loads(read_bounded(other, MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        raise InputError(f"{other}: cannot be read; mend it, or take it away where the weights are plain") from None


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> list[str]:
    """Every text of a list, lists in it opened."""
    inner = value if isinstance(value, list | tuple) else []
    return [text for each in inner for text in ([each] if isinstance(each, str) else _texts(each))]


def _method(said: object) -> str | None:
    """The word by which a form is known: ``quant_method``, or what files without it have; None for no object."""
    if not isinstance(said, dict):
        return None
    inner = _object(said.get("quantization"))
    if "quant_algo" in said or "quant_algo" in inner:
        return "modelopt"
    fallback = "compressed-tensors" if "config_groups" in said else ""
    return str(said.get("quant_method") or fallback).lower().replace("_", "-")


def _values(part: object) -> str:
    """Weights or activations of a scheme of compressed-tensors, in the words of the table's schemes."""
    scheme = _object(part)
    if not scheme:
        return "float16"
    bits, group = scheme.get("num_bits"), scheme.get("group_size")
    name = f"{scheme.get('type', 'int')}{bits}"
    blocks = scheme.get("block_structure")
    if isinstance(blocks, list) and len(blocks) == 2:
        return f"{name} in blocks of {blocks[0]} × {blocks[1]}"
    return name if name.startswith("int") or not isinstance(group, int) or group < 1 else f"{name} in groups of {group}"


def _arithmetic(weights: str, activations: str) -> str:
    """By the table's schemes; groups of activations follow those of weights, and dynamic blocks of them fp8's."""
    dtype = TABLE["schemes"].get(weights, {}).get(activations.partition(" in ")[0])
    if dtype is None:
        raise _UnreadError(f"weights in {weights} with activations in {activations} have no measured kernels")
    return dtype


def _kv_dtype(said: object) -> str:
    """The KV cache's type by a scheme of compressed-tensors, or a word of Model Optimizer's."""
    if not said:
        return ""
    name = _values(said) if isinstance(said, dict) else str(said).lower()
    if name not in ("float8", "fp8", "fp8_e4m3"):
        raise InputError(f"quantization_config: a KV cache in {name} is not known, fp8 is; take it out of the file")
    return "fp8"


def _scale_bytes(weights: Json) -> float:
    """Bytes of a 4-bit weight's scale and zero point beyond a 16-bit scale for `GROUP`."""
    group = weights.get("group_size")
    asymmetric = weights.get("zero_point") is True or False in (weights.get("symmetric"), weights.get("sym"))
    if not isinstance(group, int) or isinstance(group, bool) or not (group == -1 or 8 <= group <= 65536):
        return 0.0
    each = 2 + (0.5 if asymmetric else 0)
    return (0 if group == -1 else each / group) - 2 / GROUP  # −1: one for a whole row


def _compressed_tensors(said: Json) -> Read:
    """Groups of targets, each with a scheme; exact names and patterns come before classes of modules."""
    if "24" in str(said.get("format")) or "24" in str(_object(said.get("sparsity_config")).get("format")):
        raise _UnreadError("weights of which two of four are 0 have no measured kernels")
    groups = [_object(group) for group in _object(said.get("config_groups")).values()]
    if not groups:
        raise _UnreadError("it has no config_groups")
    rules: list[tuple[Names, str]] = []
    for group in groups:
        dtype = _arithmetic(_values(group.get("weights")), _values(group.get("input_activations")))
        rules.append((Names(_texts(group.get("targets", ["Linear"]))), dtype))
    rules.sort(key=lambda rule: rule[0].all)
    four_bits = next((_object(group.get("weights")) for group in groups), {})
    scale_bytes = _scale_bytes(four_bits) if any(dtype == "int4_wo" for _, dtype in rules) else 0.0
    kept = Names(_texts(said.get("ignore")))
    return Read(tuple(rules), kept, _kv_dtype(said.get("kv_cache_scheme")), scale_bytes)


def _model_optimizer(said: Json) -> Read:
    """One algorithm for all but the excluded modules, or (mixed precision) one for each that is listed."""
    inner = _object(said.get("quantization")) or said
    kept = Names([*_texts(inner.get("exclude_modules")), *_texts(inner.get("ignore"))])
    kv_dtype = _kv_dtype(inner.get("kv_cache_quant_algo") or inner.get("kv_cache_scheme"))
    listed = {name: _object(each).get("quant_algo") for name, each in _object(inner.get("quantized_layers")).items()}
    if listed:
        # What is not listed is as another method says beside it (experts alone in 4 bits, the rest in fp8).
        base = _fp8(inner).rules if inner.get("quant_method") == "fp8" else ()
        modules = [
            (Names([name for name in listed if listed[name] == algo]), _algorithm(algo))
            for algo in dict.fromkeys(listed.values())
        ]
        return Read((*modules, *base), Names(["lm_head"]) if base else kept, kv_dtype)
    algorithm = inner.get("quant_algo")
    if algorithm == MIXED and inner.get("config_groups"):
        return _compressed_tensors(inner)
    return Read(((EVERY, _algorithm(algorithm)),) if algorithm else (), kept, kv_dtype)


def _algorithm(name: object) -> str:
    if str(name) not in TABLE["algorithms"]:
        raise _UnreadError(f"quant_algo {name} has no measured kernels")
    return TABLE["algorithms"][str(name)]


def _skipped(said: Json) -> Names:
    """Names that methods of transformers leave alone; the head is always among them."""
    keys = ("modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules")
    return Names([HEAD, *(text for key in keys for text in _texts(said.get(key)))])


def _fp8(said: Json) -> Read:
    """One scale a tensor, or blocks of 128 × 128."""
    if said.get("dequantize") is True:
        return PLAIN
    kind = str(said.get("fmt", "e4m3"))
    if "e4m3" not in kind or said.get("expert_dtype", "fp8") != "fp8":
        raise _UnreadError(f"fp8 in {kind} with experts in {said.get('expert_dtype', 'fp8')} has no measured kernels")
    blocks = said.get("weight_block_size")
    weights = f"float8 in blocks of {' × '.join(map(str, blocks))}" if isinstance(blocks, list) and blocks else "float8"
    return Read(((EVERY, _arithmetic(weights, "float8")),), _skipped(said))


def _integers(said: Json) -> Read:
    """AWQ, GPTQ and AutoRound: weights alone in 4 or 8 bits, some modules otherwise by ``dynamic`` or extra_config."""
    rules: list[tuple[Names, str]] = []
    kept = _texts(said.get("modules_to_not_convert"))
    dynamic = {name.removeprefix("+:"): _object(each) for name, each in _object(said.get("dynamic")).items()}
    kept += [f"re:{name.removeprefix('-:')}" for name in dynamic if name.startswith("-:")]
    others = {f"re:{name}": each for name, each in dynamic.items() if not name.startswith("-:")}
    others |= {name: _object(each) for name, each in _object(said.get("extra_config")).items()}
    for name, each in others.items():
        bits = each.get("bits", said.get("bits"))
        kept += [name] if bits == 16 else []
        rules += [(Names([name]), _arithmetic(f"int{bits}", "float16"))] if bits != 16 else []
    inside = _texts(said.get("modules_in_block_to_quantize"))
    bits = said.get("bits", said.get("w_bit", said.get("weight_bits")))
    rules.append((Names(inside or ["Linear"]), _arithmetic(f"int{bits}", "float16")))
    kept += [] if said.get("lm_head") is True else [HEAD]
    if said.get("lm_head") is True:
        rules.append((Names([HEAD]), rules[-1][1]))
    return Read(tuple(rules), Names(kept), scale_bytes=_scale_bytes(said) if bits == 4 else 0.0)


def _bits_and_bytes(said: Json) -> Read:
    """Its kernels unpack to half precision, or split off outliers, and were never measured."""
    raise _UnreadError(f"bitsandbytes in {4 if said.get('load_in_4bit') else 8} bits has no measured kernels")


def _torchao(said: Json) -> Read:
    kind = said.get("quant_type")
    form = _object(_object(kind).get("default"))
    name = str(form.get("_type") if form else kind)
    key = name.removesuffix("Config").replace("_", "").lower()
    if key not in TABLE["torchao"]:
        raise _UnreadError(f"torchao's {name[:60]} has no measured kernels")
    data = _object(form.get("_data")) if form else _object(said.get("quant_type_kwargs"))
    dtype = _arithmetic(*TABLE["torchao"][key])
    return Read(((EVERY, dtype),), _skipped(said), "", _scale_bytes(data) if dtype == "int4_wo" else 0.0)


def _quark(said: Json) -> Read:
    """A scheme for all and schemes by pattern, of which those of keys and values may be the cache's."""
    kept = Names(_texts(said.get("exclude")))
    patterns = _object(said.get("layer_quant_config"))
    rules = [(Names([name]), _quark_scheme(_object(each))) for name, each in patterns.items()]
    rules.append((EVERY, _quark_scheme(_object(said.get("global_quant_config")))))
    caches = [*patterns.values(), *_object(said.get("kv_cache_quant_config")).values()]
    kinds = {str(_object(_object(each).get("output_tensors")).get("dtype", "")) for each in caches} - {""}
    return Read(tuple(rules), kept, _kv_dtype(next(iter(kinds), "")))


def _quark_scheme(said: Json) -> str:
    """The arithmetic of a scheme; 4-bit floats have groups of 32, as OCP's formats."""

    def values(part: object) -> str:
        each = _object(part[0] if isinstance(part, list) and part else part)
        if not each:
            return "float16"
        name = TABLE["quark"].get(str(each.get("dtype")), str(each.get("dtype")))
        group = f" in groups of {each.get('group_size')}" if each.get("qscheme") == "per_group" else ""
        return name if name.startswith("int") else name + group

    return _arithmetic(values(said.get("weight")), values(said.get("input_tensors")))


def _fixed(rules: Mapping[str, str], said: Json) -> Read:
    """What the method's name says alone, by the table."""
    if said.get("dequantize") is True:
        return PLAIN
    return Read(tuple((Names([name]), dtype) for name, dtype in rules.items()), _skipped(said))


READERS: Mapping[str | None, Callable[[Json], Read]] = {
    "compressed-tensors": _compressed_tensors,
    "modelopt": _model_optimizer,
    "modelopt-fp4": _model_optimizer,
    "fp8": _fp8,
    "awq": _integers,
    "gptq": _integers,
    "auto-round": _integers,
    "intel/auto-round": _integers,
    "auto-awq": _integers,
    "bitsandbytes": _bits_and_bytes,
    "torchao": _torchao,
    "quark": _quark,
    **{method: partial(_fixed, rules) for method, rules in TABLE["fixed"].items()},
}
"""``quant_method``, or the form's own marks → its reader."""
