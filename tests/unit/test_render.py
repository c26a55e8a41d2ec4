"""Units, columns, products and reasons: what pages, csv and markdown are made of."""

import csv
import io
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsize.audit.formulas import blind_spots, misleading, typical_heads
from kvsize.build import copies, is_split, layers_doc, size_doc
from kvsize.documents import CacheDoc, RowDoc
from kvsize.elsewhere import elsewhere
from kvsize.engines import CacheSize, LayerBytes, Overhead, Pool, Workload
from kvsize.errors import UnsupportedError
from kvsize.geometry import (
    Attention,
    Chunked,
    Compressed,
    Encoder,
    Geometry,
    Heads,
    IndexKey,
    Latent,
    Layer,
    Recurrent,
    Reference,
    Sliding,
    State,
)
from kvsize.render import csv as to_csv
from kvsize.render import markdown, render
from kvsize.source import ModelFiles
from kvsize.tables import MODULES
from kvsize.tables.layers import index_words
from kvsize.tables.page import Grid, View, beside, columns, flow, headline, labelled, plain, width_of, wrap
from kvsize.tables.size import Beside, part_rows
from kvsize.tables.terms import terms
from kvsize.tables.units import BYTE, UNITS, amount, times, unit_for
from kvsize.words import describe, label

HEADS = Heads(8, 128, 128)
FULL = Layer((Attention(HEADS),))
WINDOW = Layer((Attention(HEADS, Sliding(1024)),), kind="sliding_attention")
STATES = Layer((Recurrent("mamba", (State("conv", (64, 4)), State("recurrent", (64, 16), "float32"))),), kind="mamba")
FILES = ModelFiles("acme/model", {}, "file")


def sized(layers, held, *, overheads=(), kv="bfloat16", name="transformers", pool=None, evidence="exact", step=1):
    parts = tuple(LayerBytes(bytes_, bytes_, bytes_) for bytes_ in held)
    return CacheSize(name, "1.0", "dynamic", kv, kv, parts, tuple(overheads), 0, step, pool=pool, evidence=evidence)


def document(layers, held, *, tokens=1000, sequences=1, encoder=None, heads=32, **more):
    geometry = Geometry("acme", tuple(layers), num_attention_heads=heads)
    size = sized(layers, held, **more)
    cache = CacheDoc(size.total_bytes, size.logical_bytes, size.after_prefill_bytes, size.peak_bytes, 0, 0, 0)
    workload = Workload(tokens, sequences, encoder_tokens=encoder)
    return size_doc(FILES, geometry, workload, [size], [RowDoc(tokens, sequences, cache)])


# -- units -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (2**20 - 1, "1,024.00 KiB"),
        (4294967296, "4.00 GiB"),
        (11173625856, "10.41 GiB"),
        (2**40 * 5000, "5,000.00 TiB"),
        (-1536, "-1.50 KiB"),
    ],
)
def test_amounts(value, text):
    assert amount(value) == text


def test_exact_amounts_are_whole_bytes():
    assert amount(4294967297, exact=True) == "4,294,967,297 B"


@given(st.integers(min_value=0, max_value=2**60), st.sampled_from(UNITS))
def test_a_figure_is_within_half_a_hundredth_of_its_unit(value, unit):
    shown = unit.number(value).replace(",", "")
    hundredths = int(shown.replace(".", "")) if unit is not BYTE else int(shown) * 100
    assert abs(hundredths * unit.size - value * 100) * 2 <= unit.size


def test_a_column_has_the_unit_of_its_largest_figure():
    assert unit_for((5, 2**30, 2**20)).name == "GiB"
    assert unit_for(()).name == "B"
    assert unit_for((2**35,), exact=True) is BYTE


@pytest.mark.parametrize(
    ("part", "whole", "text"), [(4, 1, "4.0"), (119, 10, "11.9"), (71, 1, "71"), (12345, 1, "12,345")]
)
def test_factors(part, whole, text):
    assert times(part, whole) == text


# -- layout ------------------------------------------------------------------------------------------------------------


@given(st.text(alphabet="ab ·", max_size=200), st.integers(min_value=4, max_value=40))
def test_wrapping_keeps_every_letter_and_no_line_is_wider(text, width):
    lines = wrap(text, width)
    assert "".join(lines).replace(" ", "") == "".join(text.split())
    assert all(len(line) <= width for line in lines)


def test_flow_breaks_at_separators():
    assert flow(["one two", "three", "four five"], 16) == ["one two · three", "four five"]


def test_a_remark_stands_beside_its_line_or_below_it():
    wide = beside([("figure", "")], "a remark about it", View(80))
    assert plain(wide) == "figure   a remark about it\n"
    narrow = beside([("x" * 55, "")], "a remark about it", View(60))
    assert plain(narrow) == "x" * 55 + "\n      a remark about it\n"


def test_a_title_and_its_remark_share_a_line_where_they_fit():
    assert plain(headline("model", "words", View(60))) == "  model" + " " * 48 + "words\n"
    assert plain(headline("m" * 40, "w" * 40, View(60))).split() == ["m" * 40, "w" * 40]


def test_labels_hang():
    lines = labelled("note", "word " * 20, View(60))
    assert all(width_of(line) <= 60 for line in lines)
    assert plain(lines).splitlines()[1].startswith(" " * 13 + "word")


def test_columns_align_right_but_where_told():
    assert columns([["a", "1"], ["bbb", "22"]], left=(0,)) == ["a      1", "bbb   22"]


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ((FULL,) * 32, "32 full · 8 KV heads x 128"),
        ((WINDOW, FULL, WINDOW), "1 full + 2 sliding(1024) · 8 KV heads x 128"),
        ((Layer((Attention(HEADS, Chunked(8192)),)),), "1 chunked(8192) · 8 KV heads x 128"),
        ((Layer((Attention(HEADS, Reference(128)),)),), "1 reference(128) · 8 KV heads x 128"),
        ((Layer((Attention(HEADS), Attention(HEADS, Encoder()))),), "1 full+cross · 8 KV heads x 128"),
        ((Layer((Attention(Latent(512, 64, HEADS)),)),), "1 full · MLA latent 512 + rope 64"),
        (
            (Layer((Attention(Latent(512, 0, HEADS)), Attention(IndexKey(128)))),),
            "1 full+index · MLA latent 512",
        ),
        ((STATES, FULL), "1 full + 1 Mamba · 8 KV heads x 128"),
        ((Layer((Compressed(512, 128, 4, True, 128),)),), "1 compressed(4)"),
        (
            (FULL, Layer((Attention(HEADS),), shares=0), Layer(kind="mlp")),
            "1 full + 1 sharing + 1 without cache · 8 KV heads x 128",
        ),
        ((FULL, Layer((Attention(Heads(1, 64, 64)),))), "2 full"),
        ((Layer((Attention(Heads(1, 192, 128)),)),), "1 full · 1 KV head x (K 192 + V 128)"),
        ((Layer((Attention(Heads(1, 64, 0)),)),), "1 full · 1 KV head x 64, K only"),
    ],
)
def test_a_geometry_in_words(layers, words):
    assert describe(Geometry("acme", layers)) == words


def test_labels_name_what_is_stored_not_what_the_config_calls_it():
    assert label(Layer((Attention(HEADS),), kind="sliding_attention")) == "full"


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        (range(32), "0-31"),
        ((7,), "7"),
        ((5, 11, 17), "5, 11, 17"),
        (range(5, 62, 6), "5, 11, 17 … 59"),
        ([i for i in range(62) if (i + 1) % 6], "0-4, 6-10, 12-16 … 60-61"),
        ((0, 1, 4, 9, 10), "0-1, 4, 9-10"),
    ],
)
def test_indices_in_words(indices, text):
    assert index_words(list(indices)) == text


# -- products ----------------------------------------------------------------------------------------------------------


def product_of(layers, held, **more):
    return [text for _, _, text in part_rows(document(layers, held, **more))]


@pytest.mark.parametrize(
    ("layers", "one", "more", "text"),
    [
        ((FULL,), 4096 * 1000, {}, "1 x 1,000 x 4,096 B"),
        ((FULL,), 4096 * 1000 * 3, {"sequences": 3}, "3 x 1 x 1,000 x 4,096 B"),
        ((FULL,), 4096 * 1024, {}, "1 x 1,024 x 4,096 B"),  # pages: 1,000 tokens take 1,024 slots
        ((FULL,), 4096 * 1000 // 2, {}, "1 x 1,000 x 2,048 B"),
        ((FULL,), 4096 * 1000 + 1, {}, "1 x 4,096,001 B"),
        ((WINDOW,), 4096 * 1000, {}, "1 x 1,000 x 4,096 B"),
        ((WINDOW,), 4096 * 1023, {"tokens": 9000}, "1 x 1,023 x 4,096 B"),
        ((WINDOW,), 4096 * 1022, {"tokens": 9000}, "1 x 4,186,112 B"),  # too few for the window: no product is claimed
        ((STATES,), 5000, {}, "1 x 5,000 B"),
        ((Layer((Attention(HEADS), *STATES.stores)),), 4096 * 1000 + 77, {}, "1 x (1,000 x 4,096 + 77) B"),
        ((Layer((Attention(HEADS), *STATES.stores)),), 4096 * 999, {}, "1 x 4,091,904 B"),
        (
            (Layer((Attention(HEADS), Attention(HEADS, Encoder()))),),
            4096 * 1500,
            {"encoder": 500},
            "1 x 1,500 x 4,096 B",
        ),
        ((Layer((Attention(HEADS), Attention(HEADS, Encoder()))),), 4096 * 1501, {"encoder": 500}, "1 x 6,148,096 B"),
        ((FULL,), 999, {"kv": "fp8_ds_mla"}, "1 x 999 B"),
    ],
)
def test_products(layers, one, more, text):
    assert product_of(layers, (one,) * len(layers), **more) == [text]


def test_bytes_that_no_number_of_sequences_divides_are_a_plain_sum():
    assert product_of((FULL, FULL), (7, 7), sequences=3) == ["14 B"]


def test_a_product_is_always_the_figure():
    for one in range(1, 5000, 7):
        run = document((FULL, FULL), (one, one), tokens=3).layers[0]
        found = terms(run, document((FULL, FULL), (one, one), tokens=3))
        lead = 1
        for factor in found.lead:
            lead *= factor
        assert lead * (found.tokens * found.entry_bytes + found.state_bytes) == 2 * one


def test_kinds_that_read_the_same_say_what_they_hold():
    other = Layer((Attention(Heads(1, 64, 64)),))
    names = [name for name, _, _ in part_rows(document((FULL, other), (4_096_000, 256_000)))]
    assert names == ["full, 8 KV heads x 128", "full, 1 KV head x 64"]


def test_many_shapes_are_summed_by_kind():
    layers = [Layer((Attention(Heads(count, 64, 64)),)) for count in range(1, 12)]
    rows = part_rows(document(layers, [count * 256_000 for count in range(1, 12)]))
    assert rows == [("full", 66 * 256_000, "11 layers of 11 shapes")]


def test_overheads_are_parts_too():
    rows = part_rows(document((FULL,), (4_096_000,), overheads=[Overhead("a trash page", 512)]))
    assert rows[-1] == ("a trash page", 512, "512 B")


def test_a_cacheless_model_says_so():
    assert part_rows(document((Layer(kind="mlp"),), (0,))) == [("nothing", 0, "no layer caches anything")]


# -- formulas ----------------------------------------------------------------------------------------------------------


def off(layers, held, tokens=1000, heads=32, sequences=1, kv="bfloat16"):
    geometry = Geometry("acme", tuple(layers), num_attention_heads=heads)
    return [(f.text, f.bytes) for f in misleading(geometry, Workload(tokens, sequences), sized(layers, held, kv=kv))]


def test_query_heads_are_four_times_too_many():
    assert off((FULL,), (4096 * 1000,)) == [("2 x layers x query heads x head_dim", 16384 * 1000)]


def test_formulas_that_hold_are_not_listed():
    assert off((FULL,), (4096 * 1000,), heads=8) == []
    assert off((WINDOW,), (4096 * 1000,), heads=8) == []  # the context fits the window


def test_the_textbook_formula_knows_no_windows():
    assert off((WINDOW,), (4096 * 1024,), tokens=100_000, heads=8) == [
        ("2 x layers x KV heads x head_dim", 4096 * 100_000)
    ]


def test_mla_is_compared_decompressed():
    latent = Layer((Attention(Latent(512, 64, Heads(128, 192, 128))),))
    assert off((latent,), (1152 * 1000,), heads=128) == [("layers x KV heads x (k_dim + v_dim)", 128 * 320 * 2 * 1000)]


def test_formulas_do_not_cover_an_engines_own_formats():
    assert off((FULL,), (10,), kv="fp8_ds_mla") == []


def test_block_formats_round_up_to_blocks():
    heads = Layer((Attention(Heads(1, 100, 100)),))
    assert off((heads,), (1,), heads=2, kv="q8_0") == [("2 x layers x query heads x head_dim", 2 * 2 * 4 * 34 * 1000)]


def test_attention_free_models_have_no_formula():
    assert typical_heads(Geometry("acme", (STATES,))) is None
    assert off((STATES,), (10,)) == []


def test_blind_spots_are_named():
    layers = (WINDOW, STATES, Layer(kind="mlp"), Layer(WINDOW.stores, shares=0), Layer((Attention(Heads(1, 8, 8)),)))
    assert blind_spots(Geometry("acme", layers)) == [
        "windows",
        "recurrent states",
        "shared caches",
        "layers without a cache",
        "heads that differ between layers",
    ]


# -- settings ----------------------------------------------------------------------------------------------------------


def test_beams_and_ranks_are_read_from_an_engines_settings():
    assert copies({"num_beams": 4, "num_return_sequences": 2}) == 4
    assert copies({}) == 1
    assert is_split({"tensor_parallel_size": 2})
    assert not is_split({"tensor_parallel_size": 1, "pipeline_parallel_size": 4})


# -- other engines -----------------------------------------------------------------------------------------------------


class Engine:
    VERSION = "9"

    def __init__(self, answer):
        self.answer = answer

    @dataclass
    class Options:
        version: str = "9"

    def size(self, geometry, workload, options):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def why(monkeypatch, layers, own, there, tokens=10_000, **more):
    size = there if isinstance(there, Exception) else sized(layers, there, name="other", **more)
    monkeypatch.setattr("kvsize.elsewhere.ENGINES", {"transformers": "", "other": ""})
    monkeypatch.setattr("kvsize.elsewhere.load_engine", lambda name: Engine(size))
    monkeypatch.setattr("kvsize.elsewhere.engine_options", lambda name, given: None)
    found = elsewhere(Geometry("acme", tuple(layers)), Workload(tokens), sized(layers, own), None)
    assert [one.engine for one in found] == ["other"]
    return found[0].total_bytes, found[0].why


@pytest.mark.parametrize(
    ("layers", "own", "there", "more", "reason"),
    [
        ((FULL,), (10,), (10,), {}, "the same"),
        ((FULL,), (10,), (5,), {"kv": "fp8_e4m3"}, "fp8_e4m3 cache"),
        ((FULL,), (10,), (5,), {"kv": "float16"}, "less a token"),  # as wide as bfloat16: not the reason
        ((FULL,), (10,), (5,), {"kv": "fp8_ds_mla"}, "fp8_ds_mla cache"),
        ((FULL,), (10,), (20,), {}, "more a token"),
        ((FULL,), (4096 * 10_000,), (4096 * 2048,), {}, "holds 2,048 tokens"),
        ((FULL,), (4096 * 10_000,), (4096 * 10_240,), {"step": 1024}, "pages of 1,024 tokens"),
        ((WINDOW,), (4096 * 1024,), (4096 * 10_000,), {}, "windows in full"),
        ((WINDOW,), (4096 * 1024,), (4096 * 3072,), {}, "windows hold 3,072 tokens"),
        ((STATES,), (10,), (20,), {}, "more Mamba state"),
        ((Layer((Attention(HEADS), *STATES.stores)),), (20,), (10,), {}, "less Mamba state"),
        ((Layer((Attention(HEADS), Attention(HEADS, Encoder()))),), (10,), (20,), {}, "the encoder's tokens too"),
        ((Layer((Attention(Latent(512, 64, HEADS)),)),), (20,), (10,), {}, "the latent"),
        ((FULL, Layer(FULL.stores, shares=0)), (10, 0), (10, 10), {}, "shared layers hold a copy"),
        ((FULL,), (10,), (10,), {"overheads": [Overhead("a trash page", 5)]}, "a trash page"),
        ((Layer((Compressed(512, 128, 4, True, 128),)),), (20,), (10,), {}, "less in compressed layers"),
    ],
)
def test_why_another_engine_differs(monkeypatch, layers, own, there, more, reason):
    total = sum(there) + sum(part.bytes for part in more.get("overheads", ()))
    assert why(monkeypatch, layers, own, there, **more) == (total, reason)


def test_another_engine_may_refuse(monkeypatch):
    assert why(monkeypatch, (FULL,), (10,), UnsupportedError("no such model here")) == (None, "no such model here")


def test_an_engine_that_cannot_be_split_is_left_out(monkeypatch):
    class Split:
        tensor_parallel_size = 2

    monkeypatch.setattr("kvsize.elsewhere.ENGINES", {"other": ""})
    monkeypatch.setattr("kvsize.elsewhere.load_engine", lambda name: Engine(None))
    assert elsewhere(Geometry("acme", (FULL,)), Workload(1), sized((FULL,), (10,)), Split()) == []


# -- pages and grids ---------------------------------------------------------------------------------------------------


def test_derived_figures_say_so():
    text = render(document((FULL,), (4_096_000,), evidence="derived"), "table")
    assert "transformers 1.0 dynamic, derived" in text


def test_a_pool_tells_what_it_holds():
    pool = Pool(100, 16, 65536, 1600, 1.6, 63, 63 * 65536)
    text = render(document((FULL,), (4_096_000,), pool=pool), "table")
    assert "1,600 tokens: 100 blocks of 16 tokens, 65,536 B each" in text
    assert "1.6 requests of 1,000 tokens at once (63 blocks, 3.94 MiB each)" in text


def test_other_engines_are_told_in_as_few_lines_as_they_need():
    from kvsize.elsewhere import Elsewhere

    others = [
        Elsewhere("vllm", "0.33", 4_096_000, "the same"),
        Elsewhere("sglang", "0.5", 8_192_000, "windows in full"),
        Elsewhere("mlx", "1", 4_096_000, "the same"),
        Elsewhere("trtllm", "1.2", None, "no rule for acme"),
    ]
    text = render(document((FULL,), (4_096_000,)), "table", View(), Beside(elsewhere=others))
    block = next(block for block in text.split("\n\n") if block.startswith("  elsewhere"))
    assert block.splitlines() == [
        "  elsewhere  the same in vLLM 0.33, MLX 1",
        "             SGLang 0.5  7.81 MiB  windows in full",
        "  refused    TensorRT-LLM 1.2: no rule for acme",
    ]
    alone = render(document((FULL,), (4_096_000,)), "table", View(), Beside(elsewhere=others[1:2]))
    assert "  elsewhere  SGLang 0.5  7.81 MiB  windows in full" in alone.splitlines()


GRID = Grid(
    ("model", "ctx", "total_bytes", "note", "empty"),
    (("a|b", 1000, 2**30, 'x, "y"', None), ("a|b", 2000, 2**31, "", None)),
)


def test_csv_holds_raw_integers():
    rows = list(csv.reader(io.StringIO(to_csv(GRID))))
    assert rows == [
        ["model", "ctx", "total_bytes", "note", "empty"],
        ["a|b", "1000", "1073741824", 'x, "y"', ""],
        ["a|b", "2000", "2147483648", "", ""],
    ]


def test_markdown_has_one_unit_a_column_and_no_empty_column():
    assert markdown(GRID, View()) == (
        "| model | ctx | total, GiB | note |\n"
        "|---|---:|---:|---|\n"
        '| a\\|b | 1,000 | 1.00 | x, "y" |\n'
        "| a\\|b | 2,000 | 2.00 |  |\n"
    )


def test_markdown_says_once_what_all_rows_share():
    text = markdown(Grid(("model", "ctx"), (("a", 1),), shared=1, title="a: words"), View())
    assert text == "a: words\n\n| ctx |\n|---:|\n| 1 |\n"


def test_markdown_of_nothing_is_still_a_table():
    assert markdown(Grid(("model", "ctx"), ()), View()) == "| model | ctx |\n|---|---|\n"


def test_every_document_but_errors_has_pages_and_grids():
    from kvsize.report import DOCUMENTS

    assert {cls.__name__ for name, cls in DOCUMENTS.items() if name != "error"} == set(MODULES)


def test_layers_without_runs_still_print():
    text = render(layers_doc(FILES, Geometry("acme", ())), "table")
    assert text.splitlines()[:2] == ["  acme/model", "  0 layers · acme"]
