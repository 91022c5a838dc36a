"""A job that prints megabytes whenever its pipeline is built, and its rows on the console.

Arguments: the input folder, the output folder, and how many megabytes.
"""

import sys

import weir

job = weir.Job("noisy")


@job.pipeline
def noisy(env: weir.Env) -> None:
    folder, output, megabytes = sys.argv[1:]
    for stream in (sys.stdout, sys.stderr):
        for _ in range(int(megabytes) * 1024):
            stream.write("noise " * 170 + "\n")
    rows = env.source("rows", env.spark.readStream.schema("k string, v long").json(folder))
    env.sink("rows", rows, weir.sinks.files(output), trigger={"availableNow": True})
    env.sink("shown", rows, weir.sinks.console(), trigger={"availableNow": True})


if __name__ == "__main__":
    job.run()
