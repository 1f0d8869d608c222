"""What is found, counted by source, month and folder, and the filters that lead into each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from .dates import folder_of, month_bounds, month_of

#: More values of a facet are of no help.
_MOST = 12


@dataclass(frozen=True)
class FacetValue:
    label: str
    count: int
    #: The search parameters that leave these alone, None for one to be left out; none of them
    #: where no filter can say it.
    filters: Mapping[str, str | None] | None
    is_selected: bool = False


@dataclass(frozen=True)
class Facet:
    name: str
    values: list[FacetValue]
    #: How many values are not listed.
    more: int = 0


def facets_of(found: Iterable[tuple[str, str]], given: Mapping[str, Any]) -> list[Facet]:
    """The facets of paths with their sources; `given` are the parameters of the search."""
    found = list(found)
    facets = [
        _facet("Source", (source for _, source in found), lambda source: {"source": source}, given),
        _facet("Month", (month_of(path) for path, _ in found), _filters_of_month, given, newest_first=True),
        # What is in a folder's folders is found by its filter, too.
        _facet(
            "Folder", chain.from_iterable(folders_of(path) for path, _ in found), _filters_of_folder, given
        ),
    ]
    # A facet of one value says nothing, unless it can be taken away.
    return [
        facet for facet in facets if len(facet.values) > 1 or any(value.is_selected for value in facet.values)
    ]


def folders_of(path: str) -> list[str]:
    """The folder of a path and those that it is in, [""] for a path of the top one."""
    folder = folder_of(path)
    parts = folder.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def _facet(
    name: str,
    labels: Iterable[str],
    filters_of: Callable[[str], dict[str, str] | None],
    given: Mapping[str, Any],
    newest_first: bool = False,
) -> Facet:
    counts = Counter(labels)
    order = sorted(counts, reverse=True) if newest_first else [label for label, _ in counts.most_common()]
    values = []
    for label in order[:_MOST]:
        filters = filters_of(label)
        is_selected = filters is not None and filters.items() <= given.items()
        shown = dict.fromkeys(filters) if filters and is_selected else filters
        values.append(FacetValue(label, counts[label], shown, is_selected))
    return Facet(name, values, max(0, len(order) - _MOST))


def _filters_of_month(month: str) -> dict[str, str] | None:
    if not month:
        return None
    since, until = month_bounds(month)
    return {"since": since.isoformat(), "until": until.isoformat()}


def _filters_of_folder(folder: str) -> dict[str, str] | None:
    if not folder:  # * goes through folders
        return None
    literal = "".join(f"[{sign}]" if sign in "*?[" else sign for sign in folder)
    return {"path": f"{literal}/*"}
