"""Word count from a socket to the console: the "hello, world" of streaming.

    nc -lk 9999                        # in one terminal: type words here
    weir run examples/wordcount.py     # in another; or: python examples/wordcount.py

This is for looking, not for keeping. Spark's socket source can't be replayed and keeps no position:
after a restart it counts its lines from 0 again, while the checkpoint remembers the old number. Lines
are lost then, and the query fails with "Offsets committed out of order" until the numbers fit again;
`rm -r weir-data/wordcount` starts afresh. The console is at least once: a batch that runs again is
shown again. A word count that is killed and loses nothing is `wordcount_files.py`.
"""

from pyspark.sql import functions as F

import weir

job = weir.Job("wordcount")


@job.pipeline
def wordcount(env: weir.Env) -> None:
    socket = env.spark.readStream.format("socket").option("host", "localhost").option("port", 9999)
    lines = env.source("lines", socket.load())
    words = lines.select(F.explode(F.split("value", r"\s+")).alias("word")).where("word != ''")
    env.sink("counts", words.groupBy("word").count(), weir.sinks.console(), output_mode="update")


if __name__ == "__main__":
    job.run()
