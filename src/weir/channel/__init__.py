"""The durable log between two queries of a job: an edge of its graph (docs/design.md, section 6).

The path of data: `writer.py` stages and enters segments -> `log.py` says what entries mean ->
`position.py` decides how far a reader may go -> `reader.py` says so to Spark, and which files it
reads -> `stream.py` makes it a frame, with its event time (`event_time.py`). Why it is made like
this, and how fast it is: `docs/explanation/channels.md`.
"""
