"""Where each value comes from: the layers of settings, merged and checked.

Five layers give values, each stronger than the one before: defaults, weir.yaml, the job file,
`WEIR_*` environment, `-D key=value`; a few keys can be changed on the running job, which is a sixth.
Nothing is ignored: a key that does not exist or a value that does not fit is an error that names
the layer. `spark.*` is Spark's and passes through unread; the environment is the one layer that
can't give it, because Spark's keys tell upper from lower case.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from weir.config.settings import (
    OLDER_SPELLINGS,
    RUNTIME_KEYS,
    CheckpointingMode,
    CheckpointStorage,
    Settings,
    SinkCommit,
)
from weir.config.values import TypeName
from weir.errors import BadValueError, SettingsFileError, UnknownKeyError

if TYPE_CHECKING:
    import yaml

OWN_VARIABLES = ("WEIR_LINK_FD", "WEIR_READY_FD", "WEIR_SCRATCH", "WEIR_FAULTS", "WEIR_FAULTS_DIR")
"""Variables with which weir's processes talk to each other and to tests; they are not settings."""

_PREFIX = "WEIR_"
_SHORT_NAMES = {"WEIR_DIR": "execution.checkpointing.dir"}
"""Variables that have another name than their setting."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_INTERVAL = "execution.checkpointing.interval"
_NEAR = 0.55
"""How much alike two keys must be for one to be proposed for the other."""
_NEVER_SHOWN = "without checkpoints no output would become visible, and pending output would only grow"


class Layer(str, Enum):
    """Who gave a value, from the weakest to the strongest."""

    DEFAULT = "default"
    FILE = "weir.yaml"
    JOB = "the job file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"
    REQUEST = "request"
    """A change of the running job; it holds until its supervisor ends."""


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

    def text(self, key: str) -> str:
        """A setting's value as one would write it; reading it back gives the same value."""
        return text(self.settings, key)

    def changed(self, texts: Mapping[str, str]) -> Config:
        """With these keys changed on the running job; refuses as `changed` does."""
        return replace(
            self,
            settings=changed(self.settings, texts),
            origins={**self.origins, **dict.fromkeys(texts, Layer.REQUEST)},
        )

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


def changed(settings: Settings, texts: Mapping[str, str]) -> Settings:
    """The settings with these keys of `RUNTIME_KEYS` changed, as one would write them.

    Raises `UnknownKeyError` for a key that does not exist, and `BadValueError` for one that can't be
    changed while the job runs or for a value that does not fit.
    """
    given = [_Given(key, value, Layer.REQUEST, key, value) for key, value in texts.items()]
    for one in given:
        if one.key not in _SPELLINGS:
            near = difflib.get_close_matches(one.key, RUNTIME_KEYS, n=1, cutoff=_NEAR)
            advice = f"did you mean {near[0]!r}? " if near else ""
            raise UnknownKeyError(key=one.key, origin=_place(one.layer), advice=advice)
        if one.key not in RUNTIME_KEYS:
            raise one.bad(f"on a running job only {', '.join(RUNTIME_KEYS)} can be changed")
    fresh = _settings(given)
    made = settings.model_copy(update={_FIELDS[key]: getattr(fresh, _FIELDS[key]) for key in texts})
    for one in given:
        held = one.key == _INTERVAL and made.sink_commit is SinkCommit.CHECKPOINT
        if held and _never_by_itself(made):
            raise one.bad(f"sink.commit is checkpoint, and {_NEVER_SHOWN}")
    return made


def text(settings: Settings, key: str) -> str:
    """A setting's value as one would write it."""
    name = _FIELDS[key]
    return _plain(settings.model_dump(mode="json", include={name})[name])


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class SettingDescription:
    """One line of 'weir config'."""

    key: str
    type: str
    default: str
    meaning: str
    older: tuple[str, ...]


def describe() -> list[SettingDescription]:
    """Every setting with its type in words, default, meaning and older spellings, in a fixed order."""
    return [_described(key, name) for key, name in _FIELDS.items()]


def _described(key: str, name: str) -> SettingDescription:
    info = Settings.model_fields[name]
    words = next((note.text for note in info.metadata if isinstance(note, TypeName)), None)
    older = tuple(old for old, spelling in OLDER_SPELLINGS.items() if spelling.key == key)
    kind: Any = info.annotation
    return SettingDescription(
        key=key,
        type=words or ", ".join(member.value for member in kind),
        default=text(Settings(), key),
        meaning=str(info.description),
        older=older,
    )


def choices(key: str) -> tuple[str, ...]:
    """The values that a setting can have, of one that is true or false or one of some words; else nothing."""
    kind: Any = Settings.model_fields[_FIELDS[key]].annotation
    if kind is bool:
        return ("true", "false")
    is_enum = isinstance(kind, type) and issubclass(kind, Enum)
    return tuple(str(member.value) for member in kind) if is_enum else ()


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
    variables = {
        name: value
        for name, value in environ.items()
        if name.startswith(_PREFIX) and name not in OWN_VARIABLES
    }
    for layer, pairs in (
        (Layer.FILE, _from_file(file) if file else ()),
        (Layer.JOB, _flat(job_options)),
        (Layer.ENVIRONMENT, variables.items()),
        (Layer.COMMAND_LINE, overrides.items()),
    ):
        merged.update(_layer(layer, pairs))
    settings = _settings([given for given in merged.values() if given.key in _FIELDS])
    _check_order(settings, merged, "heartbeat.interval", "heartbeat.timeout", strictly=True)
    backoff = "restart-strategy.exponential-delay."
    _check_order(settings, merged, backoff + "initial-backoff", backoff + "max-backoff", strictly=False)
    _check_checkpointing(settings, merged)
    if settings.rest_token_file in (None, "off") and not is_loopback(settings.rest_address):
        raise merged["rest.address"].bad(
            "everyone who can reach it could control the job: set rest.token-file"
        )
    return Config(
        settings=settings,
        spark={key: str(given.value) for key, given in merged.items() if key not in _FIELDS},
        origins=dict.fromkeys(_FIELDS, Layer.DEFAULT) | {key: given.layer for key, given in merged.items()},
    )


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


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
    if layer is Layer.ENVIRONMENT and spelled in _SHORT_NAMES:
        return _SHORT_NAMES[spelled]
    body = spelled.removeprefix(_PREFIX) if layer is Layer.ENVIRONMENT else spelled
    if body in _SPELLINGS:
        return body
    if layer in (Layer.JOB, Layer.ENVIRONMENT) and _underscored(body) in _BY_UNDERSCORES:
        return _BY_UNDERSCORES[_underscored(body)]
    raise UnknownKeyError(key=spelled, origin=_place(layer), advice=_nearest(layer, spelled))


def _nearest(layer: Layer, spelled: str) -> str:
    """Advice that names the key that looks like it, written in the way of that layer; "" when none does."""

    def written(key: str) -> str:
        if layer is Layer.ENVIRONMENT:
            return _PREFIX + _underscored(key).upper()
        return _underscored(key) if layer is Layer.JOB and "." not in spelled else key

    # without the prefix, which makes every variable look like every other
    candidates = {written(key).removeprefix(_PREFIX): key for key in _SPELLINGS}
    near = difflib.get_close_matches(spelled.removeprefix(_PREFIX), candidates, n=1, cutoff=_NEAR)
    if not near:
        return ""
    key = candidates[near[0]]
    return f"did you mean {written(OLDER_SPELLINGS[key].key if key in OLDER_SPELLINGS else key)!r}? "


def _place(layer: Layer) -> str:
    bare = (Layer.ENVIRONMENT, Layer.COMMAND_LINE, Layer.REQUEST)
    return f"the {layer.value}" if layer in bare else layer.value


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
    least, most = (getattr(settings, _FIELDS[key]) for key in (low, high))
    if least < most or (least == most and not strictly):
        return
    culprit = _stronger(merged, low, high)
    relation, other = ("below", high) if culprit.key == low else ("above", low)
    raise culprit.bad(f"it should be {relation} {other}, which is {text(settings, other)}")


def _check_checkpointing(settings: Settings, merged: Mapping[str, _Given]) -> None:
    """Refuse what contradicts itself."""
    at_least_once = settings.execution_checkpointing_mode is CheckpointingMode.AT_LEAST_ONCE
    unaligned = settings.execution_checkpointing_unaligned_enabled
    turns_unaligned = bool(settings.execution_checkpointing_aligned_checkpoint_timeout)
    in_memory = settings.execution_checkpointing_storage is CheckpointStorage.MEMORY
    held = settings.sink_commit is SinkCommit.CHECKPOINT
    never_waits = "at_least_once never waits at a barrier, so there is no alignment to avoid"
    agree = "outputs that become visible with a checkpoint agree only if it is aligned"
    own = "execution.checkpointing."
    for contradiction, key, other, reason in (
        (at_least_once and unaligned, own + "mode", own + "unaligned.enabled", never_waits),
        (at_least_once and turns_unaligned, own + "mode", own + "aligned-checkpoint-timeout", never_waits),
        (
            in_memory and settings.execution_checkpointing_copy_dir is not None,
            own + "storage",
            own + "copy-dir",
            "a checkpoint in memory has no files to copy",
        ),
        (held and at_least_once, "sink.commit", own + "mode", agree),
        (held and unaligned, "sink.commit", own + "unaligned.enabled", agree),
        (held and turns_unaligned, "sink.commit", own + "aligned-checkpoint-timeout", agree),
        (held and _never_by_itself(settings), "sink.commit", _INTERVAL, _NEVER_SHOWN),
    ):
        if contradiction:
            keys = [key, other]
            culprit = _stronger(merged, *keys)
            (contrary,) = [one for one in keys if one != culprit.key]
            raise culprit.bad(f"{contrary} is {text(settings, contrary)}, and {reason}")
    if settings.savepoint_schedule is not None and settings.execution_checkpointing_savepoint_dir is None:
        raise merged["savepoint.schedule"].bad("execution.checkpointing.savepoint-dir must be set")


def _never_by_itself(settings: Settings) -> bool:
    """Whether no checkpoint is taken unless somebody asks for one."""
    by_count = settings.execution_checkpointing_interval_records
    return settings.execution_checkpointing_interval is None and by_count is None


def _stronger(merged: Mapping[str, _Given], *keys: str) -> _Given:
    """Whichever of the two was given by the stronger layer is to blame."""
    layers = list(Layer)
    return max((merged[key] for key in keys if key in merged), key=lambda one: layers.index(one.layer))


def _flat(mapping: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _from_file(file: Path) -> list[tuple[str, object]]:
    """Read the values as they are written, so that `010`, `1:30` or `off` stay what they look like."""
    import yaml  # noqa: PLC0415  only where there is a file to read

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
    except OSError as error:
        reason = error.strerror or str(error)
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        reason = f"it is not YAML: {error}"
    raise SettingsFileError(file=file, reason=reason)


def _nodes(loader: yaml.SafeLoader, mapping: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, object]]:
    import yaml  # noqa: PLC0415

    loader.flatten_mapping(mapping)
    for key_node, node in mapping.value:
        key = f"{prefix}{loader.construct_object(key_node)}"
        if isinstance(node, yaml.MappingNode):
            yield from _nodes(loader, node, f"{key}.")
        elif isinstance(node, yaml.ScalarNode) and not node.tag.endswith(":null"):
            yield key, node.value
        else:
            yield key, loader.construct_object(node, deep=True)
