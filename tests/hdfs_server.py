"""A real HDFS on loopback: a NameNode, or two with a JournalNode, and DataNodes, each a process of its own.

One jar more than PySpark brings (`maven.py`). Each process can be killed, paused and started again with the
address and the data that it had. Whoever runs the tests is its superuser.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.loopback import free_ports, listens, wait_for
from tests.maven import Coordinates, fetched

VERSION = "3.5.0"
START = 120.0
JVM = (
    "-Xmx192m",
    "-Xms32m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
)
OPENS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        *("java.lang", "java.lang.invoke", "java.io", "java.net", "java.nio", "java.util"),
        *("java.util.concurrent", "sun.nio.ch", "sun.security.action"),
    )
]
"""What Spark's launcher opens for the same jars."""
_NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_JOURNALNODE = "org.apache.hadoop.hdfs.qjournal.server.JournalNode"
_HA_ADMIN = "org.apache.hadoop.hdfs.tools.DFSHAAdmin"
_ADMIN = "org.apache.hadoop.hdfs.tools.DFSAdmin"
_LOG = """\
rootLogger.level=info
rootLogger.appenderRef.c.ref=c
appender.c.type=Console
appender.c.name=c
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=%d{HH:mm:ss.SSS} %p %c{1}: %m%n
"""


def jar() -> Path:
    """The jar with the servers; fetched when it is not there yet."""
    wanted = Coordinates("org.apache.hadoop", "hadoop-client-minicluster", VERSION)
    return fetched(f"hadoop-{VERSION}", [wanted]) / wanted.file


class HdfsServer:
    """One HDFS. Use as a context manager; its settings for clients are in the folder `conf`."""

    def __init__(self, folder: Path, datanodes: int = 1, *, failover: bool = False) -> None:
        import pyspark

        self._jars = f"{jar()}:{Path(pyspark.__file__).parent / 'jars'}/*"
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.namenodes = ["nn1", "nn2"] if failover else ["nn1"]
        ports = iter(free_ports(2 * len(self.namenodes) + 3 * datanodes + 2))
        self.ports = {name: next(ports) for name in self.namenodes}
        """Where each NameNode listens."""
        self._web = {name: next(ports) for name in self.namenodes}
        self._datanodes = [(next(ports), next(ports), next(ports)) for _ in range(datanodes)]
        self._journal = (next(ports), next(ports))
        self.url = "hdfs://weir" if failover else f"hdfs://127.0.0.1:{self.ports['nn1']}"
        self._settings = {**_COMMON, "dfs.replication": str(min(2, datanodes)), **self._addresses()}
        self.conf = folder / "conf"
        self._configure(self.conf, {})

    @property
    def failover(self) -> bool:
        return len(self.namenodes) > 1

    def __enter__(self) -> HdfsServer:
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._running):
            self.kill(name)

    def _begin(self) -> None:
        if self.failover:
            own = {"dfs.journalnode.edits.dir": str(self._folder / "journal")}
            self._start("journal", _JOURNALNODE, own)
            wait_for("the JournalNode", lambda: listens(self._journal[0]), START)
        for number in range(len(self._datanodes)):  # they wait for the NameNode
            self.start_datanode(number)
        self._run("format", _NAMENODE, "-format", "-nonInteractive", own=self._own("nn1"))
        self.start_namenode("nn1")
        if self.failover:
            self._run("standby", _NAMENODE, "-bootstrapStandby", "-nonInteractive", own=self._own("nn2"))
            self.start_namenode("nn2")
            self.activate("nn1")
        wait_for("a DataNode", lambda: self._is_ready("nn1"), START)

    def start_namenode(self, name: str = "nn1") -> None:
        """Start it, and wait until it listens; with a second one it is a standby."""
        self._start(name, _NAMENODE, self._own(name))
        wait_for(f"the NameNode {name}", lambda: self._listens(name), START)

    def start_datanode(self, number: int = 0) -> None:
        data, web, ipc = self._datanodes[number]
        own = {
            "dfs.datanode.data.dir": str(self._folder / f"data{number}"),
            "dfs.datanode.address": f"127.0.0.1:{data}",
            "dfs.datanode.http.address": f"127.0.0.1:{web}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{ipc}",
        }
        self._start(f"dn{number}", _DATANODE, own)

    def activate(self, name: str) -> None:
        """Make a standby the active NameNode, as its failover controller would; the other one is dead."""
        self._run(f"activate-{name}", _HA_ADMIN, "-transitionToActive", "--forceactive", name)

    def safe_mode(self, on: bool) -> None:
        """Let the NameNode refuse every write, or no longer."""
        self._run("safemode", _ADMIN, "-safemode", "enter" if on else "leave")

    def kill(self, name: str) -> None:
        """End a process at once, as a crash does: a NameNode by its name, a DataNode as "dn0"."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def pause(self, name: str) -> None:
        """Let it hang: connections stay open, and nothing is answered from the return of this on."""
        pid = self._running[name].pid
        os.kill(pid, signal.SIGSTOP)
        # each thread stops when it next runs: on a busy machine one of them may still answer
        threads = Path(f"/proc/{pid}/task")
        wait_for(f"the stop of {name}", lambda: all(map(_is_stopped, threads.iterdir())), 30)

    def resume(self, name: str) -> None:
        os.kill(self._running[name].pid, signal.SIGCONT)

    def _addresses(self) -> dict[str, str]:
        if not self.failover:
            return {
                "dfs.namenode.rpc-address": f"127.0.0.1:{self.ports['nn1']}",
                "dfs.namenode.http-address": f"127.0.0.1:{self._web['nn1']}",
            }
        rpc, web = self._journal
        found = {
            "dfs.nameservices": "weir",
            "dfs.ha.namenodes.weir": ",".join(self.namenodes),
            "dfs.client.failover.proxy.provider.weir": (
                "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
            ),
            "dfs.namenode.shared.edits.dir": f"qjournal://127.0.0.1:{rpc}/weir",
            "dfs.journalnode.rpc-address": f"127.0.0.1:{rpc}",
            "dfs.journalnode.http-address": f"127.0.0.1:{web}",
            "dfs.ha.fencing.methods": "shell(/bin/true)",
            "dfs.ha.automatic-failover.enabled": "false",
            "dfs.ha.tail-edits.period": "1s",
        }
        for name in self.namenodes:
            found[f"dfs.namenode.rpc-address.weir.{name}"] = f"127.0.0.1:{self.ports[name]}"
            found[f"dfs.namenode.http-address.weir.{name}"] = f"127.0.0.1:{self._web[name]}"
        return found

    def _own(self, name: str) -> dict[str, str]:
        return {"dfs.namenode.name.dir": str(self._folder / name), "dfs.ha.namenode.id": name}

    def _configure(self, folder: Path, own: Mapping[str, str]) -> None:
        folder.mkdir(exist_ok=True, parents=True)
        core = {"fs.defaultFS": self.url, "hadoop.tmp.dir": str(self._folder / "tmp")}
        mounts = {f"fs.viewfs.mounttable.weir.link./{name}": f"{self.url}/{name}" for name in ("one", "two")}
        mounts["fs.viewfs.mounttable.weir.linkFallback"] = f"{self.url}/rest"
        _write(folder / "core-site.xml", {**core, **mounts})
        _write(folder / "hdfs-site.xml", {**self._settings, **own})
        (folder / "log4j2.properties").write_text(_LOG)

    def _start(self, name: str, main: str, own: Mapping[str, str]) -> None:
        self._running[name] = self._java(name, main, own=own)

    def _run(self, name: str, main: str, *arguments: str, own: Mapping[str, str] | None = None) -> None:
        process = self._java(name, main, *arguments, own=own or {})
        try:
            assert process.wait(START) == 0, f"{name}: {self._printed(name)}"
        finally:
            process.kill()  # when it takes longer
            process.wait()

    def _java(self, name: str, main: str, *arguments: str, own: Mapping[str, str]) -> subprocess.Popen[bytes]:
        conf = self._folder / f"conf-{name}"
        self._configure(conf, own)
        options = [*JVM, *OPENS, f"-Dlog4j2.configurationFile={conf}/log4j2.properties"]
        command = ["java", *options, "-cp", f"{conf}:{self._jars}", main, *arguments]
        with open(self._folder / f"{name}.log", "ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _listens(self, name: str) -> bool:
        assert self._running[name].poll() is None, f"{name} ended: {self._printed(name)}"
        return listens(self.ports[name])

    def _is_ready(self, name: str) -> bool:
        """Whether it takes writes, and all DataNodes have come."""
        query = "jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        with urllib.request.urlopen(f"http://127.0.0.1:{self._web[name]}/{query}", timeout=START) as answer:
            state = json.load(answer)["beans"][0]
        return bool(state["FSState"] == "Operational" and state["NumLiveDataNodes"] == len(self._datanodes))

    def _printed(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()[-3000:]


_COMMON = {
    "dfs.permissions.enabled": "true",
    "dfs.namenode.safemode.extension": "0",
    "dfs.heartbeat.interval": "1",
    "dfs.namenode.heartbeat.recheck-interval": "2000",
    "dfs.namenode.handler.count": "4",
    "dfs.datanode.handler.count": "3",
    "dfs.namenode.fs-limits.min-block-size": "0",
    "dfs.namenode.edits.noeditlogchannelflush": "true",  # it is killed, never the machine
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "1000",
}


def _write(file: Path, settings: Mapping[str, str]) -> None:
    properties = "".join(
        f"<property><name>{key}</name><value>{value}</value></property>\n" for key, value in settings.items()
    )
    file.write_text(f"<configuration>\n{properties}</configuration>\n")


def _is_stopped(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return True
