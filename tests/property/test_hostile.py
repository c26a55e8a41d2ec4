"""Whatever a config holds, the answer is a geometry or a clear refusal: never a traceback, never endless work."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the suite has no packages

import hostile
from inprocess import kvsize

from kvsize.architectures import geometry
from kvsize.engines import CacheSize, LayerBytes
from kvsize.errors import ConfigError, KvsizeError, SourceError, UnsupportedError
from kvsize.geometry import Geometry, Layer

CHUNK = 500
FORMS = ("json", "table", "csv", "markdown")
LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}


@pytest.fixture(autouse=True)
def _bounded_memory():
    with hostile.bounded_memory():
        yield


def failures(seeds: range) -> list[tuple[int, str]]:
    return [(seed, wrong) for seed in seeds if (wrong := hostile.check(seed))]


@pytest.mark.parametrize("start", range(0, 5000, CHUNK))
def test_mutated_configs_are_answered_or_refused(start):
    assert failures(range(start, start + CHUNK)) == []


@pytest.mark.sweep
@pytest.mark.parametrize("start", range(10_000, 60_000, 5_000))
def test_more_mutated_configs(start):
    assert failures(range(start, start + 5_000)) == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("verb", ["size", "layers"])
def test_the_command_prints_mutated_configs_in_every_form(verb, form):
    bad = []
    for seed in range(20_000, 20_060):
        done = kvsize([verb, "-", "--format", form], hostile.mutated(seed))
        clean = "Traceback" not in done.err and "\x1b" not in done.out + done.err
        if done.code not in (0, 4, 5) or not clean or bool(done.out) != (done.code == 0):
            bad.append((seed, done.code, done.err[-300:]))
    assert bad == []


@pytest.mark.parametrize("form", ["json", "table"])
@pytest.mark.parametrize("command", ["fit - --gpu h100 --ctx 8k", "compare - --ctx 8k", "audit -"])
def test_other_commands_answer_or_refuse_too(command, form):
    bad = []
    for seed in range(21_000, 21_040):
        done = kvsize([*command.split(), "--format", form], hostile.mutated(seed))
        if done.code not in (0, 1, 4, 5) or "Traceback" in done.err or "\x1b" in done.out + done.err:
            bad.append((seed, done.code, done.err[-300:]))
    assert bad == []


@pytest.mark.parametrize("seed", range(30_000, 30_004))
def test_the_real_process_exits_cleanly(seed):
    done = subprocess.run(
        [sys.executable, "-m", "kvsize", "-", "--ctx", "4k", "--json"],
        input=hostile.mutated(seed),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, 4, 5)
    assert b"Traceback" not in done.stderr
    json.loads(done.stdout if done.returncode == 0 else done.stderr)


# -- single cases that a random walk may miss --------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["\ud800", "\x1b[2J", "\x9b2J", "a|b\nc"])
def test_odd_characters_of_a_config_reach_no_terminal(name, form):
    config = {**LLAMA, "architectures": [name], "torch_dtype": name}
    done = kvsize(["-", "--format", form], json.dumps(config).encode())
    assert done.code == 0
    assert "\x1b" not in done.out
    assert form == "json" or "\x9b" not in done.out


@pytest.mark.parametrize("name", ["\ud800", "\x1b[2J", "\x9b2J", "two words", "", "A" * 1000, 7, None])
def test_a_class_that_could_be_none_is_no_class(name):
    assert geometry({**LLAMA, "architectures": [name]}).architecture is None
    assert geometry({**LLAMA, "architectures": [name, "LlamaForCausalLM"]}).architecture is None
    assert geometry({**LLAMA, "architectures": ["LlamaForCausalLM", name]}).architecture == "LlamaForCausalLM"


def test_a_file_s_name_is_escaped_too(tmp_path):
    done = kvsize([str(tmp_path / "\x1b[2J\u202e.json")])
    assert done.code == 3
    assert r"\x1b[2J\u202e.json" in done.err
    assert done.err.replace("\n", "").isprintable()


def test_a_key_with_control_characters_is_escaped_in_the_refusal():
    config = {"model_type": "nobody-knows", "\x1b[2J\x9b\u202e window": "\x1b[31m"}
    done = kvsize(["-"], json.dumps(config).encode())
    assert done.code == 4
    assert r"\u001b[2J\u009b\u202e window" in done.err
    assert done.err.replace("\n", "").isprintable()


@pytest.mark.parametrize("value", [10**30, int("9" * 4000), 2**31 + 1, -1, 0, True, "8", 1.5, None])
def test_a_context_length_beyond_reason_counts_as_unknown(value):
    """A tokenizer's model_max_length of 10**30 means "no limit"; kvsize once took it for one."""
    assert geometry({**LLAMA, "model_type": "internlm2", "max_position_embeddings": value}).max_tokens is None


@pytest.mark.parametrize("value", [2**63, 10**30, 4097, -1, 0, True, "8", "", 1.5, [], {}, [2], float("nan"), 1e400])
def test_a_layer_count_that_is_none_is_refused(value):
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        geometry({**LLAMA, "num_hidden_layers": value})


def test_layers_bounded_where_cycles_multiply_them():
    """hrm_text multiplies three numbers of the config; 100,000 layers once passed and took seconds."""
    cycles = {"H_cycles": 2**31, "L_cycles": 2**31}
    with pytest.raises(ConfigError, match="cycles"):
        geometry({"model_type": "hrm_text", "num_hidden_layers": 4096, **cycles})


def test_a_layer_count_beside_the_one_that_counts_is_bounded_too():
    """BART's family counts decoder_layers; an engine that trusts num_hidden_layers built 2**31 layers."""
    for key in ("num_hidden_layers", "encoder_layers", "num_layers"):
        with pytest.raises(ConfigError, match=f"{key}: must be at most 4096"):
            geometry({"model_type": "m2m_100", key: 2**31})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"model_type": "llama", "model_type": "mamba"}', ConfigError),
        ('{"a":' * 200 + "1" + "}" * 200, ConfigError),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, ConfigError),
        ('{"a": ' + "9" * 5000 + "}", ConfigError),
        ('{"model_type": NaN}', ConfigError),
        ("[" * 100_000, SourceError | ConfigError),
        ("", SourceError),
        ("[]", SourceError),
        ("\x00", SourceError),
    ],
    ids=["twice", "deep", "deeper", "digits", "nan", "brackets", "empty", "list", "nul"],
)
def test_texts_that_are_no_config(text, error):
    assert isinstance(hostile.answer(text.encode()), error)


# -- work --------------------------------------------------------------------------------------------------------------

DEEP = (
    {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"},
    {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "dtype": "bfloat16"},
    {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "dtype": "bfloat16"},
    {"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "dtype": "bfloat16"},
)


def calls(work: Callable[[], object]) -> int:
    """How many functions, builtins and generator steps some work takes: the same on every machine."""
    count = 0

    def counted(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("config", DEEP, ids=lambda config: config["model_type"])
def test_reading_a_config_is_linear_in_its_layers(config):
    few, many = (calls(lambda n=n: geometry({**config, "num_hidden_layers": n})) for n in (240, 960))
    assert many < 5 * few


@pytest.mark.parametrize("way", hostile.ways(), ids=str)
@pytest.mark.parametrize("config", DEEP, ids=lambda config: config["model_type"])
def test_sizing_is_linear_in_layers(config, way):
    """SGLang once asked of every layer whether any layer has an index: 4,096 layers took seconds."""
    models = [geometry({**config, "num_hidden_layers": n}) for n in (240, 960)]
    hostile.sized(models[0], way, 4096, 1)  # imports, caches
    few, many = (calls(lambda model=model: hostile.sized(model, way, 4096, 1)) for model in models)
    assert many < 5 * few + 1000


def test_a_quadratic_loop_is_seen():
    few, many = (calls(lambda n=n: [any(i == n for i in range(n)) for _ in range(n)]) for n in (50, 200))
    assert many > 12 * few


# -- the test tested ---------------------------------------------------------------------------------------------------


def test_a_seed_always_makes_the_same_config():
    assert [hostile.mutated(seed) for seed in range(50)] == [hostile.mutated(seed) for seed in range(50)]


def test_the_seeds_reach_what_they_promise():
    texts = [hostile.mutated(seed) for seed in range(2_000)]
    answers = [hostile.answer(text) for text in texts]
    accepted = sum(isinstance(answer, Geometry) for answer in answers)
    assert 600 < accepted < 1_600  # enough of both to mean something
    messages = " ".join(str(answer) for answer in answers if isinstance(answer, KvsizeError))
    for words in ("stands there twice", "levels deep", "out of all bounds", "missing", "must be", "does not know"):
        assert words in messages
    whole = b"".join(texts)
    for literal in (b"NaN", b"Infinity", b"true", b"null", str(10**30).encode(), str(2**63).encode(), b"[1, 1, 1, 1"):
        assert literal in whole
    assert len(hostile.corpus()) > 600


def test_the_check_sees_faults():
    assert hostile.fault(SourceError("x", reason="broken")) is not None
    assert hostile.fault(UnsupportedError("x")) is None
    assert hostile.fault(Geometry("x", (Layer(),) * (hostile.MAX_LAYERS + 1))) is not None
    size = {"engine": "e", "version": "1", "cache": "c", "k_format": "f", "v_format": "f"}
    assert hostile.size_fault(CacheSize(**size, layers=(LayerBytes(1, 1, 1),))) is None
    assert hostile.size_fault(CacheSize(**size, layers=(LayerBytes(1, 1.0, 1),))) is not None
    assert hostile.size_fault(CacheSize(**size, layers=(LayerBytes(1, -1, 1),))) is not None
