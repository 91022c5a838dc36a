"""From the shapes of a job before and after a change to the restore plan. Pure.

The old queries come from a savepoint, the new ones from Spark's planner. What Spark would take without
a word and mix up does not pass here: the plan asks (`--map`). What it would refuse is told beforehand.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from weir.errors import BadMapError, BadOffsetsError
from weir.protocol.fits import Fit, Level, Reshape, fit, reshape
from weir.protocol.matching import OWN, Choice, Pair, match, match_sources
from weir.protocol.offsets import NOWHERE, Position
from weir.protocol.shapes import PlannedOperator, Shape
from weir.savepoint.plan import NAMED, Part, QueryPlan, RestorePlan, Verdict
from weir.spark.refusals import PARTITIONS, Refusal, backend_of, conversion_refusal, refusals

_MAP = re.compile(r"(?P<query>[^/=]+)/(?P<source>@?)(?P<old>\d+)=(?P<new>\d+|none)")
_ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
_SHOWN = 2

KINDS = {
    "stateStoreSave": "aggregation",
    "StatefulStreamlineAggregate": "aggregation",
    "dedupe": "dedup",
    "dedupeWithinWatermark": "dedup within watermark",
    "sessionWindowStateStoreSaveExec": "session window",
    "symmetricHashJoin": "join",
    "globalLimit": "limit",
    "transformWithStateExec": "transformWithState",
    "transformWithStateInPandasExec": "transformWithStateInPandas",
    "transformWithStateInPySparkExec": "transformWithState",
}
"""Spark's names of kinds as people know them; the others are the same."""


@dataclass(frozen=True)
class Before:
    """A query as the savepoint has it."""

    shape: Shape
    """With the operators that its files tell of (`Shape.with_files`)."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """What its offset log fixes; nothing for a query without a batch."""
    offsets: tuple[str, ...] = ()
    """Where its sources stand, as Spark wrote it; they need not be told."""


@dataclass(frozen=True)
class Options:
    """What the user says about the restore."""

    maps: tuple[str, ...] = ()
    """`query/old=new` for operators, `query/@old=new` for sources; `none` gives state up."""
    allow_dropped: bool = False
    parallelism: int | None = None
    """None: as it was."""
    backend: str | None = None
    positions: Mapping[str, Mapping[int, Position]] = field(default_factory=dict)
    """By query and number: sources of the job that do not go on where they stood."""


def plan(old: Mapping[str, Before], new: Mapping[str, Shape], options: Options) -> RestorePlan:
    """What becomes of the state of the old queries in the new ones; raises `BadMapError`, `BadOffsetsError`.

    `new` is planned with the settings of `Before.conf`, so that Spark describes its operators as it
    would describe them behind the savepoint; parallelism and backend come from `options`.
    """
    said = _said(options.maps, old, new)
    names = [*new, *(name for name in old if name not in new)]
    queries = (_query(name, old, new.get(name), options, said) for name in names)
    return RestorePlan(
        queries=tuple(queries),
        parallelism=options.parallelism,
        backend=options.backend,
        allow_dropped=options.allow_dropped,
    )


@dataclass(frozen=True)
class _Said:
    """What `--map` says, by query."""

    operators: Mapping[str, Mapping[int, int | None]]
    sources: Mapping[str, Mapping[int, int | None]]


def _said(maps: Iterable[str], old: Mapping[str, Before], new: Mapping[str, Shape]) -> _Said:
    operators: dict[str, dict[int, int | None]] = {}
    sources: dict[str, dict[int, int | None]] = {}
    for given in maps:
        found = _MAP.fullmatch(given)
        if found is None:
            raise BadMapError(given=given, reason="it is not of the form query/old=new")
        query, number = found["query"], int(found["old"])
        to = None if found["new"] == "none" else int(found["new"])
        if query not in old:
            raise BadMapError(given=given, reason=f"the savepoint has no query {query!r}")
        if to is not None and query not in new:
            raise BadMapError(given=given, reason=f"the job has no query {query!r} any more")
        shape = old[query].shape
        there = range(len(shape.sources)) if found["source"] else [one.id for one in shape.operators]
        after = new.get(query, Shape())
        wanted = range(len(after.sources)) if found["source"] else [one.id for one in after.operators]
        what = "source" if found["source"] else "operator"
        mine = (sources if found["source"] else operators).setdefault(query, {})
        if number not in there:
            raise BadMapError(given=given, reason=f"query {query!r} has no {what} {number} in the savepoint")
        if to is not None and to not in wanted:
            raise BadMapError(given=given, reason=f"query {query!r} has no {what} {to} in the job")
        if number in mine or (to is not None and to in mine.values()):
            raise BadMapError(given=given, reason=f"the {what} is mapped twice")
        mine[number] = to
    return _Said(operators, sources)


def _query(
    name: str,
    old: Mapping[str, Before],
    shape: Shape | None,
    options: Options,
    said: _Said,
) -> QueryPlan:
    before = old.get(name)
    work = _Query(name, before or Before(Shape()), shape or Shape(), options, said)
    parts = (*work.sources(old), *work.operators(), *work.sinks())
    return QueryPlan(name=name, there=before is not None, wanted=shape is not None, parts=parts)


class _Query:
    """One query before and after."""

    def __init__(
        self,
        name: str,
        before: Before,
        after: Shape,
        options: Options,
        said: _Said,
    ) -> None:
        self._positions = options.positions.get(name, {})
        self._name, self._old, self._new = name, before.shape, after
        self._conf, self._offsets = before.conf, before.offsets
        self._operators_said = said.operators.get(name, {})
        self._sources_said = said.sources.get(name, {})
        self._evolving = before.conf.get(_ENCODING) == "avro"
        self._comparable = before.shape.speaks_like(after)
        self._partitions = options.parallelism or int(before.conf.get(PARTITIONS, 0))
        self._backend = options.backend or (backend_of(before.conf) if before.conf else "")

    # sources

    def sources(self, old_queries: Mapping[str, Before]) -> Iterator[Part]:
        old = [one.name for one in self._old.sources]
        new = [one.name for one in self._new.sources]
        pairs, doubtful = match_sources(
            self._old.sources, self._new.sources, self._sources_said, self._offsets
        )
        for number, name in enumerate(new):
            at = pairs.get(number)
            if number in self._positions:
                yield self._set(at, number, name, self._positions[number])
            elif at is not None:
                yield self._going_on(at, old[at], number, name)
            elif number not in doubtful.values():
                there = name.startswith("channel ") and name.removeprefix("channel ") in old_queries
                notes = ("begins with what the channel holds at the cut",) if there else ()
                yield Part(what="source", new=number, name=name, verdicts=(Verdict.NEW,), notes=notes)
        for number, name in enumerate(old):
            if number in doubtful and doubtful[number] not in self._positions:
                yield self._doubtful(number, name, doubtful[number], new[doubtful[number]])
            elif number not in pairs.values():
                said = number in doubtful  # where the new one goes on was said: nothing is in doubt, or lost
                yield Part(
                    what="source",
                    old=number,
                    name=name or f"source {number}",
                    verdicts=(Verdict.DROPPED,),
                    lost=() if said else ("its position",),
                )

    def _set(self, at: int | None, number: int, name: str, to: Position) -> Part:
        """A source whose position the user gives."""
        stood = self._offsets[at] if at is not None and at < len(self._offsets) else NOWHERE
        if to.until is not None:
            self._check_log(number, stood, to.until)
        try:
            end = to.behind(stood)
        except LookupError as error:
            reason = f"it says nothing of {error.args[0]}, and the source is new: it stood nowhere before"
            raise BadOffsetsError(given=f"{self._name}/@{number}", reason=reason) from None
        return Part(
            what="source",
            old=at,
            new=number,
            name=name,
            verdicts=(Verdict.SET,),
            notes=(to.note,),
            end=end,
        )

    def _check_log(self, number: int, stood: str, until: int) -> None:
        last = json.loads(stood).get("logOffset", -1) if stood.startswith("{") else -1
        if until > last:
            reason = f"the source stands at {stood}, and its log ends there" if last >= 0 else "it has no log"
            raise BadOffsetsError(given=f"{self._name}/@{number}", reason=reason)

    def _going_on(self, at: int, was: str, number: int, name: str) -> Part:
        part = Part(what="source", old=at, new=number, name=name, verdicts=(Verdict.KEPT,))
        if was != name and (was.startswith(OWN) or name.startswith(OWN)):
            why = f"its offsets are those of {was!r}"
            todo = f"name it as before, or give its position up: --map {self._name}/@{at}=none -n"
            return part.model_copy(update={"verdicts": (Verdict.INCOMPATIBLE,), "why": why, "todo": todo})
        if not was or was == name:
            named = was.startswith(NAMED)
            verdict = Verdict.KEPT if at == number or named else Verdict.MOVED
            return part.model_copy(update={"verdicts": (verdict,)})
        named = name.startswith(NAMED)
        if was.startswith(NAMED) != named:
            why = f"was {was!r}: Spark goes on by the names of all sources, or by those of none"
            todo = f"leave it {'without' if named else 'with'} a name; a query of another name begins anew"
            return part.model_copy(update={"verdicts": (Verdict.INCOMPATIBLE,), "why": why, "todo": todo})
        verdict = Verdict.KEPT if at == number and not named else Verdict.MOVED
        return part.model_copy(update={"verdicts": (verdict,), "notes": (f"was {was!r}",), "was": was})

    def _doubtful(self, at: int, was: str, number: int, name: str) -> Part:
        here = f"--map {self._name}/@{at}="
        if was and was == name:
            why = "several sources of this name stand at different offsets, and nothing tells which it was"
        elif was:
            why = f"was {was!r}, and may be the same source at another place"
        else:
            why = "the savepoint does not tell which source it was, and the query has another number of them"
        todo = f"if it goes on where the old one was: {here}{number}; if not: {here}none -n"
        return Part(
            what="source", old=at, new=number, name=name, verdicts=(Verdict.AMBIGUOUS,), why=why, todo=todo
        )

    # operators

    def operators(self) -> Iterator[Part]:
        found = match(
            self._translated(),
            self._new.operators,
            self._fit,
            self._operators_said,
            comparable=self._comparable,
        )
        kept = [pair.old for pair in found.pairs]
        changed = {one.operator: one for one in self._refusals(kept, self._partitions)}
        rewritable = not self._refusals(kept, int(self._conf.get(PARTITIONS, 0)) + 1)
        for pair in found.pairs:
            yield self._paired(pair, changed.get(pair.old.id), rewritable)
        for choice in found.choices:
            yield from self._undecided(choice)
        for one in found.old:
            state = f"{one.rows} rows of state" if one.rows is not None else "its state"
            yield _part(one, None, Verdict.DROPPED, lost=(state,))
        for one in found.new:
            yield _part(None, one, Verdict.NEW, notes=("begins without state",) if self._conf else ())

    def _translated(self) -> list[PlannedOperator]:
        """The old operators; a source that goes on under another name is called by the new one."""
        old, new = self._old.sources, self._new.sources
        said = self._sources_said.items()
        names = {old[at].name: new[to].name for at, to in said if to is not None and old[at].name}

        def renamed(lines: Sequence[str], prefix: str = "") -> tuple[str, ...]:
            return tuple(
                prefix + names.get(line.removeprefix(prefix), line.removeprefix(prefix))
                if line.startswith(prefix)
                else line
                for line in lines
            )

        return [
            one.model_copy(update={"sources": renamed(one.sources), "reads": renamed(one.reads, "reads ")})
            for one in self._old.operators
        ]

    def _fit(self, old: PlannedOperator, new: PlannedOperator) -> Fit:
        return fit(old, new, evolving=self._evolving)

    def _refusals(self, kept: Sequence[PlannedOperator], partitions: int) -> list[Refusal]:
        if not self._conf or not kept:
            return []
        return refusals(kept, self._conf, partitions=partitions, backend=self._backend)

    def _paired(self, pair: Pair, refusal: Refusal | None, rewritable: bool) -> Part:
        old, new = pair.old, pair.new
        found = self._fit(old, new)
        give_up = f"--map {self._name}/{old.id}=none -n"
        if found.level >= Level.MISFIT:
            why = found.why or f"it was a {_kind(old)}, and can't be a {_kind(new)}"
            todo = f"leave it as it was, or begin without its state: {give_up}"
            return _part(old, new, Verdict.INCOMPATIBLE, why=why, todo=todo)
        texts = self._comparable and old.known and new.known
        doubt = _doubt(old, new, found) if texts and not pair.said else ""
        if doubt:
            todo = f"if it is the same all the same: --map {self._name}/{old.id}={new.id}; if not: {give_up}"
            return _part(old, new, Verdict.AMBIGUOUS, why=doubt, todo=todo)
        made = _reshaped(old, new, rewritable) if _reshapes(old, new, found, texts=texts) else None
        if isinstance(made, str):
            why = f"{found.why or 'its functions changed places'}, and {made}"
            todo = f"leave its functions as they were, or begin without its state: {give_up}"
            return _part(old, new, Verdict.INCOMPATIBLE, why=why, todo=todo)
        if refusal is not None:
            return _part(old, new, Verdict.INCOMPATIBLE, why=refusal.why, todo=refusal.hint)
        return _part(
            old,
            new,
            *self._verdicts(old, new, made),
            notes=tuple(_notes(old, new, made, texts=texts)),
            lost=(*found.lost, *(made.lost if made else ())),
            reshape=made,
        )

    def _verdicts(self, old: PlannedOperator, new: PlannedOperator, made: Reshape | None) -> list[Verdict]:
        was = int(self._conf.get(PARTITIONS, 0))
        spread = self._conf and self._partitions != was and not _in_one_partition(new)
        found = {
            Verdict.MOVED: old.id != new.id,
            Verdict.RESCALED: bool(spread),
            Verdict.CONVERTED: made is not None
            or bool(self._conf and self._backend != backend_of(self._conf)),
        }
        return [verdict for verdict, holds in found.items() if holds] or [Verdict.KEPT]

    def _undecided(self, choice: Choice) -> Iterator[Part]:
        both = [f"{self._name}/{one.id}" for one in choice.old]
        mine, its = " or ".join(str(one.id) for one in choice.old), " or ".join(str(n.id) for n in choice.new)
        alone = len(choice.old) == len(choice.new) == 1
        for number, one in enumerate(choice.old):
            to = choice.new[number] if number < len(choice.new) else None
            if alone:
                why = "what it reads has nothing in common with what it read before"
            else:
                why = f"{mine} of the savepoint look alike, and nothing tells which becomes {its}"
            maps = f"--map {both[number]}={to.id if to else choice.new[0].id}"
            todo = f"say it: {maps}, or begin without its state: --map {both[number]}=none -n"
            yield _part(one, to, Verdict.AMBIGUOUS, why=why, todo=todo)
        for other in choice.new[len(choice.old) :]:
            why = f"{mine} of the savepoint look alike, and nothing tells which becomes {its}"
            yield _part(None, other, Verdict.AMBIGUOUS, why=why, todo="map the old one that it was")

    # sinks

    def sinks(self) -> Iterator[Part]:
        was, now = self._old.sink, self._new.sink
        if was and was == now:
            yield Part(what="sink", old=0, new=0, name=now, verdicts=(Verdict.KEPT,))
            return
        if now:
            notes = ("gets what comes behind the savepoint",) if was else ()
            yield Part(what="sink", new=0, name=now, verdicts=(Verdict.NEW,), notes=notes)
        if was:
            notes = ("keeps what it has",)
            yield Part(what="sink", old=0, name=was, verdicts=(Verdict.DROPPED,), notes=notes)


def _doubt(old: PlannedOperator, new: PlannedOperator, found: Fit) -> str:
    """What Spark would take without a word, though it may be something else."""
    if old.keys != new.keys:
        was, now = _first_change(old.keys, new.keys)
        return f"its key {was} became {now}, and looks the same in the state"
    before, after = [one.text for one in old.computes], [one.text for one in new.computes]
    if found.level < Level.RESHAPED and Counter(before) != Counter(after):
        was, now = _first_change(before, after)
        return f"{was} became {now}, and looks the same in the state"
    return ""


def _first_change(before: Sequence[str], after: Sequence[str]) -> tuple[str, str]:
    pairs = zip_longest(before, after, fillvalue="nothing")
    return next((was, now) for was, now in pairs if was != now)


def _reshapes(old: PlannedOperator, new: PlannedOperator, found: Fit, *, texts: bool) -> bool:
    """Whether the values must be made anew: other columns, or the same in another order."""
    before, after = [one.text for one in old.computes], [one.text for one in new.computes]
    reordered = texts and before != after and Counter(before) == Counter(after)
    return found.level is Level.RESHAPED or reordered


def _reshaped(old: PlannedOperator, new: PlannedOperator, rewritable: bool) -> Reshape | str:
    """What becomes of the values, or why nothing can."""
    refusal = conversion_refusal(old, new)
    if refusal is not None:
        return refusal.why
    return reshape(old, new) if rewritable else "other state of this query can't be written anew"


def _notes(old: PlannedOperator, new: PlannedOperator, made: Reshape | None, *, texts: bool) -> Iterator[str]:
    if made is not None:
        yield from (f"{text} begins anew" for text in made.started)
        yield from (f"{text} is dropped" for text in made.lost)
    if texts:
        gone, came = Counter(old.reads) - Counter(new.reads), Counter(new.reads) - Counter(old.reads)
        changes = [*(f"no longer: {line}" for line in gone), *(f"now also: {line}" for line in came)]
        yield from changes[:_SHOWN]
        if len(changes) > _SHOWN:
            yield f"and {len(changes) - _SHOWN} other changes to what it reads"


def _in_one_partition(operator: PlannedOperator) -> bool:
    keys = [store.key_schema["fields"] for store in operator.stores if store.key_schema is not None]
    return operator.kind == "globalLimit" or (bool(keys) and not any(keys))


def _part(
    old: PlannedOperator | None, new: PlannedOperator | None, *verdicts: Verdict, **more: object
) -> Part:
    shown = new or old
    assert shown is not None, "a part is of one side at least"
    return Part.model_validate(
        {
            "what": "operator",
            "old": old.id if old else None,
            "new": new.id if new else None,
            "name": " by ".join([_kind(shown), *([", ".join(shown.keys)] if shown.keys else [])]),
            "verdicts": verdicts,
            **more,
        }
    )


def _kind(operator: PlannedOperator) -> str:
    return KINDS.get(operator.kind, operator.kind)
