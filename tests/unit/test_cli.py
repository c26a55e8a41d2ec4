"""Parsing, hints and streams of the command line, without a process."""

import io
import sys

import pytest

from kvsize.cli import COMMANDS, _usage_hint, _wants_json, run
from kvsize.cli.models import architectures_doc, catalogue_doc
from kvsize.cli.options import complete_model
from kvsize.cli.output import ASCII, emit, paint, terminal_width, wants_colour, write
from kvsize.cli.size import DEFAULT_CTX, context_lengths, parse_encoder, parse_kv_dtype
from kvsize.errors import UsageError
from kvsize.geometry import Attention, Geometry, Heads, Layer

LLAMA = "meta-llama/Llama-3.1-8B"


def model(max_tokens):
    return Geometry("acme", (Layer((Attention(Heads(1, 64, 64)),)),), max_tokens=max_tokens)


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "most", "lengths", "note"),
    [
        ("32k", 131072, [32768], None),
        ("1,2k", 131072, [1, 2048], None),
        ("32k", 8192, [32768], "8,192 tokens as the most"),
        ("32k", None, [32768], None),
        ("", None, [DEFAULT_CTX], "32,768 tokens are assumed"),
        ("", 131072, [DEFAULT_CTX], "the model goes up to 131,072"),
        ("", 2048, [2048], "2,048 tokens are assumed"),
    ],
)
def test_context_lengths(text, most, lengths, note):
    found, notes = context_lengths(text, model(most))
    assert found == lengths
    assert len(notes) == (note is not None)
    assert note is None or note in notes[0]


def test_a_cache_format_for_both_or_for_each():
    assert parse_kv_dtype("bf16") == ("bf16", "bf16")
    assert parse_kv_dtype("k=q8_0,v=q4_0") == ("q8_0", "q4_0")
    assert parse_kv_dtype("v=q4_0,k=q8_0") == ("q8_0", "q4_0")


@pytest.mark.parametrize("text", ["k=q8_0", "k=q8_0,w=q4_0", "=", "k=a,v=b,x=c"])
def test_half_a_cache_format_is_refused(text):
    with pytest.raises(UsageError, match="k=FORMAT,v=FORMAT"):
        parse_kv_dtype(text)


def test_no_encoder_tokens_is_a_text_only_request():
    assert parse_encoder("0") == 0
    assert parse_encoder("1500") == 1500
    with pytest.raises(UsageError, match="--encoder-ctx"):
        parse_encoder("many")


# -- usage -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (["m", "--json"], True),
        (["m", "--format", "json"], True),
        (["m", "--format=json"], True),
        (["m", "--format", "csv"], False),
        (["m", "--format"], False),
        ([], False),
    ],
)
def test_json_is_recognised_before_parsing(args, wanted):
    assert _wants_json(args) is wanted


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["layer", "x"], "Did you mean kvsize layers?"),
        (["modles"], "Did you mean kvsize models?"),
        (["layers"], "kvsize layers -h lists its options."),
        (["acme/model", "x"], "kvsize -h lists the commands, kvsize size -h the options."),
        ([], "kvsize -h lists the commands, kvsize size -h the options."),
    ],
)
def test_hints(args, hint):
    assert _usage_hint(args) == hint


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([LLAMA, "--batch", "x"], "--batch"),
        ([LLAMA, "--batch", "1.5"], "--batch"),
        ([LLAMA, "--batch", "0"], "at least 1 sequence"),
        ([LLAMA, "--batch", "-3"], "at least 1 sequence"),
        ([LLAMA, "--batch", str(10**30)], "--batch"),
        ([LLAMA, "--ctx", "many"], "--ctx takes a number of tokens"),
        ([LLAMA, "--ctx", "1k,,x"], "--ctx takes a number of tokens"),
        ([LLAMA, "--ctxx", "1k"], "--ctx"),
        ([LLAMA, "--format", "xml"], "table"),
        ([LLAMA, "--engine", "abacus"], "transformers"),
        ([LLAMA, "--kv-dtype", "k=f16"], "k=FORMAT,v=FORMAT"),
        ([LLAMA, "extra"], "extra"),
        (["size"], "MODEL"),
        (["schema", "novel"], "Known: size"),
        (["layers", LLAMA, "--ctx", "1k"], "--ctx"),
    ],
)
def test_wrong_usage_exits_2_and_says_why(args, words, capsys):
    assert run(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert "Traceback" not in captured.err


def test_every_flag_reaches_its_engine(capsys):
    assert run([LLAMA, "--ctx", "4k", "--num-beams", "4", "--json"]) == 0
    assert '"num_beams": 4' in capsys.readouterr().out


def test_an_engines_flag_on_another_engine_is_refused(capsys):
    assert run([LLAMA, "--ctx", "4k", "--kv-bits", "4"]) == 2
    assert "--kv-bits means nothing to transformers" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_in_80_columns(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run([name, "-h"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: kvsize {name}")
    assert max(map(len, text.splitlines())) <= 80


def test_nothing_asked_is_answered_with_help(capsys):
    assert run([]) == 0
    assert capsys.readouterr().out.startswith("Usage: kvsize MODEL")


def test_options_may_stand_before_the_model(capsys):
    assert run(["--ctx", "1k", "--json", LLAMA]) == 0
    before = capsys.readouterr().out
    assert run([LLAMA, "--json", "--ctx", "1k"]) == 0
    assert before == capsys.readouterr().out


def test_a_bug_is_called_one(capsys, monkeypatch):
    monkeypatch.setattr("kvsize.cli.size.size_doc", lambda *_, **__: 1 / 0)
    assert run([LLAMA]) == 70
    err = capsys.readouterr().err
    assert "ZeroDivisionError" in err
    assert "This is a bug in kvsize" in err


def test_an_interrupt_exits_130(capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("kvsize.cli.size.size_doc", stop)
    assert run([LLAMA]) == 130
    assert capsys.readouterr().out == ""


# -- streams -----------------------------------------------------------------------------------------------------------


class Stream(io.TextIOWrapper):
    def __init__(self, encoding="utf-8", tty=False):
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)
        self.tty = tty

    def isatty(self):
        return self.tty

    def text(self):
        return self.buffer.getvalue().decode(self.encoding)


@pytest.fixture
def environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("tty", "variables", "wanted"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (True, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_only_where_it_is_wanted(environment, tty, variables, wanted):
    environment.setattr(sys, "stdout", Stream(tty=tty))
    for name, value in variables.items():
        environment.setenv(name, value)
    assert wants_colour() is wanted


@pytest.mark.parametrize(("columns", "width"), [("100", 100), ("", 80), ("x", 80), ("0", 80), ("-5", 80), ("²", 80)])
def test_width_without_a_terminal(environment, columns, width):
    environment.setattr(sys, "stdout", Stream())
    environment.setenv("COLUMNS", columns)
    assert terminal_width() == width


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
def test_small_encodings_get_ascii_drawings(monkeypatch, encoding):
    stream = Stream(encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    write("10 full · █▍ … é\n")
    assert stream.text().startswith("10 full - ## ...")


def test_every_drawing_character_has_an_ascii_form():
    from kvsize.tables.page import EIGHTHS

    assert set(EIGHTHS.strip() + "█·…") <= {chr(code) for code in ASCII}


def test_colour_changes_nothing_but_colour(monkeypatch, environment):
    import re

    environment.setenv("COLUMNS", "80")
    texts = []
    for force in ("", "1"):
        stream = Stream()
        monkeypatch.setattr(sys, "stdout", stream)
        environment.setenv("FORCE_COLOR", force)
        assert run(["google/gemma-3-27b-it", "--ctx", "128k", "--batch", "4"]) == 0
        texts.append(stream.text())
    plain, coloured = texts
    assert "\x1b[" not in plain
    assert "\x1b[1;32m41.63 GiB\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_painted_lines_are_not_rewrapped(monkeypatch):
    stream = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    paint([[("x" * 300, "")], [], [("[bold]no markup[/bold]", "dim")]])
    assert [line.removeprefix("\x1b[2m").removesuffix("\x1b[0m") for line in stream.text().splitlines()] == [
        "x" * 300,
        "",
        "[bold]no markup[/bold]",
    ]


def test_emit_prints_what_render_gives(monkeypatch, environment):
    stream = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    emit(catalogue_doc("gemma-3-27b"), "csv")
    assert stream.text().splitlines()[1].startswith("google/gemma-3-27b-it,gemma3_text,")


# -- the catalogue -----------------------------------------------------------------------------------------------------


def test_models_are_found_by_any_of_their_ids():
    by_alias = catalogue_doc("gemma-3-27b-pt").models
    assert [entry.id for entry in by_alias] == ["google/gemma-3-27b-it"]
    assert "google/gemma-3-27b-pt" in by_alias[0].also


def test_every_model_of_the_catalogue_has_words():
    unknown = [entry.id for entry in catalogue_doc("").models if entry.attention is None]
    assert unknown == []


def test_architectures_count_the_catalogue():
    found = {each.model_type: each for each in architectures_doc("llama").architectures}
    assert found["llama"].evidence == "exact"
    assert found["llama"].models == sum(entry.model_type == "llama" for entry in catalogue_doc("").models)


def test_models_complete_in_the_shell():
    assert "google/gemma-3-27b-it" in complete_model("GOOGLE/gemma-3-2")
    assert complete_model("nobody/") == []
