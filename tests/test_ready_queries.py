"""The ready queries: in every kind of memory, and on both lines of Datasette."""

import re
import shutil
from urllib.parse import urlencode

import pytest
from datasette.app import Datasette

from datasette_agent_memory.config import PLUGIN_NAME
from datasette_agent_memory.connections import open_readonly, open_writable
from datasette_agent_memory.embeddings.chain import PROVIDERS_OF_ENVIRONMENT
from datasette_agent_memory.layouts import OPENCLAW_AGENT, SIX_TABLES
from datasette_agent_memory.ready_queries import ready_queries, stores_queries
from datasette_agent_memory.schema import MemoryIndex
from datasette_agent_memory.search import search

FACT = "The heron nests by the canal, beside the old mill, where nobody comes in winter or spring.\n"
NOTES = {
    "MEMORY.md": "# Long-term\n\nMara owns billing.\n",
    "memory/2026-01-05.md": FACT,
    "memory/2026-02-07.md": "Backups of the database run at night.\n",
    "memory/2026-03-09.md": FACT.replace("old", "very old"),
}
NAMES = [
    f"agent_memory_{name}"
    for name in (
        "hybrid",
        "vector",
        "keyword",
        "near_duplicates",
        "oldest_standing",
        "largest_files",
        "front_matter",
        "without_vectors",
        "cache_by_model",
        "changed_this_week",
    )
]
PAGE = "/memory/-/agent-memory/queries"


@pytest.fixture
def memory(workspace, index, database, tiny):
    index(workspace(NOTES), tiny)
    return database


@pytest.fixture
def datasette(memory, make_datasette):
    return make_datasette(memory)


def queries_of(database, configured=None):
    with open_readonly(database) as conn:
        queries = ready_queries(conn, MemoryIndex.read(conn), configured or {}, PROVIDERS_OF_ENVIRONMENT)
    return {query.name: query.sql for query in queries}


def run(database, sql, **params):
    # Datasette gives every parameter as text, and one that is left blank as none.
    given = {name: params.get(name, "") for name in re.findall(r":([a-z]\w*)", sql)}
    with open_readonly(database) as conn:
        return [dict(row) for row in conn.execute(sql, given)]


def change(database, *statements):
    with open_writable(database) as conn:
        for statement in statements:
            conn.execute(statement)


def to_other_layout(database, with_vectors):
    for ours, theirs in zip(vars(SIX_TABLES).values(), vars(OPENCLAW_AGENT).values(), strict=True):
        if ours == "chunks_vec":
            if with_vectors:
                change(
                    database,
                    f"create virtual table {theirs} using vec0(id text primary key, embedding float[32])",
                    f"insert into {theirs} select id, embedding from {ours}",
                )
            change(database, f"drop table if exists {ours}")
        else:
            change(database, f"alter table {ours} rename to {theirs}")


def test_all_of_them_run_with_blank_parameters(memory):
    queries = queries_of(memory)
    assert list(queries) == NAMES
    for name, sql in queries.items():
        run(memory, sql)
        assert ":k" not in sql and set(re.findall(r":([a-z]\w*)", sql)) <= {"q", "cosine", "chunks"}, name


@pytest.mark.parametrize("mode", ["hybrid", "vector", "keyword"])
def test_a_search_is_the_searchs_own_statement(memory, mode):
    rows = run(memory, queries_of(memory)[f"agent_memory_{mode}"], q="heron canal")
    with open_readonly(memory) as conn:
        hits = search(conn, "heron canal", {"mode": mode}).hits
    assert [(row["id"], row["score"]) for row in rows] == [(hit.id, hit.score) for hit in hits] != []


def test_a_search_has_the_options_that_are_configured(memory):
    configured = {"k": 1, "decay": True, "path": "memory/*'", "mmr": True, "min_score": 0}
    sql = queries_of(memory, configured)["agent_memory_keyword"]
    assert "LIMIT 1" in sql and "path GLOB 'memory/*'''" in sql and "date('now')" in sql
    assert run(memory, sql, q="heron") == []
    configured["path"] = "memory/*03*"
    (row,) = run(memory, queries_of(memory, configured)["agent_memory_keyword"], q="heron")
    assert row["path"] == "memory/2026-03-09.md" and 0 < row["decay"] < 1


@pytest.fixture(params=["with the vector table", "without sqlite-vec"])
def compared(request, memory):
    if request.param == "without sqlite-vec":
        request.getfixturevalue("no_sqlite_vec")
    return memory


def test_near_duplicates_are_found_once(compared):
    (row,) = run(compared, queries_of(compared)["agent_memory_near_duplicates"])
    assert {row["path"], row["other_path"]} == {"memory/2026-01-05.md", "memory/2026-03-09.md"}
    assert 0.9 <= row["cosine"] < 1
    assert run(compared, queries_of(compared)["agent_memory_near_duplicates"], cosine="1.1") == []
    assert run(compared, queries_of(compared)["agent_memory_near_duplicates"], cosine="0", chunks="0") == []


def test_what_a_later_memory_is_about_no_longer_stands(compared):
    sql = queries_of(compared)["agent_memory_oldest_standing"]
    standing = [row["path"] for row in run(compared, sql, cosine="0.8")]
    assert standing == ["memory/2026-02-07.md", "memory/2026-03-09.md"]
    everything = [row["path"] for row in run(compared, sql, cosine="1.1")]
    assert everything == ["memory/2026-01-05.md", *standing]
    assert [row["path"] for row in run(compared, sql, cosine="1.1", chunks="1")] == everything[:1]


def test_what_files_there_are(memory):
    queries = queries_of(memory)
    largest = run(memory, queries["agent_memory_largest_files"])
    assert largest[0]["path"] == "memory/2026-03-09.md"
    assert {row["chunks"] for row in largest} == {1}
    assert len(run(memory, queries["agent_memory_changed_this_week"])) == len(NOTES)
    change(memory, "update files set mtime = 0 where path = 'MEMORY.md'")
    assert len(run(memory, queries["agent_memory_changed_this_week"])) == len(NOTES) - 1
    (cache,) = run(memory, queries["agent_memory_cache_by_model"])
    assert (cache["provider"], cache["model"], cache["dims"], cache["vectors"]) == (
        "tiny",
        "tiny-bag",
        32,
        len(NOTES),
    )
    assert run(memory, queries["agent_memory_without_vectors"]) == []
    change(memory, "update chunks set embedding = '[]' where path = 'MEMORY.md'")
    (missing,) = run(memory, queries["agent_memory_without_vectors"])
    assert missing["path"] == "MEMORY.md"


def test_without_vectors(workspace, index, database):
    index(workspace(NOTES))
    names = [
        "agent_memory_keyword",
        "agent_memory_largest_files",
        "agent_memory_front_matter",
        "agent_memory_without_vectors",
        "agent_memory_cache_by_model",
        "agent_memory_changed_this_week",
    ]
    queries = queries_of(database)
    assert list(queries) == names
    assert len(run(database, queries["agent_memory_without_vectors"])) == len(NOTES)


@pytest.mark.parametrize(
    "damage, missing",
    [
        (["drop table chunks_fts"], {"hybrid", "keyword"}),
        (["drop table embedding_cache"], {"cache_by_model"}),
        (["drop table files"], {"largest_files", "changed_this_week"}),
        (["drop table if exists passages"], set()),
        (["delete from chunks"], {"hybrid", "vector", "near_duplicates", "oldest_standing"}),
        (
            [
                "update chunks set path = x'ff', start_line = 'x', text = 1",
                "update chunks set embedding = 'xyz', updated_at = 'x'",
                "update files set mtime = 'x', size = x'00'",
            ],
            None,
        ),
    ],
    ids=["no fts", "no cache", "no files", "no passages", "empty", "odd values"],
)
def test_what_a_database_cannot_do_is_left_out(memory, damage, missing):
    change(memory, *damage)
    queries = queries_of(memory)
    if missing is not None:
        assert set(NAMES) - set(queries) == {f"agent_memory_{name}" for name in missing}
    for sql in queries.values():
        run(memory, sql, q="heron canal")


@pytest.mark.parametrize("with_vectors", [pytest.param(True, marks=pytest.mark.needs_sqlite_vec), False])
def test_the_other_layout(memory, with_vectors):
    to_other_layout(memory, with_vectors)
    queries = queries_of(memory)
    assert list(queries) == NAMES
    for sql in queries.values():
        run(memory, sql, q="heron")
    assert run(memory, queries["agent_memory_keyword"], q="heron")
    assert ("MATCH own.embedding" in queries["agent_memory_near_duplicates"]) == with_vectors


async def get(datasette, url, /, actor=None, **params):
    if params:
        url += "?" + urlencode(params)
    cookies = {"ds_actor": datasette.sign({"a": {"id": actor}}, "actor")} if actor else {}
    return await datasette.client.get(url, cookies=cookies)


@pytest.mark.asyncio
async def test_the_page_lists_them_and_each_runs(datasette, memory):
    page = await get(datasette, PAGE)
    assert page.status_code == 200 and 'aria-current="page">Queries' in page.text
    listed = (await get(datasette, f"{PAGE}.json")).json()["queries"]
    assert [query["name"] for query in listed] == NAMES
    assert list(listed[0]) == ["name", "title", "description", "sql", "href"]
    for query in listed:
        assert query["href"] == f"/memory/{query['name']}" and query["href"] in page.text
        result = await get(datasette, query["href"], **({"q": "heron"} if ":q" in query["sql"] else {}))
        assert result.status_code == 200, query["name"]
        assert "message-error" not in result.text and query["title"] in result.text
        rows = (await get(datasette, f"{query['href']}.json", _shape="array", q="heron")).json()
        assert len(rows) == len(run(memory, query["sql"], q="heron")), query["name"]
    listing = await listed_by_datasette(datasette)
    assert all(f"/memory/{name}" in listing for name in NAMES)


async def listed_by_datasette(datasette):
    """Datasette's own list of the queries of a database."""
    if stores_queries(datasette):
        return (await get(datasette, "/memory/-/queries")).text
    return (await get(datasette, "/memory")).text


OWN = {"databases": {"memory": {"queries": {"agent_memory_keyword": {"sql": "select 'mine' as own"}}}}}


@pytest.mark.asyncio
async def test_a_users_own_query_stays(memory, make_datasette):
    datasette = make_datasette(memory, **{"config" if stores_queries(Datasette) else "metadata": OWN})
    for _ in range(2):
        listed = {query["name"]: query for query in (await get(datasette, f"{PAGE}.json")).json()["queries"]}
        assert listed["agent_memory_keyword"]["href"] is None
        assert listed["agent_memory_vector"]["href"] == "/memory/agent_memory_vector"
        rows = (await get(datasette, "/memory/agent_memory_keyword.json", _shape="array")).json()
        assert rows == [{"own": "mine"}]
        assert (await get(datasette, "/memory/agent_memory_vector", q="heron")).status_code == 200


@pytest.mark.asyncio
async def test_a_database_that_is_no_memory_has_none(memory, tmp_path, make_datasette):
    change(tmp_path / "other.db", "create table chunks (id, text)", "insert into chunks values (1, 'x')")
    datasette = make_datasette(memory, tmp_path / "other.db")
    assert "agent_memory_" not in (await get(datasette, "/other")).text
    assert (await get(datasette, "/other/agent_memory_keyword")).status_code == 404
    # It becomes one, and after a visit of the page has them.
    change(tmp_path / "other.db", "drop table chunks")
    shutil.copy(memory, tmp_path / "copy.db")
    change(tmp_path / "copy.db", "drop table chunks_fts")
    shutil.copy(tmp_path / "copy.db", tmp_path / "other.db")
    names = [
        query["name"]
        for query in (await get(datasette, "/other/-/agent-memory/queries.json")).json()["queries"]
    ]
    assert "agent_memory_largest_files" in names and "agent_memory_keyword" not in names
    assert (await get(datasette, "/other/agent_memory_largest_files")).status_code == 200
    assert (await get(datasette, "/other/agent_memory_keyword")).status_code == 404


@pytest.mark.asyncio
async def test_stored_queries_do_not_outlive_their_memory(memory, tmp_path, make_datasette):
    if not stores_queries(Datasette):
        pytest.skip("this line of Datasette stores no queries")
    internal = str(tmp_path / "internal.db")
    first = make_datasette(memory, internal=internal)
    await first.invoke_startup()

    async def stored(datasette):
        rows = await datasette.get_internal_database().execute(
            "select name, source from queries where database_name = 'memory' order by name"
        )
        return [tuple(row) for row in rows.rows]

    expected = sorted((name, PLUGIN_NAME) for name in NAMES)
    assert await stored(first) == expected
    await first.add_query("memory", "mine", "select 1", source="user")
    again = make_datasette(memory, internal=internal)
    await again.invoke_startup()
    assert await stored(again) == sorted([*expected, ("mine", "user")])
    # What it can no longer do goes, and so does all of it with the memory.
    change(memory, "drop table chunks_fts")
    await get(again, PAGE)
    assert ("agent_memory_keyword", PLUGIN_NAME) not in await stored(again)
    change(memory, "alter table chunks rename to pieces")
    last = make_datasette(memory, internal=internal)
    await last.invoke_startup()
    assert await stored(last) == [("mine", "user")]


@pytest.mark.asyncio
async def test_who_may_not_read_the_memory_may_not_query_it(memory, make_datasette):
    allow = {"databases": {"memory": {"tables": {"chunks": {"allow": {"id": "owner"}}}, "allow_sql": False}}}
    datasette = make_datasette(memory, metadata=allow)
    assert (await get(datasette, PAGE)).status_code == 403
    for name in NAMES:
        assert (await get(datasette, f"/memory/{name}", q="heron")).status_code in (403, 404), name
        assert (await get(datasette, f"/memory/{name}", "owner", q="heron")).status_code == 200, name
    assert all(query["href"] for query in (await get(datasette, f"{PAGE}.json", "owner")).json()["queries"])
    assert "agent_memory_keyword" not in await listed_by_datasette(datasette)


on_1_0 = pytest.mark.skipif(not hasattr(Datasette, "add_query"), reason="0.65 asks for the queries each time")


@on_1_0
@pytest.mark.asyncio
async def test_a_private_memory_stays_private_while_it_is_none(memory, make_datasette):
    block = {"databases": {"memory": {"tables": {"chunks": {"allow": {"id": "owner"}}}}}}
    datasette = make_datasette(memory, config=block)
    await datasette.invoke_startup()
    url = "/memory/agent_memory_keyword.json?q=heron"
    assert (await datasette.client.get(url)).status_code == 403
    with open_writable(memory) as conn:
        conn.execute("alter table chunks rename to away")
    await datasette.client.get("/")  # somebody looks, and it is no memory
    with open_writable(memory) as conn:
        conn.execute("alter table away rename to chunks")
    assert (await datasette.client.get(url)).status_code == 403


@on_1_0
@pytest.mark.asyncio
async def test_the_configuration_names_no_memory(memory, make_datasette):
    datasette = make_datasette(memory)
    await datasette.invoke_startup()
    assert "memory" not in (await datasette.client.get("/-/config.json")).json().get("databases", {})
    database = (await datasette.client.get("/memory.json")).json()
    shown = {table["name"] for table in database["tables"] if not table["hidden"]}
    assert shown == {"chunks", "embedding_cache", "file_details", "files"}


@pytest.mark.asyncio
async def test_a_memory_that_comes_later_has_all_this_too(memory, tmp_path, make_datasette):
    late = tmp_path / "late.db"
    with open_writable(late) as conn:
        conn.execute("create table other (id)")
    datasette = make_datasette(late)
    await datasette.invoke_startup()
    shutil.copy(memory, late)
    await datasette.client.get("/late")
    assert (await datasette.client.get("/late/agent_memory_keyword?q=heron")).status_code == 200
    tables = (await datasette.client.get("/late.json")).json()["tables"]
    assert {table["name"] for table in tables if not table["hidden"]} == {
        "chunks",
        "embedding_cache",
        "file_details",
        "files",
    }
