"""The results of a search for other programs: a table as CSV, and Markdown for a prompt."""

from __future__ import annotations

import csv
import io
import re

from .search import Answer

_COLUMNS = [
    "path",
    "start_line",
    "end_line",
    "source",
    "score",
    "vector_score",
    "text_score",
    "vector_rank",
    "text_rank",
    "decay",
    "age_days",
    "citation",
    "id",
    "text",
]


def as_csv(answer: Answer) -> str:
    """A row for each result, with the whole text of its chunk."""
    table = io.StringIO(newline="")
    writer = csv.writer(table)
    writer.writerow(_COLUMNS)
    for hit in answer.hits:
        writer.writerow([getattr(hit, column) for column in _COLUMNS])
    return table.getvalue()


def as_markdown(answer: Answer) -> str:
    """The results as they may stand in a prompt: each with where it is from, and fenced.

    A fence is longer than any run of its sign in the text, which so cannot end it and speak
    for whoever writes the prompt.
    """
    q = " ".join(answer.q.split())
    lines = [f"# Memory about: {q}", ""]
    for place, hit in enumerate(answer.hits, 1):
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", hit.text)), default=0))
        citation = " ".join(hit.citation.split())
        lines += [f"## {place}. {citation} (score {hit.score:.3f})", "", f"{fence}markdown"]
        lines += [hit.text.rstrip("\n"), fence, ""]
    if not answer.hits:
        lines += ["Nothing was found.", ""]
    return "\n".join(lines)
