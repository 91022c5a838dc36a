"""A batch job of several stages that resumes at the stage at which it was killed.

    weir run examples/resumable_batch.py STAGES
    python examples/resumable_batch.py STAGES

STAGES is a folder of SQL scripts, one stage each, which are run in the order of their names:

    1-clean.sql   INSERT OVERWRITE DIRECTORY 'clean' USING parquet SELECT ... FROM csv.`orders`
    2-sum.sql     INSERT OVERWRITE DIRECTORY 'sums' USING parquet SELECT ... FROM parquet.`clean`

Each batch runs one stage, and the user state records which are done. A stage that was half done when the
driver died is run again, those before it are not: so a stage must overwrite what it makes. The job
ends after the last stage; add more scripts and start it again, and it runs only those.
"""

import sys
from pathlib import Path

from pyspark.sql import DataFrame

import weir

stages = Path(sys.argv[1] if len(sys.argv) == 2 else "stages")
job = weir.Job("resumable-batch")


@job.pipeline
def resumable_batch(env: weir.Env) -> None:
    one_by_one = env.spark.readStream.option("maxFilesPerTrigger", 1).option("pathGlobFilter", "*.sql")
    done = env.state("done", "stages", initial=[])

    def run_next(frame: DataFrame, batch: int) -> None:
        """Each script that Spark finds gives one batch; which stage that batch runs, the state tells."""
        left = sorted(script.name for script in stages.glob("*.sql") if script.name not in done.value)
        for stage in left[:1]:
            print(f"batch {batch} runs {stage}", flush=True)
            env.spark.sql((stages / stage).read_text())
            done.value.append(stage)

    scripts = env.source("scripts", one_by_one.text(str(stages), wholetext=True))
    env.sink("stages", scripts, weir.sinks.function(run_next), trigger={"availableNow": True})


if __name__ == "__main__":
    job.run()
