"""What the pages say is so: shown output, commands, tables, exit codes, quoted code."""

import importlib.util
import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from kvsize import errors
from kvsize.cli import COMMANDS, run

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CONFIG = '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}'


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def make_tables():
    spec = importlib.util.spec_from_file_location("make_tables", ROOT / "validate" / "make_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/evidence.md", "docs/gate.md"])
def test_tables_and_screens_are_what_is_printed_now(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    tables = make_tables()
    assert ROOT / name in tables.PAGES
    assert tables.TABLE.search(text) or tables.SCREEN.search(text)
    assert text == tables.renewed(text), "run python validate/make_tables.py"


def test_stale_tables_and_screens_would_be_noticed():
    tables = make_tables()
    assert tables.renewed(README.replace("4,294,967,296", "4,294,967,297")) == README
    assert tables.renewed(README.replace("41.63 GiB", "41.64 GiB")) == README


def test_the_first_command_gives_the_first_answer(capsys):
    install, command = blocks(README, "sh")[0].strip().split(" && ")
    assert install == "pip install ."
    assert command.startswith("kvsize ")
    assert run(command.split()[1:]) == 0
    assert "4.00 GiB (4,294,967,296 bytes) for 1 sequence of 32,768 tokens" in capsys.readouterr().out


def commands():
    for block in blocks(README, "sh"):
        for line in block.splitlines():
            command = line.partition(" #")[0].partition(" | jq")[0].strip()
            if "kvsize" in command and "pip" not in command:
                yield command


@pytest.mark.parametrize("command", list(commands()))
def test_every_command_of_the_readme_runs(command, tmp_path):
    (tmp_path / "config.json").write_text(CONFIG)
    script = f'kvsize() {{ "{sys.executable}" -m kvsize "$@"; }}; {command}'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_every_command_is_documented():
    text = " ".join([*commands(), README])
    assert [name for name in COMMANDS if name != "size" and f"kvsize {name}" not in text] == []


def test_python_of_the_readme_gives_what_its_comments_say():
    (block,) = blocks(README, "python")
    names = {}
    for line in block.splitlines():
        code, _, comment = line.partition("  # ")
        if comment:
            assert str(eval(code, names)) == comment
        else:
            exec(code, names)


def test_ci_runs_the_test_command_of_the_readme():
    (line,) = re.findall(r"^test_command=\$\((.*)\)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert done.stdout.splitlines() == ["pip install --quiet --editable '.[test]'", "pytest"]
    assert f"<!-- test-command -->\n```sh\n{done.stdout}```" in README


def tree(kind):
    yield kind
    for child in kind.__subclasses__():
        yield from tree(child)


def test_every_exit_code_is_in_the_table():
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    assert documented == {0, 1, *(kind.exit_code for kind in tree(errors.KvsizeError))}


def test_every_variable_that_is_read_is_documented():
    read = set()
    for path in (ROOT / "kvsize").rglob("*.py"):
        read |= set(re.findall(r"environ(?:\.get)?[(\[]\"([A-Z_]+)\"|getenv\(\"([A-Z_]+)\"", path.read_text()))
    names = {name for pair in read for name in pair if name}
    ignored = {"TERM", "XDG_CACHE_HOME", "HUGGINGFACE_HUB_CACHE", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}
    assert sorted(name for name in names - ignored if f"`{name}`" not in README) == []


def test_quoted_code_is_the_code():
    found = re.findall(r"<!-- quoted: (\S+) -->\n```python\n(.*?)```", CONTRIBUTING, re.DOTALL)
    assert len(found) == 2
    for path, code in found:
        assert code in (ROOT / path).read_text(encoding="utf-8")


def test_every_path_that_is_named_exists():
    _, _, table = CONTRIBUTING.partition("## Where things are")
    for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE):
        names = re.findall(r"`([^`]+)`", row)
        folder = Path(names[0]).parent
        for name in names:
            assert (ROOT / name).exists() or (ROOT / folder / name).exists(), name
    for link in re.findall(r"\]\(([^):]+)\)", README + CONTRIBUTING):
        assert (ROOT / link).exists(), link


def test_the_catalogue_is_as_large_as_said():
    said = int(re.search(r"configs of over (\d+) models", README)[1])
    out = io.StringIO()
    with redirect_stdout(out):
        run(["models", "--format", "csv"])
    models = len(out.getvalue().splitlines()) - 1
    assert said <= models < said + 100
