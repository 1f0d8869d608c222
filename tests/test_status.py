"""What status says of an index, of its files on disk, and of its size."""

import json

import pytest
from click.testing import CliRunner
from datasette.cli import cli

from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.disk import look_at_disk
from datasette_agent_memory.schema import MemoryIndex
from datasette_agent_memory.status import read_status

NOTES = {
    "MEMORY.md": "# Long-term\n\nMara owns billing.\n",
    "memory/2026-01-05.md": "# Monday\n\nThe heron nests by the canal.\n",
}


@pytest.fixture
def status(database):
    def read():
        with open_readonly(database) as conn:
            return read_status(conn)

    return read


@pytest.fixture
def codes(status):
    return lambda: {notice["code"] for notice in status()["notices"]}


@pytest.fixture
def indexed(workspace, index, tiny):
    root = workspace(NOTES)
    index(root, tiny)
    return root


def test_a_healthy_index_has_no_more_to_say(indexed, status, codes):
    assert codes() <= {"no_sqlite_vec"}
    assert status()["on_disk"] == {"changed": 0, "missing": 0, "not_indexed": 0, "complete": True}


@pytest.mark.asyncio
async def test_the_page_counts_files_and_names_none(indexed, make_datasette, database):
    (indexed / "MEMORY.md").write_text("changed")
    (indexed / "memory/2026-01-05.md").unlink()
    (indexed / "memory/secret-plan.md").write_text("new")
    datasette = make_datasette(database)
    answer = await datasette.client.get("/memory/-/agent-memory/status.json")
    assert answer.json()["on_disk"] == {"changed": 1, "missing": 1, "not_indexed": 1, "complete": True}
    page = await datasette.client.get("/memory/-/agent-memory/status")
    assert "Not indexed yet" in page.text and "datasette agent-memory index -d memory.db" in page.text
    assert "secret-plan" not in answer.text + page.text
    result = CliRunner().invoke(cli, ["agent-memory", "status", "-d", str(database)])
    assert result.exit_code == 0 and "files not indexed: memory/secret-plan.md" in result.stdout


@pytest.mark.parametrize("root", ["/nowhere", "relative", "\0", "", 5, None])
def test_a_folder_that_is_not_there_says_nothing(indexed, change, status, root):
    value = json.dumps(root).replace("'", "''")
    change(f"update meta set value = json_set(value, '$.root', json('{value}'))")
    assert status()["on_disk"] is None


def test_a_page_looks_at_no_extra_path_and_follows_no_link(indexed, tmp_path, index, tiny, database):
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra/x.md").write_text("x")
    index(indexed, tiny, extra=[tmp_path / "extra"])
    (tmp_path / "extra/y.md").write_text("y")
    (indexed / "memory/link.md").symlink_to(tmp_path / "extra/y.md")
    with open_readonly(database) as conn:
        memory = MemoryIndex.read(conn)
        assert look_at_disk(conn, memory).counts()["not_indexed"] == 0
        assert look_at_disk(conn, memory, with_extra=True).not_indexed == ["../extra/y.md"]


def test_a_look_without_time_says_that_there_may_be_more(indexed, database):
    (indexed / "memory/new.md").write_text("new")
    with open_readonly(database) as conn:
        state = look_at_disk(conn, MemoryIndex.read(conn), limit_s=-1)
    assert not state.is_complete and not state.missing


@pytest.mark.parametrize(
    "code, statement",
    [
        ("chunks_of_no_file", "delete from files where path = 'MEMORY.md'"),
        ("chunks_without_fts", "delete from chunks_fts where rowid = 1"),
        ("fts_of_no_chunk", "insert into chunks_fts (rowid, text) values (9, 'ghost')"),
        pytest.param(
            "chunks_without_vec",
            "delete from chunks_vec where id = (select id from chunks limit 1)",
            marks=pytest.mark.needs_sqlite_vec,
        ),
        pytest.param(
            "vec_of_no_chunk",
            "insert into chunks_vec (id, embedding) select 'x', embedding from chunks_vec limit 1",
            marks=pytest.mark.needs_sqlite_vec,
        ),
    ],
)
def test_what_counting_shows_is_named_with_what_mends_it(indexed, change, status, code, statement):
    change(statement)
    (notice,) = [notice for notice in status()["notices"] if notice["code"] == code]
    assert notice["command"] == "datasette agent-memory doctor --fix -d DATABASE"
    assert notice["message"].endswith(": 1.")


def test_sizes_are_about_those_of_the_file(indexed, status, database):
    size = status()["size"]
    assert size["file"] <= database.stat().st_size
    assert 0 < size["tables"]["chunks"] < size["file"]
    assert {"files", "chunks", "embedding_cache", "chunks_fts"} <= size["tables"].keys()
