"""Word count from a socket to the console: the "hello, world" of streaming.

    nc -lk 9999                        # in one terminal: type words here
    weir run examples/wordcount.py     # in another; or: python examples/wordcount.py

Another server than localhost:9999 is given after the file: `examples/wordcount.py HOST PORT`.

weir's socket journals each line before Spark sees it. So kill it as you like, the driver or, with
kill -9, the supervisor: after `weir run` again the counts resume where they were. What the server
sends while no one is connected can't be read again. The console is at least once: a batch that
runs again is shown again. A word count whose output is kept is `wordcount_files.py`.
"""

import sys

from pyspark.sql import functions as F

import weir

job = weir.Job("wordcount")


@job.pipeline
def wordcount(env: weir.Env) -> None:
    host, port = sys.argv[1:] or ("localhost", "9999")
    lines = env.source("lines", weir.sources.socket(host, int(port)))
    words = lines.select(F.explode(F.split("value", r"\s+")).alias("word")).where("word != ''")
    env.sink("counts", words.groupBy("word").count(), weir.sinks.console(), output_mode="update")


if __name__ == "__main__":
    job.run()
