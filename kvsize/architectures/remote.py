"""Models whose repositories bring their own code: read from their published configuration classes, never run."""

from __future__ import annotations

from kvsize.architectures.attention import falcon_heads, use_sliding_window
from kvsize.architectures.common import Adapter, all_full, hidden_per_head, kv_heads, query_heads, standard, with_heads
from kvsize.architectures.latent import mla
from kvsize.architectures.recurrent import minimax
from kvsize.architectures.singular import deepseek_v4, minimax_m3
from kvsize.config import ConfigView
from kvsize.errors import ConfigError
from kvsize.geometry import Attention, Full, Heads, Layer, Recurrent, Sliding, State


def chatglm(cfg: ConfigView) -> tuple[Layer, ...]:
    """ChatGLM: the first has one KV head a query head, the later ones multi_query_group_num."""
    width = cfg.maybe("kv_channels") or hidden_per_head(cfg)
    count = cfg.need("multi_query_group_num") if cfg.flag("multi_query_attention") else query_heads(cfg)
    return (Layer((Attention(Heads(count, width, width)),)),) * cfg.layers()


def qwen1(cfg: ConfigView) -> tuple[Layer, ...]:
    """Qwen (first generation): MHA, kv_channels wide."""
    width = cfg.maybe("kv_channels") or hidden_per_head(cfg)
    return (Layer((Attention(Heads(query_heads(cfg), width, width)),)),) * cfg.layers()


def nemotron_nas(cfg: ConfigView) -> tuple[Layer, ...]:
    """DeciLM, Nemotron-NAS: each block says whether it attends, in what groups, and in which window."""
    blocks = cfg.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != cfg.layers():
        return _deci_per_layer(cfg)
    return tuple(_nas_layer(cfg, index, block) for index, block in enumerate(blocks))


def _deci_per_layer(cfg: ConfigView) -> tuple[Layer, ...]:
    width = hidden_per_head(cfg)
    counts = cfg.per_layer("num_key_value_heads_per_layer", cfg.layers())
    return tuple(Layer((Attention(Heads(count, width, width)),)) for count in counts)


def _nas_layer(cfg: ConfigView, index: int, block: object) -> Layer:
    attention = block.get("attention") if isinstance(block, dict) else None
    where = f"block_configs[{index}].attention"
    if not isinstance(attention, dict):
        raise cfg.invalid(where, "an object", attention)
    if attention.get("no_op") or attention.get("replace_with_linear"):
        return Layer(kind="no_attention")
    group, window = attention.get("n_heads_in_group"), attention.get("window_length")
    total = query_heads(cfg)
    if not isinstance(group, int) or isinstance(group, bool) or group < 1 or total % group:
        raise cfg.invalid(f"{where}.n_heads_in_group", f"a divisor of the {total} heads", group)
    if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < 1):
        raise cfg.invalid(f"{where}.window_length", "a window in tokens", window)
    width = hidden_per_head(cfg)
    entry = Heads(total // group, width, width)
    if window is None:
        return Layer((Attention(entry, Full()),))
    return Layer((Attention(entry, Sliding(window)),), kind="sliding_attention")


def hunyuan(cfg: ConfigView) -> tuple[Layer, ...]:
    """Hunyuan (remote code): with use_cla, cla_share_factor neighbouring layers share one cache."""
    width = cfg.maybe("attention_head_dim") or hidden_per_head(cfg)
    stores = (Attention(Heads(kv_heads(cfg), width, width)),)
    group = cfg.need("cla_share_factor") if cfg.flag("use_cla") else 1
    return tuple(Layer(stores, shares=i - i % group if i % group else None) for i in range(cfg.layers()))


def openelm(cfg: ConfigView) -> tuple[Layer, ...]:
    """OpenELM: another number of KV heads in each layer."""
    width = cfg.need("head_dim")
    counts = cfg.per_layer("num_kv_heads", cfg.layers())
    return tuple(Layer((Attention(Heads(count, width, width)),)) for count in counts)


def step3(cfg: ConfigView) -> tuple[Layer, ...]:
    """Step-3: multi-matrix factorisation, num_attention_groups KV heads."""
    width = cfg.need("head_dim")
    return (Layer((Attention(Heads(cfg.need("num_attention_groups"), width, width)),)),) * cfg.layers()


def rwkv5(cfg: ConfigView) -> tuple[Layer, ...]:
    """RWKV-5, 6 and 7: two shifted vectors, and one float32 [head, head] matrix for each head."""
    hidden = cfg.need("hidden_size")
    inner = cfg.maybe("attention_hidden_size") or hidden
    side = cfg.maybe("head_size") or cfg.need("head_dim")
    if inner % side:
        raise ConfigError(f"head size {side} does not divide {inner}", where=cfg.path)
    states = (State("conv", (hidden, 1)),) * 2 + (State("recurrent", (inner // side, side, side), "float32"),)
    return (Layer((Recurrent("rwkv", states),), kind="linear_attention"),) * cfg.layers()


def mha(cfg: ConfigView) -> Heads:
    """One KV head for each query head."""
    width = hidden_per_head(cfg)
    return Heads(query_heads(cfg), width, width)


REMOTE: dict[str, Adapter] = {
    **dict.fromkeys(("RefinedWebModel", "RefinedWeb"), with_heads(falcon_heads, all_full)),
    **dict.fromkeys(
        ("baichuan", "gpt_neox_reward_model", "internlm", "orion", "rugpt3xl", "xverse"), with_heads(mha, all_full)
    ),
    **dict.fromkeys(
        (
            "aquila",
            "arctic",
            "bailing_moe",
            "exaone",
            "falcon_perception",
            "grok-1",
            "internlm2",
            "minicpm",
            "mimo",
            "molmo",
            "phi-msft",
            "phi3small",
        ),
        standard(all_full),
    ),
    "phi3_v": standard(),
    "minicpmv": standard(use_sliding_window),
    "chatglm": chatglm,
    "qwen": qwen1,
    **dict.fromkeys(("nemotron-nas", "deci"), nemotron_nas),
    "hunyuan": hunyuan,
    "kimi_k2": mla,
    "deepseek_ref": deepseek_v4,
    "minimax_m3": minimax_m3,
    **dict.fromkeys(("minimax_text_01", "minimax_m1"), minimax),
    "openelm": openelm,
    "step3_text": step3,
    **dict.fromkeys(("rwkv5", "rwkv6", "rwkv7"), rwkv5),
}
