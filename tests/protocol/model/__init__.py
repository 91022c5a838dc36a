"""A job of several queries without Spark and without threads, for `test_checkpoint_machine.py`.

Modelled are Spark (offset and commit logs, planned batches that run again with their old ends,
batches without data, readers polled one after the other, purging) and the drivers with their leases.
Shipped code is the reducer of checkpoints with all seven steps, what it asks of queries (their cuts,
barriers and tracks), the records, the manifest, and the channels (log, writer, trimming, the files of a
cut, what a reader learns from files and where it goes). `hands.py` has stores in memory in place of the
snapshots' file system, and decides nothing. Each actor is
a generator that stops in front of every step that others can see: a crash, a zombie and any order of
steps are ordinary inputs.

Rows are numbered words. They go through real segments into the states of the last queries, so that
what was lost or doubled is seen in the end.
"""
