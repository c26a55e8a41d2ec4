"""Claimed figures: how they are read, what explains them, and when nothing does."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsize.architectures import geometry
from kvsize.audit.claims import Question, believable, candidates, claim_doc, fits, parse_figure
from kvsize.audit.folded import facts_of, fold
from kvsize.audit.formulas import Case
from kvsize.audit.mistakes import AXES, MOST, combined, mistakes
from kvsize.audit.readings import readings, weigher, widths
from kvsize.cli import run
from kvsize.engines import Workload, load_engine
from kvsize.errors import UsageError
from kvsize.source import catalogue, load

ROOT = Path(__file__).resolve().parents[2]
HEAD, *ROWS = (json.loads(line) for line in (ROOT / "validate/truth/claims.jsonl").read_text("utf-8").splitlines())
GIB = 2**30


def claim(model, text, ctx, batch=1, **stated):
    return claim_doc(load(model, offline=True), parse_figure(text), ctx, batch, **stated)


def keys(explanation):
    return [step.key for step in explanation.deviations]


# -- published figures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} {row['claim']}")
def test_the_mistake_behind_a_published_figure_is_named_first(row):
    document = claim(row["model"], row["claim"], row["ctx"], row["batch"])
    assert keys(document.explanations[0]) == row["steps"]
    assert document.explanations[0].bytes == row["bytes"]
    assert document.verdict == ("right" if row["mistake"].startswith("right") else "explained")
    if row["true_bytes"] is not None:
        assert document.true_bytes == row["true_bytes"]


def test_128k_may_be_read_as_128000():
    """The same figure of Llama 3.1 405B, asked for with 128k as 131,072."""
    document = claim("meta-llama/Llama-3.1-405B", "123.05 GB", 131_072)
    assert sorted(keys(document.explanations[0])) == ["thousands", "twice", "unit"]
    words = [step.words for step in document.explanations[0].deviations]
    assert "128k read as 128,000 tokens" in words
    assert "GiB written as GB" in words


@pytest.mark.parametrize(
    ("model", "text", "ctx", "batch", "expected"),
    [
        ("google/gemma-2-9b", "1.3125 GiB", 32_768, 1, ["window-everywhere"]),
        ("google/gemma-3-27b-it", "15.5 GiB", 32_768, 1, ["in-full"]),
        ("google/gemma-2-9b", "9.19 GiB", 32_768, 1, ["hidden-per-head", "in-full"]),
        ("google/gemma-3n-E4B-it", "0.4375 GiB", 32_768, 1, ["sharing", "windows-out"]),
        ("deepseek-ai/DeepSeek-V3", "152.5 GiB", 32_768, 1, ["expanded"]),
        ("deepseek-ai/DeepSeek-V3", "53.375 GiB", 32_768, 1, ["latent-hidden"]),
        ("deepseek-ai/DeepSeek-V3", "1.0723 GiB", 32_768, 1, ["weight-format"]),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "0.75 GiB", 32_768, 1, ["states"]),
        ("meta-llama/Llama-3.1-8B", "2.000 GiB", 16_384, 16, ["batch"]),
        ("meta-llama/Llama-3.1-8B", "4.194 GB", 32_768, 1, ["thousands"]),
        ("meta-llama/Llama-3.1-8B", "8.000 GiB", 32_768, 1, ["twice"]),
        ("meta-llama/Llama-3.1-8B", "131,072 B", 32_768, 1, ["one-token"]),
        ("meta-llama/Llama-3.1-8B", "134217728 bytes", 32_768, 1, ["one-layer"]),
        ("meta-llama/Llama-3.1-8B", "2.0000 GiB", 32_768, 1, ["8-bit"]),
        ("google/gemma-3-27b-it", "16.000 GiB", 32_768, 1, ["missed-keys"]),
        ("meta-llama/Llama-3.1-8B", "32.0 GiB", 32_768, 1, ["formula"]),
        ("deepseek-ai/DeepSeek-V3.2", "2.145 GiB", 32_768, 1, ["index"]),
        ("google/gemma-4-31B-it", "163,840 B/token", 1, 1, ["one-kind", "windows-out"]),
        ("Qwen/Qwen2.5-7B-Instruct", "1.53 MB/token", 1, 1, ["query-heads", "bits", "unit"]),
        ("meta-llama/Llama-3.1-8B", "0.878 GiB", 32_768, 1, ["formula"]),
        ("meta-llama/Llama-3.1-8B", "16.06 GB", 32_768, 1, ["weights-alone"]),
    ],
)
def test_other_figures_that_tools_print(model, text, ctx, batch, expected):
    document = claim(model, text, ctx, batch)
    assert document.verdict == "explained"
    assert keys(document.explanations[0]) == expected


def test_a_meaning_may_explain_as_well_as_a_mistake():
    """Llama 4's chunks in full: a mistake, and the plain truth right after a prefill or without a hybrid manager."""
    document = claim("meta-llama/Llama-4-Scout-17B-16E-Instruct", "6.00 GiB", 32_768)
    kinds = {
        key: step.kind for each in document.explanations for key, step in zip(keys(each), each.deviations, strict=True)
    }
    assert kinds["in-full"] == "mistake"
    assert kinds["after-prefill"] == kinds["engine"] == "semantics"
    words = " ".join(step.words for each in document.explanations for step in each.deviations)
    assert "vLLM" in words
    assert "hybrid manager" in words


def test_published_formulas_that_say_the_same_are_named():
    document = claim("meta-llama/Llama-3.1-70B", "343.6 GB", 131_072)
    assert {"NVIDIA (num_heads)", "NVIDIA (hidden_size)", "PagedAttention"} <= set(document.formulas)
    assert "Databricks" not in document.formulas


def test_a_claim_may_be_about_another_engine_or_format():
    scout = "meta-llama/Llama-4-Scout-17B-16E-Instruct"
    vllm = load_engine("vllm").size(
        geometry(load(scout, offline=True).config), Workload(32_768), load_engine("vllm").Options()
    )
    assert claim(scout, f"{vllm.total_bytes} B", 32_768, engine="vllm").verdict == "right"
    assert claim(scout, f"{vllm.total_bytes} B", 32_768).explanations[0].deviations[0].words.startswith("what vLLM")
    assert claim("meta-llama/Llama-3.1-8B", "2 GiB", 32_768, kv_dtype="fp8").verdict == "right"
    assert claim("meta-llama/Llama-3.1-8B", "4.0 GiB", 32_768, kv_dtype="fp8").verdict == "explained"


def test_what_the_checkpoint_is_kept_in_is_said():
    notes = " ".join(claim("google/gemma-2-9b", "21 GiB", 32_768).notes)
    assert "float32" in notes
    assert "--kv-dtype auto" in notes
    assert claim("google/gemma-2-9b", "11.8125 GiB", 32_768, kv_dtype="auto").verdict == "right"


# -- nothing fits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-8B", "google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V3"])
def test_a_figure_out_of_nowhere_is_not_explained(model):
    document = claim(model, "7.7713 GB", 32_768)
    assert document.verdict == "unexplained"
    assert document.explanations == []
    assert document.tried > 100


@pytest.mark.parametrize("model", ["google/gemma-2-9b", "deepseek-ai/DeepSeek-V3"])
def test_chance_explains_few_precise_figures(model):
    """Figures of four digits that no mistake was made for: not one in twenty has an explanation."""
    files = load(model, offline=True)
    workload = Workload(32_768, 1, "bfloat16", "bfloat16")
    engine = load_engine("transformers")
    found = geometry(files.config)
    question = Question(
        Case(model, found, 32_768, 1, files.config), workload, engine.size(found, workload, engine.Options())
    )
    tried = tuple(candidates(question))
    figures = [parse_figure(f"{1 + n / 11:.3f} GiB") for n in range(60)]
    explained = sum(any(believable(f, each) for one in tried for each in fits(f, one)) for f in figures)
    assert len(tried) > 500
    assert explained <= 3


@pytest.mark.parametrize(("text", "deepest"), [("3 GiB", 2), ("3.1 GiB", 2), ("3.07 GiB", MOST)])
def test_vague_figures_are_not_explained_by_many_steps(text, deepest):
    for model in ("Qwen/Qwen3-Next-80B-A3B-Instruct", "google/gemma-3-27b-it", "meta-llama/Llama-3.1-8B"):
        for each in claim(model, text, 32_768).explanations:
            assert sum(step.kind != "unit" for step in each.deviations) <= deepest


def test_no_explanation_only_adds_to_another():
    for row in ROWS:
        found = [set(keys(each)) for each in claim(row["model"], row["claim"], row["ctx"]).explanations]
        assert not any(one < other for one in found for other in found)


# -- every mistake is found again --------------------------------------------------------------------------------------

MODELS = (
    "meta-llama/Llama-3.1-70B",
    "google/gemma-3-27b-it",
    "google/gemma-3n-E4B-it",
    "google/gemma-4-31B-it",
    "openai/gpt-oss-120b",
    "deepseek-ai/DeepSeek-V3.2",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "ai21labs/AI21-Jamba-1.5-Mini",
    "tiiuae/falcon-7b",
    "XiaomiMiMo/MiMo-V2-Flash",
    "moonshotai/Kimi-Linear-48B-A3B-Instruct",
)


@pytest.mark.parametrize("model", MODELS)
def test_every_single_mistake_is_found_again(model):
    """A figure made by one mistake, to the byte: that mistake, or another that gives the very same bytes, is told."""
    files = load(model, offline=True)
    found = geometry(files.config)
    facts, workload = facts_of(found, files.config), Workload(32_768, 1, "bfloat16", "bfloat16")
    weigh, true = weigher(found, workload), claim(model, "1 B", 32_768).true_bytes
    seen = 0
    for mistake in mistakes(facts):
        changed = mistake.change(facts.folded)
        total = int(weigh(changed, 32_768).bytes(Fraction(2)))
        if changed == facts.folded or total == true or not total:
            continue
        seen += 1
        document = claim(model, f"{total} B", 32_768)
        assert document.verdict == "explained", mistake.deviation.words
        assert {each.bytes for each in document.explanations} == {total}
        told = [key for each in document.explanations for key in keys(each)]
        assert mistake.deviation.key in told or len(keys(document.explanations[0])) == 1
    assert seen >= 2


def test_folding_weighs_what_the_engine_weighs():
    """The search's own way of sizing is the engine's, for every model of the catalogue."""
    workload = Workload(5000, 2, "bfloat16", "bfloat16")
    engine = load_engine("transformers")
    for name in catalogue():
        found = geometry(load(name, offline=True).config)
        for width, kind in ((2, "bfloat16"), (4, "float32")):
            size = engine.size(found, Workload(5000, 2, kind, kind), engine.Options())
            assert weigher(found, workload)(fold(found), 5000).bytes(Fraction(width)) == size.total_bytes, name


def test_combinations_are_of_different_axes_and_all_matter():
    found = geometry(load("google/gemma-3-27b-it", offline=True).config)
    facts = facts_of(found, {})
    axis = {mistake.deviation: mistake.axis for mistake in mistakes(facts)}
    assert set(axis.values()) <= set(AXES)
    results = []
    for steps, folded in combined(mistakes(facts), facts.folded):
        assert len({axis[step] for step in steps}) == len(steps) <= MOST
        results.append(folded)
    assert results[0] == facts.folded
    assert len(set(results)) == len(results)


# -- reading figures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("340 GB", (340 * 10**9, 339_500_000_000, 340_500_000_000)),
        ("2.1 GiB", (round(2.1 * GIB), 2_201_170_740, 2_308_544_921)),
        ("36864 B", (36_864, 36_864, 36_864)),
        ("343,597,383,680 bytes", (343_597_383_680,) * 3),
        ("1.5kb", (1500, 1450, 1550)),
        ("2 TiB", (2 * 2**40, 3 * 2**39, 5 * 2**39)),
        ("0.5977GiB", (641_775_488, 641_721_802, 641_829_175)),
    ],
)
def test_a_figure_is_as_precise_as_it_is_written(text, bounds):
    assert parse_figure(text).bounds == bounds


@pytest.mark.parametrize(
    ("text", "rounded"),
    [("340 GB", 5), ("300 GB", 5), ("341 GB", Fraction(1, 2)), ("10 GB", Fraction(1, 2)), ("1200 MB", 50)],
)
def test_zeros_at_the_end_may_be_rounding(text, rounded):
    assert parse_figure(text).rounded == rounded


def test_about_is_a_fortieth():
    assert parse_figure("~4.0 GiB").rounded == Fraction(1, 10)
    assert parse_figure("about 4.0 GiB").rounded == Fraction(1, 10)
    assert claim("meta-llama/Llama-3.1-8B", "~4.05 GiB", 32_768).verdict == "right"
    assert claim("meta-llama/Llama-3.1-8B", "4.05 GiB", 32_768).verdict == "unexplained"


@pytest.mark.parametrize("text", ["36,864 B/token", "36,864 B per token", "36864 bytes a token"])
def test_a_figure_per_token_is_held_against_one_token(text):
    assert parse_figure(text).per_token
    assert run(["audit", "--claim", text, "openai/gpt-oss-120b", "--offline"]) == 1


@pytest.mark.parametrize(
    "text", ["", "340", "GB", "-3 GB", "0 GB", "0.00 GiB", "3.4.5 GB", "1,23 GB", "3 parsecs", "३ GB"]
)
def test_what_is_no_figure_is_refused(text):
    with pytest.raises(UsageError, match="figure with a unit"):
        parse_figure(text)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_a_figure_or_a_usage_error(text):
    try:
        figure = parse_figure(text)
    except UsageError:
        return
    least, most = figure.bounds[1:]
    assert 0 <= least <= figure.bounds[0] <= most
    assert figure.number > 0


@given(st.integers(1, 10**6), st.integers(0, 3), st.sampled_from(["B", "KB", "KiB", "GB", "GiB", "TB"]))
def test_the_true_figure_is_right_however_it_is_rounded(number, decimals, unit):
    """A figure within its own precision of the written bytes has no deviation but perhaps its unit."""
    text = f"{number / 10**decimals:.{decimals}f} {unit}"
    figure = parse_figure(text)
    assert figure.number == Fraction(number, 10**decimals)
    assert figure.half == Fraction(1, 2 * 10**decimals)
    assert figure.units[0].name.lower() == unit.lower()


# -- readings ----------------------------------------------------------------------------------------------------------


def test_lengths_that_may_have_been_meant():
    words = {reading.deviation.key: reading.terms for reading in readings(131_072, 131_072)[1:]}
    assert words == {
        "thousands": ((1, 128_000),),
        "one-token": ((1, 1),),
        "further-token": ((1, 131_073), (-1, 131_072)),
    }
    assert {r.deviation.key: r.tokens for r in readings(128_000, 8192)[1:]}["thousands"] == 131_072
    assert readings(1, 1)[0].deviation is None


def test_the_format_of_the_weights_is_tried():
    from kvsize.formats import FORMATS

    found = {
        w.deviation.key: w.bytes
        for w in widths(FORMATS["bfloat16"], None, {"quantization_config": {"quant_method": "mxfp4"}})
        if w.deviation
    }
    assert found["weight-format"] == Fraction(17, 32)
    gptq = widths(FORMATS["bfloat16"], None, {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    assert gptq[1].bytes == Fraction(1, 2)
    assert gptq[1].deviation.key == "weight-format"
    plain = [w.deviation.key for w in widths(FORMATS["bfloat16"], None, {}) if w.deviation]
    assert "weight-format" not in plain
    assert "16-bit" not in plain, "that is what was asked for"


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("--claim 2GB meta-llama/Llama-2-7b-hf --ctx 4k", 0),
        ("--claim 2.0GiB meta-llama/Llama-2-7b-hf --ctx 4k", 0),
        ("--claim 340GB meta-llama/Llama-3.1-70B --ctx 128k", 1),
        ("--claim 7.7713GB meta-llama/Llama-3.1-70B --ctx 128k", 1),
        ("--claim 340 meta-llama/Llama-3.1-70B --ctx 128k", 2),
        ("--claim 340GB --ctx 128k", 2),
        ("--claim 340GB meta-llama/Llama-3.1-70B", 2),
        ("--claim 340GB meta-llama/Llama-3.1-70B google/gemma-2-9b --ctx 4k", 2),
        ("--claim 340GB meta-llama/Llama-3.1-70B --ctx 4k --batch 0", 2),
        ("--claim 340GB meta-llama/Llama-3.1-70B --ctx 4k --engine abacus", 2),
        ("--engine vllm meta-llama/Llama-3.1-70B", 2),
        ("--claim 340GB acme/nothing-of-this-name --ctx 4k --offline", 3),
        ("meta-llama/Llama-3.1-70B google/gemma-2-9b", 0),
    ],
)
def test_exit_codes(command, code, capsys):
    assert run(["audit", *command.split()]) == code
    captured = capsys.readouterr()
    assert bool(captured.out) == (code in (0, 1)), "the answer goes to standard output, refusals to standard error"
