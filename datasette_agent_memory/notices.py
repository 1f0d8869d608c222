"""What an index, or this process, cannot do for a search, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .config import MANY_CHUNKS
from .connections import INSTALL_SQLITE_VEC, Connection, sqlite3
from .embeddings import NO_PROVIDER
from .embeddings.base import EmbeddingError, Provider
from .embeddings.chain import PROVIDERS_OF_ENVIRONMENT, Providers
from .fused_sql import Sides
from .keywords import CJK_RUN, normalised, plain_words
from .schema import MemoryIndex

#: How many chunks have their passages compared: fewer where to find the nearest takes long.
_NEAREST, _FEW_NEAREST = 256, 96

#: The length of a term of FTS5's trigram tokenizer.
_TRIGRAM = 3


@dataclass(frozen=True)
class Notice:
    """What an answer lacks, why, and what to do."""

    code: str
    message: str


def usable_sides(
    index: MemoryIndex, mode: str, providers: Providers = PROVIDERS_OF_ENVIRONMENT
) -> tuple[Sides, list[Notice]]:
    """What of the mode this index and this process can do, with a notice for what not."""
    if not index.has_chunks:
        notices = [Notice("empty_index", "The index is empty: no file with text has been indexed yet.")]
        return Sides(vector=False, text=index.has_fts), notices
    notices = []
    vector, text = mode != "keyword", mode != "vector"
    scan = False
    if vector:
        missing = _missing_vectors(index, providers)
        if missing:
            notices.append(missing)
            vector, text = False, True
        elif not (index.has_vec_table and index.has_sqlite_vec):
            scan = True
            notices.append(_scan_notice(index))
        if index.has_embeddings and index.pending:
            notices.append(_pending_notice(index))
        elif index.failure and not index.pending:
            notices.append(
                Notice(
                    "last_run_failed",
                    f"The last run ended with: {index.failure}. The index is as it was before.",
                )
            )
        if index.passed_over:
            notices.append(_second_choice_notice(index))
    if text and not index.has_fts:
        searched = "only vectors were searched" if vector else "nothing could be searched by keyword"
        notices.append(
            Notice(
                "no_fts",
                f"The full-text table {index.layout.chunks_fts} is missing or empty, so {searched}; "
                "datasette agent-memory index makes it again.",
            )
        )
        text = False
    provider = provider_of(index.meta, providers) if vector else None
    passages = 0
    if provider is not None and provider.has_passages and index.has_passages:
        passages = _FEW_NEAREST if index.chunk_count > MANY_CHUNKS else _NEAREST
    return Sides(vector, text, scan, passages, sessions=index.has_sessions), notices


def provider_of(meta: Mapping[str, Any], providers: Providers) -> Provider | None:
    """The provider of an index's vectors, None where it cannot be had: a notice says why."""
    try:
        return providers.of_index(meta)
    except EmbeddingError:
        return None


def substring_notice(conn: Connection, index: MemoryIndex, q: str) -> Notice | None:
    """Why the words of a question have to be looked for in the texts themselves, None where the
    full-text table finds them."""
    if index.has_cjk:
        return None
    words = plain_words(q)
    if index.tokenizer == "trigram":
        short = any(len(word) < _TRIGRAM for word in words)
        what = f"no words of fewer than {_TRIGRAM} characters" if short else None
    elif CJK_RUN.search(normalised(q)) or _has_hidden_word(conn, index, words):
        what = "runs of Chinese, Japanese or Korean whole, and no words inside them"
    else:
        what = None
    if what is None:
        return None
    return Notice(
        "substring",
        f"Another program made this index, whose full-text table has {what}; so the words of the question "
        "were looked for in the text of each chunk, which is slower.",
    )


def _has_hidden_word(conn: Connection, index: MemoryIndex, words: list[str]) -> bool:
    """Whether a word stands in a text, and the full-text table has it nowhere: inside a run of CJK."""
    fts, chunks = index.layout.chunks_fts, index.layout.chunks
    try:
        missing = [
            word
            for word in words
            if not conn.execute(
                f"SELECT 1 FROM {fts} WHERE {fts} MATCH fts_query(?) LIMIT 1", (word,)
            ).fetchone()
        ]
        return any(
            conn.execute(f"SELECT 1 FROM {chunks} WHERE word_count(text, ?) > 0 LIMIT 1", (word,)).fetchone()
            for word in missing
        )
    except sqlite3.Error:  # the search itself will say
        return False


def _missing_vectors(index: MemoryIndex, providers: Providers) -> Notice | None:
    """Why the index's vectors cannot be searched, None where they can."""
    if not index.has_embeddings:
        if index.pending:
            return _pending_notice(index)
        return Notice(
            "no_vectors",
            "This index has no vectors, so search is by keyword only; "
            "datasette agent-memory index --provider embedded adds them.",
        )
    made_by = f"{index.provider} {index.model}".strip()
    if index.provider == NO_PROVIDER:
        return Notice(
            "model_unavailable",
            "The index does not say which model made its vectors, so search is by keyword only; "
            "datasette agent-memory index FOLDER --force makes it again.",
        )
    try:
        provider = providers.of_index(index.meta)
    except EmbeddingError as error:
        return Notice(
            "model_unavailable",
            f"The index's vectors are of {made_by}, which cannot be used here, so search is by keyword only: "
            f"{error}.",
        )
    if provider.dims is not None and index.dims != provider.dims:
        return other_width(index, provider.dims)
    return None


def other_width(index: MemoryIndex, dims: int) -> Notice:
    return Notice(
        "dimension_mismatch",
        f"The index's vectors have {index.dims} dimensions and those of {index.provider} {index.model} have "
        f"{dims}, so search is by keyword only; datasette agent-memory index --force makes them again.",
    )


def _pending_notice(index: MemoryIndex) -> Notice:
    found = "are found by keyword only" if index.has_embeddings else "search is by keyword only"
    if index.refused >= index.pending:
        return Notice(
            "vectors_pending",
            f"{index.pending:,} of {index.chunk_count:,} chunks have no vector, since {index.provider} "
            f"{index.model} refused their text, and {found}; "
            "datasette agent-memory index --force asks again.",
        )
    why = f" The last run ended with: {index.failure}." if index.failure else ""
    return Notice(
        "vectors_pending",
        f"{index.pending:,} of {index.chunk_count:,} chunks have no vector yet, and {found}; "
        f"datasette agent-memory index adds them.{why}",
    )


def _second_choice_notice(index: MemoryIndex) -> Notice:
    has = "no vectors" if index.provider == NO_PROVIDER else f"vectors of {index.provider} {index.model}"
    reasons = "; ".join(
        one["reason"] if one["reason"].startswith(one["provider"]) else f"{one['provider']}: {one['reason']}"
        for one in index.passed_over
    )
    return Notice(
        "second_choice",
        f"This index has {has}, and not of the first choice: {reasons}. "
        "The next datasette agent-memory index tries that again.",
    )


def _scan_notice(index: MemoryIndex) -> Notice:
    if index.has_sqlite_vec:
        return Notice(
            "no_vec_table",
            f"The vector table {index.layout.chunks_vec} is missing or empty, so vectors were compared one "
            "by one, which is slow; datasette agent-memory index makes it again.",
        )
    return Notice(
        "no_sqlite_vec",
        "sqlite-vec cannot be loaded, so vectors were compared one by one, which is slow; "
        f"{INSTALL_SQLITE_VEC}.",
    )
