"""Secrets in text, found by their form, and masked."""

from __future__ import annotations

import re
from collections.abc import Callable

#: A secret of fewer characters is masked whole; of a longer one both ends stay, to tell it by.
_MIN_SHOWN = 18
_SHOWN_START, _SHOWN_END = 6, 4
_MASK = "***"

_PRIVATE_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----", re.IGNORECASE)
_PRIVATE_KEY_END = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----", re.IGNORECASE)
#: What stands of a key whose end is cut off.
_PRIVATE_KEY_BODY = re.compile(r"(?:\s+[A-Za-z0-9+/=]{20,})+")

#: A password without a form of its own has a digit or a sign in it.
_SPOKEN = r"(?=[^\s\d@#$%&*_+=!]{0,64}[\d@#$%&*_+=!])[!-~]{3,}[^\s.,;!?]"

#: OpenClaw's forms, then more tokens with a prefix of their own. The last group is the secret. A
#: match is tried once at each place and never goes back further than the word it stands in, so
#: that no text takes longer than its length.
_FORMS = [
    re.compile(form, re.IGNORECASE | re.ASCII)
    for form in (
        # Assignments: API_KEY=…, "apiKey": "…", --token ….
        r"""(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)\b\s*[=:]\s*(["']?)([^\s"'\\]+)\1""",
        r'"(?:apiKey|token|secret|password|passwd|accessToken|refreshToken)"\s*:\s*"([^"]+)"',
        r"""--(?:api[-_]?key|token|secret|password|passwd)\s+(["']?)([^\s"']+)\1""",
        # Headers.
        r"Authorization\s*[:=]\s*Bearer\s+([A-Za-z0-9._\-+=]+)",
        r"\bBearer\s+([A-Za-z0-9._\-+=]{18,})\b",
        r"Authorization\s*[:=]\s*Basic\s+([A-Za-z0-9+/=]+)",
        # Tokens that say what they are.
        r"\b(sk-[A-Za-z0-9_-]{8,})\b",
        r"\b(ghp_[A-Za-z0-9]{20,})\b",
        r"\b(github_pat_[A-Za-z0-9_]{20,})\b",
        r"\b(xox[baprs]-[A-Za-z0-9-]{10,})\b",
        r"\b(xapp-[A-Za-z0-9-]{10,})\b",
        r"\b(gsk_[A-Za-z0-9_-]{10,})\b",
        r"\b(AIza[0-9A-Za-z\-_]{20,})\b",
        r"\b(pplx-[A-Za-z0-9_-]{10,})\b",
        r"\b(npm_[A-Za-z0-9]{10,})\b",
        # Telegram's bots.
        r"\b(\d{6,}:[A-Za-z0-9_-]{20,})\b",
        # And those that OpenClaw does not know: GitHub's others, GitLab, Hugging Face, AWS, JWT.
        r"\b(gh[osur]_[A-Za-z0-9]{20,})\b",
        r"\b(glpat-[A-Za-z0-9_-]{16,})\b",
        r"\b(hf_[A-Za-z0-9]{20,})\b",
        r"\b((?:AKIA|ASIA)[0-9A-Z]{16})\b",
        r"\b(eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+)",
        # As people say it; words of the language alone are none.
        rf"\b(?:password|passphrase|passwort|kennwort)\s+(?:is|ist)\s*:?\s*({_SPOKEN})",
        rf"\b(?:pw|pwd|passwort|kennwort|passphrase)\s*[:=]\s*({_SPOKEN})",
        rf"(?:密码|密碼|パスワード|비밀번호)\s*(?:是|为|為|は|:|：|=)\s*({_SPOKEN})",
        # A password in an address.
        r"://[^\s:/@]{1,256}:([^\s/@]{1,256})@",
    )
]


def redact(text: str) -> str:
    """The text with what looks like a secret masked, in time that grows with its length alone."""
    text = _without_private_keys(text)
    for form in _FORMS:
        text = form.sub(_masked, text)
    return text


def _masked(match: re.Match[str]) -> str:
    group = match.re.groups
    start, end = (place - match.start() for place in match.span(group))
    whole = match[0]
    return whole[:start] + _mask(match[group]) + whole[end:]


def _mask(secret: str) -> str:
    if len(secret) < _MIN_SHOWN:
        return _MASK
    return f"{secret[:_SHOWN_START]}…{secret[-_SHOWN_END:]}"


def _without_private_keys(text: str) -> str:
    if "-----" not in text:
        return text
    pieces, place = [], 0
    find_end: Callable[[str, int], re.Match[str] | None] = _PRIVATE_KEY_END.search
    while begin := _PRIVATE_KEY_BEGIN.search(text, place):
        end = find_end(text, begin.end())
        if end is None:
            # Nor is there one behind any later beginning, which need not be looked for.
            find_end = _no_end
            end = _PRIVATE_KEY_BODY.match(text, begin.end())
        pieces += [text[place : begin.start()], _MASK if end else begin[0]]
        place = end.end() if end else begin.end()
    return "".join([*pieces, text[place:]])


def _no_end(text: str, place: int) -> None:
    return None
