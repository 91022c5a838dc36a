"""The kinds of values that a setting can have: how each is read, written and named.

Values come as text (weir.yaml, environment, command line) or as Python's own types (the job file).
What does not fit raises `ValueError` with words; what was written is read back exactly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

_LONGEST = timedelta(days=36500)
_MICROSECOND = timedelta(microseconds=1)
_UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "min": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
    "us": _MICROSECOND,
}


def parse_duration(value: object) -> timedelta:
    """Read "10 s", "500ms", "1 min", "2 h", "1 d", or 0, the one duration that needs no unit.

    Raises ValueError for everything else; what `format_duration` wrote is read back exactly.
    """
    if isinstance(value, timedelta):
        duration = value
    else:
        written = "" if isinstance(value, bool) else str(value)
        found = re.fullmatch(r"\s*([0-9]{1,18})\s*(d|h|min|s|ms|us|)\s*", written, re.ASCII)
        if not found:
            raise ValueError("a duration is a whole number with a unit, like 500 ms, 10 s, 1 min, 2 h or 1 d")
        if not found[2] and int(found[1]):
            raise ValueError(
                f"a duration needs a unit: {found[1]} s, {found[1]} ms or {found[1]} min, for example"
            )
        unit = _UNITS[found[2] or "s"]
        if int(found[1]) > _LONGEST // unit:
            raise ValueError(f"a duration is at most {format_duration(_LONGEST)}")
        duration = int(found[1]) * unit
    if not timedelta(0) <= duration <= _LONGEST:
        raise ValueError(f"a duration lies between 0 s and {format_duration(_LONGEST)}")
    return duration


def format_duration(duration: timedelta) -> str:
    """Write a duration with the largest unit that leaves a whole number."""
    for name, unit in _UNITS.items():
        if duration and duration % unit == timedelta(0):
            return f"{duration // unit} {name}"
    return "0 s"


_LARGEST_INLINE = 1 << 20
_SIZES = {"mb": 1 << 20, "kb": 1 << 10, "b": 1}


def _inline_size(value: object) -> int:
    """Read "20 kb", "1 mb", or a plain number of bytes."""
    written = "" if isinstance(value, bool) else str(value)
    found = re.fullmatch(r"\s*([0-9]{1,9})\s*(b|kb|mb|)\s*", written.lower(), re.ASCII)
    size = int(found[1]) * _SIZES[found[2] or "b"] if found else _LARGEST_INLINE + 1
    if size > _LARGEST_INLINE:
        raise ValueError("it should be a size between 0 b and 1 mb, like 2 kb")
    return size


def _format_size(size: int) -> str:
    """Write a size with the largest unit that leaves a whole number."""
    name = next(name for name, unit in _SIZES.items() if size % unit == 0 and (size or unit == 1))
    return f"{size // _SIZES[name]} {name}"


def _boolean(value: object) -> bool:
    words = {"true": True, "false": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    raise ValueError("it should be true or false")


def _no_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("it should be neither true nor false")
    return value


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("it should be a number")
    return value


def _positive(duration: timedelta) -> timedelta:
    if not duration:
        raise ValueError("it should be longer than 0 s")
    return duration


@dataclass(frozen=True)
class TypeName:
    """The name of a type in 'weir config'."""

    text: str


def _absent(word: str) -> BeforeValidator:
    """Read a word as None, so that a stronger layer can unset a value."""
    return BeforeValidator(lambda value: None if value == word else _no_boolean(value))


def _duration_or_off(value: object) -> timedelta | None:
    """A word is needed to switch something off: an empty value may be a slip."""
    if isinstance(value, str) and value.strip().lower() == "off":
        return None
    duration = parse_duration(value)
    if not duration:
        raise ValueError("it should be longer than 0 s, or off")
    return duration


@dataclass(frozen=True)
class Keep:
    """How many, and how long: what is beyond one of the two may go. None: no limit."""

    count: int | None = None
    age: timedelta | None = None

    def covers(self, newer: int, old: timedelta) -> bool:
        """Whether one stays that has this many newer ones and this age."""
        few = self.count is None or newer < self.count
        return few and (self.age is None or old <= self.age)

    def __str__(self) -> str:
        parts = [str(self.count)] if self.count is not None else []
        parts += [format_duration(self.age)] if self.age is not None else []
        return ", ".join(parts) or "all"


def _keep(value: object) -> Keep:
    """Read "5", "7 d", "5, 7 d" or "all"."""
    if isinstance(value, Keep):
        return value
    words = [word.strip() for word in ("" if isinstance(value, bool) else str(value)).split(",")]
    if words == ["all"]:
        return Keep()
    counts = [int(word) for word in words if re.fullmatch(r"[0-9]{1,9}", word, re.ASCII)]
    ages = [parse_duration(word) for word in words if not re.fullmatch(r"[0-9]{1,9}", word, re.ASCII)]
    if len(counts) > 1 or len(ages) > 1 or 0 in counts or timedelta(0) in ages:
        raise ValueError("it should be a number, a duration, both (5, 7 d), or all")
    return Keep(counts[0] if counts else None, ages[0] if ages else None)


@dataclass(frozen=True)
class Ports:
    """The ports to try, from the first to the last; 0 is any that is free."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def _ports_or_off(value: object) -> Ports | None:
    """Read "8081", "8081-8181", "0" or "off"."""
    if value is None or isinstance(value, Ports):
        return value
    written = "" if isinstance(value, bool) else str(value).strip().lower()
    if written == "off":
        return None
    found = re.fullmatch(r"([0-9]{1,5})(?:\s*-\s*([0-9]{1,5}))?", written, re.ASCII)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if not first <= last <= 65535:
        raise ValueError("it should be a port, a range like 8081-8181, 0 for any free one, or off")
    return Ports(first, last)


def lenient(others: Mapping[str, str] = MappingProxyType({})) -> BeforeValidator:
    """Read a word in any case, with dashes or underscores; `others` has Flink's words for ours."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        word = value.strip().lower().replace("-", "_")
        return others.get(word, word)

    return BeforeValidator(read)


def _present(word: str) -> PlainSerializer:
    return PlainSerializer(lambda value: word if value is None else value, when_used="json")


_AS_TEXT = PlainSerializer(format_duration, when_used="json")
Duration = Annotated[timedelta, BeforeValidator(parse_duration), _AS_TEXT, TypeName("duration")]
PositiveDuration = Annotated[
    timedelta,
    AfterValidator(_positive),
    BeforeValidator(parse_duration),
    _AS_TEXT,
    TypeName("duration above 0"),
]
DurationOrOff = Annotated[
    timedelta | None,
    BeforeValidator(_duration_or_off),
    PlainSerializer(lambda value: "off" if value is None else format_duration(value), when_used="json"),
    TypeName("duration above 0, or off"),
]
KeepOrAll = Annotated[
    Keep,
    BeforeValidator(_keep),
    PlainSerializer(str, when_used="json"),
    TypeName("number, duration, both, or all"),
]
PortsOrOff = Annotated[
    Ports | None,
    BeforeValidator(_ports_or_off),
    PlainSerializer(lambda value: "off" if value is None else str(value), when_used="json"),
    TypeName("port, range of ports, 0 for any free one, or off"),
]
InlineSize = Annotated[
    int,
    BeforeValidator(_inline_size),
    PlainSerializer(_format_size, when_used="json"),
    TypeName("size, at most 1 mb"),
]
Boolean = Annotated[bool, BeforeValidator(_boolean), TypeName("true or false")]
Text = Annotated[str, Field(min_length=1), TypeName("text")]
_SomeText = Annotated[str, Field(min_length=1)]
TextOrUnset = Annotated[_SomeText | None, _absent("unset"), _present("unset"), TypeName("text, or unset")]
Factor = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False), TypeName("number")]
CountOrZero = Annotated[int, BeforeValidator(_number), Field(ge=0), TypeName("whole number, 0 or more")]
Count = Annotated[int, BeforeValidator(_number), Field(ge=1), TypeName("whole number, 1 or more")]
_OneOrMore = Annotated[int, Field(ge=1)]
CountOrUnset = Annotated[
    _OneOrMore | None, _absent("unset"), _present("unset"), TypeName("whole number, 1 or more, or unset")
]
_ZeroOrMore = Annotated[int, Field(ge=0)]
CountOrZeroOrInfinite = Annotated[
    _ZeroOrMore | None,
    _absent("infinite"),
    _present("infinite"),
    TypeName("whole number, 0 or more, or infinite"),
]
CountOrInfinite = Annotated[
    _OneOrMore | None,
    _absent("infinite"),
    _present("infinite"),
    TypeName("whole number, 1 or more, or infinite"),
]
