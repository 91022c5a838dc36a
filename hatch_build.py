"""Compiles weir's Java classes when a wheel is built, so that who installs it compiles nothing.

Needs Java and pyspark's jars at that moment (`pyproject.toml` names pyspark for this hook). Without them the
wheel is built all the same, with a warning, and the first session compiles the classes into the user's cache
(`src/weir/spark/local_files.py`). An editable install has no use for it: `scripts/setup` makes the jar there.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

JVM = Path("src", "weir", "spark", "jvm")
PLACE = "weir/spark/jvm"


class JarHook(BuildHookInterface):
    """Puts the jar of all classes into the wheel, under the name that belongs to their sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        self._folder = Path(tempfile.mkdtemp(prefix="weir-jar-"))
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home, "bin", "java")) if home else "java"
        janino = _load(root / "src" / "weir" / "spark" / "janino.py")
        sources = sorted((root / JVM).glob("*.java"))
        name = f"{PLACE}/{janino.jar_name(sources)}"
        try:
            jar = janino.compile_jar(sources, self._folder / "made.jar", java=java)
        except janino.CompileError as error:
            _warn(name, str(error))
        else:
            build_data["force_include"][str(jar)] = name

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self._folder, ignore_errors=True)


def _load(file: Path) -> ModuleType:
    spec = spec_from_file_location(f"_weir_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _warn(name: str, why: str) -> None:
    """pip shows this with -v only; `weir doctor` reports a missing jar on the machine that lacks it."""
    line = "!" * 80
    print(
        f"{line}\nWARNING: this wheel has no {name}: {why}\n"
        f"The first session compiles it instead, which needs a cache directory that can be written.\n{line}",
        file=sys.stderr,
        flush=True,
    )
