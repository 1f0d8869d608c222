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
    ("text", "masked"),
    [
        (
            f"-----BEGIN PGP PRIVATE KEY BLOCK----- Version: 2 {B64} =aBcD "
            "-----END PGP PRIVATE KEY BLOCK----- b",
            "*** b",
        ),
        (f"-----BEGIN PGP PRIVATE KEY BLOCK----- Version: GnuPG v2 {B64} =aBcD and on", "*** and on"),
        (
            "-----BEGIN RSA PRIVATE KEY----- Proc-Type: 4,ENCRYPTED DEK-Info: AES-128-CBC,0123456789ABCDEF "
            f"{B64} {B64} and on",
            "*** and on",
        ),
        (f"> -----BEGIN RSA PRIVATE KEY----- > {B64} > {B64} and on", "> *** and on"),
        (
            rf'{{"private_key": "-----BEGIN PRIVATE KEY-----\n{B64}\n-----END PRIVATE KEY-----\n", "x": 1}}',
            '{"private_key": "***", "x": 1}',
        ),
        (rf'"private_key": "-----BEGIN PRIVATE KEY-----\n{B64}\n{B64}', '"private_key": "***'),
        (f"----- BEGIN PRIVATE KEY ----- {B64} ----- END PRIVATE KEY ----- b", "*** b"),
    ],
)
def test_private_keys_are_masked_however_they_stand(text, masked):
    assert redact(text) == masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        # Names, as JSON and Python write them.
        ('{"api_key": "abc123", "x": 1}', '{"api_key": "***", "x": 1}'),
        ('{"client_secret":"abc123"}', '{"client_secret":"***"}'),
        ('"secretAccessKey": "ab/c+d",', '"secretAccessKey": "***",'),
        ("{'password': 'of some words'}", "{'password': '***'}"),
        (r"{\"api_key\": \"abc123\", \"x\": 1}", r"{\"api_key\": \"***\", \"x\": 1}"),
        ('os.environ["API_KEY"] = "abc 123" and', 'os.environ["API_KEY"] = "***" and'),
        # Operators.
        ("password := hunter2x y", "password := *** y"),
        ('password => "x" y', 'password => "***" y'),
        ("**Password:** hunter y", "**Password:** *** y"),
        ("**Password**: hunter y", "**Password**: *** y"),
        ("token: | abcd1234efgh y", "token: | *** y"),
        ("?token=abcd1234efgh5678&x=1", "?token=***&x=1"),
        ("?a=1&access_token=abcd1234&amp;x=1", "?a=1&access_token=***&amp;x=1"),
        ("PASSWORD=a&b now", "PASSWORD=*** now"),
        ("password：hunter。以后", "password：***。以后"),
        ("token＝abc x", "token＝*** x"),
        ("密码：x。", "密码：***。"),
        # Quotes.
        ('PASSWORD="correct horse battery staple" y', 'PASSWORD="correc…aple" y'),
        ("run --password 'a b c d' --verbose", "run --password '***' --verbose"),
        (r'PASSWORD="a \"b\" c" y', 'PASSWORD="***" y'),
        ("PASSWORD=“a b c” y", "PASSWORD=“***” y"),
        ("PASSWORD='hunter y", "PASSWORD='*** y"),
        # More names.
        ("DB_PASS=hunter y", "DB_PASS=*** y"),
        ("MYSQL_PWD=hunter y", "MYSQL_PWD=*** y"),
        ("PGPASSWORD=hunter y", "PGPASSWORD=*** y"),
        ("passphrase: hunter y", "passphrase: *** y"),
        ("SECRET_KEY_BASE=hunter y", "SECRET_KEY_BASE=*** y"),
        ("API_KEY_PROD=hunter y", "API_KEY_PROD=*** y"),
        ("MY_KEY: hunter y", "MY_KEY: *** y"),
        ("KEY=value y", "KEY=*** y"),
        # Words of the language that name what is no word.
        ("token: abc123def. Then", "token: ***. Then"),
        ("the key: Ab-cDe-fGh, and", "the key: ***, and"),
        ("key: abcdefghijklmnopqrstuvwxyz", "key: abcdef…wxyz"),
    ],
)
def test_values_are_masked_by_their_name(text, masked):
    assert redact(text) == masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("redis://:pw@host/0", "redis://:***@host/0"),
        ("postgres://u:p@ssw0rd!@h/x", "postgres://u:***@h/x"),
        ("postgres://u:pa/ss@h/x", "postgres://u:***@h/x"),
        ("https://0123456789abcdefghij@github.com/x", "https://012345…ghij@github.com/x"),
        ("https://x-access-token:KEY@github.com/a/b", "https://x-access-token:***@github.com/a/b"),
        ("Authorization: token abcdef12 y", "Authorization: token *** y"),
        ("Authorization: Bearer abc/def+ghi= y", "Authorization: Bearer *** y"),
        ("Bearer abc/def+ghi=abcdefghi123 y", "Bearer abc/de…i123 y"),
        ("Cookie: session=abc123; csrf=x.y and on", "Cookie: session=***; csrf=*** and on"),
        ("curl -u kim:hunter https://x", "curl -u kim:*** https://x"),
        ("curl --user 'kim:a b c' https://x", "curl --user 'kim:***' https://x"),
    ],
)
def test_addresses_and_headers_are_masked(text, masked):
    assert redact(text) == masked


@pytest.mark.parametrize(
    "prefix",
    [
        "ghp_",
        "sk_live_",
        "rk_live_",
        "sk_test_",
        "whsec_",
        "GOCSPX-",
        "ya29.",
        "pypi-",
        "shpat_",
        "dop_v1_",
        "xai-",
        "r8_",
        "AGE-SECRET-KEY-1",
        "SG.abcdefghijkl.",
        "eyJhbGciOiJIUzI1NiJ9.e30.",
    ],
)
@pytest.mark.parametrize("before", ["", "token_", "令牌"])
def test_tokens_are_masked_by_their_prefix(prefix, before):
    token = f"{prefix}abcdefgh0123456789ij"
    assert redact(f"{before}{token}, y") == f"{before}{token[:6]}…89ij, y"


def test_web_hooks_are_masked():
    # Parts, so that no scanner takes this for a secret of ours.
    address = "https://hooks.slack.com/" + "services/"
    assert redact(f"{address}T000/B000/abcd y") == f"{address}*** y"


def test_secrets_are_seen_through_what_is_invisible():
    assert redact("sk-abcdefgh\u200bijklmnopqrst y") == "sk-abc…qrst y"
    assert redact("API_\u200bKEY=\ufeffabc y") == "API_KEY=*** y"
    assert redact("no\u200bthing, 👩\u200d💻") == "no\u200bthing, 👩\u200d💻"


def test_what_is_masked_stays_as_it_is():
    once = redact(
        'DB_PASS=hunter API_KEY_PROD=hunter "token": "abcdefgh 0123456789" token＝abc '
        "https://x-access-token:KEY@github.com/a sk-abcdefghijklmnopqrst Cookie: a=b; token=c"
    )
    assert redact(once) == once


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
        "monkey: banana, Turkey: country",
        "primary key: user_id, Key: C major, The key: it is, sortKey: name",
        '{"key": "some name"}',
        "pass --token to it, or --password --verbose",
        "Bearer authentication-is-described-here",
        "sk-learn-ing",
        "token: none found; the secretary: Jane; tokens: 15000",
        "PWD=/home/kim2",
        'password: ""',
        "http://localhost:8080/a@b and https://example.org/@somebody-long-1234",
        "docker run -u 1000:1000 image",
        '{"secret": {',
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
    "quotes of both kinds": "PASSWORD=\"a PASSWORD='b " * 40_000,
    "escaped quotes": 'PASSWORD=\\"' * 80_000,
    "backslashes": 'PASSWORD="' + "\\" * 1_000_000,
    "quotes that do not end": 'PASSWORD="' + '\\"' * 500_000,
    "plain words": "key: abc " * 110_000,
    "long plain word": "key: " + "ab-" * 330_000,
    "parameters": "token=a&" + "a&" * 500_000,
    "long parameters": "token=" + ("&" + "a" * 63) * 15_000,
    "suffixes": "token_1" * 140_000,
    "sharp names": "Key" * 350_000,
    "stars": "password" + "*" * 1_000_000,
    "passwords with slashes": "://a:" + "b/" * 500_000,
    "addresses without a host": "://a:b/" * 140_000,
    "ats": "://a:" + "@" * 1_000_000,
    "cookies": "Cookie: a=b; " * 75_000,
    "long cookie": "Cookie: " + "a=" * 500_000,
    "names of cookies": "Cookie: " + "a" * 1_000_000,
    "users": "-u a:" * 200_000,
    "quoted users": "-u 'a:" * 160_000,
    "flags of parts": "--a-b-c-token" * 75_000,
    "dashes of flags": "-" * 1_000_000 + "token",
    "unsigned": "eyJ" * 350_000 + ".e30. ",
    "parts of tokens": "eyJ.e30." * 125_000,
    "underscores": "token_" * 170_000,
    "parts of words": "Bearer " + "ab-" * 330_000 + "1",
    "glued": "xoxb-" * 200_000,
    "SG": "SG." + "a" * 1_000_000,
    "headers of keys": "-----BEGIN PRIVATE KEY-----" + " Version: a" * 90_000,
    "quotes of keys": "-----BEGIN PRIVATE KEY-----" + " > " * 330_000,
    "equals of keys": "-----BEGIN PRIVATE KEY-----" + " =" * 500_000,
    "spoken": "password is 1" + "!" * 1_000_000,
    "invisible": "a" + "\u200b" * 1_000_000,
    "all invisible": "\u200b" * 1_000_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_text_takes_longer_than_its_length(text):
    def seconds(work):
        started = time.process_time()
        work()
        return time.process_time() - started

    # A scan that cannot go back: some 40 of them are more than all forms take. What is quadratic
    # would take 1,000 times as long.
    plain = min(seconds(lambda: re.sub(r"[\s\S]", "", text)) for _ in range(2))
    assert seconds(lambda: redact(text)) < 40 * plain + 0.5
