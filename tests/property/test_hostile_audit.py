"""Whatever a config holds, an audit and a claim about it are answered or refused."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the suite has no packages

import hostile

from kvsize.audit.claims import claim_doc, parse_figure
from kvsize.audit.tally import audit_doc
from kvsize.errors import KvsizeError
from kvsize.jsonfile import parse
from kvsize.render import render
from kvsize.source import ModelFiles


def documents(seed):
    files = ModelFiles("mutated", parse(hostile.mutated(seed), "stdin"), "stdin")
    yield audit_doc([files], 1000, 2)
    yield claim_doc(files, parse_figure("3 GiB"), 32_768, 2)
    yield claim_doc(files, parse_figure("3.1415 MB"), 1000, 1)


@pytest.mark.parametrize("start", [0, 40_000])
def test_mutated_configs_are_answered_or_refused(start):
    answered = 0
    for seed in range(start, start + 60):
        try:
            found = list(documents(seed))
        except KvsizeError:
            continue
        answered += 1
        for document in found:
            assert all(render(document, output) for output in ("json", "table", "csv", "markdown"))
    assert answered > 10
