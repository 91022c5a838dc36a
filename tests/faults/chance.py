"""Kills of a driver by chance: the same ones for every sink, drawn by a seed that a failure names."""

from __future__ import annotations

import random

SEEDS = range(200)
STARTS = ("start.fenced", "start.recovered")
BATCH = (
    "batch.planned",
    "batch.state",
    "batch.writing",
    "batch.written",
    "batch.staged",
    "batch.committed",
    "sink.committing",
    "sink.committed",
)


def drawn(seed: int, points: tuple[str, ...] = BATCH) -> list[str]:
    """One to three points of a batch, in one of its first three; and at times one of the start."""
    chance = random.Random(seed)
    faults = [f"{point}#{chance.randint(1, 3)}" for point in chance.sample(points, chance.randint(1, 3))]
    return faults + [f"{point}#1" for point in STARTS if chance.random() < 0.2]
