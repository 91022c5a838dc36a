"""From the request of a restore to live files: a module a step, in the order of `walk.py`.

request -> point -> plan -> intent -> fetch -> convert -> go live; damage and repair stand in for a request.
"""
