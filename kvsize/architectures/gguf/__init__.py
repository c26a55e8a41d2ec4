"""GGUF metadata -> geometry, for every architecture that llama.cpp reads.

The keys mean what llama.cpp makes of them: each rule is that of the architecture's load_arch_hparams,
llama.cpp@b11434 src/models/*.cpp, with its defaults, patterns and hard-coded sizes. The last `nextn_predict_layers` of
`block_count` draft tokens and become `drafts`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from kvsize.architectures.gguf.attention import (
    exaone4,
    gemma3n,
    gemma4,
    granite_switch,
    nanbeige,
    nothing,
    plain,
    shares_everything,
    t5,
)
from kvsize.architectures.gguf.latents import (
    deepseek4,
    dots3_note,
    every_layer,
    glm_indexers,
    hy_v4,
    indexed,
    minimax_m3,
    mla_or_heads,
)
from kvsize.architectures.gguf.metadata import Adapter, Metadata, Shape, shape
from kvsize.architectures.gguf.states import (
    convolution,
    delta,
    falcon_h1,
    hybrid,
    interval,
    kimi_delta,
    lightning,
    nemotron_h,
    qwen4_exp,
    recurrent,
    rwkv,
    ssm,
)
from kvsize.architectures.gguf.windows import Windows
from kvsize.config import TypeFacts
from kvsize.errors import ConfigError, UnknownArchitectureError
from kvsize.geometry import Geometry, Layer
from kvsize.gguf_names import NAMES

ARCHITECTURE = "general.architecture"

_LISTED = plain(Windows(None))

GGUF: Mapping[str, Adapter] = {
    # a window for all layers, which other engines honour and llama.cpp does not
    **dict.fromkeys(("llama", "phi3"), plain(Windows(0, optional=True))),
    **dict.fromkeys(
        """
        apertus arcee arctic baichuan bailingmoe bailingmoe2 bitnet bloom chameleon chatglm codeshell cogvlm command-r
        dbrx deci deepseek deepseek2-ocr dots1 eagle3 ernie4_5 ernie4_5-moe exaone falcon gemma glm4 glm4moe gpt2
        gptneox granite granitemoe grok grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2 jais
        jais2 llama-embed maincoder minicpm minicpm3 minimax-m2 mistral3 mpt nemotron olmo olmoe openelm orion
        paddleocr pangu-embedded phi2 phimoe plamo plm pockettts qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3tts
        qwen3vl qwen3vlmoe refact seed_oss smollm3 stablelm starcoder starcoder2 t5encoder talkie xverse
        """.split(),
        plain(),
    ),
    "t5": t5,
    "graniteswitch": granite_switch,
    "nanbeige": nanbeige,
    **dict.fromkeys(
        """
        bert clef dream eurobert gemma-embedding jina-bert-v2 jina-bert-v3 llada llada-moe modern-bert neo-bert
        nomic-bert nomic-bert-moe rnd1 wavtokenizer-dec
        """.split(),
        nothing,
    ),
    "gemma4-assistant": shares_everything,
    # windows by layer
    "afmoe": plain(Windows(4, optional=True)),
    "cohere2": plain(Windows(4)),
    "cohere2moe": plain(Windows(4, dense_first=True)),
    "exaone-moe": plain(Windows(4)),
    "exaone4": exaone4,
    "gemma2": plain(Windows(2, default=4096)),
    "gemma3": plain(Windows(6, optional=True)),
    "gemma3n": gemma3n,
    "gemma4": gemma4,
    "gpt-oss": plain(Windows(2)),
    "laguna": plain(Windows(4, dense_first=True, optional=True)),
    "llama4": plain(Windows(4, fixed=8192, chunked=True)),
    "mellum": plain(Windows(4, optional=True)),
    "muse-glimmer": plain(Windows(4)),
    "olmo2": plain(Windows(4, optional=True)),
    "plamo3": plain(Windows(8, optional=True)),
    "smallthinker": plain(Windows(4, dense_first=True, fixed=4096, optional=True)),
    **dict.fromkeys(("granite_swa", "maple", "mimo2", "spark2_5", "step35"), _LISTED),
    # latents
    **dict.fromkeys(("deepseek2", "mistral4"), mla_or_heads),
    "deepseek32": indexed(every_layer),
    "glm-dsa": indexed(glm_indexers),
    "hy_v4": hy_v4,
    "dots3note": dots3_note,
    "deepseek4": deepseek4,
    "minimax-m3": minimax_m3,
    # states
    **dict.fromkeys(("mamba", "mamba2"), recurrent(ssm)),
    **dict.fromkeys(("rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"), recurrent(rwkv)),
    **dict.fromkeys(("jamba", "granitehybrid", "plamo2"), hybrid(ssm)),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), nemotron_h),
    "falcon-h1": falcon_h1,
    "lfm2": hybrid(convolution, Windows(0, optional=True)),
    "lfm2moe": hybrid(convolution),
    **dict.fromkeys(("kimi-linear", "kimi-k3", "bailingmoe3"), hybrid(kimi_delta, attention=mla_or_heads)),
    "glm5-next": hybrid(kimi_delta, attention=indexed(every_layer, packed=True)),
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), interval(delta, 4)),
    "minimax-01": interval(lightning, 8),
    "qwen4exp": qwen4_exp,
}

# What a file may be that is no model of its own: what to say of it.
OTHERS = {
    "clip": "a projector (mmproj): it has no KV cache. Name the language model's file.",
    "dflash": "a drafting model that runs inside another one's context. Name that one's file.",
}


def geometry(raw: Mapping[str, Any]) -> Geometry:
    """What a model stores, layer by layer, from the metadata of its GGUF.

    Raises:
        ConfigError: a key is missing, invalid or conflicting.
        UnknownArchitectureError: llama.cpp has no such architecture, or kvsize no rule for it.
    """
    arch = raw.get(ARCHITECTURE)
    if not isinstance(arch, str) or arch not in GGUF:
        raise _unknown(arch)
    inner = {key.removeprefix(f"{arch}."): value for key, value in raw.items() if key.startswith(f"{arch}.")}
    cfg = Metadata(inner, arch, arch, TypeFacts(), {}, _notes(raw))
    sizes = shape(cfg)
    layers = _build(GGUF[arch], cfg, sizes)
    last = len(layers) - sizes.drafts if _drafts(raw, arch) else len(layers)
    model_type, architecture = NAMES.get(arch, (arch, None))
    return Geometry(
        model_type=model_type,
        layers=layers[:last],
        drafts=layers[last:],
        num_attention_heads=max(sizes.heads) or None,
        hidden_size=cfg.maybe("embedding_length"),
        vocab_size=cfg.maybe("vocab_size") or (tokens if type(tokens := raw.get("kvsize.vocab_size")) is int else None),
        max_tokens=cfg.maybe("context_length"),
        architecture=architecture,
        stated=_stated(sizes),
        reads=tuple(cfg.reads.values()),
        notes=tuple(cfg.notes),
    )


def _build(adapter: Adapter, cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
    try:
        return adapter(cfg, sizes)
    except ValueError as error:  # a value type refused what the metadata adds up to
        raise ConfigError(f"{cfg.model_type}: {error}", where=cfg.path) from error


def _drafts(raw: Mapping[str, Any], arch: str) -> bool:
    """Whether the last layers draft: DeepSeek-V4 asks the tensors, deepseek4.cpp load_arch_hparams."""
    return arch != "deepseek4" or raw.get("kvsize.draft_tensors") is True


def _stated(sizes: Shape) -> tuple[tuple[str, int], ...]:
    """The widths that llama.cpp checks cache types against, also where no layer has them (MLA's value_length)."""
    widths = {"key_length": sizes.k, "value_length": sizes.v}
    if (sizes.k_swa, sizes.v_swa) != (sizes.k, sizes.v):
        widths |= {"key_length_swa": sizes.k_swa, "value_length_swa": sizes.v_swa}
    return tuple((f"attention.{key}", value) for key, value in widths.items() if value)


def _notes(raw: Mapping[str, Any]) -> list[str]:
    missing = raw.get("kvsize.missing_parts")
    if not isinstance(missing, list) or not missing:
        return []
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return [f"{missing[0]}{more} is not beside this file: the cache is whole, the weights are not known"]


def _unknown(arch: Any) -> UnknownArchitectureError:
    name = arch[:64] if isinstance(arch, str) else ""
    if name in OTHERS:
        return UnknownArchitectureError(f"general.architecture is {name}", where=ARCHITECTURE, hint=OTHERS[name])
    near = difflib.get_close_matches(name, GGUF, n=3, cutoff=0.5)
    hint = f"Nearest known: {', '.join(near)}" if near else "It may be newer than llama.cpp b11739."
    return UnknownArchitectureError(
        "llama.cpp has no such architecture", where=ARCHITECTURE, got=repr(name or arch)[:80], hint=hint
    )
