"""Workers train together only on the same images: the same data set, counts, classes and shards."""

import shutil
from pathlib import Path

import pytest

from tests.support.images import encoded, example, picture, write_shard
from tests.support.outputs import check_line
from tests.support.runs import plan_of
from tf_cnn.cluster.rendezvous import find_difference

pytestmark = pytest.mark.unit


def difference(first: Path | None, second: Path | None) -> str | None:
    plans = [plan_of(data_dir=data) for data in (first, second)]
    return find_difference(
        {f'worker {number}': plan.shared_data for number, plan in enumerate(plans)}
    )


def test_images_and_synthetic_images_do_not_mix(noise):
    for folders in ((noise, None), (None, noise)):
        line = check_line(difference(*folders), 'worker 0', 'worker 1', 'no --data_dir')
        assert '--data_dir with imagenet as data set' in line
    assert difference(None, None) is None


def test_copies_of_the_same_shards_are_the_same_data_and_others_are_not(noise, tmp_path):
    copy = shutil.copytree(noise, tmp_path / 'copy')
    assert difference(noise, copy) is None
    shard = next(copy.glob('train-*'))
    shard.write_bytes(shard.read_bytes() * 2)
    check_line(difference(noise, copy), '16 training images', '32', 'worker 0', 'worker 1')
    write_shard(shard, [example(encoded(picture()), 1)] * 16)
    check_line(difference(noise, copy), 'SHA-256 of names and sizes', 'worker 0', 'worker 1')
