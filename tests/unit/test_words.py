"""What people read: no secret is in it, whatever its form, and ordinary text stays as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weir.clock import Clock
from weir.errors import ExternalError, NoTokenError, UserCodeError
from weir.spark.failure import from_exception
from weir.supervisor.history import History
from weir.supervisor.journal import JobJournal
from weir.text import (
    Scrubber,
    body_without_secrets,
    counted,
    took,
    without_escapes,
    without_secrets,
    without_this,
)

SECRET = "hunter2"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{SECRET}";'

FORMS = {
    f'required username="u" password="{SECRET}";': 'required username="u" password="***";',
    f"password='{SECRET}' user=u": "password='***' user=u",
    f'password="a\\"{SECRET}" user=u': 'password="***" user=u',
    f'"sasl.password": "{SECRET}", "x": 1': '"sasl.password": "***", "x": 1',
    f"{{'password': '{SECRET}', 'x': 1}}": "{'password': '***', 'x': 1}",
    f'"password": "{SECRET}"': '"password": "***"',
    f"password: {SECRET}": "password: ***",
    f"password={SECRET}&user=u": "password=***&user=u",
    f"PASSWORD = {SECRET}": "PASSWORD = ***",
    f"connect(password={SECRET}, user=u)": "connect(password=***, user=u)",
    f"cut short: password='{SECRET}": "cut short: password=***",
    f"secret_access_key={SECRET}": "secret_access_key=***",
    f"aws_secret_access_key: {SECRET}": "aws_secret_access_key: ***",
    f"fs.s3a.secret.key={SECRET}": "fs.s3a.secret.key=***",
    f"azure.account.key.me.dfs.core.windows.net={SECRET}": "azure.account.key.me.dfs.core.windows.net=***",
    f"client_secret={SECRET}": "client_secret=***",
    f"api-key={SECRET}": "api-key=***",
    f"ssl.key.password={SECRET}": "ssl.key.password=***",
    f"aws_session_token={SECRET}": "aws_session_token=***",
    f"session_token: {SECRET}": "session_token: ***",
    f'{{"token": "{SECRET}"}}': '{"token": "***"}',
    f"redis://:{SECRET}@host:6379/0": "redis://:***@host:6379/0",
    f"postgresql://me:{SECRET}@db/x": "postgresql://me:***@db/x",
    f"postgresql://me:a@/{SECRET}@db/x": "postgresql://me:***@db/x",
    f"Authorization: Bearer {SECRET}": "Authorization: Bearer ***",
    f"Bearer {SECRET}": "Bearer ***",
    f"authorization: Basic {SECRET}": "authorization: Basic ***",
    f"sasl.jaas.config={JAAS} more": "sasl.jaas.config=*** more",
    f'.option("password", "{SECRET}").load()': '.option("password", "***").load()',
    f"('sasl.password', '{SECRET}'), ('a', 'b')": "('sasl.password', '***'), ('a', 'b')",
    f'.option( "fs.s3a.secret.key" , f"{SECRET}" )': '.option( "fs.s3a.secret.key" , f"***" )',
    f'.option("token", "{SECRET}")': '.option("token", "***")',
    f'.option(key="password", value="{SECRET}")': '.option(key="password", value="***")',
    f'connect(password=b"{SECRET}", x=1)': 'connect(password=b"***", x=1)',
    f"Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey={SECRET};x=1": (
        "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=***;x=1"
    ),
    f"server=db;uid=me;pwd={SECRET};x=1": "server=db;uid=me;pwd=***;x=1",
    f"PWD={SECRET}": "PWD=***",
    f"https://a.blob.core.windows.net/c?sv=1&sig={SECRET}%3D&se=2": (
        "https://a.blob.core.windows.net/c?sv=1&sig=***&se=2"
    ),
    f"https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Signature={SECRET}": (
        "https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Signature=***"
    ),
    f"X-Amz-Security-Token={SECRET}&x=1": "X-Amz-Security-Token=***&x=1",
    f"https://storage.googleapis.com/b/o?X-Goog-Signature={SECRET}": (
        "https://storage.googleapis.com/b/o?X-Goog-Signature=***"
    ),
    f"https://cdn/x?Expires=1&Signature={SECRET}~&Key-Pair-Id=K": (
        "https://cdn/x?Expires=1&Signature=***&Key-Pair-Id=K"
    ),
    f"basic.auth.user.info={SECRET}:{SECRET}": "basic.auth.user.info=***",
    f"credentials={SECRET}": "credentials=***",
    f'"credentials": "{SECRET}"': '"credentials": "***"',
    f"psql --password {SECRET} -h db": "psql --password *** -h db",
    f"run --db-password '{SECRET}' x": "run --db-password '***' x",
    f"tool --api-key {SECRET}": "tool --api-key ***",
    f"postgresql://me:123/{SECRET}@db/x": "postgresql://me:***@db/x",
    f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n{SECRET}\n-----END RSA PRIVATE KEY----- more": (
        "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY----- more"
    ),
    f"cut: -----BEGIN PRIVATE KEY-----\n{SECRET}\n": "cut: -----BEGIN PRIVATE KEY-----***",
    f'"kafka.sasl.jaas.config": {json.dumps(JAAS)}, "x": 1': '"kafka.sasl.jaas.config": ***", "x": 1',
}

ORDINARY = (
    "batch 7 of query 'counts' took 3 s: 12.3k rows",
    "check the user, password and database in the url; to try it with psql: psql postgresql://me@db/x",
    "PostgreSQL refused the sink's login: no password supplied",
    "the token of rest.token-file can't be read from /etc/token",
    "rest.token-file=/etc/weir/token",
    "attempt 3 has the token (3, 1)",
    "send the token that rest.token-file holds: Authorization: Bearer <token>",
    "write postgresql://user:password@host:port/database",
    "http://localhost:8080/jobs?query=a@b",
    "s3://bucket/key, key=[word], partition_by=secretary",
    "hdfs://nn:8020/user/ada@example.com/data",
    "PWD=/home/me/jobs",
    "bad credentials: ask the owner of the database",
    "weir run job.py --password",
    "the signature of the function does not fit; sig. 7",
    "a design=big, resig=nation",
    "-----BEGIN CERTIFICATE-----\\nMIIB\\n-----END CERTIFICATE-----",
    'File "/home/me/job.py", line 3, in <module>',
    "KeyError: 'no such column'",
)


@pytest.mark.parametrize("given", FORMS)
def test_a_secret_in_any_form_is_taken_out_and_the_rest_stays(given: str) -> None:
    assert without_secrets(given) == FORMS[given]
    assert without_secrets(FORMS[given]) == FORMS[given]


@pytest.mark.parametrize("given", FORMS)
def test_so_it_is_inside_of_json_and_python_texts(given: str) -> None:
    for _ in range(3):
        given = json.dumps({"text": given})
        assert SECRET not in without_secrets(given)
    assert SECRET not in without_secrets(repr(given))


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert without_secrets(text) == text


def test_a_long_text_without_secrets_stays_and_is_read_in_linear_time() -> None:
    long = "secretary" * 5_000 + "password " * 5_000 + "x://a:b" * 2_000
    assert without_secrets(long) == long


@pytest.mark.parametrize("given", FORMS)
def test_no_error_failure_or_line_of_the_journal_has_it(given: str, tmp_path: Path) -> None:
    told = UserCodeError(error="ValueError", query="q", batch=1, message=given, job="j")
    failure = from_exception(ValueError(given), "j")
    assert SECRET not in f"{told} {told.why} {ExternalError(what=given).text} {failure}"
    journal = JobJournal(tmp_path / "journal.sqlite", Clock())
    journal.event(1, "note", {"text": given, "inner": [{"sasl.password": SECRET, "path": Path("/x")}]})
    journal.close()
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in tmp_path.iterdir())
    history = History(tmp_path / "journal.sqlite")
    (event,) = history.events()
    history.close()
    assert event.body == {"text": FORMS[given], "inner": [{"sasl.password": "***", "path": "/x"}]}


def test_numbers_and_names_in_a_body_stay(tmp_path: Path) -> None:
    body = {"batch": 3, "token": [1, 2], "password": 5, "rest.token-file": "/x", "last": None, "on": True}
    assert body_without_secrets(body) == body


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_a_stream_in_any_pieces_loses_its_secrets_and_nothing_else(size: int) -> None:
    given = "".join(f"{form}\n" for form in FORMS if "PRIVATE KEY" not in form).encode() + b"bytes \xff\x00\n"
    given += f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n{SECRET}\n-----END PRIVATE KEY-----\nlast".encode()
    scrubber = Scrubber()
    pieces = [scrubber.feed(given[at : at + size]) for at in range(0, len(given), size)]
    passed = b"".join(pieces) + scrubber.end()
    assert SECRET.encode() not in passed
    assert passed.endswith(b"-----END PRIVATE KEY-----\nlast") and b"bytes \xff\x00\n" in passed
    assert b"connect(password=***, user=u)\n" in passed


def test_a_line_without_an_end_is_not_held_for_ever() -> None:
    assert Scrubber().feed(b"x" * 100_000) == b"x" * 100_000
    scrubber = Scrubber()
    assert scrubber.feed(b"50 %") == b"" and scrubber.end() == b"50 %"


def test_a_short_secret_is_never_taken_out_of_words() -> None:
    text = "connection to server at port 5999, user pg, failed: abcd abcde"
    for secret in ("p", "pg", "999", ""):
        assert without_this(text, secret) == text
    assert without_this(text, "abcd").endswith("failed: *** abcde")
    assert without_this("xhunter22x", "hunter22") == "x***x"


def test_no_command_reaches_a_terminal_and_colours_only_where_they_may() -> None:
    evil = "a\x1b[2J\x1b]0;title\x07b\x1b]8;;http://evil\x1b\\c\x9b31md\x07\x08e\x1bc\u202ef\tg\n\x1b[31mred\x1b[0m"
    assert without_escapes(evil) == "abc31mdef\tg\nred"
    assert without_escapes(evil, colours=True) == "abc31mdef\tg\n\x1b[31mred\x1b[0m"


def test_what_an_error_tells_to_do_can_be_read() -> None:
    assert NoTokenError(reason="no").hint.endswith("Authorization: Bearer <token>")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 s"),
        (0.0002, "< 1 ms"),
        (0.005, "5 ms"),
        (0.34, "0.34 s"),
        (75, "75.00 s"),
        (125, "2 min 5 s"),
    ],
)
def test_how_long_something_took(seconds: float, text: str) -> None:
    assert took(seconds) == text


def test_a_number_has_the_form_of_its_noun() -> None:
    assert [counted(count, "row") for count in (0, 1, 2, 3000)] == ["no row", "1 row", "2 rows", "3k rows"]
