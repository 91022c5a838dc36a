"""Which operator of a changed query gets the state of which old one.

By kind, key and value; where that leaves a choice, by what each groups by, computes and reads. Two
operators that look alike and changed places are distinguished so, which Spark does not do. What can't be
distinguished is never guessed. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from operator import attrgetter

from weir.protocol.compatibility import Fit, FitLevel, similarity
from weir.protocol.shape import PlannedOperator, PlannedSource

_MANY = 6
"""Up to this many operators of one kind are tried in every order; more must be distinguished at once."""

OWN = ("channel ", "source ")
"""Sources of weir's, whose offsets name them."""

Fits = Callable[[PlannedOperator, PlannedOperator], Fit]


@dataclass(frozen=True)
class Pair:
    """State and the operator that gets it."""

    old: PlannedOperator
    new: PlannedOperator
    mapped: bool = False
    """Whether the user has mapped them; else they were found."""


@dataclass(frozen=True)
class Ambiguity:
    """Operators that can't be distinguished."""

    old: tuple[PlannedOperator, ...]
    new: tuple[PlannedOperator, ...]


@dataclass(frozen=True)
class Matched:
    """What belongs together, what is ambiguous, and what is left."""

    pairs: tuple[Pair, ...]
    choices: tuple[Ambiguity, ...]
    old: tuple[PlannedOperator, ...]
    new: tuple[PlannedOperator, ...]


def match(
    old: Sequence[PlannedOperator],
    new: Sequence[PlannedOperator],
    fits: Fits,
    mapped: Mapping[int, int | None],
    *,
    comparable: bool,
) -> Matched:
    """Match the operators of one query before and after a change.

    `mapped` maps ids of old operators to new ones, or to None where the state is given up. `comparable` when
    the texts of both sides may be compared.
    """
    taken = set(mapped.values())
    by_id = {one.id: one for one in new}
    pairs = [Pair(one, by_id[to], mapped=True) for one in old if (to := mapped.get(one.id)) is not None]
    given_up = [one for one in old if mapped.get(one.id, 0) is None]
    left = _Left(
        [one for one in old if one.id not in mapped],
        [one for one in new if one.id not in taken],
        fits,
        comparable,
    )
    choices: list[Ambiguity] = []
    for group in list(left.groups(FitLevel.RESHAPED)):
        found = left.tell_apart(group)
        pairs += found
        left.without(found)
    for group in list(left.groups(FitLevel.RESHAPED)):
        choices.append(group)
        left.remove(group.old, group.new)
    for group in list(left.groups(FitLevel.MISFIT)):
        misfits = [Pair(one, other) for one, other in zip(group.old, group.new, strict=False)]
        pairs += misfits
        left.without(misfits)
    order = sorted(pairs, key=lambda pair: pair.old.id)
    return Matched(tuple(order), tuple(choices), (*given_up, *left.old), tuple(left.new))


class _Left:
    """What is not matched yet."""

    def __init__(
        self, old: list[PlannedOperator], new: list[PlannedOperator], fits: Fits, comparable: bool
    ) -> None:
        self.old, self.new = old, new
        self._levels = {(one.id, other.id): fits(one, other).level for one in old for other in new}
        self._comparable = comparable

    def remove(self, old: Sequence[PlannedOperator], new: Sequence[PlannedOperator]) -> None:
        self.old = [one for one in self.old if one not in old]
        self.new = [one for one in self.new if one not in new]

    def without(self, pairs: Sequence[Pair]) -> None:
        self.remove([pair.old for pair in pairs], [pair.new for pair in pairs])

    def groups(self, level: FitLevel) -> Iterator[Ambiguity]:
        """Operators among which state could go to several, at this level or better."""
        waiting = list(self.old)
        while waiting:
            old, new = [waiting.pop(0)], []
            for one in old:  # grows while it is walked through
                new += [other for other in self._fitting(one, level) if other not in new]
                near = [other for other in waiting if any(n in new for n in self._fitting(other, level))]
                old += near
                waiting = [other for other in waiting if other not in near]
            if new:
                by_id = attrgetter("id")
                yield Ambiguity(tuple(sorted(old, key=by_id)), tuple(sorted(new, key=by_id)))

    def tell_apart(self, group: Ambiguity) -> list[Pair]:
        """The pairs of a group that are beyond doubt."""
        pairs = list(self._alike(group)) if self._comparable else []
        old = [one for one in group.old if one not in [pair.old for pair in pairs]]
        new = [one for one in group.new if one not in [pair.new for pair in pairs]]
        return pairs + self._best(old, new)

    def _fitting(self, old: PlannedOperator, level: FitLevel) -> list[PlannedOperator]:
        return [one for one in self.new if self._levels[old.id, one.id] <= level]

    def _alike(self, group: Ambiguity) -> Iterator[Pair]:
        """Those that are the same in everything. Several such have the same state: their order does."""
        free = list(group.new)
        for one in group.old:
            same = (
                other
                for other in free
                if one.known
                and other.evidence == one.evidence
                and self._levels[one.id, other.id] <= FitLevel.ACCEPTED
            )
            if (other := next(same, None)) is not None:
                free.remove(other)
                yield Pair(one, other)

    def _best(self, old: list[PlannedOperator], new: list[PlannedOperator]) -> list[Pair]:
        """The one way to match them that is better than every other way; nothing if there is none."""
        if not old or not new or max(len(old), len(new)) > _MANY:
            return []
        levels = self._levels
        ways = [
            [pair for pair in way if levels[pair.old.id, pair.new.id] <= FitLevel.RESHAPED]
            for way in _ways(old, new)
        ]
        scores = [self._score(way) for way in ways]
        best = [way for way, score in zip(ways, scores, strict=True) if score == max(scores)]
        # Old operators that are the same in everything are one: it does not matter which is taken.
        outcomes = {
            frozenset((pair.old.evidence if pair.old.known else pair.old.id, pair.new.id) for pair in way)
            for way in best
        }
        if len(outcomes) > 1:
            return []
        return [p for p in best[0] if not self._has_texts(p) or similarity(p.old, p.new) > 0]

    def _score(self, way: Sequence[Pair]) -> tuple[float, int]:
        alike = sum(similarity(pair.old, pair.new) for pair in way if self._has_texts(pair))
        return round(alike, 9), sum(FitLevel.MISFIT - self._levels[p.old.id, p.new.id] for p in way)

    def _has_texts(self, pair: Pair) -> bool:
        """Whether the texts of both may be compared."""
        return self._comparable and pair.old.known and pair.new.known


def _ways(old: list[PlannedOperator], new: list[PlannedOperator]) -> Iterator[list[Pair]]:
    if len(old) <= len(new):
        for order in permutations(new, len(old)):
            yield [Pair(one, other) for one, other in zip(old, order, strict=True)]
    else:
        for order in permutations(old, len(new)):
            yield [Pair(one, other) for one, other in zip(order, new, strict=True)]


def match_sources(
    old: Sequence[PlannedSource],
    new: Sequence[PlannedSource],
    mapped: Mapping[int, int | None],
    offsets: Sequence[str] = (),
    taken: Collection[int] = (),
) -> tuple[dict[int, int], dict[int, int]]:
    """For each new source the old one whose position it takes; and old ones with a new one they may be.

    By name; those of one name by what is done with them, or in their order where that does not matter,
    because they stand at the same offset. Spark itself goes by position, so a source without a name is
    taken by its position, when there are as many as before. New ones that are `taken` have a position
    from elsewhere.
    """
    found = _Sources(list(old), list(new), mapped, offsets, taken)
    found.take(lambda at, number: at == number and found.one_log(at, number))
    found.take(lambda at, number: at == number and old[at].is_used_like(new[number]))
    found.take(lambda at, number: old[at].is_used_like(new[number]))
    found.take(lambda at, number: found.alone(at, number) or found.level(at, number))
    if len(old) == len(new):
        found.take(lambda at, number: at == number and not old[at].name)
    doubtful = found.rest()
    return found.pairs, doubtful


class _Sources:
    """Sources that are not matched yet."""

    def __init__(
        self,
        old: list[PlannedSource],
        new: list[PlannedSource],
        mapped: Mapping[int, int | None],
        offsets: Sequence[str],
        taken: Collection[int],
    ) -> None:
        self._old, self._new, self._offsets = old, new, offsets
        self.pairs = {to: at for at, to in mapped.items() if to is not None}
        self._left = [number for number in range(len(old)) if number not in mapped]
        self._free = [n for n in range(len(new)) if n not in self.pairs and n not in taken]

    def take(self, fits: Callable[[int, int], bool]) -> None:
        """Match the first ones that fit each other, in order."""
        for number in list(self._free):
            at = next((at for at in self._left if fits(at, number)), None)
            if at is not None:
                self.pairs[number] = at
                self._left.remove(at)
                self._free.remove(number)

    def alone(self, at: int, number: int) -> bool:
        """Whether these two are of one name that nothing else has."""
        name = self._old[at].name
        mine = [one for one in self._left if self._old[one].name == name]
        its = [one for one in self._free if self._new[one].name == name]
        return bool(name) and mine == [at] and its == [number]

    def one_log(self, at: int, number: int) -> bool:
        """Whether all old ones of this name are uses of one relation: it does not matter which is which."""
        name = self._old[at].name
        mine = [one for one in self._left if self._old[one].name == name]
        folders = {self._old[one].folder for one in mine}
        return len(mine) > 1 and len(folders) == 1 and None not in folders and self.level(at, number)

    def level(self, at: int, number: int) -> bool:
        """Whether these two are of one name, and all old ones of it stand at the same offset."""
        name = self._old[at].name
        places = {self._offsets[one] for one in self._left if self._old[one].name == name and self._offsets}
        return bool(name) and name == self._new[number].name and len(places) == 1

    def rest(self) -> dict[int, int]:
        """For the old ones that are left, new ones that they may be."""
        doubtful: dict[int, int] = {}
        for at in self._left:
            name = self._old[at].name
            near = [n for n in self._free if not name or _may_be(name, self._new[n].name)]
            if near:
                same = [n for n in near if self._new[n].name == name]
                doubtful[at] = (same or near)[0]
                self._free.remove(doubtful[at])
        return doubtful


def _may_be(old: str, new: str) -> bool:
    """Whether one source may be the other: the same, or of one format at another place, not of weir's."""
    return old == new or (not old.startswith(OWN) and old.partition(" ")[0] == new.partition(" ")[0])
