"""A connection that failed inside the author's own code: an outage, and no fault of that code.

What a function in `foreachBatch` or in a Python process of Spark's raised comes as the text of its
traceback alone. The class of each exception in it decides, causes included: who catches a connection
that failed and raises something else still has an outage. Nothing else of the text counts, so that a
row which happens to hold such a name is no outage.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

JAVA = {
    "java.net.ConnectException",
    "java.net.NoRouteToHostException",
    "java.net.SocketException",
    "java.net.SocketTimeoutException",
    "java.net.UnknownHostException",
    "java.net.http.HttpConnectTimeoutException",
    "java.net.http.HttpTimeoutException",
    "java.sql.SQLNonTransientConnectionException",
    "java.sql.SQLRecoverableException",
    "java.sql.SQLTransientConnectionException",
    "org.apache.kafka.common.errors.BrokerNotAvailableException",
    "org.apache.kafka.common.errors.DisconnectException",
    "org.apache.kafka.common.errors.NetworkException",
    "org.apache.kafka.common.errors.TimeoutException",
}
"""What Java and its common clients raise when a server is away."""
_PYTHON = {
    # Python's own, its http and urllib; requests, redis and others have classes of the same names
    "BrokenPipeError",
    "ConnectionAbortedError",
    "ConnectionError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "RemoteDisconnected",
    "TimeoutError",
    "gaierror",
    "herror",
    "timeout",
    # requests, urllib3, httpx, aiohttp, botocore
    "ClientConnectorError",
    "ConnectError",
    "ConnectTimeout",
    "ConnectTimeoutError",
    "ConnectionClosedError",
    "EndpointConnectionError",
    "MaxRetryError",
    "NewConnectionError",
    "ProtocolError",
    "ReadError",
    "ReadTimeout",
    "ReadTimeoutError",
    "RemoteProtocolError",
    "ServerDisconnectedError",
    "ServerTimeoutError",
    # psycopg, beside OperationalError below; pymongo, kafka-python
    "AdminShutdown",
    "AutoReconnect",
    "CannotConnectNow",
    "ConnectionFailure",
    "ConnectionTimeout",
    "CrashShutdown",
    "KafkaTimeoutError",
    "NoBrokersAvailable",
    "PoolTimeout",
    "ServerSelectionTimeoutError",
    "TooManyConnections",
}
_DATABASE = {"InterfaceError", "OperationalError"}
"""What databases' clients raise when the server is away (PEP 249), and for a few faults of the code."""
_FAULTS = re.compile(
    r"authentication failed|no such |already exists|does not exist|unknown column|syntax error|has no column"
    r"|cursor",
    re.IGNORECASE,
)
_AWAY = re.compile(r"\[Errno (\d+)\]")
_UNREACHABLE = {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH}
_TRACEBACK = "Traceback (most recent call last):\n"
_RAISED = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:: (?P<said>.*))?")
_IN_JAVA = re.compile(r"^(?:: |Caused by: )(?P<name>[\w.$]+)(?:: .*)?$", re.MULTILINE)
_BRIDGES = ("py4j.", "pyspark.")


def failed_connection(text: str) -> str:
    """The line of a connection that failed, among the tracebacks in a text; "" where none did."""
    return next(_connections(text), "")


def _connections(text: str) -> Iterator[str]:
    for part in text.split(_TRACEBACK)[1:]:
        line = next((line for line in part.splitlines() if line.strip() and not line[0].isspace()), "")
        raised = _RAISED.fullmatch(line)
        if raised is None:
            continue
        if _is_connection(raised["name"].rsplit(".", 1)[-1], raised["said"] or ""):
            yield line
        if raised["name"].startswith(_BRIDGES):
            yield from (one[0].partition(": ")[2] for one in _IN_JAVA.finditer(part) if one["name"] in JAVA)


def _is_connection(name: str, said: str) -> bool:
    if name in _DATABASE:
        return not _FAULTS.search(said)
    number = _AWAY.match(said)
    return name in _PYTHON or (name == "OSError" and number is not None and int(number[1]) in _UNREACHABLE)
