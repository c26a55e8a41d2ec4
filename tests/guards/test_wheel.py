"""What is published: a wheel that answers outside the checkout without test tools; an sdist that builds the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import kvsize

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A process outside this environment: no PYTHONPATH, no virtual environment of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "HF_"))}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**kept, "HF_HUB_OFFLINE": "1", "HF_HOME": str(cwd / "hf"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )


def done(*command: str | Path, cwd: Path) -> str:
    finished = run(*command, cwd=cwd)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return finished.stdout


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the build backend that pyproject.toml names."""
    folder = tmp_path_factory.mktemp("builder")
    done(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    installed = run(python, "-m", "pip", "install", "--quiet", *PROJECT["build-system"]["requires"], cwd=folder)
    if installed.returncode:
        pytest.skip(f"hatchling cannot be installed here: {installed.stderr.strip().splitlines()[-1]}")
    return python


@pytest.fixture(scope="module")
def dist(builder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with this checkout's wheel and sdist."""
    folder = tmp_path_factory.mktemp("dist")
    done(builder, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(builder: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel and what it requires, nothing else; not even pip."""
    folder = tmp_path_factory.mktemp("installed")
    done(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    done(builder, "-m", "pip", "--python", python, "install", "--quiet", wheel, cwd=folder)
    return folder


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def shipped() -> set[str]:
    """Every file that the wheel is made of, under its name in the wheel."""
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "kvsize").rglob("*") if path.is_file()}
    configs = {
        f"kvsize/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "configs").rglob("*") if path.is_file()
    }
    return {name for name in package | configs if "__pycache__" not in name}


def test_the_wheel_holds_the_package_and_its_data_and_nothing_else(wheel):
    own = {name for name in names(wheel) if not name.startswith(f"kvsize-{kvsize.__version__}.dist-info/")}
    assert own == shipped()
    assert own >= {
        "kvsize/py.typed",
        "kvsize/data/model_types.json",
        "kvsize/configs/gpus.toml",
        "kvsize/configs/models/aliases.json",
        "kvsize/configs/models/meta-llama--Llama-3.1-8B.json",
    }
    assert wheel.stat().st_size < 4 << 20


def test_the_wheel_requires_what_a_user_needs_and_no_test_tools(wheel):
    with zipfile.ZipFile(wheel) as archive:
        info = f"kvsize-{kvsize.__version__}.dist-info"
        metadata = message_from_string(archive.read(f"{info}/METADATA").decode())
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
        assert archive.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    plain = sorted(line.partition(">")[0] for line in metadata.get_all("Requires-Dist") if "extra ==" not in line)
    assert plain == ["huggingface-hub", "pydantic", "rich", "typer"]
    assert metadata["Requires-Python"] == PROJECT["project"]["requires-python"]
    assert "kvsize = kvsize.__main__:main" in entry_points


def test_the_sdist_holds_what_pyproject_says(dist):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        files = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    told = {*PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"], "pyproject.toml", "PKG-INFO"}
    assert {name.split("/")[0] for name in files} - {".gitignore"} == told
    for name in ("tests/guards/test_wheel.py", "validate/truth/transformers-5.23.0-hub.jsonl", "LICENSE"):
        assert name in files
    assert not [name for name in files if "__pycache__" in name or "/." in name]


def test_the_sdist_builds_the_same_wheel(builder, dist, wheel, tmp_path):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    done(builder, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "out", cwd=source)
    (again,) = (tmp_path / "out").glob("*.whl")
    assert names(again) == names(wheel)


def test_an_installed_wheel_answers_from_its_own_catalogue(installed):
    document = json.loads(
        done(installed / "venv/bin/kvsize", "meta-llama/Llama-3.1-8B", "--ctx", "32k", "--json", cwd=installed)
    )
    assert document["cache"]["total_bytes"] == 4_294_967_296
    assert document["model"]["origin"] == "catalogue"


@pytest.mark.parametrize("arguments", ["models --json", "gpus --json", "schema", "layers openai/gpt-oss-120b --json"])
def test_an_installed_wheel_finds_its_data(installed, arguments):
    json.loads(done(installed / "venv/bin/kvsize", *arguments.split(), cwd=installed))


def test_the_installed_environment_is_clean(installed):
    script = (
        "import importlib.util as u; print(*(n for n in ('pytest', 'hypothesis', 'torch', 'pip') if u.find_spec(n)))"
    )
    assert done(installed / "venv/bin/python", "-c", script, cwd=installed).split() == []
    where = done(installed / "venv/bin/python", "-c", "import kvsize; print(kvsize.__file__)", cwd=installed)
    assert Path(where.strip()).is_relative_to(installed)
