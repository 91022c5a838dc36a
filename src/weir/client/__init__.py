"""What can be asked of a job: each verb once, for the command line and REST alike.

A verb is a function: plain typed arguments in, a typed result out, and a `WeirError` when it could not
be done. `form()` of a result is what `--json` and REST show of it. Nothing here prints.

    running_job.py what a running job does: checkpoint, savepoint, stop, cancel, configure, plan
    restore.py     rewind a job, running or not; withdraw that
    upkeep.py      the files of a job: repair the damaged ones, delete what nothing needs
    savepoints.py  copy, convert and delete a savepoint
    verify.py      is every file of a job or a savepoint as it was written?
    spark.py       what needs Spark, done by a process of its own
    ask.py idle.py how a request reaches a running job; how nobody runs it while something is written
"""
