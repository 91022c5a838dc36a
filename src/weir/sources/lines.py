"""From bytes to groups of whole lines. No I/O, no clock."""

from __future__ import annotations

LONGEST = 16 << 20
"""A line of more bytes is cut there: a peer that never ends its line must not fill the memory."""


class Lines:
    """Collects what comes from one peer after the other.

    A line ends at `\\n`; one `\\r` in front of it is taken away. Bytes that are not UTF-8 become
    the replacement character. An empty line is a line.
    """

    def __init__(self) -> None:
        self._whole = bytearray()
        self._rest = bytearray()

    @property
    def size(self) -> int:
        """Bytes of the whole lines that wait."""
        return len(self._whole)

    @property
    def unfinished(self) -> int:
        """Bytes of the line that has not ended yet."""
        return len(self._rest)

    def add(self, data: bytes) -> None:
        end = data.rfind(b"\n") + 1
        if end:
            self._whole += self._rest
            self._whole += data[:end]
            self._rest = bytearray(data[end:])
        else:
            self._rest += data
        if len(self._rest) > LONGEST:
            self.end_line()

    def end_line(self) -> None:
        """What has come of the last line is all of it."""
        if self._rest:
            self.add(b"\n")

    def drop_unfinished(self) -> None:
        """What has come of the last line is not a line."""
        self._rest.clear()

    def take(self) -> str:
        """The whole lines, without the last line's end; they no longer wait here."""
        text = self._whole.decode("utf-8", errors="replace").replace("\r\n", "\n")
        self._whole.clear()
        return text[:-1]
