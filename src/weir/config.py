"""The settings: their keys, types, defaults and one-line meanings, and where each value came from.

Keys are Flink's where the idea is Flink's; the older spellings of Flink load too. Five layers give
values, each stronger than the one before: defaults, weir.yaml, the job file, `WEIR_*` environment,
`-D key=value`. Nothing is ignored: a key that does not exist or a value that does not fit is an
error that names the layer. `spark.*` is Spark's and passes through unread; the environment is the
one layer that can't give it, because Spark's keys tell upper from lower case.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
)

from weir.errors import BadValueError, UnknownKeyError

OWN_VARIABLES = ("WEIR_LINK_FD", "WEIR_READY_FD", "WEIR_FAULTS", "WEIR_FAULTS_DIR")
"""Variables with which weir's processes talk to each other and to tests; they are not settings."""

_PREFIX = "WEIR_"
_NOTHING: Mapping[str, Any] = MappingProxyType({})
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


class Layer(str, Enum):
    """Who gave a value, from the weakest to the strongest."""

    DEFAULT = "default"
    FILE = "weir.yaml"
    JOB = "the job file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


class StateBackend(str, Enum):
    """Where Spark's executors keep the working state."""

    ROCKSDB = "rocksdb"
    HASHMAP = "hashmap"


class RestartStrategyType(str, Enum):
    """What follows a failure."""

    NONE = "none"
    FIXED_DELAY = "fixed-delay"
    FAILURE_RATE = "failure-rate"
    EXPONENTIAL_DELAY = "exponential-delay"


def parse_duration(value: object) -> timedelta:
    """Read "10 s", "500ms", "1 min", "2 h", "1 d", or a plain number of milliseconds.

    Raises ValueError for everything else; what `format_duration` wrote is read back exactly.
    """
    if isinstance(value, timedelta):
        duration = value
    else:
        written = "" if isinstance(value, bool) else str(value)
        found = re.fullmatch(r"\s*([0-9]{1,18})\s*(d|h|min|s|ms|us|)\s*", written, re.ASCII)
        if not found:
            raise ValueError("a duration is a whole number with a unit, like 500 ms, 10 s, 1 min, 2 h or 1 d")
        unit = _UNITS[found[2] or "ms"]
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


def _boolean(value: object) -> bool:
    words = {"true": True, "false": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    raise ValueError("it should be true or false")


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("it should be a number")
    return value


def _positive(duration: timedelta) -> timedelta:
    if not duration:
        raise ValueError("it should be longer than 0 s")
    return duration


@dataclass(frozen=True)
class _Words:
    """How a type is called in 'weir config'."""

    text: str


def _absent(word: str) -> BeforeValidator:
    """Read a word as None, so that a stronger layer can take a number back."""
    return BeforeValidator(lambda value: None if value == word else _number(value))


def _present(word: str) -> PlainSerializer:
    return PlainSerializer(lambda value: word if value is None else value, when_used="json")


_AS_TEXT = PlainSerializer(format_duration, when_used="json")
Duration = Annotated[timedelta, BeforeValidator(parse_duration), _AS_TEXT, _Words("duration")]
PositiveDuration = Annotated[
    timedelta,
    AfterValidator(_positive),
    BeforeValidator(parse_duration),
    _AS_TEXT,
    _Words("duration above 0"),
]
Boolean = Annotated[bool, BeforeValidator(_boolean), _Words("true or false")]
Text = Annotated[str, Field(min_length=1), _Words("text")]
Factor = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False), _Words("number")]
CountOrZero = Annotated[int, BeforeValidator(_number), Field(ge=0), _Words("whole number, 0 or more")]
Count = Annotated[int, BeforeValidator(_number), Field(ge=1), _Words("whole number, 1 or more")]
_OneOrMore = Annotated[int, Field(ge=1)]
CountOrUnset = Annotated[
    _OneOrMore | None, _absent("unset"), _present("unset"), _Words("whole number, 1 or more, or unset")
]
CountOrInfinite = Annotated[
    _OneOrMore | None,
    _absent("infinite"),
    _present("infinite"),
    _Words("whole number, 1 or more, or infinite"),
]


class Settings(BaseModel):
    """Every setting; a field is called as its key with underscores for dots and dashes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    execution_checkpointing_dir: Text = Field(
        "weir-data",
        alias="execution.checkpointing.dir",
        description="the directory (or URL) under which each job keeps <dir>/<job>/...",
    )
    state_backend_type: StateBackend = Field(
        StateBackend.ROCKSDB,
        alias="state.backend.type",
        description="where working state is kept: RocksDB on disk, or Java objects on the heap",
    )
    state_changelog_enabled: Boolean = Field(
        True,
        alias="state.changelog.enabled",
        description="RocksDB changelog checkpointing: a batch uploads its changes, not whole files",
    )
    parallelism_default: CountOrUnset = Field(
        None,
        alias="parallelism.default",
        description="partitions of keyed state (Spark's shuffle partitions); "
        "unset = chosen from the cores at the first start and kept from then on",
    )
    heartbeat_interval: PositiveDuration = Field(
        timedelta(seconds=10),
        alias="heartbeat.interval",
        description="how often the driver and its supervisor tell each other that they live",
    )
    heartbeat_timeout: PositiveDuration = Field(
        timedelta(seconds=50),
        alias="heartbeat.timeout",
        description="how long the other side may be silent until it counts as dead; above heartbeat.interval",
    )
    task_cancellation_timeout: PositiveDuration = Field(
        timedelta(minutes=3),
        alias="task.cancellation.timeout",
        description="how long a running batch may take to finish when the job is cancelled; "
        "after that it is cut off",
    )
    restart_strategy_type: RestartStrategyType = Field(
        RestartStrategyType.EXPONENTIAL_DELAY,
        alias="restart-strategy.type",
        description="whether and how a failed job is started again",
    )
    restart_strategy_fixed_delay_attempts: CountOrZero = Field(
        1,
        alias="restart-strategy.fixed-delay.attempts",
        description="fixed-delay: how many restarts before the job is FAILED",
    )
    restart_strategy_fixed_delay_delay: Duration = Field(
        timedelta(seconds=1),
        alias="restart-strategy.fixed-delay.delay",
        description="fixed-delay: the wait before each restart",
    )
    restart_strategy_failure_rate_max_failures_per_interval: Count = Field(
        1,
        alias="restart-strategy.failure-rate.max-failures-per-interval",
        description="failure-rate: how many failures within the interval before the job is FAILED",
    )
    restart_strategy_failure_rate_failure_rate_interval: PositiveDuration = Field(
        timedelta(minutes=1),
        alias="restart-strategy.failure-rate.failure-rate-interval",
        description="failure-rate: the interval in which failures are counted",
    )
    restart_strategy_failure_rate_delay: Duration = Field(
        timedelta(seconds=1),
        alias="restart-strategy.failure-rate.delay",
        description="failure-rate: the wait before each restart",
    )
    restart_strategy_exponential_delay_initial_backoff: PositiveDuration = Field(
        timedelta(seconds=1),
        alias="restart-strategy.exponential-delay.initial-backoff",
        description="exponential-delay: the wait before the first restart",
    )
    restart_strategy_exponential_delay_max_backoff: PositiveDuration = Field(
        timedelta(minutes=1),
        alias="restart-strategy.exponential-delay.max-backoff",
        description="exponential-delay: the longest wait before a restart",
    )
    restart_strategy_exponential_delay_backoff_multiplier: Annotated[Factor, Field(ge=1)] = Field(
        1.5,
        alias="restart-strategy.exponential-delay.backoff-multiplier",
        description="exponential-delay: by how much the wait grows with each failure; 1 or more",
    )
    restart_strategy_exponential_delay_jitter_factor: Annotated[Factor, Field(ge=0, le=1)] = Field(
        0.1,
        alias="restart-strategy.exponential-delay.jitter-factor",
        description="exponential-delay: the part of the wait, 0 to 1, that is left to chance",
    )
    restart_strategy_exponential_delay_reset_backoff_threshold: PositiveDuration = Field(
        timedelta(hours=1),
        alias="restart-strategy.exponential-delay.reset-backoff-threshold",
        description="exponential-delay: after so long without a failure the wait starts small again",
    )
    restart_strategy_exponential_delay_attempts_before_reset_backoff: CountOrInfinite = Field(
        None,
        alias="restart-strategy.exponential-delay.attempts-before-reset-backoff",
        description="exponential-delay: how many restarts before such a quiet time until the job is FAILED",
    )
    restart_strategy_poison_batch_attempts: Count = Field(
        2,
        alias="restart-strategy.poison-batch.attempts",
        description="so many failures of the author's own code at one and the same batch "
        "end the job as FAILED instead of another restart",
    )
    sink_max_pending_batches: Count = Field(
        4,
        alias="sink.max-pending-batches",
        description="staged batches that may wait for the sink's commit before the query waits",
    )


@dataclass(frozen=True)
class OlderSpelling:
    """A key of former days: what it is called now, and what its former values are called."""

    key: str
    values: Mapping[str, str] = field(default_factory=dict)


OLDER_SPELLINGS: Mapping[str, OlderSpelling] = {
    "state.checkpoints.dir": OlderSpelling("execution.checkpointing.dir"),
    "state.backend": OlderSpelling(
        "state.backend.type",
        {"memory": "hashmap", "filesystem": "hashmap", "hashmap": "hashmap", "rocksdb": "rocksdb"},
    ),
    "restart-strategy": OlderSpelling("restart-strategy.type"),
}

_FIELDS = {str(info.alias): name for name, info in Settings.model_fields.items()}
_SPELLINGS = (*_FIELDS, *OLDER_SPELLINGS)


def _underscored(key: str) -> str:
    return re.sub(r"[.-]", "_", key).lower()


_BY_UNDERSCORES = {_underscored(key): key for key in _SPELLINGS}


@dataclass(frozen=True)
class Config:
    """All settings, what goes to Spark, and which layer gave each key."""

    settings: Settings
    spark: Mapping[str, str]
    origins: Mapping[str, Layer]

    def explicit(self, key: str) -> bool:
        """Whether anything but the defaults gave this key (one of weir's or `spark.*`)."""
        return self.origins.get(key, Layer.DEFAULT) is not Layer.DEFAULT

    def text(self, key: str) -> str:
        """A setting's value as one would write it; reading it back gives the same value."""
        return _text(self.settings, key)

    def to_wire(self) -> dict[str, object]:
        """All of it as JSON types; `from_wire` gives back an equal Config."""
        return {
            "settings": self.settings.model_dump(mode="json", by_alias=True),
            "spark": dict(self.spark),
            "origins": {key: layer.value for key, layer in self.origins.items()},
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Config:
        return cls(
            settings=Settings.model_validate(wire["settings"]),
            spark=dict(wire["spark"]),
            origins={key: Layer(layer) for key, layer in wire["origins"].items()},
        )


def _text(settings: Settings, key: str) -> str:
    name = _FIELDS[key]
    return _plain(settings.model_dump(mode="json", include={name})[name])


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Described:
    """One line of 'weir config'."""

    key: str
    type: str
    default: str
    meaning: str
    older: tuple[str, ...]


def describe() -> list[Described]:
    """Every setting with its type in words, default, meaning and older spellings, in a fixed order."""
    return [_described(key, name) for key, name in _FIELDS.items()]


def _described(key: str, name: str) -> Described:
    info = Settings.model_fields[name]
    words = next((note.text for note in info.metadata if isinstance(note, _Words)), None)
    older = tuple(old for old, spelling in OLDER_SPELLINGS.items() if spelling.key == key)
    return Described(
        key=key,
        type=words or _choices(info.annotation),
        default=_text(Settings(), key),
        meaning=str(info.description),
        older=older,
    )


def _choices(kind: Any) -> str:
    return ", ".join(member.value for member in kind)


@dataclass(frozen=True)
class _Given:
    """One value as a layer gave it: `spelled` is what the user wrote, `key` what it means."""

    key: str
    value: object
    layer: Layer
    spelled: str
    shown: object

    def bad(self, reason: str) -> BadValueError:
        return BadValueError(key=self.spelled, value=self.shown, origin=_place(self.layer), reason=reason)


def resolve(
    *,
    file: Path | None,
    job_options: Mapping[str, object] = _NOTHING,
    environ: Mapping[str, str] = _NOTHING,
    overrides: Mapping[str, str] = _NOTHING,
) -> Config:
    """Merge the layers, the stronger over the weaker, key by key; reads `file` and nothing else.

    Raises `UnknownKeyError` for a key that does not exist in any layer, even one that is overruled,
    and `BadValueError` for a value that does not fit, for two different values of one setting in one
    layer, and for a file that is not a mapping in YAML. `spark.*` comes out in `Config.spark` as text.
    """
    merged: dict[str, _Given] = {}
    for layer, pairs in (
        (Layer.FILE, _from_file(file) if file else ()),
        (Layer.JOB, _flat(job_options)),
        (Layer.ENVIRONMENT, _from_environment(environ)),
        (Layer.COMMAND_LINE, overrides.items()),
    ):
        merged.update(_layer(layer, pairs))
    settings = _settings([given for given in merged.values() if given.key in _FIELDS])
    _check_order(settings, merged, "heartbeat.interval", "heartbeat.timeout", strictly=True)
    backoff = "restart-strategy.exponential-delay."
    _check_order(settings, merged, backoff + "initial-backoff", backoff + "max-backoff", strictly=False)
    return Config(
        settings=settings,
        spark={key: str(given.value) for key, given in merged.items() if key not in _FIELDS},
        origins=dict.fromkeys(_FIELDS, Layer.DEFAULT) | {key: given.layer for key, given in merged.items()},
    )


def _layer(layer: Layer, pairs: Iterable[tuple[str, object]]) -> dict[str, _Given]:
    taken: dict[str, _Given] = {}
    for spelled, value in pairs:
        given = _given(layer, spelled, value)
        other = taken.setdefault(given.key, given)
        if other.value != given.value:
            raise given.bad(f"{other.spelled} = {other.shown} is given in the same place")
    return taken


def _given(layer: Layer, spelled: str, value: object) -> _Given:
    if spelled.startswith("spark."):
        given = _Given(spelled, _plain(value), layer, spelled, value)
        if not isinstance(value, str | int | float):
            raise given.bad("Spark takes text, numbers, true and false")
        return given
    key = _known(layer, spelled)
    older = OLDER_SPELLINGS.get(key)
    if older is None:
        return _Given(key, value, layer, spelled, value)
    given = _Given(older.key, older.values.get(str(value), value), layer, spelled, value)
    if older.values and value not in older.values:
        raise given.bad(f"it should be one of {', '.join(older.values)}")
    return given


def _known(layer: Layer, spelled: str) -> str:
    """The key that is meant; only the job file and the environment may write underscores."""
    body = spelled.removeprefix(_PREFIX) if layer is Layer.ENVIRONMENT else spelled
    if body in _SPELLINGS:
        return body
    if layer in (Layer.JOB, Layer.ENVIRONMENT) and _underscored(body) in _BY_UNDERSCORES:
        return _BY_UNDERSCORES[_underscored(body)]
    raise UnknownKeyError(key=spelled, origin=_place(layer), nearest=_nearest(layer, spelled))


def _nearest(layer: Layer, spelled: str) -> str:
    """The key that looks most like it, written in the way of that layer."""

    def written(key: str) -> str:
        if layer is Layer.ENVIRONMENT:
            return _PREFIX + _underscored(key).upper()
        return _underscored(key) if layer is Layer.JOB and "." not in spelled else key

    candidates = {written(key): key for key in _SPELLINGS}
    key = candidates[difflib.get_close_matches(spelled, candidates, n=1, cutoff=0.0)[0]]
    return written(OLDER_SPELLINGS[key].key if key in OLDER_SPELLINGS else key)


def _place(layer: Layer) -> str:
    return f"the {layer.value}" if layer in (Layer.ENVIRONMENT, Layer.COMMAND_LINE) else layer.value


def _settings(given: list[_Given]) -> Settings:
    try:
        return Settings.model_validate({one.key: one.value for one in given})
    except ValidationError as error:
        first = error.errors()[0]
        culprit = next(one for one in given if one.key == first["loc"][0])
        cause = first.get("ctx", {}).get("error")
        reason = str(cause) if cause else re.sub(r"^(Input|String) should", "it should", first["msg"])
        raise culprit.bad(reason) from None


def _check_order(
    settings: Settings, merged: Mapping[str, _Given], low: str, high: str, *, strictly: bool
) -> None:
    """Blame whichever of the two was given by the stronger layer."""
    least, most = (getattr(settings, _FIELDS[key]) for key in (low, high))
    if least < most or (least == most and not strictly):
        return
    layers = list(Layer)
    given = [merged[key] for key in (low, high) if key in merged]
    culprit = max(given, key=lambda one: layers.index(one.layer))
    relation, other = ("below", high) if culprit.key == low else ("above", low)
    raise culprit.bad(f"it should be {relation} {other}, which is {_text(settings, other)}")


def _flat(mapping: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    for name, value in environ.items():
        if name.startswith(_PREFIX) and name not in OWN_VARIABLES:
            yield name, value


def _from_file(file: Path) -> list[tuple[str, object]]:
    """Read the values as they are written, so that `010`, `1:30` or `off` stay what they look like."""
    try:
        loader = yaml.SafeLoader(file.read_text("utf-8"))
        root = loader.get_single_node()
        if root is None:
            return []
        if isinstance(root, yaml.MappingNode):
            return list(_nodes(loader, root, ""))
        reason = "it is not a mapping of keys to values"
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        reason = f"it is not YAML: {line}{error.problem}"
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = str(error)
    raise BadValueError(key="the settings file", value=str(file), origin=Layer.FILE.value, reason=reason)


def _nodes(loader: yaml.SafeLoader, mapping: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, object]]:
    loader.flatten_mapping(mapping)
    for key_node, node in mapping.value:
        key = f"{prefix}{loader.construct_object(key_node)}"
        if isinstance(node, yaml.MappingNode):
            yield from _nodes(loader, node, f"{key}.")
        elif isinstance(node, yaml.ScalarNode) and not node.tag.endswith(":null"):
            yield key, node.value
        else:
            yield key, loader.construct_object(node, deep=True)
