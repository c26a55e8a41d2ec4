"""Runs the real caches of the installed transformers, and holds kvsize's geometry and engine against them.

    python validate/oracle_transformers.py --write validate/truth/transformers-5.23.0-types.jsonl
    python validate/oracle_transformers.py --types llama,mamba2 --variants 20

Every model_type of the generating auto classes is built from its class defaults (and, with --variants, from configs
that differ from them in one to three fields), on the meta device, and fed tokens; see kvsize/real/twin.py. The bytes of
a run are compared with what kvsize computes from the very config.json that the class would save. Exit 1 if any differs.
"""

import argparse
import copy
import json
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import transformers
from transformers.models.auto import modeling_auto as auto
from variants import LEGACY, TINY, tiny, variants

from kvsize.architectures import geometry
from kvsize.engines import Workload
from kvsize.engines import transformers as engine
from kvsize.errors import KvsizeError
from kvsize.real.probe import weigh
from kvsize.real.twin import first_line, libraries, read_config, subject

MAPPINGS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "MULTIMODAL_LM")
DECODER_ONLY_BERT = """
bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta roberta-prelayernorm
roc_bert roformer xlm-roberta xlm-roberta-xl xmod reformer
"""
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [8, 12, 12]}
QWEN4 = {
    "indexer_n_heads": 8,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 256,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 16,
}
CROSS = {"is_decoder": True, "add_cross_attention": True}
# Class defaults that cannot be run as they are, and what is set instead. "a.b" is b inside a.
EDITS = {
    **{name: {"is_decoder": True} for name in DECODER_ONLY_BERT.split()},
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "blt": {"encoder_hash_byte_group_vocab": 1000},
    "chameleon": {"vocabulary_map": {"<image>": 8711}},
    "cohere_compass": {"text_config.rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_ocr2": {"text_config.mlp_layer_types": ["dense"] * 32},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "deepseek_v4": {"num_hidden_layers": 6},
    "diffusion_gemma": {
        "text_config.num_experts": 8,
        "text_config.top_k_experts": 2,
        "text_config.moe_intermediate_size": 64,
    },
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "emu3": {"vocabulary_map": {"<image>": 8711}},
    "encoder-decoder": {"encoder": {"model_type": "bert"}, "decoder": {"model_type": "bert", **CROSS}},
    "glm46v": {"text_config.rope_parameters": MROPE},
    "glm4v": {"text_config.rope_parameters": MROPE},
    "glm4v_moe": {"text_config.rope_parameters": MROPE, "text_config.head_dim": 128},
    "glmga": {"text_config.rope_parameters": MROPE},
    "granite4_vision": {"deepstack_layer_map": [], "downsample_rate": "4/8"},
    "granitemoehybrid": {"layer_types": (["linear_attention"] * 5 + ["full_attention"]) * 5 + ["linear_attention"] * 2},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl": {
        "text_config.head_dim": 128,
        "text_config.rope_parameters": {**MROPE, "partial_rotary_factor": 1.0, "mrope_section": [16, 16, 16, 16]},
    },
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "moonshine_streaming": {"num_key_value_heads": 8},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "qwen3_omni_moe_thinker": {"text_config.num_attention_heads": 32},
    "qwen4_exp": {f"text_config.{key}": value for key, value in QWEN4.items()},
    "qwen4_exp_text": QWEN4,
    "step3p7": {"text_config": {"sliding_window": 512}},
    "speech-encoder-decoder": {
        "encoder": {"model_type": "wav2vec2"},
        "decoder": {"model_type": "bart", **CROSS},
    },
    "vision-encoder-decoder": {
        "encoder": {"model_type": "vit"},
        "decoder": {"model_type": "gpt2", **CROSS},
    },
}


# Where kvsize is not the same on purpose, and why.
KNOWN = {
    "blt": "generate cannot build its cache, so the engine refuses; the twin is given a pair of caches by hand",
    "qwen4_exp": "static: positions of the tokens seen so far; kvsize counts those of all slots",
    "qwen4_exp_text": "static: positions of the tokens seen so far; kvsize counts those of all slots",
    "xlm": "the twin hands it a cache; generate never does, and returns an empty one",
    "reformer": "hash buckets begin with the second chunk of tokens; kvsize counts them from the first token on",
}


class TooLong(BaseException):
    """One model took more than its time."""


@contextmanager
def at_most(seconds):
    """Raises TooLong after so many seconds."""

    def too_long(*_):
        raise TooLong

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def model_types():
    """Every generating model_type, and the nested text types that only composites use."""
    return sorted({name for mapping in MAPPINGS for name in getattr(auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES")})


def edited(raw, edits):
    """A copy of a config with some keys set; `a.b` is the key b of the object a."""
    raw = copy.deepcopy(raw)
    for path, value in edits.items():
        *parents, leaf = path.split(".")
        inside = raw
        for parent in parents:
            inside = inside.setdefault(parent, {})
        inside[leaf] = value
    return raw


def as_saved(raw):
    """What save_pretrained would write of the config object that this file makes."""
    return json.loads(read_config(raw).to_json_string(use_diff=True))


# -- running -----------------------------------------------------------------------------------------------------------


def lengths(windows, brief):
    """Token counts around every window."""
    around = {n for w in sorted(windows)[:3] for n in ((w + 1,) if brief else (w - 1, w, w + 1, 2 * w))}
    return sorted(n for n in {*((16,) if brief else (1, 16, 100)), *around} if n > 0)


def plans(windows, brief):
    """(cache, sequences, tokens or static length, moment, plan); a few of them, if `brief`."""
    for tokens in lengths(windows, brief):
        if not brief or tokens == 16:
            yield "dynamic", 1, tokens, "prefill", (tokens,)
        if tokens > 1:
            yield "dynamic", 1, tokens, "decode", (tokens - 1, 1)
    if not brief:
        yield "dynamic", 2, 16, "decode", (15, 1)
    for length in {24} if brief else {100, *(w + d for w in windows for d in (-1, 1) if w > 16)}:
        yield "static", 2, length, "decode", (15, 1)


# Layers that keep what they are given and nothing else: once a real run has shown the shapes, their own code can be
# given other lengths without the model around it.
PLAIN = ("DynamicLayer", "DynamicSlidingWindowLayer", "StaticLayer", "StaticSlidingWindowLayer", "DummyLayer")


def replay(found, shown, plan, sequences, cache, length):
    """A cache object fed with keys and values of the shapes that a real run showed."""
    torch, _ = libraries()
    held = found.cache(cache, length)
    for step, tokens in enumerate(plan):
        for layer in shown:
            if not layer.tensors or (layer.part == "cross" and step):
                continue
            counted = found.encoder_tokens if layer.part == "cross" else tokens
            states = [
                torch.empty((sequences, t.shape[1], counted, t.shape[3]), dtype=torch.bfloat16, device="meta")
                for t in layer.tensors
            ]
            inner = getattr(held, f"{layer.part}_attention_cache", held)
            inner.update(*states, layer.index)
    return held


def feeder(found):
    """A function from (plan, sequences, cache, length) to a cache: the model's, or a replay where that is the same."""
    shown = weigh(found.feed((16,)), found.model)
    if found.own_cache or found.bare_cache or found.device != "meta" or any(layer.kind not in PLAIN for layer in shown):
        return found.feed, False
    again = weigh(replay(found, shown, (16,), 1, "dynamic", None))
    if again != shown:
        return found.feed, False
    return lambda *request: replay(found, shown, *request), True


def observe(found, brief):
    """Rows of a subject: [cache, sequences, tokens, moment, encoder tokens, logical bytes, storage bytes]."""
    windows = {layer.window for layer in weigh(found.feed((2,))) if layer.window}
    feed, cheap = feeder(found)
    decodes = cheap or found.decodes
    rows, failures = [], []
    for cache, sequences, tokens, moment, plan in plans(windows, brief or not cheap):
        if len(plan) > 1 and not decodes and cache != "static":
            continue
        if cache == "static" and (found.own_cache or found.bare_cache):
            continue
        try:
            layers = weighed(found, feed, plan, sequences, cache, tokens)
        except Exception as error:  # a static cache that a model does not take
            failures.append(f"{cache} {plan}: {first_line(error)}")
            continue
        encoder = found.encoder_tokens if found.reads_encoder else None
        sums = [sum(layer.logical for layer in layers), sum(layer.storage for layer in layers)]
        rows.append([cache, sequences, tokens, moment, encoder, *sums])
    return rows, failures


def weighed(found, feed, plan, sequences, cache, length):
    """The layers of one run; a static cache holds the same after a prefill alone, if meta tensors allow no more."""
    try:
        return weigh(feed(plan, sequences, cache, length), found.model)
    except Exception:
        if cache != "static":
            raise
        return weigh(feed((sum(plan),), sequences, cache, length), found.model)


def predict(model, row, dtype="bfloat16"):
    """kvsize's (logical, storage) for one row."""
    cache, sequences, tokens, moment, encoder, *_ = row
    size = engine.size(
        model,
        Workload(tokens, sequences, dtype, dtype, encoder),
        engine.Options(cache=cache, version=transformers.__version__),
    )
    steady = cache == "static" or moment == "decode"
    return size.logical_bytes, size.total_bytes if steady else size.after_prefill_bytes


def differences(raw, rows):
    """Where kvsize disagrees, in words."""
    try:
        model = geometry(raw)
    except KvsizeError as error:
        return [f"refused: {str(error).splitlines()[0]}"]
    wrong = []
    for row in rows:
        try:
            got = predict(model, row)
        except KvsizeError as error:
            wrong.append(f"{row[:5]} refused: {error.what}")
            continue
        if got[1] != row[6] or (row[0] == "dynamic" and got[0] != row[5]):
            wrong.append(f"{row[:5]} real {row[5:]} kvsize {list(got)}")
    return wrong


# -- main --------------------------------------------------------------------------------------------------------------


def trimmed(raw, model):
    """The keys of a config that decided its geometry."""
    read = {read.path for read in model.reads if read.origin in ("config", "alias")}
    always = {"model_type", "dtype", "architectures", "is_encoder_decoder"}

    def walk(inside, path):
        kept = {}
        for key, value in inside.items():
            here = f"{path}.{key}"
            if key == "per_layer_config":
                kept[key] = {
                    index: {k: v for k, v in one.items() if "head" in k or "lora" in k} for index, one in value.items()
                }
            elif isinstance(value, dict):
                inner = walk(value, here)
                if here in read or set(inner) - always or key in ("text_config", "decoder"):
                    kept[key] = inner
            elif here in read or key in always:
                kept[key] = value
        return kept

    short = walk(raw, "$")
    if geometry(short).layers != model.layers:
        raise SystemExit(f"{raw['model_type']}: trimming its config changes its geometry")
    return short


def cases(names, count, defaults):
    """(name, parsed config.json, brief) of every case."""
    for name in names:
        base = edited({"model_type": name}, EDITS.get(name, {}))
        if defaults:
            yield name, base, False
        if not count:
            continue
        for number, edits in enumerate(LEGACY.get(name, ())):
            yield f"{name}@legacy{number}:{json.dumps(edits)[:200]}", edited(base, edits), True
        small = edited(base, tiny(base)) if runs_tiny(base) else base
        for number, edits in enumerate(variants(small, count, name) if runs(small) else ()):
            yield f"{name}@{number}:{json.dumps(edits)[:200]}", edited(small, edits), True


def runs(raw):
    """Whether transformers makes a config object of this at all."""
    try:
        read_config(raw)
    except KvsizeError:
        return False
    return True


def runs_tiny(raw):
    """Whether the small model of this type runs on the CPU."""
    try:
        small = edited(raw, tiny(raw))
        return small != raw and subject(read_config(small), devices=("cpu",)) is not None
    except KvsizeError:
        return False


def check(raw, brief, seconds):
    """(saved config, rows, differences, failures) of one case; None for a config that transformers cannot run."""
    try:
        with at_most(seconds):
            saved = as_saved(raw)
            found = run_where_quick(raw)
            rows, failures = observe(found, brief)
    except KvsizeError as error:
        return None, [], [], [f"not run: {error.what} {error.got or ''}"[:300]]
    except TooLong:
        return None, [], [], ["not run: too long"]
    except Exception as error:  # a step of one length runs, and one of another does not
        return None, [], [], [f"not run: {first_line(error)}"]
    return saved, rows, [*differences(raw, rows), *(f"as saved: {d}" for d in differences(saved, rows))], failures


def run_where_quick(raw):
    """A small model on the CPU, which is quicker there; any other on the meta device."""
    config = read_config(raw)
    if getattr(config, "vocab_size", None) == TINY["vocab_size"]:
        return subject(config, devices=("cpu", "meta"))
    return subject(config)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", help="comma-separated model types; all of them if not given")
    parser.add_argument("--variants", type=int, default=0, help="variants of each type")
    parser.add_argument("--no-defaults", action="store_true", help="variants only")
    parser.add_argument("--seconds", type=int, default=120, help="time allowed for one model")
    parser.add_argument("--write", type=Path, help="write the rows of the class defaults here")
    arguments = parser.parse_args()
    torch, _ = libraries()
    torch.set_num_threads(1)
    counts = {"cases": 0, "rows": 0, "not run": 0, "differ": 0}
    lines = []
    names = arguments.types.split(",") if arguments.types else sorted({*model_types(), *LEGACY})
    for name, raw, brief in cases(names, arguments.variants, not arguments.no_defaults):
        began = time.monotonic()
        saved, rows, wrong, failures = check(raw, brief, arguments.seconds)
        counts["cases"] += 1
        counts["rows"] += len(rows)
        counts["not run"] += saved is None
        counts["differ"] += bool(wrong) and name.partition("@")[0] not in KNOWN
        print(f"{name[:60]} {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        if wrong or (failures and not brief):
            print(f"{name} ({time.monotonic() - began:.1f} s)", *wrong[:3], *failures[:3], sep="\n    ", flush=True)
        if saved is not None and not brief and not wrong and rows:
            lines.append({"name": name, "config": trimmed(saved, geometry(saved)), "runs": rows})
    if arguments.write:
        write(arguments.write, lines)
    print(counts)
    sys.exit(1 if counts["differ"] else 0)


def write(path, lines):
    head = {
        "engine": "transformers",
        "version": transformers.__version__,
        "dtype": "bfloat16",
        "how": "class defaults of each model_type as saved, real model class on the meta device, unique storages",
        "runs": ["cache", "batch", "tokens", "moment", "encoder_tokens", "logical_bytes", "storage_bytes"],
    }
    path.write_text("".join(json.dumps(line) + "\n" for line in (head, *lines)))
    print(f"{len(lines)} models -> {path}")


if __name__ == "__main__":
    main()
