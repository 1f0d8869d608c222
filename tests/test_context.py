"""What a question names that the text of its chunk does not say."""

import pytest

from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.context import context_terms
from datasette_agent_memory.search import search

FILLER = "Nothing of interest was said here. " * 60

NOTES = {
    "memory/2026-01-05.md": "# Monday\n\nThe kettle broke.\n",
    "memory/2026-02-09-standup.md": "We met and talked.\n",
    "memory/projects/harbor/setup.md": "Run it twice.\n",
    "memory/tools.md": f"# Tools\n\n## Compiler\n\n{FILLER}\nVersion 9 it is.\n\n## Debugger\n\n{FILLER}\n",
    "memory/languages.md": "The solver is written in C++ now.\n",
    "memory/zh.md": "昨天用F#写的插件\n",
    "memory/vitamins.md": "Take vitamin C daily, C with food, c. 86,000 units.\n",
    "memory/wide.md": "型番はＷＨ－４０１です。ﾊﾞｯｸｱｯﾌﾟ済み\n",
    "memory/会议.md": "没有别的。\n",
}


@pytest.fixture
def find(workspace, index, database):
    index(workspace(NOTES))

    def run(q, **given):
        with open_readonly(database) as conn:
            return [(hit.path, hit.start_line) for hit in search(conn, q, given).hits]

    return run


@pytest.mark.parametrize(
    "q, path",
    [
        ("2026-01-05", "memory/2026-01-05.md"),
        ("memory/2026-01-05.md", "memory/2026-01-05.md"),
        ("what happened on January 5, 2026?", "memory/2026-01-05.md"),
        ("5 Jan", "memory/2026-01-05.md"),
        ("1月5日", "memory/2026-01-05.md"),
        ("2026年2月9日", "memory/2026-02-09-standup.md"),
        ("二月九日开会", "memory/2026-02-09-standup.md"),
        ("1月5号发生了什么", "memory/2026-01-05.md"),
        ("January 5th", "memory/2026-01-05.md"),
        ("20260105", "memory/2026-01-05.md"),
        ("wh401", "memory/wide.md"),
        ("86000", "memory/vitamins.md"),
        ("2026-02-09-standup", "memory/2026-02-09-standup.md"),
        ("standup", "memory/2026-02-09-standup.md"),
        ("projects/harbor/setup.md", "memory/projects/harbor/setup.md"),
        ("setup.md", "memory/projects/harbor/setup.md"),
        ("会议", "memory/会议.md"),
        ("C++", "memory/languages.md"),
        ("F#", "memory/zh.md"),
        ("用F#写", "memory/zh.md"),
        ("WH-401", "memory/wide.md"),
        ("ＷＨ－４０１", "memory/wide.md"),
        ("バックアップ", "memory/wide.md"),
        ("ﾊﾞｯｸｱｯﾌﾟ", "memory/wide.md"),
    ],
)
def test_a_path_a_date_or_a_form_finds_its_note_first(find, q, path):
    assert find(q)[0][0] == path
    assert find(q, match="any")[0][0] == path


def test_a_chunk_is_found_by_the_heading_that_fell_into_the_one_before(find):
    hits = find("compiler version", k=2)
    assert [path for path, _ in hits] == ["memory/tools.md"] * 2
    assert hits[0][1] > 1


def test_headings_above_a_chunk():
    chunks = [
        (1, 3, "# A\n\n## B #"),
        (3, 5, "## B #\ntext\n```"),
        (6, 8, "# no heading\n```\n### C"),
        (9, 9, "of C"),
        (10, 11, "## D\nof D"),
        (12, 12, "of D"),
    ]
    assert context_terms("notes.md", chunks) == [
        "notes.md",
        "notes.md A",
        "notes.md A B",
        "notes.md A B C",
        "notes.md A",
        "notes.md A D",
    ]


def test_a_heading_of_odd_signs():
    blank = "# zebra" + " " * 1560 + "b"
    assert context_terms("n.md", [(1, 1, blank), (2, 2, "x")])[1].split() == ["n.md", "zebra"]
    for line in ("#", "# ", "# #", "####### seven", "#no"):
        assert context_terms("n.md", [(1, 1, line), (2, 2, "x")])[1] == "n.md", line


def test_segments_of_a_long_line_don_t_hide_the_headings_after_it():
    chunks = [(1, 1, "x\ny\nz"), (1, 2, "z\nw\n# E"), (3, 3, "of E")]
    assert context_terms("n.md", chunks)[-1] == "n.md E"
