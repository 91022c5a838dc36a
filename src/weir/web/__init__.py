"""REST and pages over a storage: what its jobs do, have done, and can be asked for.

envelope.py    the one form of an answer and the one form of an error
guard.py       who may ask: token, host, same origin;  token.py  the token itself;  login.py  its page
site.py        what is served: the storage, the clock, the operations
rest_read.py   REST, what can be seen;  rest_write.py  what can be asked for
operations.py  what became of what was asked for
stream.py      events as they come;  metrics.py  figures for Prometheus
pages.py       the pages, from templates/ and static/;  svg.py  the graph and the timelines
app.py         all of it as one application;  server.py  the server, in a supervisor or alone

Everything is read from the journal and the storage and asked through the storage, so that a supervisor
and `weir dashboard` serve the same. Loaded only where it is served: no other part imports it at its top.
"""
