"""GGUF architectures with states: Mamba, delta rules, short convolutions, RWKV; pure and hybrid."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvsize.architectures.gguf.attention import plain
from kvsize.architectures.gguf.metadata import Adapter, Metadata, Shape
from kvsize.architectures.gguf.windows import Windows
from kvsize.architectures.recurrent import kda, short_conv
from kvsize.geometry import Attention, IndexKey, Layer, Recurrent, State

States = Callable[[Metadata, Shape], Recurrent]


def ssm(cfg: Metadata, _sizes: Shape) -> Recurrent:
    """Mamba, Mamba-2: conv over inner_size and the groups' B and C; a state a channel. llama-hparams.cpp n_embd_r"""
    inner, state = cfg.need("ssm.inner_size"), cfg.need("ssm.state_size")
    groups = cfg.maybe("ssm.group_count", at_least=0) or 0
    conv = State("conv", (inner + 2 * groups * state, cfg.need("ssm.conv_kernel")))
    count = cfg.need("ssm.time_step_rank") if groups else 0
    matrix = (count, inner // count, state) if count and inner % count == 0 else (inner, state)
    return Recurrent("mamba2" if groups else "mamba", (conv, State("recurrent", matrix, "float32")), groups=groups)


def delta(cfg: Metadata, sizes: Shape) -> Recurrent:
    """Gated DeltaNet: the same keys, groups being the key heads."""
    return Recurrent("gated_delta", ssm(cfg, sizes).states)


def rwkv(cfg: Metadata, _sizes: Shape) -> Recurrent:
    """RWKV: shifted vectors, and one [head, head] matrix for each head."""
    hidden, side = cfg.need("embedding_length"), cfg.need("wkv.head_size")
    if hidden % side:
        raise cfg.invalid("wkv.head_size", f"a divisor of {hidden}", side)
    shifted = cfg.maybe("token_shift_count") or 2
    if shifted > 16:
        raise cfg.invalid("token_shift_count", "at most 16", shifted)
    matrix = State("recurrent", (hidden // side, side, side), "float32")
    return Recurrent("rwkv", (*(State("conv", (hidden, 1)),) * shifted, matrix))


def kimi_delta(cfg: Metadata, sizes: Shape) -> Recurrent:
    """KDA: one [d, d] matrix a head of layer 0."""
    return kda(sizes.heads[0], cfg.need("kda.head_dim"), cfg.need("ssm.conv_kernel"))


def convolution(cfg: Metadata, _sizes: Shape) -> Recurrent:
    """LFM2: one short convolution."""
    return Recurrent("short_conv", (short_conv(cfg.need("embedding_length"), cfg.need("shortconv.l_cache")),))


def lightning(_cfg: Metadata, sizes: Shape) -> Recurrent:
    """MiniMax-01: one [d, d] matrix a head."""
    return Recurrent("lightning", (State("recurrent", (sizes.heads[0], sizes.k, sizes.k)),))


def recurrent(states: States) -> Adapter:
    """States only."""
    return lambda cfg, sizes: (Layer((states(cfg, sizes),), kind="linear_attention"),) * sizes.layers


def hybrid(states: States, windows: Windows | None = None, attention: Adapter | None = None) -> Adapter:
    """A layer without KV heads is recurrent; the others attend."""

    def adapt(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
        last = sizes.layers - sizes.drafts
        linear = [not count and index < last for index, count in enumerate(sizes.kv_heads)]
        return _mixed(states, linear, (attention or plain(windows))(cfg, sizes), cfg, sizes)

    return adapt


def _mixed(
    states: States, linear: Sequence[bool], attending: Sequence[Layer], cfg: Metadata, sizes: Shape
) -> tuple[Layer, ...]:
    layer = Layer((states(cfg, sizes),), kind="linear_attention") if any(linear) else Layer()
    return tuple(layer if is_linear else other for is_linear, other in zip(linear, attending, strict=True))


def interval(states: States, period: int, attention: Adapter | None = None) -> Adapter:
    """Each full_attention_interval-th layer attends, or those that recurrent_layers does not mark."""

    def adapt(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
        last = sizes.layers - sizes.drafts
        step = cfg.maybe("full_attention_interval") or period
        listed = cfg.marks("attention.recurrent_layers", sizes.layers)
        linear = listed or [i < last and (i + 1) % step != 0 for i in range(sizes.layers)]
        return _mixed(states, linear, (attention or plain())(cfg, sizes), cfg, sizes)

    return adapt


def qwen4_exp(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
    """Qwen4: gated delta; attention with an index key; a longer convolution on the n-gram layer."""
    listed = set(cfg.whole_numbers("ple.layers") or ())
    index = Attention(IndexKey(cfg.need("attention.indexer.key_length")))

    def attending(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
        return tuple(Layer((*one.stores, index), kind="indexed_attention") for one in plain()(cfg, sizes))

    layers = list(interval(delta, 4, attending)(cfg, sizes))
    for place in listed:
        if place >= len(layers) or layers[place].kind != "linear_attention":
            raise cfg.invalid("ple.layers", "recurrent layers", place)
        base = delta(cfg, sizes)
        layers[place] = Layer((Recurrent(base.kind, (*base.states, _ple(cfg))),), kind="linear_attention")
    return tuple(layers)


def _ple(cfg: Metadata) -> State:
    """The columns that are kept, not a kernel. llama-hparams.cpp ple_conv_state"""
    columns = (cfg.need("ple.conv_kernel", at_least=2) - 1) * cfg.need("ple.ngram_size", at_least=2)
    return short_conv(cfg.need("hyper_connection.count") * cfg.need("embedding_length"), columns)


def falcon_h1(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
    """Falcon-H1: attention and Mamba-2 in every layer."""
    states = ssm(cfg, sizes)
    return tuple(Layer((*layer.stores, states), kind="hybrid") for layer in plain()(cfg, sizes))


def nemotron_h(cfg: Metadata, sizes: Shape) -> tuple[Layer, ...]:
    """Nemotron-H: a layer with a feed-forward part has neither state nor cache."""
    given = cfg.given("feed_forward_length")
    widths = cfg.per_layer("feed_forward_length", sizes.layers) if given else (0,) * sizes.layers
    mixed = hybrid(ssm)(cfg, sizes)
    return tuple(Layer(kind="mlp") if width else layer for width, layer in zip(widths, mixed, strict=True))
