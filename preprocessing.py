"""One encoded record -> one image tensor: parse, decode and crop, resize, distort, flip. All of it runs on the CPU."""

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow.compat.v1 as tf
from numpy.typing import ArrayLike

from errors import UsageError

_constants: weakref.WeakKeyDictionary[tf.Graph, dict[tuple[object, ...], tf.Tensor]] = weakref.WeakKeyDictionary()


def _shared(value: ArrayLike, dtype: tf.DType = tf.int32) -> tf.Tensor:
    """A constant that all records of a graph share.

    A step runs its constants first, one after the other: some for each record would keep all cores but one waiting at
    the start of every step.
    """
    array = np.asarray(value, dtype.as_numpy_dtype)
    known = _constants.setdefault(tf.get_default_graph(), {})
    key = (dtype, array.shape, array.tobytes())
    if key not in known:
        with tf.control_dependencies(None):
            known[key] = tf.constant(array, dtype)
    return known[key]


def _rounded(pixels: tf.Tensor) -> tf.Tensor:
    """float32 in [0, 255] -> the nearest uint8. A plain cast would truncate and darken every image by half a level."""
    return tf.cast(pixels + _shared(0.5, tf.float32), tf.uint8)


def _clipped(pixels: tf.Tensor) -> tf.Tensor:
    """float32 -> float32 in [0, 255]."""
    return tf.clip_by_value(pixels, _shared(0, tf.float32), _shared(255, tf.float32))


# Each takes images [1, h, w, C] uint8 and size [2] int32 (H, W) and returns [1, H, W, C], uint8 (nearest) or float32.
# Pixel centres are at halves, as in PIL; only area looks at every pixel when it makes an image smaller.
_RESIZE: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    'nearest': lambda images, size: tf.raw_ops.ResizeNearestNeighbor(images=images, size=size, half_pixel_centers=True),
    'bilinear': lambda images, size: tf.raw_ops.ResizeBilinear(images=images, size=size, half_pixel_centers=True),
    'bicubic': lambda images, size: tf.raw_ops.ResizeBicubic(images=images, size=size, half_pixel_centers=True),
    'area': lambda images, size: tf.raw_ops.ResizeArea(images=images, size=size),
}
RESIZE_METHODS = (*_RESIZE, 'round_robin')

# The random crop of Szegedy et al. 2015 (arXiv:1409.4842, section 6) with the numbers of its published TensorFlow code:
# 5 to 100 % of the area (the paper says 8), and at least a tenth of an object, or of an image without boxes.
AREA_RANGE = (0.05, 1.0)
ASPECT_RANGE = (3 / 4, 4 / 3)
MIN_OBJECT_COVERED = 0.1
# Pixels on each side for the crops of small images: He et al. 2016 (arXiv:1512.03385), section 4.2.
PADDING = 4

# Evaluation looks at the middle 224 of 256 pixels: Krizhevsky et al. 2012, section 4.1.
CENTRAL_FRACTION = 0.875

# Howard 2013 (arXiv:1312.5402, section 2.2) changes colours in a random order; these orders and ranges are those of the
# published Inception code. Brightness is in levels of 255, hue in turns, the others are factors.
_COLOR_ORDERS = (
    ('brightness', 'saturation', 'hue', 'contrast'),
    ('brightness', 'contrast', 'saturation', 'hue'),
)
_COLOR_RANGES = {'brightness': (-32.0, 32.0), 'saturation': (0.5, 1.5), 'hue': (-0.2, 0.2), 'contrast': (0.5, 1.5)}
_COLOR_OPS: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    'brightness': lambda images, delta: images + delta,
    'saturation': lambda images, factor: tf.raw_ops.AdjustSaturation(images=images, scale=factor),
    'hue': lambda images, delta: tf.raw_ops.AdjustHue(images=images, delta=delta),
    'contrast': lambda images, factor: tf.raw_ops.AdjustContrastv2(images=images, contrast_factor=factor),
}


@dataclass(frozen=True)
class ImageOptions:
    """How an encoded image becomes [height, width, channels].

    training: what augmentation says happens to the image; else nothing does.
    distortions: random colours as well, when training.
    resize_method: one of RESIZE_METHODS; round_robin takes another one for each position in the batch.
    seed: of every random draw, which also depends on the position in the batch.
    augmentation: 'resized_crop' is a random crop and flip, and the central crop when not training. With the others the
      image is cropped to the aspect of the output only: 'padded_crop' shifts and flips it at random, 'none' does not.

    Raises:
      UsageError: an unknown resize method, or distortions of images that have no colours.
    """

    height: int
    width: int
    channels: int
    training: bool
    distortions: bool = False
    resize_method: str = 'bilinear'
    seed: int = 0
    augmentation: str = 'resized_crop'

    def __post_init__(self) -> None:
        if self.resize_method not in RESIZE_METHODS:
            raise UsageError(
                f'--resize_method={self.resize_method}: there is no such method; use {", ".join(RESIZE_METHODS)}'
            )
        if self.distortions and self.channels != 3:
            raise UsageError(
                f'--distortions: they change colours, and these images have {self.channels} of 3 channels; '
                'use --nodistortions'
            )

    @property
    def uses_boxes(self) -> bool:
        """Whether preprocess looks at the bounding boxes."""
        return self.training and self.augmentation == 'resized_crop'

    @property
    def shifts(self) -> bool:
        """Whether shift_and_flip is to be called for the images of a batch."""
        return self.training and self.augmentation == 'padded_crop'


def parse_example(serialized: tf.Tensor, num_classes: int, with_boxes: bool) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Parses a tf.train.Example with the features of the ImageNet TFRecords.

    Args:
      serialized: scalar string.
      num_classes: labels are in [0, num_classes).
      with_boxes: whether to read image/object/bbox/*; if not, K is 0.

    Returns:
      encoded: scalar string, the JPEG file of image/encoded.
      label: scalar int32, image/class/label.
      boxes: [1, K, 4] float32, each ymin, xmin, ymax, xmax as a fraction of the image.

    The step fails with InvalidArgumentError when the record is no Example, lacks the image or the label, or when the
    label is out of range (the failing op is called label_below_NUM_CLASSES).
    """
    sides = [f'image/object/bbox/{side}' for side in ('ymin', 'xmin', 'ymax', 'xmax')] if with_boxes else []
    # There is no default for image and label, but each box that is missing is none.
    defaults = [_shared([], tf.string), _shared([], tf.int64), *[_shared(0, tf.float32)] * len(sides)]
    encoded, label, *edges = tf.raw_ops.ParseSingleExample(
        serialized=serialized,
        dense_defaults=defaults,
        num_sparse=0,
        sparse_keys=[],
        sparse_types=[],
        dense_keys=['image/encoded', 'image/class/label', *sides],
        dense_shapes=[[], [], *[[None]] * len(sides)],
    ).dense_values
    boxes = tf.expand_dims(tf.stack(edges, axis=-1), _shared(0)) if sides else _shared(np.zeros([1, 0, 4]), tf.float32)
    # One op that casts and checks: looking up a label that is not in the list of labels fails (on the CPU). With an
    # assert for each record it would be five ops.
    labels = _shared(np.arange(num_classes))
    label = tf.gather(labels, label, axis=_shared(0), name=f'label_below_{num_classes}')
    return encoded, label, boxes


@dataclass(frozen=True)
class Draws:
    """Random numbers for an image: a scalar bool, and a scalar in [0, 1) for each change of colours, if any."""

    mirrored: tf.Tensor
    colors: Sequence[tf.Tensor]


def draw(
    num_images: int, options: ImageOptions, first_position: int = 0, seeds: tf.Tensor | None = None
) -> list[Draws]:
    """The random numbers of images at num_images positions of the batch, drawn at once: 3 ops instead of 3 an image.

    Args:
      seeds: [2] int64, of which they are a function then; by default every step draws the next ones of options.seed.
    """
    columns = 1 + (len(_COLOR_RANGES) if options.distortions else 0)
    shape = _shared([num_images, columns])
    if seeds is not None:
        uniform = tf.random.stateless_uniform(shape, seeds)
    else:
        # seed2 makes it another stream of numbers than those of random_window.
        uniform = tf.raw_ops.RandomUniform(shape=shape, dtype=tf.float32, seed=options.seed, seed2=-1 - first_position)
    flips, *colors = tf.unstack(uniform, columns, axis=1)
    mirrored = tf.unstack(flips < _shared(0.5, tf.float32), num_images)
    rows = zip(*(tf.unstack(column, num_images) for column in colors), strict=True) if colors else [()] * num_images
    return [Draws(*row) for row in zip(mirrored, rows, strict=True)]


def preprocess(
    encoded: tf.Tensor, boxes: tf.Tensor, options: ImageOptions, position: int, draws: Draws | None = None
) -> tf.Tensor:
    """Makes an image of a JPEG file.

    Args:
      encoded: scalar string, a JPEG file. Grey and CMYK files become [.., .., options.channels], too.
      boxes: [1, K, 4] float32 of parse_example; only used when training.
      options: size, crop, distortions.
      position: in the batch. Each position draws its own random numbers and has its order of distortions.
      draws: those of draw; by default it is called for this image alone. Not used unless training.

    Returns:
      [H, W, C] uint8. The step fails with InvalidArgumentError when the file is not a JPEG, or a damaged one.
    """
    shape = tf.raw_ops.ExtractJpegShape(contents=encoded)
    by_boxes = options.uses_boxes
    window = random_window(shape, boxes, options.seed, position) if by_boxes else central_window(shape, options)
    # Only the window is decoded. The fast DCT would spare 3 % of the decoding and darken every image by 0.8 of 255
    # levels; smoothing the colour planes would cost 6 % and is lost in the resize.
    cropped = tf.raw_ops.DecodeAndCropJpeg(
        contents=encoded,
        crop_window=window,
        channels=options.channels,
        fancy_upscaling=False,
        dct_method='INTEGER_ACCURATE',
    )
    if options.training and draws is None:
        draws = draw(1, options, position)[0]
    image = resize_and_distort(cropped, options, position, draws)
    return _flip_if(draws.mirrored, image) if draws and options.uses_boxes else image


def resize_and_distort(image: tf.Tensor, options: ImageOptions, position: int, draws: Draws | None) -> tf.Tensor:
    """[h, w, C] uint8 -> [H, W, C] uint8, with other colours if options ask for it when training."""
    image = resize(image, options, position)
    if options.training and options.distortions:
        assert draws
        image = distort_colors(tf.cast(image, tf.float32), draws.colors, position)
    return image if image.dtype == tf.uint8 else _rounded(image)


def random_window(shape: tf.Tensor, boxes: tf.Tensor, seed: int, position: int) -> tf.Tensor:
    """The window y, x, height, width ([4] int32) of a random crop of an image of shape [3] int32 (h, w, channels)."""
    begin, size, _ = tf.raw_ops.SampleDistortedBoundingBoxV2(
        image_size=shape,
        bounding_boxes=boxes,
        min_object_covered=_shared(MIN_OBJECT_COVERED, tf.float32),
        aspect_ratio_range=ASPECT_RANGE,
        area_range=AREA_RANGE,
        use_image_if_no_bounding_boxes=True,
        seed=seed,
        seed2=position + 1,  # a pair of zeros would ask for a seed from the clock
    )
    y_x_height_width = [0, 1, 3, 4]
    return tf.gather(tf.concat([begin, size], _shared(0)), _shared(y_x_height_width), axis=_shared(0))


def central_window(shape: tf.Tensor, options: ImageOptions) -> tf.Tensor:
    """The window y, x, height, width ([4] int32) in the middle of an image of shape [3] int32 (h, w, channels).

    It has the aspect of the output (a square for a square) and 87.5 % of the largest such window, all of it unless
    options.augmentation is 'resized_crop'.
    """
    kept = CENTRAL_FRACTION if options.augmentation == 'resized_crop' else 1.0
    target = _shared([options.height, options.width], tf.float32)
    whole = tf.slice(shape, _shared([0]), _shared([2]))
    fraction = tf.reduce_min(tf.cast(whole, tf.float32) / target, axis=_shared(0))
    size = tf.cast(tf.round(_shared(kept, tf.float32) * fraction * target), tf.int32)
    size = tf.maximum(size, _shared(1))
    return tf.concat([(whole - size) // _shared(2), size], _shared(0))


def resize(image: tf.Tensor, options: ImageOptions, position: int) -> tf.Tensor:
    """[h, w, C] uint8 -> [H, W, C], uint8 or float32 in [0, 255]."""
    method = options.resize_method
    if method == 'round_robin':
        method = list(_RESIZE)[position % len(_RESIZE)]
    size = [options.height, options.width]
    resized = _RESIZE[method](tf.expand_dims(image, _shared(0)), _shared(size))
    resized = tf.reshape(resized, _shared([*size, options.channels]))
    # Bicubic overshoots at edges, and what a cast makes of that is undefined.
    return _clipped(resized) if method == 'bicubic' else resized


def in_turn(options: ImageOptions, number: tf.Tensor, make: Callable[[int], tf.Tensor]) -> tf.Tensor:
    """make(position) of an image whose number (scalar int64) stands for its position, and is not known before it runs.

    Without random numbers, all that the position decides is the turn of round_robin.
    """
    if options.resize_method != 'round_robin':
        return make(0)
    turns = [functools.partial(make, position) for position in range(len(_RESIZE))]
    return tf.switch_case(tf.cast(number % len(turns), tf.int32), turns)


def shift_and_flip(images: tf.Tensor, uniform: tf.Tensor, padding_value: float = 0) -> tf.Tensor:
    """Pads images by 4 pixels on each side, crops each at random to its size, and mirrors half of them.

    He et al. 2016 (arXiv:1512.03385), section 4.2. All images of a batch at once: two gathers, whatever their number.

    Args:
      images: [N, H, W, C].
      uniform: [N, 3] float32 in [0, 1): of each image what decides on rows, columns and mirroring.
      padding_value: of the pixels around; black is 0 of uint8 and -1 of normalised images.
    """
    height, width = images.shape.as_list()[1:3]
    around = [PADDING, PADDING]
    padded = tf.pad(images, [[0, 0], around, around, [0, 0]], constant_values=padding_value)
    first = tf.cast(uniform[:, :2] * (2 * PADDING + 1), tf.int32)
    rows = first[:, :1] + tf.range(height)
    ahead = tf.range(width)
    columns = first[:, 1:] + tf.where_v2(uniform[:, 2:] < 0.5, tf.reverse(ahead, [0])[tf.newaxis], ahead[tf.newaxis])
    return tf.gather(tf.gather(padded, rows, axis=1, batch_dims=1), columns, axis=2, batch_dims=1)


def normalize(images: tf.Tensor, *, is_record: bool = False) -> tf.Tensor:
    """uint8 of any shape -> float32 in [-1, 1] of the same shape. is_record: one of many images on the same device."""
    constant = _shared if is_record else tf.constant
    return tf.cast(images, tf.float32) * constant(1 / 127.5, tf.float32) - constant(1.0, tf.float32)


def distort_colors(image: tf.Tensor, draws: Sequence[tf.Tensor], position: int) -> tf.Tensor:
    """[H, W, 3] float32 in [0, 255] -> the same with other colours. draws: one scalar in [0, 1) for each change."""
    for name, draw in zip(_COLOR_ORDERS[position % len(_COLOR_ORDERS)], draws, strict=True):
        low, high = _COLOR_RANGES[name]
        image = _COLOR_OPS[name](image, _shared(low, tf.float32) + draw * _shared(high - low, tf.float32))
    return _clipped(image)


def _flip_if(mirrored: tf.Tensor, image: tf.Tensor) -> tf.Tensor:
    """[H, W, C], left and right swapped if the scalar bool says so."""
    # Switch and Merge are what tf.cond becomes; used as they are, they spare two functions for each image of a batch.
    kept, flipped = tf.raw_ops.Switch(data=image, pred=mirrored)
    return tf.raw_ops.Merge(inputs=[kept, tf.reverse(flipped, _shared([1]))])[0]
