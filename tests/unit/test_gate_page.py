"""docs/gate.md: its scripts run, and what they print and leave is what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def shell(script, where):
    return subprocess.run(
        ["bash", "-c", f'kvsize() {{ "{sys.executable}" -m kvsize "$@"; }}; {script}'],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=where,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize(
    ("number", "printed"),
    [(0, "start the server\n"), (1, "too small; see the advice in fit.json\n")],
)
def test_scripts_run(number, printed, tmp_path):
    assert len(SCRIPTS) == 3
    done = shell(SCRIPTS[number], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_the_solved_length_fits_and_is_the_last_that_does(tmp_path):
    ctx = int(shell(SCRIPTS[2], tmp_path).stdout)
    ask = "kvsize fit meta-llama/Llama-3.1-8B --gpu l40s --batch 8 --ctx"
    assert shell(f"{ask} {ctx}", tmp_path).returncode == 0
    assert shell(f"{ask} {ctx + 16}", tmp_path).returncode == 1


def test_a_script_stops_where_it_does_not_fit(tmp_path):
    done = shell(SCRIPTS[0].replace("Llama-3.1-8B", "Llama-3.1-70B"), tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "DOES NOT FIT" in (tmp_path / "fit.txt").read_text()


def test_no_answer_is_not_taken_for_one(tmp_path):
    done = shell(SCRIPTS[1].replace("--gpu h100", "--gpu h1000"), tmp_path)
    assert done.stdout == "no answer (exit 2)\n"


def test_exit_codes_are_those_of_the_errors():
    from kvsize import errors

    listed = {int(code) for code in re.findall(r"^\| (\d) \|", PAGE, re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.KvsizeError)]
    assert listed == {0, 1, *(kind.exit_code for kind in kinds if kind is not errors.KvsizeError)}
