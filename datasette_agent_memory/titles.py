"""What search results and files are about, by the headings that they stand under."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from .connections import Connection
from .context import Place, first_heading, heading_trail
from .layouts import Layout
from .schema import as_line, as_text
from .search import Hit

#: A heading further above than these chunks is not looked for.
_MOST_CHUNKS = 40
#: Nobody reads the titles of more.
_MOST_TITLES = 200


def titles_of_hits(conn: Connection, layout: Layout, hits: Sequence[Hit]) -> dict[str, str]:
    """The nearest heading above what is shown of each hit, behind the first of those above it, by the
    hit's id; without those that have none."""
    titles = {}
    for hit in hits[:_MOST_TITLES]:
        rows = conn.execute(
            f"select start_line, end_line, text from {layout.chunks} where path = ? and rowid <"
            f" (select rowid from {layout.chunks} where id = ?) order by rowid desc limit {_MOST_CHUNKS}",
            (hit.path, hit.id),
        ).fetchall()
        above: list[Place] = [
            (as_line(start), as_line(end), as_text(text)) for start, end, text in reversed(rows)
        ]
        trail = heading_trail(
            [*above, (hit.start_line, hit.end_line, hit.text)], len(above), _line_shown(hit)
        )
        if trail:
            titles[hit.id] = " › ".join(dict.fromkeys([trail[0], trail[-1]]))
    return titles


def titles_of_files(conn: Connection, layout: Layout, paths: Iterable[str]) -> dict[str, str]:
    """The first heading of each file, by its path; without those whose first chunk has none."""
    wanted = json.dumps(list(paths)[:_MOST_TITLES])
    rows = conn.execute(
        f"select path, text from {layout.chunks} where start_line = 1"
        " and path in (select value from json_each(?)) order by rowid desc",
        (wanted,),
    )
    titles = {}
    for path, text in rows:
        if heading := first_heading(as_text(text)):
            titles[as_text(path)] = heading
    return titles


def _line_shown(hit: Hit) -> int | None:
    """The line of the first match that is shown of a hit, None where nothing matches."""
    excerpt = hit.excerpt
    if not excerpt.spans:
        return None
    return hit.start_line + excerpt.lines_before + excerpt.text.count("\n", 0, excerpt.spans[0][0])
