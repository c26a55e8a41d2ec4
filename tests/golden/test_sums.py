"""Printed columns add up to printed totals, products to bytes, and no line runs past the terminal's edge."""

import io
import json
import math
import re
from contextlib import redirect_stdout

import pytest

from kvsize.build import cache_doc, size_doc
from kvsize.cli import run
from kvsize.documents import RowDoc
from kvsize.engines import Workload, load_engine
from kvsize.errors import KvsizeError
from kvsize.source import catalogue, load
from kvsize.tables import page
from kvsize.tables.page import View, plain, width_of
from kvsize.tables.size import Beside, part_rows
from kvsize.tables.units import UNITS

FIGURE = re.compile(r"(?<![\d.,])(-?[\d,]+(?:\.\d+)?) (TiB|GiB|MiB|KiB|B)\b")
SIZES = {unit.name: unit.size for unit in UNITS}
COMMANDS = (
    "meta-llama/Llama-3.1-8B --ctx 32k",
    "google/gemma-3-27b-it --ctx 128k --batch 4",
    "google/gemma-3-27b-it --ctx 128k --batch 4 --bytes",
    "google/gemma-3-27b-it --ctx 32k --cache paged",
    "Qwen/Qwen3-Next-80B-A3B-Instruct --ctx 32k",
    "ai21labs/AI21-Jamba-1.5-Mini --ctx 32k --batch 3",
    "google/gemma-3n-E4B-it --ctx 32k",
    "tiiuae/Falcon-H1-34B-Instruct --ctx 100",
    "openai/whisper-large-v3 --ctx 448 --encoder-ctx 1500",
)


def printed(command):
    out = io.StringIO()
    with redirect_stdout(out):
        assert run(command.split()) == 0
    return out.getvalue()


def blocks(text):
    """The page's blocks: header, figures, parts, margin."""
    return [block.splitlines() for block in text.split("\n\n")]


def figure(line):
    """The last figure of a line that stands before its product or remark, in bytes, and half its last digit."""
    number, unit = FIGURE.findall(line)[0]
    decimals = len(number.partition(".")[2])
    return float(number.replace(",", "")) * SIZES[unit], SIZES[unit] * 0.5 * 10**-decimals if decimals else 0.0


def product(line):
    """A printed product as an integer: `4 x 10 x 131,072 x 8,192 B`."""
    found = re.search(r"(?:[\d,]+ x +)*(?:[\d,]+|\([\d, x+]+\)) B$", line)
    text = found[0].removesuffix(" B").replace(",", "")
    assert re.fullmatch(r"[\d x+()]+", text)
    return eval(text.replace("x", "*"))


@pytest.mark.parametrize("command", COMMANDS)
def test_printed_parts_add_up_to_the_printed_total(command):
    _, figures, parts, *_ = blocks(printed(command))
    column = [line for line in figures if line.strip().startswith("while decoding")]
    number, unit = FIGURE.findall(column[0])[-1]
    total = float(number.replace(",", "")) * SIZES[unit]
    found = [figure(re.sub(r"^  \D*?(?=[▏▎▍▌▋▊▉█]|\d[\d,.]* \w?i?B)", "", line)) for line in parts]
    slack = sum(half for _, half in found) + (SIZES[unit] * 0.005 if "." in number else 0)
    assert abs(sum(value for value, _ in found) - total) <= slack


@pytest.mark.parametrize("command", COMMANDS)
def test_printed_products_add_up_to_the_exact_total(command):
    parts = blocks(printed(command))[2]
    document = json.loads(printed(f"{command} --json"))
    assert sum(map(product, parts)) == document["cache"]["total_bytes"]


@pytest.mark.parametrize("command", COMMANDS)
def test_decimals_line_up(command):
    figures = [line for line in blocks(printed(command))[1] if FIGURE.search(line)]
    ends = {tuple(match.start(2) for match in FIGURE.finditer(line)) for line in figures}
    assert len(ends) == 1


def documents():
    """Every model of the catalogue at a short, a usual and a long context."""
    engine = load_engine("transformers")
    from kvsize.architectures import geometry

    for name in catalogue():
        files = load(name, offline=True)
        for tokens, sequences in ((7, 1), (32_768, 3), (1_000_003, 1)):
            try:
                model = geometry(files.config)
                workload = Workload(tokens, sequences, "bfloat16", "bfloat16", 1500)
                sizes = [engine.size(model, workload, engine.Options())]
                more = engine.size(
                    model, Workload(tokens + 1, sequences, "bfloat16", "bfloat16", 1500), engine.Options()
                )
            except KvsizeError:
                continue
            row = RowDoc(tokens, sequences, cache_doc(sizes[0], tokens, more))
            yield size_doc(files, model, workload, sizes, [row], options=engine.Options())


def test_the_whole_catalogue_adds_up_and_fits():
    seen = 0
    for document in documents():
        seen += 1
        parts = part_rows(document)
        assert sum(value for _, value, _ in parts) == document.cache.total_bytes, document.model.id
        if not any("shapes" in text for _, _, text in parts) and document.cache.total_bytes:
            assert sum(product(text) for _, _, text in parts) == document.cache.total_bytes, document.model.id
        cache = document.cache
        assert cache.fixed_bytes + cache.marginal_bytes_per_token * document.workload.ctx == cache.total_bytes
        for width in (60, 80, 132):
            lines = page(document, View(width), Beside())
            assert max(map(width_of, lines)) <= width, (document.model.id, plain(lines))
    assert seen > 3 * 400


def test_the_bar_is_in_proportion():
    from kvsize.tables.page import bar

    assert bar(0, 10, 20) == ""
    assert bar(1, 10**12, 20) == "▏"
    for value in range(1, 101):
        drawn = bar(value, 100, 20)
        assert len(drawn) == math.ceil(value * 20 * 8 // 100 / 8) or value * 160 < 100
