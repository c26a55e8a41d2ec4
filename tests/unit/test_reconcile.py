"""reconcile: whole logs of each engine, noise and ranks, wrong figures, what is refused, and calibrations."""

import gzip
import io
import json
import re
import subprocess
import sys
import tracemalloc
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from pydantic import TypeAdapter

from kvsize.cli import run
from kvsize.errors import SourceError
from kvsize.logs import clean
from kvsize.logs.clean import lines
from kvsize.logs.lines import PATTERNS, QUANTITIES, figure, figures
from kvsize.logs.server import known, servers
from kvsize.report import ReconcileDoc

LOGS = Path(__file__).parents[1] / "data" / "logs"
VLLM, SGLANG, LLAMA = LOGS / "vllm-kubectl-tp2.log", LOGS / "sglang-compose-tp4.log", LOGS / "llamacpp-server.log"
OLLAMA, TRTLLM = LOGS / "ollama-journal.log", LOGS / "trtllm.log"
QWEN = ("--model", "Qwen/Qwen2.5-1.5B-Instruct")


def answer(capsys, path, *options):
    code = run(["reconcile", str(path), *options, "--offline", "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out or captured.err)


def statuses(server):
    return {(figure["quantity"], figure["printed"]): figure["status"] for figure in server["figures"]}


def edited(tmp_path, path, old, new):
    text = path.read_text()
    assert old in text
    target = tmp_path / "edited.log"
    target.write_text(text.replace(old, new))
    return target


# -- whole logs --------------------------------------------------------------------------------------------------------

# what each engine's log must come to: figures that agree, by quantity
WHOLE = [
    (VLLM, (), "vllm", {"tokens": "162,224", "concurrency": "19.77", "padding": "8", "padding_share": "15.38"}),
    (SGLANG, (), "sglang", {"pool_k": "8.23", "pool_v": "8.23", "pool_tokens": "367404"}),
    (LLAMA, (), "llama.cpp", {"cache": "1088.00", "cache_k": "544.00", "cells": "4096", "buffer": "680.00"}),
    (OLLAMA, (), "llama.cpp", {"cache": "624.00", "cache_v": "312.00", "cells": "1536", "buffer": "1280.00"}),
    (TRTLLM, QWEN, "trtllm", {"paged": "7.31", "primary": "4278"}),
]


@pytest.mark.parametrize(("path", "options", "engine", "expected"), WHOLE, ids=[row[2] + row[0].stem for row in WHOLE])
def test_a_whole_log_agrees(capsys, path, options, engine, expected):
    code, document = answer(capsys, path, *options)
    assert (code, document["verdict"]) == (0, "agrees")
    [server] = document["servers"]
    assert server["engine"] == engine
    found = statuses(server)
    assert {key: found[key, text] for key, text in expected.items()} == dict.fromkeys(expected, "agrees")
    assert "contradicts" not in found.values()


@pytest.mark.parametrize(
    ("path", "options", "old", "new"),
    [
        (VLLM, (), "size: 162,224 tokens", "size: 163,224 tokens"),
        (VLLM, (), "request: 19.77x", "request: 19.78x"),
        (VLLM, (), "Add 8 padding", "Add 9 padding"),
        (SGLANG, (), "K size: 8.23 GB", "K size: 8.22 GB"),
        (SGLANG, (), "max_total_num_tokens=367404", "max_total_num_tokens=367405"),
        (LLAMA, (), "K (q8_0):  544.00", "K (q8_0):  544.01"),
        (LLAMA, (), "CUDA0 KV buffer size =   680.00", "CUDA0 KV buffer size =   700.00"),
        (OLLAMA, (), "( 16384 cells,  10 layers", "( 16640 cells,  10 layers"),
        (TRTLLM, QWEN, "Allocated 7.31 GiB", "Allocated 7.32 GiB"),
        (TRTLLM, QWEN, "primary pool: 4278", "primary pool: 4279"),
    ],
)
def test_one_wrong_figure_is_exit_1(capsys, tmp_path, path, options, old, new):
    code, document = answer(capsys, edited(tmp_path, path, old, new), *options)
    assert (code, document["verdict"]) == (1, "contradicts")
    wrong = [one for one in document["servers"][0]["figures"] if one["status"] == "contradicts"]
    assert any(one["printed"] in new for one in wrong)
    assert all(one["difference"] for one in wrong)


def test_the_digits_that_are_printed_decide():
    printed = figure("available", "17.39", "GiB")
    assert printed.least == Fraction("17.385") * 2**30
    assert printed.most == Fraction("17.395") * 2**30
    tokens = figure("tokens", "476,016", "tokens")
    assert (tokens.least, tokens.most) == (476_016, 476_016)
    ratio = figure("concurrency", "1.07", "x")
    assert (ratio.least, ratio.most) == (Fraction("1.065"), Fraction("1.075"))
    assert figure("weights", "30", "GiB").most == Fraction("30.5") * 2**30


# -- noise -------------------------------------------------------------------------------------------------------------


def test_gzip_and_standard_input_read_the_same(capsys, tmp_path, monkeypatch):
    _, plain = answer(capsys, VLLM)
    packed = tmp_path / "vllm.log.gz"
    packed.write_bytes(gzip.compress(VLLM.read_bytes()))
    _, unpacked = answer(capsys, packed)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed.read_bytes())))
    _, piped = answer(capsys, "-")
    assert plain["servers"] == unpacked["servers"] == piped["servers"]


def test_ranks_that_print_the_same_are_one_line(capsys):
    _, document = answer(capsys, SGLANG)
    [buffers] = [one for one in document["servers"][0]["figures"] if one["quantity"] == "pool_k"]
    assert (buffers["count"], sorted(buffers["ranks"])) == (4, ["TP0", "TP1", "TP2", "TP3"])
    run(["reconcile", str(SGLANG), "--offline"])
    assert "x4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("raw", "server", "rank"),
    [
        ("\x1b[1;32m(Worker_TP3 pid=9) INFO hello\x1b[0m", "", "Worker_TP3"),
        (
            "[pod/vllm-0/main] 2026-09-02T10:00:01.123456789Z (EngineCore_DP0 pid=7) hello",
            "vllm-0/main",
            "EngineCore_DP0",
        ),
        ("2026-09-02T10:00:01.1Z stdout F (VllmWorker rank=1 pid=9) hello", "", "VllmWorker rank=1"),
        ("vllm-2  | [2026-09-02 10:00:01 DP1 TP0] hello", "vllm-2", "DP1 TP0"),
        ("Sep 11 00:42:50 box ollama[3110]: hello", "ollama[3110]", ""),
        ('{"log":"(Worker_PP1_TP0 pid=1) hello\\n","stream":"stderr","time":"2026"}', "", "Worker_PP1_TP0"),
        ("[rank5]: hello", "", "rank5"),
        ("hello", "", ""),
    ],
)
def test_prefixes_are_taken_off_and_kept(raw, server, rank):
    line = clean.clean(1, raw)
    assert (line.server, line.rank) == (server, rank)
    assert line.text.endswith("hello")
    assert "\x1b" not in line.text


def test_pods_and_restarts_are_servers_of_their_own(capsys, tmp_path):
    first = VLLM.read_text().splitlines()
    other = [line.replace("gemma-0", "gemma-1") for line in first]
    mixed = tmp_path / "mixed.log"
    mixed.write_text(
        "\n".join(line for pair in zip(first, other, strict=True) for line in pair) + "\n" + VLLM.read_text()
    )
    _, document = answer(capsys, mixed)
    assert [server["name"] for server in document["servers"]] == ["gemma-0/vllm", "gemma-1/vllm", "gemma-0/vllm"]
    assert {server["verdict"] for server in document["servers"]} == {"agrees"}


def test_progress_bars_and_unknown_lines_say_nothing():
    text = b"Loading: 0%\rLoading: 100%\rGPU KV cache size: 1,024 tokens\nGPU KV cache size: many tokens\n\xff\xfe\n"
    found = [printed for line in lines(io.BytesIO(text)) for _, printed in figures(line)]
    assert [(one.quantity, one.text, one.line) for one in found] == [("tokens", "1,024", 1)]


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"all is well\n", 3, "GPU KV cache size"),
        (b"", 3, "GPU KV cache size"),
        (gzip.compress(b"GPU KV cache size: 16 tokens\n" * 50)[:40], 3, "damaged"),
        (b"GPU KV cache size: 1,024 tokens\n", 2, "--model"),
        (b"non-default args: {'model': '/models/mine'}\nGPU KV cache size: 1,024 tokens\n", 3, "/models/mine"),
    ],
)
def test_a_log_that_says_too_little_says_what_is_missing(capsys, tmp_path, content, code, words):
    path = tmp_path / "some.log"
    path.write_bytes(content)
    got, error = answer(capsys, path)
    assert (got, error["exit"]) == (code, code)
    assert words in error["message"] + (error["hint"] or "")


def test_a_log_that_cannot_be_read(capsys, tmp_path):
    assert answer(capsys, tmp_path / "none.log")[1]["exit"] == 3
    assert answer(capsys, tmp_path)[1]["exit"] == 3


def test_another_engine_than_the_log_s_is_refused(capsys):
    code, error = answer(capsys, VLLM, "--engine", "sglang")
    assert (code, error["message"]) == (2, "the log is one of vllm")


def test_a_model_that_the_engine_has_no_rule_for_shows_its_figures(capsys, tmp_path):
    code, document = answer(capsys, VLLM, "--model", "deepseek-ai/DeepSeek-V4-Flash")
    assert (code, document["verdict"]) == (0, "not_predicted")
    assert {one["status"] for one in document["servers"][0]["figures"] if one["quantity"] != "weights"} == {
        "not_predicted"
    }
    assert any("deepseek_v4" in note for note in document["servers"][0]["notes"])


def test_a_log_without_end_is_not_read_to_it(monkeypatch):
    monkeypatch.setattr(clean, "MAX_BYTES", 1000)
    with pytest.raises(SourceError, match="more than 1,000 bytes"):
        list(lines(io.BytesIO(b"x" * 100 + b"\n" * 2000)))


@pytest.mark.parametrize("seed", range(40))
def test_damaged_logs_never_crash(capsys, tmp_path, seed):
    """Numbers made large, small or none, bytes flipped, parts left out or doubled."""
    random = Random(seed)
    text = bytearray(random.choice([path for path, *_ in WHOLE]).read_bytes())
    for _ in range(8):
        at = random.randrange(len(text))
        digit = next(place for place in (*range(at, len(text)), *range(at)) if chr(text[place]).isdigit())
        match random.randrange(4):
            case 0:
                text[digit : digit + 1] = random.choice([b"", b"-", b".", b"0", b"99999999999"])
            case 1:
                text[at] = random.randrange(256)
            case 2:
                del text[at : at + 30]
            case _:
                text[at:at] = text[at : at + 60]
    path = tmp_path / "damaged.log"
    path.write_bytes(text)
    assert answer(capsys, path, *random.choice([(), QWEN]))[0] in (0, 1, 2, 3, 4)


# -- what the log leaves open, and what is wasted ---------------------------------------------------------------------


def log_of(tmp_path, *rows):
    path = tmp_path / "own.log"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_release_that_the_log_does_not_name_is_found_by_its_figures(capsys, tmp_path):
    """gpt-oss-120b: 78,384 tokens of 36 layers as 0.9 to 0.20.0 print them; later ones would print concurrency."""
    path = log_of(
        tmp_path,
        "INFO non-default args: {'model': 'openai/gpt-oss-120b', 'kv_cache_dtype': 'auto'}",
        "INFO Available KV cache memory: 5.38 GiB",
        "INFO GPU KV cache size: 78,384 tokens",
    )
    code, document = answer(capsys, path)
    [server] = document["servers"]
    assert (code, server["sized_as"]) == (0, "0.19.0")
    assert "not in the log, and assumed since its figures then fit: version 0.19.0" in server["notes"]


def test_a_release_that_the_log_names_is_never_changed(capsys, tmp_path):
    path = log_of(
        tmp_path,
        "INFO vLLM API server version 0.33.0",
        "INFO non-default args: {'model': 'openai/gpt-oss-120b'}",
        "INFO Available KV cache memory: 5.38 GiB",
        "INFO GPU KV cache size: 78,384 tokens",
    )
    assert answer(capsys, path)[0] == 1


def test_the_rank_with_the_least_memory_decides(capsys, tmp_path):
    """178,880 tokens of Qwen3-235B on four ranks, where one rank's 8.11 GiB would hold 180,816."""
    rows = [
        "INFO vLLM API server version 0.10.0",
        "INFO non-default args: {'model': 'Qwen/Qwen3-235B-A22B-FP8', 'tensor_parallel_size': 4}",
        *(["INFO Available KV cache memory: 8.11 GiB"] * 1),
        "INFO GPU KV cache size: 178,880 tokens",
    ]
    _, document = answer(capsys, log_of(tmp_path, *rows))
    tokens = document["servers"][0]["figures"][-1]
    assert (tokens["status"], document["verdict"]) == ("inside", "agrees")
    assert "1 of 4 are shown" in tokens["explanation"]
    shown = [row for row in rows for _ in range(4 if "Available" in row else 1)]
    assert answer(capsys, log_of(tmp_path, *shown))[0] == 1


def test_too_long_a_request_and_the_longest_that_would_do(capsys, tmp_path):
    path = log_of(
        tmp_path,
        "non-default args: {'model': 'Qwen/Qwen3-4B'}",
        "ValueError: To serve at least one request with the models's max seq len (40960), (5.62 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (4.89 GiB). Based on the available memory, the "
        "estimated maximum model length is 35600. Try increasing `gpu_memory_utilization`.",
    )
    code, document = answer(capsys, path)
    found = statuses(document["servers"][0])
    assert code == 0
    assert found == {("needed", "5.62"): "agrees", ("available", "4.89"): "taken", ("longest", "35600"): "agrees"}
    assert answer(capsys, edited(tmp_path, path, "length is 35600", "length is 36600"))[0] == 1


@pytest.mark.parametrize(
    ("rows", "what", "flag"),
    [
        (
            (
                "vLLM API server version 0.8.5",
                "non-default args: {'model': 'google/gemma-3-27b-it', 'max_model_len': 32768}",
            ),
            "layers with windows are kept in full",
            "vLLM 0.9.0 or later",
        ),
        (
            (
                "vLLM API server version 0.19.0",
                "non-default args: {'model': 'google/gemma-3-27b-it', 'disable_hybrid_kv_cache_manager': True}",
            ),
            "layers with windows are kept in full",
            "drop --disable-hybrid-kv-cache-manager",
        ),
        (
            (
                "vLLM API server version 0.19.0",
                "non-default args: {'model': 'Qwen/Qwen3-235B-A22B-FP8', 'tensor_parallel_size': 8}",
            ),
            "4 KV heads on 8 ranks: the same heads lie on 2",
            "--decode-context-parallel-size 2",
        ),
        (
            (
                "vLLM API server version 0.33.0",
                "non-default args: {'model': 'deepseek-ai/DeepSeek-V3', 'tensor_parallel_size': 8}",
            ),
            "each of 8 ranks holds the whole latent cache",
            "--decode-context-parallel-size 8",
        ),
    ],
)
def test_waste_is_named_with_the_flag_that_recovers_it(capsys, tmp_path, rows, what, flag):
    _, document = answer(capsys, log_of(tmp_path, *rows, "Available KV cache memory: 60.00 GiB"))
    found = {one["what"]: one["flag"] for one in document["servers"][0]["waste"]}
    assert found[what] == flag


def test_what_the_engine_was_told_to_leave_alone_is_named(capsys, tmp_path):
    path = log_of(
        tmp_path,
        "non-default args: {'model': 'Qwen/Qwen2.5-7B-Instruct', 'max_model_len': 8192}",
        "Free memory on device (78.60/79.19 GiB) on startup. Desired GPU memory utilization is (0.9, 71.27 GiB). "
        "Actual usage is 14.25 GiB for weight, 2.21 GiB for peak activation, 0.25 GiB for non-torch memory, "
        "and 0.50 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=1`.",
        "Available KV cache memory: 54.56 GiB",
    )
    _, document = answer(capsys, path)
    [server] = document["servers"]
    [waste] = server["waste"]
    assert waste["flag"] == "a higher --gpu-memory-utilization"
    assert waste["what"] == "at least 7.40 GiB of the GPU are left unused"  # 79.185 - 71.275 - 0.505
    ranges = {one["quantity"]: one["status"] for one in server["figures"]}
    assert [ranges[name] for name in ("usable", "weights", "non_torch", "graphs")] == ["inside"] * 4


def test_llama_cpp_says_what_full_windows_cost(capsys, tmp_path):
    path = edited(
        tmp_path, OLLAMA, "llama_kv_cache_iswa: creating non", "llama_kv_cache_iswa: using full-size SWA cache\nx"
    )
    text = (
        path.read_text().replace("624.00", "6656.00").replace("312.00", "3328.00").replace(" 1536 cells", "16384 cells")
    )
    path.write_text(text)
    code, document = answer(capsys, path)
    assert code == 0
    [waste] = document["servers"][-1]["waste"]
    assert (waste["flag"], waste["bytes"]) == ("drop --swa-full", (6656 - 624) * 2**20)


def test_ollama_s_own_engine_and_its_load_request(capsys, tmp_path):
    """The key without a value takes none from its neighbour; a cache over two devices is one."""
    path = log_of(
        tmp_path,
        'time=2026-02-21 level=INFO source=runner.go:1284 msg=load request="{Operation:commit LoraPath:[] Parallel:1 '
        'BatchSize:512 FlashAttention:Enabled KvSize:4096 KvCacheType: NumThreads:4 GPULayers:[] UseMmap:false}"',
        'time=2026-02-21 level=INFO source=device.go:251 msg="kv cache" device=CUDA0 size="384.0 MiB"',
        'time=2026-02-21 level=INFO source=device.go:256 msg="kv cache" device=CPU size="128.0 MiB"',
    )
    code, document = answer(capsys, path, "--model", "meta-llama/Llama-3.1-8B-Instruct")
    [server] = document["servers"]
    assert (code, server["engine"], server["settings"]["n_ctx"]) == (0, "ollama", "4096")
    assert "cache_type" not in server["settings"]
    assert {one["status"] for one in server["figures"]} == {"agrees"}
    assert (
        answer(capsys, edited(tmp_path, path, "128.0", "132.0"), "--model", "meta-llama/Llama-3.1-8B-Instruct")[0] == 1
    )


def test_recurrent_states_their_snapshots_and_a_drafting_layer(capsys, tmp_path):
    """Qwen3.5-27B, four sequences with two states kept back each; a draft of one layer has a cache of its own."""
    path = log_of(
        tmp_path,
        "build: 11739 (0123abc) with cc for x86_64-linux-gnu",
        "llama_context: n_seq_max     = 4",
        "llama_context: n_ctx         = 8192",
        "llama_context: kv_unified    = true",
        "llama_kv_cache:    Vulkan0 KV buffer size =   256.00 MiB",
        "llama_kv_cache: RPC[10.0.0.2:50052] KV buffer size =   256.00 MiB",
        "llama_kv_cache: size =  512.00 MiB (  8192 cells,  16 layers,  4/1 seqs), K (f16):  256.00 MiB, "
        "V (f16):  256.00 MiB",
        "llama_memory_recurrent: size = 1795.50 MiB (     4 cells,  64 layers,  4 seqs  2 rs_seq), "
        "R (f32):   67.50 MiB, S (f32): 1728.00 MiB",
        "llama_kv_cache: size =   32.00 MiB (  8192 cells,   1 layers,  4/1 seqs), K (f16):   16.00 MiB, "
        "V (f16):   16.00 MiB",
    )
    code, document = answer(capsys, path, "--model", "Qwen/Qwen3.5-27B")
    assert code == 0
    found = statuses(document["servers"][0])
    assert set(found.values()) == {"agrees"}
    assert {("state_cache", "1795.50"), ("cache", "32.00"), ("buffer", "256.00")} <= found.keys()


# -- documents and calibrations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "options"), [(row[0], row[1]) for row in WHOLE])
def test_documents_are_valid_and_complete(capsys, path, options):
    _, document = answer(capsys, path, *options)
    adapter = TypeAdapter(ReconcileDoc)
    parsed = adapter.validate_json(json.dumps(document), strict=True)
    assert adapter.dump_python(parsed, mode="json") == document
    assert next(iter(document.items())) == ("schema", "kvsize.reconcile/1")


def test_a_page_has_a_line_a_figure(capsys):
    assert run(["reconcile", str(VLLM), "--offline"]) == 0
    page = capsys.readouterr().out
    assert "google/gemma-3-27b-it" in page
    assert re.search(r"GPU KV cache size +162,224 tokens +162,224 tokens +ok", page)
    assert "waste      layer slots without a layer" in page
    assert max(len(line) for line in page.splitlines()) <= 80
    assert run(["reconcile", str(VLLM), "--offline", "--format", "csv"]) == 0
    assert 'vllm,google/gemma-3-27b-it,15,tokens,"162,224"' in capsys.readouterr().out


def calibration(capsys, tmp_path, path=VLLM, *options):
    target = tmp_path / "measured.json"
    run(["reconcile", str(path), "--offline", "--calibrate", str(target), *options])
    capsys.readouterr()
    return target


def test_a_calibration_replaces_estimates_of_fit(capsys, tmp_path):
    target = calibration(capsys, tmp_path)
    stored = json.loads(target.read_text())
    assert (stored["schema"], stored["engine"], stored["version"]) == ("kvsize.calibration/1", "vllm", "0.19.0")
    activations = int(Fraction("3.995") * 2**30) + 1
    assert stored["figures"] == {
        "activations_bytes": activations,
        "cuda_graphs_bytes": int(Fraction("0.835") * 2**30) + 1,
        "non_torch_bytes": int(Fraction("1.945") * 2**30) + 1,
    }
    command = ["fit", "google/gemma-3-27b-it", "--gpu", "2xh100", "--offline", "--json", "--calibration", str(target)]
    run(command)
    said = capsys.readouterr()
    assert "was measured on vllm 0.19.0; this is vllm 0.33.0" in said.err
    parts = {part["name"]: part for part in json.loads(said.out)["budget"]["parts"]}
    assert parts["activations"] == {**parts["activations"], "low": activations, "high": activations}
    run([*command, "--activations", "5GiB", "--engine", "vllm@0.19"])
    said = capsys.readouterr()
    assert said.err == ""
    assert json.loads(said.out)["budget"]["activations"] == {"low": 5 * 2**30, "high": 5 * 2**30}


@pytest.mark.parametrize(
    ("model", "engine", "words"),
    [
        ("google/gemma-3-12b-it", "vllm", "was measured with google/gemma-3-27b-it"),
        ("google/gemma-3-27b-it", "sglang", "was measured on vllm"),
    ],
)
def test_a_calibration_of_another_stack_is_refused(capsys, tmp_path, model, engine, words):
    target = calibration(capsys, tmp_path)
    command = ["fit", model, "--gpu", "2xh100", "--engine", engine, "--offline", "--json", "--calibration", str(target)]
    assert run(command) == 2
    assert words in json.loads(capsys.readouterr().err)["message"]


@pytest.mark.parametrize(
    "content", ["{}", "[]", '{"schema": "kvsize.calibration/1", "engine": "vllm", "model": "m"}', "x"]
)
def test_a_file_that_is_no_calibration_is_refused(capsys, tmp_path, content):
    target = tmp_path / "other.json"
    target.write_text(content)
    assert run(["fit", "google/gemma-3-27b-it", "--gpu", "h100", "--offline", "--calibration", str(target)]) in (3, 4)
    assert run(["fit", "google/gemma-3-27b-it", "--gpu", "h100", "--offline", "--calibration", "/nowhere"]) == 3


def test_a_log_without_measurements_gives_no_calibration(capsys):
    code, error = answer(capsys, TRTLLM, *QWEN, "--calibrate", "/nowhere/measured.json")
    assert (code, error["exit"]) == (2, 2)
    assert "prints no activations" in error["message"]


# -- size --------------------------------------------------------------------------------------------------------------


def test_memory_stays_bounded_on_a_large_log(tmp_path):
    big = tmp_path / "big.log"
    noise = b"(APIServer pid=1) INFO 11-20 09:20:00 [loggers.py:257] Engine 000: Avg prompt throughput: 10.0 tokens/s\n"
    big.write_bytes(VLLM.read_bytes() + noise * 50_000 + b"y" * 5_000_000)
    tracemalloc.start()
    [server] = servers(clean.read(str(big), known), str(big))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(server.figures) == 9
    assert peak < 2_000_000


EXPRESSIONS = """
from kvsize.logs.clean import Line
from kvsize.logs.lines import PATTERNS, figures
for filler in ("1", "1,", " ", "(", "1.1", "\\t= ", "K ("):
    for pattern in PATTERNS:
        list(figures(Line(1, "", "", f"{pattern.needle}: {filler * 20_000}")))
        list(figures(Line(1, "", "", f"{filler * 20_000} {pattern.needle}")))
print("done")
"""


def test_no_line_makes_an_expression_slow():
    """Each wording's own beginning, then 60 kB of what its repetitions accept: with an exponent it would not end."""
    done = subprocess.run([sys.executable, "-c", EXPRESSIONS], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "done\n"


def test_every_group_is_a_quantity_or_a_side_fact():
    facts = {"unit", "length", "share", "slots", "window_slots", "kv_dtype", "layers", "seqs", "streams", "k", "v"}
    names = {name for pattern in PATTERNS for name in pattern.regex.groupindex}
    assert names - set(QUANTITIES) == facts | {"device", "state_cells", "snapshots"}
    assert set(QUANTITIES) <= names
    assert all(re.compile(pattern.regex.pattern) for pattern in PATTERNS)


# -- the page about it ------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "reconcile.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("screen", re.findall(r"^```console\n\$ kvsize (.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
def test_screens_of_the_page_are_what_is_printed_now(capsys, monkeypatch, screen):
    monkeypatch.chdir(LOGS.parents[2])
    monkeypatch.setenv("COLUMNS", "80")
    command, _, shown = screen.partition("\n")
    assert run(command.split()) == 0
    assert capsys.readouterr().out == shown
