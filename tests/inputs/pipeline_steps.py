"""Steps of an input pipeline without a model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_cnn.inputs.pipeline import InputPipeline


def step(
    session: Any, pipeline: InputPipeline, towers: Sequence[int]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Runs a step, and returns the images and labels of each tower in `towers`."""
    batches = [pipeline.tower_batch(tower) for tower in towers]
    fetched = [[(batch.images, batch.labels) for batch in batches], pipeline.per_step_ops]
    return session.run(
        fetched, dict(zip(pipeline.feed_placeholders, pipeline.next_feed_values(), strict=True))
    )[0]
