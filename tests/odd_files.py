"""Files as users have them, and as nobody should, and what must be true when they are indexed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.files import read_file
from datasette_agent_memory.ingest import IndexSettings, update_index
from datasette_agent_memory.report import IndexReport
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

_CONTENT = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.text("ab \n\r\t#-`:\0", max_size=300).map(str.encode),
    st.tuples(st.sampled_from(["x", "ab ", "会", "🎉", "\n", " ", "---\n"]), st.integers(1, 5_000)).map(
        lambda pair: (pair[0] * pair[1]).encode()
    ),
    st.text(max_size=50).map(lambda text: f"---\nt: {text}\n---\n{text}".encode("utf-8", "surrogatepass")),
)
#: The contents of the files of a folder.
CONTENTS = st.lists(_CONTENT, min_size=1, max_size=12)


def check(root: Path, database: Path, report: IndexReport) -> None:
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


def survive(contents: Sequence[bytes], again: Sequence[bytes]) -> int:
    """Index files with these contents, and once more with others; how many were indexed or named."""
    with tempfile.TemporaryDirectory() as folder:
        root, database = Path(folder, "root"), Path(folder, "memory.db")
        root.mkdir()
        for versions in (contents, again):
            for number, content in enumerate(versions):
                (root / f"{number}.md").write_bytes(content)
            settings = IndexSettings(root, chunk_tokens=40, chunk_overlap=8)
            check(root, database, update_index(database, settings))
            with open_readonly(database) as conn:
                count = conn.execute("select count(*) from chunks").fetchone()[0]
                for table in ("chunks", "chunks_fts"):
                    assert len({row[0] for row in conn.execute(f"select id from {table}")}) == count
                assert conn.execute("pragma integrity_check").fetchone()[0] == "ok"
            again_report = update_index(database, settings)
            assert not (again_report.files_added or again_report.files_updated or again_report.files_removed)
        return len(contents) + len(again)
