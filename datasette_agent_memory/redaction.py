"""Secrets in text, found by their form, and masked.

A secret by form is:

- a private key between its BEGIN and END lines, and what stands of one whose end is cut off;
- the password in an address, and a long token in its place (`https://TOKEN@host`);
- the value of a name that says so: `password`, `secret`, `passphrase`, `api key` and their like mask
  whatever follows. `key`, `token`, `pw` and `pass` are words of the language too: behind these, with
  a space, only what is no plain word is a secret; `KEY=value` without a space always is;
- what a flag (`--token x`, `curl -u user:x`) or a header (Authorization, Bearer, Cookie) carries;
- a token that says what it is by its prefix, unless it is spelled of plain words (`sk-learn-ing`);
- a password as people say it (`the password is hunter2`), when it has a digit or a sign.

Anything else stays, such as a password of plain words in a sentence, or one in a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable

#: A secret of fewer characters is masked whole; of a longer one both ends stay, to tell it by.
_MIN_SHOWN = 18
_SHOWN_START, _SHOWN_END = 6, 4
_MASK = "***"
#: Masked already, or an address of which the password is.
_IS_MASKED = re.compile(rf"(?:\*{{3}}|[^…]{{{_SHOWN_START}}}…[^…]{{{_SHOWN_END}}})(?:@.*)?", re.DOTALL)

#: What is not seen, and would split a secret or its name.
_INVISIBLE = re.compile("(?<=[ -~])[\u00ad\u180e\u200b-\u200f\u2060-\u2064\ufeff]+")

# All patterns below keep to this: a match is tried once at each place, and one that fails has not
# read past a place where the next could begin, so that no text takes longer than its length.

_PRIVATE_KEY = "[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)? ?-{4,5}"
_PRIVATE_KEY_BEGIN = re.compile(f"-{{4,5}} ?BEGIN {_PRIVATE_KEY}", re.IGNORECASE)
_PRIVATE_KEY_END = re.compile(f"-{{4,5}} ?END {_PRIVATE_KEY}", re.IGNORECASE)
#: What stands of a key whose end is cut off: its headers and lines, which may be quoted (`> `) or
#: parted by an escaped line feed.
_PRIVATE_KEY_BODY = re.compile(
    r"""
    (?:
        (?:\s|>|\\{1,3}[nr])+
        (?:
            Proc-Type:\s*\S{1,80} | DEK-Info:\s*\S{1,80}
            | (?:Version|Comment|Hash|Charset):(?:\s+\S{1,80}){1,8}?(?=\s+[A-Za-z0-9+/]{20})
            | [A-Za-z0-9+/=]{20,} | [A-Za-z0-9+/]{0,19}={1,2}[A-Za-z0-9+/]{0,4}(?![^\s\\])
        )
    )+
    """,
    re.VERBOSE,
)

#: A name with its operator: `API_KEY=`, `"apiKey": `, `**Password:** `, `password := `, `token: | `.
_NAME = re.compile(
    r"""
    (?P<name>
        (?i:password|passwd|passphrase|passcode|passwort|kennwort|secret|credentials?|token
            |(?:api|access|secret|private|encryption|signing|master|license|account)[-_ ]?key)
        # Not in `monkey`, but behind a sign, a digit, or a small letter (`sortKey`).
        | (?: (?<![A-Za-z]) | (?<=[a-z0-9])(?=[A-Z][a-z]) ) (?i:key)
        | (?: (?<=[_-]) | (?<=[a-z0-9])(?=P[aw]) ) (?i:pass|pwd|pw)
        | (?<![A-Za-z]) (?: (?i:pwd|pw) | PASS(?==) )
        | 密码 | 密碼 | 口令 | パスワード | 비밀번호
    )
    (?i:[_-](?:base|prod|production|dev|development|test|testing|staging|live|old|new|main|default
        |primary|backup|value|[0-9]{1,4})(?![A-Za-z0-9])){0,2}
    (?P<quote> \\{0,3}["'`]\]? )? [*]{0,3}
    (?P<operator> \s* (?: => | -> | := | ={1,3} | [:：＝] ) (?: [*]{1,2}(?![*]) )? \s* (?: [|>][+-]?\s+ )? )
    """,
    re.VERBOSE,
)
#: The end of a value without quotes: the next parameter of an address, or an escaped line feed.
_VALUE_END = r"""&(?:amp;)?[\w.\[\]-]{1,64}=|\\{1,3}[nrt"']"""
_VALUE = re.compile(
    rf"""
    [bfru]{{0,2}}
    (?:
        (?P<open>\\{{1,3}}["']) (?P<escaped>.+?) (?P=open)
        | "(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"
        | '(?P<single>[^'\\]*(?:\\.[^'\\]*)*)'
        | `(?P<code>[^`]+)`
        | “(?P<curly>[^”]+)”
    )
    | \\{{0,3}}["'`“]? (?P<bare> (?: (?!{_VALUE_END}) [^\s"'`。，；！？、）】」』] )+ )
    """,
    re.VERBOSE | re.DOTALL,
)
_FLAG = re.compile(
    r"(?<![\w-])--?(?:[a-z0-9]{1,20}[-_]){0,3}(?:api[-_]?key|token|secret|pass(?:word|wd|phrase)?)\s+"
    r"(?!-)",
    re.IGNORECASE | re.ASCII,
)
#: What stands behind a flag in a sentence about it.
_PROSE = re.compile(
    "an?|and|are|as|at|by|can|does|flags?|for|from|here|i[fns]|into|it|must|not|o[fnr]|options?|should|so"
    "|that|the|then|this|to|was|when|which|will|with|without|you",
    re.IGNORECASE,
)

#: What no plain word has: a digit, a sign, a capital inside, or very many letters.
_NO_WORD = re.compile(r"\d|[+=@#$%^&~!|]|[a-z][A-Z]|[A-Za-z]{20}")
_MIN_NO_WORD = 6
#: A name of plain words behind its prefix: `sk-learn-ing`.
_SPELLED = re.compile(r"(?:[a-z]{1,19}[-_./]){2,}[a-z]{1,19}[-_./]?")
_TRAILING = ".,;:!?)]}*>"

#: A password without a form of its own has a digit or a sign in it.
_SPOKEN = r"(?=[^\s\d@#$%&*_+=!]{0,64}[\d@#$%&*_+=!])[!-~]{4,}(?<![.,;:!?])"

_WORD = "[A-Za-z0-9_-]"

#: What headers, flags and sentences carry. The last group that took part is the secret.
_FORMS = [
    re.compile(form, re.IGNORECASE | re.ASCII)
    for form in (
        # Headers.
        r"""Authorization["']?\s*[:=]\s*["']?(?:Bearer|Basic|Token|Api-?Key|Key)\s+"""
        r"""([A-Za-z0-9._~\-+/=:]+)""",
        r"""(?<![\w-])(?:-u|--(?:proxy-)?user)[\s=]\s*(?:(["'])[^\s:"']{1,256}:([^"']+)\1"""
        r"""|(?!\d+:\d+\b)[^\s:"']{1,256}:(?!//)([^\s"']+))""",
        # As people say it; words of the language alone are none.
        rf"\b(?:password|passphrase|passwort|kennwort)\s+(?:is|ist)\s*:?\s*({_SPOKEN})",
        rf"(?:密码|密碼|口令|パスワード|비밀번호)\s*(?:是|为|為|は)\s*({_SPOKEN})",
    )
]
#: Tokens that say what they are.
_TOKENS = [
    re.compile(form, re.IGNORECASE | re.ASCII)
    for form in (
        r"\bBearer\s+([A-Za-z0-9._~\-+/=]{18,})(?<![.])",
        r"(?<![A-Za-z0-9])(sk-[A-Za-z0-9_-]{8,})\b",
        r"(gh[pousr]_[A-Za-z0-9]{20,})",
        r"(github_pat_[A-Za-z0-9_]{20,})",
        r"(xox[baprse]-[A-Za-z0-9-]{10,})\b",
        r"(xapp-[A-Za-z0-9-]{10,})\b",
        r"(?<![A-Za-z0-9])(gsk_[A-Za-z0-9_-]{10,})\b",
        r"(AIza[0-9A-Za-z\-_]{20,})\b",
        r"(?<![A-Za-z0-9])(pplx-[A-Za-z0-9_-]{10,})\b",
        r"(?<![A-Za-z0-9])(npm_[A-Za-z0-9]{10,})\b",
        # Telegram's bots.
        r"\b(\d{6,}:[A-Za-z0-9_-]{20,})\b",
        # And those that OpenClaw does not know: GitLab, Hugging Face, AWS, Stripe, SendGrid, Google,
        # PyPI, Shopify, DigitalOcean, xAI, Replicate, age, web hooks, JWT.
        r"(glpat-[A-Za-z0-9_-]{16,})",
        r"(?<![A-Za-z0-9])(hf_[A-Za-z0-9]{20,})",
        r"((?:AKIA|ASIA)[0-9A-Z]{16})",
        r"([rs]k_(?:live|test)_[A-Za-z0-9]{8,})",
        r"(whsec_[A-Za-z0-9+/=_-]{10,})",
        r"(?<![A-Za-z0-9])(SG\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,})",
        r"(GOCSPX-[A-Za-z0-9_-]{10,})",
        r"(?<![A-Za-z0-9])(ya29\.[A-Za-z0-9_.-]{10,})\b",
        r"(?<![A-Za-z0-9])(pypi-[A-Za-z0-9_-]{16,})",
        r"(shp(?:at|ca|pa|ss)_[A-Za-z0-9]{10,})",
        r"(do[opr]_v1_[A-Za-z0-9]{10,})",
        r"(?<![A-Za-z0-9])(xai-[A-Za-z0-9_-]{16,})",
        r"(?<![A-Za-z0-9])(r8_[A-Za-z0-9]{16,})",
        r"(AGE-SECRET-KEY-1[A-Z0-9]{10,})",
        r"hooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9/_-]+)",
        r"discord(?:app)?\.com/api/webhooks/\d+/([A-Za-z0-9_-]+)",
        rf"(?<!{_WORD})(?={_WORD}+\.e(?:yJ|30){_WORD}*\.{_WORD}){_WORD}*?(eyJ{_WORD}*\.{_WORD}+\.{_WORD}+)",
    )
]
#: The password of an address ends at the last @ before a slash; with a slash in it, at the first @.
_ADDRESSES = [
    re.compile(form)
    for form in (
        r"""://[^\s:/@]*:([^\s/"'<>]+)@""",
        r"""://[^\s:/@]*:(?!\d{1,5}[/?\#])([^\s@:"'<>]+)@""",
        r"""://([^\s:/@"'<>]{16,})@""",
    )
]
_COOKIE = re.compile(
    r"""(?<![\w-])(?:Set-)?Cookie["']?\s*[:=]\s*["']?((?:[\w.-]{1,64}=[^\s;"']+;?\s?)+)""", re.IGNORECASE
)
_COOKIE_VALUE = re.compile(r"=([^\s;]+)")


def redact(text: str) -> str:
    """The text with what looks like a secret masked, in time that grows with its length alone."""
    seen = _INVISIBLE.sub("", text)
    redacted = _redact(seen)
    return text if redacted == seen else redacted


def _redact(text: str) -> str:
    text = _without_private_keys(text)
    for form in _ADDRESSES:
        text = form.sub(_masked, text)
    text = _COOKIE.sub(lambda match: _replaced(match, 1, _COOKIE_VALUE.sub(_masked, match[1])), text)
    text = _without_values(text, _NAME, _assigned)
    text = _without_values(text, _FLAG, _passed)
    for form in _FORMS:
        text = form.sub(_masked, text)
    for form in _TOKENS:
        text = form.sub(_masked_token, text)
    return text


def _without_values(
    text: str, name: re.Pattern[str], secret: Callable[[re.Match[str], re.Match[str]], str]
) -> str:
    """The text with the values behind a name masked, as far as they are secret."""
    pieces, place = [], 0
    for named in name.finditer(text):
        # What stands in a masked value is masked with it.
        if named.start() < place:
            continue
        value = _VALUE.match(text, named.end())
        if value is None or not (found := secret(named, value)):
            continue
        start = value.start(value.lastgroup or 0)
        pieces += [text[place:start], _mask(found)]
        place = start + len(found)
    return "".join([*pieces, text[place:]])


def _assigned(named: re.Match[str], value: re.Match[str]) -> str:
    """What is secret of the value assigned to a name; empty if nothing."""
    secret, bare = value[value.lastgroup or 0], value.lastgroup == "bare"
    if _IS_MASKED.fullmatch(secret) or (bare and not any(map(str.isalnum, secret))):
        return ""
    if _is_secret_whatever_it_is(named, bare):
        return secret
    if bare:
        secret = secret.rstrip(_TRAILING)
    return "" if secret.startswith(("/", "~")) or not _is_no_word(secret) else secret


def _is_secret_whatever_it_is(named: re.Match[str], bare: bool) -> bool:
    name = named["name"]
    word = name.lower()
    if word not in ("key", "token", "pass", "pwd", "pw"):
        return True
    before = named.string[max(named.start() - 1, 0) : named.start()]
    is_part = before.isascii() and (before.isalnum() or before in ("_", "-"))
    if is_part and (word == "token" or name == "KEY"):
        return True
    if word in ("pwd", "pw") and not is_part:
        # The working directory has this name too.
        return False
    if word == "key" and named["quote"]:
        return False
    return not bare or not any(map(str.isspace, named["operator"]))


def _passed(named: re.Match[str], value: re.Match[str]) -> str:
    """What is secret of the value behind a flag; empty if nothing."""
    secret = value[value.lastgroup or 0]
    if value.lastgroup == "bare" and _PROSE.fullmatch(secret.rstrip(_TRAILING)):
        return ""
    return secret


def _is_no_word(text: str) -> bool:
    return len(text) >= _MIN_NO_WORD and _NO_WORD.search(text) is not None


def _masked(match: re.Match[str]) -> str:
    group = match.lastindex or 0
    return _replaced(match, group, _mask(match[group]))


def _masked_token(match: re.Match[str]) -> str:
    return match[0] if _SPELLED.fullmatch(match[1]) else _masked(match)


def _replaced(match: re.Match[str], group: int, replacement: str) -> str:
    start, end = (place - match.start() for place in match.span(group))
    return match[0][:start] + replacement + match[0][end:]


def _mask(secret: str) -> str:
    if _IS_MASKED.fullmatch(secret):
        return secret
    if len(secret) < _MIN_SHOWN:
        return _MASK
    return f"{secret[:_SHOWN_START]}…{secret[-_SHOWN_END:]}"


def _without_private_keys(text: str) -> str:
    if "----" not in text:
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
