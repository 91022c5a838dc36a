"""Where the sources of a query resume instead of where they stood: what `--set-offsets` says. Pure.

A word or an offset for one source becomes an `OffsetChoice`; what can't be done with a source of its kind is
refused here, by name. Where that leads is found out by whoever can ask Kafka or list files
(`spark/source_positions.py`), and is a `SourcePosition`, which the restore plan carries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from weir.errors import BadOffsetsError
from weir.protocol.restore_plan import PartVerdict, PlanPart, QueryPlan
from weir.protocol.shape import Shape

_PLACE = re.compile(r"(?P<query>[^/=]+)/(?:@(?P<number>\d+)|(?P<called>[^@].*))")
_SINCE = "timestamp:"
NOWHERE = "-"
"""What Spark writes for a source that has no position yet."""
FIRST = '{"logOffset":0}'
"""The position of a source of files after the first entry of its log."""


class Word(str, Enum):
    """What the user can give for a source."""

    INITIAL = "initial"
    """It begins where its own options say."""
    EARLIEST = "earliest"
    LATEST = "latest"
    SINCE = "timestamp"
    GIVEN = "an offset"


class Kind(str, Enum):
    """What kind a source is of, as far as its positions go."""

    KAFKA = "kafka"
    FILES = "files"
    OWN = "a channel or a journal of the job's own"
    NAMED = "a source that Spark finds by a name"
    COUNTED = "a source whose offset is no JSON object"
    """Spark's rate and socket: only Spark makes sense of their offsets."""
    OTHER = "another source"


@dataclass(frozen=True)
class QuerySource:
    """A source of a query, in the place that Spark gives it."""

    name: str
    """`kafka orders`, `json /data/in`: as the plan calls it."""
    kind: Kind
    called: str = ""
    """The name that the job's author gave it with `env.source`; "" without one."""


@dataclass(frozen=True)
class OffsetChoice:
    """What the user has given for one source."""

    place: str
    """As it was given, for errors about it."""
    word: Word
    since: datetime | None = None
    offset: Mapping[str, Any] | None = None

    @property
    def since_ms(self) -> int:
        assert self.since is not None, "only a time has one"
        return round(self.since.timestamp() * 1000)

    def refused(self, reason: str) -> BadOffsetsError:
        return BadOffsetsError(given=self.place, reason=reason)


@dataclass(frozen=True)
class SourcePosition:
    """Where a source resumes."""

    note: str
    """For people, in the plan."""
    end: str = NOWHERE
    """As Spark writes it."""
    others: tuple[tuple[str, int], ...] = ()
    """Partitions of Kafka's that `end` does not name: they stay where they were."""
    log: bytes | None = None
    """What it counts as read, instead of its old log; b"" for nothing, None where the old log stays."""
    until: int | None = None
    """Of its old log only the entries up to this one count."""
    only_new: str = ""
    """Why this can't be given for a source that has a position already; "" where it can."""

    def after(self, stood: str) -> str:
        """The position of a source that stood elsewhere; raises `LookupError` where it stood nowhere."""
        if not self.others:
            return self.end
        before, end = _object(stood), json.loads(self.end)
        if before is None:
            raise LookupError(", ".join(f"{topic}-{number}" for topic, number in self.others))
        for topic, number in self.others:  # one that came since then is read from its beginning, by Spark
            if str(number) in before.get(topic, {}):
                end.setdefault(topic, {})[str(number)] = before[topic][str(number)]
        return json.dumps(end, separators=(",", ":"))


def choices(
    given: Mapping[str, str], sources: Mapping[str, Sequence[QuerySource]]
) -> dict[str, dict[int, OffsetChoice]]:
    """What is given for each source, by query and number; raises `BadOffsetsError`.

    `sources` are those of the job as it is, of queries that the point has and of new ones alike.
    """
    chosen: dict[str, dict[int, OffsetChoice]] = {}

    def add(place: str, value: str) -> None:
        choice = _choice(place, value)
        query, numbers = _places(choice, sources)
        for number in numbers:
            _check(choice, sources[query][number])
            if number in chosen.setdefault(query, {}):
                other = chosen[query][number].place
                raise choice.refused(f"{other} is the same source, and it can resume at one place only")
            chosen[query][number] = choice

    _for_each(given, add)
    return chosen


def check_form(given: Mapping[str, str]) -> None:
    """Raise `BadOffsetsError` for what no job could make sense of."""

    def check(place: str, value: str) -> None:
        _parts(place)
        _choice(place, value)

    _for_each(given, check)


def _for_each(given: Mapping[str, str], look: Callable[[str, str], None]) -> None:
    """Look at each, and raise one `BadOffsetsError` for all that are refused: its hint is long."""
    wrong: list[BadOffsetsError] = []
    for place, value in given.items():
        try:
            look(place, value)
        except BadOffsetsError as error:
            wrong.append(error)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        places = ", ".join(str(error.fields["given"]) for error in wrong)
        reason = "; ".join(f"{error.fields['given']}: {error.why}" for error in wrong)
        raise BadOffsetsError(given=places, reason=reason)


def queries(given: Mapping[str, str]) -> set[str]:
    """The queries that anything is given for; raises `BadOffsetsError`."""
    return {_parts(place)["query"] for place in given}


def _parts(place: str) -> re.Match[str]:
    found = _PLACE.fullmatch(place)
    if found is None:
        raise BadOffsetsError(given=place, reason="it is not of the form QUERY/SOURCE=WHERE")
    return found


def _choice(place: str, value: str) -> OffsetChoice:
    if value in (Word.INITIAL.value, Word.EARLIEST.value, Word.LATEST.value):
        return OffsetChoice(place, Word(value))
    if value.startswith(_SINCE):
        return OffsetChoice(place, Word.SINCE, since=_time(place, value.removeprefix(_SINCE)))
    offset = _object(value)
    if offset is None:
        reason = f"{value!r} is not a place to resume from"
        raise BadOffsetsError(given=place, reason=reason)
    return OffsetChoice(place, Word.GIVEN, offset=offset)


def _time(place: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))  # Python 3.10 knows no Z
    except ValueError:
        reason = f"{text!r} is not a time of the form 2026-11-16T00:00:00Z"
        raise BadOffsetsError(given=place, reason=reason) from None
    if found.tzinfo is None:
        reason = f"{text!r} names no time zone: append Z for UTC, or +01:00"
        raise BadOffsetsError(given=place, reason=reason)
    return found


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _places(choice: OffsetChoice, sources: Mapping[str, Sequence[QuerySource]]) -> tuple[str, list[int]]:
    """The query and the numbers of the source; a frame that is used twice in a query has two."""
    found = _parts(choice.place)
    query = found["query"]
    if query not in sources:
        raise choice.refused(f"the job has no query {query!r}")
    there = sources[query]
    if found["number"] is not None:
        numbers = [int(found["number"])] if int(found["number"]) < len(there) else []
    else:
        numbers = [number for number, one in enumerate(there) if one.called == found["called"]]
    if not numbers:
        known = ", ".join(f"@{n} {one.called or one.name}".rstrip() for n, one in enumerate(there))
        raise choice.refused(f"query {query!r} has no such source; it has {known or 'none'}")
    return query, numbers


def _check(choice: OffsetChoice, source: QuerySource) -> None:
    """Refuse what can't be done with a source of this kind."""
    if choice.word is not Word.INITIAL and (fixed := fixed_position(source)):
        raise choice.refused(fixed)
    if choice.word is Word.INITIAL or source.kind in (Kind.KAFKA, Kind.FILES):
        return
    if source.kind is Kind.COUNTED:
        raise choice.refused(f"{source.name!r} can only start from its beginning: initial")
    if choice.word is not Word.GIVEN:
        raise choice.refused(
            f"weir can resolve {choice.word.value} for Kafka and files, not for {source.name!r}: give "
            "its offset as Spark writes it, or initial"
        )


def fixed_position(source: QuerySource) -> str:
    """Why weir can't set the position of a source that has one; "" where it can."""
    if source.kind is Kind.OWN:
        return f"the position of {source.name!r} belongs to the job's own files"
    if source.kind is Kind.NAMED:
        return f"Spark finds {source.name!r} by its name, where weir can't set a position"
    return ""


def kafka_offsets(choice: OffsetChoice) -> dict[str, dict[int, int]]:
    """An offset that was given, as one of Kafka's; raises `BadOffsetsError`."""
    given, found = choice.offset or {}, {}
    for topic, partitions in given.items():
        if not isinstance(partitions, dict) or not partitions:
            raise choice.refused(_NOT_KAFKAS)
        for number, offset in partitions.items():
            if not number.isdigit() or isinstance(offset, bool) or not isinstance(offset, int) or offset < -2:
                raise choice.refused(_NOT_KAFKAS)
        found[topic] = {int(number): offset for number, offset in partitions.items()}
    if not found:
        raise choice.refused(_NOT_KAFKAS)
    return found


_NOT_KAFKAS = (
    'an offset of Kafka\'s has the form {"topic": {"0": 1200}}, by topic and partition; -2 is the earliest'
    " and -1 the latest"
)


def log_entry(choice: OffsetChoice) -> int:
    """An offset that was given, as the entry of a log of files; raises `BadOffsetsError`."""
    given = choice.offset or {}
    entry = given.get("logOffset")
    if given.keys() != {"logOffset"} or isinstance(entry, bool) or not isinstance(entry, int) or entry < 0:
        raise choice.refused('an offset of a source of files has the form {"logOffset": 3}')
    return entry


# Sources that a restore would read from their beginning, and what that would count twice. Pure.
#
# Where the rows of such a source reach state that was kept, in its query or through channels in another,
# the state may hold them already. That gives a wrong result without any error, so the user
# must name the source (`--set-offsets`); `-n`, which allows any loss, is not enough.


CHANNEL = "channel "
_CARRIED = (PartVerdict.KEPT, PartVerdict.MOVED, PartVerdict.RESCALED, PartVerdict.CONVERTED)
READ = "is read from its beginning, or where its options say"


def judge(
    queries: Sequence[QueryPlan], old: Collection[str], new: Mapping[str, Shape]
) -> Iterator[QueryPlan]:
    """The same plans, in which every source that begins says so, and none counts anything twice unasked."""
    state = _State({query.name: query for query in queries}, new)
    for query in queries:
        parts = tuple(_judged(query, part, state, queries, old) for part in query.parts)
        yield query.model_copy(update={"parts": parts, "notes": tuple(_renamed(query, queries))})


def _judged(
    query: QueryPlan, part: PlanPart, state: _State, queries: Sequence[QueryPlan], old: Collection[str]
) -> PlanPart:
    if part.what != "source" or part.verdicts != (PartVerdict.NEW,):
        return part
    writer = part.name.removeprefix(CHANNEL) if part.name.startswith(CHANNEL) else ""
    if writer and writer not in old:
        return part.model_copy(update={"notes": ("begins with what its query writes from now on",)})
    reads = "begins with what the channel holds at the cut" if writer else READ
    offered = "" if writer else _offered(query, part, queries)
    counted = state.below(query.name, part.name)
    if not counted:
        notes = (reads, offered) if offered else (reads,)
        return part.model_copy(update={"notes": notes})
    place = f"{query.name}/@{part.new}"
    initial = f"if it was never read before, and all of it is to count: --set-offsets {place}=initial"
    elsewhere = "" if writer else f"; to begin elsewhere: --set-offsets {place}=latest, for one"
    return part.model_copy(
        update={
            "verdicts": (PartVerdict.AMBIGUOUS,),
            "why": f"it {reads}, and what {counted} has counted of it already would count twice",
            "todo": f"{offered}; {initial}{elsewhere}" if offered else f"{initial}{elsewhere}",
        }
    )


class _State:
    """Which state was carried over, and what reaches it."""

    def __init__(self, queries: Mapping[str, QueryPlan], new: Mapping[str, Shape]) -> None:
        self._queries, self._new = queries, new

    def below(self, query: str, source: str) -> str:
        """An operator with state from the point that the rows of a source reach, for people; "" for none."""
        plan, shape = self._queries[query], self._new.get(query, Shape())
        reads = {one.id: one.sources for one in shape.operators}
        for part in plan.of("operator"):
            known = reads.get(part.new, ()) if part.new is not None else ()
            if _is_carried(part) and (not known or source in known):
                return f"operator {part.new} of {query} ({part.name})"
        channel = f"{CHANNEL}{query}"
        readers = (name for name, one in self._new.items() if channel in [s.name for s in one.sources])
        return next(filter(None, (self.below(name, channel) for name in readers)), "")


def _is_carried(part: PlanPart) -> bool:
    """Also where that is in doubt: then it may be."""
    doubtful = PartVerdict.AMBIGUOUS in part.verdicts
    return part.old is not None and part.new is not None and (doubtful or part.verdicts[0] in _CARRIED)


def _offered(query: QueryPlan, part: PlanPart, queries: Sequence[QueryPlan]) -> str:
    """The map that brings a source of this name its position from another query that lost it."""
    for other in queries:
        for left in other.of("source"):
            if (
                other.name != query.name
                and left.verdicts == (PartVerdict.DROPPED,)
                and left.name == part.name
            ):
                old = f"{other.was or other.name}/@{left.old}"
                return f"to resume where {other.name} stood: --map {old}={query.name}/@{part.new}"
    return ""


def _renamed(query: QueryPlan, queries: Sequence[QueryPlan]) -> Iterator[str]:
    """What to say where a query that is gone and one that is new look the same."""
    if query.there or not query.wanted:
        return
    for other in queries:
        if other.there and not other.wanted and _looks_like(query, other):
            given = f"--map {other.name}={query.name}"
            yield f"looks like {other.name}; if it is, under another name: {given}"


def _looks_like(new: QueryPlan, old: QueryPlan) -> bool:
    def facts(query: QueryPlan, what: str) -> list[str]:
        return sorted(part.name for part in query.of(what))

    return all(facts(new, what) == facts(old, what) for what in ("source", "operator"))
