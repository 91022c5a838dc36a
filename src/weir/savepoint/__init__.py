"""Savepoints: a complete, self-contained copy of a cut, which belongs to the user.

`manifest.py` says what a savepoint consists of; `take.py` makes one, `write.py` and `object_store.py`
write and delete one, `place.py` reads one wherever it is, `verify.py` compares all its files with the
manifest, `catalogue.py` finds them. `verdicts.py` says what becomes of its state in a changed job,
with `source_verdicts.py` and `operator_verdicts.py`.
"""
