"""The index follows the folder, and a run that fails leaves it as it was."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from datasette_agent_memory import ingest, writer
from datasette_agent_memory.connections import DatabaseError, open_writable, sqlite3, transaction, use_wal
from datasette_agent_memory.embeddings.base import EmbeddingError, from_json
from datasette_agent_memory.sources import SourceError, UnreadableFile, sha256

NOTES = {
    "MEMORY.md": "# Long-term memory\n\n- Mara prefers tea\n",
    "memory/2026-01-05.md": "# Monday\n\nThe heron nests by the canal.\n",
    "memory/sub/plans.md": "# Plans\n\nPaint the boat.\n",
}


def found(rows, word):
    return [path for (path,) in rows("select path from chunks_fts where chunks_fts match ?", (f'"{word}"',))]


def test_a_workspace_is_indexed_by_its_conventions(workspace, index, rows, tiny, agreement):
    root = workspace(NOTES, **{"README.md": "not memory", "memory/notes.txt": "x", "memory/UPPER.MD": "x"})
    report = index(root, tiny).as_json()
    assert report["files"] == {"added": 3, "updated": 0, "unchanged": 0, "removed": 0, "skipped": []}
    assert report["chunks"] == {"added": 3, "removed": 0, "total": 3}
    assert report["embeddings"] == {"computed": 3, "cached": 0}
    assert (report["ok"], report["provider"], report["model"], report["dims"]) == (
        True,
        "tiny",
        "tiny-bag",
        32,
    )
    assert rows("select path from files order by path") == [(path,) for path in sorted(NOTES)]
    assert agreement() == 3


def test_rows_hold_what_the_design_says(workspace, index, rows, tiny):
    text = NOTES["memory/2026-01-05.md"]
    index(workspace(NOTES), tiny)
    (row,) = rows(
        "select id, source, start_line, end_line, hash, model, text, embedding from chunks where path = ?",
        ("memory/2026-01-05.md",),
    )
    assert row[1:5] == ("memory", 1, 4, sha256(text))
    assert row[0] == sha256(f"memory:memory/2026-01-05.md:1:4:{sha256(text)}:tiny-bag")
    assert row[5:7] == ("tiny-bag", text)
    assert from_json(row[7]).tolist() == tiny.embed_query(text).tolist()
    ((hash, mtime, size),) = rows("select hash, mtime, size from files where path = 'memory/2026-01-05.md'")
    assert (hash, size) == (sha256(text), len(text))
    assert mtime == os.stat(workspace() / "memory/2026-01-05.md").st_mtime_ns // 1_000_000
    meta = json.loads(rows("select value from meta where key = 'memory_index_meta_v1'")[0][0])
    assert meta["provider"] == "tiny" and meta["sources"] == ["memory"] and meta["chunkTokens"] == 400
    assert meta["providerKey"] == tiny.key and meta["vectorDims"] == 32


def test_a_folder_of_notes_is_taken_whole(workspace, index, rows):
    root = workspace({"a.md": "alpha", "deep/er/b.md": "beta", "node_modules/c.md": "no", ".git/d.md": "no"})
    index(root)
    assert rows("select path from files order by path") == [("a.md",), ("deep/er/b.md",)]


def test_blank_files_are_known_and_have_no_chunk(workspace, index, rows):
    report = index(workspace({"a.md": "", "b.md": " \n\t\n"}))
    assert report.files_added == 2 and report.chunks_total == 0
    assert rows("select count(*) from chunks") == [(0,)]
    assert index(workspace()).files_unchanged == 2


def test_nothing_changed_means_nothing_written(workspace, index, database, tiny):
    root = workspace(NOTES)
    index(root, tiny)
    before = database.read_bytes()
    tiny.embedded.clear()
    report = index(root, tiny)
    assert report.files_unchanged == 3 and report.chunks_added == report.chunks_removed == 0
    assert database.read_bytes() == before and tiny.embedded == []


def test_no_old_text_is_found_after_deleting_and_shortening(workspace, index, rows, tiny, agreement):
    """H06."""
    long = "\n".join(f"line {number} about the walrus" for number in range(200)) + "\nthe end: a narwhal\n"
    root = workspace(NOTES, **{"memory/long.md": long})
    index(root, tiny)
    assert found(rows, "narwhal") and found(rows, "heron")
    (root / "memory/2026-01-05.md").unlink()
    (root / "memory/long.md").write_text(long[: len(long) // 2])
    report = index(root, tiny)
    assert (report.files_removed, report.files_updated, report.files_unchanged) == (1, 1, 2)
    assert found(rows, "narwhal") == [] and found(rows, "heron") == []
    assert found(rows, "walrus")
    assert agreement() == report.chunks_total


def test_a_run_for_one_file_prunes_no_other(workspace, index, rows, tiny, agreement):
    """H07."""
    root = workspace({"a.md": "alpha", "b.md": "beta", "c.md": "gamma"})
    index(root, tiny, paths=[root / "a.md", root / "b.md"])
    assert rows("select path from files order by path") == [("a.md",), ("b.md",)]
    (root / "b.md").unlink()
    index(root, tiny, paths=[root / "a.md"])
    assert rows("select path from files order by path") == [("a.md",), ("b.md",)]
    report = index(root, tiny, paths=[root / "b.md"])
    assert report.files_removed == 1
    index(root, tiny)
    assert rows("select path from files order by path") == [("a.md",), ("c.md",)]
    assert agreement() == 2


def test_paths_may_be_folders_and_relative_to_the_root(workspace, index, rows):
    root = workspace(NOTES)
    index(root, paths=[Path("memory/sub")])
    assert rows("select path from files") == [("memory/sub/plans.md",)]


@pytest.mark.parametrize("path", ["nothing.md", "../elsewhere", "README.md"])
def test_a_path_that_is_no_memory_is_named(workspace, index, path):
    root = workspace(NOTES, **{"README.md": "x"})
    with pytest.raises(SourceError, match=path.replace(".", r"\.")):
        index(root, paths=[Path(path)])


def test_content_decides_and_not_the_time(workspace, index, rows, tiny):
    """H08."""
    root = workspace(NOTES)
    index(root, tiny)
    tiny.embedded.clear()
    for file in root.rglob("*.md"):
        os.utime(file)
    assert index(root, tiny).files_unchanged == 3 and tiny.embedded == []
    note = root / "memory/2026-01-05.md"
    note.write_text(note.read_text().replace("heron", "stork"))
    os.utime(note, (1_700_000_000, 1_700_000_000))
    report = index(root, tiny)
    assert report.files_updated == 1 and len(tiny.embedded) == 1
    assert found(rows, "stork") and not found(rows, "heron")


def test_moved_and_repeated_text_costs_no_embedding(workspace, index, tiny, agreement):
    root = workspace({"a.md": "the same text", "b.md": "the same text"})
    assert index(root, tiny).embeddings_computed == 1
    (root / "a.md").rename(root / "c.md")
    report = index(root, tiny)
    assert (report.files_added, report.files_removed) == (1, 1)
    assert (report.embeddings_computed, report.embeddings_cached) == (0, 1)
    report = index(root, tiny, force=True)
    assert report.embeddings_computed == 0
    assert agreement() == 2


def test_extra_paths_are_indexed_and_remembered(workspace, index, rows, tmp_path):
    root = workspace(NOTES)
    for folder in ("one/notes", "two/notes"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.md").write_text(folder)
    single = tmp_path / "single.md"
    single.write_text("single")
    index(root, extra=[tmp_path / "one/notes", tmp_path / "two/notes", single])
    paths = [path for (path,) in rows("select path from files where path like '../%' order by path")]
    assert len(paths) == 3 and "../notes/a.md" in paths
    assert all(path.endswith(("/a.md", "/single.md")) for path in paths)
    report = index(root)
    assert (report.files_unchanged, report.files_removed) == (6, 0)
    (tmp_path / "two/notes/a.md").unlink()
    assert index(root).files_removed == 1
    shutil.rmtree(tmp_path / "one")
    report = index(root)
    assert report.files_removed == 0, "a folder that is not there prunes nothing"
    assert report.skipped[0].reason.startswith("no such file or folder")


def test_an_extra_path_inside_the_root_has_its_own_path(workspace, index, rows):
    root = workspace(NOTES, **{"docs/a.md": "alpha"})
    index(root, extra=[root / "docs", root / "memory"])
    assert ("docs/a.md",) in rows("select path from files") and rows("select count(*) from files") == [(4,)]


def test_another_model_makes_the_index_again(workspace, index, rows, tiny, agreement):
    root = workspace(NOTES)
    index(root)
    assert rows("select distinct model, embedding from chunks") == [("fts-only", "[]")]
    report = index(root, tiny)
    assert report.files_updated == 3 and report.embeddings_computed == 3
    assert rows("select distinct model from chunks") == [("tiny-bag",)]
    assert agreement() == 3
    index(root)
    assert rows("select distinct model, embedding from chunks") == [("fts-only", "[]")]
    assert agreement() == 3
    assert index(root, tiny).embeddings_computed == 0


def test_other_chunk_sizes_make_the_index_again(workspace, index, rows, tiny, agreement):
    root = workspace({"a.md": "\n".join(f"line {number}" for number in range(100))})
    index(root, tiny)
    before = agreement()
    index(root, tiny, chunk_tokens=20, chunk_overlap=0)
    assert agreement() > before
    with pytest.raises(SourceError, match="without PATHs"):
        index(root, tiny, paths=[Path("a.md")])


def test_a_run_that_fails_keeps_the_index(workspace, index, rows, tiny, monkeypatch, agreement):
    root = workspace(NOTES)
    index(root)
    monkeypatch.setattr(tiny, "embed_documents", fails)
    with pytest.raises(EmbeddingError):
        index(root, tiny)
    assert rows("select distinct model from chunks") == [("fts-only",)]
    assert agreement() == 3


def fails(texts):
    raise EmbeddingError("the model is on holiday")


def test_a_provider_that_gives_bad_vectors_is_refused(workspace, index, tiny, monkeypatch):
    embed = tiny.embed_documents
    for bad, message in (
        (lambda texts: embed(texts) * np.nan, "zero or not finite"),
        (lambda texts: embed(texts)[:, :8], "shape"),
        (lambda texts: embed(texts)[:1], "shape"),
    ):
        monkeypatch.setattr(tiny, "embed_documents", bad)
        with pytest.raises(EmbeddingError, match=message):
            index(workspace(NOTES), tiny)


def test_a_rebuild_is_all_or_nothing(workspace, index, rows, tiny, monkeypatch, agreement):
    root = workspace(NOTES)
    index(root)
    insert = writer.IndexWriter._insert
    written = []

    def fails_at_the_second(self, file, embeddings, kept):
        written.append(file)
        if len(written) == 2:
            raise sqlite3.OperationalError("disk full")
        insert(self, file, embeddings, kept)

    monkeypatch.setattr(writer.IndexWriter, "_insert", fails_at_the_second)
    with pytest.raises(DatabaseError, match="disk full"):
        index(root, tiny)
    assert rows("select distinct model from chunks") == [("fts-only",)]
    assert agreement() == 3


def test_a_rebuild_does_not_lose_a_file_that_cannot_be_read(workspace, index, rows, tiny, monkeypatch):
    root = workspace(NOTES)
    index(root)
    read = ingest.read_source

    def read_but_one(file):
        if file.path == "MEMORY.md":
            raise UnreadableFile("permission denied")
        return read(file)

    monkeypatch.setattr(ingest, "read_source", read_but_one)
    with pytest.raises(SourceError, match=r"MEMORY\.md: permission denied"):
        index(root, tiny)
    report = index(root)
    assert [(skipped.path, skipped.reason) for skipped in report.skipped] == [
        ("MEMORY.md", "permission denied")
    ]
    assert found(rows, "Mara"), "what was indexed of it stays"


@pytest.mark.parametrize("provider", [None, "tiny"])
def test_what_is_no_source_any_more_leaves_the_index(workspace, index, rows, tiny, tmp_path, provider):
    """A link, a binary or a folder in the place of a file: it was looked at, and is none to index."""
    root = workspace(
        NOTES, **{"memory/bin.md": "zebra", "memory/folder.md": "gnu", "memory/deep/x.md": "okapi"}
    )
    index(root)
    (root / "memory/2026-01-05.md").rename(tmp_path / "real.md")
    (root / "memory/2026-01-05.md").symlink_to(tmp_path / "real.md")
    (root / "memory/bin.md").write_bytes(b"zebra" + bytes(range(32)))
    (root / "memory/folder.md").unlink()
    (root / "memory/folder.md").mkdir()
    (root / "memory/deep").rename(tmp_path / "deep")
    (root / "memory/deep").symlink_to(tmp_path / "deep")
    report = index(root, tiny if provider else None)
    assert report.files_removed == 4
    assert [found(rows, word) for word in ("heron", "zebra", "gnu", "okapi")] == [[]] * 4
    assert found(rows, "Mara") and rows("select count(*) from files") == [(2,)]
    index(root, tiny if provider else None, force=True)


@pytest.mark.parametrize(
    "statement", ["drop table chunks_fts", "delete from chunks_fts", "drop table chunks_vec"]
)
@pytest.mark.needs_sqlite_vec
def test_a_lost_table_is_filled_again(workspace, index, rows, tiny, database, agreement, statement):
    root = workspace(NOTES)
    index(root, tiny)
    with open_writable(database) as conn:
        conn.execute(statement)
    assert index(root, tiny).embeddings_computed == 0
    assert agreement() == 3 and found(rows, "heron")


def test_the_index_survives_a_vacuum(workspace, index, rows, tiny, database, agreement):
    """VACUUM numbers the rows of chunks anew, and not those of chunks_fts."""
    root = workspace({f"{name}.md": f"note {name}" for name in "abcdefgh"})
    index(root, tiny)
    (root / "a.md").unlink()
    (root / "c.md").unlink()
    index(root, tiny)
    with open_writable(database) as conn:
        conn.execute("vacuum")
    (root / "d.md").unlink()
    (root / "h.md").write_text("changed h")
    workspace({"new.md": "fresh"})
    index(root, tiny)
    assert agreement() == 6
    assert found(rows, "changed") == ["h.md"] and found(rows, "fresh") == ["new.md"]


@pytest.mark.needs_sqlite_vec
def test_vectors_made_without_sqlite_vec_are_taken_over(workspace, index, rows, tiny, agreement, monkeypatch):
    root = workspace(NOTES)
    with monkeypatch.context() as patch:
        patch.setattr("datasette_agent_memory.connections.load_sqlite_vec", lambda conn: False)
        index(root, tiny)
    assert not rows("select 1 from sqlite_master where name = 'chunks_vec'")
    assert index(root, tiny).embeddings_computed == 0
    assert rows("select count(*) from chunks_vec") == [(3,)]
    assert agreement() == 3


@pytest.mark.needs_sqlite_vec
def test_vectors_that_cannot_be_changed_stop_the_run(workspace, index, tiny, monkeypatch):
    root = workspace(NOTES)
    index(root, tiny)
    monkeypatch.setattr("datasette_agent_memory.connections.load_sqlite_vec", lambda conn: False)
    with pytest.raises(DatabaseError, match="pip install"):
        index(root, tiny)


def test_a_dry_run_writes_nothing(workspace, index, database, tiny):
    root = workspace(NOTES)
    report = index(root, tiny, dry_run=True)
    assert not database.exists()
    assert (report.files_added, report.embeddings_computed) == (3, 3) and report.as_json()["dry_run"] is True
    index(root, tiny)
    before = database.read_bytes()
    (root / "MEMORY.md").unlink()
    workspace({"memory/new.md": "new"})
    report = index(root, tiny, dry_run=True)
    assert (report.files_added, report.files_removed, report.files_unchanged) == (1, 1, 2)
    assert database.read_bytes() == before and len(tiny.embedded) == 3


def test_a_database_of_another_root_is_kept(workspace, index, tmp_path, rows):
    root = workspace(NOTES)
    index(root)
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.md").write_text("x")
    with pytest.raises(SourceError, match="--force"):
        index(other)
    assert rows("select count(*) from files") == [(3,)]
    index(other, force=True)
    assert rows("select path from files") == [("x.md",)]


def test_a_workspace_that_moved_is_the_same(workspace, index, tmp_path, tiny):
    root = workspace(NOTES)
    index(root, tiny)
    moved = root.rename(tmp_path / "moved")
    assert index(moved, tiny).files_unchanged == 3


@pytest.mark.parametrize(
    "prepare, message",
    [
        (lambda file: file.mkdir(), "is a folder"),
        (
            lambda file: file.write_bytes(b"no database at all, but a text of some length" * 9),
            "not a database",
        ),
    ],
)
def test_a_file_that_is_no_database_is_named(workspace, index, database, prepare, message):
    prepare(database)
    with pytest.raises(DatabaseError, match=message):
        index(workspace(NOTES))


def test_other_programs_databases_are_left_alone(workspace, index, database):
    conn = sqlite3.connect(database)
    conn.execute("create table files (name text)")
    conn.close()
    before = database.read_bytes()
    with pytest.raises(DatabaseError, match="table files of another program"):
        index(workspace(NOTES))
    assert database.read_bytes() == before


@pytest.mark.parametrize("name", ["no-such-folder", "file.md"])
def test_a_root_that_is_no_folder_is_named(tmp_path, index, name, database):
    (tmp_path / "file.md").write_text("x")
    with pytest.raises(SourceError, match=name):
        index(tmp_path / name)
    assert not database.exists()


def test_many_begin_a_new_database_at_once(tmp_path):
    barrier, failures = threading.Barrier(4), []

    def begin():
        for number in range(60):
            barrier.wait()
            try:
                with open_writable(tmp_path / f"{number}.db") as conn:
                    use_wal(conn)
                    with transaction(conn):
                        conn.execute("create table if not exists one (value)")
            except Exception as error:
                failures.append(str(error))

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_two_runs_at_once_make_one_index(workspace, database, agreement):
    root = workspace({f"{number}.md": f"note {number}" for number in range(100)})
    command = [sys.executable, "-m", "datasette", "agent-memory", "index", str(root), "-d", str(database)]
    runs = [
        subprocess.Popen([*command, "--provider", "none"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for run in runs:
        _, errors = run.communicate(timeout=60)
        assert run.returncode == 0, errors
    assert agreement() == 100
