"""What is asked of a restore: one record, made once where it is asked, and read by every step after it.

A message and a request in the storage carry it in one form (`to_wire`). The origin of a generation has it
in fields of its own: that is the durable intention, which a later start reads back (`of`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weir.storage.generation import Origin

LATEST = "latest"
_COPIED = re.compile(r"(?P<root>.+)/(?P<job>[^/]+)/checkpoints/(?P<name>chk-\d+\.json)")


@dataclass(frozen=True)
class RestoreRequest:
    """A point to resume from, and what is to change on the way; by default nothing."""

    point: str
    """"latest", "chk-41", "41", the place of a savepoint, or that of a manifest in a copy-dir."""
    accept_duplicates: bool = False
    """Output that can't be rewound may be delivered again."""
    maps: tuple[str, ...] = ()
    """Which old operator or source becomes which."""
    allow_dropped: bool = False
    """State that nothing takes may be lost."""
    parallelism: int | None = None
    """None: as the point has it."""
    backend: str | None = None
    """None: as the point has it."""
    offsets: Mapping[str, str] = field(default_factory=dict)
    """Sources that resume elsewhere than at the point, and where."""
    claim: bool = False
    """The savepoint is weir's from now on."""
    forked_from: str = ""
    """The job that the point is of, where that is another one than the job that resumes."""

    def to_wire(self) -> dict[str, Any]:
        """As a message or a request in the storage carries it."""
        changes = asdict(self)
        head = {key: changes.pop(key) for key in ("point", "accept_duplicates")}
        return {**head, "changes": changes}

    @classmethod
    def from_wire(cls, body: Mapping[str, Any]) -> RestoreRequest:
        """The request in a message, whichever weir sent it; what is not there is as by default."""
        changes = dict(body.get("changes", {}))
        changes["maps"] = tuple(changes.get("maps", ()))
        return cls(body["point"], body.get("accept_duplicates", False), **changes)

    @classmethod
    def of(cls, origin: Origin) -> RestoreRequest:
        """The request that a generation was opened for."""
        return cls(
            origin.restored_from,
            origin.options.accept_duplicates,
            origin.options.maps,
            origin.options.allow_dropped,
            origin.parallelism,
            origin.backend,
            origin.options.offsets,
            origin.options.claim,
            origin.forked_from,
        )

    @property
    def settings(self) -> dict[str, str]:
        """The settings that a driver must have, for state of the shape that was asked for."""
        given = {"parallelism.default": self.parallelism, "state.backend.type": self.backend}
        return {key: str(value) for key, value in given.items() if value is not None}

    def shaped(self, parallelism: int | None, backend: str) -> RestoreRequest:
        """The same, with the shape of state that the settings of the job ask for."""
        return replace(self, parallelism=parallelism, backend=backend)


def is_place(point: str) -> bool:
    """Whether it is the place of a savepoint, and not the name of a checkpoint."""
    return "/" in point and in_copy_dir(point) is None


def in_copy_dir(point: str) -> re.Match[str] | None:
    """The `root`, the `job` and the `name` of a manifest in a copy-dir; None for any other point."""
    return _COPIED.fullmatch(point)


def may_be_claimed(point: str) -> bool:
    """Whether it is a savepoint, or may turn out to be one: a checkpoint is the job's own already."""
    return point == LATEST or is_place(point)
