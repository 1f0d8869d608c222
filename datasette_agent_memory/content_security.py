"""What the browser may run and load on a page of ours: Datasette's own and this plugin's.

Memory is hostile. It is escaped, and were that to fail somewhere, this holds: no script of the
page's content runs.
"""

from __future__ import annotations

import base64
import hashlib
import re
from html import unescape

_SCRIPT = re.compile(r"<script\b([^>]*)>(.*?)</script>", re.DOTALL | re.IGNORECASE)
_STYLESHEET = re.compile(r"<link\b([^>]*\brel=\"stylesheet\"[^>]*)>", re.IGNORECASE)
_ADDRESS = re.compile(r'\b(?:src|href)="((?:https?:)?//[^"\s]+)"')


def policy_of(frame: str) -> str:
    """The Content-Security-Policy of a page, by the HTML around its content.

    That is Datasette's and its plugins', who have inline scripts and may have files elsewhere.
    """
    scripts, styles = ["'self'"], ["'self'", "'unsafe-inline'"]
    for attributes, code in _SCRIPT.findall(frame):
        address = _ADDRESS.search(attributes)
        if address:
            scripts += _source(address[1])
        elif code:
            # As the browser reads it.
            code = code.replace("\r\n", "\n").replace("\r", "\n")
            digest = hashlib.sha256(code.encode()).digest()
            scripts.append(f"'sha256-{base64.b64encode(digest).decode()}'")
    for attributes in _STYLESHEET.findall(frame):
        if address := _ADDRESS.search(attributes):
            styles += _source(address[1])
    return "; ".join(
        [
            "default-src 'self'",
            f"script-src {' '.join(dict.fromkeys(scripts))}",
            "script-src-attr 'none'",
            # Styles run nothing; Datasette's widgets have theirs inline.
            f"style-src {' '.join(dict.fromkeys(styles))}",
            "img-src 'self' data:",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'self'",
        ]
    )


def _source(address: str) -> list[str]:
    """An address as a source expression, which has no query; none for one that would be more than that."""
    address = unescape(address).partition("?")[0].partition("#")[0]
    # Without a scheme it is that of the page.
    address = address.removeprefix("//")
    return [] if re.search(r"[\s;,']", address) else [address]
