"""What becomes of the sources of a query: which old position each of them takes, if any. Pure.

What Spark would accept silently and mix up does not pass here: the plan asks (`--map`, `--set-offsets`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from weir.errors import BadOffsetsError
from weir.protocol.maps import MapTarget
from weir.protocol.match import OWN, match_sources
from weir.protocol.offsets import NOWHERE, SourcePosition
from weir.protocol.restore_plan import NAMED, PartVerdict, PlanPart
from weir.protocol.shape import PlannedSource
from weir.savepoint.query_change import QueryChange


class SourceVerdicts:
    """The sources of one query before and after."""

    def __init__(self, change: QueryChange) -> None:
        self._change = change
        self._positions = change.options.positions.get(change.name, {})
        self._mapped = change.maps.sources_from(change.was, change.name)

    def parts(self) -> Iterator[PlanPart]:
        old, new = self._change.old.sources, self._change.new.sources
        foreign = {to: (donor, at) for donor, at, to in self._foreign_sources()}
        pairs, doubtful = match_sources(old, new, self._mapped, self._change.before.offsets, foreign)
        of = {folder: at for number, at in pairs.items() if (folder := new[number].folder) is not None}
        for number, source in enumerate(new):
            at = pairs.get(number)
            if number in self._positions:
                yield self._set(number, source, self._positions[number], at, foreign.get(number))
            elif number in foreign:
                yield self._foreign_source(*foreign[number], number, source)
            elif at is not None:
                yield self._kept(at, number, of)
            elif number not in doubtful.values():
                part = PlanPart(what="source", new=number, name=source.name, verdicts=(PartVerdict.NEW,))
                yield self._placed(part)
        leaving = self._change.maps.sources_leaving(self._change.was, self._change.name)
        for at, source in enumerate(old):
            if at in doubtful and doubtful[at] not in self._positions and at not in leaving:
                yield self._doubtful(at, source.name, doubtful[at], new[doubtful[at]].name)
            elif at not in pairs.values():
                # Where it was in doubt, the user says where the new one resumes: then nothing is lost.
                yield self._left_source(at, source.name, leaving.get(at), resumes=at in doubtful)

    def _left_source(self, at: int, name: str, to: MapTarget | None, *, resumes: bool) -> PlanPart:
        part = PlanPart(what="source", old=at, name=name or f"source {at}", verdicts=(PartVerdict.DROPPED,))
        if to is not None:
            notes = (f"its position goes to query {to.query}, source {to.number}",)
            return part.model_copy(update={"verdicts": (PartVerdict.MOVED,), "notes": notes})
        channel = name.removeprefix("channel ") if name.startswith("channel ") else ""
        if channel:
            unread = self._change.before.unread(channel)
            what = "one batch" if unread == 1 else f"{unread} batches"
            lost = (f"{what} in {name} that it had not read",) if unread else ()
            return part.model_copy(update={"lost": lost, "notes": () if lost else ("it had read all of it",)})
        return part.model_copy(update={"lost": () if resumes else ("its position",)})

    def _foreign_sources(self) -> Iterator[tuple[str, int, int]]:
        """The sources that begin where one of another query stands: that query, its source, the new one."""
        for donor in self._change.maps.donors(self._change.name):
            for at, to in self._change.maps.sources_from(donor, self._change.name).items():
                if to is not None:
                    yield donor, at, to

    def _foreign_source(self, donor: str, at: int, number: int, source: PlannedSource) -> PlanPart:
        was = self._change.queries[donor].shape.sources[at]
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
        elif not self._change.queries[donor].conf:
            why = f"query {donor} has read nothing at this point"
        else:
            return part
        todo = "remove the map: it then begins where its options say"
        return part.refused(why, todo)

    def _placed(self, part: PlanPart, was: PlannedSource | None = None) -> PlanPart:
        """With the folders in which Spark keeps what the source has read."""
        new = self._change.new.sources[part.new].folder if part.new is not None else None
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
        place = f"{self._change.name}/@{number}"
        if foreign is not None:
            raise BadOffsetsError(given=place, reason=f"--map makes it resume where {foreign[0]} stood")
        if to.only_new and at is not None:
            raise BadOffsetsError(given=place, reason=to.only_new)
        offsets = self._change.before.offsets
        stood = offsets[at] if at is not None and at < len(offsets) else NOWHERE
        if to.until is not None:
            self._check_log(number, stood, to.until)
        try:
            end = to.after(stood)
        except LookupError as error:
            given = f"it gives nothing for {error.args[0]}"
            reason = f"{given}, and the source is new and has no earlier position"
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
        return self._placed(part, self._change.old.sources[at] if at is not None else None)

    def _check_log(self, number: int, stood: str, until: int) -> None:
        last = json.loads(stood).get("logOffset", -1) if stood.startswith("{") else -1
        if until > last:
            reason = f"the source stands at {stood}, and its log ends there" if last >= 0 else "it has no log"
            raise BadOffsetsError(given=f"{self._change.name}/@{number}", reason=reason)

    def _kept(self, at: int, number: int, of: Mapping[int, int]) -> PlanPart:
        """A source that keeps its position; `of` has for each folder the old source that it is made of."""
        before, after = self._change.old.sources[at], self._change.new.sources[number]
        was, name = before.name, after.name
        part = PlanPart(what="source", old=at, new=number, name=name, verdicts=(PartVerdict.KEPT,))
        part = self._placed(part, before)
        shared = self._change.old.sources[of.get(after.folder if after.folder is not None else -1, at)]
        if shared.folder != before.folder:
            why = "two sources with different positions became one frame, which has one position"
            todo = "load the frame twice, as before"
            return part.refused(why, todo)
        if was != name and (was.startswith(OWN) or name.startswith(OWN)):
            why = f"its offsets are those of {was!r}"
            todo = f"name it as before, or give its position up: --map {self._change.was}/@{at}=none -n"
            return part.refused(why, todo)
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
            return part.refused(why, todo)
        verdict = PartVerdict.KEPT if at == number and not named else PartVerdict.MOVED
        return part.model_copy(update={"verdicts": (verdict,), "notes": (f"was {was!r}",), "was": was})

    def _doubtful(self, at: int, was: str, number: int, name: str) -> PlanPart:
        here = f"--map {self._change.was}/@{at}="
        if was and was == name:
            why = "several sources of this name stand at different offsets, and weir can't tell which it was"
        elif was:
            why = f"was {was!r}, and may be the same source at another place"
        else:
            why = "the savepoint does not record which source it was, and the number of sources has changed"
        begins = f"--set-offsets {self._change.name}/@{number}"
        todo = (
            f"if it resumes where the old one was: {here}{number}; if it is another source: {begins}=initial"
        )
        return PlanPart(
            what="source",
            old=at,
            new=number,
            name=name,
            verdicts=(PartVerdict.AMBIGUOUS,),
            why=why,
            todo=todo,
        )
