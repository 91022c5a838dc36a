"""What `mutations.py` changes for the worse is weir's own code, none of the tests'; see there."""

from __future__ import annotations

import pytest

from tests.protocol.mutations import MUTATIONS


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_changes_what_is_shipped(name: str) -> None:
    patches = list(MUTATIONS[name]())
    assert patches
    for where, what, mutated in patches:
        module = where.__module__ if isinstance(where, type) else getattr(where, "__name__", "")
        assert module.partition(".")[0] == "weir", f"{module}.{what} is not shipped"
        assert getattr(where, what) is not mutated, f"{module}.{what} stays as it is"
