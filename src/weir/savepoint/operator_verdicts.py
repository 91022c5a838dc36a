"""What becomes of the operators of a query: which one gets which state, and whether it fits. Pure.

What Spark would accept silently and mix up does not pass here: the plan asks (`--map`). What Spark would
refuse is reported beforehand.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest

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
from weir.protocol.match import Ambiguity, Pair, match
from weir.protocol.restore_plan import PartVerdict, PlanPart
from weir.protocol.shape import PlannedOperator
from weir.savepoint.query_change import QueryChange
from weir.spark.logs import PARTITIONS
from weir.spark.reshape import (
    TRANSFORM,
    StateRefusal,
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


class OperatorVerdicts:
    """The operators of one query before and after."""

    def __init__(self, change: QueryChange) -> None:
        self._change = change
        self._mapped = change.maps.operators_from(change.was, change.name)
        self._mapped_sources = change.maps.sources_from(change.was, change.name)

    def parts(self) -> Iterator[PlanPart]:
        leaving = self._change.maps.operators_leaving(self._change.was, self._change.name)
        foreign = list(self._foreign_operators())
        taken = [new.id for _, _, new in foreign]
        found = match(
            [one for one in self._translated() if one.id not in leaving],
            [one for one in self._change.new.operators if one.id not in taken],
            self._fit,
            {at: to for at, to in self._mapped.items() if at not in leaving},
            comparable=self._change.comparable,
        )
        kept = [pair.old for pair in found.pairs]
        changed = {one.operator: one for one in self._refusals(kept, self._change.partitions)}
        rewritable = not self._refusals(kept, int(self._change.conf.get(PARTITIONS, 0)) + 1)
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
            (one,) = (one for one in self._change.old.operators if one.id == at)
            note = f"its state goes to query {to.query}, operator {to.number}"
            yield _part(one, None, PartVerdict.MOVED, notes=(note,))
        for one in found.new:
            begins = "begins without state"
            if one.kind in ("dedupe", "dedupeWithinWatermark"):
                begins += ": rows that were seen before pass once more"
            yield _part(None, one, PartVerdict.NEW, notes=(begins,) if self._change.conf else ())

    def _foreign_operators(self) -> Iterator[tuple[str, PlannedOperator, PlannedOperator]]:
        """The operators that get the state of one of another query."""
        new = {one.id: one for one in self._change.new.operators}
        for donor in self._change.maps.donors(self._change.name):
            shape = self._change.queries[donor].shape.in_terms_of(self._change.new)
            old = {one.id: one for one in shape.operators}
            for at, to in self._change.maps.operators_from(donor, self._change.name).items():
                if to is not None:
                    yield donor, old[at], new[to]

    def _foreign(self, donor: str, old: PlannedOperator, new: PlannedOperator) -> PlanPart:
        conf = self._change.queries[donor].conf
        other = next((key for key in conf if conf[key] != self._change.conf.get(key)), "")
        if other:
            why = f"queries {donor} and {self._change.base} keep their state with another {other}"
            todo = f"begin without its state: --map {donor}/{old.id}=none -n"
            return _part(old, new, PartVerdict.INCOMPATIBLE, why=why, todo=todo, of=donor)
        refused = refusals([old], conf, partitions=int(conf[PARTITIONS]) + 1, backend=self._change.backend)
        renumbered = refused[0] if refused and donor != self._change.base else None
        changed = {one.operator: one for one in self._refusals([old], self._change.partitions)}
        pair = Pair(old, new, mapped=True)
        part = self._paired(pair, changed.get(old.id) or renumbered, not refused)
        notes = (f"takes the state of operator {old.id} of query {donor}", *part.notes)
        verdicts = part.verdicts
        if PartVerdict.INCOMPATIBLE not in verdicts and PartVerdict.MOVED not in verdicts:
            verdicts = (PartVerdict.MOVED, *(one for one in verdicts if one is not PartVerdict.KEPT))
        return part.model_copy(update={"of": donor, "notes": notes, "verdicts": verdicts})

    def _translated(self) -> list[PlannedOperator]:
        """The old operators; a source that resumes under another name is called by the new one."""
        old, new = self._change.old.sources, self._change.new.sources
        mapped = self._mapped_sources.items()
        names = {old[at].name: new[to].name for at, to in mapped if to is not None and old[at].name}

        def renamed(lines: Sequence[str], prefix: str = "") -> tuple[str, ...]:
            return tuple(
                prefix + names.get(line.removeprefix(prefix), line.removeprefix(prefix))
                if line.startswith(prefix)
                else line
                for line in lines
            )

        return [
            one.model_copy(update={"sources": renamed(one.sources), "reads": renamed(one.reads, "reads ")})
            for one in self._change.old.operators
        ]

    def _fit(self, old: PlannedOperator, new: PlannedOperator) -> Fit:
        return fit(old, new, evolving=self._change.conf.get(_ENCODING) == "avro")

    def _refusals(self, kept: Sequence[PlannedOperator], partitions: int) -> list[StateRefusal]:
        if not self._change.conf or not kept:
            return []
        return refusals(kept, self._change.conf, partitions=partitions, backend=self._change.backend)

    def _paired(self, pair: Pair, refusal: StateRefusal | None, rewritable: bool) -> PlanPart:
        old, new = pair.old, pair.new
        found = self._fit(old, new)
        give_up = f"--map {self._change.was}/{old.id}=none -n"
        if found.level >= FitLevel.MISFIT:
            why = found.why or f"it was a {_kind(old)}, and can't be a {_kind(new)}"
            return self._refused(pair, why, _EVOLVES if new.kind in TRANSFORM else "leave it as it was")
        texts = self._change.comparable and old.known and new.known
        if texts and (why := _other_window(old, new)):
            mixed = f"{why}, and windows of both kinds would be mixed up"
            return self._refused(pair, mixed, "leave it as it was")
        if texts and found.rekey is None and is_reordered(old, new):
            why = f"its keys changed their order: {', '.join(old.keys)} became {', '.join(new.keys)}"
            return self._refused(pair, f"{why}, and would be mixed up", "leave them as they were")
        doubt = _doubt(old, new, found) if not pair.mapped and (texts or found.swapped) else ""
        if doubt:
            same = f"--map {self._change.was}/{old.id}={new.id}"
            todo = f"if it is the same operator: {same}; if not: {give_up}"
            certain = _steady(old.keys) != _steady(new.keys)
            return _part(old, new, PartVerdict.AMBIGUOUS, why=doubt, todo=todo, certain=certain)
        rekeyed = found.rekey
        if rekeyed is not None and (why := _not_rewritable(rekey_refusal(old, new), rewritable)):
            return self._refused(pair, f"{rekeyed.why}, and {why}", "leave its keys as they were")
        made: Reshape | str | None = None
        if _reshapes(old, new, found, texts=texts):
            made = _not_rewritable(conversion_refusal(old, new), rewritable) or reshape(old, new)
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
        either = f"{todo}, or begin without its state: --map {self._change.was}/{pair.old.id}=none -n"
        return _part(pair.old, pair.new, PartVerdict.INCOMPATIBLE, why=why, todo=either, certain=True)

    def _verdicts(self, old: PlannedOperator, new: PlannedOperator, made: bool) -> list[PartVerdict]:
        change, conf = self._change, self._change.conf
        spread = conf and change.partitions != int(conf.get(PARTITIONS, 0)) and not _in_one_partition(new)
        found = {
            PartVerdict.MOVED: old.id != new.id,
            PartVerdict.RESCALED: bool(spread),
            PartVerdict.CONVERTED: made or bool(conf and change.backend != backend_of(conf)),
        }
        return [verdict for verdict, holds in found.items() if holds] or [PartVerdict.KEPT]

    def _undecided(self, choice: Ambiguity) -> Iterator[PlanPart]:
        both = [f"{self._change.was}/{one.id}" for one in choice.old]
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


_EVOLVES = (
    f"leave it as it was (state that was begun with {_ENCODING}=avro may gain fields; what is there can't)"
)


def _doubt(old: PlannedOperator, new: PlannedOperator, found: Fit) -> str:
    """What Spark would accept silently, though it may be something else."""
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
    """How the windows of an operator changed, for people; "" when they did not. A session may be longer."""
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


def _not_rewritable(refusal: StateRefusal | None, rewritable: bool) -> str:
    """Why state can't be rewritten; "" where it can. `rewritable`: whether the rest of the query can."""
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
    """Whether the values must be rewritten: other columns, or the same in another order."""
    before, after = [one.text for one in old.computes], [one.text for one in new.computes]
    reordered = texts and before != after and Counter(before) == Counter(after)
    other_values = found.rekey is None or any(
        bare(one.value_schema) != bare(two.value_schema)
        for one, two in zip(old.stores, new.stores, strict=False)
    )
    return (found.level is FitLevel.RESHAPED and other_values) or reordered


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
