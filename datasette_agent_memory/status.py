"""What an index holds, in numbers, and which of it can be searched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .connections import Connection, snapshot, sqlite3
from .dates import moment_in_words
from .disk import DiskState, look_at_disk
from .embeddings import NO_PROVIDER
from .embeddings.chain import PROVIDERS_OF_ENVIRONMENT, Providers
from .embeddings.queries import QUERY_VECTORS
from .integrity import quick_problems
from .layouts import SIX_TABLES
from .notices import Notice, provider_of, usable_sides
from .schema import MemoryIndex, as_text, as_time
from .search import NotAMemoryDatabase
from .sizes import read_sizes
from .watching import ANOTHER_WATCHES, BY_ANOTHER, watch_of_others


def read_status(
    conn: Connection,
    providers: Providers = PROVIDERS_OF_ENVIRONMENT,
    watch: Mapping[str, Any] | None = None,
    disk: DiskState | None = None,
) -> dict[str, Any]:
    """Counts, model and notices of a database's index, and what keeps it fresh, of this process or, as
    far as can be known, of another one; raises NotAMemoryDatabase.

    Its files are looked at in the folder that was indexed alone, unless `disk` says what they are.
    """
    with snapshot(conn):
        status = _read_status(conn, providers, disk)
    file = conn.execute("select file from pragma_database_list where name = 'main'").fetchone()[0]
    if watch is None and file:
        watch = watch_of_others(Path(file))
    notices = [
        {"code": notice.code, "message": notice.message, "command": None} for notice in _watch_notices(watch)
    ]
    return {**status, "notices": [*notices, *status["notices"]], "watch": watch}


def _read_status(conn: Connection, providers: Providers, disk: DiskState | None) -> dict[str, Any]:
    index = MemoryIndex.read(conn)
    if index is None:
        raise NotAMemoryDatabase
    layout = index.layout
    sides, notices = usable_sides(index, "hybrid", providers)
    provider = provider_of(index.meta, providers) if sides.vector else None
    failure = QUERY_VECTORS.failure(provider) if provider else None
    if failure:
        notices.append(Notice("embedding_failed", f"The last query could not be embedded: {failure}."))
    disk = disk or look_at_disk(conn, index)
    problems = [*quick_problems(conn, index), *(disk.problems() if disk else ())]
    sources = conn.execute(
        f"select source, count(distinct path), count(*) from {layout.chunks} group by source order by source"
    ).fetchall()
    # The newest row is the last: to read them all, past their vectors, would take longer than the rest.
    newest = "updated_at" if layout == SIX_TABLES else "max(updated_at)"
    order = "order by rowid desc limit 1" if layout == SIX_TABLES else ""
    updated = conn.execute(f"select {newest} from {layout.chunks} {order}").fetchone()
    return {
        "ok": True,
        "files": _count(conn, layout.files),
        "chunks": _count(conn, layout.chunks),
        "sources": [
            {"source": as_text(source), "files": files, "chunks": chunks} for source, files, chunks in sources
        ],
        "provider": index.provider,
        "model": index.model,
        "dims": index.dims,
        "asked_for": index.asked_for,
        "address": index.address,
        "first_choice": not index.passed_over,
        "passed_over": index.passed_over,
        "pending_chunks": index.pending,
        "searches": sides.mode if sides.vector or sides.text else None,
        "sqlite_vec": index.has_sqlite_vec,
        # Their shadow tables have a narrow row for each of their own.
        "fts_rows": _count(conn, f"{layout.chunks_fts}_docsize"),
        "vec_rows": _count(conn, f"{layout.chunks_vec}_rowids"),
        "passage_rows": _count(conn, "passages") if index.has_passages else None,
        "cached_embeddings": _count(conn, layout.embedding_cache),
        "chunk_tokens": index.meta.get("chunkTokens"),
        "chunk_overlap": index.meta.get("chunkOverlap"),
        "tokenizer": index.meta.get("ftsTokenizer"),
        "indexed_at": as_time(updated[0] if updated else None),
        "chain": _chain(index, {notice.code: notice.message for notice in notices}),
        "on_disk": disk.counts() if disk else None,
        "size": read_sizes(conn, index),
        "notices": [
            {"code": notice.code, "message": notice.message, "command": _command(notice.code, index)}
            for notice in notices
        ]
        + [
            # Without the examples: they may be names that nobody has shown to the index.
            {"code": problem.code, "message": f"{problem.message}.", "command": problem.command}
            for problem in problems
        ],
    }


_INDEX = "datasette agent-memory index FOLDER -d DATABASE"
#: The command that mends what a notice says is missing.
_MENDING = {
    "empty_index": _INDEX,
    "no_vectors": f"{_INDEX} --provider embedded",
    "vectors_pending": _INDEX,
    "last_run_failed": _INDEX,
    "second_choice": _INDEX,
    "no_fts": _INDEX,
    "no_vec_table": _INDEX,
    "dimension_mismatch": f"{_INDEX} --force",
    "model_unavailable": f"{_INDEX} --provider embedded",
    "no_sqlite_vec": "pip install pysqlite3 sqlite-vec",
}


def _watch_notices(watch: Mapping[str, Any] | None) -> Iterator[Notice]:
    """That what is to keep an index fresh does not."""
    if watch and watch["state"] in ("failed", "waiting", "off") and watch["detail"] != ANOTHER_WATCHES:
        yield Notice(f"watch_{watch['state']}", f"{_WATCH_WORDS[watch['state']]}: {watch['detail']}.")


def _command(code: str, index: MemoryIndex) -> str | None:
    """The command that mends what a notice says; the folder is named where it is not remembered."""
    command = _MENDING.get(code)
    return command.replace(" FOLDER", "") if command and index.meta.get("root") else command


#: Of these notices each says that queries are not embedded, and why.
_NOT_ANSWERING = ("model_unavailable", "dimension_mismatch", "embedding_failed")


def _chain(index: MemoryIndex, notices: Mapping[str, str]) -> list[dict[str, Any]]:
    """The providers that were to make the vectors, in their order, and how each did."""
    chain: list[dict[str, Any]] = [
        {"provider": one["provider"], "model": None, "state": "passed over", "detail": one["reason"]}
        for one in index.passed_over
    ]
    if index.has_embeddings:
        detail = next((notices[code] for code in _NOT_ANSWERING if code in notices), None)
        chain.append(
            {
                "provider": index.provider,
                "model": index.model,
                "state": "does not answer" if detail else "in use",
                "detail": detail,
            }
        )
    elif index.provider != NO_PROVIDER:
        chain.append(
            {"provider": index.provider, "model": index.model, "state": "no vectors", "detail": None}
        )
    return chain


def _count(conn: Connection, table: str) -> int | None:
    try:
        count: int = conn.execute(f"select count(*) from {table}").fetchone()[0]
    except sqlite3.Error:  # a table that this database has not got
        return None
    return count


#: What a watcher does, in words; why, and of what run, comes behind.
_WATCH_WORDS = {
    "starting": "It is about to be brought up to date",
    "watching": "Changes of its files are indexed as they happen",
    "looking": "Its files are looked at every now and then",
    "indexing": "Its files are being indexed",
    "waiting": "Nothing is indexed for now",
    "failed": "The last run failed, and is tried again",
    "off": "It is not kept fresh, although it is configured so",
}


def watching_in_words(watch: Mapping[str, Any] | None) -> str | None:
    """What keeps an index fresh, in a sentence or two; None where nothing does."""
    if watch is None:
        return None
    if watch["detail"] == BY_ANOTHER:
        return "Another process keeps it so, which says how it does."
    words = _WATCH_WORDS[watch["state"]]
    if watch["detail"]:
        words += f": {watch['detail']}"
    if watch["since"]:
        words += f" (since {moment_in_words(watch['since'])})"
    last = watch["last_run"]
    if last:
        words += (
            f". The last run, at {moment_in_words(last['at'])}, added {last['added']} files, updated "
            f"{last['updated']}, removed {last['removed']} and skipped {last['skipped']}, in "
            f"{last['took_s']:.1f} s"
        )
    return words + "."
