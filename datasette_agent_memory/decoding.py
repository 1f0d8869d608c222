"""Bytes to text: encodings, byte order marks, line ends, and what is no text at all."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

# UTF-32's mark begins with UTF-16's.
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

#: What a file that is not UTF-8 may be in. A longer list makes guesses worse.
_LEGACY_ENCODINGS = [
    "cp1252",
    "gb18030",
    "big5",
    "shift_jis",
    "euc_jp",
    "euc_kr",
    "cp1250",
    "cp1251",
    "koi8_r",
    "cp1253",
    "cp1255",
    "cp1256",
]
#: So much of a file is looked at to tell what it is.
_LOOKED_AT_BYTES = 64 * 1024
#: A text may have some control characters; one that has more is none.
_MAX_CONTROLS = 0.1
_FEW_CONTROLS = 3

# All but tab, line feed, form feed, carriage return, and the escape of terminal colours.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")
_UNKNOWN = "\ufffd"
#: The bytes of characters that are none of ASCII.
_BYTES_OF_CHARACTERS = bytes(range(128, 256))


class NotText(Exception):
    """The content of a file is none of text."""


@dataclass(frozen=True)
class Decoded:
    text: str
    #: The encoding, where it was guessed.
    guessed: str | None = None


def decode(content: bytes) -> Decoded:
    """The text of a file; raises NotText.

    UTF-8, or what the byte order mark says, or UTF-16 without one; where it is none of these,
    the likeliest of the older encodings. Bytes that stay unreadable become U+FFFD, and so do
    NUL (as CommonMark has it) and halves of surrogate pairs; zeros at the end, which some file
    systems leave there after a power failure, are dropped. Where lines end with CR alone,
    they end with LF; other line ends stay, as the peer has it.
    """
    decoded = _decode(content)
    text = decoded.text
    if _is_binary(text):
        raise NotText("binary")
    if "\0" in text:
        text = text.rstrip("\0").replace("\0", _UNKNOWN)
    if "\r" in text and "\n" not in text:
        text = text.replace("\r", "\n")
    return Decoded(text, decoded.guessed)


def without_surrogates(text: str) -> str:
    """The text with pairs of surrogates as the one character they mean, and halves as U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _decode(content: bytes) -> Decoded:
    for bom, encoding in _BOMS:
        if content.startswith(bom):
            return Decoded(content[len(bom) :].decode(encoding, "replace"))
    if b"\0" in content and (utf_16 := _utf_16_without_mark(content)):
        return Decoded(content.decode(utf_16, "replace"), utf_16)
    try:
        return Decoded(content.decode("utf-8"))
    except UnicodeDecodeError:
        pass
    try:
        # Surrogates in UTF-8, as some programs write them.
        return Decoded(without_surrogates(content.decode("utf-8", "surrogatepass")))
    except UnicodeDecodeError:
        pass
    text = content.decode("utf-8", "replace")
    if _is_mostly_utf_8(content, text) or _is_binary(text):
        return Decoded(text)
    guessed = _guess(content)
    return Decoded(content.decode(guessed, "replace"), guessed) if guessed else Decoded(text)


def _utf_16_without_mark(content: bytes) -> str | None:
    """Text of Latin letters in UTF-16 has every other byte zero."""
    start = content[:_LOOKED_AT_BYTES]
    pairs = len(start) // 2
    even, odd = start[0::2].count(0), start[1::2].count(0)
    if len(content) % 2 or not pairs:
        return None
    for zeros, others, encoding in ((odd, even, "utf-16-le"), (even, odd, "utf-16-be")):
        if (
            zeros > pairs * 0.4
            and others < pairs * 0.05
            and not _is_binary(start.decode(encoding, "replace"))
        ):
            return encoding
    return None


def _is_mostly_utf_8(content: bytes, text: str) -> bool:
    """Whether it is UTF-8 with a few bad bytes, or cut off in the middle of a character."""
    bad = text.count(_UNKNOWN)
    good = len(text) - len(text.encode("ascii", "ignore")) - bad
    if not good and len(content.rstrip(_BYTES_OF_CHARACTERS)) == len(content) - 1:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(content)
        return True
    except UnicodeDecodeError:
        return bad * 4 <= good


def _guess(content: bytes) -> str | None:
    from charset_normalizer import from_bytes

    best = from_bytes(
        content[:_LOOKED_AT_BYTES], cp_isolation=_LEGACY_ENCODINGS, preemptive_behaviour=False
    ).best()
    if best is None:
        # Too little to tell: the most common one, where it knows all the bytes.
        try:
            content.decode("cp1252")
        except UnicodeDecodeError:
            return None
        return "cp1252"
    # The Western one has the same letters as the Central European one in most places: of a few
    # nobody can tell, and it is by far the more common.
    is_short = sum(byte > 127 for byte in content[:_LOOKED_AT_BYTES]) < 8
    return "cp1252" if best.encoding == "cp1250" and is_short else best.encoding


def _is_binary(text: str) -> bool:
    start = text[:_LOOKED_AT_BYTES]
    end = len(start.rstrip("\0"))
    controls = len(_CONTROLS.findall(start, 0, end))
    return controls > max(_FEW_CONTROLS, end * _MAX_CONTROLS) or (not end and bool(text))
