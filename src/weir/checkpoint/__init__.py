"""Checkpoints of the whole job (docs/design.md, section 5): what they are made of, and who makes them.

The path of a checkpoint: `coordinator.py` triggers it, sends the barriers and finds each query's
cut -> `pins.py` keeps the files of the cuts -> `manifest.py` says what it consists of, written once
-> `restore.py` opens a new generation from it. Every decision on that path is a pure function in
`protocol/checkpoint.py`; here is the I/O around it.
"""
