"""The part of a chunk that is shown for a query, and which of its characters matched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from .connections import sqlite3
from .keywords import CJK_RUN, fts_query, query_words
from .schema import FTS_TOKENIZER

#: As much as the peer's tool returns, for programs.
SNIPPET_CHARS = 700
#: As much as a person takes in at a glance.
EXCERPT_CHARS = 320

# Private-use characters that stand for the marks while FTS5 sets them.
_OPEN, _CLOSE = "\ue000", "\ue001"

Span = tuple[int, int]


@dataclass(frozen=True)
class Snippet:
    """A part of a text, the spans of its own characters that match the query, and what it leaves out."""

    text: str
    spans: tuple[Span, ...]
    #: Lines of the whole text before this part's first.
    lines_before: int = 0
    is_cut_before: bool = False
    is_cut_after: bool = False

    def segments(self) -> list[tuple[str, bool]]:
        """The text in pieces, each with whether it matched, with … where it is cut."""
        pieces, end = [("…" if self.is_cut_before else "", False)], 0
        for start, stop in self.spans:
            pieces += [(self.text[end:start], False), (self.text[start:stop], True)]
            end = stop
        pieces += [(self.text[end:], False), ("…" if self.is_cut_after else "", False)]
        return [piece for piece in pieces if piece[0]]


def find_matches(texts: Sequence[str], query: str) -> list[list[Span]]:
    """For each text the spans that match the query, in order and apart."""
    words = _word_matches(texts, query)
    runs = {run for word in query_words(query) for run in CJK_RUN.findall(word)}
    return [_merged(spans + _cjk_matches(text, runs)) for text, spans in zip(texts, words, strict=True)]


def best_part(text: str, spans: list[Span], chars: int) -> Snippet:
    """The part of at most so many characters with the most matches, or the beginning."""
    start = _best_start(text, spans, chars) if len(text) > chars else 0
    end = min(len(text), start + chars)
    if end < len(text):
        # Not in the middle of a word, where there is a gap between words nearby.
        gap = max(text.rfind(" ", start, end), text.rfind("\n", start, end))
        end = gap if gap > end - chars // 8 else end
    kept = [(first - start, min(last, end) - start) for first, last in spans if start <= first < end]
    return Snippet(
        text=text[start:end],
        spans=tuple(kept),
        lines_before=text.count("\n", 0, start),
        is_cut_before=start > 0,
        is_cut_after=end < len(text),
    )


def _word_matches(texts: Sequence[str], query: str) -> list[list[Span]]:
    """Spans found by FTS5 itself, so that stemming and diacritics count as in the index."""
    spans: list[list[Span]] = [[] for _ in texts]
    with closing(sqlite3.connect(":memory:")) as conn:
        try:
            conn.execute(f"create virtual table texts using fts5(text, tokenize = '{FTS_TOKENIZER}')")
        except sqlite3.Error:  # this SQLite has no FTS5
            return spans
        conn.executemany(
            "insert into texts (rowid, text) values (?, ?)",
            [(index, text.replace(_OPEN, " ").replace(_CLOSE, " ")) for index, text in enumerate(texts)],
        )
        for index, marked in conn.execute(
            "select rowid, highlight(texts, 0, ?, ?) from texts where texts match ?",
            (_OPEN, _CLOSE, fts_query(query)),
        ):
            spans[index] = _spans_of_marked(marked)
    return spans


def _spans_of_marked(marked: str) -> list[Span]:
    spans, position = [], 0
    for number, piece in enumerate(marked.replace(_CLOSE, _OPEN).split(_OPEN)):
        if number % 2:
            spans.append((position, position + len(piece)))
        position += len(piece)
    return spans


def _cjk_matches(text: str, runs: set[str]) -> list[Span]:
    """Where the text has two neighbouring characters of a run, or a run of one."""
    parts = {run[start : start + 2] for run in runs for start in range(max(1, len(run) - 1))}
    spans = []
    for part in parts:
        start = text.find(part)
        while start >= 0:
            spans.append((start, start + len(part)))
            start = text.find(part, start + 1)
    return spans


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _best_start(text: str, spans: list[Span], chars: int) -> int:
    """Where the part begins that holds the most different matches, then the most, then the first.

    It begins with a match, or with the line of one; both ends move forward alone, so that
    the time is linear in the matches.
    """
    starts = sorted({text.rfind("\n", 0, first) + 1 for first, _ in spans} | {first for first, _ in spans})
    words = [text[first:last].casefold() for first, last in spans]
    inside: Counter[str] = Counter()
    best, best_start = (0, 0), 0
    left = right = 0
    for start in starts:
        while right < len(spans) and spans[right][1] <= start + chars:
            inside[words[right]] += 1
            right += 1
        while left < right and spans[left][0] < start:
            inside[words[left]] -= 1
            if not inside[words[left]]:
                del inside[words[left]]
            left += 1
        found = (len(inside), right - left)
        if found > best:
            best, best_start = found, start
    return best_start
