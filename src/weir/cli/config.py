"""`weir config`: every setting, its value, where the value came from, and what it means."""

from __future__ import annotations

import os
from typing import Any

from rich.padding import Padding
from rich.text import Text

from weir.cli import say
from weir.cli.options import AsJson, Define, Directory, SettingsFile, overrides, settings_file
from weir.config import Config, Layer, SettingDescription, describe, resolve


def config(
    config: SettingsFile = None,
    define: Define = None,
    dir: Directory = None,
    json: AsJson = False,
) -> None:
    """Show every setting, its value, origin and meaning.

    Options that a job file passes to weir.Job(...) are not shown, because that needs running the file;
    they override weir.yaml, and the environment and -D override them.

    \b
    Example: weir config -D restart-strategy.type=fixed-delay
    """
    file = settings_file(config)
    found = resolve(file=file, environ=os.environ, overrides=overrides(define, dir=dir))
    if json:
        say.say_json(_as_json(found, str(file) if file else None))
        return
    for one in describe():
        _say(found, one)
    for key, value in found.spark.items():
        say.say(f"{key} = {value}  ({found.origins[key].value})\n    passed to Spark as it is")
    say.say(f"settings file: {file or 'none (no weir.yaml in this directory)'}; the job file may set more")


def _as_json(found: Config, file: str | None) -> dict[str, Any]:
    settings = [
        {
            "key": one.key,
            "value": found.text(one.key),
            "origin": found.origins[one.key].value,
            "default": one.default,
            "type": one.type,
            "meaning": one.meaning,
            "older": list(one.older),
        }
        for one in describe()
    ]
    spark = [{"key": k, "value": v, "origin": found.origins[k].value} for k, v in found.spark.items()]
    return {"file": file, "settings": settings, "spark": spark}


def _say(found: Config, one: SettingDescription) -> None:
    origin = found.origins[one.key]
    style = "dim" if origin is Layer.DEFAULT else "bold"
    say.out.print(f"{one.key} = {found.text(one.key)}", style=style, markup=False, soft_wrap=True, end="")
    say.out.print(f"  ({origin.value})", markup=False)
    say.out.print(Padding(Text(f"{one.meaning} ({one.type})"), (0, 0, 0, 4)))
