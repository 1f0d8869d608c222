"""What the path of a memory says of it: its date, as people say dates, and its folder."""

from __future__ import annotations

from calendar import monthrange
from datetime import date

from .sql_functions import date_of_path, memory_age


def month_of(path: str) -> str:
    """`2026-01` of memory/2026-01-05.md, empty for a path without a date."""
    day = date_of_path(path)
    return f"{day.year:04}-{day.month:02}" if day else ""


def month_bounds(month: str) -> tuple[date, date]:
    """The first and the last day of a month like 2026-01."""
    first = date.fromisoformat(f"{month}-01")
    return first, first.replace(day=monthrange(first.year, first.month)[1])


def folder_of(path: str) -> str:
    """The folder of a path, empty for the top one."""
    return path.rpartition("/")[0]


def date_in_words(path: str) -> str:
    """`Monday 5 January 2026`, empty for a path without a date."""
    day = date_of_path(path)
    return f"{day:%A} {day.day} {day:%B} {day.year}" if day else ""


def age_in_words(path: str, now: str | None) -> str:
    """`3 weeks ago` at the date `now`, empty for a path without a date."""
    age = memory_age(path, now)
    if age is None:
        return ""
    days = int(age // 1)
    if days == 0:
        return "today"
    number, unit = next(
        (abs(days) // size, name)
        for size, name, least in ((365, "year", 730), (30, "month", 60), (7, "week", 14), (1, "day", 0))
        if abs(days) >= least
    )
    words = f"{number} {unit}{'' if number == 1 else 's'}"
    return f"{words} ago" if days > 0 else f"in {words}"


def moment_in_words(moment: str | None) -> str:
    """`2026-01-05 09:30 UTC` of 2026-01-05T09:30:12Z, a dash where there is none."""
    return f"{moment[:10]} {moment[11:16]} UTC" if moment else "–"
