"""The command line as its user sees it."""

import json
import re

import pytest
from click.testing import CliRunner
from datasette.cli import cli

from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.terminal import printable

NOTES = {
    "MEMORY.md": "# Long-term\n\nMara owns billing.\n",
    "memory/2026-01-05.md": "# Monday\n\nThe heron nests by the canal.\n\x1b[31mred\x1b[0m \u202e\n",
}


@pytest.fixture
def run(database):
    def invoke(command, *arguments, code=0, with_database=True):
        database_option = ["-d", str(database)] if with_database else []
        result = CliRunner().invoke(cli, ["agent-memory", command, *map(str, arguments), *database_option])
        assert result.exit_code == code, result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return invoke


@pytest.fixture
def root(workspace, tiny):
    return workspace(NOTES)


def test_index_reports_as_json(run, root):
    report = json.loads(run("index", root, "--provider", "tiny", "--json").stdout)
    took_s = report.pop("took_s")
    assert took_s >= 0
    assert report == {
        "ok": True,
        "files": {"added": 2, "updated": 0, "unchanged": 0, "removed": 0, "skipped": []},
        "chunks": {"added": 2, "removed": 0, "total": 2},
        "embeddings": {"computed": 2, "cached": 0},
        "provider": "tiny",
        "model": "tiny-bag",
        "dims": 32,
        "tokens": 24,
        "rebuilt": False,
        "refused": [],
        "guessed": [],
        "first_choice": True,
        "passed_over": [],
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["{root}", "--extra", "~nobody-of-this-name/x"],
        ["{root}", "--sessions", "~nobody-of-this-name/x"],
        ["{root}", "--extra", "n" * 300],
        ["{root}", "--sessions", "n" * 300],
        ["n" * 300],
        ["{root}", "--cache-from", "n" * 300],
    ],
)
def test_paths_that_cannot_be_are_one_line(run, root, arguments):
    result = run("index", *(one.format(root=root) for one in arguments), "--provider", "none", code=1)
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["n" * 300 + ".db", "loop.db", "note.md", "folder", "no/where.db"])
def test_databases_that_cannot_be_are_one_line(run, root, tmp_path, name):
    (tmp_path / "loop.db").symlink_to("loop.db")
    (tmp_path / "note.md").write_text("")
    (tmp_path / "folder").mkdir()
    arguments = ["index", root, "--provider", "none", "-d", tmp_path / name]
    result = run(*arguments, code=1, with_database=False)
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    assert (tmp_path / "note.md").read_text() == ""


def test_a_file_of_the_name_of_a_lock_is_left_alone(run, root, database):
    lock = database.with_name(f"{database.name}-watching")
    lock.write_text("mine")
    run("index", root, "--provider", "none")
    assert lock.read_text() == "mine"


def test_index_says_what_it_did_and_skipped(run, root):
    (root / "memory/bin.md").write_bytes(b"\0")
    result = run("index", root, "--provider", "none")
    assert "2 files added" in result.stdout and "keywords only" in result.stdout
    assert "Skipped memory/bin.md: binary" in result.stderr
    assert "2 unchanged" in run("index", root, "--provider", "none").stdout


def test_the_database_is_memory_db_by_default(run, root, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run("index", root, "--provider", "none", with_database=False)
    assert "heron" in run("search", "heron", with_database=False).stdout


def test_search_prints_places_scores_and_text(run, root):
    run("index", root, "--provider", "tiny")
    result = run("search", "heron canal", "--min-score", "0", "-k", "1")
    assert re.search(r"^0\.\d{3} memory/2026-01-05\.md:1-5$", result.stdout, re.MULTILINE)
    assert re.search(r"0\.70 \* 0\.\d{3} vector \+ 0\.30 \* 0\.\d{3} text", result.stdout)
    assert "The heron nests by the canal." in result.stdout
    assert "\x1b" not in result.stdout and "\u202e" not in result.stdout
    assert "Nothing matches." in run("search", "?!").stdout


def test_search_as_json_is_the_apis(run, root):
    run("index", root, "--provider", "tiny")
    answer = json.loads(
        run("search", "heron", "--mode", "keyword", "--json", "--decay", "--now", "2026-02-04").stdout
    )
    assert answer["ok"] and answer["query"]["decay"] is True and answer["results"][0]["age_days"] == 30


def test_search_prints_sql_that_runs(run, root, database):
    run("index", root, "--provider", "tiny")
    arguments = ("search", "heron's canal", "--mmr", "--path", "memory/*", "--min-score", "0")
    output = run(*arguments, "--sql").stdout
    params = {
        match[1]: json.loads(match[2])
        for match in re.finditer(r"^-- :([a-z_]+) = (.*)$", output, re.MULTILINE)
    }
    with open_readonly(database) as conn:
        rows = conn.execute(output, params).fetchall()
    answer = json.loads(run(*arguments, "--json").stdout)
    assert [row["id"] for row in rows] == [hit["id"] for hit in answer["results"]] != []


def test_search_says_with_its_sql_what_is_missing(run, root):
    run("index", root, "--provider", "none")
    result = run("search", "heron", "--sql")
    assert "no vectors" in result.stderr and "no vectors" not in result.stdout


def test_get_prints_lines_of_indexed_files_alone(run, root):
    run("index", root, "--provider", "none")
    assert run("get", "MEMORY.md").stdout == NOTES["MEMORY.md"]
    assert run("get", "MEMORY.md", "--from", "3", "--lines", "1").stdout == "Mara owns billing.\n"
    (root / "MEMORY.md").write_text("changed since")
    assert run("get", "MEMORY.md").stdout == NOTES["MEMORY.md"], "as indexed, not as it is now"
    for path in ("../MEMORY.md", str(root / "MEMORY.md"), "/etc/passwd", "memory/%2e%2e/x", "memory"):
        result = run("get", path, code=1)
        assert "is not in the index" in result.stderr and result.stdout == ""


def test_status(run, root):
    run("index", root, "--provider", "none")
    text = run("status").stdout
    assert "--provider embedded" in text and re.search(r"^chunks +2$", text, re.MULTILINE)
    assert json.loads(run("status", "--json").stdout)["searches"] == "keyword"


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (("search", "x", "--k", "0"), 2, "k must be"),
        (("search", "x", "--mode", "both"), 2, "mode must be"),
        (("search", "x", "--since", "x"), 2, "since must be"),
        (("index", "nowhere"), 1, "nowhere: no such folder"),
        (("index", ".", "--provider", "magic"), 2, "provider must be"),
        (("index", ".", "--chunk-tokens", "80", "--chunk-overlap", "80"), 2, "below --chunk-tokens"),
        (("index", ".", "--extra", "nowhere.md"), 1, "nowhere.md: no such file or folder"),
        (("get", "x"), 1, "no such database file"),
        (("status",), 1, "no such database file"),
        (("search", "x"), 1, "no such database file"),
    ],
)
def test_a_mishap_is_one_line(run, monkeypatch, tmp_path, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments, code=code)
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1 and message in errors[0]
    assert "Traceback" not in result.output


def test_a_database_without_memory_is_one_line(run, database):
    database.write_bytes(b"")
    for command in (("search", "x"), ("status",), ("get", "x")):
        assert "Error: This database holds no index of agent memory" in run(*command, code=1).stderr


def test_evaluate_measures_and_writes_results(run, workspace, tmp_path, tiny):
    root = workspace(NOTES)
    queries = tmp_path / "queries.jsonl"
    rows = [
        {
            "id": "1",
            "workspace": root.name,
            "query": "heron",
            "relevant": ["memory/2026-01-05.md:3"],
            "category": "a",
        },
        {
            "id": "2",
            "workspace": root.name,
            "query": "billing\u2028now",
            "relevant": ["MEMORY.md:3", "MEMORY.md:9"],
        },
    ]
    queries.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    results = tmp_path / "out.json"
    arguments = ("evaluate", queries, "--root", root.parent, "--provider", "tiny", "--results", results)
    table = run(*arguments, with_database=False).stdout
    assert "| overall | 2 | 0.750 | 1.000 | 1.000 |" in table
    ranked = json.loads(results.read_text())
    assert ranked["1"][0][:3] == ["memory/2026-01-05.md", 1, 5] and len(ranked["1"][0]) == 4
    summary = json.loads(run(*arguments, "--json", with_database=False).stdout)
    assert summary["a"]["n"] == 1 and summary["uncategorised"]["recall@6"] == 0.5
    assert not list(tmp_path.glob("*.db")), "the user's folder is left alone"


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "has no queries"),
        ("{", ":1: is no query"),
        ('{"id": 1}', ":1: is no query"),
        ('{"id": 1, "workspace": "w", "query": "q", "relevant": []}', ":1: has no relevant lines"),
        ('{"id": 1, "workspace": "gone", "query": "q", "relevant": ["a.md:1"]}', "gone: no such folder"),
    ],
)
def test_evaluate_names_what_is_wrong(run, tmp_path, content, message):
    (tmp_path / "q.jsonl").write_text(content)
    result = run("evaluate", tmp_path / "q.jsonl", "--root", tmp_path, code=1, with_database=False)
    assert message in result.stderr


def test_control_characters_are_not_printed():
    assert printable("a\x1b[31mb\u202e\x9b\tc\n") == "a\ufffd[31mb\ufffd\ufffd\tc\n"
    assert (
        printable("family 👨\u200d👩\u200d👧, می\u200cخواهم\r\n")
        == "family 👨\u200d👩\u200d👧, می\u200cخواهم\n"
    )


def test_every_command_has_an_example():
    for name, command in cli.commands["agent-memory"].commands.items():
        assert f"datasette agent-memory {name}" in command.help, name
