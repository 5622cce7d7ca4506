"""Images equal PIL's images of the same files, random draws stay within their ranges, and bad
records fail the step.
"""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from PIL import Image
from sklearn.datasets import load_sample_image

from preprocessing import (
    RESIZE_METHODS,
    ImageOptions,
    Scale,
    draw_random_numbers,
    normalize,
    parse_example,
    preprocess,
    random_window,
    resize_and_distort,
)
from tests.support.graphs import evaluate, open_session
from tests.support.images import NO_BOXES, encoded, example
from tests.support.outputs import check_line
from tf_cnn.inputs.catalog import ML_PERF, PREPROCESSORS
from tf_cnn.inputs.pipeline import for_each_image

pytestmark = pytest.mark.graph

PHOTOGRAPH = load_sample_image('china.jpg')
JPEG = encoded(PHOTOGRAPH, quality=95)
EVALUATION = ImageOptions(height=224, width=224, channels=3, training=False)
TRAINING = replace(EVALUATION, height=32, width=32, training=True, seed=7)
METHODS = [method for method in RESIZE_METHODS if method != 'round_robin']


def run(file: bytes, options: ImageOptions, position: int = 0, times: int = 1) -> np.ndarray:
    """Returns [times, H, W, C] uint8, an image for each session.run."""
    with tf.Graph().as_default(), open_session() as session:
        draws = draw_random_numbers(position + 1, options).of_image(position)
        image = preprocess(tf.constant(file), tf.constant(NO_BOXES), options, position, draws)
        assert image.shape.as_list() == [options.height, options.width, options.channels]
        return np.stack([session.run(image) for _ in range(times)])


def crop(options: ImageOptions, fraction: float = 7 / 8) -> Image.Image:
    """Crops a fraction of the largest window with the output's aspect, in the middle."""
    with Image.open(io.BytesIO(JPEG)) as image:
        scale = fraction * min(image.width / options.width, image.height / options.height)
        width, height = round(scale * options.width), round(scale * options.height)
        x, y = (image.width - width) // 2, (image.height - height) // 2
        return image.crop((x, y, x + width, y + height))


def check_alike(options: ImageOptions, theirs: Image.Image) -> None:
    first, second = run(JPEG, options, times=2)
    assert np.abs(first - np.asarray(theirs, int)).mean() < 2
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize('method', ['nearest', 'bilinear'])
@pytest.mark.parametrize(
    ('height', 'width', 'shorter_side', 'fraction'),
    [
        (224, 224, None, 7 / 8),
        (96, 160, None, 7 / 8),
        (600, 600, None, 7 / 8),
        # The shorter side of the image has 256 pixels. A larger output takes the whole image.
        (224, 224, 256, 7 / 8),
        (128, 128, 256, 1 / 2),
        (299, 299, 256, 1),
    ],
)
def test_images_are_sampled_at_the_centres_of_the_new_pixels_as_by_pil(
    height, width, shorter_side, fraction, method
):
    options = ImageOptions(
        height, width, 3, training=False, shorter_side=shorter_side, resize_method=method
    )
    middle = crop(options, fraction)
    # Image.resize would smooth.
    matrix = (middle.width / width, 0, 0, 0, middle.height / height, 0)
    kind = Image.Resampling[method.upper()]
    check_alike(options, middle.transform((width, height), Image.Transform.AFFINE, matrix, kind))


@pytest.mark.parametrize(
    ('method', 'side', 'kind'),
    [('bicubic', 600, Image.Resampling.BICUBIC), ('area', 112, Image.Resampling.BOX)],
)
def test_images_are_smoothed_as_by_pil(method, side, kind):
    options = replace(EVALUATION, height=side, width=side, resize_method=method)
    check_alike(options, crop(options).resize((side, side), kind))


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('side', [106, 427])
def test_converted_and_larger_images_are_resized_like_bytes_then_clipped_and_rounded(method, side):
    options = replace(EVALUATION, height=side, width=side + 1, resize_method=method)

    def both() -> list[Any]:
        theirs = tf.compat.v2.image.resize(PHOTOGRAPH, [side, side + 1], method)
        ours = resize_and_distort(tf.constant(PHOTOGRAPH), options, 0, None)
        return [ours, tf.clip_by_value(theirs, 0, 255)]

    ours, theirs = evaluate(both)
    # Without rounding the difference would be up to 1.
    np.testing.assert_allclose(ours, theirs, atol=0.51)


def test_scaled_decoding_shrinks_by_means_as_pil_does():
    options = replace(EVALUATION, height=80, width=80)
    theirs = np.asarray(crop(options).resize((80, 80), Image.Resampling.BOX), int)
    scaled, sampled = (
        np.abs(run(JPEG, replace(options, scaled_decode=scales)) - theirs).mean()
        for scales in (True, False)
    )
    # Bilinear sampling alone reads four pixels of twenty.
    assert scaled < min(8, 0.7 * sampled)


def test_round_robin_takes_the_methods_in_turn():
    for position, method in enumerate([*METHODS, METHODS[0]]):
        ours = run(JPEG, replace(EVALUATION, resize_method='round_robin'), position)
        expected = run(JPEG, replace(EVALUATION, resize_method=method))
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize(
    ('mode', 'channels'), [('L', 1), ('L', 3), ('RGB', 1), ('RGB', 3), ('CMYK', 3)]
)
def test_every_kind_of_jpeg_gets_the_channels_of_the_options(mode, channels):
    colors = Image.new('RGB', (64, 64), (200, 100, 50)).convert(mode)
    [image] = run(encoded(colors, quality=95), replace(EVALUATION, channels=channels))
    expected = colors.convert('RGB' if channels == 3 else 'L').getpixel((0, 0))
    np.testing.assert_allclose(image[0, 0], np.array(expected, ndmin=1), atol=3)


def windows(height: int, width: int, boxes: np.ndarray) -> np.ndarray:
    """Returns [4, 300] int: y, x, heights and widths of random crops."""

    def window(seed: Any) -> list[Any]:
        return [random_window(tf.constant([height, width, 3]), tf.constant(boxes), seed)]

    [drawn] = evaluate(
        lambda: for_each_image(window, [draw_random_numbers(300, TRAINING).window_seeds])
    )
    return drawn.T


def test_random_crops_have_legal_areas_and_aspects_inside_the_image():
    height, width = 375, 500
    y, x, heights, widths = windows(height, width, NO_BOXES)
    assert min(y.min(), x.min()) >= 0
    assert (y + heights).max() <= height
    assert (x + widths).max() <= width
    areas, aspects = heights * widths / (height * width), widths / heights
    assert 0.05 <= areas.min() < 0.2  # a tenth without boxes, apart from rounding
    assert 0.8 < areas.max() <= 1
    slack = 1 / heights.min()
    assert 3 / 4 - slack < aspects.min() < 0.8
    assert 1.25 < aspects.max() < 4 / 3 + slack


def test_random_crops_cover_a_tenth_of_the_object():
    y0, x0, y1, x1 = box = np.array([0.7, 0.1, 0.9, 0.3], np.float32)
    y, x, heights, widths = windows(400, 400, box.reshape(1, 1, 4)) / 400
    covered_height = np.clip(np.minimum(y + heights, y1) - np.maximum(y, y0), 0, None)
    covered_width = np.clip(np.minimum(x + widths, x1) - np.maximum(x, x0), 0, None)
    assert (covered_height * covered_width).min() > 0.09 * 0.04
    # Crops are smaller than without a box.
    assert 0.04 < (heights * widths).min() < 0.1


def test_half_of_the_training_images_are_mirrored_and_none_is_upside_down():
    y, x = np.mgrid[0:120, 0:160]
    file = encoded(np.stack([x, y * 2, 0 * x], -1).astype(np.uint8))
    red, green, _ = np.moveaxis(run(file, TRAINING, times=200).astype(int), -1, 0)
    mirrored = red[:, :, 0].mean(1) > red[:, :, -1].mean(1)
    assert 75 < mirrored.sum() < 125
    assert (green[:, 0].mean(1) < green[:, -1].mean(1)).all()


@pytest.mark.parametrize(
    'changes', [{}, {'distortions': True}, {'distortions': True, 'in_yiq': False}]
)
def test_random_draws_depend_on_seed_and_position_alone(changes):
    options = replace(TRAINING, seed=0, **changes)
    first = run(JPEG, options, times=3)
    np.testing.assert_array_equal(first, run(JPEG, options, times=3))
    assert (first[0] != first[1]).any()
    assert (first != run(JPEG, options, position=2, times=3)).any((1, 2, 3)).all()
    assert (first != run(JPEG, replace(options, seed=1), times=3)).any((1, 2, 3)).all()


@pytest.mark.parametrize('in_yiq', [True, False])
def test_distortions_change_colors_only_when_training(in_yiq):
    color = (180, 90, 60)
    file = encoded(Image.new('RGB', (64, 64), color), quality=95)
    options = replace(TRAINING, distortions=True, in_yiq=in_yiq)
    distorted = run(file, options, times=20)[:, 0, 0].astype(int)
    assert np.abs(distorted - color).max(0).min() > 10
    for plain in (TRAINING, replace(options, training=False)):
        np.testing.assert_allclose(run(file, plain)[0, 0, 0], color, atol=3)


def parsed(record: bytes, with_boxes: bool = True) -> tuple[bytes, int, np.ndarray]:
    image, label, boxes = evaluate(
        lambda: parse_example(tf.constant(record), num_classes=10, with_boxes=with_boxes)
    )
    assert label.dtype == np.int32
    return image, label, boxes


@pytest.mark.parametrize('label', [0, 9])
def test_a_record_gives_its_image_label_and_boxes(label):
    boxes = [(0.1, 0.2, 0.5, 0.6), (0.3, 0.4, 0.7, 0.8)]
    image, number, parsed_boxes = parsed(example(b'file', label, boxes))
    assert (image, number) == (b'file', label)
    np.testing.assert_allclose(parsed_boxes, [boxes])
    assert parsed(example(b'file', label))[2].shape == (1, 0, 4)
    assert parsed(example(b'file', label, boxes), with_boxes=False)[2].shape == (1, 0, 4)


@pytest.mark.parametrize(
    ('record', 'message'),
    [
        (example(None, 1), 'image/encoded'),
        (example(b'file', None), 'image/class/label'),
        (example(b'file', 10), 'label_below_10'),
        (example(b'file', -1), 'label_below_10'),
        (b'not an example', 'parse'),
    ],
    ids=['no image', 'no label', 'label too large', 'negative label', 'no example'],
)
def test_a_bad_record_fails_the_step(record, message):
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.DataLossError), match=message):
        parsed(record)


@pytest.mark.parametrize(
    'options',
    [EVALUATION, TRAINING, replace(EVALUATION, scaled_decode=True)],
    ids=['evaluation', 'training', 'scaled'],
)
def test_a_file_that_is_not_a_jpeg_fails_the_step(options):
    for file in (encoded(PHOTOGRAPH, 'PNG'), b'', b'<html>404</html>', JPEG[100:], JPEG[:20_000]):
        with pytest.raises(tf.errors.InvalidArgumentError, match='JPEG'):
            run(file, options)


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match='lanczos') as error:
        replace(EVALUATION, resize_method='lanczos')
    check_line(error.value, 'resize_method', *RESIZE_METHODS)
    with pytest.raises(ValueError, match='distortions') as error:
        replace(TRAINING, distortions=True, channels=1)
    check_line(error.value, ' 1 ')


# ---- normalisation -------------------------------------------------------------------------------

LEVELS = np.arange(256, dtype=np.uint8).repeat(3).reshape(4, 8, 8, 3)
WITHOUT_MEANS = LEVELS - np.array([123.68, 116.78, 103.94])


@pytest.mark.parametrize('row', [*PREPROCESSORS.values(), ML_PERF], ids=lambda row: row.name)
def test_pixels_become_the_numbers_of_numpy(row):
    pixels = evaluate(lambda: normalize(tf.constant(LEVELS), Scale(row.factor, row.offsets)))
    expected = LEVELS / 127.5 - 1 if row.name == 'default' else WITHOUT_MEANS
    assert pixels.dtype == np.float32
    np.testing.assert_allclose(pixels, expected, atol=1e-5)
