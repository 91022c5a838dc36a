"""Where control files are kept: one narrow interface, one backend per file."""

from weir.storage.folded_log import BoundedLog
from weir.storage.log import DenseLog
from weir.storage.open import open_store
from weir.storage.store import Created, Store

__all__ = ["BoundedLog", "Created", "DenseLog", "Store", "open_store"]
