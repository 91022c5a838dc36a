"""What an operator groups by, computes and reads, as text that is the same at every start of one code.

Read from the optimized logical plan, where columns that nobody uses are gone and conditions stand as
near to their source as they can. A column is written as what it is computed from, so that names given
on the way don't count; Spark's own ids are left out, and so are the conditions that it adds itself.
Nothing is evaluated. Private classes of Spark's, pinned by `tests/integration/test_planned.py`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.protocol.shape import Computed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ATTRIBUTE = re.compile(r"([^\s(),\[\]#]*)#(\d+)L?(?:-T\d+ms)?")
_COLUMN = re.compile(r"([\w.]+\([^()]*\)|[^\s(),\[\]#]*)#(\d+)L?(?:-T\d+ms)?")
"""The same with names such as `count(1)`, which Spark makes up; older texts had those names twice."""
_CHANCE = re.compile(r"\b(rand|randn|uuid)\((Some\()?-?\d+\)+")
"""Spark draws a new seed for every batch."""
_NOW = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{4,6}")
"""Where the present time was written as a constant; nobody writes microseconds by hand."""
_LONG = 100
_AGGREGATES = {
    *("HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec"),
    *("MergingSessionsExec", "UpdatingSessionsExec"),
}
_GIVEN_BY_KEYS = {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark"}
_CALLS = {"FlatMapGroupsInPandasWithState", "TransformWithStateInPySpark"}
_STREAMS = {"StreamingRelation", "StreamingRelationV2"}
_IDENTITY = ("path", "subscribe", "subscribepattern", "assign", "topic", "stream", "table", "host")
"""Options that may say which source of its kind it is; all others may be secrets."""
_CREDENTIALS = re.compile(r"//[^/@]*@")
_TIME = r"Timestamp(?:NTZ)?Type"
_CONVERTED = rf"precisetimestampconversion\((?P<of>.+?), {_TIME}, LongType\)"
_WINDOW = re.compile(
    rf"named_struct\(start, knownnullable\(precisetimestampconversion\(\(\({_CONVERTED} - CASE WHEN "
    rf"\(\(\(precisetimestampconversion\((?P=of), {_TIME}, LongType\) - (?P<shift>-?\d+)\) "
    rf"% (?P<slide>\d+)\) < 0\) .*? END\) - \d+\), LongType, {_TIME}\)\), "
    rf"end, knownnullable\(precisetimestampconversion\(.*? \+ (?P<length>\d+)\), LongType, {_TIME}\)\)\)"
)
"""What the analyzer makes of `window(of, length, slide, shift)`: arithmetic with microseconds."""
_SESSION = re.compile(
    rf"named_struct\(start, precisetimestampconversion\({_CONVERTED}, LongType, {_TIME}\), end, "
    rf"knownnullable\(precisetimestampconversion\(precisetimestampconversion\("
    rf"(?P=of) \+ (?P<gap>.+?), {_TIME}, LongType\), LongType, {_TIME}\)\)\)"
)
_WINDOW_TIME = re.compile(
    rf"precisetimestampconversion\(\(precisetimestampconversion\((?P<of>.+?)\.end, {_TIME}, LongType\) - 1\)"
    rf", LongType, {_TIME}\)"
)
_UNITS = (("day", 86_400_000_000), ("hour", 3_600_000_000), ("minute", 60_000_000), ("second", 1_000_000))
_DECLARATIVE = "org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate"


@dataclass(frozen=True)
class Fingerprint:
    """What distinguishes an operator from another one of its kind and schema."""

    keys: tuple[str, ...]
    computes: tuple[Computed, ...]
    reads: tuple[str, ...]
    sources: tuple[str, ...]


class Texts:
    """The texts of one optimized plan."""

    def __init__(self, plan: Any, jvm: Any) -> None:
        self._declarative = jvm.java.lang.Class.forName(_DECLARATIVE)
        self._columns: dict[str, str] = {}
        """By Spark's id: what the column is computed from."""
        self._older_columns: dict[str, str] = {}
        """The same in the words of `Shape.older`."""
        self.older: dict[str, str] = {}
        """Texts as an older weir wrote them, each with what it is now; see `Shape.older`."""
        self._learn(plan)

    def fingerprint(self, physical: Any) -> Fingerprint:
        """Of a stateful operator of the physical plan; of one that Spark made up nothing is known."""
        link = physical.logicalLink()
        if not link.isDefined():
            return Fingerprint((), (), (), ())
        logical = link.get()
        below = list(logical_below(logical))
        nodes = below if _class(logical) in _GIVEN_BY_KEYS else [logical, *below]
        return Fingerprint(
            keys=tuple(self._keys(physical)),
            computes=tuple(self._computes(physical, logical)),
            reads=tuple(line for node in nodes for line in self._lines(node)),
            sources=tuple(dict.fromkeys(source(node) for node in below if is_stream(node))),
        )

    def used(self, node: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        """For each source of the plan what is done with it until it meets another one."""
        if is_stream(node):
            yield above
        children = sequence(node.children())
        here = (*self._lines(node), *above) if len(children) == 1 else ()
        for child in children:
            yield from self.used(child, here)

    def _learn(self, node: Any) -> None:
        for child in sequence(node.children()):
            self._learn(child)
        for one in sequence(node.expressions()):
            if _class(one) == "Alias":
                self._name(_id(one), *self._both(one.child()))
        if _class(node) == "Generate":
            made, older = self._both(node.generator())
            for number, column in enumerate(sequence(node.generatorOutput())):
                ending = "" if number == 0 else f"[{number}]"
                self._name(_id(column), made + ending, older + ending)
        if _class(node) == "Expand":
            for column, one in zip(sequence(node.output()), self._first_projection(node), strict=True):
                if (made := self._text(one)).startswith("window("):
                    name = str(column.name())
                    self.older[name] = made
                    self._name(_id(column), made, name)

    def _name(self, id: str, text: str, older: str) -> None:
        self._columns[id], self._older_columns[id] = text, older

    def _first_projection(self, expand: Any) -> list[Any]:
        """A sliding window is expanded into one row for each window; the first one stands for all."""
        return sequence(sequence(expand.projections())[0])

    def _text(self, expression: Any) -> str:
        return self._both(expression)[0]

    def _both(self, expression: Any) -> tuple[str, str]:
        """The text of an expression, now and as an older weir wrote it."""
        written = expression.toString()
        text = _cut(_windows(_resolved(written, self._columns, _COLUMN)))
        older = _cut(_resolved(written, self._older_columns, _ATTRIBUTE))
        if text != older:
            self.older[older] = text
        return text, older

    def _keys(self, physical: Any) -> Iterator[str]:
        kind = _class(physical)
        if kind == "StreamingSymmetricHashJoinExec":
            left, right = sequence(physical.leftKeys()), sequence(physical.rightKeys())
            for one, other in zip(left, right, strict=True):
                yield f"{self._text(one)} = {self._text(other)}"
        elif kind != "StreamingGlobalLimitExec":
            yield from map(self._text, sequence(physical.keyExpressions()))
        if kind == "SessionWindowStateStoreSaveExec":
            yield self._text(physical.sessionExpression())

    def _computes(self, physical: Any, logical: Any) -> Iterator[Computed]:
        if not _class(physical).endswith("StateStoreSaveExec"):
            return
        node = physical
        while _class(node) not in _AGGREGATES:
            node = node.children().apply(0)
        written = {_id(one, "resultId"): one for one in _aggregate_expressions(logical)}
        for one in sequence(node.aggregateExpressions()):
            function = one.aggregateFunction()
            original = written.get(_id(one, "resultId"))
            text = self._text(function if original is None else original)
            columns = sequence(function.aggBufferAttributes())
            yield Computed(text=text, columns=len(columns), start=self._start(function))

    def _start(self, function: Any) -> tuple[int | float | bool | None, ...] | None:
        """What the columns of a function hold before its first row, where that are plain numbers."""
        if not self._declarative.isInstance(function):
            return None
        values = [_plain(one.eval(None)) for one in sequence(function.initialValues())]
        plain = all(value is None or isinstance(value, bool | int | float) for value in values)
        return tuple(values) if plain else None

    def _lines(self, node: Any) -> Iterator[str]:
        kind = _class(node)
        if is_stream(node):
            yield f"reads {source(node)}"
        elif kind == "Filter":
            yield from (f"where {text}" for text in sorted(self._conditions(node.condition())))
        elif kind == "Join":
            yield f"join {node.joinType().toString()}"
            if node.condition().isDefined():
                yield from (f"on {text}" for text in sorted(self._conditions(node.condition().get())))
        elif kind == "EventTimeWatermark":
            yield f"watermark {self._text(node.eventTime())} {node.delay().toString()}"
        elif kind == "Aggregate":
            yield from (f"by {self._text(one)}" for one in sequence(node.groupingExpressions()))
            yield from (f"computes {self._text(one)}" for one in _aggregate_expressions(node))
        elif kind == "Generate":
            yield f"generates {self._text(node.generator())}"
        elif kind in _CALLS:
            yield f"calls {self._text(node.functionExpr())}"
        elif kind == "Expand" and any(
            self._text(one).startswith("window(") for one in self._first_projection(node)
        ):
            return  # the key has it
        elif kind == "LogicalRelation":
            yield _ATTRIBUTE.sub(r"\1", node.simpleString(_LONG))
        elif kind not in ("Project", "LocalRelation"):
            yield " ".join([kind, *map(self._text, sequence(node.expressions()))])

    def _conditions(self, condition: Any) -> Iterator[str]:
        if _class(condition) == "And":
            for part in sequence(condition.children()):
                yield from self._conditions(part)
        elif _class(condition) != "IsNotNull":
            yield self._text(condition)


def sources(analyzed: Any) -> list[tuple[str, int]]:
    """The streams of a plan, in the order of Spark's offset log: their names and their folders.

    Spark makes one source, with one folder `sources/N`, of a relation that the plan has several times;
    its offset log has a line for each time.
    """
    distinct: list[Any] = []
    found = []
    for leaf in sequence(analyzed.collectLeaves()):
        if is_stream(leaf):
            folder = next((n for n, one in enumerate(distinct) if one.equals(leaf)), len(distinct))
            distinct += [leaf] if folder == len(distinct) else []
            found.append((source(leaf), folder))
    return found


def is_stream(node: Any) -> bool:
    """Whether it is a source of a streaming query."""
    return _class(node) in _STREAMS


def source(relation: Any) -> str:
    """The name of a stream, which must not change when its job's files move; without any secret."""
    named = relation.sourceIdentifyingName()
    if _class(named) == "UserProvided":
        return f"named {named.name()}"
    if _class(relation) == "StreamingRelation":
        kind, given = relation.dataSource().className(), options_of(relation)
    else:
        kind = relation.sourceName()
        given = {key.lower(): value for key, value in dict(relation.extraOptions()).items()}
    if kind == "weir.Channels":
        return f"channel {given['location'].rstrip('/').rsplit('/', 1)[1]}"
    if kind == "weir.Journals":
        return f"source {given['source']}"
    which = next((given[key] for key in _IDENTITY if given.get(key)), "")
    return f"{kind} {_CREDENTIALS.sub('//', which)}".strip()


def logical_below(node: Any) -> Iterator[Any]:
    """All nodes below one, parents first."""
    for child in sequence(node.children()):
        yield child
        yield from logical_below(child)


def leaves(frame: DataFrame) -> list[Any]:
    """The leaves of a frame's analyzed plan. Nothing is evaluated."""
    return sequence(frame._jdf.queryExecution().analyzed().collectLeaves())


def options_of(leaf: Any) -> dict[str, str]:
    """The options of a source of Spark's older kind, by their names in lower case: Spark ignores the case."""
    options = leaf.dataSource().options()
    return {key.lower(): str(options.apply(key)) for key in sequence(options.keys().toSeq())}


def sequence(found: Any) -> list[Any]:
    """A sequence of Scala's as a list."""
    return [found.apply(number) for number in range(found.size())]


def _resolved(text: str, columns: Mapping[str, str], column: re.Pattern[str]) -> str:
    """An expression's text with what each column is computed from, and without ids, chance and time."""
    text = column.sub(lambda found: columns.get(found[2], found[1]), text)
    return _CHANCE.sub(r"\1()", _NOW.sub("now", text))


def _windows(text: str) -> str:
    """The same with windows as their author wrote them."""
    text = _WINDOW_TIME.sub(lambda found: f"window_time({found['of']})", _WINDOW.sub(_window, text))
    return _SESSION.sub(lambda found: f"session_window({found['of']}, {found['gap']})", text)


def _window(found: re.Match[str]) -> str:
    length, slide, shift = (int(found[name]) for name in ("length", "slide", "shift"))
    arguments = [found["of"], _duration(length)]
    if slide != length or shift:
        arguments.append(_duration(slide))
    if shift:
        arguments.append(_duration(shift))
    return f"window({', '.join(arguments)})"


def _duration(microseconds: int) -> str:
    for unit, size in _UNITS:
        if microseconds and microseconds % size == 0:
            count = microseconds // size
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return f"{microseconds} microseconds"


def _cut(text: str) -> str:
    if len(text) <= _LONG:
        return text
    return f"{text[: _LONG // 2]}... {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _aggregate_expressions(aggregate: Any) -> Iterator[Any]:
    todo = sequence(aggregate.aggregateExpressions())
    while todo:
        one = todo.pop(0)
        if _class(one) == "AggregateExpression":
            yield one
        else:
            todo = sequence(one.children()) + todo


def _plain(value: Any) -> Any:
    """A decimal as its unscaled number, as it lies in a row; anything else as it is."""
    decimal = value is not None and hasattr(value, "getClass") and _class(value) == "Decimal"
    return int(value.toUnscaledLong()) if decimal else value


def _class(found: Any) -> str:
    return str(found.getClass().getSimpleName())


def _id(expression: Any, of: str = "exprId") -> str:
    return str(getattr(expression, of)().id())
