"""What the browser may run on a page, and what of a memory's text is made visible."""

import base64
import hashlib

import pytest
from test_views import SEARCH, get

from datasette_agent_memory.content_security import policy_of
from datasette_agent_memory.visible import visible


def directive(policy, name):
    return next(part for part in policy.split("; ") if part.split()[0] == name).split()[1:]


def test_scripts_of_the_frame_alone_may_run():
    frame = (
        '<script src="/-/static/a.js"></script><script>one()</script>'
        '<script type="module" src="https://cdn.example/x.js?v=1"></script>'
        '<link rel="stylesheet" href="https://cdn.example/x.css">'
    )
    frame += '<script src="//cdn.example/y.js?v=1&amp;x=2"></script><script>two()\r\n</script>'
    frame += '<script src="https://cdn.example/z.js; script-src *"></script>'
    policy = policy_of(frame)
    second = base64.b64encode(hashlib.sha256(b"two()\n").digest()).decode()
    digest = base64.b64encode(hashlib.sha256(b"one()").digest()).decode()
    assert directive(policy, "script-src") == [
        "'self'",
        f"'sha256-{digest}'",
        "https://cdn.example/x.js",
        "cdn.example/y.js",
        f"'sha256-{second}'",
    ]
    assert directive(policy, "style-src")[-1] == "https://cdn.example/x.css"
    assert directive(policy, "object-src") == ["'none'"]


@pytest.mark.parametrize(
    "text, shown",
    [
        ("a\x1b[31mred\x1b[0m", "a␛[31mred␛[0m"),
        ("nul\0 del\x7f", "nul␀ del␡"),
        ("line\nand\ttab stay", "line\nand\ttab stay"),
        ("\u202egnp.exe", "‹U+202E›gnp.exe"),
        ("a\u2066b\u2069", "a‹U+2066›b‹U+2069›"),
        ("hidden\U000e0041", "hidden‹U+E0041›"),
        ("\x85", "‹U+0085›"),
        ("עברית العربية 漢字 👩‍👧 می‌خواهم", "עברית العربية 漢字 👩‍👧 می‌خواهم"),
        ("\ud800", "?"),
        (None, "None"),
    ],
)
def test_nothing_in_a_text_is_unseen(text, shown):
    assert visible(text) == shown


@pytest.mark.asyncio
async def test_every_page_has_a_policy(sample_database, make_datasette):
    datasette = make_datasette(sample_database)
    for path, params in (
        ("/-/agent-memory", {}),
        (SEARCH, {"q": "<script>alert(1)</script>"}),
        (f"{SEARCH}/file", {"path": "MEMORY.md"}),
        (f"{SEARCH}/status", {}),
        (f"{SEARCH}/file", {"path": "no such"}),
    ):
        page = await get(datasette, path, **params)
        policy = page.headers["content-security-policy"]
        assert "'unsafe-inline'" not in directive(policy, "script-src"), path
        # Of Datasette's frame there is one at least.
        assert any(source.startswith("'sha256-") for source in directive(policy, "script-src"))
        assert '<html lang="en">' in page.text
