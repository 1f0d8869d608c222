"""Values that no run of ours writes: no page, no answer and no command fails of them."""

import json
import os
import re
import subprocess
import sys
import zlib

import pytest
from click.testing import CliRunner
from datasette.cli import cli

from datasette_agent_memory.chunked import FileDetails, text_of
from datasette_agent_memory.chunking import Chunk
from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.files import read_file
from datasette_agent_memory.schema import META_KEY, PENDING_KEY
from datasette_agent_memory.terminal import echo_json

NOTES = {
    "MEMORY.md": "# Long-term\n\nMara owns billing.\n",
    "memory/2026-01-05.md": "---\ntitle: Heron\n---\n# Monday\n\nThe heron nests by the canal.\n",
}
PATH = "memory/2026-01-05.md"
NUMBERS = ["9e999", "-9e999", "1e300", str(2**63 - 1), str(-(2**63)), "0.5", "'x'", "''", "x'ff00'"]
COLUMNS = [
    ("files", "mtime"),
    ("files", "size"),
    ("files", "hash"),
    ("chunks", "start_line"),
    ("chunks", "end_line"),
    ("chunks", "updated_at"),
    ("embedding_cache", "dims"),
    ("embedding_cache", "updated_at"),
]


@pytest.fixture
def indexed(workspace, index, tiny):
    root = workspace(NOTES)
    index(root, tiny)
    return root


@pytest.fixture
def nothing_fails(indexed, database, make_datasette, capfd, tmp_path):
    async def check():
        datasette = make_datasette(database)
        for path in ("", "?q=heron+canal", f"/file?path={PATH}", "/status", "/map", "/timeline"):
            for suffix in ("", ".json"):
                name, _, query = path.partition("?")
                address = f"/memory/-/agent-memory{name}{suffix}?{query}"
                response = await datasette.client.get(address)
                assert response.status_code in (200, 404, 503), (address, response.text[:300])
        for address in ("/-/agent-memory", "/memory/files", "/memory/chunks"):
            assert (await datasette.client.get(address)).status_code == 200
        assert "Traceback" not in capfd.readouterr().err
        for arguments in (
            ["status"],
            ["status", "--json"],
            ["doctor"],
            ["doctor", "--json"],
            ["search", "heron", "--mode", "keyword"],
            ["search", "heron", "--mode", "keyword", "--json", "--explain"],
            ["get", PATH],
            ["export", tmp_path / "out.jsonl", "--force"],
            ["compact"],
            ["doctor", "--fix"],
        ):
            result = CliRunner().invoke(cli, ["agent-memory", *map(str, arguments), "-d", str(database)])
            assert result.exception is None or isinstance(result.exception, SystemExit), (
                arguments,
                result.exception,
            )

    return check


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.asyncio
async def test_no_number_of_a_column_is_too_odd(change, nothing_fails, value):
    change(*(f"update {table} set {column} = {value}" for table, column in COLUMNS))
    await nothing_fails()


@pytest.mark.parametrize("table, column", COLUMNS)
@pytest.mark.asyncio
async def test_an_infinite_number_of_one_column(change, nothing_fails, table, column):
    change(f"update {table} set {column} = 9e999")
    await nothing_fails()


@pytest.mark.parametrize(
    "lines",
    [
        "[-5]",
        "[0]",
        "[true, false]",
        "[true, 2]",
        "[3, 2, 1]",
        "[2, 2]",
        "[1, 10000001]",
        "[1.5]",
        '["1"]',
        "[1, 1e999]",
        f"[{'9' * 30}]",
        "{}",
        "[[1]]",
        "[" * 50_000,
        "nothing",
        "[10000000]",
    ],
)
@pytest.mark.asyncio
async def test_lines_that_no_transcript_has(change, nothing_fails, lines, database):
    change(f"insert or replace into file_details (path, lines) values ('{PATH}', '{lines}')")
    await nothing_fails()
    if lines != "[10000000]":
        assert FileDetails(lines=lines).line_numbers is None


BOMB = zlib.compress(bytes(1 << 28))
MANY_LINES = zlib.compress(b"\n" * 20_000_000)


@pytest.mark.parametrize(
    "whole",
    [b"", b"garbage", zlib.compress(b"text" * 999)[:-9], BOMB, BOMB[:-4], MANY_LINES],
    ids=["empty", "garbage", "cut", "bomb", "cut bomb", "lines"],
)
@pytest.mark.asyncio
async def test_a_whole_that_is_none_leaves_the_chunks(change, nothing_fails, whole, database):
    chunks = [Chunk(1, 2, "The heron\nnests.")]
    assert text_of(chunks, FileDetails(whole=whole), 400, 80) == "The heron\nnests."
    change(f"update file_details set whole = x'{whole.hex()}' where path = '{PATH}'")
    with open_readonly(database) as conn:
        assert read_file(conn, PATH).content == NOTES[PATH]
    await nothing_fails()


@pytest.mark.parametrize("value", ['"\\ud800"', "1e999", "NaN", "true", "-5", '"x"', "[]", "{}", "1" * 30])
@pytest.mark.asyncio
async def test_odd_values_in_meta(change, nothing_fails, rows, value):
    ((meta,),) = rows(f"select value from meta where key = '{META_KEY}'")
    names = {*json.loads(meta), "ftsTokenizer", "chunkTokens", "chunkOverlap", "failure", "refusedChunks"}
    names |= {"vectorDims", "baseUrl", "asked", "passedOver", "provider", "model"}
    names -= {"generator", "version"}
    pairs = ", ".join(f'"{name}": {value}' for name in names)
    kept = json.dumps({name: kept for name, kept in json.loads(meta).items() if name not in names})
    odd = kept[:-1] + (", " if kept != "{}" else "") + pairs + "}"
    change(f"update meta set value = '{odd}' where key = '{META_KEY}'")
    await nothing_fails()


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.asyncio
async def test_odd_numbers_of_what_waits(change, nothing_fails, value):
    change(f"insert or replace into meta (key, value) values ('{PENDING_KEY}', {value})")
    await nothing_fails()


def test_half_a_surrogate_is_json_as_well(capsys):
    value = {"half": "\ud800", "later half": "x\udfffy", "whole": "🦜 会議"}
    echo_json(value)
    text = capsys.readouterr().out
    assert json.loads(text) == value
    assert "🦜 会議" in text


def shell(arguments, redirection):
    command = " ".join(["exec", sys.executable, "-m", "datasette", "agent-memory", *arguments, redirection])
    return subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["status", "--json"],
        ["doctor"],
        ["get", PATH],
        ["export", "-"],
        ["search", "heron"],
        ["index", ".", "--json", "--provider", "none"],
    ],
    ids=" ".join,
)
def test_a_full_output_is_one_line(indexed, database, arguments, monkeypatch):
    monkeypatch.chdir(indexed)
    result = shell([*arguments, "-d", str(database)], "> /dev/full")
    assert result.returncode == 1
    assert re.search("^Error: stdout: no space left on device\n$", result.stderr, re.MULTILINE), result.stderr
    assert "Traceback" not in result.stderr and "Exception ignored" not in result.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs a shell of POSIX")
@pytest.mark.parametrize(
    "arguments, redirection, code",
    [
        (["status"], ">&-", 0),
        (["status", "--json"], ">&-", 0),
        (["export", "-"], ">&-", 1),
        (["import", "-", "--force"], "<&-", 1),
        (["get", PATH], "2>&1 | head -c 1", 0),
    ],
)
def test_a_closed_stream_is_one_line(indexed, database, arguments, redirection, code):
    result = shell([*arguments, "-d", str(database)], redirection)
    assert result.returncode == code, result.stderr
    assert result.stderr.count("\n") == code and "Traceback" not in result.stderr


def test_an_error_of_the_system_names_its_file(indexed, database, monkeypatch):
    def fail(*arguments, **options):
        raise PermissionError(13, "Permission denied", "/somewhere/x\n\x1b[31m")

    monkeypatch.setattr("datasette_agent_memory.disk.look_at_disk", fail)
    result = CliRunner().invoke(cli, ["agent-memory", "status", "-d", str(database)])
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert "/somewhere/x" in result.stderr and "permission denied" in result.stderr
    assert "\x1b" not in result.stderr


def test_a_database_that_is_a_link_to_itself_is_one_line(indexed, tmp_path):
    loop = tmp_path / "loop.db"
    loop.symlink_to(loop)
    for arguments in (["index", indexed, "--provider", "none"], ["status"], ["doctor", "--fix"], ["compact"]):
        result = CliRunner().invoke(cli, ["agent-memory", *map(str, arguments), "-d", str(loop)])
        assert isinstance(result.exception, SystemExit), (arguments, result.exception)
        assert result.exit_code == 1 and "loop.db: " in result.stderr
