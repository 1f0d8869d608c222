"""Text to FTS5 terms and MATCH expressions, CJK included.

unicode61 takes a whole run of Chinese as one token, so that no word inside it can be
found. The `cjk` column of chunks_fts therefore holds the overlapping bigrams of each
run, and a query's runs are turned into the same bigrams. What else unicode61 cannot see,
full-width forms and the signs of C++ or F#, becomes words of the `context` column.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from .stop_words import STOP_WORDS

#: An expression that matches nothing. A NULL or an empty string would be an error in FTS5.
NO_MATCH = '""'

#: How the words of a query may be joined.
QUERY_MODES = ("auto", "every", "any", "all")

#: More words than this add time to a query and hardly any evidence.
MAX_TERMS = 256

# Han with its iteration marks, kana, bopomofo, hangul; full-width punctuation is left out.
_CJK_CHARACTERS = (
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u3131-\u318e"
    "\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f"
    "\u1100-\u11ff\U00020000-\U0003ffff"
)
CJK_RUN = re.compile(f"[{_CJK_CHARACTERS}]+")
_WORD = re.compile(r"\w+")
# Names that are others without their last signs: C++, C#.
_OTHER = f"(?:(?![{_CJK_CHARACTERS}])\\w)"
_SIGNED_NAME = re.compile(f"({_OTHER}+?)([+#]+)")
_LAST_SIGNS = re.compile(f"(?<=\\w)[+#]+(?!{_OTHER}|[+#])")
_NAME_AT_END = re.compile(f"(?<![+#])(?<!{_OTHER}){_OTHER}+$")
_CJK_DATE = re.compile(
    "(?:([0-9]{4})年)?([0-9]{1,2}|[一二三四五六七八九十]{1,2})月([0-9]{1,2}|[一二三四五六七八九十]{1,3})[日号]"
)
# Written apart or together: WH-401 and wh401, 86,000 and 86000.
_PARTED = re.compile(
    f"(?<!-)(?<!{_OTHER})[A-Za-z]{{1,8}}-[0-9]+(?!{_OTHER}|-)"
    f"|(?<!,)(?<!{_OTHER})[0-9]{{1,3}}(?:,[0-9]{{3}})+(?!{_OTHER}|,)"
)

_DIGIT = re.compile("[-,][0-9]")
_LONGEST_SIGNED = 40
_SIGNS = str.maketrans({"+": "plus", "#": "sharp"})
_CJK_OR_OTHER = re.compile(f"([{_CJK_CHARACTERS}]+)")

# Signs that hold the parts of one name together: gpt-4-turbo, 2026.4.10, docs/setup.md, don't.
_GLUE = "-_./\\'’:@+#&"
_TRAILING = _GLUE.replace("+", "").replace("#", "")
_POSSESSIVE = re.compile(r"(?<=\w\w)['’]s$", re.IGNORECASE)


def fts_query(text: object, mode: str = "auto") -> str:
    """An FTS5 MATCH expression in which every input is literal words.

    Words are quoted, so that no character of theirs is syntax; signs inside a name make
    it a phrase. `any` joins them with OR, `all` with AND. `auto` is `any` without stop
    words, unless there is nothing else: the rank of bm25() brings chunks with more and
    rarer words to the front, and in a small memory a stop word may be rare. `every` joins
    the words of `auto` with AND. NO_MATCH where there is no word. Raises ValueError for
    another mode.
    """
    if mode not in QUERY_MODES:
        raise ValueError("mode must be auto, every, any or all")
    if not isinstance(text, str):
        return NO_MATCH
    return (" AND " if mode in ("all", "every") else " OR ").join(query_terms(text, mode)) or NO_MATCH


def query_terms(text: str, mode: str = "auto") -> list[str]:
    """The quoted FTS5 terms of a query, each once, in order, MAX_TERMS at most.

    A run of CJK becomes its bigrams, or, for `all`, one phrase of them, which matches the
    run as it stands. `auto` and `every` leave out stop words, unless there is nothing else.
    """
    terms = _all_terms(text, whole_runs=mode == "all")
    if mode in ("auto", "every"):
        terms = [term for term in terms if term.strip('"*') not in STOP_WORDS] or terms
    return terms


def _all_terms(text: str, whole_runs: bool) -> list[str]:
    text = normalised(text)
    terms: dict[str, None] = {}
    for date in _CJK_DATE.finditer(text):
        if _is_in_digits(date) or not whole_runs:
            terms.setdefault(_term_of_date(date))
    text = _CJK_DATE.sub(lambda date: f" {date[1] or ''} " if _is_in_digits(date) else date[0], text)
    for word in query_words(text):
        for term in _terms_of_word(word, whole_runs):
            terms.setdefault(term)
        if len(terms) >= MAX_TERMS:
            break
    return list(terms)[:MAX_TERMS]


def plain_words(text: str) -> list[str]:
    """The words of a query as they stand in a text, for looking for them without an index: of a
    run of CJK its bigrams; without stop words, unless there is nothing else."""
    words: dict[str, None] = {}
    for word in query_words(text):
        for part in _CJK_OR_OTHER.split(word) if CJK_RUN.search(word) else [word]:
            if CJK_RUN.fullmatch(part):
                words |= dict.fromkeys(_bigrams(part) or [part])
            elif has_word(part):
                words[part if part == word else part.lstrip(_GLUE).rstrip(_TRAILING)] = None
    return ([word for word in words if word not in STOP_WORDS] or list(words))[:MAX_TERMS]


def count_word(text: str, word: str) -> int:
    """How often a text has a word, whatever its case: of CJK anywhere, else not inside another
    word in its own script."""
    text, word = normalised(text).lower(), normalised(word).lower()
    return len(_whole_word(word).findall(text)) if word in text else 0


@lru_cache(maxsize=MAX_TERMS)
def _whole_word(word: str) -> re.Pattern[str]:
    # Beside CJK no space stands between words.
    before = f"(?<!{_OTHER})" if word and word[0].isalnum() and not CJK_RUN.match(word[0]) else ""
    after = f"(?!{_OTHER})" if word and word[-1].isalnum() and not CJK_RUN.match(word[-1]) else ""
    return re.compile(before + re.escape(word) + after)


def query_words(text: str) -> Iterator[str]:
    """The words of a query, in lower case, names with inner signs whole."""
    separated = "".join(character if _in_word(character) else " " for character in normalised(text).lower())
    for token in separated.split():
        token = _POSSESSIVE.sub("", token.lstrip(_GLUE).rstrip(_TRAILING))
        # memory/ is the folder of nearly all files, and is not in their context.
        token = token.removeprefix("memory/")
        if not _SIGNED_NAME.fullmatch(token):
            token = token.strip(_GLUE)
        if has_word(token):
            yield token


def cjk_terms(text: str) -> str:
    """What the `cjk` column holds of a text, as words separated by spaces.

    Of each word with CJK in it: the overlapping bigrams of each CJK run, the last
    character of a run alone (so that a prefix query finds every single character), and
    the parts in other scripts, which unicode61 leaves glued to the run.
    """
    terms: list[str] = []
    text = normalised(text)
    if not CJK_RUN.search(text):
        return ""
    for word in _WORD.findall(text):
        if not CJK_RUN.search(word):
            continue
        for part in filter(None, _CJK_OR_OTHER.split(word)):
            if CJK_RUN.fullmatch(part):
                terms += _bigrams(part)
                terms.append(part[-1])
            else:
                terms.append(part)
    return " ".join(terms)


def hidden_words(text: str) -> list[str]:
    """Words of a text that unicode61 does not see in it: cplusplus for C++, wh401 for WH-401, and
    the plain forms of full-width letters and digits."""
    plain = normalised(text)
    words = []
    for signs in _LAST_SIGNS.finditer(plain) if "+" in plain or "#" in plain else ():
        name = _NAME_AT_END.search(plain[max(0, signs.start() - _LONGEST_SIGNED) : signs.start()])
        if name:
            words.append(_spelt_out(name[0], signs[0]))
    if _DIGIT.search(plain):
        words += [re.sub("[-,]", "", match[0]) for match in _PARTED.finditer(plain)]
    if plain != text:
        seen = set(_WORD.findall(text))
        words += [word for word in _WORD.findall(plain) if word not in seen and not CJK_RUN.search(word)]
    return list(dict.fromkeys(words))


def normalised(text: str) -> str:
    """The text with full-width and other compatibility forms as plain ones."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def has_word(text: object) -> bool:
    """Whether a text has a letter or a digit in it, and so anything to search for."""
    return isinstance(text, str) and any(character.isalnum() for character in text)


def _terms_of_word(word: str, whole_runs: bool) -> Iterator[str]:
    if not CJK_RUN.search(word):
        yield from _terms_of_name(word, as_one=whole_runs)
        return
    for part in _CJK_OR_OTHER.split(word):
        if CJK_RUN.fullmatch(part):
            bigrams = _bigrams(part)
            if not bigrams:
                # Every character starts a bigram or ends a run.
                yield _quote(part) + "*"
            elif whole_runs:
                yield _quote(" ".join(bigrams))
            else:
                yield from map(_quote, bigrams)
        else:
            # Beside CJK, a name's parts may stand in two columns: no phrase holds them.
            for piece in re.findall(r"\w+[+#]*", part):
                yield from _terms_of_name(piece)


def _terms_of_name(word: str, as_one: bool = False) -> Iterator[str]:
    signed = _SIGNED_NAME.fullmatch(word)
    if signed is None:
        if has_word(word):
            yield _quote(word)
        return
    spelt_out, plain = _quote(_spelt_out(*signed.groups())), _quote(signed[1])
    # The name without its signs as well: the text, or the index, may be without.
    if as_one:
        yield f"({spelt_out} OR {plain})"
    else:
        yield from (spelt_out, plain)


def _term_of_date(date: re.Match[str]) -> str:
    """1月5日 as it stands in the `cjk` and `context` columns, where digits and signs are words."""
    month, day = (str(_number(part)) for part in (date[2], date[3]))
    return f'("{month} 月 {day} 日" * OR "{month} 月 {day} 号" *)'


def _is_in_digits(date: re.Match[str]) -> bool:
    return date[2].isascii() and date[3].isascii()


def _number(numeral: str) -> int:
    """A number up to 99, in digits or in Chinese."""
    if numeral.isascii():
        return int(numeral)
    tens, ten, ones = numeral.rpartition("十")
    digits = "零一二三四五六七八九"
    value = digits.find(ones) if ones else 0
    return value + (10 * (digits.find(tens) if tens else 1) if ten else 0)


def _bigrams(run: str) -> list[str]:
    return [run[index : index + 2] for index in range(len(run) - 1)]


def _spelt_out(name: str, signs: str) -> str:
    return name.lower() + signs.translate(_SIGNS)


def _quote(word: str) -> str:
    return '"' + word.replace('"', '""') + '"'


def _in_word(character: str) -> bool:
    # Combining marks are parts of words, though \w leaves them out.
    return character.isalnum() or character in _GLUE or unicodedata.category(character).startswith("M")
