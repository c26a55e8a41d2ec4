"""Published formulas give the figures that their publishers printed, and are held against the engine's own answer."""

import re
from dataclasses import replace
from fractions import Fraction

import pytest

from kvsize.architectures import geometry
from kvsize.audit.formulas import Case, InapplicableError
from kvsize.audit.published import PUBLISHED
from kvsize.audit.tally import audit_doc, parameters, says, tally, truth
from kvsize.engines import Workload
from kvsize.geometry import Geometry, Layer
from kvsize.report import AuditedDoc, ModelDoc, SaysDoc
from kvsize.source import catalogue, load

BY_ID = {formula.id: formula for formula in PUBLISHED}
GIB = 2**30


def case(model, tokens, sequences=1):
    files = load(model, offline=True)
    found = geometry(files.config)
    return Case(files.id, found, tokens, sequences, files.config, parameters(files), files.weight_bytes)


def said(formula, model, tokens, sequences=1):
    return BY_ID[formula].compute(case(model, tokens, sequences))


def printed(value, unit, decimals):
    return f"{float(Fraction(value, unit)):.{decimals}f}"


# -- what the publishers printed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("formula", ["nvidia-heads", "nvidia-hidden", "baseten", "kipply"])
def test_llama_2_7b_takes_the_two_gib_that_nvidia_says(formula):
    assert said(formula, "meta-llama/Llama-2-7b-hf", 4096) == 1 * 4096 * 2 * 32 * 4096 * 2 == 2 * GIB


def test_baseten_says_524288_bytes_a_token():
    assert said("baseten", "meta-llama/Llama-2-7b-hf", 1) == 524_288


def test_pagedattention_says_800_kb_a_token_of_opt_13b():
    assert said("pagedattention", "facebook/opt-13b", 1) == 2 * 5120 * 40 * 2 == 800 * 1024


def test_flexgen_says_1_2_tb_of_opt_175b():
    model = Geometry("opt", (Layer(),) * 96, num_attention_heads=96, hidden_size=12288)
    total = BY_ID["flexgen"].compute(Case("facebook/opt-175b", model, 512 + 32, 512))
    assert printed(total, 2**40, 1) == "1.2"


def test_the_example_of_hf_in_production_counts_48_heads_where_one_is_kept():
    """OctoCoder is a StarCoder: 8 billion values are printed for 16,000 tokens; the multi-query cache has a 48th."""
    starcoder = case("bigcode/starcoder", 16_000)
    assert BY_ID["hf-production"].compute(starcoder) == 7_864_320_000 * 2
    true = truth(starcoder.geometry, Workload(16_000, 1, "bfloat16", "bfloat16")).total_bytes
    assert true * 48 == 7_864_320_000 * 2


@pytest.mark.parametrize(
    ("model", "row"),
    [
        ("meta-llama/Llama-3.1-8B", ("0.125", "1.95", "15.62")),
        ("meta-llama/Llama-3.1-70B", ("0.312", "4.88", "39.06")),
        ("meta-llama/Llama-3.1-405B", ("0.984", "15.38", "123.05")),
    ],
)
def test_the_table_of_hf_llama_31(model, row):
    """Printed as GB, and 1,024, 16,000 and 128,000 tokens; its 0.313 of the 70B model is 0.3125."""
    found = [said("hf-llama31", model, tokens) for tokens in (1024, 16_000, 128_000)]
    assert (printed(found[0], GIB, 3), printed(found[1], GIB, 2), printed(found[2], GIB, 2)) == row


def test_the_405b_row_is_doubled_and_the_others_are_not():
    ratios = {}
    for size in ("8B", "70B", "405B"):
        one = case(f"meta-llama/Llama-3.1-{size}", 128_000)
        true = truth(one.geometry, Workload(128_000, 1, "bfloat16", "bfloat16")).total_bytes
        ratios[size] = Fraction(BY_ID["hf-llama31"].compute(one), true)
    assert ratios == {"8B": 1, "70B": 1, "405B": 2}


def test_deepseek_v2_says_that_its_cache_equals_2_25_groups():
    """d_c + d_h^R = 512 + 64 elements a layer, as many as 2.25 groups of heads of 128."""
    latent = said("deepseek-mla", "deepseek-ai/DeepSeek-V2", 1)
    assert Fraction(latent, 60 * 2) == 576 == Fraction(9, 4) * 2 * 128


def test_databricks_halves_nothing_of_llama_2_70b():
    assert said("databricks", "meta-llama/Llama-2-70b-hf", 1024, 4) == 4 * 1024 * (8192 // 64) * 80 * 2 * 2 * 8


def test_gpu_poor_counts_twice_what_xinference_does():
    assert said("gpu-poor", "meta-llama/Llama-2-7b-hf", 32_768) == 32 * GIB
    assert said("xinference", "meta-llama/Llama-2-7b-hf", 32_768) == 16 * GIB


@pytest.mark.parametrize(
    ("model", "gib"),
    [("meta-llama/Llama-3.1-70B", "7.72"), ("mistralai/Mistral-7B-v0.1", "0.792"), ("google/gemma-2-9b", "0.57")],
)
def test_whichllm_as_it_ran_at_32k(model, gib):
    """Gemma 2's windows count, Mistral's do not: its list of four architectures."""
    assert printed(said("whichllm", model, 32_768), GIB, len(gib.partition(".")[2])) == gib


def test_gemma_3_keeps_the_window_of_local_layers():
    expected = (10 * 131_072 + 52 * 1024) * 2 * 16 * 128 * 2
    assert said("gemma3-report", "google/gemma-3-27b-it", 131_072) == expected


def test_vllm_06_charges_whole_pages():
    assert said("vllm-0.6", "meta-llama/Llama-3.1-8B", 17) == 2 * said("vllm-0.6", "meta-llama/Llama-3.1-8B", 16)


def test_lmcache_knows_qwen3_by_name():
    qwen3 = case("Qwen/Qwen3-4B", 32_768)
    assert BY_ID["lmcache"].compute(qwen3) == Fraction(9, 2) * GIB
    renamed = Case("acme/Qwen3-4B-tuned", qwen3.geometry, 32_768, 1, qwen3.config)
    assert BY_ID["lmcache"].compute(renamed) == Fraction(45, 16) * GIB  # hidden / heads is 80, head_dim 128


def test_hf_mem_reads_layer_types_where_the_file_has_them():
    bare = case("google/gemma-2-9b", 32_768)
    assert BY_ID["hf-mem"].compute(bare) == 42 * 32_768 * 8192
    typed = {**bare.config, "layer_types": ["sliding_attention", "full_attention"] * 21}
    with_types = Case(bare.model, bare.geometry, 32_768, 1, typed)
    assert BY_ID["hf-mem"].compute(with_types) == 21 * (32_768 + 4096) * 8192


def test_rules_of_thumb_do_not_know_the_context():
    for formula in ("eleuther", "gpustack"):
        assert said(formula, "meta-llama/Llama-3.1-8B", 1) == said(formula, "meta-llama/Llama-3.1-8B", 131_072)


# -- the rows ----------------------------------------------------------------------------------------------------------


def test_at_least_fifteen_formulas_have_a_figure_of_their_own_source():
    usable = [formula for formula in PUBLISHED if any(_figure(formula, model) for model in SAMPLE)]
    assert len(usable) >= 15
    assert len({(formula.title, formula.arithmetic) for formula in usable}) == len(usable)


SAMPLE = ("meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3", "google/gemma-3-27b-it", "facebook/opt-13b")


def _figure(formula, model):
    try:
        return formula.compute(case(model, 4096))
    except InapplicableError:
        return 0


@pytest.mark.parametrize("formula", PUBLISHED, ids=lambda formula: formula.id)
def test_every_source_is_named(formula):
    assert re.fullmatch(r"https://\S+", formula.url)
    assert re.fullmatch(r"20\d\d(-\d\d){0,2}", formula.published)
    assert formula.title
    assert formula.scope
    assert "," not in formula.name, "names stand in lists"


def test_ids_and_names_are_unique():
    assert len(BY_ID) == len({formula.name for formula in PUBLISHED}) == len(PUBLISHED)


def test_figures_grow_in_proportion_to_sequences():
    for formula in PUBLISHED:
        for model in SAMPLE:
            one, three = case(model, 4096), case(model, 4096, 3)
            if formula.id not in ("eleuther", "gpustack") and _figure(formula, model):
                assert formula.compute(three) == 3 * formula.compute(one), (formula.id, model)


# -- what does not apply -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "model", "reason"),
    [
        ("accelerate", "meta-llama/Llama-3.1-8B", "no term for the cache"),
        ("deepseek-mla", "meta-llama/Llama-3.1-8B", "no MLA latent"),
        ("gemma3-report", "meta-llama/Llama-3.1-8B", "no sliding layers"),
        ("hf-llama31", "meta-llama/Llama-2-7b-hf", "not a Llama 3.1"),
        ("whichllm", "deepseek-ai/DeepSeek-V3", "active parameter count"),
        ("ray-numbers", "meta-llama/Llama-3.1-8B", "13B"),
        ("vllm-0.6", "deepseek-ai/DeepSeek-V3", "MLA"),
        ("kipply", "state-spaces/mamba-2.8b-hf", "no attention heads"),
    ],
)
def test_a_formula_says_why_it_has_no_figure(formula, model, reason):
    with pytest.raises(InapplicableError, match=reason):
        said(formula, model, 4096)


def test_a_parameter_count_that_nobody_knows_is_not_made_up(tmp_path):
    files = load("meta-llama/Llama-3.1-8B", offline=True)
    for formula in ("whichllm", "eleuther", "ray-numbers"):
        with pytest.raises(InapplicableError, match="parameter count"):
            BY_ID[formula].compute(Case("acme/unknown", geometry(files.config), 4096, 1, files.config))


# -- held against the truth --------------------------------------------------------------------------------------------


def test_the_documented_ratios_of_llama_31_70b():
    document = audit_doc([load("meta-llama/Llama-3.1-70B", offline=True)], 4096, 1)
    ratios = {each.formula: each.ratio for each in document.models[0].says}
    assert document.models[0].true_bytes == 4096 * 327_680
    assert ratios["nvidia-heads"] == ratios["nvidia-hidden"] == ratios["pagedattention"] == 8.0
    assert ratios["gpu-poor"] == 16.0
    assert ratios["deepseek-gqa"] == ratios["databricks"] == ratios["hf-llama31"] == 1.0


@pytest.mark.parametrize(
    ("off", "verdict"), [(0, "right"), (19, "right"), (-19, "right"), (20, "high"), (-20, "low"), (500, "high")]
)
def test_right_is_within_two_percent(off, verdict):
    formula = replace(BY_ID["kipply"], compute=lambda _: 1000 + off)
    assert says(formula, case("meta-llama/Llama-2-7b-hf", 1), 1000).verdict == verdict


def test_a_tally_counts_every_model_once():
    def audited(name, ratio, verdict):
        model = ModelDoc(name, "catalogue", None, "llama", None, 1, None, "")
        return AuditedDoc(model, 100, [SaysDoc("kipply", 1, ratio, verdict, None)])

    models = [
        audited("a", 1.0, "right"),
        audited("b", 8.0, "high"),
        audited("c", 0.5, "low"),
        audited("d", None, "none"),
    ]
    found = tally(BY_ID["kipply"], models)
    assert (found.right, found.high, found.low, found.none) == (1, 1, 1, 1)
    assert (found.least, found.median, found.most) == (0.5, 1.0, 8.0)
    assert (found.least_model, found.most_model) == ("c", "b")


def test_the_whole_catalogue_is_audited():
    document = audit_doc([], 4096, 1)
    assert len(document.models) > 0.9 * len(catalogue())
    for each in document.tallies:
        assert each.right + each.high + each.low + each.none == len(document.models)
    by_id = {each.formula: each for each in document.tallies}
    assert by_id["accelerate"].none == len(document.models)
    assert by_id["deepseek-gqa"].right > by_id["nvidia-heads"].right, "grouped heads are more usual than not"
    assert by_id["gpu-poor"].right == 0
