"""The images and labels that an input pipeline gives the model in a step."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from inputs.pipeline import InputPipeline


def step(session: Any, pipeline: InputPipeline, towers: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Runs a step, and returns the images and labels of each tower in `towers`."""
    batches = [pipeline.tower_batch(tower) for tower in towers]
    fetched = session.run([*pipeline.per_step_ops, *((batch.images, batch.labels) for batch in batches)])
    return fetched[len(pipeline.per_step_ops) :]
