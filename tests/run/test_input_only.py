"""Runs of the input pipeline alone: a table of its stages, the rate up to the last one, and what its buffers take."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from benchmark_cnn import BenchmarkCNN
from inputs.stages import DECODE, PARSE, READ, STAGES
from params import make_params
from results import result as results
from results.console import Console
from run.input_stages import StageTime, format_stages, stage_rows
from tests.support.images import write_cifar, write_noise
from tests.support.outputs import check_warning, refused, warnings_in

pytestmark = [pytest.mark.graph, pytest.mark.long]

ROOT = Path(__file__).resolve().parent.parent.parent
SCHEMA = json.loads((Path(results.__file__).parent / 'result.schema.json').read_text(encoding='utf-8'))


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('noise')
    write_noise(folder, 10)
    return folder


def run(tmp_path: Path, data_dir: Path, until: str, **overrides: Any) -> tuple[dict[str, Any], str, str]:
    """The document, and what the run printed on standard output and standard error."""
    settings: dict[str, Any] = {
        'model': 'lenet', 'device': 'cpu', 'batch_size': 4, 'num_batches': 5, 'num_warmup_batches': 1,
        'display_every': 2, 'data_dir': str(data_dir), 'input_only': until, 'result_file': str(tmp_path / 'r.json'),
    }  # fmt: skip
    out, err = io.StringIO(), io.StringIO()
    BenchmarkCNN(make_params(**{**settings, **overrides}), Console(out, err)).run()
    document = json.loads((tmp_path / 'r.json').read_text())
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    return document, out.getvalue(), err.getvalue()


def test_the_total_is_that_of_the_pipeline_up_to_the_stage_and_a_table_follows(tmp_path: Path, data_dir: Path) -> None:
    document, out, err = run(tmp_path, data_dir, 'transfer', num_gpus=2, optimizer='adam')
    stages = document['input']['stages']
    assert [row['stage'] for row in stages] == list(STAGES)
    assert document['throughput']['images'] == 5 * 4 * 2
    total = document['throughput']['images_per_second']
    assert stages[-1]['images_per_second'] == pytest.approx(total)
    seconds = sum(row['added_wall_seconds_per_image'] for row in stages)
    assert seconds == pytest.approx(1 / total)
    assert sum(row['share'] for row in stages) == pytest.approx(1)
    lines = out.splitlines()
    assert [line.count('\t') for line in lines if 'images/sec: ' in line and 'total' not in line] == [1] * 4
    assert lines.index(f'total images/sec: {total:.2f}') < lines.index(next(line for line in lines if 'read' in line))
    assert lines[-1].startswith('input memory: ')
    check_warning(err, '--optimizer=adam', '--input_only')
    # Nothing was computed, so there is no word about losses and FLOPs.
    assert len(warnings_in(err)) == 1
    assert document['compute']['flops_per_second'] is None
    assert document['run']['role'] == 'input-only'


def test_a_run_ends_with_the_stage_that_it_names(tmp_path: Path, data_dir: Path) -> None:
    document, _, _ = run(tmp_path, data_dir, PARSE, input_pipeline='tf_data', num_batches=1)
    assert [row['stage'] for row in document['input']['stages']] == [READ, PARSE]
    assert len(document['workers'][0]['steps']['seconds']) == 2


def test_stages_that_a_pipeline_lacks_are_left_out_and_said(tmp_path: Path) -> None:
    write_cifar(tmp_path / 'cifar', np.zeros([20, 32, 32, 3], np.uint8), np.arange(20) % 10)
    document, out, err = run(tmp_path, tmp_path / 'cifar', DECODE, model='trivial')
    assert [row['stage'] for row in document['input']['stages']] == [READ]
    check_warning(err, '--input_only=decode', 'read')
    as_long_as = {'target_seconds': 0.05, 'num_batches': None}
    document, out, _ = run(tmp_path, tmp_path / 'cifar', 'transfer', model='trivial', **as_long_as)
    assert [row['stage'] for row in document['input']['stages']] == ['read', 'preprocess', 'transfer']
    assert 'no stage parse or decode' in out


def test_batches_that_python_feeds_are_measured_as_a_whole(tmp_path: Path, data_dir: Path) -> None:
    document, _, _ = run(tmp_path, data_dir, 'transfer', input_pipeline='feed_dict', augmentation='none')
    assert [row['stage'] for row in document['input']['stages']] == ['transfer']
    images, batch = document['input']['memory']['buffers']
    assert (images['what'], batch['count']) == ('images', 4)


def test_steps_of_a_model_are_not_to_be_had(data_dir: Path) -> None:
    params = make_params(model='lenet', device='cpu', data_dir=str(data_dir), input_only=READ)
    with refused('--input_only'):
        next(BenchmarkCNN(params, Console(io.StringIO(), io.StringIO())).steps())


def test_the_bound_of_the_buffers_stands_in_each_result_and_is_printed_with_verbose(
    tmp_path: Path, data_dir: Path
) -> None:
    document, _, err = run(tmp_path, data_dir, 'transfer', input_only=None, verbose=True)
    memory = document['input']['memory']
    assert memory['most_bytes'] == round(sum(held['count'] * held['bytes_each'] for held in memory['buffers']))
    records, batches, images = memory['buffers']
    assert (records['what'], records['count']) == ('records', 512 + 16 * 16 + 4)
    size = next(data_dir.glob('train-*')).stat().st_size
    assert records['bytes_each'] == pytest.approx(size / 16 - 16)
    assert batches['bytes_each'] == 4 * (4 * 28 * 28 * 3 + 4)
    assert batches['count'] == 3
    assert (images['count'], images['bytes_each']) == (4, 4 * 28 * 28 * 3)
    assert document['input']['stages'] is None
    assert 'input memory: ' in err


# Another process, since others' memory in this one comes and goes. Few arenas: where threads free what others
# allocated, the C library keeps more than is in use.
_GROWTH = """
import sys
from pathlib import Path
import numpy as np
import tensorflow.compat.v1 as tf
from tests.support.images import encoded, example, write_shard
from inputs.data_sets import find_shards
from records.layout import shard_name
from inputs.buffers import most_bytes
from inputs.pipeline import InputParts
from inputs.pipelines import PIPELINE_CLASSES
from preprocessing import ImageOptions
from tests.support.graphs import cpus, open_session

def resident_bytes():
    return 4096 * int(Path('/proc/self/statm').read_text().split()[1])

folder, name = Path(sys.argv[1]), sys.argv[2]
pixels = np.random.default_rng(1).integers(0, 256, [8, 200, 200, 3], np.uint8)
records = [example(encoded(image, quality=95), 1) for image in pixels]
for shard in range(4):
    write_shard(folder / shard_name('train', shard, 4), records * 40)
shards = find_shards(str(folder), 'train')
options = ImageOptions(height=64, width=64, channels=3, training=True, seed=3)
with tf.Graph().as_default(), open_session() as session:
    pipeline = PIPELINE_CLASSES[name](InputParts(shards, cpus(1), 16, 10, options))
    before = resident_bytes()
    session.run(pipeline.initializers)
    pipeline.warm_up(session)
    step = session.make_callable([*pipeline.per_step_ops, pipeline.tower_batch(0).images.op])
    grown = []
    for number in range(121):
        step()
        if number % 60 == 0:
            grown.append(resident_bytes() - before)
print(most_bytes(pipeline.buffers), *grown)
"""


def test_memory_stays_within_the_bound_over_many_steps(tmp_path: Path) -> None:
    environ = {**os.environ, 'PYTHONPATH': f'{ROOT}{os.pathsep}{ROOT / "tests"}', 'MALLOC_ARENA_MAX': '2'}
    command = [sys.executable, '-c', _GROWTH, str(tmp_path), 'record_input']
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=True)
    bound, *grown = map(int, ran.stdout.split())
    assert 40e6 < bound < 60e6
    # TensorFlow's threads, its graph, the images that are being decoded, and what the C library keeps: 8 to 18 MB.
    assert max(grown) < bound + 40e6, (bound, grown)


def test_a_stage_that_costs_less_than_the_noise_is_not_measurable_and_says_which_steps_would_do() -> None:
    times = [StageTime('read', 100, 2.0, 1.0), StageTime('decode', 100, 1.0, 1.5), StageTime('transfer', 100, 1.6, 1.4)]
    rows = stage_rows(times)
    assert [row.share for row in rows] == pytest.approx([1.25, -0.625, 0.375])
    table = format_stages(rows, 10)
    decode, transfer = (next(line for line in table.splitlines() if name in line) for name in ('decode', 'transfer'))
    assert decode.count('not measurable') == 2
    assert transfer.count('not measurable') == 1
    assert '-' not in decode.replace('--', '')
    # 62.5 % of the whole become 5 % with (62.5 / 5)^2 times as many.
    assert '--num_batches=1563' in table
    assert '--target_seconds=313 ' in format_stages(rows, 10, target_secs=2.0)
    assert 'not measurable' not in format_stages(stage_rows(times[:1]), 10)
