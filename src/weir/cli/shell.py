"""What a shell is answered that asks for completions: those, or nothing, and never a message."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import NoReturn

ASKED = "_WEIR_COMPLETE"
"""The variable in which a shell's script names itself and what it wants."""
_BREAKS = "=:"
"""Where bash breaks words: `key=value` comes as three of them, and so does `s3://bucket`."""


def answer(app: Callable[..., object]) -> NoReturn:
    """Answer a shell: whatever goes wrong, it gets completions or nothing, never a message."""
    printed, prefix, code = io.StringIO(), "", 1
    try:
        prefix = _join_words() if os.environ[ASKED].endswith("_bash") else ""
        with redirect_stdout(printed), redirect_stderr(io.StringIO()):
            app([], prog_name="weir", standalone_mode=False)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except Exception:
        printed = io.StringIO()
    for line in printed.getvalue().splitlines():
        sys.stdout.write(f"{line.removeprefix(prefix)}\n")
    sys.exit(code)


def _join_words() -> str:
    """Put together the words that bash has broken; what comes before the last break of the present one.

    bash replaces only what comes after that break.
    """
    words, at = os.environ.get("COMP_WORDS", ""), int(os.environ.get("COMP_CWORD") or 0)
    broken = (words.split("\n") if "\n" in words else words.split(" "))[: at + 1]
    joined: list[str] = []
    after_break = False
    for word in broken:
        is_break = bool(word) and not word.strip(_BREAKS)
        if joined and word and (is_break or after_break):
            joined[-1] += word
        else:
            joined.append(word)
        after_break = is_break
    if len(broken) <= at:  # a new word is begun
        joined.append("")
    os.environ |= {"COMP_WORDS": "\n".join(joined), "COMP_CWORD": str(len(joined) - 1)}
    present = joined[-1]
    return present[: max(present.rfind(sign) for sign in _BREAKS) + 1]
