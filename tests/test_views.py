"""Pages and JSON, on whichever line of Datasette is installed."""

import html
import inspect
import json
import random
import re
from urllib.parse import quote, urlencode

import pytest
from datasette.app import Datasette

from datasette_agent_memory.config import PARAMETERS, PLUGIN_NAME
from datasette_agent_memory.connections import sqlite3

NOTES = {
    "MEMORY.md": "# Long-term\n\nMara owns billing.\n",
    "memory/2026-01-05.md": "# Monday\n\nThe heron nests by the canal.\n\n## 会议\n\n数据库迁移完成\n",
    'memory/<b>bold</b> & "x".md': "<script>alert('heron')</script> & <img src=x onerror=alert(1)>\n",
}
SEARCH = "/memory/-/agent-memory"

pytestmark = pytest.mark.asyncio


@pytest.fixture
def datasette(workspace, index, database, tiny, make_datasette):
    index(workspace(NOTES), tiny)
    return make_datasette(database)


async def get(datasette, url, /, actor=None, **params):
    if params:
        url += "?" + urlencode(params)
    cookies = {"ds_actor": datasette.sign({"a": {"id": actor}}, "actor")} if actor else {}
    return await datasette.client.get(url, cookies=cookies)


def links(page, label):
    return [html.unescape(href) for href in re.findall(rf'<a [^>]*href="([^"]+)"[^>]*>\s*{label}', page.text)]


async def test_json_has_the_designs_shape(datasette):
    response = await get(datasette, f"{SEARCH}.json", q="heron canal", k="2", min_score="0")
    assert response.status_code == 200
    answer = response.json()
    assert list(answer) == [
        "ok",
        "query",
        "provider",
        "model",
        "dims",
        "first_choice",
        "pending_chunks",
        "notices",
        "weak_match",
        "results",
        "sql",
        "params",
        "took_ms",
    ]
    assert answer["ok"] is True and answer["query"]["q"] == "heron canal" and answer["query"]["k"] == 2
    assert set(answer["query"]) == {"q", *PARAMETERS}
    assert (answer["provider"], answer["model"]) == ("tiny", "tiny-bag")
    hit = answer["results"][0]
    assert list(hit) == [
        "id",
        "path",
        "start_line",
        "end_line",
        "source",
        "score",
        "vector_score",
        "text_score",
        "decay",
        "age_days",
        "snippet",
        "citation",
        "vector_rank",
        "text_rank",
    ]
    assert (hit["vector_rank"], hit["text_rank"]) == (1, 1)
    assert (hit["path"], hit["start_line"], hit["end_line"]) == ("memory/2026-01-05.md", 1, 8)
    assert hit["citation"] == "memory/2026-01-05.md#L1-L8" and (hit["decay"], hit["age_days"]) == (1.0, None)
    assert hit["snippet"].startswith("# Monday")
    assert set(answer["took_ms"]) == {"embed", "sql", "total"}
    assert set(answer["params"]) >= {"q", "k", "candidates", "min_score"}


async def test_openclaws_shape(datasette):
    answer = (await get(datasette, f"{SEARCH}.json", q="heron", _shape="openclaw")).json()
    assert set(answer) == {"results", "provider", "model", "citations", "mode"}
    assert set(answer["results"][0]) == {
        "path",
        "startLine",
        "endLine",
        "score",
        "snippet",
        "source",
        "citation",
    }
    response = await get(datasette, f"{SEARCH}.json", q="heron", _shape="x")
    assert response.status_code == 400 and "_shape" in response.json()["error"]


async def test_a_bad_value_is_400_and_named(datasette):
    response = await get(datasette, f"{SEARCH}.json", q="x", k="-1")
    message = "k must be a whole number from 1 to 4096, not '-1'"
    assert response.status_code == 400
    assert response.json() == {"ok": False, "error": message, "errors": [message], "status": 400}
    page = await get(datasette, SEARCH, q="x", k="-1")
    assert (
        page.status_code == 400 and html.escape(message, quote=True).replace("&#x27;", "&#39;") in page.text
    )


async def test_weights_of_nothing_are_400(datasette):
    response = await get(datasette, f"{SEARCH}.json", q="heron", vector_weight="0", text_weight="0")
    assert response.status_code == 400
    assert response.json()["error"] == "vector_weight and text_weight must not both be 0"


async def test_the_page_shows_what_json_says(datasette):
    page = await get(datasette, SEARCH, q="heron canal", min_score="0")
    answer = (await get(datasette, f"{SEARCH}.json", q="heron canal", min_score="0")).json()
    assert page.status_code == 200
    assert re.findall(r'title="score ([^"]+)"', page.text) == [str(hit["score"]) for hit in answer["results"]]
    assert "<mark>heron</mark>" in page.text and "lines 1–8" in page.text
    assert "<mark>数据库</mark>" in (await get(datasette, SEARCH, q="数据库")).text
    assert links(page, "JSON") == [f"{SEARCH}.json?q=heron+canal&min_score=0"]


async def test_the_sql_link_gives_the_same_rows_and_scores(datasette):
    for given in (
        {},
        {"mode": "keyword", "decay": "1"},
        {"mmr": "1", "text_norm": "max", "path": "memory/*"},
    ):
        page = await get(datasette, SEARCH, q="heron's canal", **given)
        answer = (await get(datasette, f"{SEARCH}.json", q="heron's canal", **given)).json()
        (link,) = links(page, "View and edit SQL")
        assert (await datasette.client.get(link)).status_code == 200
        path, _, query = link.partition("?")
        rows = (await datasette.client.get(f"{path}.json?{query}&_shape=objects")).json()["rows"]
        assert [(row["id"], row["score"]) for row in rows] == [
            (hit["id"], hit["score"]) for hit in answer["results"]
        ]
        assert rows


async def test_hostile_text_and_names_are_escaped(datasette):
    for path, params in (
        (SEARCH, {"q": "heron"}),
        (SEARCH, {"q": "<script>alert(1)</script>"}),
        (SEARCH, {"q": ""}),
        (f"{SEARCH}/file", {"path": 'memory/<b>bold</b> & "x".md'}),
        (SEARCH, {"q": "heron", "source": '"><script>alert(1)</script>'}),
    ):
        page = await get(datasette, path, **params)
        assert page.status_code == 200
        assert (
            "<script>alert" not in page.text and "<img src=x" not in page.text and "<b>bold" not in page.text
        )


async def test_a_hundred_random_queries(datasette, capfd):
    letters = "ab \"'*():^-+{}[]\\/%_;.,?!&=<>#@\0\n\t漢字か🚀é\u202e"
    rng = random.Random(1)
    for _ in range(100):
        q = "".join(rng.choices(letters, k=rng.randint(0, 30)))
        for path in (SEARCH, f"{SEARCH}.json"):
            response = await get(datasette, path, q=q)
            assert response.status_code == 200, q
    for raw in ("%FF%FE", "%ED%A0%80", "%00", "+" * 50, quote("x" * 5000)):
        assert (await datasette.client.get(f"{SEARCH}.json?q={raw}")).status_code == 200
    assert "Traceback" not in capfd.readouterr().err


async def test_a_file_as_it_is_indexed(datasette):
    page = await get(datasette, f"{SEARCH}/file", path="memory/2026-01-05.md")
    assert page.status_code == 200 and 'id="L3"' in page.text and "The heron nests" in page.text
    answer = (
        await get(datasette, f"{SEARCH}/file.json", path="memory/2026-01-05.md", **{"from": 3, "lines": 2})
    ).json()
    assert answer["text"] == "The heron nests by the canal.\n\n"
    assert (answer["from"], answer["lines"], answer["total_lines"]) == (3, 2, 7)
    assert answer["exact"] is True
    assert answer["chunks"] == [{"start_line": 1, "end_line": 8}]


@pytest.mark.parametrize(
    "path",
    [
        "../workspace-other/secrets.md",
        "memory/leak.md",
        "/etc/passwd",
        "memory/%2e%2e/x",
        "MEMORY.md/",
        "memory",
    ],
)
async def test_only_indexed_files_can_be_read(datasette, path):
    response = await get(datasette, f"{SEARCH}/file.json", path=path)
    assert response.status_code == 404 and response.json()["ok"] is False
    assert (await get(datasette, f"{SEARCH}/file", path=path)).status_code == 404


async def test_a_bad_line_is_400(datasette):
    for value in ("0", "-1", "x", "１"):
        response = await get(datasette, f"{SEARCH}/file.json", path="MEMORY.md", **{"from": value})
        assert response.status_code == 400 and response.json()["error"].startswith("from ")
    assert (await get(datasette, f"{SEARCH}/file.json")).status_code == 400


async def test_status(datasette):
    status = (await get(datasette, f"{SEARCH}/status.json")).json()
    assert (status["files"], status["chunks"], status["provider"], status["dims"]) == (3, 3, "tiny", 32)
    assert status["searches"] == "hybrid"
    page = await get(datasette, f"{SEARCH}/status")
    assert page.status_code == 200 and "tiny-bag" in page.text


async def test_home_and_links_lead_there(datasette):
    home = await get(datasette, "/-/agent-memory")
    assert home.status_code == 200 and links(home, "memory") == [SEARCH, *links(home, "memory")[1:]]
    front = await get(datasette, "/")
    assert f'<a href="{SEARCH}">Agent memory</a>' in front.text
    page = await get(datasette, "/memory")
    assert links(page, "Search agent memory") == [SEARCH]


@pytest.fixture
def other_database(tmp_path):
    file = tmp_path / "other.db"
    conn = sqlite3.connect(file)
    conn.execute("create table chunks (id, path)")
    conn.close()
    return file


async def test_a_database_without_memory_is_404(make_datasette, other_database):
    datasette = make_datasette(other_database)
    for path in (
        "/other/-/agent-memory",
        "/other/-/agent-memory/status",
        "/other/-/agent-memory/file?path=x",
    ):
        page = await datasette.client.get(path)
        assert page.status_code == 404 and "holds no index of agent memory" in page.text
        as_json = await datasette.client.get(
            path.replace("memory/", "memory/", 1).replace("?", ".json?") if "?" in path else f"{path}.json"
        )
        assert as_json.status_code == 404 and "no index of agent memory" in as_json.json()["error"]
    assert (await datasette.client.get("/nothing/-/agent-memory.json")).status_code == 404
    front = await datasette.client.get("/")
    assert front.status_code == 200 and "Agent memory" not in front.text
    assert "Search agent memory" not in (await datasette.client.get("/other")).text


ROUTES = (SEARCH, f"{SEARCH}/file?path=MEMORY.md", f"{SEARCH}/status")


@pytest.mark.parametrize(
    "block",
    [
        {"allow": {"id": "owner"}},
        {"databases": {"memory": {"allow": {"id": "owner"}}}},
        {"databases": {"memory": {"tables": {"chunks": {"allow": {"id": "owner"}}}}}},
    ],
)
async def test_memory_is_for_those_who_may_view_it(workspace, index, database, tiny, make_datasette, block):
    index(workspace(NOTES), tiny)
    # On 0.65 `allow` is metadata, on 1.0a it is configuration.
    datasette = make_datasette(database, metadata=block)
    if hasattr(datasette, "ensure_permission"):
        datasette = make_datasette(database, config=block)
    for path in ROUTES:
        as_json = path.replace("?", ".json?") if "?" in path else f"{path}.json"
        assert (await get(datasette, path)).status_code == 403
        refused = await get(datasette, as_json)
        assert refused.status_code == 403 and refused.json()["ok"] is False
        assert "Mara" not in refused.text
        assert (await get(datasette, path, actor="owner")).status_code == 200
        assert (await get(datasette, as_json, actor="owner")).status_code == 200
    assert "/memory/-/" not in (await get(datasette, "/-/agent-memory")).text
    assert "/memory/-/" in (await get(datasette, "/-/agent-memory", actor="owner")).text
    assert "Agent memory</a>" not in (await get(datasette, "/")).text


async def test_an_attached_database_keeps_its_permissions(workspace, index, database, tiny, make_datasette):
    """With --crossdb, _memory sees the tables of all databases."""
    index(workspace(NOTES), tiny)
    block = {"databases": {"memory": {"allow": {"id": "owner"}}}}
    for kind in ("metadata", "config"):
        if kind == "config" and "config" not in inspect.signature(Datasette.__init__).parameters:
            continue
        datasette = make_datasette(database, memory=True, crossdb=True, **{kind: block})
        for path in ("", ".json", "/file.json?path=MEMORY.md", "/status.json"):
            response = await datasette.client.get(f"/_memory/-/agent-memory{path}")
            assert response.status_code == 404 and "Mara" not in response.text


async def test_home_is_for_those_who_may_view_the_instance(make_datasette):
    block = {"allow": {"id": "owner"}}
    datasette = make_datasette(metadata=block)
    if hasattr(datasette, "ensure_permission"):
        datasette = make_datasette(config=block)
    assert (await get(datasette, "/-/agent-memory")).status_code == 403
    assert (await get(datasette, "/-/agent-memory", actor="owner")).status_code == 200


async def test_without_execute_sql_there_is_no_link_to_the_editor(
    workspace, index, database, tiny, make_datasette
):
    index(workspace(NOTES), tiny)
    datasette = make_datasette(database, settings={"default_allow_sql": False})
    page = await get(datasette, SEARCH, q="heron")
    assert page.status_code == 200 and links(page, "View and edit SQL") == []


async def test_cors_as_datasette_is_told(workspace, index, database, tiny, make_datasette):
    index(workspace(NOTES), tiny)
    for cors, header in ((True, "*"), (False, None)):
        datasette = make_datasette(database, cors=cors)
        for path in (f"{SEARCH}.json?q=x", f"{SEARCH}.json?k=0", f"{SEARCH}/status.json"):
            assert (await datasette.client.get(path)).headers.get("access-control-allow-origin") == header


async def test_under_a_base_url_and_an_odd_name(workspace, index, tmp_path, tiny, make_datasette, database):
    index(workspace(NOTES), tiny)
    odd = database.rename(tmp_path / "my agent's.mem.db")
    datasette = make_datasette(odd, settings={"base_url": "/sub/"})
    home = await datasette.client.get("/-/agent-memory")
    (path,) = links(home, re.escape("my agent&#39;s.mem"))
    assert path.startswith("/sub/my+agent~27s~2Emem/-/agent-memory")
    page = await datasette.client.get(path.removeprefix("/sub") + "?q=heron")
    assert page.status_code == 200 and "<mark>heron</mark>" in page.text
    (link,) = links(page, "View and edit SQL")
    assert link.startswith("/sub/my+agent~27s~2Emem")
    assert (await datasette.client.get(link.removeprefix("/sub"))).status_code == 200


async def test_defaults_from_the_plugins_configuration(workspace, index, database, tiny, make_datasette):
    index(workspace(NOTES), tiny)
    block = {
        "plugins": {PLUGIN_NAME: {"k": 1, "min_score": 0}},
        "databases": {"memory": {"plugins": {PLUGIN_NAME: {"text_norm": "max"}}}},
    }
    datasette = make_datasette(database, metadata=block)
    query = (await get(datasette, f"{SEARCH}.json", q="heron")).json()["query"]
    assert (query["k"], query["min_score"], query["text_norm"]) == (1, 0, "max")
    query = (await get(datasette, f"{SEARCH}.json", q="heron", k=3)).json()["query"]
    assert query["k"] == 3


@pytest.mark.parametrize(
    "block, message", [({"k": "many"}, "k must be"), ({"min_scor": 1}, "no setting 'min_scor'")]
)
async def test_a_bad_configuration_stops_the_start(
    workspace, index, database, tiny, make_datasette, block, message
):
    import click

    index(workspace(NOTES), tiny)
    datasette = make_datasette(database, metadata={"plugins": {PLUGIN_NAME: block}})
    with pytest.raises(click.ClickException, match=message):
        await datasette.invoke_startup()


@pytest.mark.needs_sqlite_vec
async def test_a_vector_table_without_sqlite_vec_is_one_line(
    workspace, index, database, tiny, make_datasette, monkeypatch
):
    import click

    index(workspace(NOTES), tiny)
    monkeypatch.setattr("datasette_agent_memory.connections.load_sqlite_vec", lambda conn: False)
    datasette = make_datasette(database)
    with pytest.raises(click.ClickException, match="pip install"):
        await datasette.get_database("memory").execute("select 1")


async def test_an_index_without_a_vector_table_serves_without_sqlite_vec(
    workspace, index, database, tiny, make_datasette, no_sqlite_vec
):
    index(workspace(NOTES), tiny)
    datasette = make_datasette(database)
    answer = (await get(datasette, f"{SEARCH}.json", q="heron canal", min_score=0)).json()
    assert [notice["code"] for notice in answer["notices"]] == ["no_sqlite_vec"]
    assert answer["results"][0]["vector_score"] is not None
    assert "pip install" in (await get(datasette, SEARCH, q="heron")).text


async def test_an_immutable_database_serves(workspace, index, database, tiny, make_datasette):
    index(workspace(NOTES), tiny)
    datasette = make_datasette(immutables=[str(database)])
    assert (await get(datasette, f"{SEARCH}.json", q="heron")).json()["results"]


async def test_json_is_valid_for_odd_text(workspace, index, database, make_datasette):
    index(workspace({"a.md": "nul-free but odd \x01\x1b[31m \u2028 heron"}))
    datasette = make_datasette(database)
    response = await get(datasette, f"{SEARCH}.json", q="heron")
    assert json.loads(response.text)["results"][0]["snippet"].startswith("nul-free")


async def test_a_page_shows_the_first_of_very_many(workspace, index, database, make_datasette):
    index(workspace({f"memory/note-{number}.md": f"heron number {number}\n" for number in range(230)}))
    datasette = make_datasette(database)
    page = await get(datasette, SEARCH, q="heron", k="230")
    assert page.text.count('class="am-hit"') == 200 and "all 230 are in the JSON" in page.text
    assert len((await get(datasette, f"{SEARCH}.json", q="heron", k="230")).json()["results"]) == 230
    assert (await get(datasette, f"{SEARCH}.csv", q="heron", k="230")).text.count("\n") > 230
