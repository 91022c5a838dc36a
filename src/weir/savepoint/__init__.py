"""Savepoints: a whole, self-contained copy of a cut, which belongs to the user.

Taking and knowing: `operators.py` reads what state a query keeps, `manifest.py` says what a savepoint
consists of, `take.py` makes one, `writing.py` and `in_store.py` write and delete one, `place.py` reads one
wherever it is, `verify.py` looks whether it is whole, `catalogue.py` finds them.
"""
