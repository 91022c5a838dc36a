"""A model that learns from a stream: its weights are user state, so no batch is learnt from twice.

    weir run examples/online_model.py POINTS MODEL
    python examples/online_model.py POINTS MODEL

POINTS is a folder of CSV files with lines `x1,x2,y`; MODEL is the JSON file that gets the weights of
y = b + w1 x1 + w2 x2. A batch is one file: Spark computes gradients over its points, the driver moves
the weights. The job ends when it has learnt from every file; start it again when there are more.

The weights are written with each batch and count if it does. So kill the driver as you like: the
batch that was half done begins again with the weights that the batch before it left.
"""

import json
import os
import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import weir

points, model = sys.argv[1:] if len(sys.argv) == 3 else ("points", "model.json")
job = weir.Job("online-model")

STEPS, RATE = 10, 0.5
"""Of gradient descent in one batch; good for values between -1 and 1."""


def moved(weights: dict[str, float], frame: DataFrame) -> dict[str, float]:
    """The weights after one step of gradient descent over the points of a frame."""
    error = weights["b"] + weights["w1"] * F.col("x1") + weights["w2"] * F.col("x2") - F.col("y")
    slopes = {"b": F.avg(error), "w1": F.avg(error * F.col("x1")), "w2": F.avg(error * F.col("x2"))}
    row = frame.agg(*(slope.alias(name) for name, slope in slopes.items())).collect()[0]
    return {name: weight - RATE * (row[name] or 0.0) for name, weight in weights.items()}


@job.pipeline
def online_model(env: weir.Env) -> None:
    lines = env.spark.readStream.schema("x1 double, x2 double, y double").option("maxFilesPerTrigger", 1)
    weights = env.state("weights", "train", initial={"b": 0.0, "w1": 0.0, "w2": 0.0})

    def train(frame: DataFrame, batch: int) -> None:
        frame.persist()  # each step evaluates it
        for _ in range(STEPS):
            weights.value = moved(weights.value, frame)
        frame.unpersist()
        with open(f"{model}.new", "w") as file:
            json.dump(weights.value, file)
        os.replace(f"{model}.new", model)  # a batch that runs again overwrites it
        b, w1, w2 = weights.value.values()
        print(f"batch {batch}: y = {b:.3f} + {w1:.3f} x1 + {w2:.3f} x2", flush=True)

    env.sink(
        "train",
        env.source("points", lines.csv(points)),
        weir.sinks.function(train),
        trigger={"availableNow": True},
    )


if __name__ == "__main__":
    job.run()
