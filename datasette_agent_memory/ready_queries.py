"""Queries that are there to be run: on a page of their own, and among Datasette's queries.

The first three are the statements of the search itself. Each is left out where a database cannot
run it, and a parameter that is left blank has a default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from datasette.utils.asgi import Forbidden

from .config import PLUGIN_NAME, configured_options, resolve_options
from .connections import Connection, sqlite3
from .embeddings.chain import Providers
from .embeddings.server import providers_of
from .known import known_memories, look_at
from .notices import provider_of, usable_sides
from .schema import MemoryIndex
from .search import statement_of
from .web import ensure_readable

#: How many chunks have their neighbours looked for, in memories of up to so many: each takes some
#: 10 ms among 20,000, and the longer the more there are.
_CHUNKS, _CHUNKS_UP_TO = 20, 10_000
#: How many neighbours of a chunk are looked at.
_NEIGHBOURS = 30
#: How many chunks each of those is compared with, where there is no vector table to ask.
_COMPARED = 120
#: From this cosine on, two texts say nearly the same, and two texts are about the same.
_SAME, _ABOUT_THE_SAME = 0.9, 0.6

_GLANCE_LINES = 14

_PARAMETER = re.compile(r":([A-Za-z_]\w*)")


@dataclass(frozen=True)
class ReadyQuery:
    name: str
    title: str
    #: One sentence, or two, on what it tells.
    description: str
    sql: str

    @property
    def is_long(self) -> bool:
        """Whether the SQL is more than one sees at a glance."""
        return self.sql.count("\n") >= _GLANCE_LINES

    @property
    def asks(self) -> bool:
        """Whether it has a question to be filled in."""
        return "q" in _PARAMETER.findall(self.sql)


def ready_queries(
    conn: Connection, index: MemoryIndex, configured: Mapping[str, object], providers: Providers
) -> list[ReadyQuery]:
    """The queries that a database can run."""
    queries = [*_searches(index, configured, providers), *_inspections(index)]
    return [query for query in queries if _compiles(conn, query.sql)]


def _compiles(conn: Connection, sql: str) -> bool:
    try:
        # Nothing is run: the tables and columns have to be there.
        conn.execute(f"EXPLAIN {sql}", dict.fromkeys(_PARAMETER.findall(sql), ""))
    except sqlite3.Error:
        return False
    return True


def _searches(
    index: MemoryIndex, configured: Mapping[str, object], providers: Providers
) -> Iterator[ReadyQuery]:
    provider = provider_of(index.meta, providers)
    texts = {
        "hybrid": ("Search by meaning and by words", "What the search page finds for a question."),
        "vector": ("Search by meaning", "The chunks whose vectors are nearest to that of a question."),
        "keyword": ("Search by words", "The chunks that have the words of a question, ranked by BM25."),
    }
    for mode, (title, description) in texts.items():
        sides, _ = usable_sides(index, mode, providers)
        if sides.mode != mode or not (sides.vector or sides.text):
            continue
        if sides.vector and provider is not None and not provider.in_process:
            description += (
                f" {index.provider} is not asked from SQL, so it finds by meaning only what was"
                " searched for on the search page a while ago."
            )
        options = resolve_options(
            {"mode": mode}, configured, provider.search_defaults if provider is not None else None
        )
        statement = statement_of(index, "", options, sides)
        sql = _with_literals(statement.sql, statement.params)
        yield ReadyQuery(f"agent_memory_{mode}", title, description, sql)


def _with_literals(sql: str, params: Mapping[str, Any]) -> str:
    """The statement with its numbers in it, so that only the question is left to be filled in."""

    def literal(match: re.Match[str]) -> str:
        name = match[1]
        if name == "q" or name not in params:
            return match[0]
        value = params[name]
        if value is None:
            return "date('now')" if name == "now" else "NULL"
        if isinstance(value, (int, float)):
            return repr(value)
        return "'" + str(value).replace("'", "''") + "'"

    return _PARAMETER.sub(literal, sql)


def _inspections(index: MemoryIndex) -> Iterator[ReadyQuery]:
    layout = index.layout
    chunks, files, cache = layout.chunks, layout.files, layout.embedding_cache
    if index.has_embeddings:
        yield _near_duplicates(index)
        yield _oldest_standing(index)
    yield ReadyQuery(
        "agent_memory_largest_files",
        "Largest files",
        "The files that take the most room, and into how many chunks they were cut.",
        f"""\
SELECT path, source, size,
  (SELECT count(*) FROM {chunks} WHERE {chunks}.path = {files}.path) AS chunks,
  mtime
FROM {files}
ORDER BY size DESC, path
LIMIT 100""",
    )
    yield ReadyQuery(
        "agent_memory_front_matter",
        "Front matter",
        "What files say of themselves at their beginning, a row for each value: title, tags, dates.",
        """\
SELECT file_details.path, property.key AS property,
  coalesce(item.value, property.value) AS value
FROM file_details
CROSS JOIN json_each(file_details.properties) AS property
LEFT JOIN json_each(CASE property.type WHEN 'array' THEN property.value ELSE '[]' END) AS item
ORDER BY property, value, file_details.path
LIMIT 10000""",
    )
    yield ReadyQuery(
        "agent_memory_without_vectors",
        "Chunks without a vector",
        "What a search by meaning cannot find, since it has not been embedded, or was refused.",
        f"""\
SELECT path, start_line, end_line, source, model, text, id
FROM {chunks}
WHERE embedding IS NULL OR length(embedding) <= 2
ORDER BY path, start_line
LIMIT 1000""",
    )
    yield ReadyQuery(
        "agent_memory_cache_by_model",
        "Embedding cache by model",
        "How many vectors of which model are kept, so that the same text is not embedded twice.",
        f"""\
SELECT provider, model, dims, count(*) AS vectors,
  datetime(max(updated_at) / 1000, 'unixepoch') AS last_used
FROM {cache}
GROUP BY provider, model, dims
ORDER BY vectors DESC, provider, model""",
    )
    yield ReadyQuery(
        "agent_memory_changed_this_week",
        "Changed this week",
        "The files that were written in the last seven days, the latest first.",
        f"""\
SELECT path, source, size, datetime(mtime / 1000, 'unixepoch') AS changed
FROM {files}
WHERE mtime / 1000 >= CAST(strftime('%s', 'now', '-7 days') AS INTEGER)
ORDER BY mtime DESC, path
LIMIT 1000""",
    )


def _near_duplicates(index: MemoryIndex) -> ReadyQuery:
    chunks, vectors = index.layout.chunks, index.layout.chunks_vec
    if _has_neighbours(index):
        compared = "all others"
        near = f"""\
newest AS MATERIALIZED (
  SELECT id
  FROM {chunks}
  ORDER BY updated_at DESC, path DESC, start_line DESC
  LIMIT {_number("chunks", _chunks_compared(index))}
),
near AS MATERIALIZED (
{_neighbours("newest", vectors, 10)}
)"""
    else:
        compared = "one another"
        near = f"""\
newest AS MATERIALIZED (
  SELECT id, embedding
  FROM {chunks}
  WHERE id IN (
    SELECT id
    FROM {chunks}
    ORDER BY updated_at DESC, path DESC, start_line DESC
    LIMIT {_number("chunks", _chunks_compared(index))}
  ) AND typeof(embedding) = 'text' AND length(embedding) > 2
),
near AS MATERIALIZED (
  SELECT newest.id AS id, other.id AS other_id,
    cosine_similarity(newest.embedding, other.embedding) AS cosine
  FROM newest
  JOIN newest AS other ON newest.id < other.id
)"""
    return ReadyQuery(
        "agent_memory_near_duplicates",
        "Near duplicates",
        f"Chunks that say nearly the same, of the newest {_chunks_compared(index)} compared with {compared}: "
        f"cosine is how near at least ({_SAME} if left blank), chunks how many of the newest.",
        f"""\
WITH {near}
SELECT round(cosine, 3) AS cosine,
  one.path, one.start_line, one.end_line, one.source, one.text, one.id,
  other.path AS other_path, other.start_line AS other_line, other.text AS other_text
FROM near
JOIN {chunks} AS one ON one.id = near.id
JOIN {chunks} AS other ON other.id = near.other_id
WHERE cosine >= {_number("cosine", _SAME)}
  -- Each pair once, and none of neighbours in a file, which share some lines.
  AND (near.id < other_id OR other_id NOT IN (SELECT id FROM newest))
  AND NOT (
    one.path = other.path AND one.start_line <= other.end_line AND other.start_line <= one.end_line
  )
ORDER BY near.cosine DESC, one.path, one.start_line, near.id, other_id
LIMIT 1000""",
    )


def _oldest_standing(index: MemoryIndex) -> ReadyQuery:
    chunks, vectors = index.layout.chunks, index.layout.chunks_vec
    oldest = f"""\
SELECT id, memory_age(path) AS age_days
  FROM {chunks}
  WHERE age_days IS NOT NULL
  ORDER BY age_days DESC, path, start_line
  LIMIT {_number("chunks", _chunks_compared(index))}"""
    if _has_neighbours(index):
        compared = f"the {_NEIGHBOURS} chunks nearest to it"
        near = f"""\
oldest AS MATERIALIZED (
  {oldest}
),
near AS MATERIALIZED (
{_neighbours("oldest", vectors, _NEIGHBOURS)}
)"""
    else:
        compared = f"the latest {_COMPARED} chunks"
        near = f"""\
oldest AS MATERIALIZED (
  {oldest}
),
latest AS MATERIALIZED (
  SELECT id
  FROM {chunks}
  WHERE memory_age(path) IS NOT NULL
  ORDER BY memory_age(path), path DESC, start_line
  LIMIT {_COMPARED}
),
-- Each vector is read once.
vectors AS MATERIALIZED (
  SELECT id, embedding
  FROM {chunks}
  WHERE (id IN (SELECT id FROM oldest) OR id IN (SELECT id FROM latest))
    AND typeof(embedding) = 'text' AND length(embedding) > 2
),
near AS MATERIALIZED (
  SELECT oldest.id AS id, other.id AS other_id,
    cosine_similarity(own.embedding, other.embedding) AS cosine
  FROM oldest
  JOIN vectors AS own ON own.id = oldest.id
  JOIN vectors AS other ON other.id = own.id OR other.id IN (SELECT id FROM latest)
)"""
    return ReadyQuery(
        "agent_memory_oldest_standing",
        "Oldest that still stand",
        f"Of the {_chunks_compared(index)} oldest dated chunks, those that no later one is about: none of"
        f" {compared} has a later date and this cosine or more ({_ABOUT_THE_SAME} if left blank);"
        " chunks is how many of the oldest.",
        f"""\
WITH {near}
SELECT path, start_line, end_line, source, age_days,
  (SELECT round(max(cosine), 3) FROM near WHERE near.id = oldest.id AND other_id <> oldest.id) AS nearest,
  text, id
FROM oldest
JOIN {chunks} USING (id)
-- One without a vector is near to nothing, not even itself.
WHERE id IN (SELECT id FROM near)
  AND NOT EXISTS (
    SELECT 1
    FROM near
    JOIN {chunks} AS later ON later.id = other_id
    WHERE near.id = oldest.id AND memory_age(later.path) < oldest.age_days
      AND cosine >= {_number("cosine", _ABOUT_THE_SAME)}
  )
ORDER BY age_days DESC, path, start_line, id""",
    )


def _chunks_compared(index: MemoryIndex) -> int:
    return max(2, min(_CHUNKS, _CHUNKS * _CHUNKS_UP_TO // max(1, index.chunk_count)))


def _has_neighbours(index: MemoryIndex) -> bool:
    return index.has_vec_table and index.has_sqlite_vec


def _neighbours(chunks: str, vectors: str, k: int) -> str:
    """The nearest chunks of each of some, itself among them, with their cosine.

    CROSS JOIN is SQLite's way to say in which order: it would begin with all vectors.
    """
    return f"""\
  SELECT own.id AS id, other.id AS other_id,
    1 - vec_distance_cosine(own.embedding, other.embedding) AS cosine
  FROM {chunks}
  CROSS JOIN {vectors} AS own ON own.id = {chunks}.id
  CROSS JOIN {vectors} AS other ON other.embedding MATCH own.embedding AND other.k = {k}"""


def _number(name: str, default: float) -> str:
    """A parameter that is a number, as which Datasette gives a text, or an empty one."""
    return f"CAST(coalesce(nullif(:{name}, ''), {default}) AS {'INTEGER' if default >= 1 else 'REAL'})"


async def queries_of(datasette: Any, database: Any, index: MemoryIndex) -> list[ReadyQuery]:
    """The queries that an attached database can run."""
    configured = configured_options(datasette, database.name)
    providers = providers_of(datasette)
    queries: list[ReadyQuery] = await database.execute_fn(
        lambda conn: ready_queries(conn, index, configured, providers)
    )
    return queries


async def may_run(datasette: Any, actor: Any, database: str, query: ReadyQuery) -> bool:
    """Whether Datasette has this query, and none of somebody else's in its place, for the actor."""
    if stores_queries(datasette):
        from datasette.resources import QueryResource

        stored = await datasette.get_query(database, query.name)
        if stored is None or stored.source != PLUGIN_NAME:
            return False
        return bool(
            await datasette.allowed(
                action="view-query", resource=QueryResource(database, query.name), actor=actor
            )
        )
    if query.name in (datasette.metadata("queries", database=database, fallback=False) or {}):
        return False
    visible, _ = await datasette.check_visibility(
        actor,
        permissions=[("view-query", (database, query.name)), ("view-database", database), "view-instance"],
    )
    return bool(visible)


# Among Datasette's queries: on 0.65 by a hook, which is asked each time.


def canned_queries(datasette: Any, database: str, actor: Any) -> Callable[[], Awaitable[dict[str, Any]]]:
    """They are for those who may read the memory itself: a query needs no permission to run SQL."""

    async def queries() -> dict[str, Any]:
        attached = datasette.get_database(database)
        try:
            index = await look_at(attached)
            ready = await queries_of(datasette, attached, index) if index is not None else []
        except sqlite3.Error:
            return {}
        if not ready or index is None:
            return {}
        # None leaves it to the other permissions. To leave the query out is no way: Datasette asks
        # for what an actor sees on behalf of none as well, and relies on its being there.
        allow = None if await _is_readable(datasette, actor, database, index.layout.chunks) else False
        own = datasette.metadata("queries", database=database, fallback=False) or {}
        return {
            query.name: {
                "sql": query.sql,
                "title": query.title,
                "description": query.description,
                "hide_sql": query.is_long,
                "allow": allow,
            }
            for query in ready
            if query.name not in own
        }

    return queries


async def _is_readable(datasette: Any, actor: Any, database: str, chunks: str) -> bool:
    try:
        await ensure_readable(datasette, actor, database, chunks)
    except Forbidden:
        return False
    return True


# On 1.0a they are stored in its internal database, which may outlive this process.


def stores_queries(datasette: Any) -> bool:
    return hasattr(datasette, "add_query")


async def store_queries(datasette: Any, database: str, queries: list[ReadyQuery]) -> None:
    """Make these the stored queries of a database, beside those of others, whatever their names."""
    if not stores_queries(datasette):
        return
    stored = {row["name"]: row for row in await _stored(datasette, database)}
    for query in queries:
        row = stored.get(query.name)
        if row is not None and row["source"] != PLUGIN_NAME:
            continue
        if row is None or (row["sql"], row["title"], row["description"]) != (
            query.sql,
            query.title,
            query.description,
        ):
            await datasette.add_query(
                database,
                query.name,
                query.sql,
                title=query.title,
                description=query.description,
                hide_sql=query.is_long,
                # Datasette cannot analyse what has functions of a plugin's; see permission_rules.
                is_trusted=True,
                source=PLUGIN_NAME,
            )
    for name in set(stored) - {query.name for query in queries}:
        await datasette.remove_query(database, name, source=PLUGIN_NAME)


async def drop_queries(datasette: Any, memories: set[str]) -> None:
    """Drop what is stored for databases that are no memories, or no longer attached."""
    if not stores_queries(datasette):
        return
    rows = await datasette.get_internal_database().execute(
        "select distinct database_name from queries where source = ?", [PLUGIN_NAME]
    )
    for (database,) in rows.rows:
        if database not in memories:
            await store_queries(datasette, database, [])


async def _stored(datasette: Any, database: str) -> list[Any]:
    rows = await datasette.get_internal_database().execute(
        "select name, sql, title, description, source from queries where database_name = ?", [database]
    )
    return list(rows.rows)


async def permission_rules(datasette: Any, actor: Any) -> Any:
    """Deny the stored queries of all but the memories that the actor may read.

    Also of what is no memory at the moment, and may be one again before anybody has looked.
    """
    from datasette.permissions import PermissionSQL

    readable = [
        database
        for database, known in known_memories(datasette).items()
        if await _is_readable(datasette, actor, database, known.layout.chunks)
    ]
    return PermissionSQL(
        sql=(
            "select database_name as parent, name as child, 0 as allow, 'unreadable memory' as reason"
            " from queries where source = :agent_memory_source"
            " and database_name not in (select value from json_each(:agent_memory_readable))"
        ),
        params={"agent_memory_source": PLUGIN_NAME, "agent_memory_readable": json.dumps(readable)},
    )
