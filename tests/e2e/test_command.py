"""The command as a process: exit codes, streams, pipes, terminals, shells."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

LLAMA = "meta-llama/Llama-3.1-8B"
KVSIZE = [sys.executable, "-m", "kvsize"]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    return {**kept, "HF_HUB_OFFLINE": "1", **more}


def kvsize(*args, stdin="", **variables):
    return subprocess.run(
        [*KVSIZE, *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(**variables),
    )


# -- exit codes --------------------------------------------------------------------------------------------------------


def unknown(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "acme_moe", "num_hidden_layers": 4}))
    return str(path)


EXITS = [
    (0, [LLAMA, "--ctx", "32k"], None, "4.00 GiB"),
    (0, ["--version"], None, "kvsize "),
    (0, ["-h"], None, "Usage: kvsize MODEL"),
    (0, [], None, "Usage: kvsize MODEL"),
    (2, [LLAMA, "--ctx", "lots"], "usage", "--ctx takes a number of tokens"),
    (2, [LLAMA, "--cxt", "32k"], "usage", "--ctx"),
    (2, ["layer", LLAMA], "usage", "Did you mean kvsize layers?"),
    (3, ["acme/no-such-model"], "source", "offline"),
    (3, ["./no/such/config.json"], "source", "no such file"),
    (4, ["-"], "config", "model_type"),
    (5, [LLAMA, "--kv-dtype", "k=float16,v=bfloat16"], "unsupported", "one format"),
    (5, [LLAMA, "--engine", "transformers@4.40"], "unsupported", "4.40"),
]


@pytest.mark.parametrize(("code", "args", "kind", "words"), EXITS)
def test_exit_code_and_stream(code, args, kind, words):
    done = kvsize(*args, stdin="{}")
    assert done.returncode == code, done.stderr
    answer, silence = (done.stdout, done.stderr) if code == 0 else (done.stderr, done.stdout)
    assert words in answer
    assert silence == ""
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("code", "args", "kind", "words"), [row for row in EXITS if row[2]])
def test_errors_under_json_are_one_line_on_stderr(code, args, kind, words):
    done = kvsize(*args, "--json", stdin="{}")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.endswith("\n")
    error = json.loads(done.stderr)
    assert done.stderr.count("\n") == 1
    assert (error["schema"], error["code"], error["exit"]) == ("kvsize.error/1", kind, code)
    assert words in f"{error['message']} {error['hint']} {error['where']}"


def test_an_unknown_architecture_is_refused_with_its_fields(tmp_path):
    done = kvsize(unknown(tmp_path), "--json")
    assert done.returncode == 4
    error = json.loads(done.stderr)
    assert error["code"] == "unknown_architecture"
    assert "acme_moe" in error["message"]
    assert "num_hidden_layers 4" in error["hint"]


# -- input -------------------------------------------------------------------------------------------------------------


def test_a_config_from_standard_input_a_file_and_a_folder(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    totals = [
        json.loads(kvsize(name, "--ctx", "32k", "--json", stdin=json.dumps(CONFIG)).stdout)["cache"]["total_bytes"]
        for name in ("-", str(path), str(tmp_path), LLAMA)
    ]
    assert totals == [4294967296] * 4


@pytest.mark.parametrize(
    "order", [(LLAMA, "--ctx", "1k", "--json"), ("--ctx", "1k", LLAMA, "--json"), ("--json", "--ctx=1k", LLAMA)]
)
def test_options_stand_anywhere(order):
    document = json.loads(kvsize(*order).stdout)
    assert document["workload"]["ctx"] == 1024
    assert document["cache"]["total_bytes"] == 134217728


# -- output ------------------------------------------------------------------------------------------------------------


def test_json_is_one_line_of_utf8_whatever_the_locale():
    done = kvsize("google/gemma-3-27b-it", "--ctx", "8k", "--json", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert json.loads(done.stdout)["model"]["attention"].startswith("10 full + 52 sliding(1024)")


def test_a_page_in_ascii_keeps_its_figures():
    done = kvsize("google/gemma-3-27b-it", "--ctx", "128k", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "10.41 GiB" in done.stdout
    assert "####" in done.stdout


@pytest.mark.parametrize("output", ["json", "csv", "markdown", "table"])
@pytest.mark.parametrize("command", [[LLAMA, "--ctx", "1k,2k"], ["layers", LLAMA], ["models", "--search", "llama-3"]])
def test_every_format_of_every_document(command, output):
    done = kvsize(*command, "--format", output)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    start = {"json": "{", "csv": "model,", "markdown": "", "table": "  "}[output]
    assert done.stdout.startswith(start)
    assert output != "markdown" or re.search(r"^\|(---:?\|)+$", done.stdout, re.MULTILINE)


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{' '.join(KVSIZE)} models --format csv | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True, env=environment()
    )
    assert done.stdout.splitlines()[0].startswith("model,")
    assert done.stdout.splitlines()[1] == "0"
    assert done.stderr == ""


@pytest.mark.parametrize(("where", "words"), [(">&-", "is closed"), ("> /dev/full", "No space left on device")])
def test_an_answer_that_cannot_be_written_is_an_error(where, words):
    command = f"{' '.join(KVSIZE)} {LLAMA} --ctx 1k {where}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False, env=environment()
    )
    assert done.returncode == 2
    assert done.stderr.startswith("kvsize: standard output")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("columns", ["20", "60", "80", "200"])
def test_the_answer_is_in_the_first_three_lines_at_any_width(columns):
    done = kvsize(LLAMA, "--ctx", "32k", COLUMNS=columns)
    assert any("4.00 GiB" in line for line in done.stdout.splitlines()[:3])
    assert max(map(len, done.stdout.splitlines())) <= max(int(columns), 60)


def terminal(*args, **variables):
    """What the command writes to a terminal of 24 x 72."""
    pid, fd = pty.fork()
    if not pid:
        os.execvpe(KVSIZE[0], [*KVSIZE, *args], environment(TERM="xterm-256color", **variables))
    import fcntl
    import struct
    import termios

    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 72, 0, 0))
    out = b""
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:
            break
        if not piece:
            break
        out += piece
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return out.decode().replace("\r\n", "\n")


def test_colour_on_a_terminal_and_its_width():
    text = terminal("google/gemma-3-27b-it", "--ctx", "128k")
    assert "\x1b[1;32m10.41 GiB" in text
    lines = re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()
    assert 60 < max(map(len, lines)) <= 72


def test_no_color_is_respected_on_a_terminal():
    assert "\x1b" not in terminal(LLAMA, "--ctx", "1k", NO_COLOR="1")


# -- shells ------------------------------------------------------------------------------------------------------------


def completions(line):
    words = line.split()
    if line.endswith(" "):
        words.append("")
    variables = {"_KVSIZE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return kvsize(**variables).stdout.split()


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("kvsize la", ["layers"]),
        ("kvsize ", ["size", "layers", "models", "schema"]),
        ("kvsize google/gemma-3-2", ["google/gemma-3-27b-it"]),
        ("kvsize layers google/gemma-3-2", ["google/gemma-3-27b-it"]),
        (f"kvsize {LLAMA} --ct", ["--ctx"]),
        (f"kvsize size {LLAMA} --format ", ["table", "json", "csv", "markdown"]),
    ],
)
def test_shell_completion(line, some):
    assert set(some) <= set(completions(line))


def test_completion_scripts_are_printed():
    done = kvsize("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0, done.stderr
    assert "_KVSIZE_COMPLETE" in done.stdout


# -- start-up ----------------------------------------------------------------------------------------------------------

HEAVY = ("torch", "transformers", "huggingface_hub", "pynvml", "rich", "pydantic", "pydantic_core")


def loaded(*args):
    """The heavy modules that a command line has imported by the time it is done."""
    script = (
        "import sys; from kvsize.cli import run; code = run(sys.argv[1:]); "
        f"print(code, *(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *args], capture_output=True, text=True, timeout=60, check=True, env=environment()
    )
    return done.stderr.split()


@pytest.mark.parametrize(
    "args",
    [
        [LLAMA, "--ctx", "32k", "--json"],
        [LLAMA, "--ctx", "32k"],
        [LLAMA, "--ctx", "8k,32k", "--batch", "4"],
        ["layers", LLAMA],
        ["models", "--search", "llama"],
        ["--help"],
    ],
)
def test_nothing_heavy_is_imported(args):
    assert loaded(*args) == ["0"]


def test_the_check_for_heavy_imports_can_fail():
    assert loaded("schema", "size") == ["0", "pydantic", "pydantic_core"]


def test_this_file_runs_the_checkout():
    import kvsize as package

    root = Path(__file__).parents[2]
    assert Path(package.__file__).is_relative_to(root)
