"""From the shapes of a job before and after a change to the restore plan. Pure.

The old queries come from a savepoint, the new ones from Spark's planner. What Spark would take without
a word and mix up does not pass here: the plan asks (`--map`). What it would refuse is told beforehand.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from weir.errors import BadOffsetsError
from weir.protocol import maps as mapped
from weir.protocol import offsets as beginnings
from weir.protocol.compatibility import (
    Fit,
    FitLevel,
    Reshape,
    bare,
    fit,
    is_reordered,
    reshape,
    same_functions,
)
from weir.protocol.maps import Maps, MapTarget
from weir.protocol.match import OWN, Ambiguity, Pair, match, match_sources
from weir.protocol.offsets import NOWHERE, SourcePosition
from weir.protocol.restore_plan import NAMED, PartVerdict, PlanPart, QueryPlan, RestorePlan
from weir.protocol.shape import PlannedOperator, PlannedSource, Shape
from weir.spark.logs import PARTITIONS
from weir.spark.reshape import (
    TRANSFORM,
    Refusal,
    backend_of,
    conversion_refusal,
    refusals,
    rekey_refusal,
)

_ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
_SHOWN = 2
_INSIDE = "__weir"
"""So begins what weir adds to a query itself: no change of the author's."""
_CHANGING = re.compile(r"\d{4}-\d\d-\d\d|\b0x[0-9a-f]+\b|@[0-9a-f]{5,}\b")
"""What one code may write otherwise at every start: dates and addresses in memory."""
_WINDOW = re.compile(
    r"(?P<session>session_)?window\((?P<of>.*?), (?P<length>\d+ [a-z]+)(, (?P<slide>\d+ [a-z]+))?"
    r"(, (?P<shift>\d+ [a-z]+))?\)"
)

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
    unread: Callable[[str], int] = field(default=lambda _channel: 0, compare=False)
    """How many batches of rows in a channel of the point it has not read; asked where it stops reading it."""


@dataclass(frozen=True)
class Options:
    """What the user says about the restore."""

    maps: tuple[str, ...] = ()
    """See `maps.py`."""
    allow_dropped: bool = False
    parallelism: int | None = None
    """None: as it was."""
    backend: str | None = None
    positions: Mapping[str, Mapping[int, SourcePosition]] = field(default_factory=dict)
    """By query and number: sources of the job that do not resume where they stood."""


def plan(old: Mapping[str, Before], new: Mapping[str, Shape], options: Options) -> RestorePlan:
    """What becomes of the state of the old queries in the new ones; raises `BadMapError`, `BadOffsetsError`.

    `new` is planned with the settings of `Before.conf`, so that Spark describes its operators as it
    would describe them after the savepoint; parallelism and backend come from `options`.
    """
    said = mapped.read(options.maps, {name: one.shape for name, one in old.items()}, new)
    names = [*new, *(name for name in old if name not in new and said.name_of(name) == name)]
    begun = [name for name, one in old.items() if one.conf]
    bases = mapped.bases(options.maps, names, begun)
    queries = [_query(name, bases.get(name, ""), old, new.get(name), options, said) for name in names]
    return RestorePlan(
        queries=tuple(beginnings.judge(queries, old.keys(), new)),
        parallelism=options.parallelism,
        backend=options.backend,
        allow_dropped=options.allow_dropped,
    )


def _query(
    name: str,
    base: str,
    old: Mapping[str, Before],
    shape: Shape | None,
    options: Options,
    said: Maps,
) -> QueryPlan:
    own = said.renamed.get(name, name)
    work = _Query(name, own, base, old, shape or Shape(), options, said)
    parts = (*work.sources(), *work.operators(), *work.sinks())
    was = own if own != name else ""
    return QueryPlan(name=name, there=own in old, wanted=shape is not None, parts=parts, base=base, was=was)


class _Query:
    """One query before and after."""

    def __init__(
        self,
        name: str,
        own: str,
        base: str,
        old: Mapping[str, Before],
        after: Shape,
        options: Options,
        said: Maps,
    ) -> None:
        self._name, self._was, self._base, self._said, self._queries = name, own, base, said, old
        before = old.get(own, Before(Shape()))
        self._positions = options.positions.get(name, {})
        self._old, self._new = before.shape.in_words_of(after), after
        self._offsets, self._unread = before.offsets, before.unread
        self._conf = old[base].conf if base else {}
        self._comparable = before.shape.speaks_like(after)
        self._operators_said = said.operators_from(own, name)
        self._sources_said = said.sources_from(own, name)
        self._partitions = options.parallelism or int(self._conf.get(PARTITIONS, 0))
        self._backend = options.backend or (backend_of(self._conf) if self._conf else "")

    # sources

    def sources(self) -> Iterator[PlanPart]:
        old, new = self._old.sources, self._new.sources
        foreign = {to: (donor, at) for donor, at, to in self._foreign_sources()}
        pairs, doubtful = match_sources(old, new, self._sources_said, self._offsets, foreign)
        of = {folder: at for number, at in pairs.items() if (folder := new[number].folder) is not None}
        for number, source in enumerate(new):
            at = pairs.get(number)
            if number in self._positions:
                yield self._set(number, source, self._positions[number], at, foreign.get(number))
            elif number in foreign:
                yield self._foreign_source(*foreign[number], number, source)
            elif at is not None:
                yield self._going_on(at, number, of)
            elif number not in doubtful.values():
                yield self._placed(
                    PlanPart(what="source", new=number, name=source.name, verdicts=(PartVerdict.NEW,))
                )
        leaving = self._said.sources_leaving(self._was, self._name)
        for at, source in enumerate(old):
            if at in doubtful and doubtful[at] not in self._positions and at not in leaving:
                yield self._doubtful(at, source.name, doubtful[at], new[doubtful[at]].name)
            elif at not in pairs.values():
                said = at in doubtful  # where the new one resumes was said: nothing is in doubt, or lost
                yield self._left_source(at, source.name, leaving.get(at), said=said)

    def _left_source(self, at: int, name: str, to: MapTarget | None, *, said: bool) -> PlanPart:
        part = PlanPart(what="source", old=at, name=name or f"source {at}", verdicts=(PartVerdict.DROPPED,))
        if to is not None:
            words = (f"its position goes to query {to.query}, source {to.number}",)
            return part.model_copy(update={"verdicts": (PartVerdict.MOVED,), "notes": words})
        channel = name.removeprefix("channel ") if name.startswith("channel ") else ""
        if channel:
            unread = self._unread(channel)
            what = "one batch" if unread == 1 else f"{unread} batches"
            lost = (f"{what} in {name} that it had not read",) if unread else ()
            return part.model_copy(update={"lost": lost, "notes": () if lost else ("it had read all of it",)})
        return part.model_copy(update={"lost": () if said else ("its position",)})

    def _foreign_sources(self) -> Iterator[tuple[str, int, int]]:
        """The sources that begin where one of another query stands: that query, its source, the new one."""
        for donor in self._said.donors(self._name):
            for at, to in self._said.sources_from(donor, self._name).items():
                if to is not None:
                    yield donor, at, to

    def _foreign_source(self, donor: str, at: int, number: int, source: PlannedSource) -> PlanPart:
        was = self._queries[donor].shape.sources[at]
        part = self._placed(
            PlanPart(
                what="source",
                old=at,
                new=number,
                name=source.name,
                of=donor,
                verdicts=(PartVerdict.MOVED,),
                notes=(f"resumes where source {at} of query {donor} stood",),
            ),
            was,
        )
        fixed = (*OWN, NAMED)
        if (was.name or source.name) != source.name and (was.name + source.name).startswith(fixed):
            why = f"its offsets are those of {was.name!r}"
        elif source.name.startswith(NAMED) or was.name.startswith(NAMED):
            why = "Spark finds it by a name, within its own query"
        elif not self._queries[donor].conf:
            why = f"query {donor} has read nothing at this point"
        else:
            return part
        todo = "remove the map: it then begins where its options say"
        return part.model_copy(update={"verdicts": (PartVerdict.INCOMPATIBLE,), "why": why, "todo": todo})

    def _placed(self, part: PlanPart, was: PlannedSource | None = None) -> PlanPart:
        """With the folders in which Spark keeps what the source has read."""
        new = self._new.sources[part.new].folder if part.new is not None else None
        return part.model_copy(update={"folder": new, "was_folder": was.folder if was else None})

    def _set(
        self,
        number: int,
        source: PlannedSource,
        to: SourcePosition,
        at: int | None,
        foreign: tuple[str, int] | None,
    ) -> PlanPart:
        """A source whose position the user gives."""
        place = f"{self._name}/@{number}"
        if foreign is not None:
            raise BadOffsetsError(given=place, reason=f"--map makes it resume where {foreign[0]} stood")
        if to.only_new and at is not None:
            raise BadOffsetsError(given=place, reason=to.only_new)
        stood = self._offsets[at] if at is not None and at < len(self._offsets) else NOWHERE
        if to.until is not None:
            self._check_log(number, stood, to.until)
        try:
            end = to.behind(stood)
        except LookupError as error:
            reason = (
                f"it gives nothing for {error.args[0]}, and the source is new and has no earlier position"
            )
            raise BadOffsetsError(given=place, reason=reason) from None
        begins = at is None and end == NOWHERE
        part = PlanPart(
            what="source",
            old=at,
            new=number,
            name=source.name,
            verdicts=(PartVerdict.SET,),
            notes=(to.note,),
            end="" if begins else end,
        )
        return self._placed(part, self._old.sources[at] if at is not None else None)

    def _check_log(self, number: int, stood: str, until: int) -> None:
        last = json.loads(stood).get("logOffset", -1) if stood.startswith("{") else -1
        if until > last:
            reason = f"the source stands at {stood}, and its log ends there" if last >= 0 else "it has no log"
            raise BadOffsetsError(given=f"{self._name}/@{number}", reason=reason)

    def _going_on(self, at: int, number: int, of: Mapping[int, int]) -> PlanPart:
        """A source that keeps its position; `of` has for each folder the old source that it is made of."""
        before, after = self._old.sources[at], self._new.sources[number]
        was, name = before.name, after.name
        part = PlanPart(what="source", old=at, new=number, name=name, verdicts=(PartVerdict.KEPT,))
        part = self._placed(part, before)
        shared = self._old.sources[of.get(after.folder if after.folder is not None else -1, at)]
        if shared.folder != before.folder:
            why = "two sources with different positions became one frame, which has one position"
            todo = "load the frame twice, as before"
            return part.model_copy(update={"verdicts": (PartVerdict.INCOMPATIBLE,), "why": why, "todo": todo})
        if was != name and (was.startswith(OWN) or name.startswith(OWN)):
            why = f"its offsets are those of {was!r}"
            todo = f"name it as before, or give its position up: --map {self._was}/@{at}=none -n"
            return part.model_copy(update={"verdicts": (PartVerdict.INCOMPATIBLE,), "why": why, "todo": todo})
        if not was or was == name:
            named = was.startswith(NAMED)
            moved = not (at == number or named)
            verdict = PartVerdict.MOVED if moved else PartVerdict.KEPT
            return part.model_copy(update={"verdicts": (verdict,), "certain": moved and bool(was)})
        named = name.startswith(NAMED)
        if was.startswith(NAMED) != named:
            why = f"was {was!r}: Spark resumes by the names of all sources, or by those of none"
            todo = (
                f"leave it {'without' if named else 'with'} a name; a query with another name starts from "
                "the beginning"
            )
            return part.model_copy(update={"verdicts": (PartVerdict.INCOMPATIBLE,), "why": why, "todo": todo})
        verdict = PartVerdict.KEPT if at == number and not named else PartVerdict.MOVED
        return part.model_copy(update={"verdicts": (verdict,), "notes": (f"was {was!r}",), "was": was})

    def _doubtful(self, at: int, was: str, number: int, name: str) -> PlanPart:
        here = f"--map {self._was}/@{at}="
        if was and was == name:
            why = "several sources of this name stand at different offsets, and weir can't tell which it was"
        elif was:
            why = f"was {was!r}, and may be the same source at another place"
        else:
            why = "the savepoint does not record which source it was, and the number of sources has changed"
        anew = f"--set-offsets {self._name}/@{number}"
        todo = f"if it resumes where the old one was: {here}{number}; if it is another source: {anew}=initial"
        return PlanPart(
            what="source",
            old=at,
            new=number,
            name=name,
            verdicts=(PartVerdict.AMBIGUOUS,),
            why=why,
            todo=todo,
        )

    # operators

    def operators(self) -> Iterator[PlanPart]:
        leaving = self._said.operators_leaving(self._was, self._name)
        foreign = list(self._foreign_operators())
        taken = [new.id for _, _, new in foreign]
        found = match(
            [one for one in self._translated() if one.id not in leaving],
            [one for one in self._new.operators if one.id not in taken],
            self._fit,
            {at: to for at, to in self._operators_said.items() if at not in leaving},
            comparable=self._comparable,
        )
        kept = [pair.old for pair in found.pairs]
        changed = {one.operator: one for one in self._refusals(kept, self._partitions)}
        rewritable = not self._refusals(kept, int(self._conf.get(PARTITIONS, 0)) + 1)
        for pair in found.pairs:
            yield self._paired(pair, changed.get(pair.old.id), rewritable)
        for donor, one, new in foreign:
            yield self._foreign(donor, one, new)
        for choice in found.choices:
            yield from self._undecided(choice)
        for one in found.old:
            state = f"{one.rows} rows of state" if one.rows is not None else "its state"
            yield _part(one, None, PartVerdict.DROPPED, lost=(state,))
        for at, to in leaving.items():
            (one,) = (one for one in self._old.operators if one.id == at)
            words = f"its state goes to query {to.query}, operator {to.number}"
            yield _part(one, None, PartVerdict.MOVED, notes=(words,))
        for one in found.new:
            yield _part(None, one, PartVerdict.NEW, notes=_begins(one) if self._conf else ())

    def _foreign_operators(self) -> Iterator[tuple[str, PlannedOperator, PlannedOperator]]:
        """The operators that get the state of one of another query."""
        new = {one.id: one for one in self._new.operators}
        for donor in self._said.donors(self._name):
            shape = self._queries[donor].shape.in_words_of(self._new)
            old = {one.id: one for one in shape.operators}
            for at, to in self._said.operators_from(donor, self._name).items():
                if to is not None:
                    yield donor, old[at], new[to]

    def _foreign(self, donor: str, old: PlannedOperator, new: PlannedOperator) -> PlanPart:
        conf = self._queries[donor].conf
        other = next((key for key in conf if conf[key] != self._conf.get(key)), "")
        if other:
            why = f"queries {donor} and {self._base} keep their state with another {other}"
            todo = f"begin without its state: --map {donor}/{old.id}=none -n"
            return _part(old, new, PartVerdict.INCOMPATIBLE, why=why, todo=todo, of=donor)
        refused = refusals([old], conf, partitions=int(conf[PARTITIONS]) + 1, backend=self._backend)
        renumbered = refused[0] if refused and donor != self._base else None
        changed = {one.operator: one for one in self._refusals([old], self._partitions)}
        pair = Pair(old, new, said=True)
        part = self._paired(pair, changed.get(old.id) or renumbered, not refused)
        notes = (f"takes the state of operator {old.id} of query {donor}", *part.notes)
        verdicts = part.verdicts
        if PartVerdict.INCOMPATIBLE not in verdicts and PartVerdict.MOVED not in verdicts:
            verdicts = (PartVerdict.MOVED, *(one for one in verdicts if one is not PartVerdict.KEPT))
        return part.model_copy(update={"of": donor, "notes": notes, "verdicts": verdicts})

    def _translated(self) -> list[PlannedOperator]:
        """The old operators; a source that resumes under another name is called by the new one."""
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
        return fit(old, new, evolving=self._conf.get(_ENCODING) == "avro")

    def _refusals(self, kept: Sequence[PlannedOperator], partitions: int) -> list[Refusal]:
        if not self._conf or not kept:
            return []
        return refusals(kept, self._conf, partitions=partitions, backend=self._backend)

    def _paired(self, pair: Pair, refusal: Refusal | None, rewritable: bool) -> PlanPart:
        old, new = pair.old, pair.new
        found = self._fit(old, new)
        give_up = f"--map {self._was}/{old.id}=none -n"
        if found.level >= FitLevel.MISFIT:
            why = found.why or f"it was a {_kind(old)}, and can't be a {_kind(new)}"
            return self._refused(pair, why, _EVOLVES if new.kind in TRANSFORM else "leave it as it was")
        texts = self._comparable and old.known and new.known
        if texts and (why := _other_window(old, new)):
            why = f"{why}, and windows of both kinds would be mixed up"
            return self._refused(pair, why, "leave it as it was")
        if texts and found.rekey is None and is_reordered(old, new):
            why = f"its keys changed their order: {', '.join(old.keys)} became {', '.join(new.keys)}"
            return self._refused(pair, f"{why}, and would be mixed up", "leave them as they were")
        doubt = _doubt(old, new, found) if not pair.said and (texts or found.swapped) else ""
        if doubt:
            todo = f"if it is the same operator: --map {self._was}/{old.id}={new.id}; if not: {give_up}"
            certain = _steady(old.keys) != _steady(new.keys)
            return _part(old, new, PartVerdict.AMBIGUOUS, why=doubt, todo=todo, certain=certain)
        rekeyed = found.rekey
        if rekeyed is not None and (why := _can_not_rekey(old, new, rewritable)):
            return self._refused(pair, f"{rekeyed.why}, and {why}", "leave its keys as they were")
        made = _reshaped(old, new, rewritable) if _reshapes(old, new, found, texts=texts) else None
        if isinstance(made, str):
            why = f"{found.why or 'its functions changed places'}, and {made}"
            return self._refused(pair, why, "leave its functions as they were")
        if refusal is not None:
            return _part(old, new, PartVerdict.INCOMPATIBLE, why=refusal.why, todo=refusal.hint)
        notes = (*((rekeyed.why,) if rekeyed else ()), *_notes(old, new, made, texts=texts))
        return _part(
            old,
            new,
            *self._verdicts(old, new, made is not None or rekeyed is not None),
            notes=notes,
            lost=(*found.lost, *(made.lost if made else ())),
            reshape=made,
            rekey=rekeyed,
            certain=texts and old.id != new.id and old.evidence == new.evidence,
        )

    def _refused(self, pair: Pair, why: str, todo: str) -> PlanPart:
        """What no `--map` makes fit."""
        anew = f"{todo}, or begin without its state: --map {self._was}/{pair.old.id}=none -n"
        return _part(pair.old, pair.new, PartVerdict.INCOMPATIBLE, why=why, todo=anew, certain=True)

    def _verdicts(self, old: PlannedOperator, new: PlannedOperator, made: bool) -> list[PartVerdict]:
        was = int(self._conf.get(PARTITIONS, 0))
        spread = self._conf and self._partitions != was and not _in_one_partition(new)
        found = {
            PartVerdict.MOVED: old.id != new.id,
            PartVerdict.RESCALED: bool(spread),
            PartVerdict.CONVERTED: made or bool(self._conf and self._backend != backend_of(self._conf)),
        }
        return [verdict for verdict, holds in found.items() if holds] or [PartVerdict.KEPT]

    def _undecided(self, choice: Ambiguity) -> Iterator[PlanPart]:
        both = [f"{self._was}/{one.id}" for one in choice.old]
        mine, its = " or ".join(str(one.id) for one in choice.old), " or ".join(str(n.id) for n in choice.new)
        alone = len(choice.old) == len(choice.new) == 1
        for number, one in enumerate(choice.old):
            to = choice.new[number] if number < len(choice.new) else None
            if alone:
                why = "what it reads has nothing in common with what it read before"
            else:
                why = f"{mine} of the savepoint look alike, and weir can't tell which becomes {its}"
            maps = f"--map {both[number]}={to.id if to else choice.new[0].id}"
            todo = f"map it: {maps}, or begin without its state: --map {both[number]}=none -n"
            yield _part(one, to, PartVerdict.AMBIGUOUS, why=why, todo=todo)
        for other in choice.new[len(choice.old) :]:
            why = f"{mine} of the savepoint look alike, and weir can't tell which becomes {its}"
            yield _part(None, other, PartVerdict.AMBIGUOUS, why=why, todo="map the old one that it was")

    # sinks

    def sinks(self) -> Iterator[PlanPart]:
        was, now = self._old.sink, self._new.sink
        if was and was == now:
            yield PlanPart(what="sink", old=0, new=0, name=now, verdicts=(PartVerdict.KEPT,))
            return
        if now:
            notes = ("gets what comes after the savepoint",) if was else ()
            yield PlanPart(what="sink", new=0, name=now, verdicts=(PartVerdict.NEW,), notes=notes)
        if was:
            notes = ("keeps what it has",)
            yield PlanPart(what="sink", old=0, name=was, verdicts=(PartVerdict.DROPPED,), notes=notes)


_EVOLVES = (
    f"leave it as it was (state that was begun with {_ENCODING}=avro may gain fields; what is there can't)"
)


def _begins(operator: PlannedOperator) -> tuple[str, ...]:
    """What a new operator does not know yet."""
    if operator.kind in ("dedupe", "dedupeWithinWatermark"):
        return ("begins without state: rows that were seen before pass once more",)
    return ("begins without state",)


def _doubt(old: PlannedOperator, new: PlannedOperator, found: Fit) -> str:
    """What Spark would take without a word, though it may be something else."""
    if found.swapped:
        return f"{found.swapped}, and look the same in the state"
    if old.keys != new.keys and found.rekey is None:
        was, now = _first_change(old.keys, new.keys)
        if (gaps := _windows(was, now)) is not None:
            return f"its session gap was {gaps[0]['length']}, is now {gaps[1]['length']}"
        return f"its key {was} became {now}, and looks the same in the state"
    before, after = [one.text for one in old.computes], [one.text for one in new.computes]
    if found.level < FitLevel.RESHAPED and not same_functions(old, new):
        was, now = _first_change(before, after)
        return f"{was} became {now}, and looks the same in the state"
    return ""


def _windows(was: str, now: str) -> tuple[re.Match[str], re.Match[str]] | None:
    """Two windows over the same time, of which at least one thing differs."""
    one, other = _WINDOW.fullmatch(was), _WINDOW.fullmatch(now)
    same = one and other and (one["of"], one["session"]) == (other["of"], other["session"])
    return (one, other) if one and other and same and was != now else None


def _other_window(old: PlannedOperator, new: PlannedOperator) -> str:
    """How the windows of an operator changed, in words; "" when they did not. A session may be longer."""
    for key, other_key in zip(old.keys, new.keys, strict=False):
        found = _windows(key, other_key)
        if found is None or found[0]["session"]:
            continue
        one, other = found
        if one["length"] != other["length"]:
            return f"its window was {one['length']} long, is now {other['length']}"
        if (one["slide"] or one["length"]) != (other["slide"] or other["length"]):
            was, now = (found["slide"] or found["length"] for found in (one, other))
            return f"its window began every {was}, now every {now}"
        return f"its window began {one['shift'] or 'on the hour'}, now {other['shift'] or 'on the hour'}"
    return ""


def _can_not_rekey(old: PlannedOperator, new: PlannedOperator, rewritable: bool) -> str:
    refusal = rekey_refusal(old, new)
    if refusal is not None:
        return refusal.why
    return "" if rewritable else "other state of this query can't be rewritten"


def _steady(texts: Sequence[str]) -> list[str]:
    """Texts without what one code may write otherwise at every start."""
    return [_CHANGING.sub("", text) for text in texts]


def _first_change(before: Sequence[str], after: Sequence[str]) -> tuple[str, str]:
    pairs = zip_longest(before, after, fillvalue="nothing")
    return next((was, now) for was, now in pairs if was != now)


def _reshapes(old: PlannedOperator, new: PlannedOperator, found: Fit, *, texts: bool) -> bool:
    """Whether the values must be made anew: other columns, or the same in another order."""
    before, after = [one.text for one in old.computes], [one.text for one in new.computes]
    reordered = texts and before != after and Counter(before) == Counter(after)
    other_values = found.rekey is None or any(
        bare(one.value_schema) != bare(two.value_schema)
        for one, two in zip(old.stores, new.stores, strict=False)
    )
    return (found.level is FitLevel.RESHAPED and other_values) or reordered


def _reshaped(old: PlannedOperator, new: PlannedOperator, rewritable: bool) -> Reshape | str:
    """What becomes of the values, or why nothing can."""
    refusal = conversion_refusal(old, new)
    if refusal is not None:
        return refusal.why
    return reshape(old, new) if rewritable else "other state of this query can't be rewritten"


def _notes(old: PlannedOperator, new: PlannedOperator, made: Reshape | None, *, texts: bool) -> Iterator[str]:
    if made is not None:
        since = "covers the rows since the savepoint only"
        yield from (f"{text} starts again: it {since}" for text in made.started)
        yield from (f"{text} is kept as a longer integer" for text in made.widened)
    if texts:
        gone, came = Counter(old.reads) - Counter(new.reads), Counter(new.reads) - Counter(old.reads)
        changes = [
            *(f"no longer: {line}" for line in gone if _INSIDE not in line),
            *(f"now also: {line}" for line in came if _INSIDE not in line),
        ]
        yield from changes[:_SHOWN]
        if len(changes) > _SHOWN:
            yield f"and {len(changes) - _SHOWN} other changes to what it reads"


def _in_one_partition(operator: PlannedOperator) -> bool:
    keys = [store.key_schema["fields"] for store in operator.stores if store.key_schema is not None]
    return operator.kind == "globalLimit" or (bool(keys) and not any(keys))


def _part(
    old: PlannedOperator | None, new: PlannedOperator | None, *verdicts: PartVerdict, **more: object
) -> PlanPart:
    shown = new or old
    assert shown is not None, "a part is of one side at least"
    return PlanPart.model_validate(
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
