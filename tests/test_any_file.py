"""Whatever lies in the folder: it is indexed to the letter or named, and costs no other file anything."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.files import read_file
from datasette_agent_memory.ingest import IndexSettings, update_index
from datasette_agent_memory.search import search
from datasette_agent_memory.sources import SourceFile, read_source

ODD = {
    "empty.md": b"",
    "blank.md": b" \n\n\t\n",
    "blank-long.md": b" " * 50_000 + b"\n" * 5_000,
    "crlf.md": b"# One\r\n\r\ntwo\r\n",
    "cr.md": b"# One\rtwo\rthree",
    "no-end.md": b"no newline at the end",
    "headings.md": b"# One\n## Two\n### Three\n",
    "fence.md": b"```python\n# not a heading\n```\n~~~\nopen to the end\n",
    "one-line.md": b"word " * 40_000,
    "one-letter.md": b"x" * 30_000 + b"\n\nafter\n" + b"x" * 6_400 + b"\ny",
    "emoji.md": "🎉".encode() * 5_000,
    "chinese.md": "会议记录。".encode() * 3_000,
    "nul.md": b"one\0two\n",
    "utf-16.md": "# Zwei\nwörter\n".encode("utf-16"),
    "gbk.md": "# 会议记录\n\n今天我们讨论了飞书插件配置和股票分析，决定下周一开始。\n".encode("gbk"),
    "surrogate.md": b"half \xed\xa0\x80 of a pair\n",
    "bad.md": b"\xff\xfe\xfd\xfc and text\n",
    "front.md": b"---\ntitle: x\n---\n\nbody\n",
    "front-only.md": b"---\ntitle: only\n---\n",
    "rule.md": b"---\n\nafter a rule\n\n---\n",
    "control.md": b"\x1b[31mred\x1b[0m \xe2\x80\xae\xe2\x80\x8b\n",
    "html.md": b"<script>alert(1)</script>\n</textarea>\n",
    "sql.md": b"'; drop table chunks; --\n",
}

NAMES = [
    "a b.md",
    "#%3F?.md",
    'it\'s "q".md',
    "🎉.md",
    ".md",
    "a:b|c*.md",
    "new\nline.md",
    "Case.md",
    "case.md",
    "e\u0301.md",
    "\xe9.md",
    "-d.md",
    "..md",
    "%00.md",
    "n" * 252 + ".md",
    "会" * 84 + ".md",
]


def check(root, database, report, agreement):
    """Each file is in the index to the letter, or named with a reason."""
    named = {one.path for one in report.skipped}
    with open_readonly(database) as conn:
        indexed = {path for (path,) in conn.execute("select path from files")}
        there = {path.relative_to(root).as_posix() for path in root.rglob("*.md")}
        assert indexed | named >= there and not indexed & named
        for path in indexed:
            file = read_file(conn, path)
            assert file.is_exact and file.content == read_source(SourceFile(path, root / path)).text, path
        search(conn, "word x 会议", {})
    agreement()


def test_odd_contents(workspace, index, database, agreement, tiny):
    root = workspace({f"memory/{name}": content for name, content in ODD.items()})
    report = index(root, tiny)
    check(root, database, report, agreement)
    assert report.skipped == []
    assert {one.path for one in report.guessed} == {"memory/gbk.md"}
    again = index(root, tiny)
    assert (again.files_unchanged, again.chunks_added, again.chunks_removed) == (len(ODD), 0, 0)


def test_odd_names(workspace, index, database, agreement, tiny):
    root = workspace({f"memory/{name}": f"text of {name}" for name in NAMES})
    report = index(root, tiny)
    check(root, database, report, agreement)
    assert report.files_added == len(NAMES)
    assert index(root, tiny).files_unchanged == len(NAMES)


def test_what_is_no_file_is_named(workspace, index, rows, tmp_path):
    root = workspace({"memory/a.md": "heron", "memory/folder.md/inside.md": "kettle"})
    os.mkfifo(root / "memory/pipe.md")
    (root / "memory/device.md").symlink_to("/dev/zero")
    (root / "memory/png.md").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(200)))
    report = index(root)
    assert {one.path: one.reason for one in report.skipped} == {
        "memory/device.md": "a symbolic link out of the folder, which --follow-links follows",
        "memory/pipe.md": "not a regular file",
        "memory/png.md": "binary",
    }
    report = index(root, follow_links=True)
    assert ("memory/device.md", "not a regular file") in {(one.path, one.reason) for one in report.skipped}
    assert rows("select count(*) from files") == [(2,)]


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file"), OSError(5, "Input/output error")])
def test_a_file_that_vanishes_or_fails_while_it_is_read(workspace, index, rows, monkeypatch, error):
    root = workspace({"a.md": "alpha", "b.md": "beta", "c.md": "gamma"})
    index(root)
    opened = os.open

    def fails(path, *args, **kwargs):
        if str(path).endswith("b.md"):
            raise error
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", fails)
    workspace({"a.md": "changed", "c.md": "changed too"})
    report = index(root)
    assert report.files_updated == 2 and [one.path for one in report.skipped] == ["b.md"]
    # What is gone is gone; what cannot be read stays as it was.
    kept = not isinstance(error, FileNotFoundError)
    assert rows("select count(*) from chunks where path = 'b.md'") == [(int(kept),)]


_CONTENT = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.text("ab \n\r\t#-`:\0", max_size=300).map(str.encode),
    st.tuples(st.sampled_from(["x", "ab ", "会", "🎉", "\n", " ", "---\n"]), st.integers(1, 5_000)).map(
        lambda pair: (pair[0] * pair[1]).encode()
    ),
    st.text(max_size=50).map(lambda text: f"---\nt: {text}\n---\n{text}".encode("utf-8", "surrogatepass")),
)


@settings(max_examples=60, deadline=None)
@given(contents=st.lists(_CONTENT, min_size=1, max_size=12), again=st.lists(_CONTENT, max_size=12))
def test_any_content(contents, again):
    """A first run, and one after every file has changed."""
    with tempfile.TemporaryDirectory() as folder:
        root, database = Path(folder, "root"), Path(folder, "memory.db")
        root.mkdir()
        (root / "steady.md").write_text("heron")
        for versions in (contents, again):
            for number, content in enumerate(versions):
                (root / f"{number}.md").write_bytes(content)
            sizes = IndexSettings(root, chunk_tokens=40, chunk_overlap=8)
            check(root, database, update_index(database, sizes), lambda: None)
            with open_readonly(database) as conn:
                for table in ("chunks", "chunks_fts"):
                    ids = {row[0] for row in conn.execute(f"select id from {table}")}
                    assert len(ids) == conn.execute("select count(*) from chunks").fetchone()[0]
                assert conn.execute("pragma integrity_check").fetchone()[0] == "ok"
