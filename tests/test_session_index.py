"""Transcripts in the index: beside the memory, with the lines of their files, and by their tails."""

import json
import os
import re

import pytest

from datasette_agent_memory import ingest
from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.files import read_file
from datasette_agent_memory.search import search
from datasette_agent_memory.sources import SourceError


def line(role, text):
    return json.dumps({"type": "message", "message": {"role": role, "content": text}}) + "\n"


TOOL = json.dumps({"type": "message", "message": {"role": "toolResult", "content": "secret tool"}}) + "\n"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "sessions"
    folder.mkdir()
    (folder / "one.jsonl").write_text(
        line("user", "Where is the heron?") + TOOL + line("assistant", "By it.")
    )
    return folder


def test_they_are_found_with_the_lines_of_their_files(workspace, index, rows, folder, tiny, agreement):
    index(workspace({"MEMORY.md": "kettle"}), tiny, sessions=[folder])
    assert rows("select path, source, start_line, end_line, text from chunks where source = 'sessions'") == [
        ("sessions/one.jsonl", "sessions", 1, 3, "User: Where is the heron?\nAssistant: By it.")
    ]
    ((meta,),) = rows("select value from meta where key = 'memory_index_meta_v1'")
    assert json.loads(meta)["sources"] == ["memory", "sessions"]
    assert agreement() == 2 and not any("secret tool" in text for text in tiny.embedded)


def test_their_text_has_each_line_at_its_place(workspace, index, folder, database):
    index(workspace({"MEMORY.md": "kettle"}), sessions=[folder])
    with open_readonly(database) as conn:
        file = read_file(conn, "sessions/one.jsonl")
        assert file.lines == ["User: Where is the heron?", "", "Assistant: By it."]
        assert file.is_exact and file.on_disk == "same"
        (folder / "one.jsonl").write_text(line("user", "changed"))
        assert read_file(conn, "sessions/one.jsonl").on_disk == "changed"
        (folder / "one.jsonl").unlink()
        file = read_file(conn, "sessions/one.jsonl")
        assert file.on_disk == "missing" and file.is_exact and "heron" in file.content


def test_they_are_remembered_and_pruned_like_others(workspace, index, folder, rows, tmp_path):
    root = workspace({"MEMORY.md": "kettle"})
    index(root, sessions=[folder])
    (folder / "two.jsonl").write_text(line("user", "An otter."))
    (folder / "one.jsonl").unlink()
    report = index(root)
    assert (report.files_added, report.files_removed) == (1, 1)
    folder.rename(tmp_path / "away")
    report = index(root)
    assert report.files_removed == 0 and report.skipped[0].path == "sessions"
    folder.mkdir()
    assert index(root).files_removed == 0, "an empty folder in the place of one that is not mounted"
    index(root, force=True)
    assert rows("select path from files") == [("MEMORY.md",)]


def test_a_transcript_that_grows_is_indexed_by_its_tail(workspace, index, folder, rows, tiny, agreement):
    root = workspace({"MEMORY.md": "kettle"})
    text = "".join(line("user", f"Turn {number} about herons and signals.") + TOOL for number in range(150))
    (folder / "one.jsonl").write_text(text)
    index(root, tiny, sessions=[folder])
    before = rows("select rowid, id from chunks where source = 'sessions' order by rowid")
    tiny.embedded.clear()
    (folder / "one.jsonl").write_text(text + line("assistant", "The last word.") + '{"type": "mess')
    report = index(root, tiny)
    after = rows("select rowid, id from chunks where source = 'sessions' order by rowid")
    assert after[: len(before) - 1] == before[:-1] and len(before) > 3
    assert report.files_updated == 1 and len(tiny.embedded) == 1 and agreement() == len(after) + 1
    (folder / "one.jsonl").write_text(text + line("assistant", "The last word.") + line("user", "Really?"))
    assert index(root, tiny).files_updated == 1
    assert rows("select max(end_line) from chunks where source = 'sessions'") == [(302,)]


def test_two_folders_of_them_have_paths_of_their_own(workspace, index, folder, rows, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/one.jsonl").write_text(line("user", "An otter."))
    root = workspace({"MEMORY.md": "kettle"})
    index(root, sessions=[folder, tmp_path / "other"])
    first, second = (path for (path,) in rows("select path from files where source = 'sessions' order by 1"))
    assert {first, second} > {"sessions/one.jsonl"} and first != second
    report = index(root, paths=[tmp_path / "other"])
    assert report.files_unchanged == 1


def test_secrets_in_them_are_masked_everywhere(workspace, index, folder, database, tiny):
    (folder / "one.jsonl").write_text(
        line("user", "key sk-abcdefghijklmnopqrstuvwxyz123456 API_KEY=hunter2hunter2")
    )
    index(workspace({"MEMORY.md": "kettle"}), tiny, sessions=[folder])
    content = b"".join(file.read_bytes() for file in database.parent.glob("memory.db*"))
    assert b"sk-abc" in content and b"mnopqrstuv" not in content and b"hunter2hunter2" not in content


def test_a_folder_that_is_none_is_an_error(workspace, index, tmp_path):
    with pytest.raises(SourceError, match="no such folder"):
        index(workspace({"MEMORY.md": "x"}), sessions=[tmp_path / "nowhere"])


def test_sources_can_be_told_apart(workspace, index, folder, database):
    index(workspace({"MEMORY.md": "The heron stood."}), sessions=[folder])
    with open_readonly(database) as conn:
        for source, path in (("memory", "MEMORY.md"), ("sessions", "sessions/one.jsonl")):
            hits = search(conn, "heron", {"mode": "keyword", "source": source}).hits
            assert [hit.path for hit in hits] == [path]


def test_old_transcripts_are_not_read_again(workspace, index, folder, monkeypatch):
    """There are gigabytes of them; by size and time, unless all is made again."""
    root = workspace({"MEMORY.md": "kettle"})
    index(root, sessions=[folder])
    read = []
    read_source = ingest.read_source
    monkeypatch.setattr(ingest, "read_source", lambda file: read.append(file.path) or read_source(file))
    assert index(root).files_unchanged == 2 and read == ["MEMORY.md"]
    read.clear()
    os.utime(folder / "one.jsonl", (1, 1))
    assert index(root).files_unchanged == 2 and "sessions/one.jsonl" in read
    read.clear()
    index(root, force=True, keeps_paths=True)
    assert "sessions/one.jsonl" in read


@pytest.mark.asyncio
async def test_each_message_has_a_line_of_its_page(workspace, index, folder, database, make_datasette):
    index(workspace({"MEMORY.md": "kettle"}), sessions=[folder])
    page = await make_datasette(database).client.get(
        "/memory/-/agent-memory/file", params={"path": "sessions/one.jsonl"}
    )
    assert page.status_code == 200 and 'id="L1"' in page.text and 'id="L3"' in page.text
    # Lines as they are written, and not one paragraph of two speakers.
    assert not re.search(r"<p>[^<]*heron[^<]*Assistant", page.text)
