"""Bytes become text, whatever wrote them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasette_agent_memory.decoding import NotText, decode

CHINESE = "# 会议记录\n\n今天我们讨论了飞书插件配置和股票分析，决定下周一开始。\n"
TRADITIONAL = "# 會議記錄\n\n今天我們討論了飛書插件配置和股票分析，決定下週一開始。\n"
JAPANESE = "# 会議メモ\n\n今日はサーバーの設定について話しました。来週の月曜日に始めます。\n"
KOREAN = "# 회의록\n\n오늘은 서버 설정에 대해 이야기했습니다. 다음 주 월요일에 시작합니다.\n"
RUSSIAN = "# Заметки\n\nСегодня мы обсудили настройки сервера. Начнём в понедельник.\n"
POLISH = "# Notatki\n\nDziś omówiliśmy ustawienia serwera. Zaczynamy w poniedziałek, później święta.\n"


@pytest.mark.parametrize(
    "text, encoding",
    [
        (CHINESE, "gb18030"),
        (CHINESE, "gbk"),
        (TRADITIONAL, "big5"),
        (JAPANESE, "shift_jis"),
        (JAPANESE, "euc_jp"),
        (KOREAN, "euc_kr"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8_r"),
        (POLISH, "cp1250"),
        ("Der Löwe schläft, und Renée trinkt Kaffee.\n", "cp1252"),
        ("naïve\n", "latin-1"),
        ("5 € – “so”\n", "cp1252"),
        ("Ordinary words.\n", "utf-16-le"),
        ("Ordinary words, cafés.\n", "utf-16-be"),
        (CHINESE, "utf-16-le"),
        (JAPANESE, "utf-16-be"),
        (KOREAN, "utf-32-le"),
        (RUSSIAN, "utf-16-le"),
    ],
)
def test_what_is_not_utf_8_is_guessed_and_said(text, encoding):
    decoded = decode(text.encode(encoding))
    assert decoded.text == text and decoded.guessed is not None


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("text", ["", "plain\n", CHINESE, "🎉 é\r\n", "\ufeff twice"])
def test_what_is_certain_is_no_guess(text, encoding):
    decoded = decode(text.encode(encoding))
    assert decoded.text == (text.removeprefix("\ufeff") if encoding == "utf-8" else text)
    assert decoded.guessed is None


@pytest.mark.parametrize(
    "content, text",
    [
        # Cut off in the middle of a character.
        ("会议记录".encode()[:-1], "会议记\ufffd"),
        (b"abc \xe4\xbd", "abc \ufffd"),
        # One bad byte among good ones.
        ("é".encode() * 40 + b"\xff", "é" * 40 + "\ufffd"),
        # Surrogates in UTF-8: a pair, and a half.
        (b"\xed\xa0\xbd\xed\xb8\x80 \xed\xa0\x80", "😀 \ufffd"),
        (b"\xff\xfe\x3d\xd8\x0a\x00", "\ufffd\n"),
        # A stray NUL, and the zeros that a power failure leaves.
        (b"one\0two\n", "one\ufffdtwo\n"),
        (b"note\n" + bytes(4096), "note\n"),
        (b"# A note\n" + bytes(5000) + b"and more\n", "# A note\n\ufffdand more\n"),
        # Line ends.
        (b"a\rb\rc", "a\nb\nc"),
        (b"a\r\nb\rc\n", "a\r\nb\rc\n"),
    ],
)
def test_damage_costs_no_more_than_itself(content, text):
    assert decode(content).text == text


@pytest.mark.parametrize(
    "content",
    [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)),
        b"SQLite format 3\0" + bytes(range(64)) * 9,
        b"\x7fELF\x02\x01\x01" + bytes(range(1, 9)) * 9,
        bytes(100),
        b"PK\x03\x04" + bytes(range(8)) * 50,
    ],
)
def test_binary_is_none_of_text(content):
    with pytest.raises(NotText, match="binary"):
        decode(content)


@given(st.binary(max_size=400))
def test_any_bytes_are_text_or_binary(content):
    try:
        decoded = decode(content)
    except NotText:
        return
    decoded.text.encode()
    assert "\0" not in decoded.text
