"""The bundled catalogue: every file is small, filtered, named after its id, and plausible."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "configs" / "models"
FILES = sorted(path for path in MODELS.glob("*.json") if path.name != "aliases.json")

BOARD = (
    "meta-llama/Llama-2-7b-hf",
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B",
    "mistralai/Mistral-7B-v0.1",
    "google/gemma-2-9b",
    "google/gemma-3-27b-it",
    "openai/gpt-oss-120b",
    "deepseek-ai/DeepSeek-V3",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "ai21labs/AI21-Jamba-1.5-Mini",
    "tiiuae/falcon-7b",
    "microsoft/Phi-3-mini-128k-instruct",
    "google/gemma-3n-E4B-it",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
)

FIELDS: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "origin": (str,),
    "revision": (str, type(None)),
    "date": (str,),
    "confidence": (str,),
    "weight_bytes": (int, type(None)),
    "parameters": (int, type(None)),
    "config": (dict,),
}


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_catalogue", ROOT / "validate" / "make_catalogue.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = _generator()


def _load(path: Path) -> dict[str, Any]:
    item = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(item, dict)
    return item


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    for key in ("text_config", "llm_config", "language_config", "decoder_config"):
        nested = config.get(key)
        if isinstance(nested, dict):
            return nested
    return _text_config(config["thinker_config"]) if "thinker_config" in config else config


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_is_small_and_well_formed(path: Path) -> None:
    assert path.stat().st_size < 6 * 1024
    item = _load(path)
    assert list(item) == list(FIELDS)
    for name, types in FIELDS.items():
        assert type(item[name]) in types, name
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", item["id"])
    assert path.name == item["id"].replace("/", "--") + ".json"
    assert item["confidence"] in {"high", "medium", "low"}
    assert re.fullmatch(r"\d{4}-\d{2}", item["date"])
    assert item["origin"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_config_holds_allowed_keys_only(path: Path) -> None:
    config = _load(path)["config"]
    assert list(GENERATOR.forbidden_keys(config)) == []
    assert GENERATOR.keep(config) == config, "filtering twice changes nothing"
    assert "auto_map" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_config_says_its_type_and_depth(path: Path) -> None:
    config = _load(path)["config"]
    assert isinstance(config["model_type"], str)
    text = _text_config(config)
    depths = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
    lists = (
        "layer_types",
        "layers_block_type",
        "hybrid_layer_pattern",
        "attn_type_list",
        "hybrid_override_pattern",
        "block_configs",
    )
    found = {text[name] for name in depths if text.get(name) is not None} | {
        len(text[name]) for name in lists if text.get(name)
    }
    # A nested text config may leave its depth to the class defaults, as published.
    assert found or text is not config
    assert len(found) <= 1, found
    assert all(1 <= depth <= 200 for depth in found)
    for name in ("sliding_window", "max_position_embeddings", "num_key_value_heads", "head_dim"):
        assert text.get(name) is None or text[name] > 0, name
    heads, kv_heads = text.get("num_attention_heads"), text.get("num_key_value_heads")
    if heads and kv_heads:
        assert heads % kv_heads == 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_weights_are_plausible(path: Path) -> None:
    item = _load(path)
    if item["parameters"] is not None:
        assert 10**7 < item["parameters"] < 10**13
    if item["weight_bytes"] is not None:
        assert item["weight_bytes"] > 10**7
        assert item["parameters"] is None or 0.2 <= item["weight_bytes"] / item["parameters"] <= 4.5


def test_there_are_enough_models() -> None:
    assert len(FILES) >= 220


@pytest.mark.parametrize("model_id", BOARD)
def test_board_models_are_present(model_id: str) -> None:
    assert (MODELS / f"{model_id.replace('/', '--')}.json").is_file()


def test_aliases_resolve_and_shadow_nothing() -> None:
    aliases = _load(MODELS / "aliases.json")
    ids = {_load(path)["id"] for path in FILES}
    assert len({model_id.lower() for model_id in ids | set(aliases)}) == len(ids) + len(aliases)
    for alias, target in aliases.items():
        assert re.fullmatch(r"([\w.-]+/)?[\w.-]+", alias)  # gpt2 and others are older than organisations
        assert target in ids, f"{alias} -> {target}"
        assert alias not in ids, alias


def test_no_table_of_the_generator_contradicts_another() -> None:
    assert not set(GENERATOR.MIRRORS) & GENERATOR.SKIP
    assert len(set(GENERATOR.MIRRORS.values())) == len(GENERATOR.MIRRORS)
    assert not GENERATOR.KEYS & (set(GENERATOR.NESTED) | GENERATOR.MODEL_OBJECTS)


def test_gemma_3_4b_leaves_its_heads_to_the_class_defaults() -> None:
    text = _load(MODELS / "google--gemma-3-4b-it.json")["config"]["text_config"]
    assert not {"num_attention_heads", "num_key_value_heads", "head_dim"} & set(text)


def test_an_absent_key_stays_absent_and_a_null_stays_null() -> None:
    kept = GENERATOR.keep(
        {
            "model_type": "x",
            "sliding_window": None,
            "bos_token_id": 1,
            "auto_map": {"AutoConfig": "y"},
            "text_config": {
                "num_hidden_layers": 2,
                "rms_norm_eps": 1e-6,
                "rope_scaling": {"rope_type": "yarn", "beta_fast": 32},
            },
            "vision_config": {"patch_size": 14},
            "audio_config": {"depth": 3},
        }
    )
    assert kept == {
        "model_type": "x",
        "sliding_window": None,
        "text_config": {"num_hidden_layers": 2, "rope_scaling": {"rope_type": "yarn"}},
    }


@pytest.mark.parametrize(
    ("config", "checkpoint", "parameters", "expected"),
    [
        ({"torch_dtype": "bfloat16"}, None, 10, 20),
        ({"text_config": {"dtype": "torch.float32"}}, None, 10, 40),
        ({"torch_dtype": "bfloat16"}, 21, 10, 21),
        ({"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}, None, 10, None),
        ({"torch_dtype": "bfloat16"}, None, None, None),
        ({}, None, 10, None),
    ],
)
def test_weight_bytes(
    config: dict[str, Any], checkpoint: int | None, parameters: int | None, expected: int | None
) -> None:
    assert GENERATOR.weight_bytes(config, checkpoint, parameters)[0] == expected
