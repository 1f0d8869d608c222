"""Text of a memory as people may safely see it: nothing in it is hidden, and nothing takes effect."""

from __future__ import annotations

import re

#: Controls, and characters that change the order or hide what is written: bidirectional
#: embeddings, overrides and isolates (https://trojansource.codes), and the invisible tag
#: characters, which a model reads and a person does not see.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f\ufeff]")


def visible(text: object) -> str:
    """The text with a sign in place of each character that is not seen or acts on others.

    Controls have Unicode's pictures of them, as ␛ for escape; others are named: ‹U+202E›.
    """
    return _UNSEEN.sub(lambda match: _sign(ord(match[0])), str(text).encode("utf-8", "replace").decode())


def _sign(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"‹U+{code:04X}›"
