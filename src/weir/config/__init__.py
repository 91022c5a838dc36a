"""The settings: what there is, and which layer gave each value.

values.py     the kinds of values: how each is read, written and named
settings.py   every key with its type, default and one-line meaning
layers.py     defaults, weir.yaml, the job file, the environment, the command line: merged and checked
"""

from weir.config.layers import (
    OWN_VARIABLES,
    Config,
    Layer,
    SettingDescription,
    changed,
    choices,
    describe,
    is_loopback,
    resolve,
    text,
)
from weir.config.settings import (
    OLDER_SPELLINGS,
    RUNTIME_KEYS,
    CheckpointingMode,
    CheckpointStorage,
    DirAccess,
    RestartStrategyType,
    Retention,
    Settings,
    SinkCommit,
    StateBackend,
)
from weir.config.values import Keep, Ports, format_duration, parse_duration

__all__ = [
    "OLDER_SPELLINGS",
    "OWN_VARIABLES",
    "RUNTIME_KEYS",
    "CheckpointStorage",
    "CheckpointingMode",
    "Config",
    "DirAccess",
    "Keep",
    "Layer",
    "Ports",
    "RestartStrategyType",
    "Retention",
    "SettingDescription",
    "Settings",
    "SinkCommit",
    "StateBackend",
    "changed",
    "choices",
    "describe",
    "format_duration",
    "is_loopback",
    "parse_duration",
    "resolve",
    "text",
]
