"""Which weir, Spark and Python serve; nothing is imported or started to know it."""

from __future__ import annotations

import platform
import sys
from functools import cache
from importlib import metadata


@cache
def versions() -> dict[str, str]:
    """The versions of weir, Spark and Python as they are installed here; "unknown" where one is not."""
    try:
        spark = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        spark = "unknown"
    return {"weir": sys.modules["weir"].__version__, "spark": spark, "python": platform.python_version()}
