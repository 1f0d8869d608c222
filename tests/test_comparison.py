"""Comparing search parameters, and tuning weights, on questions with known answers."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from datasette.cli import cli

from datasette_agent_memory.comparison import Tuning, bootstrap, parse_options
from datasette_agent_memory.config import ParameterError
from datasette_agent_memory.evaluation import Measured, read_queries

NOTES = {f"memory/{n}.md": f"note {n} about topic{n} and heron\n" for n in range(20)}


@pytest.fixture
def queries(tmp_path):
    def write(workspace=None, number=12):
        file = tmp_path / "queries.jsonl"
        rows = [
            {"id": str(n), "query": f"what about topic{n}", "relevant": [f"memory/{n}.md:1"]}
            | ({"workspace": workspace} if workspace else {})
            for n in range(number)
        ]
        file.write_text("\n".join(map(json.dumps, rows)))
        return file

    return write


@pytest.fixture
def run(tiny):
    def run(*arguments, code=0):
        result = CliRunner().invoke(cli, ["agent-memory", "evaluate", *map(str, arguments)])
        assert result.exit_code == code, result.output
        return result

    return run


def test_the_bootstrap_interval_of_a_mean():
    generator = np.random.default_rng(1)
    values = generator.normal(0.2, 1, 400)
    low, high = bootstrap(values)
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.01)
    assert bootstrap(np.zeros(30)) == (0, 0)
    assert bootstrap(values) == (low, high), "the same every time"


def test_a_users_own_questions_on_their_own_database(run, queries, workspace, index, database, tiny):
    index(workspace(NOTES), tiny)
    table = run(queries(), "-d", database, "--compare", "match=all", "--compare", "mode=keyword,k=1").stdout
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert [row[0].strip("| ") for row in rows] == ["options", "as given", "match=all", "mode=keyword,k=1"]
    assert rows[1][1] == "1.000" and rows[3][1] == "1.000"
    body = json.loads(run(queries(), "-d", database, "--compare", "path=nowhere", "--json").stdout)
    lost = body[1]["difference"]["recall@6"]
    assert (lost["mean"], lost["low"], lost["high"]) == (-1, -1, -1)
    plain = json.loads(run(queries(), "-d", database, "--json").stdout)
    assert plain["overall"]["recall@6"] == body[0]["recall@6"] == 1


def test_questions_without_a_workspace_are_of_the_root(run, queries, workspace):
    assert (
        "| overall | 12 | 1.000 |" in run(queries(), "--root", workspace(NOTES), "--provider", "tiny").stdout
    )


def test_odd_files_of_questions(run, tmp_path, workspace, index, database, tiny):
    index(workspace(NOTES), tiny)
    file = tmp_path / "odd.jsonl"
    row = {"id": "a\ud800", "query": "topic1 \ud800", "relevant": ["memory/1.md:1"], "category": "a|b\n# x"}
    file.write_text("\ufeff" + json.dumps(row))
    result = run(file, "-d", database, "--results", tmp_path / "out.json")
    assert "| a\\|b # x | 1 |" in result.stdout
    assert "path=x\\|y |" in run(file, "-d", database, "--compare", "path=x|y").stdout
    file.write_text(json.dumps({**row, "relevant": ["NOPE.md:5", "memory/1.md:1"]}))
    assert "No chunk has NOPE.md:5" in run(file, "-d", database).stderr
    file.write_text("\n".join(json.dumps({**row, "id": id}) for id in (1, "1")))
    assert ":2: has the id '1' of another query" in run(file, "-d", database, code=1).stderr
    file.write_text("[" * 200_000)
    assert ":1: is no query" in run(file, "-d", database, code=1).stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "either --root or -d"),
        (["--root", "x", "-d", "y"], "either --root or -d"),
        (["-d", "x", "--tune", "--compare", "k=1"], "give one of them"),
        (["-d", "x", "--compare", "nonsense"], "name=value"),
        (["-d", "x", "--compare", "nothing=1"], "name=value"),
        (["-d", "x", "--compare", "k=zero"], "k must be"),
    ],
)
def test_bad_usage_is_named(run, queries, arguments, message):
    assert message in run(queries(), *arguments, code=2).output


def test_options_to_compare():
    assert parse_options("mode=keyword, min-score=0") == {"mode": "keyword", "min_score": "0"}
    with pytest.raises(ParameterError):
        parse_options("mode")


class Told:
    """Memories in which a question is answered where the vector's weight is below its threshold."""

    def __init__(self, queries, thresholds):
        self.queries = queries
        self.thresholds = thresholds

    def run(self, given, progress):
        weight = float(given.get("vector_weight", 0.9))
        return Measured(
            {
                query.id: [(f"memory/{query.id}.md", 1, 1, 1.0)] if weight < threshold else []
                for query, threshold in zip(self.queries, self.thresholds, strict=True)
            },
            {},
        )


def tune(file, thresholds):
    queries = read_queries(file)
    return Tuning.by_cross_validation(queries, Told(queries, thresholds), {}, lambda done, total: None)


def test_tuning_finds_what_holds_on_questions_it_was_not_chosen_by(queries):
    tuning = tune(queries(number=40), [0.5] * 40)
    assert tuning.vector_weight < 0.5 and tuning.before == 0
    assert (tuning.gain, tuning.low, tuning.high) == (1, 1, 1)
    assert "beyond chance" in tuning.as_text()
    assert tuning.as_json()["settings"] == tuning.settings


def test_tuning_says_when_there_is_nothing_to_gain(queries):
    tuning = tune(queries(number=40), [2.0] * 40)
    assert tuning.gain == 0 and "no reason to change" in tuning.as_text()
    assert tune(queries(number=1), [0.5]).gain == 0, "one question is none to choose by"
    assert "too few questions" in tune(queries(number=12), [0.5] * 12).as_text()


def test_tune_at_the_command_line_changes_nothing(run, queries, workspace, index, database, tiny, rows):
    index(workspace(NOTES), tiny)
    before = rows("select * from meta")
    told = run(queries(), "-d", database, "--tune").stdout
    assert "Best on all of them: --vector-weight" in told and "12 questions" in told
    assert rows("select * from meta") == before
    assert json.loads(run(queries(), "-d", database, "--tune", "--json").stdout)["questions"] == 12
