"""Runs of the input pipeline alone: a table of its stages, the rate up to the last one, and what its buffers take."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inputs.stages import DECODE, READ, STAGES
from run.input_stages import StageTime, format_stages, stage_rows
from tests.support.images import write_cifar
from tests.support.outputs import check_warning, refused, warnings_in
from tests.support.runs import document_in, made, ran

pytestmark = [pytest.mark.graph, pytest.mark.long]


def run(tmp_path: Path, data_dir: Path, until: str | None, **flags: Any) -> tuple[dict[str, Any], str, str]:
    """The document, and what the run printed on standard output and standard error."""
    settings = {'data_dir': str(data_dir), 'input_only': until, 'result_file': str(tmp_path / 'r.json')}
    _, out, err = ran(**{'num_batches': 5, 'display_every': 2, **settings, **flags})
    return document_in(tmp_path / 'r.json'), out, err


def test_the_total_is_that_of_the_pipeline_up_to_the_stage_and_a_table_follows(tmp_path: Path, noise: Path) -> None:
    document, out, err = run(tmp_path, noise, 'transfer', num_gpus=2, optimizer='adam')
    stages = document['input']['stages']
    assert [row['stage'] for row in stages] == list(STAGES)
    assert document['throughput']['images'] == 5 * 4 * 2
    total = document['throughput']['images_per_second']
    assert stages[-1]['images_per_second'] == pytest.approx(total)
    seconds = sum(row['added_wall_seconds_per_image'] for row in stages)
    assert seconds == pytest.approx(1 / total)
    assert sum(row['share'] for row in stages) == pytest.approx(1)
    lines = out.splitlines()
    assert lines.index(f'total images/sec: {total:.2f}') < lines.index(next(line for line in lines if 'read' in line))
    assert lines[-1].startswith('input memory: ')
    check_warning(err, '--optimizer=adam', '--input_only')
    # Nothing was computed, so there is no word about losses and FLOPs.
    assert len(warnings_in(err)) == 1
    assert document['compute']['flops_per_second'] is None
    assert document['run']['role'] == 'input-only'


def test_stages_that_a_pipeline_lacks_are_left_out_and_said(tmp_path: Path) -> None:
    write_cifar(tmp_path / 'cifar', np.zeros([20, 32, 32, 3], np.uint8), np.arange(20) % 10)
    document, out, err = run(tmp_path, tmp_path / 'cifar', DECODE, model='trivial')
    assert [row['stage'] for row in document['input']['stages']] == [READ]
    check_warning(err, '--input_only=decode', 'read')
    as_long_as = {'target_seconds': 0.05, 'num_batches': None}
    document, out, _ = run(tmp_path, tmp_path / 'cifar', 'transfer', model='trivial', **as_long_as)
    assert [row['stage'] for row in document['input']['stages']] == ['read', 'preprocess', 'transfer']
    assert 'no stage parse or decode' in out


def test_batches_that_python_feeds_are_measured_as_a_whole(tmp_path: Path, noise: Path) -> None:
    document, _, _ = run(tmp_path, noise, 'transfer', input_pipeline='feed_dict', augmentation='none')
    assert [row['stage'] for row in document['input']['stages']] == ['transfer']
    images, batch = document['input']['memory']['buffers']
    assert (images['what'], batch['count']) == ('images', 4)
    # A run of the input has no steps of a model.
    with refused('--input_only'):
        next(made(data_dir=str(noise), input_only=READ).steps())


def test_the_bound_of_the_buffers_stands_in_each_result_and_is_printed_with_verbose(
    tmp_path: Path, noise: Path
) -> None:
    document, _, err = run(tmp_path, noise, None, verbose=True)
    memory = document['input']['memory']
    assert memory['most_bytes'] == round(sum(held['count'] * held['bytes_each'] for held in memory['buffers']))
    records, batches, images = memory['buffers']
    assert (records['what'], records['count']) == ('records', 512 + 16 * 16 + 4)
    size = next(noise.glob('train-*')).stat().st_size
    assert records['bytes_each'] == pytest.approx(size / 16 - 16)
    assert batches['bytes_each'] == 4 * (4 * 28 * 28 * 3 + 4)
    assert batches['count'] == 3
    assert (images['count'], images['bytes_each']) == (4, 4 * 28 * 28 * 3)
    assert document['input']['stages'] is None
    assert 'input memory: ' in err


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
