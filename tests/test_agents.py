"""What agents keep where, and indexing it by their names."""

import json
import os
from collections import Counter

import pytest
from click.testing import CliRunner
from datasette.cli import cli

from datasette_agent_memory.agents import _FINDERS, find_homes
from datasette_agent_memory.connections import open_readonly
from datasette_agent_memory.options import AGENTS
from datasette_agent_memory.schema import read_meta
from datasette_agent_memory.sources import SourceError

OPENCLAWS = ("OPENCLAW_HOME", "OPENCLAW_STATE_DIR", "OPENCLAW_CONFIG_PATH")
VARIABLES = (*OPENCLAWS, "CLAUDE_CONFIG_DIR", "CODEX_HOME")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Write files of a home folder, by path, and return it."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def write(*paths, **texts):
        for path in (*paths, *texts):
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(texts.get(path, f"{path}\n"))
        return folder

    return write


OPENCLAW = (
    *(".openclaw/workspace/MEMORY.md", ".openclaw/workspace/AGENTS.md"),
    ".openclaw/agents/main/sessions/a.jsonl",
)
CLAUDE = (
    *(".claude/CLAUDE.md", ".claude/projects/-home-kim/memory/MEMORY.md"),
    *(".claude/projects/-home-kim/5f.jsonl", ".claude/plugins/x/README.md"),
    *(".claude/commands/fix.md", ".claude/rules/style.md"),
)
CODEX = (
    *(".codex/AGENTS.md", ".codex/memories/a/lamp.md", ".codex/prompts/x.md"),
    *(".codex/sessions/2026/11/20/rollout-1.jsonl", ".codex/archived_sessions/rollout-0.jsonl"),
)


def run(*arguments):
    return CliRunner().invoke(cli, ["agent-memory", "index", "--provider", "none", *map(str, arguments)])


def paths(database):
    with open_readonly(database) as conn:
        return {row[0] for row in conn.execute("select path from files where source = 'memory'")}


def test_the_command_offers_those_that_there_are():
    assert tuple(_FINDERS) == AGENTS


# Where


def test_openclaw(home):
    folder = home(*OPENCLAW)
    (found,) = find_homes("openclaw")
    assert (found.name, found.root) == ("openclaw", folder / ".openclaw/workspace")
    assert found.sessions == (folder / ".openclaw/agents/main/sessions",)


def test_openclaw_with_several_agents(home):
    config = """
    // Comments, and commas at the end.
    { agents: {
        defaults: { workspace: "~/shared" },
        list: [
          { id: "Main Agent", default: true, },
          { id: "work", workspace: "~/work" },
          { id: "lab" }, { id: "gone" }, { id: "WORK" }, "nonsense", null,
        ],
    } }
    """
    folder = home(
        *("shared/MEMORY.md", "work/memory/2026-01-05.md", ".openclaw/workspace-lab/memory.md"),
        **{".openclaw/openclaw.json": config},
    )
    assert [(found.name, found.root) for found in find_homes("openclaw")] == [
        ("openclaw-main-agent", folder / "shared"),
        ("openclaw-work", folder / "work"),
        ("openclaw-lab", folder / ".openclaw/workspace-lab"),
    ]


def test_openclaw_of_later_versions(home):
    config = {"agents": {"entries": {"main": {"workspace": "~/a"}, "b": {"workspace": "~/b"}}}}
    home("a/MEMORY.md", "b/MEMORY.md", **{".openclaw/openclaw.json": json.dumps(config)})
    assert [found.name for found in find_homes("openclaw")] == ["openclaw-main", "openclaw-b"]


def test_openclaw_elsewhere(home, monkeypatch, tmp_path):
    folder = home("other/.openclaw/workspace/MEMORY.md", "state/agents/main/sessions/a.jsonl", "c.json")
    monkeypatch.setenv("OPENCLAW_HOME", "~/other")
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(folder / "state"))
    (found,) = find_homes("openclaw")
    assert found.root == folder / "other/.openclaw/workspace"
    assert found.sessions == (folder / "state/agents/main/sessions",)


@pytest.mark.parametrize(
    "config",
    [
        *("[]", "null", '{"agents": []}', '{"agents": {"list": {}}}'),
        '{"agents": {"list": [{"id": 7, "workspace": 8}]}}',
    ],
)
def test_a_configuration_that_says_nothing(home, config):
    home(*OPENCLAW, **{".openclaw/openclaw.json": config})
    assert [found.name for found in find_homes("openclaw")] == ["openclaw"]


@pytest.mark.parametrize("config", ['{"key": "sk-secret" oops}', "[" * 100_000, '"' + "sk-secret" * 9])
def test_a_configuration_that_cannot_be_read_is_named_and_not_quoted(home, config):
    home(*OPENCLAW, **{".openclaw/openclaw.json": config})
    result = run("--agent", "openclaw")
    assert result.exit_code == 1 and "openclaw.json: is not JSON" in result.output
    assert result.output.count("\n") == 1 and "secret" not in result.output


def test_claude_code(home, monkeypatch):
    folder = home(*CLAUDE)
    (found,) = find_homes("claude-code")
    assert (found.name, found.root) == ("claude-code", folder / ".claude")
    assert found.sessions == (folder / ".claude/projects",)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(folder / "elsewhere"))
    with pytest.raises(SourceError, match=r"claude-code: no memory and no sessions in .*/elsewhere$"):
        find_homes("claude-code")


def test_codex(home, monkeypatch):
    folder = home(*CODEX)
    (found,) = find_homes("codex")
    assert found.sessions == (folder / ".codex/sessions", folder / ".codex/archived_sessions")
    monkeypatch.setenv("CODEX_HOME", str(folder / ".codex"))
    assert find_homes("codex") == [found]


def test_an_agent_may_have_sessions_alone(home):
    home(".codex/sessions/2026/11/20/rollout-1.jsonl")
    assert find_homes("codex")[0].has_sessions()
    with pytest.raises(SourceError, match="codex: no memory in"):
        find_homes("codex", with_sessions=False)


# Indexing


def test_one_agent_has_one_database(home, tmp_path):
    home(*CLAUDE)
    result = run("--agent", "claude-code", "-d", tmp_path / "mine.db")
    assert result.exit_code == 0, result.output
    assert paths(tmp_path / "mine.db") == {
        "CLAUDE.md",
        "projects/-home-kim/memory/MEMORY.md",
        "rules/style.md",
    }
    # The next run need not be told, be it afresh.
    for more in ((), ("--force",)):
        assert run("-d", tmp_path / "mine.db", *more).exit_code == 0
        assert len(paths(tmp_path / "mine.db")) == 3


def test_several_agents_have_one_each(home, tmp_path):
    home(*OPENCLAW, *CLAUDE, *CODEX)
    result = run(*(f"--agent={name}" for name in AGENTS), "-d", tmp_path / "new/folder")
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir(tmp_path / "new/folder")) == ["claude-code.db", "codex.db", "openclaw.db"]
    assert paths(tmp_path / "new/folder/openclaw.db") == {"MEMORY.md"}
    assert paths(tmp_path / "new/folder/codex.db") == {"AGENTS.md", "memories/a/lamp.md"}


def test_without_a_name_the_database_has_the_agents(home, tmp_path, monkeypatch):
    home(*CODEX)
    monkeypatch.chdir(tmp_path)
    assert run("--agent", "codex").exit_code == 0
    assert paths(tmp_path / "codex.db") == {"AGENTS.md", "memories/a/lamp.md"}


def test_what_goes_is_removed_and_what_cannot_be_seen_is_not(home, tmp_path):
    folder = home(*CODEX)
    run("--agent", "codex", "-d", tmp_path / "codex.db")
    (folder / ".codex/memories/a/lamp.md").unlink()
    assert run("--agent", "codex", "-d", tmp_path / "codex.db").exit_code == 0
    assert paths(tmp_path / "codex.db") == {"AGENTS.md"}
    for path in CODEX:
        (folder / path).unlink(missing_ok=True)
    # Nothing at all is more likely a disk that is not there.
    assert run("--agent", "codex", "-d", tmp_path / "codex.db").exit_code == 1
    assert paths(tmp_path / "codex.db") == {"AGENTS.md"}


def test_an_agent_that_is_not_here_costs_the_others_nothing(home, tmp_path):
    home(*CODEX)
    result = run("--agent=openclaw", "--agent=codex", "--agent=claude-code", "-d", tmp_path / "out")
    assert result.exit_code == 1 and os.listdir(tmp_path / "out") == ["codex.db"]
    errors = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert [line.split(": ")[1] for line in errors] == ["openclaw", "claude-code"]


def test_an_index_that_fails_costs_the_others_nothing(home, tmp_path):
    home(*CODEX, *CLAUDE)
    (tmp_path / "codex.db").write_bytes(b"not a database, " * 100)
    result = run("--agent=codex", "--agent=claude-code", "-d", tmp_path)
    assert result.exit_code == 1 and "Error: codex: " in result.output
    assert "CLAUDE.md" in paths(tmp_path / "claude-code.db")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--agent", "codex", "somewhere"], "give one of them"),
        (["--agent", "hal"], "'hal' is not one of"),
        (["--agent=codex", "--agent=claude-code", "--watch"], "here are several: codex, claude-code"),
    ],
)
def test_bad_usage(home, arguments, message):
    home(*CODEX, *CLAUDE)
    result = run(*arguments)
    assert result.exit_code == 2 and message in result.output


def test_a_file_in_place_of_the_folder(home, tmp_path):
    home(*CODEX, *CLAUDE)
    (tmp_path / "file").touch()
    result = run("--agent=codex", "--agent=claude-code", "-d", tmp_path / "file")
    assert result.exit_code == 1 and "several agents" in result.output and "Traceback" not in result.output


def test_sessions_are_a_second_source(home, tmp_path):
    message = {
        "type": "response_item",
        "payload": {"type": "message", "role": "user", "content": "oil the lamp"},
    }
    folder = home(*CODEX, **{path: json.dumps(message) for path in CODEX if path.endswith("l")})
    database = tmp_path / "a.db"

    def sources():
        with open_readonly(database) as conn:
            return Counter(row[0] for row in conn.execute("select source from chunks"))

    assert run("--agent", "codex", "-d", database).exit_code == 0
    assert sources() == {"memory": 2, "sessions": 2}
    # They are remembered, and forgotten when told so.
    assert run("-d", database).exit_code == 0
    assert sources() == {"memory": 2, "sessions": 2}
    assert run("--agent", "codex", "--no-sessions", "-d", database).exit_code == 0
    assert run("-d", database).exit_code == 0
    assert sources() == {"memory": 2}
    with open_readonly(database) as conn:
        meta = read_meta(conn)
    assert (meta["root"], meta["sessionFolders"]) == (str(folder / ".codex"), [])


def test_sessions_alone(home, tmp_path):
    message = {"type": "user", "message": {"role": "user", "content": "oil the lamp"}}
    home(**{".claude/projects/-home-kim/5f.jsonl": json.dumps(message)})
    for _ in range(2):
        assert run("--agent", "claude-code", "-d", tmp_path / "a.db").exit_code == 0
        with open_readonly(tmp_path / "a.db") as conn:
            (path,) = [row[0] for row in conn.execute("select path from files")]
        assert path == "sessions/-home-kim/5f.jsonl"
