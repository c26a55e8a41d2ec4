"""Every model_type that the installed transformers generates with: its class defaults, and variants of them."""

import sys
from pathlib import Path

import pytest

REASON = "the oracle runs real transformers caches: pip install 'kvsize[probe]'"
pytest.importorskip("torch", reason=REASON)
pytest.importorskip("transformers", reason=REASON)

sys.path.insert(0, str(Path(__file__).parents[2] / "validate"))

from oracle_transformers import KNOWN, cases, check, model_types  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.sweep]

SECONDS = 600
# Types whose defaults cannot be run from text alone, whatever is set: each names why.
NOT_RUN = {
    "gemma4_assistant": "reads another model's cache",
    "gemma4_unified_assistant": "reads another model's cache",
    "pi0": "denoises actions, generates no text",
    "qwen2_5_omni": "its outer class has no forward; qwen2_5_omni_thinker is the same text model",
    "qwen3_omni_moe": "its outer class has no forward; qwen3_omni_moe_thinker is the same text model",
    "voxtral_realtime": "reads sound with every token",
    "xlnet": "takes its memories by index, which no cache class has",
    "xmod": "asks for a language, which a config need not name",
}


@pytest.mark.parametrize("name", model_types())
def test_class_defaults(name):
    ((_, raw, brief),) = cases([name], 0, True)
    saved, rows, wrong, failures = check(raw, brief, SECONDS)
    assert (saved is None) == (name in NOT_RUN), failures
    assert bool(rows) or name in NOT_RUN
    assert name in KNOWN or not wrong


@pytest.mark.parametrize("name", model_types())
def test_variants(name):
    differ = {case: wrong for case, raw, brief in cases([name], 4, False) if (wrong := check(raw, brief, SECONDS)[2])}
    assert name in KNOWN or not differ
