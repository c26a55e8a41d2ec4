"""fit: verdicts, capacities that the next value above breaks, advice that was computed, commands that parse back."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsize.architectures import geometry
from kvsize.cli import run
from kvsize.cli.options import parse_bytes
from kvsize.deployment.advice import advise
from kvsize.deployment.budget import GIB, Launch, Machine, Part, budget, vllm_steps
from kvsize.deployment.case import Asked, layout_of, make_case
from kvsize.deployment.judge import Layout, evaluate, judge, machine_of, on_this_gpu, question, shares_of
from kvsize.deployment.solve import fewest_gpus, widest_format
from kvsize.deployment.support import runs
from kvsize.engines import Workload
from kvsize.errors import UnsupportedError, UsageError
from kvsize.gpus import find, select
from kvsize.ranges import Range, exactly
from kvsize.shape import ModelShape, model_shape
from kvsize.source import load


def case(model, gpu, engine="vllm", tokens=32_768, sequences=1, kv="auto", settings=None, weights=None, launch=None):
    known = Asked(None if weights is None else parse_bytes(weights, "--weights"), offline=True)
    work = Workload(tokens, sequences, kv, kv)
    return make_case(load(model, offline=True), select(gpu), engine, work, settings or {}, launch or {}, weights=known)


@pytest.mark.parametrize(
    ("model", "gpu", "tokens", "verdict"),
    [
        ("meta-llama/Llama-3.1-8B", "h100", 32_768, "fits"),
        ("meta-llama/Llama-3.1-70B", "h100", 8192, "does_not_fit"),
        ("meta-llama/Llama-3.1-70B", "4xh100", 32_768, "fits"),
    ],
)
def test_verdicts(model, gpu, tokens, verdict):
    assert evaluate(case(model, gpu, tokens=tokens)).verdict == verdict


@pytest.mark.parametrize("engine", ["vllm", "sglang", "transformers"])
@given(tokens=st.sampled_from([512, 5000, 8192]), sequences=st.sampled_from([1, 3, 16]))
@settings(max_examples=4, deadline=None)
def test_one_token_or_sequence_more_does_not_fit(engine, tokens, sequences):
    asked = case("google/gemma-2-9b", "l40s", engine, tokens, sequences)
    found = evaluate(asked).capacity
    fits = question(asked, shares_of(asked, asked.weights)).fits
    assert fits(found.max_tokens, sequences)
    assert found.max_tokens == asked.geometry.max_tokens or not fits(found.max_tokens + 1, sequences)
    if found.max_sequences:
        assert fits(tokens, found.max_sequences)
        assert not fits(tokens, found.max_sequences + 1)


def test_tight_is_only_the_kind_end():
    asked = case("meta-llama/Llama-3.1-8B", "h100", sequences=1)
    most = evaluate(asked).capacity.max_sequences
    verdicts = [
        evaluate(replace(asked, workload=replace(asked.workload, sequences=n))).verdict for n in range(most, most + 3)
    ]
    assert verdicts[0] == "fits"
    assert "fits" not in verdicts[1:]


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-8B", "openai/gpt-oss-20b", "nvidia/Nemotron-H-56B-Base-8K"])
@pytest.mark.parametrize(
    ("engine", "gpus", "settings"),
    [
        ("vllm", "h200", {}),
        ("vllm", "4xh200", {"pipeline_parallel_size": 2}),
        ("sglang", "h200", {}),
        ("sglang", "4xh200", {"pipeline_parallel_size": 2}),
        ("llama.cpp", "2xh200", {}),
        ("transformers", "h200", {}),
    ],
)
def test_the_verdict_and_what_is_left_say_the_same(model, engine, gpus, settings):
    """FITS "with -12.5 GiB to spare" was printed for two stages, DOES NOT FIT with 47 GiB left for pools of shares."""
    asked = case(model, gpus, engine, 8000, settings=settings, weights="40GiB")
    most = evaluate(asked).capacity.max_sequences
    counts = {1, most, most + 1, most + most // 3 + 3, 2 * most + 5} if most < 200 else {1, most, most + 1}
    for count in counts - {0}:
        try:
            found = judge(replace(asked, workload=replace(asked.workload, sequences=count)))
        except UnsupportedError:
            continue
        assert (found.verdict == "fits") == (found.headroom.low >= 0)
        assert (found.verdict == "does_not_fit") == (found.headroom.high < 0)
        assert (found.verdict == "fits") == (count <= most)


def test_a_stage_holds_its_own_layers():
    asked = case("meta-llama/Llama-3.1-405B", "16xh100", sequences=16, settings={"pipeline_parallel_size": 2})
    # 63 of 126 layers, one KV head of 8 on each rank
    assert judge(asked).need_bytes == 16 * 32_768 * 63 * 2 * 128 * 2


def test_what_no_memory_serves_is_said_so(capsys):
    assert run(["fit", "state-spaces/mamba-2.8b-hf", "--engine", "sglang", "--gpu", "h200", "--batch", "4"]) == 1
    assert "does not serve that many of these requests" in capsys.readouterr().out


def test_an_encoder_of_fixed_length_is_counted():
    """Without its 1,500 tokens Whisper's cache was planned with 70 MiB of 304."""
    asked = case("openai/whisper-large-v3", "t4", "transformers", tokens=448)
    token = 32 * 2 * 1280 * 2
    assert judge(asked).size.total_bytes == token * (448 + 1500)
    given = replace(asked, workload=replace(asked.workload, encoder_tokens=0))
    assert judge(given).size.total_bytes == token * 448


def test_an_encoder_of_any_length_is_asked_for():
    with pytest.raises(UsageError, match="nothing says how many"):
        case("google-t5/t5-base", "t4", "transformers", tokens=512)
    words = ["--gpu", "t4", "--engine", "transformers", "--ctx", "512", "--weights", "1GiB", "--offline"]
    assert run(["fit", "google-t5/t5-base", *words]) == 2
    assert run(["fit", "google-t5/t5-base", *words, "--encoder-ctx", "512"]) == 0


def test_unknown_weights_are_said_and_never_guessed():
    files = load("Qwen/Qwen3-8B-FP8", offline=True)
    assert files.weight_bytes is None
    outcome = evaluate(case("Qwen/Qwen3-8B-FP8", "h100"))
    assert (outcome.verdict, outcome.budget, outcome.headroom) == ("unknown", None, None)
    assert evaluate(case("Qwen/Qwen3-8B-FP8", "h100", weights="9GiB")).verdict == "fits"


# -- advice ------------------------------------------------------------------------------------------------------------


def test_every_piece_of_advice_fits_when_followed():
    outcome = evaluate(case("meta-llama/Llama-3.1-70B", "h100", tokens=8192))
    found = advise(outcome)
    assert found
    assert all(entry.headroom.low > 0 for entry in found)
    assert any(entry.flags == "--gpu 4xh100" for entry in found)


def test_fewer_sequences_are_named_to_the_last_one():
    asked = case("meta-llama/Llama-3.1-8B", "h100", sequences=500)
    [fewer] = [entry for entry in advise(evaluate(asked)) if entry.flags.startswith("--batch")]
    count = int(fewer.flags.split()[1])
    assert evaluate(replace(asked, workload=replace(asked.workload, sequences=count))).verdict == "fits"
    assert evaluate(replace(asked, workload=replace(asked.workload, sequences=count + 1))).verdict != "fits"


def test_another_split_of_the_pools_is_advised():
    asked = case("openai/gpt-oss-20b", "h200", "sglang", tokens=8192, sequences=400)
    [split] = [entry for entry in advise(evaluate(asked)) if "ratio" in entry.flags]
    assert split.flags == "--swa-full-tokens-ratio 0.4"
    followed = replace(asked, options=replace(asked.options, swa_full_tokens_ratio=0.4))
    assert judge(followed).verdict == "fits"


def test_nothing_is_advised_where_it_fits():
    assert advise(evaluate(case("meta-llama/Llama-3.1-8B", "h100"))) == []


# -- solving -----------------------------------------------------------------------------------------------------------


def test_fewest_gpus_over_the_whole_table():
    found = fewest_gpus(case("meta-llama/Llama-3.1-70B", "h100", tokens=8192))
    assert found["h100"] == 4
    assert found["b200"] == 1
    assert "t4" not in found or found["t4"] == 16


@pytest.mark.parametrize(
    ("engine", "runs_on", "not_on"),
    [
        ("vllm", "v100 t4 h100 b200 mi300x 7900-xtx max-1550 gaudi3", "m40 p100 m4-max-64 w6800 tpu-v5e"),
        ("sglang", "t4 h100 mi300x", "v100 mi250x m4-max-64"),
        ("trtllm", "a100-80 h100", "t4 mi300x"),
        ("mlx", "m4-max-64", "h100"),
        ("llama.cpp", "m40 m4-max-64 7900-xtx h100", ""),
    ],
)
def test_no_gpu_is_advised_that_the_engine_does_not_run_on(engine, runs_on, not_on):
    """Two Tesla M40s were advised for vLLM, which needs compute capability 7.0."""
    assert [name for name in runs_on.split() if not runs(engine, find(name))] == []
    assert [name for name in not_on.split() if find(name) and runs(engine, find(name))] == []


def test_a_gpu_that_is_named_all_the_same_is_planned_with_a_note(capsys):
    assert run(["fit", "meta-llama/Llama-3.1-8B", "--gpu", "m4-max-64", "--ctx", "8k"]) in (0, 1)
    assert "vllm is not said to run on" in capsys.readouterr().out
    assert run(["fit", "meta-llama/Llama-3.1-8B", "--gpu", "t4"]) == 1
    assert "M40" not in capsys.readouterr().out


def test_the_widest_format_that_fits():
    asked = case("meta-llama/Llama-3.1-8B", "h100", sequences=20)
    assert evaluate(asked).verdict != "fits"
    assert widest_format(asked) == "fp8"


# -- layouts -----------------------------------------------------------------------------------------------------------


def test_all_gpus_split_heads_by_default():
    assert layout_of("vllm", 8, {}, 1, 1) == Layout(8)
    assert layout_of("vllm", 8, {"pipeline_parallel_size": 2}, 2, 1) == Layout(2, 2, 2)
    assert layout_of("llama.cpp", 8, {}, 1, 1) == Layout()


@pytest.mark.parametrize(
    ("count", "given", "dp", "message"),
    [(3, {"pipeline_parallel_size": 2}, 1, "no multiple"), (4, {"tensor_parallel_size": 2}, 1, "takes 2 GPUs")],
)
def test_layouts_that_do_not_add_up(count, given, dp, message):
    with pytest.raises(UsageError, match=message):
        layout_of("vllm", count, given, dp, 1)


def test_heads_that_do_not_divide_are_refused_as_the_engine_does():
    with pytest.raises(UnsupportedError):
        evaluate(case("meta-llama/Llama-3.1-8B", "3xh100"))


# -- budgets -----------------------------------------------------------------------------------------------------------

SHAPE = ModelShape(32, 4096, 128_256, 14_336, moe=False, multimodal=False)
WEIGHTS = Part("weights", exactly(15 * GIB), "exact", "")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "llama.cpp", "transformers", "mlx"])
def test_what_is_given_replaces_what_is_estimated(engine):
    machine = Machine(exactly(80 * GIB))
    guessed = budget(engine, SHAPE, machine, WEIGHTS, Launch())
    known = {"activations": GIB, "non_torch": GIB // 4, "cuda_graphs": 0, "reserve": GIB}
    told = budget(engine, SHAPE, machine, WEIGHTS, Launch(overrides=known))
    assert told.room.width <= guessed.room.width
    assert {part.bytes for part in told.parts if part.name == "reserve"} == {exactly(GIB)}
    assert all(part.bytes == exactly(known[part.name]) for part in told.parts if part.name in known)


def test_what_others_hold_is_not_free():
    machine = Machine(exactly(80 * GIB), free=30 * GIB)
    assert budget("llama.cpp", SHAPE, machine, WEIGHTS, Launch()).room.high < 15 * GIB
    with pytest.raises(UnsupportedError, match="vLLM does not start"):
        budget("vllm", SHAPE, machine, WEIGHTS, Launch())


def test_a_share_is_a_share():
    with pytest.raises(UsageError, match="between 0 and 1"):
        budget("vllm", SHAPE, Machine(exactly(GIB)), WEIGHTS, Launch(gpu_memory_utilization=92))


def test_widths_of_a_mixture_count_the_experts_visited():
    raw = load("deepseek-ai/DeepSeek-V3", offline=True).config
    shape = model_shape(raw, len(geometry(raw).layers))
    assert shape.moe
    assert shape.mlp == 2048 * (8 + 1)


@pytest.mark.parametrize(
    ("gpu", "capability", "tokens"),
    [
        ("h100", "9.0", 8192),
        ("a100-80", "8.0", 2048),
        ("rtx-pro-6000", "12.0", 8192),  # 96 GB; its capability alone was once taken for a small card's, with 2048
        ("b200", "10.0", 16_384),
        ("l40s", "8.9", 2048),
        ("mi300x", None, 16_384),
        ("24GiB", None, 2048),
    ],
)
def test_vllm_reads_its_step_off_the_gpu(gpu, capability, tokens):
    options = on_this_gpu(case("meta-llama/Llama-3.1-8B", gpu))
    assert (options.device_capability, options.max_num_batched_tokens) == (capability, tokens)
    asked = case("meta-llama/Llama-3.1-8B", gpu, settings={"max_num_batched_tokens": 512, "device_capability": "8.6"})
    told = on_this_gpu(asked)
    assert (told.device_capability, told.max_num_batched_tokens) == ("8.6", 512)
    old = replace(asked, launch=replace(asked.launch, version=(0, 20), max_num_batched_tokens=None))
    assert vllm_steps(machine_of(old), old.launch)[0] == min(tokens, 8192)


def test_a_window_is_charged_for_the_step_of_its_gpu():
    """A request of 8,192 tokens: 48 layers of Gemma 3 12B, 40 of them with windows of 1,024 and a step in flight."""
    small, large = (judge(case("google/gemma-3-12b-it", gpu, tokens=8192)) for gpu in ("a100-80", "h100"))
    page = 2 * 16 * 8 * 256 * 2  # K and V, 16 tokens, 8 heads of 256
    # a window less one and two steps of 2,048 in flight fill 320 blocks, and one more
    assert small.size.total_bytes == page * (8 * 512 + 40 * 321)
    assert large.size.total_bytes == page * (8 * 512 + 40 * 513)
    assert small.need_bytes == small.size.total_bytes + 8 * page  # a block of 8 layers' pages stays empty


def test_room_is_a_range_that_parts_explain():
    drawn_up = budget("vllm", SHAPE, Machine(Range(79 * GIB, 80 * GIB)), WEIGHTS, Launch())
    assert drawn_up.room.low == drawn_up.usable.low - sum(part.bytes.high for part in drawn_up.parts)
    assert drawn_up.room.high == drawn_up.usable.high - sum(part.bytes.low for part in drawn_up.parts)


def test_a_server_loads_32_bits_as_16_and_builds_rotary_tables():
    gemma = case("google/gemma-2-9b", "h100", tokens=8192)
    assert gemma.weights.total_bytes == 36_966_823_936  # 34.4 GiB in float32, twice what vLLM holds
    [share] = (held.weights.bytes for held in shares_of(gemma, gemma.weights))
    assert (share.low, share.high - share.low) == (18_483_411_968, 2 * 8192 * 256 + 18_483_411_968 // 200)
    alone = case("google/gemma-2-9b", "h100", engine="transformers", tokens=8192)
    assert [held.weights.bytes for held in shares_of(alone, alone.weights)] == [exactly(36_966_823_936)]


@pytest.mark.parametrize(
    ("model", "gpus", "printed"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "h100", 14.99),  # 14.96 is the checkpoint alone
        ("meta-llama/Llama-3.1-8B-Instruct", "4xh100", 3.77),
        ("Qwen/Qwen2.5-7B-Instruct", "2xh100", 7.12),
        ("Qwen/Qwen3-14B", "h100", 27.52),
        ("google/gemma-3-27b-it", "h100", 51.45),
        ("google/gemma-3-12b-it", "h100", 23.31),
    ],
)
def test_weights_that_vllm_printed_are_not_above_the_range(model, gpus, printed):
    asked = case(model, gpus, tokens=1024)
    [share] = (held.weights.bytes for held in shares_of(asked, asked.weights))
    assert share.low - GIB / 200 <= printed * GIB <= share.high + GIB / 200
