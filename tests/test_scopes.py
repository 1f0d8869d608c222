"""What an index is made of: remembered, and never lost to a folder that is away."""

import json
import os
import shutil

import pytest
from click.testing import CliRunner
from datasette.cli import cli

from datasette_agent_memory.sources import SourceError

NOTES = {"MEMORY.md": "Mara prefers tea.", "memory/a.md": "heron", "memory/deep/b.md": "zebra"}


def paths(rows):
    return [path for (path,) in rows("select path from files order by path")]


@pytest.fixture
def state(rows):
    """All that an index holds, to see whether a run has changed any of it."""
    tables = ("meta", "files", "chunks", "embedding_cache", "file_details", "chunks_fts")
    return lambda: {table: sorted(map(repr, rows(f"select rowid, * from {table}"))) for table in tables}


class TestAbsence:
    """Only a scan that has seen a folder prunes what is gone from it."""

    def test_a_missing_root_is_an_error(self, workspace, index, state, tiny):
        root = workspace(NOTES)
        index(root, tiny)
        before = state()
        root.rename(root.with_name("away"))
        for force in (False, True):
            with pytest.raises(SourceError, match="no such folder"):
                index(root, tiny, force=force)
        assert state() == before

    def test_an_empty_mount_point_in_its_place_is_an_error(self, workspace, index, state, tiny, rows):
        root = workspace({"a.md": "a", "b.md": "b"})
        index(root, tiny)
        before = state()
        root.rename(root.with_name("away"))
        root.mkdir()
        with pytest.raises(SourceError, match="empty, and is not the folder that was indexed"):
            index(root, tiny)
        assert state() == before
        index(root, tiny, force=True)
        assert paths(rows) == []

    def test_a_folder_that_was_emptied_is_pruned(self, workspace, index, rows):
        root = workspace({"a.md": "a"})
        index(root)
        (root / "a.md").unlink()
        assert index(root).files_removed == 1 and paths(rows) == []

    def test_a_root_that_lost_its_memory_is_an_error(self, workspace, index, state, rows):
        root = workspace(NOTES, **{"README.md": "not memory"})
        index(root)
        before = state()
        (root / "MEMORY.md").unlink()
        shutil.move(root / "memory", root.with_name("away"))
        with pytest.raises(SourceError, match=r"neither MEMORY\.md nor memory/ any more"):
            index(root)
        assert state() == before
        index(root, force=True)
        assert paths(rows) == ["README.md"]

    @pytest.mark.parametrize("name", ["memory", "extra"])
    def test_a_part_that_is_not_mounted_keeps_its_files(self, workspace, index, rows, tmp_path, name):
        root = workspace(NOTES)
        (tmp_path / "extra").mkdir()
        (tmp_path / "extra/e.md").write_text("e")
        index(root, extra=[tmp_path / "extra"])
        folder = root / "memory" if name == "memory" else tmp_path / "extra"
        folder.rename(tmp_path / "away")
        folder.mkdir()
        (root / "MEMORY.md").write_text("changed")
        report = index(root)
        assert (report.files_updated, report.files_removed) == (1, 0)
        assert any("not mounted" in one.reason for one in report.skipped)
        assert len(paths(rows)) == 4
        index(root)
        assert len(paths(rows)) == 4, "the second run has not forgotten it"

    def test_notes_that_went_as_a_whole_are_kept(self, workspace, index, rows, tmp_path):
        """Their folder may be a mount, or be moved for a moment; a file of it that goes is gone."""
        root = workspace(NOTES)
        index(root)
        (root / "memory").rename(tmp_path / "away")
        report = index(root)
        assert report.files_removed == 0 and len(paths(rows)) == 3
        assert [one.path for one in report.skipped] == ["memory"] and "--force" in report.skipped[0].reason
        (tmp_path / "away").rename(root / "memory")
        (root / "memory/a.md").unlink()
        assert index(root).files_removed == 1
        shutil.rmtree(root / "memory")
        index(root, force=True)
        assert paths(rows) == ["MEMORY.md"]

    @pytest.mark.parametrize("place", ["memory", "memory/nas"])
    @pytest.mark.parametrize("instead", ["nothing", "an empty folder"])
    def test_a_linked_folder_that_is_away_keeps_its_files(
        self, workspace, index, rows, tmp_path, place, instead
    ):
        nas = tmp_path / "nas"
        nas.mkdir()
        (nas / "n.md").write_text("heron")
        root = workspace({"MEMORY.md": "m", **({"memory/a.md": "a"} if place != "memory" else {})})
        (root / place).symlink_to(nas)
        index(root, follow_links=True)
        before = paths(rows)
        assert f"{place}/n.md" in before
        nas.rename(tmp_path / "away")
        if instead != "nothing":
            nas.mkdir()
        for _ in range(2):
            report = index(root)
            assert report.files_removed == 0 and paths(rows) == before
            assert place in [one.path for one in report.skipped]
        (root / place).unlink()
        (root / place).mkdir()
        (root / place / "other.md").write_text("other")
        assert index(root).files_removed == 1, "a folder in the place of the link has been seen"

    def test_a_link_that_leads_nowhere_keeps_its_file(self, workspace, index, rows, tmp_path):
        root = workspace({"memory/a.md": "a"})
        (tmp_path / "m.md").write_text("heron")
        (root / "MEMORY.md").symlink_to(tmp_path / "m.md")
        index(root, follow_links=True)
        (tmp_path / "m.md").rename(tmp_path / "away.md")
        report = index(root)
        assert report.files_removed == 0 and "leads nowhere" in report.skipped[0].reason
        (root / "MEMORY.md").unlink()
        assert index(root).files_removed == 1 and paths(rows) == ["memory/a.md"]

    def test_an_unreadable_folder_keeps_its_files(self, workspace, index, rows, monkeypatch):
        root = workspace(NOTES)
        index(root)
        scandir = os.scandir

        def refuses(folder):
            if str(folder).endswith("deep"):
                raise PermissionError(13, "Permission denied")
            return scandir(folder)

        monkeypatch.setattr(os, "scandir", refuses)
        (root / "memory/a.md").unlink()
        report = index(root)
        assert report.files_removed == 1 and paths(rows) == ["MEMORY.md", "memory/deep/b.md"]
        assert [(one.path, one.reason) for one in report.skipped] == [("memory/deep", "permission denied")]

    def test_a_folder_of_notes_stays_one(self, workspace, index, rows):
        """A folder memory/ that is made in it does not throw out all the others."""
        root = workspace({"a.md": "a", "b.md": "b"})
        index(root)
        workspace({"memory/c.md": "c", "MEMORY.md": "m"})
        assert index(root).files_removed == 0
        assert paths(rows) == ["MEMORY.md", "a.md", "b.md", "memory/c.md"]


class TestRemembered:
    @pytest.fixture
    def run(self, database):
        def run(*args):
            arguments = ["agent-memory", "index", *map(str, args), "-d", str(database), "--json"]
            result = CliRunner().invoke(cli, arguments)
            return result, json.loads(result.stdout) if result.exit_code == 0 else None

        return run

    def test_the_database_alone_says_what_to_index(self, run, workspace, tmp_path, rows):
        root = workspace(NOTES, **{".gitignore": "draft.md", "memory/draft.md": "d"})
        (tmp_path / "vault").mkdir()
        (tmp_path / "vault/v.md").write_text("v")
        (root / "memory/vault").symlink_to(tmp_path / "vault")
        (tmp_path / "more").mkdir()
        (tmp_path / "more/m.md").write_text("m")
        options = ("--extra", tmp_path / "more", "--follow-links", "--gitignore")
        size = ("--chunk-tokens", 200, "--chunk-overlap", 20, "--provider", "none")
        result, report = run(root, *options, *size)
        assert result.exit_code == 0 and report["files"]["added"] == 5
        assert "memory/vault/v.md" in paths(rows) and "memory/draft.md" not in paths(rows)
        (root / "memory/a.md").write_text("changed")
        result, report = run()
        assert report["files"] == {"added": 0, "updated": 1, "unchanged": 4, "removed": 0, "skipped": []}
        assert report["rebuilt"] is False
        result, report = run("--no-follow-links", "--no-gitignore")
        assert report["files"]["removed"] == 1 and report["files"]["added"] == 1
        result, report = run("--force")
        assert report["rebuilt"] and report["files"]["updated"] == 5, "the same paths, made again"
        result, report = run()
        assert report["files"]["unchanged"] == 5
        assert report["files"]["skipped"][0]["path"] == "memory/vault"

    def test_without_an_index_root_must_be_given(self, run):
        result, _ = run()
        assert result.exit_code == 2 and "ROOT must be given" in result.stderr

    def test_the_remembered_root_may_be_away(self, run, workspace, state):
        root = workspace(NOTES)
        run(root, "--provider", "none")
        before = state()
        root.rename(root.with_name("away"))
        result, _ = run()
        assert result.exit_code == 1 and "no such folder" in result.stderr and state() == before

    def test_what_a_database_says_wrongly_is_passed_over(self, run, workspace, change, rows):
        root = workspace(NOTES)
        run(root, "--provider", "none")
        change(
            "update meta set value = json_set(value, '$.wholeFolder', 'x', '$.folders', 7, '$.extraPaths', 7,"
            " '$.gitignore', json('[]'), '$.root', 3) where key = 'memory_index_meta_v1'"
        )
        assert run()[0].exit_code == 2
        assert run(root)[0].exit_code == 0 and len(paths(rows)) == 3


class TestTail:
    """Of a file that grows, the chunks that are there stay."""

    def test_only_the_last_chunk_is_written_again(self, workspace, index, rows, tiny, agreement):
        lines = [f"Line {number} tells of herons and kettles." for number in range(200)]
        root = workspace({"log.md": "\n".join(lines) + "\n"})
        index(root, tiny)
        before = rows("select rowid, id, updated_at from chunks order by rowid")
        tiny.embedded.clear()
        workspace({"log.md": "\n".join([*lines, "One more."]) + "\n"})
        report = index(root, tiny)
        after = rows("select rowid, id, updated_at from chunks order by rowid")
        assert after[: len(before) - 1] == before[:-1] and len(before) > 3
        assert (report.chunks_added, report.chunks_removed) == (1, 1) and len(tiny.embedded) == 1
        assert agreement() == len(after)

    def test_a_shorter_file_loses_its_tail(self, workspace, index, rows, tiny, agreement, database):
        lines = [f"Line {number} tells of herons." for number in range(300)]
        root = workspace({"log.md": "\n".join(lines)})
        index(root, tiny)
        workspace({"log.md": "\n".join(lines[:150])})
        index(root, tiny)
        assert agreement() == len(rows("select 1 from chunks"))
        assert rows("select max(end_line) from chunks") == [(150,)]
        assert rows("select count(*) from chunks_fts where chunks_fts match '\"Line 299\"'") == [(0,)]

    def test_a_dry_run_says_the_same(self, workspace, index, tiny):
        lines = [f"Line {number} tells of herons and kettles." for number in range(200)]
        root = workspace({"log.md": "\n".join(lines)})
        index(root, tiny)
        workspace({"log.md": "\n".join([*lines, "More."]), "new.md": "new"})
        dry = index(root, tiny, dry_run=True)
        real = index(root, tiny)
        for name in ("chunks_added", "chunks_removed", "chunks_total", "files_added", "files_updated"):
            assert getattr(dry, name) == getattr(real, name), name
