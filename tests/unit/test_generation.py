"""--prompt, --new and --draft: what generate leaves in the cache."""

import json

import pytest

from kvsize.cli import run


def asked(capsys, *args):
    code = run([*args, "--offline", "--json"])
    out = capsys.readouterr()
    return code, json.loads(out.out) if out.out else json.loads(out.err)


def test_the_cache_lags_the_last_token(capsys):
    code, document = asked(capsys, "meta-llama/Llama-3.1-8B", "--prompt", "100", "--new", "28")
    assert code == 0
    assert document["workload"]["ctx"] == 127
    assert document["cache"]["total_bytes"] == 127 * 131_072
    assert document["cache"]["after_prefill_bytes"] == 100 * 131_072


def test_a_quantised_cache_keeps_the_generated_tokens_whole(capsys):
    _, document = asked(capsys, "meta-llama/Llama-3.1-8B", "--prompt", "64", "--new", "101", "--cache", "quantized")
    packed, loose = 64 * 131_072 * 9 // 32, 100 * 131_072
    assert document["cache"]["total_bytes"] == packed + loose
    assert document["cache"]["after_prefill_bytes"] == packed


@pytest.mark.parametrize("args", [("--prompt", "64"), ("--new", "64"), ("--prompt", "1", "--new", "1", "--ctx", "1")])
def test_they_go_together_and_stand_for_ctx(capsys, args):
    code, error = asked(capsys, "meta-llama/Llama-3.1-8B", *args)
    assert (code, error["code"]) == (2, "usage")


def test_an_assistant_keeps_a_cache_of_its_own(capsys):
    _, alone = asked(capsys, "meta-llama/Llama-3.1-70B", "--ctx", "8k")
    _, small = asked(capsys, "meta-llama/Llama-3.2-1B", "--ctx", "8k")
    _, both = asked(capsys, "meta-llama/Llama-3.1-70B", "--ctx", "8k", "--draft", "meta-llama/Llama-3.2-1B")
    for figure in ("total_bytes", "marginal_bytes_per_token"):
        assert both["cache"][figure] == alone["cache"][figure] + small["cache"][figure]
    assert [part["bytes"] for part in both["overheads"]] == [small["cache"]["total_bytes"]]


def test_servers_draft_in_another_way(capsys):
    code, error = asked(capsys, "meta-llama/Llama-3.1-70B", "--draft", "meta-llama/Llama-3.2-1B", "--engine", "vllm")
    assert code == 2
    assert "--num-speculative-tokens" in error["hint"]
