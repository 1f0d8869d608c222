"""Which part of a text is shown, and what is marked in it."""

import pytest

from datasette_agent_memory.snippets import best_part, find_matches

FILLER = "Nothing of interest happens on this line of the note.\n"


def marked(text, query, chars=400):
    (spans,) = find_matches([text], query)
    part = best_part(text, spans, chars)
    assert len(part.text) <= chars
    return part, [part.text[start:stop] for start, stop in part.spans]


@pytest.mark.parametrize(
    "text, query, words",
    [
        ("The migrations were migrated", "migration", ["migrations", "migrated"]),
        ("at the Café", "cafe", ["Café"]),
        ("今天讨论了数据库迁移", "数据库", ["数据库"]),
        ("重跑gen-itgc后", "gen", []),
        ("what is in the box", "what is in the box", ["box"]),
        ("to be or not to be", "to be", ["to", "be", "to", "be"]),
        ("a < b & c", "b", ["b"]),
        ("x \ue000 y \ue001 z y", "y", ["y", "y"]),
        ("", "x", []),
        ("x", "", []),
    ],
)
def test_words_are_marked_as_the_index_finds_them(text, query, words):
    assert marked(text, query)[1] == words


def test_the_part_is_where_the_different_words_are_nearest():
    text = "heron\n" + FILLER * 20 + "The heron and the stork met.\n" + FILLER * 20
    part, words = marked(text, "heron stork")
    assert words == ["heron", "stork"]
    assert part.lines_before == 21 and part.is_cut_before and part.is_cut_after
    assert part.text.startswith("The heron")


def test_a_cut_falls_between_words_and_is_shown():
    part, _ = marked("word " * 300, "nothing")
    assert not part.is_cut_before and part.is_cut_after
    assert part.text.endswith("word") and part.segments()[-1] == ("…", False)
    assert len(marked("漢" * 1000, "字")[0].text) == 400


def test_a_short_text_is_whole():
    part, _ = marked("one line", "line")
    assert part.segments() == [("one ", False), ("line", True)]
