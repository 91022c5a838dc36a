"""Word count over text files, exactly once: `make demo` kills this one.

    weir run examples/wordcount_files.py TEXT COUNTS
    python examples/wordcount_files.py TEXT COUNTS

TEXT is a folder of text files, COUNTS the folder for the result. Every batch writes the words whose
count it changed; the newest row of a word is its count. The job ends when every file was read; start
it again when there are more, and it resumes where it was.
"""

import sys

from pyspark.sql import functions as F

import weir

text, counts = sys.argv[1:] if len(sys.argv) == 3 else ("text", "counts")
job = weir.Job("wordcount-files")


@job.pipeline
def wordcount(env: weir.Env) -> None:
    lines = env.source("lines", env.spark.readStream.option("maxFilesPerTrigger", 1).text(text))
    words = lines.select(F.explode(F.split("value", r"\s+")).alias("word")).where("word != ''")
    env.sink(
        "counts",
        words.groupBy("word").count(),
        weir.sinks.files(counts),
        output_mode="update",
        trigger={"availableNow": True},
    )


if __name__ == "__main__":
    job.run()
