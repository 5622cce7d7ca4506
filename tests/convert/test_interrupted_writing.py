"""An interrupted conversion leaves no shard and no process behind."""

import multiprocessing
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.files import write_files
from tests.support.images import content, convert, encoded, picture
from tests.support.outputs import check_line, failed, refused
from tests.support.programs import PROGRAM
from tf_cnn.convert.config import RecordsOptions
from tf_cnn.convert.write import write_shards
from tf_cnn.inputs.layout import scan_folder, shard_name

pytestmark = [pytest.mark.graph, pytest.mark.long]


@pytest.fixture(scope='module')
def slow_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Minutes of work in two files: links to a large picture, and to a broken one, which is
    reported early.
    """
    files = {'a/large.png': encoded(picture(1200, 1200), 'PNG'), 'a/broken.jpg': b'x'}
    photos = write_files(tmp_path_factory.mktemp('photos'), files)
    for index in range(4000):
        (photos / 'a' / f'{index}.png').symlink_to('broken.jpg' if index % 8 == 0 else 'large.png')
    return photos


def interrupt_mid_write(
    photos: Path, output: Path, number: int, group: bool, *flags: str
) -> tuple[int, str]:
    """Sends a signal after the first report, when most files are still to be written. Returns the
    exit code and stderr, which ends when the decoding processes have ended, too.
    """
    command = [*PROGRAM, 'records', f'--input={photos}', f'--output={output}', '--shards=4']
    with subprocess.Popen(
        [*command, '--num_processes=2', *flags],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if re.search(r'\ba/\w+\.(png|jpg)\b', line):
                break
        assert list(output.glob('.train-unfinished/*')), ''.join(lines)
        (os.killpg if group else os.kill)(process.pid, number)
        _, rest = process.communicate(timeout=60)
    return process.returncode, rest


def test_a_killed_run_leaves_no_shard_and_no_process_and_the_next_run_cleans_up(
    slow_photos, tmp_path, capfd
):
    output = tmp_path / 'out'
    code, _ = interrupt_mid_write(slow_photos, output, signal.SIGKILL, group=False)
    assert code == -signal.SIGKILL
    unfinished = output / '.train-unfinished'
    assert list(output.iterdir()) == [unfinished]
    assert list(output.rglob('train-*-of-*')) == []
    num_unfinished = len(list(unfinished.iterdir()))
    files = {f'a/{index}.jpg': encoded(picture()) for index in range(4)}
    convert(write_files(tmp_path / 'photos', files), output, '--shards=4')
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith(f'{output}: ')]
    numbers = [re.findall(r'\b\d+\b', line.removeprefix(str(output))) for line in lines]
    assert numbers == [[str(num_unfinished)]]
    written = [shard_name('train', number, 4) for number in range(4)]
    assert sorted(content(output)) == ['dataset.json', 'labels.txt', *written]


@pytest.mark.parametrize(
    ('number', 'group', 'flags'),
    [
        (signal.SIGINT, True, []),
        (signal.SIGTERM, False, []),
        # Two sets of shards are unfinished.
        (signal.SIGTERM, True, ['--validation=0.1']),
    ],
)
def test_a_signal_leaves_nothing_and_the_decoding_processes_print_nothing(
    number, group, flags, slow_photos, tmp_path
):
    code, stderr = interrupt_mid_write(slow_photos, tmp_path / 'out', number, group, *flags)
    assert code == 128 + number
    assert list((tmp_path / 'out').iterdir()) == []
    # Python does not report leaked semaphores either.
    for word in ('SpawnProcess', 'resource_tracker', 'Traceback'):
        assert word not in stderr
    check_line(stderr.splitlines()[-1], 'tf_cnn_benchmarks: error: ', number.name)


def test_a_decoding_process_that_dies_fails_the_run_with_one_line(slow_photos, tmp_path):
    def kill_workers() -> None:
        for worker in multiprocessing.active_children():
            worker.kill()

    options = RecordsOptions(output=str(tmp_path / 'out'), num_processes=1)
    folder = scan_folder(str(slow_photos))
    with failed(f'--input={slow_photos}', '--num_processes=1'):
        write_shards(
            folder,
            {'train': folder.images},
            {'train': 1},
            ('background', 'a'),
            options,
            kill_workers,
            print,
        )
    assert list((tmp_path / 'out').iterdir()) == []


def test_an_unfinished_folder_of_another_program_is_refused_and_kept(slow_photos, tmp_path):
    foreign, link = tmp_path / 'kept/.train-unfinished', tmp_path / 'linked/.train-unfinished'
    write_files(foreign, {'00000': b'mine', 'notes': b'mine'})
    link.parent.mkdir()
    link.symlink_to(foreign)
    for unfinished in (foreign, link):
        with refused(f'--output={unfinished.parent}', unfinished):
            convert(slow_photos, unfinished.parent)
    assert content(foreign) == {'00000': b'mine', 'notes': b'mine'}
