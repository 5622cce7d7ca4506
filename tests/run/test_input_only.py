"""Runs of the input pipeline alone: a table of its stages, its throughput, and its memory."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow.compat.v1 as tf

from preprocessing import ImageOptions
from tests.support.graphs import cpus, open_session
from tests.support.images import encoded, example, write_cifar, write_shard
from tests.support.outputs import check_warning, refused, warnings_in
from tests.support.programs import run_python
from tests.support.runs import document_in, run_benchmark
from tf_cnn.inputs.data_sets import find_shards
from tf_cnn.inputs.layout import shard_name
from tf_cnn.inputs.pipeline import InputConfig
from tf_cnn.inputs.pipeline_stages import PARSE, PREPROCESS, READ, STAGES, TRANSFER, max_total_bytes
from tf_cnn.inputs.record_pipeline import RecordPipeline
from tf_cnn.run.stage_times import StageTime, format_stage_table, stage_rows

pytestmark = [pytest.mark.graph, pytest.mark.long]


def run(
    data_dir: Path, tmp_path: Path, flags: str, **values: Any
) -> tuple[dict[str, Any], str, str]:
    """Returns the document, standard output and standard error."""
    path = tmp_path / 'r.json'
    flags = f'--num_batches=5 --display_every=2 {flags}'
    _, out, err = run_benchmark(flags, data_dir=data_dir, result_file=path, **values)
    return document_in(path), out, err


@pytest.mark.surroundings
def test_the_total_is_the_throughput_up_to_the_stage_and_a_table_follows(tmp_path, noise):
    document, out, err = run(noise, tmp_path, '--input_only=transfer --num_gpus=2 --optimizer=adam')
    stages = document['input']['stages']
    assert [row['stage'] for row in stages] == list(STAGES)
    assert document['throughput']['images'] == 5 * 4 * 2
    total = document['throughput']['images_per_second']
    assert stages[-1]['images_per_second'] == pytest.approx(total)
    seconds = sum(row['added_wall_seconds_per_image'] for row in stages)
    assert seconds == pytest.approx(1 / total)
    assert sum(row['share'] for row in stages) == pytest.approx(1)
    assert re.search(rf'^total images/sec: {total:.2f}\n(.*\n)*.*read', out, re.MULTILINE)
    assert out.splitlines()[-1].startswith('input memory: ')
    check_warning(err, '--optimizer=adam', '--input_only')
    # The run computes nothing, so no warning is about losses and FLOPs.
    assert len(warnings_in(err)) == 1
    assert document['compute']['flops_per_second'] is None
    assert document['run']['role'] == 'input-only'


@pytest.mark.parametrize(
    ('flags', 'stages'),
    [
        ('--input_only=parse --input_pipeline=tf_data', [READ, PARSE]),
        # Python feeds whole batches, so there is one stage.
        ('--input_only=transfer --input_pipeline=feed_dict --augmentation=none', [TRANSFER]),
    ],
)
def test_the_stages_of_records_end_with_the_flags_stage(flags, stages, tmp_path, noise):
    document, _, _ = run(noise, tmp_path, f'--model=trivial {flags}')
    assert [row['stage'] for row in document['input']['stages']] == stages


def test_the_output_names_stages_that_a_pipeline_lacks(tmp_path):
    cifar = tmp_path / 'cifar'
    write_cifar(cifar, np.zeros([20, 32, 32, 3], np.uint8), np.arange(20) % 10)
    document, _, err = run(cifar, tmp_path, '--model=trivial --input_only=decode')
    assert [row['stage'] for row in document['input']['stages']] == [READ]
    check_warning(err, '--input_only=decode', 'read')
    with refused('--input_only=read', '--input_only=transfer'):
        run(cifar, tmp_path, '--model=trivial --input_only=read --input_pipeline=feed_dict')
    flags = '--model=trivial --input_only=transfer --target_seconds=0.05'
    document, out, _ = run(cifar, tmp_path, flags, num_batches=None)
    assert [row['stage'] for row in document['input']['stages']] == [READ, PREPROCESS, TRANSFER]
    assert 'no stage parse or decode' in out


def test_each_result_has_the_bound_of_the_buffers_and_verbose_prints_it(tmp_path, noise):
    document, _, err = run(noise, tmp_path, '--verbose')
    memory = document['input']['memory']
    buffers = memory['buffers']
    assert memory['max_bytes'] == round(sum(row['count'] * row['bytes_each'] for row in buffers))
    kinds = ['records', 'sets of batches', 'images in the making']
    assert [row['what'] for row in buffers] == kinds
    assert document['input']['stages'] is None
    assert 'input memory: ' in err


def memory_of_the_input(folder: Path) -> None:
    """Prints the bound of a pipeline's buffers, and the growth of the process after 1, 61 and 121
    steps.
    """
    pixels = np.random.default_rng(1).integers(0, 256, [8, 200, 200, 3], np.uint8)
    records = [example(encoded(image, quality=95), 1) for image in pixels]
    for number in range(4):
        write_shard(folder / shard_name('train', number, 4), records * 40)
    options = ImageOptions(64, 64, 3, training=True, seed=3)
    with tf.Graph().as_default(), open_session() as session:
        pipeline = RecordPipeline(
            InputConfig(find_shards(str(folder), 'train'), cpus(1), 16, 10, options)
        )
        before, growth = psutil.Process().memory_info().rss, []
        session.run(pipeline.initializers)
        pipeline.warm_up(session)
        step = session.make_callable([*pipeline.per_step_ops, pipeline.tower_batch(0).images.op])
        for number in range(121):
            step()
            if number % 60 == 0:
                growth.append(psutil.Process().memory_info().rss - before)
    print(max_total_bytes(pipeline.buffers), *growth)


def test_memory_stays_within_the_bound_over_many_steps(tmp_path):
    """A separate process has few arenas, since the C library keeps more memory in many."""
    code = 'import sys, pathlib; from tests.run.test_input_only import memory_of_the_input as of; '
    process = run_python(
        f'{code}of(pathlib.Path(sys.argv[1]))', str(tmp_path), MALLOC_ARENA_MAX='2'
    )
    bound, *growth = map(int, process.out.split())
    assert 40e6 < bound < 60e6
    # Threads, the graph, decoding and the C library add 8 to 18 MB.
    assert len(growth) == 3
    assert max(growth) < bound + 40e6, (bound, growth)


def test_the_table_says_how_many_steps_would_measure_a_stage_below_the_noise():
    times = [
        StageTime('read', 100, 2.0, 1.0),
        StageTime('decode', 100, 1.0, 1.5),
        StageTime('transfer', 100, 1.6, 1.4),
    ]
    rows = stage_rows(times)
    assert [row.share for row in rows] == pytest.approx([1.25, -0.625, 0.375])
    table = format_stage_table(rows, 10)
    decode, transfer = (
        next(line for line in table.splitlines() if name in line) for name in ('decode', 'transfer')
    )
    assert decode.count('not measurable') == 2
    assert transfer.count('not measurable') == 1
    assert '-' not in decode.replace('--', '')
    # (62.5 / 5)^2 times as many steps reduce 62.5 % of the whole to 5 %.
    assert '--num_batches=1563' in table
    assert '--target_seconds=313 ' in format_stage_table(rows, 10, target_secs=2.0)
    assert 'not measurable' not in format_stage_table(stage_rows(times[:1]), 10)
