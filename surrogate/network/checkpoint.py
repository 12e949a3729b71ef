"""Read a checkpoint's ``quantization_config``: the arithmetic of a decoder's products and of its KV cache.

Every format becomes the same two things: rules (names of modules → arithmetic), and names of unquantised modules.
Sources: the configurations of ``transformers``; compressed-tensors' schemes and matching of targets; the exported files
of NVIDIA Model Optimizer and AMD Quark; GPTQModel's ``dynamic``; torchao's ``quant_type``.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from surrogate.features import QUANTISED, InputError, parsed_json, read_bounded, read_toml
from surrogate.network.network import TEXTS, refusal

Json = Mapping[str, object]

OPTIMIZER_FILE = "hf_quant_config.json"
"""Model Optimizer's own file with the quantisation; other tools write it into the ``config.json``."""
MAX_BYTES = 16 << 20
"""Maximum size of a configuration; a list of all experts of a large model takes 7 MB."""
MAX_PATTERNS = 10_000
"""Maximum patterns of a list; each takes 0.1 ms."""
MAX_REPEATS = 5
"""Maximum repeats in a pattern: more of them could take minutes for a name of sixty letters."""
SLOW_PATTERN = re.compile(r"\\[1-9]|\(\?P=|\)[*+{]|[*+}]\??(?:\.|\\[wWdDsS]|\[[^]]*\])[*+{]")
"""References to groups, repeats of groups, and adjacent repeats, which could take minutes, too."""
SCALE_GROUP = 128
"""Number of weights that share a scale in ``int4_wo`` (`surrogate.features.problem.QUANTISED`)."""
HEAD = "lm_head"
MIXED = "MIXED_PRECISION"
TABLE = read_toml(__file__)
"""Meanings of the words in checkpoints' files; comments in the file explain its sections."""


class _UnmeasuredError(Exception):
    """An unsupported quantisation; its message becomes part of an `InputError`."""


class ModuleNames:
    """A set of modules, given by names and patterns.

    A text is ``re:`` and a regular expression (compressed-tensors), a pattern with ``*`` (Model Optimizer), or whole
    parts of a dotted name. ``Linear`` means all products of layers.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        texts = list(texts)
        self.all = "Linear" in texts
        patterns = [_expression(text.removeprefix("re:")) for text in texts if text.startswith("re:")]
        for text in (_in_text_model(text) for text in texts if "*" in text and not text.startswith("re:")):
            patterns += [fnmatch.translate(text), fnmatch.translate(f"{text}.*")]
        if len(patterns) > MAX_PATTERNS:
            raise _UnmeasuredError(f"it has over {MAX_PATTERNS:,} patterns of modules")
        self._patterns = [re.compile(pattern) for pattern in dict.fromkeys(patterns)]
        self._parts = {_in_text_model(text).strip(".") for text in texts if "*" not in text}

    def has(self, module: str) -> bool:
        """Return whether the set contains the module, or a module around it."""
        words = module.split(".")
        parts = {".".join(words[start:end]) for end in range(1, len(words) + 1) for start in range(end)}
        inner = module.removeprefix("model.")
        names = (module, f"model.language_model.{inner}", f"language_model.{module}")
        matches = any(pattern.match(name) for pattern in self._patterns for name in names)
        return (self.all and module != HEAD) or not self._parts.isdisjoint(parts) or matches


def _in_text_model(name: str) -> str:
    """Return a name without the prefix of multimodal models, and with layers under ``model``, not ``backbone``."""
    return name.replace("language_model.", "", 1).replace("backbone.layers", "model.layers", 1)


def _expression(text: str) -> str:
    """Return the regular expression. Raises `_UnmeasuredError` if it is invalid or if matching may be slow."""
    text = re.sub(r"(?<!\\)(?:\.\*){2,}", ".*", text)
    repeats = sum(text.count(sign) for sign in "*+{?")
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError):
        raise _UnmeasuredError(f"the pattern {text[:40]!r} is not a regular expression") from None
    if repeats > MAX_REPEATS or SLOW_PATTERN.search(text):
        rule = f"repeats more than {MAX_REPEATS} times, refers to a group, or repeats one"
        raise _UnmeasuredError(f"the pattern {text[:40]!r} {rule}")
    return text


ALL_PRODUCTS = ModuleNames(["Linear"])


class QuantisationRules(NamedTuple):
    """The quantisation of a checkpoint.

    The first of the ``rules`` that contains a module decides its arithmetic, except for ``unquantised`` modules.
    ``scale_bytes`` are the additional bytes of scales per 4-bit weight, compared with ``int4_wo``. ``group`` is the
    number of integer weights that share a scale; 0 if it is unknown, or if a whole row shares one.
    """

    rules: tuple[tuple[ModuleNames, str], ...] = ()
    unquantised: ModuleNames = ModuleNames()
    kv_dtype: str = ""
    scale_bytes: float = 0.0
    group: int = 0


NO_RULES = QuantisationRules()


@dataclass(frozen=True)
class Checkpoint:
    """The arithmetic of every product of a decoder; ``base_dtype`` is the element type of all other values.

    ``kv_dtype`` is the KV cache's element type; "" means ``base_dtype``. If the checkpoint's products cannot be timed,
    ``refusal`` is the reason; products in another arithmetic (`all_in`) can still be timed. ``method`` is the file's
    method of quantisation.
    """

    base_dtype: str = "bf16"
    model_type: str = ""
    quantisation: QuantisationRules = NO_RULES
    refusal: str = ""
    method: str = ""
    _dtypes: dict[tuple[str, int | None], str] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def kv_dtype(self) -> str:
        return self.quantisation.kv_dtype

    def all_in(self, dtype: str, base_dtype: str) -> "Checkpoint":
        """Return a checkpoint with every product of a layer in ``dtype``."""
        quantisation = QuantisationRules(((ALL_PRODUCTS, dtype),), ModuleNames(), self.quantisation.kv_dtype)
        return Checkpoint(base_dtype, self.model_type, quantisation)

    def with_types(self, types: Mapping[str, str]) -> "Checkpoint":
        """Return a checkpoint with the arithmetic of products replaced by ``types``, old → new."""
        rules = tuple((names, types.get(dtype, dtype)) for names, dtype in self.quantisation.rules)
        return replace(self, quantisation=self.quantisation._replace(rules=rules))

    def product_dtype(self, product: str, layer: int | None = None) -> str:
        """Return the arithmetic of a product by its name, in a layer or (None) outside all layers, such as the head.

        The table's ``unquantised`` products have ``base_dtype``. Raises `InputError` if the checkpoint cannot be timed,
        or if the products of one kernel have different arithmetic.
        """
        if self.refusal:
            raise InputError(self.refusal)
        if product in TABLE["unquantised"]:
            return self.base_dtype
        key = product, layer
        if key not in self._dtypes:
            self._dtypes[key] = self._modules_dtype(product, layer)
        return self._dtypes[key]

    def _modules_dtype(self, product: str, layer: int | None) -> str:
        modules = [_renamed(name, self.model_type) for name in TABLE["modules"].get(product, (product,))]
        if layer is not None:
            modules = [f"model.layers.{layer}.{name}" for name in modules]
        found = dict.fromkeys(self._module_dtype(module) for module in modules)
        if len(found) > 1:
            raise refusal("one_product", modules=" and ".join(modules), dtypes=" and ".join(found))
        return next(iter(found))

    def _module_dtype(self, module: str) -> str:
        if self.quantisation.unquantised.has(module):
            return self.base_dtype
        return next((dtype for names, dtype in self.quantisation.rules if names.has(module)), "") or self.base_dtype


def _renamed(module: str, model_type: str) -> str:
    for ours, theirs in TABLE["renamed"].get(model_type, {}).items():
        module = module.replace(ours, theirs)
    return module


def read_checkpoint(path: Path, config: Json, base_dtype: str) -> Checkpoint:
    """Return the `Checkpoint` of a ``config.json``'s content or, if it has no quantisation, of Model Optimizer's file.

    A quantisation that cannot be timed raises an error only when `Checkpoint.product_dtype` is called. Raises
    `InputError` if the KV cache's type is unknown, or if Model Optimizer's file is damaged.
    """
    text = {**config, **_object(config.get("text_config"))}
    model_type = str(text.get("model_type")).removesuffix("_text")
    keys = ("quantization_config", "compression_config", "quantization")
    own = next((each[key] for each in (config, text) for key in keys if each.get(key)), None)
    quant = own or _model_optimizer_config(path)
    if quant is None:
        return Checkpoint(base_dtype, model_type)
    method = _method(quant)
    try:
        if method not in READERS:
            found = f"quant_method {method!r} is not" if isinstance(quant, dict) else f"{quant!r:.40}: no quant_method,"
            raise _UnmeasuredError(f"{found} one of {', '.join(sorted(filter(None, READERS)))}")
        rules = READERS[method]({"expert_dtype": text.get("expert_dtype"), **_object(quant)})
        return Checkpoint(base_dtype, model_type, rules, method=method or "")
    except _UnmeasuredError as reason:
        dtypes = ", ".join((base_dtype, *QUANTISED))
        text = TEXTS["refusals"]["untimed"].format(source=path, reason=reason, dtypes=dtypes)
        return Checkpoint(base_dtype, model_type, refusal=text)


def _model_optimizer_config(path: Path) -> object:
    """Return the content of Model Optimizer's file; None if there is no such file."""
    other = path.with_name(OPTIMIZER_FILE)
    if not other.is_file():
        return None
    try:
        return parsed_json(read_bounded(other, MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        raise InputError(f"{other}: cannot be read; repair it, or remove it if the weights are not quantised") from None


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> list[str]:
    """Return every text of a list and of the lists in it."""
    inner = value if isinstance(value, list) else []
    return [text for each in inner for text in (each if isinstance(each, list) else [each]) if isinstance(text, str)]


def _method(quant: object) -> str | None:
    """Return the key of `READERS`: ``quant_method``, or a key by the fields of files without it; None for no object."""
    if not isinstance(quant, dict):
        return None
    if "quant_algo" in quant or "quant_algo" in _object(quant.get("quantization")):
        return "modelopt"
    fallback = "compressed-tensors" if "config_groups" in quant else ""
    return str(quant.get("quant_method") or fallback).lower().replace("_", "-")


def _values(part: object) -> str:
    """Return the weights or activations of a compressed-tensors scheme, in the words of the table's schemes."""
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
    """Return the arithmetic by the table's schemes; the groups of activations follow from the weights' groups."""
    dtype = TABLE["schemes"].get(weights, {}).get(activations.partition(" in ")[0])
    if dtype is None:
        raise _UnmeasuredError(f"weights in {weights} with activations in {activations} have no measured kernels")
    return dtype


def _kv_dtype(quant: object) -> str:
    """Return the KV cache's type of a compressed-tensors scheme, or of Model Optimizer's word."""
    if not quant:
        return ""
    name = _values(quant) if isinstance(quant, dict) else str(quant).lower()
    if name not in ("float8", "fp8", "fp8_e4m3"):
        raise refusal("cache", name=name)
    return "fp8"


def _scale_bytes(weights: Json) -> float:
    """Return the bytes of scale and zero point per 4-bit weight, minus a 16-bit scale per `SCALE_GROUP` weights."""
    group = weights.get("group_size")
    asymmetric = weights.get("zero_point") is True or False in (weights.get("symmetric"), weights.get("sym"))
    if not isinstance(group, int) or isinstance(group, bool) or not (group == -1 or 8 <= group <= 65536):
        return 0.0
    each = 2 + (0.5 if asymmetric else 0)
    return (0 if group == -1 else each / group) - 2 / SCALE_GROUP  # −1: one scale for a whole row


def _group(weights: Json) -> int:
    size = weights.get("group_size")
    return size if isinstance(size, int) and size > 1 else 0


def _compressed_tensors(quant: Json) -> QuantisationRules:
    """Read groups of targets, each with a scheme; names and patterns come before classes of modules."""
    if "24" in str(quant.get("format")) or "24" in str(_object(quant.get("sparsity_config")).get("format")):
        raise _UnmeasuredError("weights with 2:4 sparsity have no measured kernels")
    groups = [_object(group) for group in _object(quant.get("config_groups")).values()]
    if not groups:
        raise _UnmeasuredError("it has no config_groups")
    rules: list[tuple[ModuleNames, str]] = []
    for group in groups:
        dtype = _arithmetic(_values(group.get("weights")), _values(group.get("input_activations")))
        rules.append((ModuleNames(_texts(group.get("targets", ["Linear"]))), dtype))
    rules.sort(key=lambda rule: rule[0].all)
    weights = _object(groups[0].get("weights"))
    scale_bytes = _scale_bytes(weights) if any(dtype == "int4_wo" for _, dtype in rules) else 0.0
    unquantised = ModuleNames(_texts(quant.get("ignore")))
    kv_dtype = _kv_dtype(quant.get("kv_cache_scheme"))
    return QuantisationRules(tuple(rules), unquantised, kv_dtype, scale_bytes, _group(weights))


def _model_optimizer(quant: Json) -> QuantisationRules:
    """Read one algorithm for all modules but the excluded ones or, in mixed precision, one per listed module."""
    inner = _object(quant.get("quantization")) or quant
    unquantised = ModuleNames([*_texts(inner.get("exclude_modules")), *_texts(inner.get("ignore"))])
    kv_dtype = _kv_dtype(inner.get("kv_cache_quant_algo") or inner.get("kv_cache_scheme"))
    layers = _object(inner.get("quantized_layers"))
    listed = {name: str(_object(each).get("quant_algo")) for name, each in layers.items()}
    if listed:
        # If the file also has another method, it applies to unlisted modules (4 bits for experts, fp8 for the rest).
        base = _fp8(inner).rules if inner.get("quant_method") == "fp8" else ()
        by_algorithm: dict[str, list[str]] = {}
        for name, algo in listed.items():
            by_algorithm.setdefault(algo, []).append(name)
        modules = [(ModuleNames(names), _algorithm(algo)) for algo, names in by_algorithm.items()]
        unquantised = ModuleNames([HEAD]) if base else unquantised
        return QuantisationRules((*modules, *base), unquantised, kv_dtype)
    algorithm = inner.get("quant_algo")
    if algorithm == MIXED and inner.get("config_groups"):
        return _compressed_tensors(inner)
    rules = ((ALL_PRODUCTS, _algorithm(algorithm)),) if algorithm else ()
    return QuantisationRules(rules, unquantised, kv_dtype)


def _algorithm(name: object) -> str:
    if str(name) not in TABLE["algorithms"]:
        raise _UnmeasuredError(f"quant_algo {name} has no measured kernels")
    return TABLE["algorithms"][str(name)]


def _skipped(quant: Json) -> ModuleNames:
    """Return the modules that methods of transformers do not quantise; the head is always one of them."""
    keys = ("modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules")
    return ModuleNames([HEAD, *(text for key in keys for text in _texts(quant.get(key)))])


def _fp8(quant: Json) -> QuantisationRules:
    """Read fp8 with one scale per tensor, or with one per block of 128 × 128 weights."""
    if quant.get("dequantize") is True:
        return NO_RULES
    kind = str(quant.get("fmt", "e4m3"))
    expert_type = str(quant.get("expert_dtype") or "fp8")
    if "e4m3" not in kind or expert_type not in TABLE["expert_dtypes"]:
        raise _UnmeasuredError(f"fp8 in {kind} with experts in {expert_type} has no measured kernels")
    experts = [(ModuleNames(["experts"]), dtype) for dtype in [TABLE["expert_dtypes"][expert_type]] if dtype]
    blocks = quant.get("weight_block_size")
    weights = f"float8 in blocks of {' × '.join(map(str, blocks))}" if isinstance(blocks, list) and blocks else "float8"
    return QuantisationRules((*experts, (ALL_PRODUCTS, _arithmetic(weights, "float8"))), _skipped(quant))


def _integers(quant: Json) -> QuantisationRules:
    """Read AWQ, GPTQ and AutoRound: weights in 4 or 8 bits; ``dynamic`` or ``extra_config`` may change some modules."""
    rules: list[tuple[ModuleNames, str]] = []
    unquantised = _texts(quant.get("modules_to_not_convert"))
    dynamic = {name.removeprefix("+:"): _object(each) for name, each in _object(quant.get("dynamic")).items()}
    unquantised += [f"re:{name.removeprefix('-:')}" for name in dynamic if name.startswith("-:")]
    others = {f"re:{name}": each for name, each in dynamic.items() if not name.startswith("-:")}
    others |= {name: _object(each) for name, each in _object(quant.get("extra_config")).items()}
    for name, each in others.items():
        bits = each.get("bits", quant.get("bits"))
        unquantised += [name] if bits == 16 else []
        rules += [(ModuleNames([name]), _arithmetic(f"int{bits}", "float16"))] if bits != 16 else []
    inside = _texts(quant.get("modules_in_block_to_quantize"))
    bits = quant.get("bits", quant.get("w_bit", quant.get("weight_bits", " (no field has the bits)")))
    rules.append((ModuleNames(inside or ["Linear"]), _arithmetic(f"int{bits}", "float16")))
    unquantised += [] if quant.get("lm_head") is True else [HEAD]
    if quant.get("lm_head") is True:
        rules.append((ModuleNames([HEAD]), rules[-1][1]))
    scale_bytes = _scale_bytes(quant) if bits == 4 else 0.0
    return QuantisationRules(tuple(rules), ModuleNames(unquantised), scale_bytes=scale_bytes, group=_group(quant))


def _torchao(quant: Json) -> QuantisationRules:
    kind = quant.get("quant_type")
    form = _object(_object(kind).get("default"))
    name = str(form.get("_type") if form else kind)
    key = name.removesuffix("Config").replace("_", "").lower()
    if key not in TABLE["torchao"]:
        raise _UnmeasuredError(f"torchao's {name[:60]} has no measured kernels")
    data = _object(form.get("_data")) if form else _object(quant.get("quant_type_kwargs"))
    dtype = _arithmetic(*TABLE["torchao"][key])
    scale_bytes = _scale_bytes(data) if dtype == "int4_wo" else 0.0
    return QuantisationRules(((ALL_PRODUCTS, dtype),), _skipped(quant), "", scale_bytes)


def _quark(quant: Json) -> QuantisationRules:
    """Read one scheme for all modules and schemes by pattern; output types of patterns are the KV cache's type."""
    patterns = _object(quant.get("layer_quant_config"))
    rules = [(ModuleNames([name]), _quark_scheme(_object(each))) for name, each in patterns.items()]
    rules.append((ALL_PRODUCTS, _quark_scheme(_object(quant.get("global_quant_config")))))
    caches = [*patterns.values(), *_object(quant.get("kv_cache_quant_config")).values()]
    kinds = {str(_object(_object(each).get("output_tensors")).get("dtype", "")) for each in caches} - {""}
    return QuantisationRules(tuple(rules), ModuleNames(_texts(quant.get("exclude"))), _kv_dtype(next(iter(kinds), "")))


def _quark_scheme(quant: Json) -> str:
    """Return the arithmetic of a scheme; 4-bit floats have groups of 32, as in OCP's formats."""

    def values(part: object) -> str:
        each = _object(part[0] if isinstance(part, list) and part else part)
        if not each:
            return "float16"
        name = TABLE["quark"].get(str(each.get("dtype")), str(each.get("dtype")))
        group = f" in groups of {each.get('group_size')}" if each.get("qscheme") == "per_group" else ""
        return name if name.startswith("int") else name + group

    return _arithmetic(values(quant.get("weight")), values(quant.get("input_tensors")))


def _fixed(rules: Mapping[str, str], quant: Json) -> QuantisationRules:
    """Read a method by the table: its name alone decides the arithmetic."""
    if quant.get("dequantize") is True:
        return NO_RULES
    return QuantisationRules(tuple((ModuleNames([name]), dtype) for name, dtype in rules.items()), _skipped(quant))


READERS: Mapping[str | None, Callable[[Json], QuantisationRules]] = {
    "compressed-tensors": _compressed_tensors,
    **dict.fromkeys(("modelopt", "modelopt-fp4"), _model_optimizer),
    "fp8": _fp8,
    **dict.fromkeys(("awq", "gptq", "auto-round", "intel/auto-round", "auto-awq"), _integers),
    "torchao": _torchao,
    "quark": _quark,
    **{method: partial(_fixed, rules) for method, rules in TABLE["fixed"].items()},
}
"""``quant_method``, or the key by a file's fields → reader."""
