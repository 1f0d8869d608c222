"""What a file says of itself stands beside its text, and not in it."""

import json

import pytest

from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.embeddings.chain import Providers
from datasette_agent_memory.files import index_of, read_file
from datasette_agent_memory.front_matter import front_matter
from datasette_agent_memory.ready_queries import ready_queries
from datasette_agent_memory.search import search


@pytest.mark.parametrize(
    "text, properties",
    [
        ("---\ntitle: Heron\ntags: [a, b]\n---\nBody", {"title": "Heron", "tags": ["a", "b"]}),
        ("---\r\ntime: 12:30\r\ndone: no\r\n---\r\nBody\r\n", {"time": "12:30", "done": "no"}),
        ("---\ntitle: x\n...\nBody", {"title": "x"}),
        ("---  \ntitle: x\n---\t\nBody", {"title": "x"}),
        # Not quite YAML, as people write it.
        ("---\ntitle: Re: the plan\ntags:\n- a\n---\nBody", {"title": "Re: the plan", "tags": "- a"}),
        ("---\nmap: {a: {b: c}}\n---\nBody", {"map": {"a": {"b": "c"}}}),
        ("---\nrun: !!python/object:os.system ls\n---\nBody", {"run": "ls"}),
    ],
)
def test_front_matter_is_taken(text, properties):
    block = front_matter(text)
    assert block.properties == properties
    assert text == block.text + text[len(block.text) :] and text[len(block.text) :].startswith("Body")
    assert block.lines == block.text.count("\n")


@pytest.mark.parametrize(
    "text",
    [
        "---\n\nA rule, and text.\n\n---\nmore",
        "---\nSome text\n---\nmore",
        "---\n- a list\n---\nmore",
        "---\ntitle: never ends\n",
        "---\ntitle: nothing else\n---\n",
        "---\ntitle: nothing else\n---\n \n\n",
        "----\ntitle: x\n---\nmore",
        "text\n---\ntitle: x\n---\n",
        "---\n---\nmore",
        "---\n" + "[" * 30_000 + "\n---\nmore",
        "---\n? [a, b]\n: c\n---\nmore",
        "---\na: &x [1]\nb: [*x, *x]\nthird line\n---\nmore",
        "---\n" + "title: x\n" * 20_000 + "---\nmore",
        "",
        "---",
    ],
)
def test_what_only_looks_like_it_stays_text(text):
    assert front_matter(text) is None


@pytest.fixture
def note(workspace, index, tiny):
    root = workspace(
        {"a.md": "---\ntitle: Kingfisher\ntags: [rivière, 皮划艇]\n---\n# Log\n\nThe heron stood still.\n"}
    )
    index(root, tiny)
    return root / "a.md"


def test_it_is_searched_and_not_in_the_body(note, database, rows, tiny):
    assert rows("select text, start_line, end_line from chunks") == [
        ("# Log\n\nThe heron stood still.\n", 5, 8)
    ]
    assert not any("Kingfisher" in text for text in tiny.embedded)
    with open_readonly(database) as conn:
        for q in ("Kingfisher", "riviere", "划艇", "heron"):
            assert [hit.path for hit in search(conn, q, {"mode": "keyword"}).hits] == ["a.md"], q
        assert not search(conn, "tags", {"mode": "keyword"}).hits
    ((properties,),) = rows("select properties from file_details")
    assert json.loads(properties) == {"title": "Kingfisher", "tags": ["rivière", "皮划艇"]}


def test_what_it_says_is_no_weak_match(note, database):
    with open_readonly(database) as conn:
        for q in ("kingfisher", "皮划艇"):
            assert search(conn, q, {"mode": "keyword"}).weak is None, q


def test_a_ready_query_lists_it(note, database):
    with open_readonly(database) as conn:
        queries = ready_queries(conn, index_of(conn), {}, Providers())
        (query,) = (one for one in queries if one.name == "agent_memory_front_matter")
        assert [tuple(row) for row in conn.execute(query.sql)] == [
            ("a.md", "tags", "rivière"),
            ("a.md", "tags", "皮划艇"),
            ("a.md", "title", "Kingfisher"),
        ]


def test_the_file_is_whole_with_it(note, database):
    with open_readonly(database) as conn:
        file = read_file(conn, "a.md")
    note.unlink()
    assert file.is_exact and file.content.startswith("---\ntitle: Kingfisher\n")


@pytest.mark.parametrize("escape", [r"\uD83D\uDE80", r"\ud800", r"\UFFFFFFFF", r"\x00"])
def test_odd_escapes_cost_no_other_file_anything(workspace, index, rows, tiny, escape):
    root = workspace({"a.md": f'---\ntitle: "Ship it {escape}"\n---\nbody\n', "b.md": "heron"})
    report = index(root, tiny)
    assert report.files_added == 2 and report.skipped == []
    assert rows("select path from files order by path") == [("a.md",), ("b.md",)]
    assert index(root, tiny).files_unchanged == 2


def test_a_change_of_it_alone_is_found(note, index, rows, tiny, database, agreement):
    tiny.embedded.clear()
    note.write_text(note.read_text().replace("Kingfisher", "Bittern"))
    assert index(note.parent, tiny).files_updated == 1 and tiny.embedded == []
    with open_readonly(database) as conn:
        assert search(conn, "bittern", {"mode": "keyword"}).hits
        assert not search(conn, "kingfisher", {"mode": "keyword"}).hits
    note.write_text("The heron is gone.\n")
    index(note.parent, tiny)
    assert rows("select count(*) from file_details") == [(0,)] and agreement() == 1
