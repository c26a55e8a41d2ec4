"""README's commands, copied into a new virtual environment that knows nothing but the package index."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BUILT = shutil.ignore_patterns(".git", ".*_cache", ".hypothesis", "__pycache__", ".venv", "dist", "build")

pytestmark = pytest.mark.sweep  # minutes, and a package index


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A copy of the checkout, and a shell in it whose python is a new virtual environment's."""
    root = tmp_path_factory.mktemp("fresh")
    shutil.copytree(ROOT, root / "kvsize", ignore=BUILT)
    subprocess.run([sys.executable, "-m", "venv", root / "venv"], check=True)
    kept = ("PATH", "HOME", "TMPDIR", "PIP_INDEX_URL", "PIP_CERT", "HTTPS_PROXY", "https_proxy", "SSL_CERT_FILE")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"PATH": f"{root / 'venv' / 'bin'}:{environment['PATH']}", "HF_HUB_OFFLINE": "1"}

    def shell(commands):
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=root / "kvsize",
            env=environment,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )

    return shell


def test_the_first_command_gives_the_answer(fresh):
    first = re.search(r"^```sh\n(.*?)```", README, re.DOTALL | re.MULTILINE)[1]
    done = fresh(first)
    assert done.returncode == 0, done.stderr
    assert "4.00 GiB (4,294,967,296 bytes) for 1 sequence of 32,768 tokens" in done.stdout


def test_the_test_command_passes_without_torch(fresh):
    command = re.search(r"<!-- test-command -->\n```sh\n(.*?)```", README, re.DOTALL)[1]
    done = fresh(f"{command}\npip list --format freeze")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout or "100%" in done.stdout
    assert "torch" not in done.stdout.partition("annotated-types")[2]
