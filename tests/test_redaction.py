"""Secrets in text."""

import re
import time

import pytest

from datasette_agent_memory.redaction import redact

B64 = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("export API_KEY=supersecretvalue999000111 now", "export API_KEY=supers…0111 now"),
        ("API_KEY='supersecretvalue999000111'", "API_KEY='supers…0111'"),
        ("db_password: hunter2, then", "db_password: *** then"),
        ('{"accessToken": "abcdefghijklmnopqrstuvwxyz"}', '{"accessToken": "abcdef…wxyz"}'),
        ('{"password":"correct horse battery"}', '{"password":"correc…tery"}'),
        ("run --api-key abc123 --verbose", "run --api-key *** --verbose"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("a Bearer abcdefghijklmnopqrstuvwx here", "a Bearer abcdef…uvwx here"),
        ("sk-abcdefghijklmnopqrstuvwxyz123456", "sk-abc…3456"),
        ("sk-ant-api03-abcdefghijklmnop_qrstuv", "sk-ant…stuv"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "ghp_ab…6789"),
        ("gho_abcdefghijklmnopqrstuvwxyz0123456789", "gho_ab…6789"),
        ("github_pat_11ABCDEFG0abcdefghijkl_mnop", "github…mnop"),
        ("xoxb-123456789012-abcdef", "xoxb-1…cdef"),
        ("xapp-1-A0123456789-abc", "xapp-1…-abc"),
        ("gsk_abcdefghijklmnopqrst", "gsk_ab…qrst"),
        ("AIzaSyA0123456789abcdefghijklmnopqrstu", "AIzaSy…rstu"),
        ("pplx-abcdefghijklmnop", "pplx-a…mnop"),
        ("npm_abcdefghijkl", "***"),
        ("bot 123456789:AAE-abcdefghijklmnopqrstuvw is up", "bot 123456…tuvw is up"),
        ("Authorization: Basic dXNlcjpodW50ZXIyaHVudGVyMg==", "Authorization: Basic dXNlcj…Mg=="),
        ("my password is hunter2.", "my password is ***."),
        ("pw: hunter2, and on", "pw: ***, and on"),
        ("das Passwort ist hunter2", "das Passwort ist ***"),
        ("密码是hunter2。", "密码是***。"),
        ("glpat-abcdefghijklmnopqrst", "glpat-…qrst"),
        ("hf_abcdefghijklmnopqrstuvwxyz", "hf_abc…wxyz"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIAIO…MPLE"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.sig-nature_1", "eyJhbG…re_1"),
        ("postgres://kim:hunter2@db.example.org/x", "postgres://kim:***@db.example.org/x"),
        (f"a -----BEGIN RSA PRIVATE KEY----- {B64} {B64} -----END RSA PRIVATE KEY----- b", "a *** b"),
        (f"a -----BEGIN PRIVATE KEY-----\\n{B64}\\n-----END PRIVATE KEY----- b", "a *** b"),
        # Its end is cut off.
        (f"a -----BEGIN PRIVATE KEY----- {B64} {B64} and so on", "a *** and so on"),
    ],
)
def test_secrets_are_masked(text, masked):
    assert redact(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "the kayak storage code is 4417",
        "the key lies under the mat, and the token is lost",
        "meet at 12:30, chapter 123456:7",
        "https://example.org/a:b@c",
        "-----BEGIN PRIVATE KEY----- is how it begins, and -----BEGIN PRIVATE KEY----- again",
        "the password is in the drawer of the desk, pw",
        "密码是什么？",
        "risk-averse and task-oriented people",
        "",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redact(text) == text


def test_a_secret_is_masked_where_it_stands_and_not_where_its_name_does():
    assert redact("TOKEN=TOKEN") == "TOKEN=***"


HOSTILE = {
    "words": "KEY" * 350_000,
    "open quotes": "KEY='a" * 170_000,
    "keys that begin": "-----BEGIN PRIVATE KEY-----" * 40_000,
    "keys that nearly end": "-----BEGIN PRIVATE KEY-----" + "-----END PRIVATE KEY ----" * 40_000,
    "names of keys": "-----BEGIN " + "PRIVATE KEY" * 95_000,
    "bodies": "-----BEGIN PRIVATE KEY-----" + (" " + "A" * 19) * 50_000,
    "dashes": "sk-" + "-" * 1_000_000,
    "prefixes": "sk-" * 350_000,
    "spaces": "TOKEN " + " " * 1_000_000,
    "bearers": "Bearer " * 150_000,
    "equal signs": "Bearer " + "=" * 1_000_000,
    "digits": "1" * 1_000_000 + ":",
    "many digits": "123456:" * 150_000,
    "tokens of three": "eyJaaaaaaaaaaaa" * 70_000,
    "dots": "eyJaaaaaaaaaaaa." * 65_000,
    "addresses": "://" * 350_000,
    "names in addresses": "://a:b" * 170_000,
    "json": '"token": "' * 100_000,
    "flags": "--token " * 125_000,
    "one word": "a" * 1_000_000,
    "punctuation": "=:" * 500_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_text_takes_longer_than_its_length(text):
    def seconds(work):
        started = time.process_time()
        work()
        return time.process_time() - started

    # A scan that cannot go back: some 40 of them are more than all forms take. What is quadratic
    # would take 1,000 times as long.
    plain = min(seconds(lambda: re.sub(r"[^\s]", "", text)) for _ in range(2))
    assert seconds(lambda: redact(text)) < 40 * plain + 0.5
