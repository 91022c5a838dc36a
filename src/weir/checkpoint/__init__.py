"""Checkpoints of the job (docs/design.md, section 5): what they are made of, and who makes them.

The path of a checkpoint: `coordinator.py` feeds facts to the reducer (`protocol/coordination.py`) and
`actions.py` carries out what it asks for: `trigger.py` sends the barriers and finds each query's cut,
`snapshots.py` and `pins.py` keep its files, `complete.py` makes the manifest, `retention.py` deletes what is
subsumed. Every decision on that path is pure; here is the I/O around it.
"""
