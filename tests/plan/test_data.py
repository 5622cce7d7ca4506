"""Workers train together only on the same images; epochs count the images in --data_dir."""

import json
import os
import shutil
from pathlib import Path
from unittest import mock

import pytest

from tests.support.images import encoded, example, picture, write_shard
from tests.support.outputs import check_line, failed
from tests.support.runs import plan_of
from tf_cnn.cluster.rendezvous import find_difference
from tf_cnn.inputs.data_folder import open_folder
from tf_cnn.inputs.data_sets import Shards
from tf_cnn.plan.plan import Plan
from tf_cnn.run.shard_faults import check_record_lengths

pytestmark = pytest.mark.unit


def plan_of_two_epochs(folder: Path) -> Plan:
    flags = '--model=trivial --data_name=imagenet --batch_size=4 --num_epochs=2'
    return plan_of(flags, data_dir=folder)


@pytest.fixture
def folder(noise: Path, tmp_path: Path) -> Path:
    """Returns a folder with shards of 16 training images and 23 validation images."""
    return Path(shutil.copytree(noise, tmp_path / 'noise'))


def write_info(folder: Path, **values: int | None) -> None:
    info = {'images': 16, 'shards': 1, 'height': 40, 'width': 36} | values
    (folder / 'dataset.json').write_text(json.dumps({'train': info}))


def test_an_epoch_of_imagenet_is_the_images_in_the_shards(noise):
    plan = plan_of_two_epochs(noise)
    assert (plan.params.run.num_timed, plan.num_epochs) == (8, 2)
    assert plan.data.data_set.num_validation_examples == 50_000
    flags = '--model=trivial --batch_size=4 --num_batches=8'
    for subset_flags in ('--eval --train_dir=t --eval_interval_secs=1', '--forward_only'):
        plan = plan_of(f'{flags} {subset_flags}', data_dir=noise)
        assert plan.data.data_set.num_validation_examples == 23
    # Evaluations during training are scheduled by epochs, and the rate of resnet50, too.
    flags = '--model=resnet50 --batch_size=4 --eval_during_training_every_n_epochs=1.5'
    plan = plan_of(flags, data_dir=noise)
    assert plan.evaluations
    assert plan.evaluations.every == 6
    assert plan.learning_rate.warmup_steps == 20


def test_dataset_json_saves_the_count_unless_it_is_of_other_shards_or_another_program(folder):
    write_info(folder)
    shards = plan_of_two_epochs(folder).data.shards
    assert shards
    assert (shards.scan, shards.num_stated_images) == (None, 16)
    write_info(folder, images=20)
    wrong = plan_of_two_epochs(folder)
    assert wrong.params.run.num_timed == 10
    # Before the first step.
    with failed(folder / 'dataset.json', 20, 16):
        check_record_lengths(wrong.data.shards, pytest.fail)
    write_info(folder, images=20, shards=2)
    assert plan_of_two_epochs(folder).params.run.num_timed == 8
    (folder / 'dataset.json').write_text('{"of": "another program"}')
    assert plan_of_two_epochs(folder).params.run.num_timed == 8


def test_a_count_that_takes_too_long_leaves_the_published_number_and_a_warning(noise):
    with mock.patch('tf_cnn.inputs.data_folder.RUN_SCAN_SECS', -1):
        plan = plan_of_two_epochs(noise)
    assert plan.data.data_set.num_train_examples == 1_281_167
    [line] = [line for line in plan.warnings if 'counted' in line]
    check_line(line, f'--data_dir={noise}', '30 s', '1,281,167', 'imagenet')
    assert plan.data.shards
    warnings: list[str] = []
    check_record_lengths(plan.data.shards, warnings.append)
    assert len(warnings) == 1


def test_the_check_before_the_first_step_scans_only_shards_that_changed_after_the_count(folder):
    shards = open_folder(str(folder), 'imagenet').open('train')
    assert isinstance(shards, Shards)
    [path] = shards.paths
    before = os.stat(path)
    Path(path).write_bytes(b'\1' * before.st_size)
    with failed(path):
        check_record_lengths(shards, pytest.fail)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    check_record_lengths(shards, pytest.fail)


def test_a_worker_with_a_damaged_shard_joins_and_names_it(folder):
    [shard] = folder.glob('train-*')
    shard.write_bytes(shard.read_bytes()[:-1])
    plan = plan_of_two_epochs(folder)
    assert 'training images' not in plan.shared_data
    with failed(shard, 'cut short'):
        check_record_lengths(plan.data.shards, pytest.fail)


# ---- the same images -----------------------------------------------------------------------------


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


def test_all_class_names_are_compared(noise, tmp_path):
    def folder_of(name: str, classes: list[str]) -> Path:
        folder = shutil.copytree(noise, tmp_path / name)
        (folder / 'labels.txt').write_text('\n'.join(['background', *classes]))
        return folder

    pets, others = 'abcdefg', 'bacdefg'
    line = difference(folder_of('pets', [*pets]), folder_of('others', [*others]))
    for classes in (pets, others):
        check_line(line, f'--data_dir with background, {", ".join(classes)}')
    first, second = (
        folder_of(f'of {last}', [f'class-{number:03d}' for number in (*range(29), last)])
        for last in (29, 30)
    )
    check_line(difference(first, second), 'as class names')
