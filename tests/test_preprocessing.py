"""Images are what PIL makes of the same files, random draws stay within their ranges, and bad
records fail the step.
"""

import io
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import skimage.data
import tensorflow.compat.v1 as tf
from PIL import Image
from sklearn.datasets import load_sample_image

from preprocessing import (
    RESIZE_METHODS,
    ImageOptions,
    draw_random_numbers,
    parse_example,
    preprocess,
    resize_and_distort,
)
from preprocessing import random_window as random_window_of
from tests.support.graphs import open_session
from tests.support.images import encoded, example
from tests.support.outputs import check_line
from tf_cnn.inputs.each_image import for_each_image

pytestmark = pytest.mark.graph

PHOTOGRAPHS = {'astronaut': skimage.data.astronaut, 'china': lambda: load_sample_image('china.jpg')}
EVALUATION = ImageOptions(height=224, width=224, channels=3, training=False)
TRAINING = replace(EVALUATION, height=32, width=32, training=True, seed=7)
NO_BOXES = np.zeros([1, 0, 4], np.float32)
NUM_CLASSES = 10


def run(file: bytes, options: ImageOptions, position: int = 0, times: int = 1) -> np.ndarray:
    """[times, H, W, C] uint8, an image for each session.run."""
    with tf.Graph().as_default(), open_session() as session:
        draws = (
            draw_random_numbers(position + 1, options).of_image(position)
            if options.training
            else None
        )
        image = preprocess(tf.constant(file), tf.constant(NO_BOXES), options, position, draws)
        assert image.shape.as_list() == [options.height, options.width, options.channels]
        return np.stack([session.run(image) for _ in range(times)])


def pil_crop(file: bytes, options: ImageOptions) -> Image.Image:
    """The middle of an image: 7/8 of the largest window with the aspect of the output."""
    with Image.open(io.BytesIO(file)) as image:
        scale = 7 / 8 * min(image.width / options.width, image.height / options.height)
        width, height = round(scale * options.width), round(scale * options.height)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        return image.convert('RGB').crop((left, top, left + width, top + height))


def pil_sampled(crop: Image.Image, options: ImageOptions, method: Image.Resampling) -> Image.Image:
    """Resized by sampling at the centres of the new pixels, without the smoothing of
    Image.resize.
    """
    matrix = (crop.width / options.width, 0, 0, 0, crop.height / options.height, 0)
    return crop.transform((options.width, options.height), Image.Transform.AFFINE, matrix, method)


def difference(ours: np.ndarray, theirs: Image.Image) -> np.ndarray:
    return ours.astype(np.int32) - np.asarray(theirs, np.int32)


SIZES = [(224, 224), (96, 160), (600, 600)]


@pytest.mark.parametrize('photograph', PHOTOGRAPHS)
@pytest.mark.parametrize(
    ('method', 'size'),
    [
        *itertools.product(['nearest', 'bilinear'], SIZES),
        ('bicubic', (600, 600)),
        ('area', (112, 112)),
    ],
)
def test_resizing_agrees_with_pil(photograph: str, size: tuple[int, int], method: str) -> None:
    file = encoded(PHOTOGRAPHS[photograph](), quality=95)
    options = replace(EVALUATION, height=size[0], width=size[1], resize_method=method)
    crop = pil_crop(file, options)
    # Where PIL smooths as TensorFlow does.
    if method in ('bicubic', 'area'):
        theirs = crop.resize(
            size, Image.Resampling.BICUBIC if method == 'bicubic' else Image.Resampling.BOX
        )
    else:
        theirs = pil_sampled(crop, options, Image.Resampling[method.upper()])
    images = run(file, options, times=2)
    assert np.abs(difference(images[0], theirs)).mean() < 2
    assert (images[1] == images[0]).all()


@pytest.mark.parametrize('photograph', PHOTOGRAPHS)
@pytest.mark.parametrize('method', [method for method in RESIZE_METHODS if method != 'round_robin'])
def test_converted_and_larger_images_are_resized_like_bytes_then_clipped_and_rounded(
    method: str, photograph: str
) -> None:
    pixels = PHOTOGRAPHS[photograph]()
    for side in (pixels.shape[0] // 4, pixels.shape[0]):
        options = replace(EVALUATION, height=side, width=side + 1, resize_method=method)
        with tf.Graph().as_default(), open_session() as session:
            theirs = tf.compat.v2.image.resize(pixels, [side, side + 1], method)
            ours = resize_and_distort(tf.constant(pixels), options, 0, None)
            found, expected = session.run([ours, tf.clip_by_value(theirs, 0, 255)])
        # Without rounding the difference would be up to 1.
        np.testing.assert_allclose(found, expected, atol=0.51)


def test_round_robin_takes_the_methods_in_turn() -> None:
    file = encoded(PHOTOGRAPHS['china']())
    by_position = [
        run(file, replace(EVALUATION, resize_method='round_robin'), position)[0]
        for position in range(5)
    ]
    methods = [method for method in RESIZE_METHODS if method != 'round_robin']
    for position, method in enumerate([*methods, methods[0]]):
        np.testing.assert_array_equal(
            by_position[position], run(file, replace(EVALUATION, resize_method=method))[0]
        )


@pytest.mark.parametrize(
    ('mode', 'channels'), [('L', 1), ('L', 3), ('RGB', 1), ('RGB', 3), ('CMYK', 3)]
)
def test_every_kind_of_jpeg_gets_the_channels_asked_for(mode: str, channels: int) -> None:
    colors = Image.new('RGB', (64, 64), (200, 100, 50)).convert(mode)
    image = run(encoded(colors, quality=95), replace(EVALUATION, channels=channels))[0]
    expected = colors.convert('RGB' if channels == 3 else 'L').getpixel((0, 0))
    np.testing.assert_allclose(image[0, 0], np.array(expected, ndmin=1), atol=3)


def windows(height: int, width: int, boxes: np.ndarray, count: int = 300) -> np.ndarray:
    """[4, count] int: y, x, heights, widths of random crops."""
    shape = [height, width, 3]
    with tf.Graph().as_default(), open_session() as session:
        seeds = draw_random_numbers(count, TRAINING).window_seeds
        [drawn] = for_each_image(
            lambda seed: [random_window_of(tf.constant(shape), tf.constant(boxes), seed)], [seeds]
        )
        return session.run(drawn).T


def test_random_crops_have_legal_areas_and_aspects_inside_the_image() -> None:
    height, width = 375, 500
    y, x, heights, widths = windows(height, width, NO_BOXES)
    assert min(y.min(), x.min()) >= 0
    assert (y + heights).max() <= height
    assert (x + widths).max() <= width
    areas, aspects = heights * widths / (height * width), widths / heights
    assert 0.05 <= areas.min() < 0.2  # not below a tenth without boxes, but for rounding
    assert 0.8 < areas.max() <= 1
    slack = 1 / heights.min()
    assert 3 / 4 - slack < aspects.min() < 0.8
    assert 1.25 < aspects.max() < 4 / 3 + slack


def test_random_crops_cover_a_tenth_of_the_object() -> None:
    box = np.array([0.7, 0.1, 0.9, 0.3], np.float32)
    y, x, heights, widths = windows(400, 400, box.reshape(1, 1, 4)) / 400
    covered_height = np.clip(np.minimum(y + heights, box[2]) - np.maximum(y, box[0]), 0, None)
    covered_width = np.clip(np.minimum(x + widths, box[3]) - np.maximum(x, box[1]), 0, None)
    covered = covered_height * covered_width / 0.04
    assert covered.min() > 0.09
    areas = heights * widths
    assert 0.04 < areas.min() < 0.1  # smaller than without a box


def test_half_of_the_training_images_are_mirrored_and_none_is_upside_down() -> None:
    y, x = np.mgrid[0:120, 0:160]
    images = run(
        encoded(np.stack([x, y * 2, 0 * x], -1).astype(np.uint8)), TRAINING, times=200
    ).astype(int)
    mirrored = images[:, :, 0, 0].mean(1) > images[:, :, -1, 0].mean(1)
    assert 75 < mirrored.sum() < 125
    assert (images[:, 0, :, 1].mean(1) < images[:, -1, :, 1].mean(1)).all()


@pytest.mark.parametrize(
    'changes', [{}, {'distortions': True}, {'distortions': True, 'in_yiq': False}]
)
def test_random_draws_depend_on_seed_and_position_alone(changes: dict[str, Any]) -> None:
    file = encoded(PHOTOGRAPHS['china']())
    options = replace(TRAINING, seed=0, **changes)
    first = run(file, options, times=3)
    np.testing.assert_array_equal(first, run(file, options, times=3))
    assert (first[0] != first[1]).any()
    assert (first != run(file, options, position=2, times=3)).any((1, 2, 3)).all()
    assert (first != run(file, replace(options, seed=1), times=3)).any((1, 2, 3)).all()


@pytest.mark.parametrize('in_yiq', [True, False])
def test_distortions_change_colors_only_when_training(in_yiq: bool) -> None:
    file = encoded(Image.new('RGB', (64, 64), (180, 90, 60)), quality=95)
    plain = run(file, TRAINING)[0]
    np.testing.assert_allclose(plain[0, 0], (180, 90, 60), atol=3)
    options = replace(TRAINING, distortions=True, in_yiq=in_yiq)
    distorted = run(file, options, times=20)[:, 0, 0].astype(int)
    assert np.abs(distorted - plain[0, 0]).max(0).min() > 10
    evaluated = run(file, replace(options, training=False))[0]
    np.testing.assert_allclose(evaluated[0, 0], (180, 90, 60), atol=3)


def parsed(record: bytes, with_boxes: bool = True) -> tuple[bytes, int, np.ndarray]:
    with tf.Graph().as_default(), open_session() as session:
        image, label, boxes = parse_example(tf.constant(record), NUM_CLASSES, with_boxes)
        assert label.dtype == tf.int32
        return session.run((image, label, boxes))


@pytest.mark.parametrize('label', [0, NUM_CLASSES - 1])
def test_a_record_gives_its_image_label_and_boxes(label: int) -> None:
    boxes = [(0.1, 0.2, 0.5, 0.6), (0.3, 0.4, 0.7, 0.8)]
    image, number, found = parsed(example(b'file', label, boxes))
    assert (image, number) == (b'file', label)
    np.testing.assert_allclose(found, [boxes])
    assert parsed(example(b'file', label))[2].shape == (1, 0, 4)
    assert parsed(example(b'file', label, boxes), with_boxes=False)[2].shape == (1, 0, 4)


@pytest.mark.parametrize(
    ('record', 'message'),
    [
        (example(None, 1), 'image/encoded'),
        (example(b'file', None), 'image/class/label'),
        (example(b'file', NUM_CLASSES), r'label_below_10'),
        (example(b'file', -1), r'label_below_10'),
        (b'not an example', 'parse'),
    ],
    ids=['no image', 'no label', 'label too large', 'negative label', 'no example'],
)
def test_a_bad_record_fails_the_step(record: bytes, message: str) -> None:
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.DataLossError), match=message):
        parsed(record)


@pytest.mark.parametrize(
    'options',
    [EVALUATION, TRAINING, replace(EVALUATION, scaled_decode=True)],
    ids=['evaluation', 'training', 'scaled'],
)
def test_a_file_that_is_not_a_jpeg_fails_the_step(options: ImageOptions) -> None:
    photograph = PHOTOGRAPHS['china']()
    jpeg = encoded(photograph)
    for file in (encoded(photograph, 'PNG'), b'', b'<html>404</html>', jpeg[100:], jpeg[:20_000]):
        with pytest.raises(tf.errors.InvalidArgumentError, match='JPEG'):
            run(file, options)


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match='lanczos') as error:
        replace(EVALUATION, resize_method='lanczos')
    check_line(error.value, 'resize_method', *RESIZE_METHODS)
    with pytest.raises(ValueError, match='distortions') as error:
        replace(TRAINING, distortions=True, channels=1)
    check_line(error.value, ' 1 ')
