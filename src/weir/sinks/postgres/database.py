"""Connections to the database of a sink, and what its errors mean.

Every step is one transaction. When it raises before its COMMIT was sent, nothing of it happened; when
the answer to the COMMIT is lost, `OutcomeUnknownError` says so. The password is in the url only: no
text that leaves this module has it.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import psycopg
from psycopg import conninfo, sql

from weir.errors import (
    DatabaseError,
    LoginRefusedError,
    OutcomeUnknownError,
    SinkMismatchError,
    WeirError,
)
from weir.text import without_secrets, without_this

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

SETTINGS = {
    "timezone": "UTC",  # timestamps are copied as UTC, without a zone
    "datestyle": "ISO, YMD",
    "idle_in_transaction_session_timeout": "30s",  # a driver that is frozen in a commit releases it then
}
"""Set for every transaction; not for the session, which a pooler may share."""
_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', true) "
    "WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')"
)
"""Spark decides for what is recorded: no server may confirm it before it is on its disk, and lose it."""
_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', '5min', true) WHERE current_setting('lock_timeout') = '0'"
"""Nobody waits for a lock forever without a message; the user, the database or the url may set another."""
_CONNECTION = {
    "connect_timeout": 10,
    "application_name": "weir",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Defaults that the url may change. A machine that vanishes closes no connection: without these the sink
would wait for its answer for hours. The last one, in milliseconds, bounds how long the machine may be silent,
and how long it may accept nothing that is sent; where a system does not have it, the three before it do the
former."""
_HOSTS, _PORTS = re.compile(r"[\w.,:/\-]*"), re.compile(r"[\d,]*")
_SHOWN = 500
_IDLE_KEPT = 2
_REFUSES_ROWS = ("22", "23", "44", "P0", "54000")
"""How an SQLSTATE about a row begins: data, integrity, a view's check, an error raised by a trigger, a value
too long for its index."""
_REFUSES_US = ("28", "3D")
_MISFITS = ("0A", "3F", "42")
_OWN_TABLES = r"\.(ledger|delivered|staged|refused|before_\d+|s\d+_\d+_\d+_\d+)\b"
_REFUSED_LOGIN = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|"
    r'(role|database|user) ".*" (does not exist|is not permitted)|permission denied for database'
)


@dataclass(frozen=True)
class Address:
    """Where the database is; only `url` has the password."""

    url: str = field(repr=False)
    place: str
    user: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises `SinkMismatchError` for what libpq can't read."""
        parts = _parts(url)
        if parts is None:
            raise SinkMismatchError(
                query="?",
                path="PostgreSQL",
                reason="its url can't be read",
                todo="write postgresql://user:password@host:port/database, with special characters in the "
                "password percent-encoded; or keep the password in ~/.pgpass",
            )
        user = parts.get("user", "")
        at = f"{user}@" if user else ""
        port = f":{parts['port']}" if "port" in parts else ""
        host = parts.get("host", parts.get("hostaddr", ""))
        where = f"{host}{port}/{parts.get('dbname', '')}"
        return cls(url, f"postgresql://{at}{where}", user)


def _parts(url: str) -> dict[str, str] | None:
    """What the url says; None where a part of a password may have been taken for something else."""
    try:
        parts = {key: str(value) for key, value in conninfo.conninfo_to_dict(url).items()}
    except psycopg.Error:
        return None
    shown = [parts.get(key, "") for key in ("host", "hostaddr", "user", "dbname")]
    strange = any("@" in part for part in shown) or not _HOSTS.fullmatch(parts.get("host", ""))
    return None if strange or not _PORTS.fullmatch(parts.get("port", "")) else parts


def connect(address: Address, verb: str, *, query: str = "?") -> Connection:
    """A new connection for the sink of a query; no transaction is open."""
    try:
        chosen = conninfo.conninfo_to_dict(address.url)
        defaults: dict[str, Any] = {key: value for key, value in _CONNECTION.items() if key not in chosen}
        connection: Connection = psycopg.connect(address.url, client_encoding="utf8", **defaults)
    except psycopg.Error as error:
        raise translate(error, address, verb, query=query) from None
    connection.prepare_threshold = None  # tables come and go
    return connection


def begin(connection: Connection) -> None:
    """Begin a transaction with the settings that every step counts on; raises what psycopg raises."""
    settings = [
        sql.SQL("SET LOCAL {} = {}").format(sql.Identifier(key), value) for key, value in SETTINGS.items()
    ]
    connection.execute(sql.SQL("; ").join([*settings, sql.SQL(_DURABLE), sql.SQL(_LOCK_TIMEOUT)]))


def translate(
    error: psycopg.Error, address: Address, verb: str, *, query: str = "?", schema: str = ""
) -> WeirError:
    """The error of weir for an error of the database, without secrets.

    `schema` is where weir's own tables are. When one of them is missing, a standby may have taken over that
    never had it, or somebody deleted it: the next start makes it again, and finds out what is lost.
    """
    state, reason = error.sqlstate or "", scrubbed(str(error), address)
    if state[:2] in _REFUSES_US or (not state and _REFUSED_LOGIN.search(reason)):
        return LoginRefusedError(place=address.place, reason=reason)
    if schema and _own_is_missing(state, reason, schema):
        reason += "; a standby without it may have taken over, or somebody deleted it"
        return DatabaseError(verb=verb, place=address.place, reason=reason)
    if state[:2] in _MISFITS or refuses_row(error):
        todo = "correct the table or the rights of the user, then start again"
        return SinkMismatchError(query=query, path=address.place, reason=f"{verb}: {reason}", todo=todo)
    return DatabaseError(verb=verb, place=address.place, reason=reason)


def _own_is_missing(state: str, reason: str, schema: str) -> bool:
    """Whether a table of weir's, or its schema, is missing; a server may translate all but the names."""
    if state == "3F000":
        return bool(re.search(rf"(?<!\w){re.escape(schema)}(?!\w)", reason))
    return state == "42P01" and bool(re.search(re.escape(schema) + _OWN_TABLES, reason))


def refuses_row(error: psycopg.Error) -> bool:
    """Whether the error is about a row that the database does not take."""
    return (error.sqlstate or "").startswith(_REFUSES_ROWS)


def scrubbed(text: str, address: Address) -> str:
    """The first line of a text, without the password, should it ever be in it."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no reason was given")
    with suppress(Exception):
        word = conninfo.conninfo_to_dict(address.url).get("password")
        line = without_this(line, str(word or ""))
    line = without_secrets(line)
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "..."


class Database:
    """A few connections that are reused. For any thread."""

    def __init__(self, address: Address, schema: str = "") -> None:
        self.address = address
        self.schema = schema
        """Where weir's own tables are."""
        self.query = "?"
        """Whose sink this is, for messages; known once the sink is opened."""
        self._lock = threading.Lock()
        self._idle: list[Connection] = []

        def close(connections: list[Connection] = self._idle) -> None:
            for connection in connections:
                connection.close()

        weakref.finalize(self, close)  # a sink ends with the run that it was made for

    @contextmanager
    def transaction(self, verb: str) -> Iterator[Connection]:
        """One transaction, committed at the end of the block; rolled back when the block raises.

        Raises `DatabaseError` when it did not happen, `OutcomeUnknownError` when nobody knows.
        """
        connection = self._begin(verb)
        try:
            yield connection
        except psycopg.Error as error:
            self._give_back(connection)
            raise self._translated(error, verb) from error
        except BaseException:
            self._give_back(connection)
            raise
        self._commit(connection, verb)
        self._give_back(connection)

    def _commit(self, connection: Connection, verb: str) -> None:
        try:
            connection.commit()
        except psycopg.Error as error:
            connection.close()
            if error.sqlstate and error.sqlstate[:2] != "57":  # it answered that it did not
                raise self._translated(error, verb) from error
            reason = scrubbed(str(error), self.address)
            raise OutcomeUnknownError(verb=verb, path=self.address.place, reason=reason) from error

    def _begin(self, verb: str) -> Connection:
        """A connection in a new transaction; one that has died since it was used last is replaced."""
        while True:
            with self._lock:
                used = self._idle.pop() if self._idle else None
            connection = used or connect(self.address, verb, query=self.query)
            try:
                begin(connection)
                return connection
            except psycopg.Error as error:
                connection.close()
                if used is None:
                    raise self._translated(error, verb) from error

    def _translated(self, error: psycopg.Error, verb: str) -> WeirError:
        return translate(error, self.address, verb, query=self.query, schema=self.schema)

    def _give_back(self, connection: Connection) -> None:
        with suppress(Exception):
            connection.rollback()
        with self._lock:
            if not connection.closed and len(self._idle) < _IDLE_KEPT:
                self._idle.append(connection)
                return
        connection.close()
