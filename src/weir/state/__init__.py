"""State as a table: read it, compare it, export it, edit it. Offline, with any Spark session.

    frame = weir.state.read(spark, "savepoints/orders-7", "totals")
    weir.state.diff(frame, weir.state.read(spark, "weir-data/orders", "totals")).show()
    weir.state.edit(spark, "savepoints/orders-7", "edited", "totals", delete="key.k = 'test'")

Nothing that is read is ever changed; an edit makes a new savepoint.
"""

from weir.state.edit import edit
from weir.state.read import diff, export, read

__all__ = ["diff", "edit", "export", "read"]
