"""Boundaries like the peer's, and what holds for any text."""

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasette_agent_memory.chunking import chunk_markdown, join_chunks, weighted_length

# What OpenClaw 2026.3.31 makes of texts: [start line, end line, UTF-16 length, SHA-256] a chunk.
CASES = json.loads(gzip.decompress((Path(__file__).parent / "data" / "chunk_markdown.json.gz").read_bytes()))

# Few characters, so that lines repeat, overlap and are cut in every way.
texts = st.text(st.sampled_from("ab \n\t\r漢字かな🚀𠮷é"), max_size=400)
sizes = st.tuples(st.integers(1, 40), st.integers(0, 39)).filter(lambda size: size[1] < size[0])


def described(chunk):
    length = len(chunk.text.encode("utf-16-le")) // 2
    return [chunk.start_line, chunk.end_line, length, hashlib.sha256(chunk.text.encode()).hexdigest()]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_boundaries_are_those_of_openclaw(number):
    case = CASES[number]
    assert [described(chunk) for chunk in chunk_markdown(case["text"], **case["cfg"])] == case["cjk_weighted"]


def test_a_cut_inside_a_pair_is_moved_behind_it_where_whole_characters_are_asked_for():
    text = "a" + "🚀" * 900
    as_the_peer = "".join(chunk.text for chunk in chunk_markdown(text, 400, 0))
    assert "\ufffd" in as_the_peer
    whole = [chunk.text for chunk in chunk_markdown(text, 400, 0, whole_characters=True)]
    assert len(whole) > 1 and "".join(whole).replace("\n", "") == text


@given(texts, sizes)
def test_every_line_with_text_is_covered_by_its_number(text, size):
    chunks = list(chunk_markdown(text, *size, whole_characters=True))
    for number, line in enumerate(text.split("\n"), 1):
        held = "".join(chunk.text for chunk in chunks if chunk.start_line <= number <= chunk.end_line)
        assert all(character in held for character in line)


@given(texts, sizes)
def test_ranges_are_in_the_text_and_in_order(text, size):
    lines = text.split("\n")
    chunks = list(chunk_markdown(text, *size))
    assert chunks[0].start_line == 1 and chunks[-1].end_line == len(lines)
    for chunk, after in zip(chunks, [*chunks[1:], None], strict=True):
        assert 1 <= chunk.start_line <= chunk.end_line <= len(lines)
        if after:
            assert chunk.start_line <= after.start_line <= chunk.end_line + 1 <= after.end_line + 1


@given(texts, sizes)
def test_a_chunk_of_whole_lines_is_those_lines(text, size):
    lines = text.split("\n")
    for chunk in chunk_markdown(text, *size):
        parts = chunk.text.split("\n")
        if len(parts) == chunk.end_line - chunk.start_line + 1 and max(map(weighted_length, lines)) < 32:
            assert parts == lines[chunk.start_line - 1 : chunk.end_line]


@given(texts, st.integers(1, 40))
def test_without_overlap_a_chunk_is_within_its_bound(text, tokens):
    bound = max(32, 4 * tokens)
    for chunk in chunk_markdown(text, tokens, 0, whole_characters=True):
        # A character that is never cut may stick out by its own weight.
        assert weighted_length(chunk.text) <= bound + 3


@given(texts, sizes)
def test_no_character_is_lost_or_made(text, size):
    for chunk in chunk_markdown(text, *size, whole_characters=True):
        assert set(chunk.text) <= set(text) | {"\n"}
        chunk.text.encode()


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=60)))
def test_joined_chunks_are_the_text(lines):
    text = "\n".join(lines)
    assert join_chunks(list(chunk_markdown(text, 20, 5, whole_characters=True)), 20, 5) == text


def test_joined_chunks_of_a_cut_line_of_heavy_characters_are_the_lines():
    text = ("😀漢" * 2000)[:1070] + "\n" + "x" * 50
    assert join_chunks(list(chunk_markdown(text, whole_characters=True))) == text


def test_joined_chunks_of_a_cut_line_are_the_line():
    line = " ".join(f"word{number}" for number in range(2000))
    text = f"# Long\n\n{line}\n\nafter\n"
    chunks = list(chunk_markdown(text))
    assert len(chunks) > 5
    assert join_chunks(chunks) == text
