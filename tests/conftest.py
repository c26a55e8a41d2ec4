"""Nothing in the tests may reach the network, nor the user's own Hub cache or token."""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines differ
settings.load_profile("untimed")


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="Write what is printed now as what is expected.")


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path_factory):
    home = tmp_path_factory.getbasetemp() / "hf-home"
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_CACHE", "HUGGING_FACE_HUB_TOKEN", "KVSIZE_CATALOGUE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
