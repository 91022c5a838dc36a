"""What a test needs that this machine does not have."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skip the test with a reason that is printed; with WEIR_NO_SKIPS, as in .ci/run, it fails instead."""
    if os.environ.get("WEIR_NO_SKIPS"):
        pytest.fail(f"WEIR_NO_SKIPS is set, and {reason}", pytrace=False)
    pytest.skip(reason)
