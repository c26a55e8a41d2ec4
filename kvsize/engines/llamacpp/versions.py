"""llama.cpp's builds: how contexts are padded and caches laid out, as ranges.

Run: b6173 (August 2025), b8560, b11434 and b11739. In between, padding was taken out (#16812) and put back (#17046),
and MLA lost its V (#19067): which build brought what is not known here, so none is guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvsize.errors import UnsupportedError, UsageError

VERSION = "b11739"

STREAMS = 6000  # every sequence its own stream since #14363, July 2025
AUTO_FLASH = 6300  # flash_attn got its "auto" behind this
MODERN = 8560
MLA_SAME_TYPES = INDEX_CACHES = 11434
RAN = (6173, 8560)
RAN_BETWEEN = range(11434, 11740)

# What b6173 could load. llama.cpp@b6173 src/llama-arch.cpp
KNOWN_THEN = frozenset(
    """
    arcee arctic arwkv7 baichuan bailingmoe bert bitnet bloom chameleon chatglm codeshell cohere2 command-r dbrx deci
    deepseek deepseek2 dots1 dream ernie4_5 ernie4_5-moe exaone exaone4 falcon falcon-h1 gemma gemma2 gemma3 gemma3n
    glm4 glm4moe gpt-oss gpt2 gptneox granite granitehybrid granitemoe grok hunyuan-dense hunyuan-moe internlm2 jais
    jamba jina-bert-v2 lfm2 llada llama llama4 mamba mamba2 minicpm minicpm3 mpt nemotron neo-bert nomic-bert
    nomic-bert-moe olmo olmo2 olmoe openelm orion phi2 phi3 phimoe plamo plamo2 plm qwen qwen2 qwen2moe qwen2vl qwen3
    qwen3moe refact rwkv6 rwkv6qwen2 rwkv7 smallthinker smollm3 stablelm starcoder starcoder2 t5 t5encoder
    wavtokenizer-dec xverse
    """.split()
)


@dataclass(frozen=True, slots=True)
class Build:
    """One build's rules. `old`: those of August 2025."""

    number: int

    @property
    def name(self) -> str:
        """As releases are named."""
        return f"b{self.number}"

    @property
    def old(self) -> bool:
        """Padding of 32 or 256, MLA with V, hybrids with a whole context a sequence; flash attention by request."""
        return self.number < MODERN

    @property
    def ran(self) -> bool:
        """Whether its neighbourhood was run: these very builds, and what lies between the two newest."""
        return self.number in RAN or self.number in RAN_BETWEEN


def build(text: str) -> Build:
    """A build given as b11739 or 11739; anything newer is sized as the newest.

    Raises:
        UsageError: it is no build.
        UnsupportedError: its rules are not known.
    """
    match = re.fullmatch(r"b?(\d{4,6})", text)
    if match is None:
        raise UsageError("a build of llama.cpp looks like b11739", got=text[:40])
    number = int(match[1])
    if number < STREAMS or AUTO_FLASH < number < MODERN:
        hint = "Modelled: b6000 to b6300 (as b6173, August 2025), and b8560 or later."
        raise UnsupportedError(f"the cache rules of llama.cpp b{number} are not known", hint=hint)
    return Build(number)


def check_arch(rules: Build, arch: str, indexed: bool) -> None:
    """Refuse what that build could not load, or laid out in a way that is not known.

    Raises:
        UnsupportedError: with the builds that will do.
    """
    if rules.old and arch not in KNOWN_THEN:
        raise UnsupportedError(f"llama.cpp {rules.name} has no architecture {arch}", hint=f"Use llama.cpp@{VERSION}.")
    if indexed and rules.number < INDEX_CACHES:
        what = f"the index caches of llama.cpp {rules.name} are not known"
        raise UnsupportedError(what, hint=f"They changed until b{INDEX_CACHES}: use llama.cpp@{VERSION}.")
