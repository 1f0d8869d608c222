"""Bytes to text: encodings, byte order marks, line ends, and what is no text at all."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import Counter
from contextlib import suppress
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
_CONTROLS = re.compile("\0+|[\x01-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")
_CONTROL_BYTES = bytes(byte for byte in range(128) if _CONTROLS.match(chr(byte)))
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
    # Nearly all files have none, which is seen in a moment.
    if len(content.translate(None, _CONTROL_BYTES)) < len(content) and _is_binary(text):
        raise NotText("binary")
    if "\0" in text:
        text = re.sub("\0+", _UNKNOWN, text.rstrip("\0"))
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
    zeros = content.count(0)
    with suppress(UnicodeDecodeError):
        text = content.decode("utf-8")
        # Every other byte of Latin letters in UTF-16 is a zero, which UTF-8 has too.
        if not zeros or (zeros < len(content) * 0.3 and not _is_binary(text)):
            return Decoded(text)
    if zeros and (wide := _wide_without_mark(content)):
        return Decoded(content.decode(wide, "replace"), wide)
    with suppress(UnicodeDecodeError):
        return Decoded(content.decode("utf-8"))
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


def _wide_without_mark(content: bytes) -> str | None:
    """UTF-16 or UTF-32, if what it would say is text: hardly any other bytes would."""
    start = content[: _LOOKED_AT_BYTES - _LOOKED_AT_BYTES % 4]
    for encoding, width in (("utf-32-le", 4), ("utf-32-be", 4), ("utf-16-le", 2), ("utf-16-be", 2)):
        if len(content) % width:
            continue
        # A pair may be cut where the look ends.
        decoder = codecs.getincrementaldecoder(encoding)()
        with suppress(UnicodeDecodeError):
            if _is_written(decoder.decode(start)):
                return encoding
    return None


def _is_written(text: str) -> bool:
    """Whether all characters are some that people write, and of few scripts."""
    if not text or any(_CONTROLS.match(char) for char in set(text)):
        return False
    blocks = Counter(ord(char) >> 8 for char in text)
    if any(unicodedata.category(char) in ("Cn", "Co", "Cs") for char in set(text)):
        return False
    # Latin is in two blocks, Chinese in many next to one another.
    common = sum(count for block, count in blocks.items() if block < 0x06 or 0x30 <= block <= 0xD7)
    spread = sum(block > 0x06 and not 0x30 <= block <= 0xD7 for block in blocks)
    has_ends = blocks[0] > 0 or len(text) < 8
    return common >= 0.9 * len(text) and spread <= 4 and has_ends


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
    start = text[:_LOOKED_AT_BYTES].rstrip("\0")
    # A run of zeros is a hole in the file, and nothing that it says.
    controls = len(_CONTROLS.findall(start))
    size = len(start) - start.count("\0")
    return controls > max(_FEW_CONTROLS, size * _MAX_CONTROLS) or (not start and bool(text))
