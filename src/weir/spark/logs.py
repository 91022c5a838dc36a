"""The text files of a checkpointLocation, parsed and written: the only place that knows their lines.

    offsets/<n>                version, settings as JSON, then a line for each source: `OffsetEntry`
    commits/<n>                version, JSON: `CommitEntry`
    sources/<i>/<n>[.compact]  version, then JSON for each file that was read: `FileEntry`. The log of Spark's
                               own file sink, `_spark_metadata`, has the same form
    state/<op>/_metadata/...   version, JSON: `OperatorEntry`. The `metadata` in a snapshot of RocksDB, too

An `OffsetEntry` writes what was not changed byte for byte as it was. Text that is not JSON raises
`ValueError`, and JSON without what Spark writes `KeyError`. Nothing here reads or writes a file: `cut.py` has
the entries of a folder, `checkpoint_files.py` those of a live query.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weir.ids import BatchId

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PARTITIONS = "spark.sql.shuffle.partitions"
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
NO_OFFSET = "-"
"""The line of a source that has no position yet."""
StateIds = dict[str, list[list[str]]]
"""For each operator, for each partition: the unique ids of its stores."""

_BY_NUMBER = "v1"
_VERSION = re.compile(r"v\d+")
_NAME = re.compile(r"(\d+)(\.compact)?", re.ASCII)
_SCHEMA = re.compile(r"(file:)?(?:.*/)?state/(\d+)/(_stateSchema/.*)")
_IDS = "stateUniqueIds"


@dataclass(frozen=True)
class OffsetEntry:
    """An `offsets/<n>`: what batch n reads, and the settings that hold for it whatever the session says."""

    version: str
    header: str
    """The settings as Spark wrote them."""
    lines: tuple[str, ...]
    """One for each source: its offset, and in version 2 before that its name and a colon."""

    @classmethod
    def parse(cls, entry: str | bytes) -> OffsetEntry:
        """Raises only for what is no UTF-8; without a second line the header is empty."""
        version, *lines = _text(entry).split("\n")
        return cls(version, lines[0] if lines else "", tuple(lines[1:]))

    @property
    def text(self) -> str:
        return "\n".join([self.version, self.header, *self.lines])

    @property
    def data(self) -> bytes:
        return self.text.encode()

    @property
    def named(self) -> bool:
        """Whether Spark finds the sources by their names; else by their places."""
        return self.version != _BY_NUMBER

    @property
    def metadata(self) -> dict[str, Any]:
        """What the header holds; nothing where there is none."""
        content: dict[str, Any] = json.loads(self.header or "{}")
        return content

    @property
    def conf(self) -> dict[str, str]:
        """The settings that it fixes."""
        conf: dict[str, str] = self.metadata["conf"]
        return conf

    @property
    def watermark_ms(self) -> int | None:
        """The watermark that the batch runs with; None before there is one."""
        return self.metadata.get("batchWatermarkMs") or None

    def ends(self) -> Iterator[tuple[str, str]]:
        """The offset of each source as Spark wrote it, by the source's number or name."""
        for number, line in enumerate(self.lines):
            if not self.named:
                yield str(number), line
            elif line:
                name, _, offset = line.partition(":")
                yield name, offset

    def offsets(self) -> Iterator[Any]:
        """The offset of each source; None for one that has none, or none in JSON."""
        for _, end in self.ends():
            yield parsed_offset(end)

    def with_conf(self, conf: Mapping[str, str]) -> OffsetEntry:
        """The entry with some settings changed."""
        content = self.metadata
        content["conf"] |= conf
        return replace(self, header=_json(content))

    def with_offsets(self, change: Callable[[str], str]) -> OffsetEntry:
        """The entry with the offset of each source changed, whatever it is found by."""
        if not self.named:
            return replace(self, lines=tuple(map(change, self.lines)))
        split = [line.partition(":") for line in self.lines]
        return replace(self, lines=tuple(f"{name}{colon}{change(end)}" for name, colon, end in split))

    def with_ends(self, ends: Mapping[int, str]) -> OffsetEntry:
        """The entry with the offsets of some sources, by their numbers, replaced."""
        if ends:
            self._need_numbers()
        return replace(self, lines=tuple(ends.get(number, line) for number, line in enumerate(self.lines)))

    def reordered(self, order: Sequence[int | None]) -> OffsetEntry:
        """For each source of a changed query the offset of an old one; with None it begins where it likes."""
        self._need_numbers()
        return replace(self, lines=tuple(NO_OFFSET if at is None else self.lines[at] for at in order))

    def renamed(self, names: Mapping[str, str | None]) -> OffsetEntry:
        """The entry with some sources renamed; those with None are left out."""
        if not self.named:
            raise ValueError("the sources of this query have no names: Spark finds them by their places")
        content = self.metadata
        if about := content.get("sourceMetadataInfo"):
            found = {names.get(name, name): one for name, one in about.items()}
            content["sourceMetadataInfo"] = {name: one for name, one in found.items() if name is not None}
        ends = [(names.get(name, name), end) for name, end in self.ends()]
        lines = tuple(f"{name}:{end}" for name, end in ends if name is not None)
        return replace(self, header=_json(content), lines=lines)

    def numbered(self, places: Mapping[int, int]) -> dict[int, str]:
        """The offsets of the sources at these places, by the places that they get."""
        self._need_numbers()
        return {to: self.lines[at] for to, at in places.items()}

    def problem(self) -> str | None:
        """What is wrong with it: "is empty", "is cut off" or "can't be read"; None where nothing is.

        An entry of the commit log looks like one without sources, so it may be asked about here too.
        """
        if not self.version:
            return "is empty"
        texts = [self.header, *(end for _, end in self.ends() if end.startswith("{"))]
        try:
            if not all(isinstance(json.loads(text), dict) for text in texts):
                return "is cut off"
        except ValueError:
            return "is cut off"
        return None if has_version(self) else "can't be read"

    def _need_numbers(self) -> None:
        if self.named:
            raise ValueError("the sources of this query have names: Spark finds them by those")


@dataclass(frozen=True)
class _JsonEntry:
    """A version, and JSON on the line after it."""

    version: str
    content: Mapping[str, Any]

    @property
    def text(self) -> str:
        return f"{self.version}\n{_json(self.content)}"

    @property
    def data(self) -> bytes:
        return self.text.encode()


class CommitEntry(_JsonEntry):
    """A `commits/<n>`, the decision record of batch n."""

    @classmethod
    def parse(cls, entry: str | bytes) -> CommitEntry:
        """Without a second line, as old versions of Spark wrote it, the content is empty."""
        version, newline, text = _text(entry).partition("\n")
        return cls(version, json.loads(text) if newline else {})

    @property
    def state_ids(self) -> StateIds:
        """The state that the deciding run wrote; nothing for stateless queries and state format 1."""
        ids: StateIds = self.content.get(_IDS) or {}
        return ids

    @property
    def state_format(self) -> int:
        """The format of the query's state files: 2 has names that are unique to their writer."""
        return 2 if self.state_ids else 1

    @property
    def watermark_ms(self) -> int:
        """The watermark that the next batch runs with; 0 before there is one."""
        return int(self.content.get("nextBatchWatermarkMs") or 0)

    def with_state(self, ids: StateIds, version: str | None = None) -> CommitEntry:
        """The entry of a run that wrote other state; nothing where there are no ids of it."""
        content = {key: value for key, value in self.content.items() if key != _IDS}
        return CommitEntry(version or self.version, {**content, _IDS: ids} if ids else content)

    def with_watermark(self, watermark_ms: int) -> CommitEntry:
        return replace(self, content={**self.content, "nextBatchWatermarkMs": watermark_ms})


class OperatorEntry(_JsonEntry):
    """A `state/<op>/_metadata/...`: which stores an operator has."""

    @classmethod
    def parse(cls, entry: str | bytes) -> OperatorEntry:
        return cls(*versioned(entry))

    @property
    def kind(self) -> str:
        return str(self.content["operatorInfo"]["operatorName"])

    @property
    def stores(self) -> list[dict[str, Any]]:
        stores: list[dict[str, Any]] = self.content["stateStoreInfo"]
        return stores

    @property
    def properties(self) -> dict[str, Any]:
        properties: dict[str, Any] = json.loads(self.content.get("operatorPropertiesJson") or "{}")
        return properties

    @property
    def partitions(self) -> int:
        """As many as it says; a global aggregate and a limit have one, whatever that is."""
        return max((int(store["numPartitions"]) for store in self.stores), default=0)

    def moved(
        self, location: Path | str, *, id: int | None = None, partitions: int | None = None
    ) -> OperatorEntry:
        """The entry at another checkpointLocation, with another number or number of partitions if wanted.

        Schema files are the only files that Spark names in full.
        """
        content = dict(self.content)
        if id is not None:
            content["operatorInfo"] = {**content["operatorInfo"], "operatorId": id}
        content["stateStoreInfo"] = [dict(store) for store in self.stores]
        for store in content["stateStoreInfo"]:
            if partitions is not None:
                store["numPartitions"] = partitions
            if "stateSchemaFilePaths" in store:
                store["stateSchemaFilePaths"] = [
                    _moved(path, location, id) for path in store["stateSchemaFilePaths"]
                ]
        return replace(self, content=content)


def store_folder(operator: int | str, partition: int, store: str) -> str:
    """Where the files of one store of one partition are, below the checkpointLocation."""
    folder = f"state/{operator}/{partition}"
    return folder if store == "default" else f"{folder}/{store}"


def schema_files(store: Mapping[str, Any], folder: str) -> list[str]:
    """The schema files that an operator's metadata names of a store, oldest first, in the operator's folder.

    None in the first version of the metadata.
    """
    named = store.get("stateSchemaFilePaths") or []
    return [f"{folder}/_stateSchema/" + path.split("/_stateSchema/")[1] for path in named]


@dataclass(frozen=True)
class FileEntry:
    """An entry in the log of a file source or file sink: the files of one batch, or of all up to one."""

    files: tuple[dict[str, Any], ...] = ()
    version: str = _BY_NUMBER

    @classmethod
    def parse(cls, entry: str | bytes) -> FileEntry:
        version, *lines = _text(entry).split("\n")
        return cls(tuple(json.loads(line) for line in lines if line), version)

    @property
    def known(self) -> bool:
        """Whether its version is one that is known here; another one may mean other things by its lines."""
        return self.version == _BY_NUMBER

    @property
    def data(self) -> bytes:
        return "\n".join([self.version, *map(_json, self.files)]).encode()


def without_middle(beginning: bytes, end: bytes) -> bytes:
    """The complete lines in the beginning and the end of a big `FileEntry`, as an entry of their own."""
    return beginning.rpartition(b"\n")[0] + b"\n" + end.partition(b"\n")[2]


def has_version(entry: OffsetEntry | FileEntry) -> bool:
    """Whether it begins with a version, as every entry does."""
    return _VERSION.fullmatch(entry.version) is not None


def batches(names: Iterable[str]) -> list[BatchId]:
    """The batches that a log has an entry of, from the names in its folder."""
    return [BatchId(int(name)) for name in names if name.isdigit()]


def file_entries(names: Iterable[str]) -> dict[BatchId, str]:
    """The entries in the log of a file source or sink, by number: the compaction where there is one."""
    entries: dict[BatchId, str] = {}
    for name in sorted(names):
        if (match := _NAME.fullmatch(name)) is not None:
            entries[BatchId(int(match[1]))] = name
    return entries


def is_compaction(name: str) -> bool:
    """Whether an entry in the log of a file source or sink stands for all entries up to it."""
    return name.endswith(".compact")


def parsed_offset(end: str) -> Any:
    """An offset; None where it is not JSON, as before a source has begun."""
    try:
        return json.loads(end)
    except ValueError:
        return None


def log_offset(end: str) -> int | None:
    """How far a source that has a log of its own, one of files, has read it; None for any other source.

    Raises `ValueError` for an offset that is cut off.
    """
    offset = json.loads(end).get("logOffset") if end.startswith("{") else None
    return offset if isinstance(offset, int) else None


def versioned(entry: str | bytes) -> tuple[str, dict[str, Any]]:
    """The version and content of a file that is a version and JSON."""
    version, newline, text = _text(entry).partition("\n")
    if not newline:
        raise ValueError("it ends after its version")
    return version, json.loads(text)


def _moved(schema_file: str, location: Path | str, id: int | None) -> str:
    match = _SCHEMA.fullmatch(schema_file)
    if match is None:
        return schema_file
    return f"{match[1] or ''}{location}/state/{match[2] if id is None else id}/{match[3]}"


def _text(entry: str | bytes) -> str:
    return entry if isinstance(entry, str) else entry.decode()


def _json(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"))
