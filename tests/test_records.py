"""Image folders become shards that hold every image once, shards are checked, and no way to end leaves half a shard."""

import contextlib
import io
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

import records
from data_sets import shard_name
from errors import RunError, UsageError
from records.check import first_cut_shard, first_fault
from records.images import EncodedImage, Undecodable, encode_image
from records.layout import FACTS_FILE, read_facts, read_labels, scan_folder
from records.output import unfinished_folder
from records.progress import Monitor
from records.write import WriteOptions, write_shards

pytestmark = pytest.mark.graph

REPOSITORY = Path(__file__).resolve().parent.parent
SCRIPT = """\
import signal
import sys

# A shell has what it runs in the background ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {repository!r})

def main():
    import records
    return records.main(sys.argv[1:])

if __name__ == '__main__':
    sys.exit(main())
"""


def picture(width: int = 64, height: int = 48, mode: str = 'RGB') -> Image.Image:
    """A smooth picture without any symmetry, so that a wrong turn or channel shows and JPEG changes it little."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    channels = [255 * x, 255 * y, 255 * (1 - x) * (1 - y)]
    return Image.fromarray(np.stack(channels, -1).astype(np.uint8)).convert(mode)


def saved(image: Image.Image, form: str = 'JPEG', **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, form, **options)
    return data.getvalue()


def pixels(data: bytes) -> np.ndarray:
    """[H, W, 3] int."""
    with Image.open(io.BytesIO(data)) as image:
        assert (image.format, image.mode) == ('JPEG', 'RGB')
        return np.asarray(image).astype(int)


def encoded(tmp_path: Path, data: bytes, quality: int = 95) -> EncodedImage:
    path = tmp_path / 'image'
    path.write_bytes(data)
    result = encode_image(str(path), quality)
    assert isinstance(result, EncodedImage), result
    return result


def assert_alike(result: EncodedImage, expected: Image.Image) -> None:
    array = pixels(result.jpeg)
    assert (result.height, result.width) == (expected.height, expected.width) == array.shape[:2]
    assert np.abs(array - np.asarray(expected.convert('RGB')).astype(int)).mean() < 3


# One image.


@pytest.mark.parametrize('options', [{}, {'progressive': True}, {'keep_rgb': True}, {'optimize': True}])
def test_a_jpeg_of_three_channels_passes_through_byte_for_byte(tmp_path: Path, options: dict[str, Any]) -> None:
    data = saved(picture(), quality=90, **options)
    assert encoded(tmp_path, data) == EncodedImage(data, 48, 64, passed_through=True)


@pytest.mark.parametrize('mode', ['L', 'CMYK'])
def test_a_grey_or_cmyk_jpeg_becomes_rgb(tmp_path: Path, mode: str) -> None:
    data = saved(picture(mode=mode), quality=95)
    result = encoded(tmp_path, data)
    assert not result.passed_through
    with Image.open(io.BytesIO(data)) as expected:
        assert_alike(result, expected)


@pytest.mark.parametrize('orientation', range(1, 9))
@pytest.mark.parametrize('form', ['JPEG', 'PNG'])
def test_exif_orientation_is_applied_as_pil_applies_it(tmp_path: Path, form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(picture(), form, exif=exif)
    result = encoded(tmp_path, data)
    assert result.passed_through == (form == 'JPEG' and orientation == 1)
    with Image.open(io.BytesIO(data)) as image:
        assert_alike(result, ImageOps.exif_transpose(image))
    if not result.passed_through:
        with Image.open(io.BytesIO(result.jpeg)) as image:
            assert 0x0112 not in image.getexif()


@pytest.mark.parametrize('form', ['JPEG', 'PNG'])
def test_exif_that_cannot_be_read_does_not_spoil_the_picture(tmp_path: Path, form: str) -> None:
    result = encoded(tmp_path, saved(picture(), form, exif=b'Exif\x00\x00garbage'))
    assert result.passed_through == (form == 'JPEG')
    assert_alike(result, picture())


@pytest.mark.parametrize(('marker', 'passes'), [(0xC0, True), (0xC1, True), (0xC9, False)])
def test_only_huffman_coded_jpegs_pass_through(tmp_path: Path, marker: int, passes: bool) -> None:
    data = bytearray(saved(picture()))
    data[data.index(b'\xff\xc0') + 1] = marker
    assert encoded(tmp_path, bytes(data)).passed_through == passes


def test_a_png_becomes_a_jpeg(tmp_path: Path) -> None:
    assert_alike(encoded(tmp_path, saved(picture(), 'PNG')), picture())


@pytest.mark.parametrize('mode', ['P', 'L', '1'])
def test_a_png_without_rgb_channels_becomes_rgb(tmp_path: Path, mode: str) -> None:
    # Squares of 16 pixels are the blocks of a JPEG with halved colour: it changes them little, whatever the colours.
    squares = picture(4, 3).resize((64, 48), Image.Resampling.NEAREST)
    image = squares.quantize(12) if mode == 'P' else squares.convert(mode, dither=Image.Dither.NONE)
    assert image.mode == mode
    assert_alike(encoded(tmp_path, saved(image, 'PNG')), image)


@pytest.mark.parametrize('mode', ['RGBA', 'LA'])
def test_transparency_is_laid_over_white(tmp_path: Path, mode: str) -> None:
    image = picture().convert(mode)
    alpha = Image.new('L', image.size, 0)
    alpha.paste(255, (0, 0, 32, 48))
    image.putalpha(alpha)
    expected = Image.new('RGB', image.size, 'white')
    expected.paste(picture().convert(mode[:-1]).convert('RGB'), (0, 0), alpha)
    assert_alike(encoded(tmp_path, saved(image, 'PNG'), quality=100), expected)


def test_a_transparent_palette_colour_is_laid_over_white(tmp_path: Path) -> None:
    image = Image.new('P', (32, 16), 1)
    image.putpalette([0, 0, 0, 0, 0, 200])
    image.paste(0, (0, 0, 16, 16))
    expected = Image.new('RGB', (32, 16), (0, 0, 200))
    expected.paste((255, 255, 255), (0, 0, 16, 16))
    assert_alike(encoded(tmp_path, saved(image, 'PNG', transparency=0)), expected)


@pytest.mark.parametrize('options', [{}, {'transparency': 40000}])
def test_a_16_bit_grey_png_keeps_the_upper_byte(tmp_path: Path, options: dict[str, Any]) -> None:
    grey = np.asarray(picture(mode='L')).astype(np.uint16)
    image = Image.fromarray(grey * 256 + 77)
    assert_alike(encoded(tmp_path, saved(image, 'PNG', **options)), Image.fromarray(grey.astype(np.uint8)))


def test_quality_changes_what_is_encoded_anew(tmp_path: Path) -> None:
    data = saved(picture(256, 256), 'PNG')
    assert len(encoded(tmp_path, data, quality=20).jpeg) < len(encoded(tmp_path, data, quality=95).jpeg)


def test_only_the_first_picture_of_a_file_of_several_is_kept(tmp_path: Path) -> None:
    data = saved(picture(), 'MPO', save_all=True, append_images=[picture(32, 32)])
    result = encoded(tmp_path, data)
    assert not result.passed_through
    assert_alike(result, picture())


@pytest.mark.parametrize(
    ('data', 'reason'),
    [
        (b'', 'it is empty'),
        (b'hello' * 100, 'neither a JPEG nor a PNG'),
        (saved(picture())[:-40], 'truncated'),
        (saved(picture())[:-2], 'truncated'),
        (saved(picture(), 'PNG')[:-200], 'truncated'),
        (saved(picture(), 'GIF'), 'neither a JPEG nor a PNG'),
    ],
)
def test_a_damaged_file_gives_its_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / 'image.jpg').write_bytes(data)
    result = encode_image(str(tmp_path / 'image.jpg'), 95)
    assert isinstance(result, Undecodable)
    assert reason in result.reason


def test_a_broken_link_gives_its_reason(tmp_path: Path) -> None:
    assert encode_image(str(tmp_path / 'missing.jpg'), 95) == Undecodable('No such file or directory')


# A folder of images.


@pytest.fixture(scope='module')
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 classes of 8 images, with one file that cannot be decoded and four that are no images."""
    root = tmp_path_factory.mktemp('photos')
    for class_index, name in enumerate(('bird', 'cat', 'zebra')):
        (root / name / 'more').mkdir(parents=True)
        for index in range(8):
            image = picture(40 + 4 * index, 40 + 8 * class_index)
            form = 'PNG' if index == 7 else 'JPEG'
            parent = root / name / 'more' if index == 6 else root / name
            (parent / f'{index}.{"png" if form == "PNG" else "JPEG"}').write_bytes(saved(image, form))
    (root / 'cat' / 'broken.jpg').write_bytes(saved(picture())[:300])
    for name in ('notes.txt', 'cat/.hidden.jpg', 'cat/list.csv', '.DS_Store'):
        (root / name).write_text('no image')
    return root


def convert(photos: Path, output: Path, *more: str) -> int:
    return records.main([f'--input={photos}', f'--output={output}', '--num_processes=1', *more])


@pytest.fixture(scope='module')
def shards(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 train shards of the photos."""
    output = tmp_path_factory.mktemp('shards')
    with contextlib.redirect_stdout(io.StringIO()):
        assert convert(photos, output, '--shards=4') == 0
    return output


def shard_paths(folder: Path, subset: str = 'train') -> list[Path]:
    return sorted(folder.glob(f'{subset}-*-of-*'))


def examples(folder: Path, subset: str = 'train') -> Iterator[dict[str, Any]]:
    """Each record of a folder as a dict of feature values, all single."""
    import tensorflow.compat.v1 as tf

    for path in shard_paths(folder, subset):
        for data in tf.io.tf_record_iterator(str(path)):
            values = {}
            for name, feature in tf.train.Example.FromString(data).features.feature.items():
                (values[name],) = getattr(feature, feature.WhichOneof('kind')).value
            yield values


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_image_is_in_one_record_with_its_label_and_class(photos: Path, shards: Path) -> None:
    found = {example['image/filename'].decode(): example for example in examples(shards)}
    expected = {image.path: image.class_index + 1 for image in scan_folder(str(photos)).images}
    del expected['cat/broken.jpg']
    assert len(list(examples(shards))) == len(expected) == 24
    assert {name: example['image/class/label'] for name, example in found.items()} == expected
    names = read_labels(str(shards))
    assert names == ('background', 'bird', 'cat', 'zebra')
    for filename, example in found.items():
        assert filename.split('/')[0] == example['image/class/text'].decode() == names[example['image/class/label']]
        array = pixels(example['image/encoded'])
        assert array.shape == (example['image/height'], example['image/width'], example['image/channels'])
        assert (example['image/format'], example['image/colorspace']) == (b'JPEG', b'RGB')
        if not filename.endswith('.png'):
            assert example['image/encoded'] == (photos / filename).read_bytes()


def test_images_are_shuffled_across_the_shards(shards: Path) -> None:
    labels = [example['image/class/label'] for example in examples(shards)]
    assert labels != sorted(labels)


def test_a_seed_gives_the_same_shards_with_any_number_of_processes_and_another_seed_others(
    photos: Path, shards: Path, tmp_path: Path
) -> None:
    convert(photos, tmp_path / 'same', '--shards=4', '--num_processes=2')
    convert(photos, tmp_path / 'other', '--shards=4', '--seed=2')
    assert content(tmp_path / 'same') == content(shards)
    assert content(tmp_path / 'other') != content(shards)
    assert sorted(e['image/filename'] for e in examples(tmp_path / 'other')) == sorted(
        e['image/filename'] for e in examples(shards)
    )


def test_what_is_left_out_and_passed_over_is_named_and_counted(
    photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    convert(photos, tmp_path / 'out', '--shards=2')
    captured = capfd.readouterr()
    assert 'left out cat/broken.jpg: ' in captured.err
    for line in (
        'passed over notes.txt: in no class folder',
        'passed over cat/.hidden.jpg: hidden',
        'passed over cat/list.csv: not named as a JPEG or PNG',
        'passed over .DS_Store: hidden',
    ):
        assert line in captured.err
    assert 'train: 24 images of 3 classes in 2 shards' in captured.out
    assert 'as they were: 21, encoded anew: 3' in captured.out
    assert 'left out, as they cannot be decoded: 1' in captured.out
    assert 'passed over: 2 hidden, 1 in no class folder, 1 not named as a JPEG or PNG' in captured.out


def test_first_label_0_leaves_no_room_for_background(photos: Path, tmp_path: Path) -> None:
    convert(photos, tmp_path, '--shards=1', '--first_label=0')
    assert read_labels(str(tmp_path)) == ('bird', 'cat', 'zebra')
    assert {(e['image/class/label'], e['image/class/text']) for e in examples(tmp_path)} == {
        (0, b'bird'),
        (1, b'cat'),
        (2, b'zebra'),
    }


def make_folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def test_nothing_is_written_when_no_image_can_be_decoded(tmp_path: Path) -> None:
    photos = make_folder(tmp_path / 'photos', {'a/1.jpg': b'x', 'b/2.png': b''})
    with pytest.raises(RunError, match='none of 2 images could be decoded'):
        convert(photos, tmp_path / 'out')
    assert list((tmp_path / 'out').iterdir()) == []


def test_a_shard_is_never_empty(tmp_path: Path) -> None:
    photos = make_folder(tmp_path / 'photos', {'a/1.jpg': b'x', 'a/2.jpg': saved(picture())})
    with pytest.raises(RunError, match='--shards=2: every image of shard'):
        convert(photos, tmp_path / 'out')
    assert list((tmp_path / 'out').iterdir()) == []


def test_a_class_without_an_image_keeps_its_label_and_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = make_folder(tmp_path / 'photos', {'a/1.jpg': b'x', 'b/2.jpg': saved(picture())})
    (photos / 'c').mkdir()
    convert(photos, tmp_path / 'out', '--shards=1')
    assert 'classes without an image: a, c' in capsys.readouterr().out
    assert read_labels(str(tmp_path / 'out')) == ('background', 'a', 'b', 'c')
    assert [example['image/class/label'] for example in examples(tmp_path / 'out')] == [2]


def test_links_to_files_are_followed_and_links_to_folders_are_named(tmp_path: Path) -> None:
    photos = make_folder(tmp_path / 'photos', {'a/1.jpg': b'x'})
    (photos / 'a' / 'link.jpg').symlink_to('1.jpg')
    (photos / 'a' / 'loop').symlink_to(photos)
    (photos / 'b').symlink_to(photos / 'a')
    os.mkfifo(photos / 'a' / 'pipe.jpg')
    folder = scan_folder(str(photos))
    assert [image.path for image in folder.images] == ['a/1.jpg', 'a/link.jpg', 'b/1.jpg', 'b/link.jpg']
    assert folder.passed_over == {
        'a link to a folder': ('a/loop', 'b/loop'),
        'not a file': ('a/pipe.jpg', 'b/pipe.jpg'),
    }


# Flags.


@pytest.mark.parametrize(
    ('argv', 'told'),
    [
        (['--inptu=x'], '--inptu: records has no such flag; did you mean --input?'),
        (['--zzz'], 'see records --help'),
        (['photos'], 'photos: records takes flags only'),
        (['--shards=x'], '--shards'),
        (['--shards=-1'], '--shards'),
        (['--subset=test'], '--subset'),
        (['--first_label=2'], '--first_label'),
        (['--jpeg_quality=0'], '--jpeg_quality'),
        (['--output=x'], '--input is missing'),
        (['--input=x'], '--output is missing'),
        (['--input=/missing', '--output=x'], '--input=/missing: there is no such folder'),
        (['--check=x', '--shards=4'], '--check=x: --shards is for writing shards'),
        (['--check=/missing'], '--check=/missing: there is no such folder'),
    ],
)
def test_wrong_use_is_told_in_one_line(argv: list[str], told: str) -> None:
    with pytest.raises(UsageError) as error:
        records.main(argv)
    assert told in str(error.value)
    assert '\n' not in str(error.value)


def test_a_folder_of_loose_images_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path, {'1.jpg': saved(picture())})
    with pytest.raises(UsageError, match='0 class folders and 1 files'):
        convert(tmp_path, tmp_path / 'out')


def test_more_shards_than_images_are_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r'--shards=26: .* has only 25 images'):
        convert(photos, tmp_path, '--shards=26')


def test_a_class_named_background_needs_first_label_0(tmp_path: Path) -> None:
    photos = make_folder(tmp_path / 'photos', {'background/1.jpg': saved(picture())})
    with pytest.raises(UsageError, match='--first_label=0'):
        convert(photos, tmp_path / 'out')


def test_help_names_every_flag_and_loads_neither_tensorflow_nor_pil() -> None:
    code = (
        'import sys, records; records.main(["--help"]); '
        'print(sorted({"tensorflow", "PIL", "numpy", "rich"} & set(sys.modules)))'
    )
    output = subprocess.run([sys.executable, '-c', code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    names = re.findall(r'^  --(\w+):', output.stdout, re.MULTILINE)
    assert names[:7] == ['input', 'output', 'shards', 'subset', 'seed', 'first_label', 'jpeg_quality']
    assert names[7:] == ['num_processes', 'overwrite', 'check']
    assert output.stdout.endswith('[]\n')


def test_decoding_processes_do_not_load_tensorflow() -> None:
    code = 'import sys, records.images; print("tensorflow" in sys.modules)'
    output = subprocess.run([sys.executable, '-c', code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert output.stdout == 'False\n'


# The output folder.


def test_existing_shards_are_replaced_only_when_asked(photos: Path, shards: Path, tmp_path: Path) -> None:
    make_folder(tmp_path, content(shards))
    with pytest.raises(UsageError, match='it already has train shards; add --overwrite'):
        convert(photos, tmp_path, '--shards=3')
    assert content(tmp_path) == content(shards)
    convert(photos, tmp_path, '--shards=3', '--overwrite')
    assert sorted(content(tmp_path)) == ['dataset.json', 'labels.txt', *(shard_name('train', i, 3) for i in range(3))]


def test_a_failed_overwrite_leaves_the_old_shards(shards: Path, tmp_path: Path) -> None:
    output = make_folder(tmp_path / 'out', content(shards))
    broken = make_folder(tmp_path / 'photos', {'a/1.jpg': b'x'})
    with pytest.raises(RunError):
        convert(broken, output, '--overwrite')
    assert content(output) == content(shards)


def test_validation_shards_join_the_train_shards_when_the_classes_agree(
    photos: Path, shards: Path, tmp_path: Path
) -> None:
    make_folder(tmp_path, content(shards))
    convert(photos, tmp_path, '--subset=validation', '--shards=2')
    kept = {name: data for name, data in content(tmp_path).items() if 'validation' not in name}
    assert {**kept, FACTS_FILE: b''} == {**content(shards), FACTS_FILE: b''}
    assert read_facts(str(tmp_path))['train'] == read_facts(str(shards))['train']
    assert len(list(examples(tmp_path, 'validation'))) == 24


@pytest.mark.parametrize('more', [[], ['--overwrite']])
def test_shards_of_other_classes_do_not_join(shards: Path, tmp_path: Path, more: list[str]) -> None:
    output = make_folder(tmp_path / 'out', content(shards))
    photos = make_folder(tmp_path / 'photos', {'bird/1.jpg': saved(picture()), 'dog/1.jpg': saved(picture())})
    with pytest.raises(UsageError) as error:
        convert(photos, output, '--subset=validation', *more)
    assert 'only in labels.txt: cat, zebra; only in --input: dog' in str(error.value)
    assert content(output) == content(shards)


def test_another_first_label_does_not_join(photos: Path, shards: Path, tmp_path: Path) -> None:
    make_folder(tmp_path, content(shards))
    with pytest.raises(UsageError, match=r'only in labels\.txt: background'):
        convert(photos, tmp_path, '--subset=validation', '--first_label=0')


def test_an_output_folder_that_cannot_be_made_is_refused(photos: Path, tmp_path: Path) -> None:
    (tmp_path / 'file').touch()
    for output in (tmp_path / 'file', tmp_path / 'file' / 'out'):
        with pytest.raises(UsageError, match=r'^--output=.*Not a directory'):
            convert(photos, output)


def test_without_pillow_the_extra_is_named(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'PIL', None)
    with pytest.raises(UsageError, match='pip install pillow'):
        convert(photos, tmp_path)


def test_output_below_the_input_is_refused(photos: Path) -> None:
    with pytest.raises(UsageError, match='would be taken for a class'):
        convert(photos, photos / 'shards')


@pytest.fixture
def slow_photos(tmp_path: Path) -> Path:
    """Minutes of work in two files: links to a large picture, and to a broken one whose name is told early on."""
    photos = make_folder(tmp_path / 'photos', {'a/large.png': saved(picture(1200, 1200), 'PNG'), 'a/broken.jpg': b'x'})
    for index in range(4000):
        (photos / 'a' / f'{index}.png').symlink_to('broken.jpg' if index % 8 == 0 else 'large.png')
    return photos


def interrupt_mid_write(photos: Path, output: Path, script: Path, number: int, group: bool) -> tuple[int, str]:
    """Sends a signal once a first file has been left out, with most to be written. Returns the exit code and stderr.

    The workers hold the other end of stderr: it ends when they are gone as well.
    """
    script.write_text(SCRIPT.format(repository=str(REPOSITORY)))
    command = [
        sys.executable,
        str(script),
        f'--input={photos}',
        f'--output={output}',
        '--shards=4',
        '--num_processes=2',
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith('left out'):
                break
        assert list(output.glob('.train-unfinished/*')), ''.join(lines)
        if group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        _, rest = process.communicate(timeout=60)
    return process.returncode, rest


def test_a_killed_run_leaves_no_shard_and_no_process_and_the_next_run_cleans_up(
    photos: Path, slow_photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / 'out'
    code, _ = interrupt_mid_write(slow_photos, output, tmp_path / 'command.py', signal.SIGKILL, group=False)
    assert code == -signal.SIGKILL
    assert [path.name for path in output.iterdir()] == ['.train-unfinished']
    assert list(output.rglob('train-*-of-*')) == []
    convert(photos, output, '--shards=4')
    assert 'unfinished files that an interrupted run left' in capfd.readouterr().err
    assert sorted(content(output)) == ['dataset.json', 'labels.txt', *(shard_name('train', i, 4) for i in range(4))]


def test_ctrl_c_leaves_nothing_and_the_workers_are_silent(slow_photos: Path, tmp_path: Path) -> None:
    # As an installed console script: its file has no suffix.
    code, stderr = interrupt_mid_write(slow_photos, tmp_path / 'out', tmp_path / 'command', signal.SIGINT, group=True)
    assert code == -signal.SIGINT
    assert list((tmp_path / 'out').iterdir()) == []
    assert 'SpawnProcess' not in stderr


class WorkerKiller(Monitor):
    """Kills a decoding process as soon as a first image is done."""

    def advance(self, steps: int = 1) -> None:
        super().advance(steps)
        for worker in multiprocessing.active_children():
            worker.kill()


def test_a_decoding_process_that_dies_ends_the_run_in_one_line(slow_photos: Path, tmp_path: Path) -> None:
    options = WriteOptions(str(tmp_path / 'out'), 'train', 1, 1, 1, 95, num_processes=1)
    folder = scan_folder(str(slow_photos))
    with (
        WorkerKiller('images', len(folder.images)) as monitor,
        pytest.raises(RunError, match='a decoding process died'),
    ):
        write_shards(folder, ('background', 'a'), options, monitor)
    assert list((tmp_path / 'out').iterdir()) == []


def test_a_second_run_on_the_same_folder_is_refused(photos: Path, tmp_path: Path) -> None:
    with (
        unfinished_folder(tmp_path / 'out', 'train', print),
        pytest.raises(UsageError, match='another process is writing train shards'),
    ):
        convert(photos, tmp_path / 'out')


# Checking shards.


def rewrite(path: Path, index: int, change: Any) -> None:
    """Writes a shard anew with one record changed by change(features)."""
    import tensorflow.compat.v1 as tf

    data = list(tf.io.tf_record_iterator(str(path)))
    example = tf.train.Example.FromString(data[index])
    change(example.features.feature)
    data[index] = example.SerializeToString()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in data:
            writer.write(record)


def set_image(data: bytes) -> Any:
    def change(feature: Any) -> None:
        feature['image/encoded'].bytes_list.value[:] = [data]

    return change


def set_label(label: int) -> Any:
    def change(feature: Any) -> None:
        feature['image/class/label'].int64_list.value[:] = [label]

    return change


def without(name: str) -> Any:
    def change(feature: Any) -> None:
        del feature[name]

    return change


def cut(num_bytes: int) -> Any:
    def damage(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-num_bytes])

    return damage


def cut_in_header(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'\x05\x00\x00')


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def put_garbage(path: Path) -> None:
    path.write_bytes(b'not a TFRecord file at all' * 20)


def put_text(path: Path) -> None:
    import tensorflow.compat.v1 as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b'\xff\xff no example')


def change_record(change: Any) -> Any:
    def damage(path: Path) -> None:
        rewrite(path, 3, change)

    return damage


DAMAGES = {
    'cut in a record': (cut(20), 'cut short', 'record 5: the shard is cut short'),
    'cut in a header': (cut_in_header, 'cut short', 'record 6: the shard is cut short: 3 bytes of a header'),
    'a flipped bit': (flip, 'corrupt', 'its checksum is wrong'),
    'garbage': (put_garbage, 'corrupt', 'record 0: its checksum is wrong'),
    'an empty shard': (lambda path: path.write_bytes(b''), 'empty shard', 'it has no record'),
    'text': (put_text, 'no Example', 'record 0: it is not a tf.train.Example'),
    'no image': (change_record(without('image/encoded')), 'no image', 'it has no image'),
    'an empty image': (change_record(set_image(b'')), 'no image', 'it has no image'),
    'no label': (change_record(without('image/class/label')), 'no label', 'it has no label'),
    'a large label': (change_record(set_label(5000)), 'label out of range', 'label 5000 is outside 0..3'),
    'a negative label': (change_record(set_label(-1)), 'label out of range', 'label -1 is outside 0..3'),
    'a PNG': (change_record(set_image(saved(picture(), 'PNG'))), 'not a JPEG', 'the image is not a JPEG'),
    'bytes': (change_record(set_image(b'garbage')), 'not a JPEG', 'the image is not a JPEG'),
    'a cut JPEG': (change_record(set_image(saved(picture())[:-50])), 'undecodable JPEG', 'cannot be decoded'),
}


@pytest.mark.parametrize('name', DAMAGES)
def test_a_fault_is_found_named_and_counted(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    damage, kind, told = DAMAGES[name]
    make_folder(tmp_path, content(shards))
    paths = shard_paths(tmp_path)
    damage(paths[1])
    with pytest.raises(RunError, match='1 faults were found'):
        records.main([f'--check={tmp_path}'])
    output = capsys.readouterr().out
    assert f'faults: {kind} 1\n' in output
    (line,) = [line for line in output.splitlines() if line.startswith(f'{paths[1]}')]
    assert told in line
    assert first_fault([str(path) for path in paths], 4, deadline_secs=60) == line


def test_a_fault_in_a_record_names_its_file(shards: Path, tmp_path: Path) -> None:
    make_folder(tmp_path, content(shards))
    path = shard_paths(tmp_path)[0]
    rewrite(path, 3, set_label(5000))
    filename = [example['image/filename'].decode() for example in examples(shards)][3]
    assert first_fault([str(path)], 1001, 60) == f'{path}, record 3 ({filename}): label 5000 is outside 0..1000'


def test_good_shards_pass_the_check(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert records.main([f'--check={shards}']) == 0
    output = capsys.readouterr().out
    assert 'labels 0..3, as in labels.txt' in output
    assert 'train: 4 of 4 shards, 24 records, 3 of 4 labels seen' in output
    sizes = [len(example['image/encoded']) for example in examples(shards)]
    assert f'min {min(sizes):,}, median {np.median(sizes):,.0f}, max {max(sizes):,}' in output
    assert 'faults: none' in output
    assert first_fault([str(path) for path in shard_paths(shards)], 4, deadline_secs=60) is None


def test_a_missing_shard_is_named(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(tmp_path, content(shards))
    missing = shard_paths(tmp_path)[2]
    missing.unlink()
    with pytest.raises(RunError, match='the shard is missing'):
        records.main([f'--check={tmp_path}'])
    output = capsys.readouterr().out
    assert 'train: 3 of 4 shards' in output
    assert f'{missing}: the shard is missing' in output


def test_every_subset_is_checked_unless_one_is_asked_for(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(tmp_path, content(shards))
    for index, path in enumerate(shard_paths(shards)):
        (tmp_path / shard_name('validation', index, 4)).write_bytes(path.read_bytes())
    flip(tmp_path / shard_name('validation', 3, 4))
    assert records.main([f'--check={tmp_path}', '--subset=train']) == 0
    assert 'validation' not in capsys.readouterr().out
    with pytest.raises(RunError, match='validation-00003-of-00004'):
        records.main([f'--check={tmp_path}'])
    output = capsys.readouterr().out
    assert 'train: 4 of 4 shards' in output
    assert 'validation: 4 of 4 shards' in output


def test_without_labels_txt_the_labels_are_those_of_imagenet(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(tmp_path, {path.name: path.read_bytes() for path in shard_paths(shards)})
    assert records.main([f'--check={tmp_path}']) == 0
    assert "labels 0..1000, ImageNet's, as there is no labels.txt" in capsys.readouterr().out


def test_grey_and_cmyk_jpegs_of_others_are_good(shards: Path, tmp_path: Path) -> None:
    make_folder(tmp_path, content(shards))
    path = shard_paths(tmp_path)[0]
    rewrite(path, 0, set_image(saved(picture(mode='L'))))
    rewrite(path, 1, set_image(saved(picture(mode='CMYK'))))
    assert first_fault([str(path)], 4, 60) is None


def test_a_corrupt_shard_is_named_before_a_bad_record_of_an_earlier_one(shards: Path, tmp_path: Path) -> None:
    make_folder(tmp_path, content(shards))
    paths = shard_paths(tmp_path)
    rewrite(paths[0], 0, set_label(-1))
    flip(paths[3])
    fault = first_fault([str(path) for path in paths], 4, 60)
    assert fault is not None
    assert fault.startswith(f'{paths[3]}, record ')


def test_the_search_for_a_fault_ends_at_its_deadline(shards: Path, tmp_path: Path) -> None:
    make_folder(tmp_path, content(shards))
    flip(shard_paths(tmp_path)[3])
    assert first_fault([str(path) for path in shard_paths(tmp_path)], 4, deadline_secs=0) is None


@pytest.mark.parametrize('name', ['cut in a record', 'cut in a header'])
def test_a_cut_shard_is_named_without_reading_its_records(shards: Path, tmp_path: Path, name: str) -> None:
    make_folder(tmp_path, content(shards))
    paths = [str(path) for path in shard_paths(tmp_path)]
    assert first_cut_shard(paths, deadline_secs=60) == (None, 0)
    damage, _, told = DAMAGES[name]
    damage(Path(paths[1]))
    fault, num_unknown = first_cut_shard(paths, deadline_secs=60)
    assert fault is not None
    assert fault.startswith(f'{paths[1]}, {told}')
    assert num_unknown == 0


def test_shards_that_could_not_be_looked_at_in_time_are_counted(shards: Path) -> None:
    assert first_cut_shard([str(path) for path in shard_paths(shards)], deadline_secs=-1) == (None, 4)


# The photographs that benchmarks run on.


def test_sample_photographs_become_shards_and_a_second_call_changes_nothing(tmp_path: Path) -> None:
    for package in ('skimage', 'sklearn'):
        pytest.importorskip(package, reason='the photographs come with it; the dev extra installs it')
    script = str(REPOSITORY / 'benchmarks' / 'sample_photographs.py')

    def sample(folder: str) -> Path:
        subprocess.run([sys.executable, script, f'--output={tmp_path / folder}', '--num_images=9'], check=True)
        return tmp_path / folder

    photos = sample('photos')
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in photos.rglob('*.jpg')}
    assert len(before) == 9
    sample('photos')
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in photos.rglob('*.jpg')} == before
    again = sample('again')
    assert {again / path.relative_to(photos): data for path, (_, data) in before.items()} == {
        path: path.read_bytes() for path in again.rglob('*.jpg')
    }
    convert(photos, tmp_path / 'out', '--shards=2')
    assert sorted(len(example['image/encoded']) for example in examples(tmp_path / 'out')) == sorted(
        len(data) for _, data in before.values()
    )
