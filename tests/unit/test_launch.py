"""--emit: what is printed starts the server that was planned, and asks the question that was asked."""

import json
import shlex

import pytest

from kvsize.cli import run
from kvsize.gpus import live
from kvsize.gpus.live import Device
from kvsize.ranges import exactly

MODEL = "meta-llama/Llama-3.1-8B"
# What a server calls a thing that kvsize asks for under another name.
SAID = {
    "--max-model-len": "--ctx",
    "--context-length": "--ctx",
    "--max_seq_len": "--ctx",
    "--max-num-seqs": "--batch",
    "--max_batch_size": "--batch",
    "--max-running-requests": "--batch",
    "--tp_size": "--tp",
    "--tp-size": "--tp",
    "--data-parallel-size": "--dp",
    "--kv_cache_free_gpu_memory_fraction": "--gpu-memory-utilization",
}


def told(capsys, *words):
    """Exit code and output of `kvsize fit`."""
    code = run(["fit", *words, "--offline"])
    captured = capsys.readouterr()
    assert not captured.err, captured.err
    return code, captured.out


def emitted(capsys, target, *words):
    return shlex.split(told(capsys, *words, "--emit", target)[1].replace("\\\n", " "))


def meant(capsys, *words):
    """What a question comes to, whatever words asked it."""
    code, text = told(capsys, *words, "--json")
    found = json.loads(text)
    formats = found["kv_dtype"]["k"], found["kv_dtype"]["v"]
    return code, formats, {key: found[key] for key in ("verdict", "workload", "parallel", "gpu", "budget")}


@pytest.mark.parametrize(
    ("engine", "start", "words"),
    [
        ("vllm", ["vllm", "serve", MODEL], "--gpu 4xh100 --batch 12 --kv-dtype fp8"),
        ("vllm", ["vllm", "serve", MODEL], "--gpu 4xl40s --tp 2 --dp 2 --gpu-memory-utilization 0.8 --enforce-eager"),
        ("vllm", ["vllm", "serve", MODEL], "--gpu h100 --block-size 32 --no-enable-prefix-caching --batch 3"),
        ("vllm", ["vllm", "serve", MODEL], "--gpu h100 --max-num-batched-tokens 4096 --no-async-scheduling"),
        (
            "sglang",
            ["python", "-m", "sglang.launch_server", "--model-path", MODEL],
            "--gpu 2xh100 --page-size 64 --mem-fraction-static 0.8 --disable-radix-cache --ctx 8192",
        ),
        (
            "llama.cpp",
            ["llama-server", "--hf-repo", MODEL],
            "--gpu 4090 --flash-attn off --no-kv-offload --ubatch-size 256 --n-gpu-layers 10",
        ),
        ("llama.cpp", ["llama-server", "--hf-repo", MODEL], "--gpu 2x4090 --kv-dtype q8_0 --batch 2 --kv-unified"),
        ("llama.cpp", ["llama-server", "--hf-repo", MODEL], "--gpu 4090 --n-gpu-layers 0 --cache-type-v q8_0"),
        ("trtllm", ["trtllm-serve", MODEL], "--gpu 2xh100 --batch 4 --gpu-memory-utilization 0.7"),
    ],
)
def test_a_launch_command_says_every_setting(engine, start, words, capsys):
    question = [MODEL, "--engine", engine, *words.split()]
    command = emitted(capsys, engine, *question)
    assert command[: len(start)] == start
    flags = [SAID.get(word, word) for word in command[len(start) :]]
    gpu = question[question.index("--gpu") + 1]
    if engine == "llama.cpp":  # one pool for all: asked for by its cells
        flags += ["--ctx", "32768", "--batch", flags[flags.index("--parallel") + 1]]
    assert meant(capsys, MODEL, "--engine", engine, "--gpu", gpu, *flags) == meant(capsys, *question)


def test_a_cache_for_all_sequences_is_asked_for(capsys):
    command = emitted(
        capsys, "llama.cpp", MODEL, "--engine", "llama.cpp", "--gpu", "h100", "--ctx", "8k", "--batch", "3"
    )
    assert command[3:7] == ["--ctx-size", "24576", "--parallel", "3"]
    assert command[7:] == ["--n-gpu-layers", "999"]


def test_who_drafts_is_said_in_vllms_own_words(capsys):
    drafts = ("--speculative-method", "ngram", "--num-speculative-tokens", "3")
    command = emitted(capsys, "vllm", MODEL, "--gpu", "h100", *drafts)
    config = command[command.index("--speculative-config") + 1]
    assert json.loads(config) == {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--emit", "sglang"), "this plan is for vllm"),
        (("--engine", "sglang", "--num-speculative-tokens", "2", "--emit", "sglang"), "--num-speculative-tokens"),
        (("--engine", "trtllm", "--kv-dtype", "fp8", "--emit", "trtllm"), "no flag for the cache's format"),
    ],
)
def test_a_command_that_would_start_something_else_is_refused(words, message, capsys):
    assert run(["fit", MODEL, "--gpu", "h100", "--offline", *words]) == 5
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("target", ["k8s", "github-action"])
@pytest.mark.parametrize(
    "words",
    [
        "--gpu 4xh100 --batch 12 --kv-dtype fp8 --gpu-memory-utilization 0.95 --enforce-eager",
        "--gpu l40s --weights 20GiB --activations 2GiB --no-enable-prefix-caching --ctx 16k",
        "--gpu 2x24GiB --engine llama.cpp --flash-attn off --n-gpu-layers 20 --accept-tight",
    ],
)
def test_the_check_before_a_rollout_asks_the_same_question(target, words, capsys):
    """Once it left out everything but model, GPU, context and format: 0.95 of the memory was checked as 0.92."""
    _, text = told(capsys, MODEL, *words.split(), "--emit", target)
    [line] = [line for line in text.splitlines() if "kvsize fit" in line]
    asked = shlex.split(line[line.index("kvsize fit") :].rstrip("'"))
    assert asked[:3] == ["kvsize", "fit", MODEL]
    assert meant(capsys, *asked[2:]) == meant(capsys, MODEL, *words.split())


def test_this_machines_gpus_are_named_for_the_next(monkeypatch, capsys):
    a100 = Device("0", "NVIDIA A100-SXM4-80GB", "nvidia", exactly(79 * 2**30), 80 * 2**30, 79 * 2**30)
    other = Device("0", "Tomorrow's GPU", "nvidia", exactly(79 * 2**30), 80 * 2**30, 79 * 2**30)
    for device, named, kind in ((a100, "a100-80", "datacenter"), (other, "80896MiB", "live")):
        monkeypatch.setattr(live, "devices", lambda device=device: (device, device))
        _, text = told(capsys, MODEL, "--gpu", "auto", "--emit", "github-action")
        assert f"--gpu 2x{named} " in text
        assert live.automatic().gpu.kind == kind
