"""Encoder-decoder models: the decoder's own cache, and the encoder's keys and values, kept once for each layer."""

from __future__ import annotations

from collections.abc import Sequence

from kvsize.architectures.common import (
    Adapter,
    LayerTypes,
    all_full,
    every,
    head_dim,
    hidden_per_head,
    layer_types,
    span,
    standard,
)
from kvsize.config import ConfigView
from kvsize.errors import ConfigError
from kvsize.geometry import Attention, Encoder, Heads, Layer


def with_cross(layers: Sequence[Layer], encoder: Encoder) -> tuple[Layer, ...]:
    """The same layers, each also keeping the encoder's keys and values in heads like its own."""
    crossed = []
    for layer in layers:
        attention = [store for store in layer.stores if isinstance(store, Attention)]
        own = next((store.entry for store in attention if isinstance(store.entry, Heads)), None)
        has_one = any(isinstance(store.span, Encoder) for store in attention)
        more = () if own is None or has_one else (Attention(own, encoder),)
        crossed.append(Layer((*layer.stores, *more), kind=layer.kind))
    return tuple(crossed)


def _decoder(cfg: ConfigView, layers_key: str, heads_key: str, width: int | None = None) -> tuple[Layer, ...]:
    count, hidden = cfg.need(heads_key), cfg.need("hidden_size")
    if hidden < count:
        raise ConfigError(f"{heads_key} {count} exceeds the hidden size {hidden}", where=cfg.path)
    width = width or hidden // count
    layers = (Layer((Attention(Heads(count, width, width)),)),) * cfg.layers(layers_key)
    return with_cross(layers, Encoder()) if cfg.flag("is_encoder_decoder") else layers


def bart(cfg: ConfigView) -> tuple[Layer, ...]:
    """BART's family: the decoder's keys start with decoder_."""
    return _decoder(cfg, "decoder_layers", "decoder_attention_heads")


def prophetnet(cfg: ConfigView) -> tuple[Layer, ...]:
    """ProphetNet: the same under other names."""
    return _decoder(cfg, "num_decoder_layers", "num_decoder_attention_heads")


def whisper(cfg: ConfigView) -> tuple[Layer, ...]:
    """Whisper: like BART; the encoder always yields max_source_positions frames (30 s of audio)."""
    layers = bart(cfg)
    frames = cfg.maybe("max_source_positions") or 1500
    return tuple(Layer(tuple(_frames(store, frames) for store in layer.stores), kind=layer.kind) for layer in layers)


def _frames(store: object, frames: int) -> Attention:
    if not isinstance(store, Attention):
        raise TypeError(f"expected attention, got {store!r}")
    return Attention(store.entry, Encoder(tokens=frames)) if isinstance(store.span, Encoder) else store


def speech(cfg: ConfigView) -> tuple[Layer, ...]:
    """Cohere's, Canary's and Moonshine's decoders: grouped heads, the same for the encoder's keys and values."""
    return with_cross(standard(all_full)(cfg), Encoder())


def moonshine_streaming(cfg: ConfigView) -> tuple[Layer, ...]:
    """Moonshine's streaming decoder: its class has no default for the number of KV heads."""
    entry = Heads(cfg.need("num_key_value_heads"), head_dim(cfg), head_dim(cfg))
    return with_cross((Layer((Attention(entry),)),) * cfg.layers(), Encoder())


def dia(cfg: ConfigView) -> tuple[Layer, ...]:
    """Dia: cross attention has heads of its own."""
    width = cfg.need("cross_head_dim")
    cross = Attention(Heads(cfg.need("cross_num_key_value_heads"), width, width), Encoder())
    return tuple(Layer((*layer.stores, cross), kind=layer.kind) for layer in standard(all_full)(cfg))


def t5(cfg: ConfigView) -> tuple[Layer, ...]:
    """T5's family: d_kv wide heads; num_decoder_layers defaults to num_layers."""
    key = "num_decoder_layers" if cfg.get("num_decoder_layers") is not None else "num_layers"
    width = cfg.need("head_dim" if "head_dim" in cfg.facts.map else "d_kv")  # some classes take both names
    return _decoder(cfg, key, "num_attention_heads", width)


def pix2struct(cfg: ConfigView) -> tuple[Layer, ...]:
    """Pix2Struct: a T5 decoder that always reads image patches."""
    width = cfg.need("d_kv")
    layers = (Layer((Attention(Heads(cfg.need("num_attention_heads"), width, width)),)),) * cfg.layers()
    return with_cross(layers, Encoder())


def seq2seq_windows(default: LayerTypes) -> Adapter:
    """T5Gemma: a Gemma decoder whose cross attention never has a window."""
    return lambda cfg: with_cross(standard(default)(cfg), Encoder())


def mllama(cfg: ConfigView) -> tuple[Layer, ...]:
    """Llama 3.2 Vision: cross_attention_layers keep only the image's tokens, and nothing for a text-only request."""
    width = hidden_per_head(cfg)
    entry = Heads(cfg.need("num_key_value_heads"), width, width)
    given = cfg.whole_numbers("cross_attention_layers")
    cross = set(given if given is not None else (3, 8, 13, 18, 23, 28, 33, 38))
    kinds = layer_types(cfg)
    image = Layer((Attention(entry, Encoder(optional=True)),), kind="cross_attention")
    return tuple(
        image if index in cross else Layer((Attention(entry, span(cfg, kind)),), kind=kind)
        for index, kind in enumerate(kinds)
    )


# Outer types whose decoder, of any kind, also attends to an encoder.
CROSS_ATTENDING: dict[str, Encoder] = {
    "encoder-decoder": Encoder(),
    "speech-encoder-decoder": Encoder(),
    "vision-encoder-decoder": Encoder(),
    "musicgen": Encoder(optional=True),
}

SEQ2SEQ: dict[str, Adapter] = {
    **dict.fromkeys(
        """
        bart bigbird_pegasus blenderbot blenderbot-small fsmt led m2m_100 marian mbart mvp nllb-moe pegasus
        pegasus_x plbart pp_formulanet_text seamless_m4t seamless_m4t_v2 speech_to_text speecht5
        trocr
        """.split(),
        bart,
    ),
    **dict.fromkeys(("canary_decoder", "cohere_asr", "moonshine"), speech),
    "moonshine_streaming": moonshine_streaming,
    "dia_decoder": dia,
    "whisper": whisper,
    "prophetnet": prophetnet,
    **dict.fromkeys(
        """
        longt5 mt5 pop2piano switch_transformers t5 udop umt5
        """.split(),
        t5,
    ),
    "pix2struct_text_model": pix2struct,
    "t5_gemma_module": seq2seq_windows(every(2)),
    "t5gemma2_decoder": seq2seq_windows(every(6, "sliding_window_pattern")),
    "mllama_text_model": mllama,
}
