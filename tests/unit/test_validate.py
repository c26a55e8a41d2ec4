"""`kvsize validate` without torch: what is run, how it is compared, what is kept."""

import json
import os
import signal
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from kvsize import validation
from kvsize.architectures import geometry
from kvsize.cli import run as command
from kvsize.cli import validate as cli
from kvsize.errors import UnknownArchitectureError, UnsupportedError, UsageError
from kvsize.real import measure
from kvsize.real.measure import Environment, Measured, OnDevice, OutOfMemoryError, Run
from kvsize.real.twin import read_config
from kvsize.source import load
from kvsize.validation import default_lengths, difference, judge, runs

LLAMA = "meta-llama/Llama-3.1-8B"
HERE = Environment("3.11.0", "2.13.0", "5.23.0", "no GPU")
RELEASE = "5.23.0"


class Bench:
    """Stands in for a twin: every cache weighs what `weigh` says."""

    device = "cpu"
    model_class = "StandIn"
    encoder_tokens = None
    subject = SimpleNamespace(dtype="bfloat16")

    def __init__(self, weigh):
        self.measure = weigh
        self.closed = False

    def close(self):
        self.closed = True


def bytes_of_llama(run):
    """2 x 32 layers x 8 heads x 128 elements x 2 bytes."""
    return Measured(131_072 * run.tokens, 131_072 * run.tokens, 64)


@pytest.fixture
def stand_in(monkeypatch):
    def use(weigh):
        twin = Bench(weigh)
        monkeypatch.setattr(measure, "bench", lambda *_: twin)
        monkeypatch.setattr(measure, "environment", lambda: HERE)
        return twin

    return use


def test_lengths_pass_every_window_that_can_be_filled():
    gemma = geometry(load("google/gemma-3-1b-it").config)
    assert default_lengths(gemma, "cpu") == (64, 513)
    mistral = geometry(load("mistralai/Mistral-7B-v0.1").config)
    assert default_lengths(mistral, "cpu") == (64,)
    assert default_lengths(mistral, "meta") == (64, 4097)


def test_moments_of_each_cache():
    llama = geometry(load(LLAMA).config)
    asked = list(runs(llama, "meta", caches=("dynamic", "static", "quantized")))
    assert [(run.cache, run.moment) for run in asked] == [
        ("dynamic", "prefill"),
        ("dynamic", "decode"),
        ("static", "decode"),
        ("quantized", "generate"),
    ]
    assert [run.moment for run in runs(llama, "cpu", caches=("paged",), generate=True)] == [
        "pool",
        "prefill",
        "decode",
        "generate",
    ]
    assert {run.moment for run in runs(llama, "cpu", num_beams=2)} == {"generate"}


def test_a_byte_more_or_less_is_a_difference():
    llama = geometry(load(LLAMA).config)
    run = Run("dynamic", 100)
    assert judge(llama, Bench(bytes_of_llama), run, RELEASE).status == "equal"
    for off in (-1, 1):
        found = judge(llama, Bench(lambda _, off=off: Measured(0, 13_107_200 + off, 64)), run, RELEASE)
        assert (found.status, found.reason) == ("different", f"{off:+,} bytes against the prediction")


def test_a_window_off_by_one_is_a_difference():
    raw = dict(load("google/gemma-3-1b-it").config)
    right = geometry(raw)
    wrong = geometry({**raw, "sliding_window": raw["sliding_window"] + 1})
    twin = Bench(lambda _: Measured(0, 13_635_584, 52))
    assert judge(right, twin, Run("dynamic", 513), RELEASE).status == "equal"
    assert judge(wrong, twin, Run("dynamic", 513), RELEASE).status == "different"


def test_cuda_may_round_each_tensor_up_to_512_and_no_more():
    held = Measured(1000, 1000, 3, OnDevice(1000 + 3 * 512, 2**21, 4000, None))
    assert difference(1000, held) is None
    more = replace(held, device=replace(held.device, allocated=1000 + 3 * 512 + 1))
    less = replace(held, device=replace(held.device, allocated=999))
    assert "torch allocated 2,537 bytes" in difference(1000, more)
    assert "torch allocated 999 bytes" in difference(1000, less)


def test_what_is_refused_or_cannot_be_run_is_no_match():
    llama = geometry(load(LLAMA).config)

    def fails(error):
        def weigh(_):
            raise error

        return judge(llama, Bench(weigh), Run("dynamic", 100), RELEASE)

    assert fails(UnsupportedError("no")).status == "not_run"
    full = fails(OutOfMemoryError("out of memory on cuda"))
    assert (full.status, full.predicted) == ("out_of_memory", 13_107_200)
    assert judge(llama, Bench(bytes_of_llama), Run("quantized", 100), "4.57.0").status == "refused"


def test_a_paged_cache_is_its_tensor_or_what_requests_take_of_it():
    """Llama's pages: 2 x 8 heads x 128 elements x 256 tokens x 2 bytes; 64 blocks are to spare, and two are trash."""
    llama, block = geometry(load(LLAMA).config), 32 * 2 * 8 * 128 * 256 * 2
    expected = {"pool": (3 * 2 + 64 + 2) * block, "prefill": 3 * 2 * block, "generate": 3 * 2 * block}
    for moment, held in expected.items():
        run = Run("paged", 257, 3, moment)
        assert judge(llama, Bench(lambda _, held=held: Measured(held, held, 1)), run, RELEASE).status == "equal"


def test_a_cache_that_this_machine_cannot_hold_is_not_built(monkeypatch):
    """Linux ends a process that takes too much; 100 tokens are 13,107,200 bytes."""
    llama = geometry(load(LLAMA).config)
    monkeypatch.setattr(validation, "available_bytes", lambda: 16_000_000)
    found = judge(llama, Bench(None), Run("dynamic", 100), RELEASE)
    assert (found.status, found.predicted) == ("out_of_memory", 13_107_200)
    assert found.reason == "the cache needs 13,107,200 bytes; 16,000,000 are available"
    monkeypatch.setattr(validation, "available_bytes", lambda: 16_384_000)
    assert judge(llama, Bench(bytes_of_llama), Run("dynamic", 100), RELEASE).status == "equal"


def test_exit_codes(stand_in, capsys):
    twin = stand_in(bytes_of_llama)
    assert command(["validate", LLAMA, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["measured_bytes"] for row in document["rows"]] == [8_388_608] * 3
    assert document["environment"]["transformers"] == RELEASE
    assert twin.closed
    stand_in(lambda _: Measured(0, 8_388_609, 64))
    assert command(["validate", LLAMA]) == 1
    assert "DIFFERS" in capsys.readouterr().out


def test_nothing_compared_is_no_success(stand_in, capsys):
    def fails(_):
        raise UnsupportedError("no values")

    stand_in(fails)
    assert command(["validate", LLAMA]) == 1
    assert "No cache could be built and compared." in capsys.readouterr().out


def test_a_sweep_keeps_what_is_done_and_goes_on_from_there(stand_in, tmp_path, capsys):
    results = tmp_path / "results.jsonl"
    done = []

    def weigh(run):
        done.append(run)
        if len(done) > 3:
            raise KeyboardInterrupt
        return bytes_of_llama(run)

    twin = stand_in(weigh)
    arguments = ["validate", LLAMA, "google/gemma-3-1b-it", "--results", str(results), "--json"]
    assert command(arguments) == 130
    assert twin.closed
    document = json.loads(capsys.readouterr().out)
    assert document["notes"] == ["interrupted: 1 of 2 models were done"]
    assert len(results.read_text().splitlines()) == 1

    def never(_):
        raise AssertionError("measured again")

    stand_in(never)
    assert command(["validate", LLAMA, "--results", str(results), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == document["rows"]


def test_a_model_that_cannot_be_read_does_not_end_a_sweep(stand_in, tmp_path, capsys):
    results = tmp_path / "results.jsonl"
    stand_in(bytes_of_llama)
    missing = str(tmp_path / "nothing" / "config.json")
    assert command(["validate", missing, LLAMA, LLAMA, "--results", str(results), "--json"]) == 3
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["model"], row["status"]) for row in rows] == [(missing, "not_run"), *[(LLAMA, "equal")] * 3]
    assert len(results.read_text().splitlines()) == 1  # what could not be read is asked for again next time


def test_a_folder_is_known_again_by_its_id(stand_in, tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(load(LLAMA).config))
    results = tmp_path / "results.jsonl"
    arguments = ["validate", str(tmp_path / "model"), LLAMA, "--results", str(results), "--json"]
    stand_in(bytes_of_llama)
    assert command(arguments) == command(arguments) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert len(results.read_text().splitlines()) == 2


def test_a_results_file_without_a_folder_is_refused_first(stand_in, tmp_path, capsys):
    stand_in(lambda _: pytest.fail("measured"))
    assert command(["validate", LLAMA, "--results", str(tmp_path / "none" / "file")]) == 2
    assert "folder that does not exist" in capsys.readouterr().err


def test_a_ctrl_c_that_a_library_swallows_still_ends_it(stand_in, capsys):
    """transformers made a ModuleNotFoundError of it, which ended in a traceback and exit code 70."""

    def imports(_):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise ModuleNotFoundError("Could not import module") from None

    stand_in(imports)
    before = signal.getsignal(signal.SIGINT)
    assert command(["validate", LLAMA, "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["notes"] == ["interrupted: 0 of 1 models were done"]
    assert signal.getsignal(signal.SIGINT) is before


def test_words_stand_where_a_figure_is_missing(stand_in, monkeypatch, capsys):
    """At 80 columns; 'out of memory' after an empty column needed 85."""

    def full(_):
        raise OutOfMemoryError("out of memory on cpu")

    stand_in(full)
    monkeypatch.setattr(validation, "available_bytes", lambda: None)
    assert command(["validate", LLAMA, "--ctx", "100k", "--batch", "3"]) == 1
    printed = capsys.readouterr().out
    cells = ["static", "decode", "3", "x", "102,400", "40,265,318,400", "out", "of", "memory"]
    assert cells in [line.split() for line in printed.splitlines()]
    assert max(map(len, printed.splitlines())) <= 80


def test_a_gguf_is_no_config():
    """'does not know the architecture null' was said of one."""
    with pytest.raises(UnknownArchitectureError, match="no model is built from a GGUF's metadata alone"):
        read_config({"general.architecture": "llama", "llama.block_count": 2})


def test_figures_of_another_environment_are_measured_again(stand_in, tmp_path, monkeypatch):
    results = tmp_path / "results.jsonl"
    stand_in(bytes_of_llama)
    command(["validate", LLAMA, "--results", str(results)])
    where = json.loads(results.read_text())["environment"]
    settings = cli.Settings("auto", "bfloat16", ("dynamic", "static"), (), 1, 1, False)
    assert set(cli.recorded(results, where, settings.plain())) == {LLAMA}
    assert cli.recorded(results, {**where, "transformers": "5.24.0"}, settings.plain()) == {}
    assert cli.recorded(results, where, replace(settings, sequences=2).plain()) == {}


@pytest.mark.parametrize("text", ["not json", "{}", "[]", '{"environment": 1, "settings": 2}'])
def test_a_file_of_something_else_is_not_appended_to(text, tmp_path):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(UsageError, match="holds no figures"):
        cli.recorded(path, asdict(HERE), {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name one or more models"),
        ([LLAMA, "--all"], "name one or more models"),
        ([LLAMA, "--cache", "hybrid"], "--cache takes"),
        ([LLAMA, "--cache", ""], "--cache takes"),
        ([LLAMA, "--dtype", "int8"], "--dtype takes"),
        ([LLAMA, "--device", "tpu"], "--device takes"),
        ([LLAMA, "--batch", "0"], "counted from 1"),
    ],
)
def test_wrong_words(stand_in, arguments, message, capsys):
    stand_in(bytes_of_llama)
    assert command(["validate", *arguments]) == 2
    assert message in capsys.readouterr().err
