"""A training that continues from a checkpoint drops other units than its first steps did."""

from pathlib import Path
from typing import Any

import pytest

from benchmark_cnn import BenchmarkCNN
from models.registry import register_model
from params import make_params

pytestmark = [pytest.mark.graph, pytest.mark.usefixtures('forget_models')]


def dropping(cnn: Any, images: Any, num_classes: int) -> Any:
    return cnn.dense(cnn.dropout(cnn.flatten(images), 0.5), num_classes, 'logits')


def test_the_losses_after_a_resume_are_not_those_of_the_first_steps(tmp_path: Path) -> None:
    register_model('dropping', dropping, data_set='cifar10', image_size=8, batch_size=4)

    def losses(folder: str) -> list[float]:
        """With a rate of 0, dropout alone makes the losses of the steps differ."""
        settings: dict[str, Any] = {'model': 'dropping', 'device': 'cpu', 'num_batches': 3, 'num_warmup_batches': 0}
        params = make_params(**settings, train_dir=str(tmp_path / folder), init_learning_rate=0.0)
        return [step.values.loss for step in BenchmarkCNN(params).run().steps]

    first, second, third = (losses('one') for _ in range(3))
    assert len({*first, *second, *third}) == 9
    # The same training again, with the same interruption.
    assert [losses('other') for _ in range(2)] == [first, second]
