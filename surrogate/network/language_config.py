"""Read a language model from its Hugging Face ``config.json``.

The ``model_type`` selects the family (`FAMILIES`), and the fields give the sizes of every layer. An unknown type is
read as the nearest known one if its fields say the same. A field that is neither read nor known to be irrelevant
(`language_fields.toml`) is named in a note. Source: the configurations and models of ``transformers``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain
from json import JSONDecodeError
from math import prod
from pathlib import Path
from typing import cast

from surrogate.bundled import CHECKPOINTS, find_model, not_found
from surrogate.features.elementwise import MAX_INT32, checked_int, round_up
from surrogate.features.errors import InputError, check_choice, nearest, parsed_json, read_bounded
from surrogate.features.families.attention import LATENT, ROPE, TRITON
from surrogate.network.checkpoint import MAX_BYTES, read_checkpoint
from surrogate.network.language import FAMILIES, AttentionHeads, Decoder, DecoderFamily, LayerKind
from surrogate.network.language_fields import TABLE, ConfigFields, usual_names
from surrogate.network.language_mixers import BOTH, MIXER, MIXERS, MLP_KINDS, STATE, Mixer, hybrid_values
from surrogate.network.network import refusal, refuse

MAX_LAYERS = 1000
MAX_EXPERTS = 1 << 16
NAME_CUTOFF = 0.75
"""Minimum similarity of a name that an error suggests; gpt2 is not similar to gpt_oss."""
LATENT_SIZES = {"kv_lora_rank": LATENT, "qk_rope_head_dim": ROPE}
"""The only measured sizes of a latent cache."""
MAX_FACTOR = 1e6
TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def read_decoder(source: str | Path | Mapping[str, object]) -> Decoder:
    """Return the decoder of a ``config.json``: its path, its folder, its content, or a name that `find_model` finds.

    Raises `InputError` if the file cannot be read, the ``model_type`` is unknown, or sizes are missing or wrong.
    """
    path, raw_config = _raw_config(source)
    if base := raw_config.get("base_model_name_or_path"):
        raise InputError(f"{path}: adapters are not a model; give the config.json of their base model, {base!s:.80}")
    config, towers = dict(raw_config), {}
    while part := next((name for name in TABLE["decoders"] if isinstance(config.get(name), dict)), None):
        config |= config.pop(part) | {name: config[name] for name in TABLE["outer"] if config.get(name) is not None}  # type: ignore[operator]
    for name in [name for name, value in config.items() if isinstance(value, dict) and name.endswith("_config")]:
        if name not in TABLE["settings"]:
            towers[name] = usual_names(cast(Mapping[str, object], config.pop(name)))
    refuse({"no_type": not config.get("model_type")}, source=path)
    kind = str(config["model_type"]).removesuffix("_text")
    if reason := TABLE["refused"].get(kind):
        raise InputError(f"{path}: model_type {kind!r} is not predicted: {reason}")
    if encoders := [name for name in (kind, *_architectures(config)) if _matches(name, TABLE["encoders"])]:
        raise InputError(f"{path}: {encoders[0]} is an encoder, which gives no next token; only decoders are predicted")
    given = usual_names(config)
    if kind in FAMILIES:
        near, family, notes = kind, FAMILIES[kind], []
    else:
        near = _nearest_family(path, kind, given)
        family, notes = FAMILIES[near], [f"model_type {kind!r} is unknown; it is read as {near}, whose fields it has"]
    fields = ConfigFields(path, {**family.defaults, **given})
    if family.mixer:
        fields = fields.with_values(hybrid_values(fields, family.mixer, MAX_LAYERS))
    notes += [note for part, note in TABLE["notes"].items() if getattr(family, part)]
    fields = fields.with_values(_mpt_values(fields)) if kind == "mpt" else fields
    try:
        decoder = _decoder(fields, family, kind, raw_config)
    except InputError as error:  # an unknown type may differ from the nearest one in this field
        raise InputError("; ".join([str(error), *notes[: kind not in FAMILIES]])) from None
    unread = [name for name, value in given.items() if value and name not in fields.used]
    unread = [name for name in unread if not _matches(name, TABLE["irrelevant"])]
    if kind not in FAMILIES and (structural := [name for name in unread if _matches(name, TABLE["structural"])]):
        raise refusal(
            "no_field", source=path, kind=kind, near=near, field=structural[0], suggestion=nearest(kind, FAMILIES)
        )
    if unread:
        names = ", ".join(unread[:8]) + ", …" * (len(unread) > 8)
        notes.append(f"fields of {path.name} that are not understood, and left out: {names}")
    if further := [name for name in TABLE["next_token"] if given.get(name)]:
        notes.append(f"layers that predict further tokens ({further[0]}) are left out, as servers do by default")
    weights, described = _tower_weights(path, towers, decoder.hidden)
    name = decoder.name if isinstance(source, Mapping) or Path(source).exists() else Path(source).as_posix()
    return replace(decoder, name=name, other_weights=weights, notes=(*decoder.notes, *notes, *described))


def _architectures(config: Mapping[str, object]) -> list[str]:
    """Return the names of the classes that load a configuration."""
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _nearest_family(path: Path, kind: str, config: Mapping[str, object]) -> str:
    """Return the known type with the fields of a configuration, preferably another version of the same family.

    Raises `InputError` if there is none.
    """
    versions = [name for name in FAMILIES if re.sub(r"[\d_.-]", "", name) == re.sub(r"[\d_.-]", "", kind)]
    missing = ""
    for name in [*reversed(versions), *TABLE["prototypes"]]:
        family = FAMILIES[name]
        needed = {each: getattr(family, part) for part, each in TABLE["parts"].items()}
        needed |= dict.fromkeys((*TABLE["required"], family.experts or "intermediate_size"), True)
        needed["num_experts"] = family.experts
        marks = {mixer: [*filter(config.__contains__, row.marks), *row.marks] for mixer, row in MIXERS.items()}
        needed |= {found[0]: mixer == family.mixer for mixer, found in marks.items() if found}
        differing = [each for each, has in needed.items() if (each in config) != bool(has)]
        activations = [None, *TABLE["activations"].get(family.activation, ())]
        differing += ["hidden_act"] * (config.get("hidden_act") not in activations)
        if not differing:
            return name
        missing = missing or f"{name}, the nearest known type, differs in the field {differing[0]}"
    raise InputError(
        f"{path}: model_type {kind!r} is unknown, and {missing}; give a known type{nearest(kind, FAMILIES)}"
    )


def _decoder(fields: ConfigFields, family: DecoderFamily, kind: str, raw_config: Mapping[str, object]) -> Decoder:
    """Return the decoder of a family."""
    path = fields.path
    if fields.get("is_encoder_decoder") is True:
        raise InputError(f"{path}: is_encoder_decoder is true; only decoders without an encoder are predicted")
    hidden, heads = fields.required("hidden_size"), fields.required("num_attention_heads")
    count = fields.required("num_hidden_layers", maximum=MAX_LAYERS)
    if not family.mixer:
        fields.listed("attn_type_list", count)
    for name, size in LATENT_SIZES.items() if family.latent else ():
        if fields.required(name) != size:
            raise InputError(f"{path}: {name} is {fields.required(name)}; only {size} was measured (latent attention)")
    routes = bool(family.experts) and fields.get("enable_moe_block") is not False
    experts = _experts(fields, family) if routes else {}
    fields.used.update(TABLE["expert_fields"] if family.experts and not routes else ())
    dtype_name = str(fields.get("torch_dtype") or fields.get("dtype") or "bfloat16").removeprefix("torch.")
    check_choice(f"{path}: torch_dtype", dtype_name, TYPES)
    layers, positions = tuple(_layers(fields, family, count, experts)), _positions(fields, kind)
    groups = fields.config.get("num_key_value_heads") or family.latent or fields.get("block_configs")
    first = next((kind.heads for kind in layers if kind.heads), AttentionHeads(heads, heads, 0, 0))
    biases = {name: None for field, names in TABLE["biases"].items() if fields.get(field) for name in names}
    assumed = f"{path}: num_key_value_heads is missing; {heads} are assumed, the number of heads"
    return Decoder(
        name=_name_of(path),
        hidden=hidden,
        vocabulary=fields.required("vocab_size"),
        inter=next((kind.inter for kind in layers if kind.inter), 0),
        heads=heads,
        kv_heads=first.keys,
        head_dim=first.dim,
        layers=layers,
        dtype=TYPES[dtype_name],
        checkpoint=read_checkpoint(path, raw_config, TYPES[dtype_name]),
        tied=bool(fields.get("tie_word_embeddings")),
        family=_family_of(fields, family),
        **({"query_rank": fields.optional("q_lora_rank")} if family.latent else {}),
        mixer=_mixer(fields, family.mixer) if family.mixer else None,
        expert_hidden=fields.optional("moe_latent_size"),
        **experts,
        **{size: fields.required(name) for size, name, part in TABLE["sizes"] if getattr(family, part)},
        **_index_sizes(fields) if family.sparse or family.compressed else {},
        positions=positions,
        rotates=bool(fields.config.get("rope", True)) and fields.get("position_embedding_type") in (None, "rope"),
        learned_positions=fields.optional("learned_positions") or family.learned_positions * positions,
        layer_inputs=fields.optional("hidden_size_per_layer_input"),
        layer_vocabulary=fields.optional("vocab_size_per_layer_input"),
        is_capped=any(map(fields.get, ("attn_logit_softcapping", "final_logit_softcapping"))),
        attention=str(fields.get("attention") or ""),
        biases=tuple(biases or family.biases),
        notes=() if groups else (assumed,),
    )


def _raw_config(source: object) -> tuple[Path, dict[str, object]]:
    """Return the path for errors, and the content of a configuration."""
    if isinstance(source, Mapping):
        return Path(str(source.get("_name_or_path") or source.get("model_type") or "."), "config.json"), dict(source)
    if not isinstance(source, str | Path):
        raise refusal("config", kind=type(source).__name__)
    path = find_model(source)
    names = ("config.json", "adapter_config.json") if path.is_dir() else ()
    path = next((path / name for name in names if (path / name).is_file()), path / "config.json" if names else path)
    return path, _json_of(path)


def _name_of(path: Path) -> str:
    """Return the name of a model by the path of its configuration; the Hub's cache has a folder per revision."""
    if path.parent.parent.name == "snapshots":
        return path.parents[2].name.rpartition("--")[2]
    return path.parent.name if path.stem == "config" and path.parent.name else path.stem


def _experts(fields: ConfigFields, family: DecoderFamily) -> dict[str, int]:
    """Return the fields of a `Decoder` that is a mixture of experts."""
    experts = fields.required("num_experts", maximum=MAX_EXPERTS)
    inter = fields.required(family.experts)
    topk = fields.required("num_experts_per_tok")
    if topk > experts:
        raise refusal("topk", source=fields.path, topk=topk, experts=experts)
    shared_count = fields.optional("n_shared_experts")
    shared = fields.optional("shared_expert_intermediate_size") or inter * shared_count
    return {"experts": experts, "topk": topk, "expert_inter": inter, "shared_inter": shared}


def _layers(fields: ConfigFields, family: DecoderFamily, count: int, experts: Mapping[str, int]) -> Iterator[LayerKind]:
    """Yield the kind of every layer."""
    part = next((part for part in TABLE["layer_types"] if getattr(family, part, False)), "plain")
    words = fields.listed("layer_types", count, () if family.mixer else TABLE["layer_types"][part]) or [""] * count
    windows = [0] * count if family.latent else _windows(fields, family, words)
    routes = _routed_layers(fields, count) if experts else [False] * count
    indexers = _indexers(fields, family, words) if family.sparse else [""] * count
    compressed = _compression(fields, count) if family.compressed else [(0, each) for each in indexers]
    is_single = any(word in MLP_KINDS for word in words)
    shared_from = count - fields.optional("num_kv_shared_layers", count - 1)
    for layer in range(count):
        own = fields.with_values(_own_values(fields, layer, count, is_local=windows[layer] > 0 or not any(windows)))
        projected = 0 if layer >= shared_from else 2 - bool(own.get("attention_k_eq_v") and not windows[layer])
        inter, word = 0, words[layer]
        has_mlp = word in MLP_KINDS or not is_single
        if has_mlp and own.config.get("intermediate_size") != 0 and (not routes[layer] or family.dense_beside):
            inter = _dense_inter(own, family, experts.get("expert_inter", 0))
            inter *= 2 if own.get("use_double_wide_mlp") and not projected else 1
        yield LayerKind(
            heads=None if word in (MIXER, *MLP_KINDS) else _heads(own, family, projected),
            window=windows[layer],
            inter=inter,
            routes=routes[layer] and has_mlp,
            mixes=word in (MIXER, BOTH),
            compress=compressed[layer][0],
            indexer=compressed[layer][1],
        )


def _own_values(fields: ConfigFields, layer: int, count: int, *, is_local: bool) -> dict[str, object]:
    """Return the fields with a value of their own in a layer.

    Sources are lists with a value for each layer, fields for layers with or without a window, and objects for a layer.
    """
    values: dict[str, object] = {}
    for name in TABLE["listed"]:
        if listed := fields.listed(name, count):
            values[name] = listed[layer]
    for name, others in TABLE["local" if is_local else "global"].items():
        values.update((name, fields.config[other]) for other in others if fields.get(other) is not None)
    if is_local and any(name in fields.config for name in TABLE["local_parts"]):
        for part in map(fields.part, TABLE["local_parts"]):
            values |= {name: part.config[name] for name in TABLE["listed"] if name in part.config}
    own = fields.get("per_layer_config")
    values |= usual_names(own[str(layer)]) if isinstance(own, dict) and isinstance(own.get(str(layer)), dict) else {}
    if blocks := fields.listed("block_configs", count):
        values |= _block_values(fields, blocks[layer])
    return values


def _block_values(fields: ConfigFields, block: object) -> dict[str, object]:
    """Return the sizes of a layer after a neural architecture search; 0 stands for a part that the layer lacks.

    Source: the remote code of nvidia/Llama-3_3-Nemotron-Super-49B-v1, ``configuration_decilm.py``.
    """
    parts = ConfigFields(fields.path, block if isinstance(block, dict) else {})
    attention, mlp = parts.part("attention"), parts.part("ffn")
    if attention.get("replace_with_linear") or mlp.get("replace_with_linear"):
        raise InputError(f"{fields.path}: block_configs has replace_with_linear; such layers are not predicted")
    heads, ratio = fields.required("num_attention_heads"), mlp.get("ffn_mult")
    scaled = 2 * ratio * fields.required("hidden_size") / 3 if isinstance(ratio, int | float) else 0
    inter = mlp.optional("intermediate_size") or round_up(int(min(scaled, MAX_INT32)), 256)
    return {
        "num_attention_heads": 0 if attention.get("no_op") else heads,
        "num_key_value_heads": heads // (attention.optional("n_heads_in_group") or 1),
        "intermediate_size": 0 if mlp.get("no_op") else inter,
    }


def _heads(own: ConfigFields, family: DecoderFamily, projected: int) -> AttentionHeads | None:
    """Return the heads of a layer's attention; None if it has no attention."""
    queries = own.optional("num_attention_heads")
    if not queries:
        return None
    multiquery = own.get("multi_query") and not own.get("new_decoder_architecture")
    groups = 1 if multiquery else own.optional("num_key_value_heads") or queries
    if not family.latent and queries % groups:
        raise refusal("kv_heads", source=own.path, groups=groups, queries=queries)
    dim = own.optional("head_dim") or own.required("hidden_size") // queries
    gates = dim if own.get("attention_output_gate") else int(family.head_gate)
    return AttentionHeads(queries, groups, dim, own.optional("v_head_dim") or dim, projected, gates)


def _index_sizes(fields: ConfigFields) -> dict[str, int]:
    """Return the fields of a `Decoder` with an indexer; some indexers select blocks of positions."""
    blocks = fields.part("sparse_attention_config")
    fields = fields.with_values({**fields.config, **blocks.config})
    fields.used.update(TABLE["names"])
    selected = ("index_topk_blocks", "index_block_size") if fields.get("index_topk_blocks") else ("index_topk",)
    sizes = {name: fields.required(key) for name, key in TABLE["index"].items()}
    return {**sizes, "index_topk": prod(map(fields.required, selected))}


def _indexers(fields: ConfigFields, family: DecoderFamily, words: Sequence[str]) -> Sequence[str]:
    """Return whether each layer has its own indexer ("full"), uses an earlier layer's ("shared"), or has none.

    Without latent attention, only the listed layers have one. Source: transformers, ``configuration_glm_moe_dsa.py``
    and ``configuration_minimax_m3_vl.py``.
    """
    count, sparse = len(words), fields.part("sparse_attention_config")
    if not family.latent:
        blocks = words if any(words) else sparse.listed("sparse_attention_freq", count) or words
        is_used = False not in (sparse.get("use_sparse_attention"), fields.get("use_sparse_attention"))
        return ["full" * (is_used and each not in (0, "", *TABLE["layer_types"]["latent"])) for each in blocks]
    freq, offset = fields.optional("index_topk_freq") or 1, fields.get("index_skip_topk_offset")
    offset = offset if isinstance(offset, int) else 2
    if listed := fields.listed("indexer_types", count) or fields.listed("index_topk_pattern", count):
        return ["shared" if each.lower() in ("shared", "s") else "full" for each in listed]
    return ["shared" if max(layer - offset + 1, 0) % freq else "full" for layer in range(count)]


def _compression(fields: ConfigFields, count: int) -> list[tuple[int, str]]:
    """Return the tokens of a compressed position (0: not compressed) and the indexer of every layer.

    Source: transformers, ``configuration_deepseek_v4.py``.
    """
    given = fields.part("compress_rates")
    rates = {word: given.optional(word) or fields.optional(old) or rate for word, old, rate in TABLE["compressions"]}
    words, ratios = fields.listed("layer_types", count), fields.listed("compress_ratios", count)
    ratios = [0 if word in TABLE["local_kinds"] else rates.get(str(word)) for word in words] or ratios
    if not ratios:
        raise InputError(f"{fields.path}: compress_ratios is missing; add it, a list with a number for each layer")
    checked = [checked_int(str(fields.path), "layer_types or compress_ratios", ratio, 0) for ratio in ratios]
    return [(ratio, "full" if ratio == min(rates.values()) else "") for ratio in checked]


def _json_of(path: Path) -> dict[str, object]:
    try:
        config = parsed_json(read_bounded(path, MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "no JSON of a language model"
        reason = not_found(path.as_posix()) if isinstance(error, FileNotFoundError) else reason
        if isinstance(error, JSONDecodeError):
            reason = f"{reason}: {error.msg} in line {error.lineno}, column {error.colno}"
        suggestion = nearest(str(path), chain(CHECKPOINTS, *CHECKPOINTS.values()), cutoff=NAME_CUTOFF)
        raise refusal("no_config", source=path, reason=reason, suggestion=suggestion) from None
    return config if isinstance(config, dict) else {}


def _mpt_values(fields: ConfigFields) -> dict[str, object]:
    """Return the fields of an MPT that have no usual names; its embedding is tied.

    Missing fields have the defaults of transformers' ``MptConfig``. Raises `InputError` for biases, other MLPs,
    and norms or limits of queries and keys.
    """
    attention, config = fields.part("attn_config").config, fields.config
    supported = {"ffn_type": "mptmlp", "no_bias": True, "qk_ln": False, "clip_qkv": None}
    found = {**supported, **config, **attention, **fields.part("ffn_config").config}
    for name, value in supported.items():
        if found[name] != value:
            raise InputError(f"{fields.path}: {name} is {found[name]!r}; only an MPT with {value!r} is predicted")
    heads, positions = fields.required("num_attention_heads"), fields.required("max_position_embeddings")
    is_multiquery = attention.get("attn_type") == "multiquery_attention"
    is_learned = config.get("learned_pos_emb", True) and not attention.get("alibi", True) and not attention.get("rope")
    return {
        "num_key_value_heads": 1 if is_multiquery else attention.get("kv_n_heads") or heads,
        "intermediate_size": fields.required("hidden_size") * fields.required("expansion_ratio"),
        "rope": bool(attention.get("rope")),
        # The default of llm-foundry when most of these models were trained.
        "attention": {"flash": ""}.get(name := str(attention.get("attn_impl", TRITON)), name),
        "learned_positions": positions if is_learned else 0,
    }


def _positions(fields: ConfigFields, kind: str) -> int:
    """Return the maximum tokens of a request.

    Source: vLLM's rule. The scaling factor multiplies the positions; YaRN multiplies the original positions. Types in
    `scaled_types` state the number after the scaling.
    """
    rope = fields.part("rope_scaling" if fields.get("rope_scaling") else "rope_parameters")
    rope = rope.part("full_attention") if rope.get("full_attention") else rope
    stated = fields.optional("max_position_embeddings")
    word = rope.config.get("rope_type", rope.config.get("type"))
    factor = rope.config.get("factor")
    is_plain = kind == "gemma3" or word in TABLE["scaled_types"]
    if is_plain or not isinstance(factor, int | float) or not 1 <= factor < MAX_FACTOR:
        return stated
    original = rope.optional("original_max_position_embeddings") if word == "yarn" else stated
    return max(stated, int(original * factor))


def _windows(fields: ConfigFields, family: DecoderFamily, words: Sequence[str]) -> list[int]:
    """Return each layer's window, by a list or a pattern if the file has one.

    Otherwise all layers have the window; Qwen's models have it only if the file switches it on.
    """
    count, window, chunk = len(words), fields.optional("sliding_window"), fields.optional("attention_chunk_size")
    if family.compressed:
        return [fields.required("sliding_window")] * count
    kinds = fields.listed("hybrid_layer_pattern", count) or words
    pattern = fields.get("sliding_window_pattern")
    interval = fields.optional("sliding_window_pattern") if isinstance(pattern, int) else family.local
    if kinds[0] != "":
        local = [each in (1, *TABLE["local_kinds"]) for each in kinds]
        if any(local) and not window and not chunk:
            found = f"{'layer_types' if kinds is words else 'hybrid_layer_pattern'} has {kinds[local.index(True)]!r}"
            raise InputError(f"{fields.path}: {found}, but sliding_window is missing; add its positions")
        return [(window or chunk) * each for each in local]
    if isinstance(pattern, str) and pattern:  # L is local, G is global
        return [window * (pattern[layer % len(pattern)] == "L") for layer in range(count)]
    if interval:
        return [(window or chunk) * ((layer + 1) % interval != 0) for layer in range(count)]
    used = fields.get("use_sliding_window")
    used = not family.switched_window if used is None else used
    first = fields.optional("max_window_layers") if used else count
    return [window if layer >= first else 0 for layer in range(count)]


def _routed_layers(fields: ConfigFields, count: int) -> list[bool]:
    """Return which layers route; lists, a first and a last layer, and intervals may exclude some."""
    frequencies, kinds = fields.listed("moe_layer_freq", count), fields.listed("mlp_layer_types", count)
    numbers, dense = fields.get("moe_layers") or fields.get("moe_layers_enum"), fields.get("mlp_only_layers")
    first = max(fields.optional(name) for name in ("first_k_dense_replace", "moe_layer_start_index"))
    intervals = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
    interval = max(1, *map(fields.optional, intervals))
    every = 1 if frequencies else fields.optional("moe_layer_freq") or 1
    end = fields.get("moe_layer_end_index")
    end = end if isinstance(end, int) and end >= 0 else count
    if frequencies or kinds:
        return [each in (*TABLE["routed_kinds"], 1) for each in frequencies or kinds]
    if numbers:
        chosen = set(re.findall(r"\d+", str(numbers)))
        return [str(layer) in chosen for layer in range(count)]
    excluded = set(re.findall(r"\d+", str(dense)))
    routed = (first <= layer <= end and (layer + 1) % interval == 0 and layer % every == 0 for layer in range(count))
    return [routes and str(layer) not in excluded for layer, routes in enumerate(routed)]


def _dense_inter(fields: ConfigFields, family: DecoderFamily, own_inter: int) -> int:
    """Return the width of layers that do not route; Llama 4 has its own field, and models without such layers none."""
    names = ("intermediate_size_mlp", "dense_intermediate_size", "intermediate_size")
    inter = next((size for size in map(fields.optional, names) if size), 0) or own_inter
    return inter or family.mlp_ratio * fields.required("hidden_size") or fields.required("intermediate_size")


def _mixer(fields: ConfigFields, name: str) -> Mixer:
    """Return a hybrid's mixer; the file may select a variant of the family's."""
    name += " with full gates" * bool(fields.get("linear_use_full_rank_gate"))
    sizes = {size: fields.required(*names) for size, names in MIXERS[name].sizes.items()}
    stored = [TYPES.get(str(fields.get(each)), "") for each in ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")]
    return Mixer(name, **sizes, state_dtype=next(filter(None, stored), STATE))


def _family_of(fields: ConfigFields, family: DecoderFamily) -> DecoderFamily:
    """Return the family with the activation, norm of queries and kind of layer that the fields give."""
    name = fields.get("hidden_act")
    activation = next((each for each, names in TABLE["activations"].items() if name in names), family.activation)
    has_norm = next((has for has in map(fields.get, TABLE["query_norms"]) if has is not None), None)
    norm = family.query_norm if has_norm is None else (family.query_norm or "head") * bool(has_norm)
    norm = {"per_layer": "layer", "per_head": "head"}.get(str(fields.get("qk_norm_type")), norm)
    parallel = next((bool(has) for has in map(fields.get, TABLE["parallels"]) if has is not None), family.parallel)
    return replace(family, activation=activation, query_norm=norm, parallel=parallel)


def _tower_weights(path: Path, towers: Mapping[str, Mapping[str, object]], hidden: int) -> tuple[int, list[str]]:
    """Return the number of weights of a model's other parts, such as encoders of images, and notes about them."""
    total, notes = 0, []
    for name, config in towers.items():
        tower = ConfigFields(path, config)
        sizes = {each: _first(tower, names) for each, names in TABLE["tower"].items()}
        width, layers = sizes["width"], sizes["layers"]
        if not (width and layers):
            notes.append(f"{name}: its weights and its time are not in the answer; its sizes are not understood")
            continue
        ratio = tower.get("mlp_ratio")
        ratio = ratio if isinstance(ratio, int | float) and 0 < ratio < MAX_FACTOR else 4
        inter = sizes["inter"] or int(width * ratio)
        inner = sizes["inner"] or width
        gated = _matches(str(config.get("model_type")), TABLE["gated_towers"])
        merged = width * (sizes["merge"] ** 2 or prod(_numbers(config.get("merge_kernel_size"))))
        deepstack = config.get("deepstack_visual_indexes")
        mergers = 1 + len(deepstack) if isinstance(deepstack, list) else 1
        outputs = sizes["outputs"] or hidden
        projected = mergers * merged * ((merged if merged > width else 0) + outputs)
        if _matches(str(config.get("model_type")), TABLE["gated_mergers"]):
            projected, inter = outputs * (merged + outputs + 3 * inter), outputs
        blocks = layers * width * (4 * inner + (2 + gated) * inter)
        patch = 3 * (sizes["temporal"] or 1) * sizes["patch"] ** 2
        positions = sizes["positions"] or (sizes["image"] // (sizes["patch"] or 1)) ** 2
        weights = blocks + projected + (patch + positions) * width
        total += weights
        counts = f"{weights / 1e9:.2f} B weights ({blocks / 1e9:.2f} B in {layers} blocks)"
        notes.append(f"{name}: {counts} are in the memory, but its time is not in the answer")
    return total, notes


def _first(fields: ConfigFields, names: Sequence[str]) -> int:
    """Return the first of these fields that is a whole number above 0, or the last of a list of them; else 0."""
    return next((numbers[-1] for name in names if (numbers := _numbers(fields.get(name)))), 0)


def _numbers(value: object) -> list[int]:
    """Return the whole numbers above 0 of a value or of a list."""
    values = value if isinstance(value, list) else [value]
    return [each for each in values if type(each) is int and 0 < each <= MAX_INT32]
