"""A real S3 server on loopback: S3Proxy over a folder, with a key and a secret.

Its jar comes by Maven coordinates (`maven.py`). Killed and started again it has the same address and data.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from tests.loopback import free_port, listens, wait_for
from tests.maven import Coordinates, fetched

VERSION = "4.1.0"
KEY, SECRET = "weirs-key-id", "weirs-very-own-secret"
BUCKET = "weir"
START = 60.0
JVM = (
    "-Xmx128m",
    "-Xms32m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
)
_CONFIG = """\
s3proxy.endpoint=http://127.0.0.1:{port}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={key}
s3proxy.credential={secret}
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={data}
jclouds.identity=unused
jclouds.credential=unused
"""


def jar() -> Path:
    """The server's jar; fetched when it is not there yet."""
    wanted = Coordinates("org.gaul", "s3proxy", VERSION, "jar-with-dependencies")
    return fetched(f"s3proxy-{VERSION}", [wanted]) / wanted.file


class S3Server:
    """One server with one bucket. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._jar, self._folder = jar(), folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        (folder / "data" / BUCKET).mkdir(parents=True)
        self._config = folder / "s3proxy.conf"
        own = {"port": self.port, "key": KEY, "secret": SECRET, "data": folder / "data"}
        self._config.write_text(_CONFIG.format(**own))

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}"

    def __enter__(self) -> S3Server:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, with the data that it had, and wait until it listens."""
        command = ["java", *JVM, "-jar", str(self._jar), "--properties", str(self._config)]
        with open(self._folder / "s3proxy.log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_for("the S3 server", self._listens, START)

    def kill(self) -> None:
        """End it at once, as a crash does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def environment(self, port: int = 0) -> dict[str, str]:
        """What a client of it has in its environment; with a port, one that talks to a proxy."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
        }

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "s3proxy.log").read_text()[-3000:]
        return listens(self.port)
