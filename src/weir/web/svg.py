"""Drawings as SVG: the graph of a job, timelines of phases, sparklines. Every text in them is escaped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from weir.protocol.states import QueryState
from weir.text import lasting, number, size, took

_GAP, _TOP, _BETWEEN = 46, 6, 18
_WIDE, _NARROW, _PAD = 232, 188, 12
"""Of a query, and of what is at the ends; and what is left free beside the text in it."""
_TITLE, _LINE = 14.0, 12.0
"""The sizes of the letters."""
_BOLD = 1.1
_THIN, _FAT = "fijlrtI.,:;'|!()[] -", "mwMWGOQ@%…"


@dataclass
class Node:
    """A box of the graph."""

    key: str
    kind: str
    """source, query or sink."""
    title: str
    lines: list[str] = field(default_factory=list)
    column: int = 0
    standing: str = ""
    """Of a query that does not run: down, failed or ended."""
    x: float = 0
    y: float = 0

    @property
    def width(self) -> int:
        return _WIDE if self.kind == "query" else _NARROW

    @property
    def height(self) -> int:
        return 32 + 18 * len(self.lines) if self.kind == "query" else 34 + 16 * len(self.lines)


def graph(vertices: Sequence[Mapping[str, Any]], *, down: bool = False) -> Markup:
    """Sources, queries, channels and sinks, from left to right; `down`: none of the queries runs now."""
    nodes, edges = _nodes(vertices, down)
    if not nodes:
        return Markup("")
    width, height = _place(nodes, edges)
    drawn = [_edge(nodes[one], nodes[other], label) for one, other, label in edges]
    drawn += [_box(node) for node in nodes.values()]
    return Markup(
        '<svg class="graph" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="the graph">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto">'
        '<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>{body}</svg>'
    ).format(w=width, h=height, body=Markup("").join(drawn))


def _nodes(
    vertices: Sequence[Mapping[str, Any]], down: bool
) -> tuple[dict[str, Node], list[tuple[str, str, str]]]:
    depth = _depths({one["query"]: one["inputs"] for one in vertices})
    nodes: dict[str, Node] = {}
    edges: list[tuple[str, str, str]] = []
    for one in vertices:
        name, column = one["query"], 1 + depth[one["query"]]
        key = f"query {name}"
        for source in one["reads"]:
            where = f"source {source}"
            nodes.setdefault(where, Node(where, "source", source, column=column - 1))
            edges.append((where, key, ""))
        standing, words = _standing(one, down)
        nodes[key] = Node(key, "query", name, _query_lines(one, words), column, standing)
        sink = one["sink"]
        if sink and not one["channel"]:
            where = f"sink {name}"
            nodes[where] = Node(where, "sink", sink["kind"], [sink["description"]], column + 1)
            edges.append((key, where, ""))
        for stream in one["inputs"]:
            edges.append((f"query {stream}", key, _waiting(one, stream)))
    return nodes, edges


def _waiting(vertex: Mapping[str, Any], stream: str) -> str:
    """How many entries of a channel a reader has before it."""
    for source in vertex["sources"]:
        if source["name"] == f"channel {stream}" and source["behind"]:
            return f"{number(source['behind'])} waiting"
    return ""


def _standing(one: Mapping[str, Any], down: bool) -> tuple[str, str]:
    """How a query stands when it does not run, for its colour and in words; `down`: none of them runs."""
    if one["state"] == QueryState.FAILED.value:
        return "failed", "FAILED"
    if one["state"] == QueryState.ENDED.value:
        return "ended", "ended"
    if one["state"] == QueryState.RESTARTING.value:
        if one["waits_for"]:
            return "down", f"waits for the {one['waits_for']}"
        wait = one["restart_in_seconds"]
        return "down", "restarts" if wait is None else f"restarts in {wait:.0f} s"
    return ("down", "down") if down else ("", "")


def _query_lines(one: Mapping[str, Any], standing: str) -> list[str]:
    if one["batch"] is None:
        return [f"{standing}, no batch yet" if standing else "no batch yet"]
    behind = one["behind"]
    doing = standing or f"{number(one['rate'] or 0)} rows/s"
    lines = [f"{doing} · batch {one['batch']}, {took(one['seconds'])}"]
    lag = [f"lag {number(behind['count'])} {behind['unit']}"] if behind and behind["count"] else []
    if one["watermark_lag_seconds"] is not None:
        lag.append(f"watermark {lasting(one['watermark_lag_seconds'])} ago")
    lines.append(" · ".join(lag) or "up to date" if behind or lag else "lag unknown")
    if one["state_rows"]:
        lines.append(f"{number(one['state_rows'])} state rows · {size(one['state_bytes'])}")
    return lines


def _depths(inputs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """For each query how many streams are before it at most."""
    found: dict[str, int] = {}

    def depth(name: str, seen: frozenset[str]) -> int:
        if name not in found:
            before = [one for one in inputs.get(name, ()) if one not in seen]
            found[name] = max((1 + depth(one, seen | {name}) for one in before), default=0)
        return found[name]

    for name in inputs:
        depth(name, frozenset())
    return found


def _place(nodes: Mapping[str, Node], edges: Sequence[tuple[str, str, str]]) -> tuple[int, int]:
    """Give each box its place: columns by depth, in a column near what it is connected with."""
    columns: dict[int, list[Node]] = {}
    for node in nodes.values():
        columns.setdefault(node.column, []).append(node)
    height = max(_tall(column) for column in columns.values())
    x = 4.0
    for _, column in sorted(columns.items()):
        column.sort(key=lambda node: _before(node, nodes, edges))
        wide, y = max(node.width for node in column), _TOP + (height - _tall(column)) / 2
        for node in column:
            node.x, node.y = x + (wide - node.width) / 2, y
            y += node.height + _BETWEEN
        x += wide + _GAP
    return round(x - _GAP + 4), round(height + 2 * _TOP)


def _tall(column: Sequence[Node]) -> int:
    return sum(node.height + _BETWEEN for node in column) - _BETWEEN


def _before(node: Node, nodes: Mapping[str, Node], edges: Sequence[tuple[str, str, str]]) -> float:
    above = [nodes[one].y for one, other, _ in edges if other == node.key]
    return sum(above) / len(above) if above else 0.0


def _edge(one: Node, other: Node, label: str) -> Markup:
    x1, y1 = one.x + one.width, one.y + one.height / 2
    x2, y2 = other.x - 3, other.y + other.height / 2
    bend = max(18.0, (x2 - x1) / 2)
    path = Markup('<path class="edge" d="M{} {}C{} {} {} {} {} {}" marker-end="url(#tip)"/>').format(
        *(round(v, 1) for v in (x1, y1, x1 + bend, y1, x2 - bend, y2, x2, y2))
    )
    if label:
        path += Markup('<text class="waiting" x="{}" y="{}">{}</text>').format(
            round((x1 + x2) / 2, 1), round((y1 + y2) / 2 - 6, 1), label
        )
    return path


def _box(node: Node) -> Markup:
    query, room = node.kind == "query", node.width - 2 * _PAD
    text = Markup('<text class="title" x="{}" y="22">{}</text>').format(
        _PAD, _short(node.title, room / _TITLE / _BOLD)
    )
    for row, line in enumerate(node.lines):
        place = 42 + 18 * row if query else 40
        # of a sink's path the end is kept: the folder's name
        shown = _short(line[::-1], room / _LINE)[::-1] if node.kind == "sink" else _short(line, room / _LINE)
        text += Markup('<text class="line" x="{}" y="{}">{}</text>').format(_PAD, place, shown)
    whole = "\n".join([node.title, *node.lines])
    return Markup(
        '<g class="node {}" transform="translate({} {})"><title>{}</title>'
        '<rect width="{}" height="{}" rx="8"/>{}</g>'
    ).format(
        f"{node.kind} {node.standing}".rstrip(),
        round(node.x, 1),
        round(node.y, 1),
        whole,
        node.width,
        node.height,
        text,
    )


def _short(text: str, room: float) -> str:
    """As much of the text as fits; `room` is in heights of its letters, for the widest of the usual fonts."""
    if sum(map(_width, text)) <= room:
        return text
    shown, left = "", room - _width("…")
    for letter in text:
        left -= _width(letter)
        if left < 0:
            break
        shown += letter
    return shown.rstrip() + "…"


def _width(letter: str) -> float:
    """Of a letter, in its height."""
    if letter in _THIN:
        return 0.42
    return 1.0 if letter in _FAT or not letter.isascii() else 0.72 if letter.isupper() else 0.63


def bars(parts: Sequence[tuple[str, float]], total: float | None = None, kind: str = "phase") -> Markup:
    """Parts one after the other on one line; `total` is the full width, by default all of them."""
    whole = total or sum(seconds for _, seconds in parts) or 1.0
    drawn, x = [], 0.0
    for name, seconds in parts:
        width = 100 * seconds / whole
        if width > 0.05:
            place = (f"{kind} {name.replace(' ', '-')}", round(x, 2), round(max(width, 0.4), 2))
            box = Markup('<rect class="{}" x="{}" width="{}" height="10"><title>{}</title></rect>')
            drawn.append(box.format(*place, f"{name} {took(seconds)}"))
        x += width
    return Markup('<svg class="bars" viewBox="0 0 100 10" preserveAspectRatio="none">{}</svg>').format(
        Markup("").join(drawn)
    )


def steps(parts: Sequence[tuple[str, float]]) -> list[tuple[str, float, Markup]]:
    """The same with a line for each part, each where it begins."""
    total, start, found = sum(seconds for _, seconds in parts) or 1.0, 0.0, []
    for name, seconds in parts:
        x, width = 100 * start / total, max(100 * seconds / total, 0.4)
        bar = Markup('<svg class="bars" viewBox="0 0 100 10" preserveAspectRatio="none">{}</svg>').format(
            Markup('<rect class="part {}" x="{}" width="{}" height="10"/>').format(
                name.replace(" ", "-"), round(min(x, 99.6), 2), round(width, 2)
            )
        )
        found.append((name, seconds, bar))
        start += seconds
    return found


def sparkline(values: Sequence[float], words: Callable[[float], str]) -> Markup:
    """A line without axes; its title has the last and the highest value."""
    if len(values) < 2:
        return Markup("")
    top = max(values) or 1.0
    points = " ".join(
        f"{100 * at / (len(values) - 1):.1f},{22 - 20 * value / top:.1f}" for at, value in enumerate(values)
    )
    title = f"now {words(values[-1])}, at most {words(max(values))}"
    return Markup(
        '<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none"><title>{}</title>'
        '<polyline points="{}"/></svg>'
    ).format(title, points)
