"""What a test needs that this machine does not have."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skip the test with a reason that is printed; with TESTS_WITHOUT_SKIPS (.ci/run) it fails instead."""
    if os.environ.get("TESTS_WITHOUT_SKIPS"):
        pytest.fail(f"TESTS_WITHOUT_SKIPS is set, and {reason}", pytrace=False)
    pytest.skip(reason)
