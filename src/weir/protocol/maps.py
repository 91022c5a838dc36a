"""What `--map` gives: which old operator, source or query becomes which new one. Pure.

counts/0=1                   an operator of a query, within the query
counts/@0=1                  a source of a query
counts/0=none                its state is given up
chain/1=deduped/0            an operator goes to another query, with its state
chain/@0=deduped/@0          a source of another query begins where this one stands
counts=totals                a query has another name: position, state and sink go with it
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from weir.errors import BadMapError
from weir.protocol.shape import Shape

_PIECE = re.compile(
    r"(?P<query>[^/=]+)/(?P<source>@?)(?P<old>\d+)=((?P<to>[^/=]+)/(?P<kind>@?))?(?P<new>\d+|none)"
)
_QUERY = re.compile(r"(?P<old>[^/=]+)=(?P<new>[^/=]+)")


@dataclass(frozen=True)
class MapTarget:
    """Where an operator or a source goes."""

    query: str
    number: int


@dataclass
class Maps:
    """What the user maps, by the query of the point and the number there."""

    operators: dict[str, dict[int, MapTarget | None]] = field(default_factory=dict)
    """None where state is given up."""
    sources: dict[str, dict[int, list[MapTarget]]] = field(default_factory=dict)
    """Several may begin at one position; no target where it is given up."""
    renamed: dict[str, str] = field(default_factory=dict)
    """By its new name: what a query was called."""

    def name_of(self, old: str) -> str:
        """What an old query is called now."""
        return next((new for new, was in self.renamed.items() if was == old), old)

    def operators_from(self, old: str, to: str) -> dict[int, int | None]:
        """The operators of an old query in a new one: a number, or None where state is given up."""
        mapped = self.operators.get(old, {})
        return {n: one.number if one else None for n, one in mapped.items() if one is None or one.query == to}

    def sources_from(self, old: str, to: str) -> dict[int, int | None]:
        """The same of its sources."""
        found: dict[int, int | None] = {}
        for number, targets in self.sources.get(old, {}).items():
            mine = [one.number for one in targets if one.query == to]
            if mine or not targets:
                found[number] = mine[0] if mine else None
        return found

    def operators_leaving(self, old: str, now: str) -> dict[int, MapTarget]:
        """The operators of an old query whose state goes to another query than itself."""
        mapped = self.operators.get(old, {})
        return {n: one for n, one in mapped.items() if one is not None and one.query != now}

    def sources_leaving(self, old: str, now: str) -> dict[int, MapTarget]:
        mapped = self.sources.get(old, {}).items()
        return {n: one for n, targets in mapped for one in targets if one.query != now}

    def donors(self, to: str) -> Iterator[str]:
        """The old queries, other than its own, of which a query gets operators or sources."""
        seen = {
            old: None
            for mapped in (self.operators, self.sources)
            for old, pieces in mapped.items()
            if self.name_of(old) != to and any(_leads(target, to) for target in pieces.values())
        }
        return iter(seen)


def _leads(target: MapTarget | list[MapTarget] | None, to: str) -> bool:
    targets = target if isinstance(target, list) else [target]
    return any(one is not None and one.query == to for one in targets)


def read(maps: Iterable[str], old: Mapping[str, Shape], new: Mapping[str, Shape]) -> Maps:
    """What the user maps; raises `BadMapError` where it names what is not there."""
    given = list(maps)
    found = Maps()
    for one in given:
        if (renamed := _QUERY.fullmatch(one)) is not None:
            _rename(one, renamed["old"], renamed["new"], found, old, new)
    for one in given:
        if _QUERY.fullmatch(one) is None:
            _piece(one, found, old, new)
    return found


def renames(maps: Iterable[str]) -> dict[str, str]:
    """The queries that get another name, as it was given: by the new name the old one."""
    found = filter(None, map(_QUERY.fullmatch, maps))
    return {one["new"]: one["old"] for one in found}


def bases(maps: Iterable[str], names: Iterable[str], begun: Collection[str]) -> dict[str, str]:
    """For each query of the job the one of the point whose files it begins with, as it was given.

    `begun` are the queries that have a batch at the point: its own, under whatever name, else the first
    that it gets anything of.
    """
    given = list(maps)
    was = renames(given)
    pieces = list(filter(None, map(_PIECE.fullmatch, given)))
    found: dict[str, str] = {}
    for name in names:
        donors = (piece["query"] for piece in pieces if piece["to"] == name)
        first = next((one for one in (was.get(name, name), *donors) if one in begun), None)
        if first is not None:
            found[name] = first
    return found


def _rename(
    given: str, was: str, name: str, found: Maps, old: Mapping[str, Shape], new: Mapping[str, Shape]
) -> None:
    if was not in old:
        raise BadMapError(given=given, reason=f"the savepoint has no query {was!r}")
    if name not in new:
        raise BadMapError(given=given, reason=f"the job has no query {name!r}")
    if was in new:
        raise BadMapError(given=given, reason=f"the job still has a query {was!r}")
    if name in old:
        raise BadMapError(given=given, reason=f"the savepoint has a query {name!r} already")
    if name in found.renamed or was in found.renamed.values():
        raise BadMapError(given=given, reason="the query is mapped twice")
    found.renamed[name] = was


def _piece(given: str, found: Maps, old: Mapping[str, Shape], new: Mapping[str, Shape]) -> None:
    piece = _PIECE.fullmatch(given)
    if piece is None:
        raise BadMapError(given=given, reason="it is not of the form query/old=new")
    query, number, is_source = piece["query"], int(piece["old"]), bool(piece["source"])
    what = "source" if is_source else "operator"
    if query not in old:
        raise BadMapError(given=given, reason=f"the savepoint has no query {query!r}")
    if piece["to"] is not None and (piece["new"] == "none" or piece["kind"] != piece["source"]):
        raise BadMapError(
            given=given, reason="a source can only become a source, and an operator only an operator"
        )
    to = piece["to"] or found.name_of(query)
    target = None if piece["new"] == "none" else MapTarget(to, int(piece["new"]))
    if number not in _numbers(old[query], is_source):
        raise BadMapError(given=given, reason=f"query {query!r} has no {what} {number} in the savepoint")
    if target is not None:
        if to not in new:
            reason = f"the job has no query {to!r}" + ("" if piece["to"] else " any more")
            raise BadMapError(given=given, reason=reason)
        if target.number not in _numbers(new[to], is_source):
            raise BadMapError(given=given, reason=f"query {to!r} has no {what} {target.number} in the job")
    if is_source:
        _source(given, found.sources, query, number, target)
    else:
        _operator(given, found.operators, query, number, target)


def _operator(
    given: str,
    mine: dict[str, dict[int, MapTarget | None]],
    query: str,
    number: int,
    target: MapTarget | None,
) -> None:
    taken = [one for pieces in mine.values() for one in pieces.values()]
    if number in mine.get(query, {}) or (target is not None and target in taken):
        raise BadMapError(given=given, reason="the operator is mapped twice")
    mine.setdefault(query, {})[number] = target


def _source(
    given: str, mine: dict[str, dict[int, list[MapTarget]]], query: str, number: int, target: MapTarget | None
) -> None:
    """Several sources may begin at one position, of different queries; each begins at one only."""
    there = mine.get(query, {}).get(number)
    taken = [one for pieces in mine.values() for targets in pieces.values() for one in targets]
    again = there is not None and (target is None or not there or target.query in {t.query for t in there})
    if again or (target is not None and target in taken):
        raise BadMapError(given=given, reason="the source is mapped twice")
    mine.setdefault(query, {}).setdefault(number, []).extend([target] if target else [])


def _numbers(shape: Shape, is_source: bool) -> list[int]:
    return list(range(len(shape.sources))) if is_source else [one.id for one in shape.operators]
