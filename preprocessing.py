"""Converts an encoded record to an image tensor: parse, decode and crop, resize, distort, flip.

All of it runs on the CPU, except shift_and_flip and normalize, which run on any device.
"""

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from numpy.typing import ArrayLike

# The names of each graph's constants. The tensors themselves would keep the graph in memory.
_constant_names: weakref.WeakKeyDictionary[tf.Graph, dict[tuple[object, ...], str]] = (
    weakref.WeakKeyDictionary()
)


def shared_constant(value: ArrayLike, dtype: tf.DType = tf.int32) -> tf.Tensor:
    """Returns one constant for equal values in the current graph, which may be a function's.

    The function for one image (tf_cnn/inputs/pipeline.py) runs its constants before its other
    ops, so fewer are faster.
    """
    array = np.asarray(value, dtype.as_numpy_dtype)
    graph = tf.get_default_graph()
    names = _constant_names.setdefault(graph, {})
    key = (dtype, array.shape, array.tobytes())
    if key in names:
        return graph.get_tensor_by_name(names[key])
    with tf.control_dependencies(None):
        constant = tf.constant(array, dtype)
    names[key] = constant.name
    return constant


# Each takes images [1, h, w, C], uint8 or float32, and size [2] int32 (H, W). Returns [1, H, W, C]:
# nearest of the same type, the others float32. Pixel centres are at half-integers, as in PIL. When
# shrinking, only area reads every pixel.
_RESIZE: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    'nearest': lambda images, size: tf.raw_ops.ResizeNearestNeighbor(
        images=images, size=size, half_pixel_centers=True
    ),
    'bilinear': lambda images, size: tf.raw_ops.ResizeBilinear(
        images=images, size=size, half_pixel_centers=True
    ),
    'bicubic': lambda images, size: tf.raw_ops.ResizeBicubic(
        images=images, size=size, half_pixel_centers=True
    ),
    'area': lambda images, size: tf.raw_ops.ResizeArea(images=images, size=size),
}
RESIZE_METHODS = (*_RESIZE, 'round_robin')
# Images with at most this many times the pixels of the output become float32 before they are
# resized, because the kernels read floats faster: bilinear takes half the time. In larger images
# the kernels read too few pixels to pay for the conversion.
_MAX_CONVERTED_RATIO = 4

# The random crop of Szegedy et al. 2015 (arXiv:1409.4842, section 6) with the numbers of its
# published TensorFlow code: 5 to 100 % of the area (8 to 100 % in the paper), and at least a tenth
# of an object, or of an image without boxes.
AREA_RANGE = (0.05, 1.0)
ASPECT_RANGE = (3 / 4, 4 / 3)
MIN_OBJECT_COVERED = 0.1
# Pixels on each side for the crops of small images: He et al. 2016 (arXiv:1512.03385), section 4.2.
PADDING = 4

# Evaluation uses the central 224 of 256 pixels: Krizhevsky et al. 2012, section 4.1.
CENTRAL_FRACTION = 0.875


@dataclass(frozen=True)
class Scale:
    """Normalises pixels from 0 to 255: factor * pixel - offset; by default to [-1, 1].

    offsets has one entry for each channel, or one for all.
    """

    factor: float = 1 / 127.5
    offsets: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class ImageOptions:
    """How to convert an encoded image to [height, width, channels].

    Raises ValueError if an option is unknown or impossible.

    Attributes:
      distortions: whether training also changes the colours at random.
      in_yiq: whether colours are changed in YIQ, not in HSV, see below.
      resize_method: one of RESIZE_METHODS; round_robin cycles through the methods by the position
        in the batch.
      scaled_decode: whether the decoder halves the size of large images, once or more, but not
        below the size of the output. Then each pixel is a mean; all resize methods except area read
        only one to sixteen pixels of the image.
      seed: the seed of all random numbers, which also depend on the position in the batch.
      augmentation: 'resized_crop' crops and flips at random in training, and crops centrally
        otherwise. 'padded_crop' and 'none' only crop to the aspect ratio of the output;
        'padded_crop' also shifts and flips at random in training.
      shorter_side: determines the central part: the output would be cut out of the middle after the
        shorter side was resized to this length in pixels. With None, the central part is 87.5 % of
        the sides.
    """

    height: int
    width: int
    channels: int
    training: bool
    distortions: bool = False
    in_yiq: bool = True
    resize_method: str = 'bilinear'
    scaled_decode: bool = False
    seed: int = 0
    augmentation: str = 'resized_crop'
    scale: Scale = Scale()
    shorter_side: int | None = None

    def __post_init__(self) -> None:
        if self.resize_method not in RESIZE_METHODS:
            raise ValueError(
                f'resize_method={self.resize_method!r}: it must be one of '
                f'{", ".join(RESIZE_METHODS)}'
            )
        if self.distortions and self.channels != 3:
            raise ValueError(
                f'distortions change colours; images of {self.channels} channels have no colours'
            )

    @property
    def uses_boxes(self) -> bool:
        return self.training and self.augmentation == 'resized_crop'

    @property
    def central_fraction(self) -> float:
        """The sides of the window that evaluations use, as a fraction of the largest window.

        Both windows have the aspect ratio of the output.
        """
        if self.augmentation != 'resized_crop':
            return 1.0
        if self.shorter_side is None:
            return CENTRAL_FRACTION
        return min(1.0, max(self.height, self.width) / self.shorter_side)

    @property
    def needs_shift_and_flip(self) -> bool:
        """Whether the caller must apply shift_and_flip to each batch."""
        return self.training and self.augmentation == 'padded_crop'


def parse_example(
    serialized: tf.Tensor, num_classes: int, with_boxes: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Parses a tf.train.Example, a scalar string, with the features of the ImageNet TFRecords.

    Returns:
      encoded: scalar string, the JPEG file of image/encoded.
      label: scalar int32, image/class/label, in [0, num_classes).
      boxes: [1, K, 4] float32, each ymin, xmin, ymax, xmax as a fraction of the image; K is 0
        unless with_boxes.

    The step fails with DataLossError if the record is not an Example, and with InvalidArgumentError
    if the image or the label is missing, or if the label is out of range (the failing op is named
    label_below_NUM_CLASSES).
    """
    sides = (
        [f'image/object/bbox/{side}' for side in ('ymin', 'xmin', 'ymax', 'xmax')]
        if with_boxes
        else []
    )
    # Image and label are required; missing boxes parse as empty.
    defaults = [
        shared_constant([], tf.string),
        shared_constant([], tf.int64),
        *[shared_constant(0, tf.float32)] * len(sides),
    ]
    encoded, label, *edges = tf.raw_ops.ParseSingleExample(
        serialized=_validate_example(serialized),
        dense_defaults=defaults,
        num_sparse=0,
        sparse_keys=[],
        sparse_types=[],
        dense_keys=['image/encoded', 'image/class/label', *sides],
        dense_shapes=[[], [], *[[None]] * len(sides)],
    ).dense_values
    boxes = (
        tf.expand_dims(tf.stack(edges, axis=-1), shared_constant(0))
        if sides
        else shared_constant(np.zeros([1, 0, 4]), tf.float32)
    )
    # One gather both casts and checks the label: on the CPU, an index out of range fails. An assert
    # would take five ops per record.
    labels = shared_constant(np.arange(num_classes))
    label = tf.gather(labels, label, axis=shared_constant(0), name=f'label_below_{num_classes}')
    return encoded, label, boxes


def _validate_example(serialized: tf.Tensor) -> tf.Tensor:
    """Returns the scalar string if protobuf can read it as an Example; otherwise the step fails.

    TensorFlow's parser of Examples is faster than protobuf, but crashes the process (signal 11)
    if a record claims a string of 2^31 bytes or more. The check costs 14 microseconds per record of
    100 KB; the other work on such a record takes 1,100.
    """
    # The op reads nested messages only with sanitize.
    sizes = tf.raw_ops.DecodeProtoV2(
        bytes=serialized,
        message_type='tensorflow.Example',
        field_names=[],
        output_types=[],
        sanitize=True,
    ).sizes
    # Without fields, `sizes` is empty: the shape of a scalar. Reshaping makes the result depend on
    # the check; TensorFlow's optimizer would remove a control dependency.
    return tf.reshape(serialized, sizes)


class RandomNumbers(NamedTuple):
    """The random numbers of N images, or, without the first axis, of one image.

    Attributes:
      is_mirrored: [N] bool.
      colors: [N, K] float32 in [0, 1): one number for each of K colour distortions.
      window_seeds: [N, 2] int64, determine the random crop.
    """

    is_mirrored: tf.Tensor
    colors: tf.Tensor
    window_seeds: tf.Tensor

    def of_image(self, index: int) -> 'RandomNumbers':
        return RandomNumbers(*(numbers[index] for numbers in self))


def draw_random_numbers(
    num_images: int, options: ImageOptions, seeds: tf.Tensor | None = None
) -> RandomNumbers:
    """Draws the random numbers of several images.

    seeds, [2] int64, determine them. With None, each step draws the next numbers of options.seed.
    """
    shape = [num_images, 1 + (NUM_COLOR_CHANGES if options.distortions else 0)]
    seeds_shape, limits = [num_images, 2], tf.int64.limits
    # If both seeds were 0, the ops would choose a random seed.
    if seeds is None:
        uniform = tf.raw_ops.RandomUniform(
            shape=shape, dtype=tf.float32, seed=options.seed, seed2=-1
        )
        low, high = (tf.constant(limit, tf.int64) for limit in limits)
        window_seeds = tf.raw_ops.RandomUniformInt(
            shape=seeds_shape, minval=low, maxval=high, seed=options.seed, seed2=-2
        )
    else:
        uniform = tf.random.stateless_uniform(shape, seeds)
        window_seeds = tf.random.stateless_uniform(seeds_shape, -1 - seeds, *limits, tf.int64)
    return RandomNumbers(uniform[:, 0] < 0.5, uniform[:, 1:], window_seeds)


def preprocess(
    encoded: tf.Tensor,
    boxes: tf.Tensor,
    options: ImageOptions,
    position: tf.Tensor | int,
    random_numbers: RandomNumbers | None = None,
) -> tf.Tensor:
    """Decodes, crops, resizes and augments a JPEG file, a scalar string -> [H, W, C] uint8.

    Grey and CMYK files are converted to options.channels, too. The step fails with
    InvalidArgumentError if the file is not a JPEG file or is damaged.

    Args:
      boxes: [1, K, 4] float32 from parse_example; only used in training.
      position: the position in the batch, a scalar int64 or a number. The method of round_robin and
        the order of the distortions depend on it.
      random_numbers: of this image; required in training, else not used.
    """
    image = resize_and_distort(
        decode(encoded, boxes, options, random_numbers), options, position, random_numbers
    )
    return (
        _flip_if(random_numbers.is_mirrored, image)
        if random_numbers and options.uses_boxes
        else image
    )


def decode(
    encoded: tf.Tensor,
    boxes: tf.Tensor,
    options: ImageOptions,
    random_numbers: RandomNumbers | None = None,
) -> tf.Tensor:
    """Decodes the used part of a JPEG file to [h, w, C] uint8.

    Takes the arguments of preprocess, and fails in the same cases.
    """
    shape = tf.raw_ops.ExtractJpegShape(contents=encoded)
    if options.uses_boxes:
        assert random_numbers
        window = random_window(shape, boxes, random_numbers.window_seeds)
    else:
        window = central_window(shape, options)
    min_size = (options.height, options.width) if options.scaled_decode else None
    return decode_window(encoded, window, options.channels, min_size)


def resize_and_distort(
    image: tf.Tensor,
    options: ImageOptions,
    position: tf.Tensor | int,
    random_numbers: RandomNumbers | None,
) -> tf.Tensor:
    """Resizes [h, w, C] uint8 to [H, W, C] uint8, and distorts colours if the options say so."""

    def convert_at(number: int) -> tf.Tensor:
        resized = resize(image, options, number)
        if options.training and options.distortions:
            assert random_numbers
            levels = tf.cast(resized, tf.float32)
            colors = tf.unstack(random_numbers.colors)
            resized = (
                distort_in_yiq(levels, colors)
                if options.in_yiq
                else distort_in_hsv(levels, colors, number)
            )
        if resized.dtype == tf.uint8:
            return resized
        # A plain cast would truncate, and darken every image by half a level.
        return tf.cast(resized + shared_constant(0.5, tf.float32), tf.uint8)

    if options.resize_method == 'round_robin':
        num_variants = len(_RESIZE)
    elif options.training and options.distortions and not options.in_yiq:
        num_variants = NUM_HSV_ORDERS
    else:
        num_variants = 1
    if isinstance(position, int):
        return convert_at(position)
    if num_variants == 1:
        return convert_at(0)
    variants = [functools.partial(convert_at, number) for number in range(num_variants)]
    return tf.switch_case(tf.cast(position % num_variants, tf.int32), variants)


def random_window(shape: tf.Tensor, boxes: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    """Returns the window y, x, height, width ([4] int32) of a random crop.

    Args:
      shape: [3] int32: h, w, channels.
      boxes: [1, K, 4] float32 from parse_example.
      seeds: [2] int64, determine the crop.
    """
    begin, size, _ = tf.raw_ops.StatelessSampleDistortedBoundingBox(
        image_size=shape,
        bounding_boxes=boxes,
        min_object_covered=shared_constant(MIN_OBJECT_COVERED, tf.float32),
        seed=seeds,
        aspect_ratio_range=ASPECT_RANGE,
        area_range=AREA_RANGE,
        use_image_if_no_bounding_boxes=True,
    )
    y_x_height_width = [0, 1, 3, 4]
    return tf.gather(
        tf.concat([begin, size], shared_constant(0)),
        shared_constant(y_x_height_width),
        axis=shared_constant(0),
    )


def central_window(shape: tf.Tensor, options: ImageOptions) -> tf.Tensor:
    """Returns the window y, x, height, width ([4] int32) in the centre of an image of this shape,
    [3] int32.

    The window has the aspect ratio of the output; its sides are options.central_fraction of those
    of the largest such window.
    """
    target = shared_constant([options.height, options.width], tf.float32)
    whole = tf.slice(shape, shared_constant([0]), shared_constant([2]))
    scale = tf.reduce_min(tf.cast(whole, tf.float32) / target, axis=shared_constant(0))
    size = tf.cast(
        tf.round(shared_constant(options.central_fraction, tf.float32) * scale * target), tf.int32
    )
    size = tf.maximum(size, shared_constant(1))
    return tf.concat([(whole - size) // shared_constant(2), size], shared_constant(0))


def resize(image: tf.Tensor, options: ImageOptions, position: int) -> tf.Tensor:
    """Resizes [h, w, C] uint8 to [H, W, C], uint8 or float32 in [0, 255]."""
    method = options.resize_method
    if method == 'round_robin':
        method = list(_RESIZE)[position % len(_RESIZE)]
    shape = [options.height, options.width, options.channels]
    images, size, resample = (
        tf.expand_dims(image, shared_constant(0)),
        shared_constant(shape[:2]),
        _RESIZE[method],
    )
    if method == 'nearest':
        resized = resample(images, size)
    else:
        converts = tf.size(images) <= shared_constant(_MAX_CONVERTED_RATIO * math.prod(shape))
        large, small = tf.raw_ops.Switch(data=images, pred=converts)
        resized = tf.raw_ops.Merge(
            inputs=[resample(large, size), resample(tf.cast(small, tf.float32), size)]
        )[0]
    resized = tf.reshape(resized, shared_constant(shape))
    # Bicubic overshoots at edges, and casting values outside [0, 255] to uint8 is undefined.
    if method == 'bicubic':
        return tf.clip_by_value(
            resized, shared_constant(0, tf.float32), shared_constant(255, tf.float32)
        )
    return resized


def shift_and_flip(images: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Pads [N, H, W, C] with 4 black pixels on each side, crops it to [H, W] and mirrors it.

    The position of the crop is random, and half of the images are mirrored: He et al. 2016
    (arXiv:1512.03385), section 4.2. Black must be 0 in the scale of the images.

    Args:
      uniform: [N, 3] float32 in [0, 1): random numbers for the row offset, the column offset and
        the mirroring.
    """
    height, width = images.shape.as_list()[1:3]
    padded = tf.pad(images, [[0, 0], [PADDING, PADDING], [PADDING, PADDING], [0, 0]])
    # On a GPU, 32-bit integers would be computed in host memory.
    offsets = tf.cast(uniform[:, :2] * (2 * PADDING + 1), tf.int64)
    rows = offsets[:, :1] + np.arange(height)
    order = np.arange(width)[np.newaxis]
    mirrored = tf.where_v2(
        uniform[:, 2:] < 0.5, tf.constant(order[:, ::-1], tf.int64), tf.constant(order, tf.int64)
    )
    columns = offsets[:, 1:] + mirrored
    return tf.gather(tf.gather(padded, rows, axis=1, batch_dims=1), columns, axis=2, batch_dims=1)


def normalize(images: tf.Tensor, scale: Scale | None = None) -> tf.Tensor:
    """Converts uint8 [..., C] to float32 of the same shape in a scale, by default in [-1, 1]."""
    scale = scale or Scale()
    pixels = tf.cast(images, tf.float32)
    if scale.factor != 1:
        pixels *= scale.factor
    offsets = scale.offsets if len(scale.offsets) > 1 else scale.offsets[0]
    return pixels - tf.constant(offsets, tf.float32)


def _flip_if(is_mirrored: tf.Tensor, image: tf.Tensor) -> tf.Tensor:
    """Mirrors [H, W, C] horizontally if the scalar bool is true."""
    # tf.cond is lowered to Switch and Merge; using them directly saves two functions for each image
    # of a batch.
    unflipped, flipped = tf.raw_ops.Switch(data=image, pred=is_mirrored)
    return tf.raw_ops.Merge(inputs=[unflipped, tf.reverse(flipped, shared_constant([1]))])[0]


# ---- decoding ------------------------------------------------------------------------------------

# libjpeg-turbo can scale down by these factors while it decodes: its inverse transforms turn the
# 8x8 coefficients of a block into 4x4, 2x2 or 1x1 pixels, each approximately the mean of the
# pixels that it replaces.
RATIOS = (2, 4, 8)


def decode_window(
    encoded: tf.Tensor, window: tf.Tensor, channels: int, min_size: tuple[int, int] | None = None
) -> tf.Tensor:
    """Decodes a window of a JPEG file (see preprocess) to [h, w, channels] uint8.

    The rows below the window are not read, and the blocks beside it not transformed.

    Args:
      window: [4] int32: y, x, height, width, in pixels of the whole image.
      min_size: scale by the largest of RATIOS that leaves the window at least this height and
        width; None never scales.
    """
    if min_size is None:
        return _decode(encoded, window, channels, 1)
    fits = tf.reduce_min(
        tf.slice(window, shared_constant([2]), shared_constant([2])) // shared_constant(min_size),
        axis=shared_constant(0),
    ) >= shared_constant(RATIOS)
    halvings = tf.reduce_sum(tf.cast(fits, tf.int32), axis=shared_constant(0))
    scaled = _scale_window(window, tf.bitwise.left_shift(shared_constant(1), halvings))
    # Only the decoder that gets the window runs. tf.switch_case would create a function for each
    # decoder and image.
    images = []
    for ratio, ratio_fits in reversed(list(zip(RATIOS, tf.unstack(fits), strict=True))):
        scaled, ratio_window = tf.raw_ops.Switch(data=scaled, pred=ratio_fits)
        images.append(_decode(encoded, ratio_window, channels, ratio))
    return tf.raw_ops.Merge(inputs=[*images, _decode(encoded, scaled, channels, 1)])[0]


def _scale_window(window: tf.Tensor, ratio: tf.Tensor) -> tf.Tensor:
    """Converts a window, [4] int32, to pixels of the image scaled down by ratio, a scalar.

    Edges are rounded. The height and width differ by less than one pixel from the exact quotients,
    and are at least the quotients rounded down.
    """
    begin, size = tf.split(window, 2)
    half = ratio // shared_constant(2)
    new_begin, new_end = (begin + half) // ratio, (begin + size + half) // ratio
    return tf.concat([new_begin, new_end - new_begin], shared_constant(0))


def _decode(encoded: tf.Tensor, window: tf.Tensor, channels: int, ratio: int) -> tf.Tensor:
    # The fast DCT would save 3 % of the decoding time but darken every image by 0.8 of 255 levels.
    # Fancy upscaling of the colour planes would take 6 % more time, and the resize removes its
    # effect.
    return tf.raw_ops.DecodeAndCropJpeg(
        contents=encoded,
        crop_window=window,
        channels=channels,
        ratio=ratio,
        fancy_upscaling=False,
        dct_method='INTEGER_ACCURATE',
    )


# ---- colours -------------------------------------------------------------------------------------

# Random changes of the colours of an image: brightness, saturation, hue and contrast, in as few
# passes as possible.
#
# Howard 2013 (arXiv:1312.5402, section 2.2) changes colours in a random order; the orders and
# ranges here come from the published Inception code. Brightness is added to each channel.
# Contrast stretches each channel about its mean. Saturation and hue are changed in one of two
# colour spaces:
#
# - YIQ: the chromaticity (I, Q) of each pixel is multiplied and rotated. All changes together are
# one matrix and one offset for the whole image, in any order: brightness keeps I and Q, contrast
# stretches them about their means, and the matrix keeps grey. Results outside [0, 255] are clipped
# once, at the end.
# - HSV: the saturation of each pixel is multiplied and clipped, and the hue is rotated.

# The ranges of the changes: brightness in levels of 255, hue in full turns; the others are factors.
_RANGES = {
    'brightness': (-32.0, 32.0),
    'saturation': (0.5, 1.5),
    'hue': (-0.2, 0.2),
    'contrast': (0.5, 1.5),
}
_YIQ_RANGES = {**_RANGES, 'hue': (-0.1, 0.1)}
_HSV_ORDERS = (
    ('brightness', 'saturation', 'hue', 'contrast'),
    ('brightness', 'contrast', 'saturation', 'hue'),
)
# Each change takes one random number for each image.
NUM_COLOR_CHANGES = len(_RANGES)
NUM_HSV_ORDERS = len(_HSV_ORDERS)

# Y, I, Q from red, green, blue: FCC 1953 (47 CFR 73.682), with the three digits of the I and Q rows
# that TensorFlow's contrib.image used. I and Q of grey are 0.
_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])


def distort_in_yiq(image: tf.Tensor, uniform: Sequence[tf.Tensor]) -> tf.Tensor:
    """Changes the colours of [H, W, 3] float32 in [0, 255] in YIQ; returns [H, W, 3] uint8.

    uniform has a random scalar in [0, 1) for each change in _YIQ_RANGES.

    A pixel x becomes c * M x + (1 - c) * M m + b, where m is the mean pixel, c the contrast, b the
    brightness, and M saturates and rotates.
    """
    height, width = image.shape.as_list()[:2]
    low, high = np.transpose([*_YIQ_RANGES.values()])
    changes = tf.stack(uniform) * shared_constant(high - low, tf.float32) + shared_constant(
        low, tf.float32
    )
    brightness, saturation, hue_turns, contrast = tf.unstack(changes)

    # The matrix is linear in these three numbers.
    angle, chroma = hue_turns * shared_constant(2 * np.pi, tf.float32), contrast * saturation
    coefficients = tf.stack([[contrast, chroma * tf.cos(angle), chroma * tf.sin(angle)]])
    matrix = tf.reshape(
        tf.matmul(
            coefficients, shared_constant(_yiq_basis_matrices().reshape([3, -1]), tf.float32)
        ),
        shared_constant([3, 3]),
    )

    # A matrix product sums faster than a reduction does, and adding to long rows is faster than to
    # pixels.
    rows = shared_constant([height, 3 * width])
    sums = tf.matmul(
        shared_constant(np.full([1, height], 1 / (height * width)), tf.float32),
        tf.reshape(image, rows),
    )
    mean = tf.matmul(sums, shared_constant(np.tile(np.eye(3), [width, 1]), tf.float32))
    offset = (
        tf.matmul(mean, matrix) * (tf.math.reciprocal(contrast) - shared_constant(1, tf.float32))
        + brightness
    )
    offsets = tf.reshape(tf.tile(offset, shared_constant([1, width])), shared_constant([-1]))
    changed = tf.reshape(tf.matmul(tf.reshape(image, shared_constant([-1, 3])), matrix), rows)
    return tf.reshape(
        to_uint8(tf.nn.bias_add(changed, offsets)), shared_constant([height, width, 3])
    )


def _yiq_basis_matrices() -> np.ndarray:
    """Returns [3, 3, 3]: three matrices to multiply rows of RGB pixels with.

    They keep only Y, keep only I and Q, and keep only I and Q rotated by 90 degrees.
    """
    inverse = np.linalg.inv(_YIQ)
    chroma, rotated_chroma = np.diag([0, 1, 1]), np.array([[0, 0, 0], [0, 0, -1], [0, 1, 0]])
    return np.stack(
        [
            (inverse @ yiq_matrix @ _YIQ).T
            for yiq_matrix in (np.diag([1, 0, 0]), chroma, rotated_chroma)
        ]
    )


def distort_in_hsv(image: tf.Tensor, uniform: Sequence[tf.Tensor], position: int) -> tf.Tensor:
    """Changes the colours of [H, W, 3] float32 in [0, 255] in HSV; returns [H, W, 3] uint8.

    uniform has a random scalar in [0, 1) for each change, in the order of _HSV_ORDERS.
    """
    height, width = image.shape.as_list()[:2]
    order = _HSV_ORDERS[position % NUM_HSV_ORDERS]
    change = {}
    for name, number in zip(order, uniform, strict=True):
        low, high = _RANGES[name]
        change[name] = shared_constant(low, tf.float32) + number * shared_constant(
            high - low, tf.float32
        )
    contrast, brightness = change['contrast'], change['brightness']

    # Arithmetic on whole planes is vectorised.
    planes = tf.transpose(
        tf.reshape(image, shared_constant([height * width, 3])), shared_constant([1, 0])
    )
    if order[-1] == 'contrast':
        changed = _saturate_and_rotate(planes + brightness, change['saturation'], change['hue'])
        changed = _stretch_contrast(changed, contrast, shared_constant(0, tf.float32))
    else:
        changed = _saturate_and_rotate(
            _stretch_contrast(planes, contrast, brightness), change['saturation'], change['hue']
        )
    return tf.reshape(
        tf.transpose(to_uint8(changed), shared_constant([1, 0])),
        shared_constant([height, width, 3]),
    )


def _stretch_contrast(planes: tf.Tensor, contrast: tf.Tensor, brightness: tf.Tensor) -> tf.Tensor:
    """Stretches each plane of [3, N] about its mean, and adds the brightness."""
    means = tf.reduce_mean(planes, axis=shared_constant([1]), keepdims=True)
    return planes * contrast + (means * (shared_constant(1, tf.float32) - contrast) + brightness)


def _saturate_and_rotate(
    planes: tf.Tensor, saturation: tf.Tensor, hue_turns: tf.Tensor
) -> tf.Tensor:
    """Changes the saturation and the hue of [3, N]: red, green and blue.

    With value v, the largest of the three, and chroma c, the distance from the smallest to it,
    saturation is c / v, and a hue h in turns has a red of v - c * min(max(6 |h| - 1, 0), 1), where
    |h| is the distance from h to the nearest whole number; green is the red of h - 1/3, and blue of
    h - 2/3 (Smith 1978, Color Gamut Transform Pairs).
    """
    zero, one, six = (shared_constant(number, tf.float32) for number in (0, 1, 6))
    red, green, blue = tf.unstack(planes)
    value = tf.maximum(tf.maximum(red, green), blue)
    chroma = value - tf.minimum(tf.minimum(red, green), blue)
    is_red, is_green = tf.equal(red, value), tf.equal(green, value)
    difference = tf.where_v2(is_red, green - blue, tf.where_v2(is_green, blue - red, red - green))
    begin = tf.where_v2(
        is_red,
        zero,
        tf.where_v2(
            is_green, shared_constant(1 / 3, tf.float32), shared_constant(2 / 3, tf.float32)
        ),
    )
    # Grey has the hue 0.
    hue = difference / (six * tf.maximum(chroma, shared_constant(1e-20, tf.float32))) + (
        begin + hue_turns
    )
    # Saturation is at most 1, and 0 in a pixel that brightness or contrast has made negative.
    chroma = tf.maximum(tf.minimum(chroma * saturation, value), zero)
    hues = hue - shared_constant(np.array([[0], [1 / 3], [2 / 3]]), tf.float32)
    distances = tf.abs(hues - tf.round(hues))
    return value - chroma * tf.raw_ops.ClipByValue(
        t=six * distances - one, clip_value_min=zero, clip_value_max=one
    )


def to_uint8(pixels: tf.Tensor) -> tf.Tensor:
    """Clips float32 to [0, 255] and rounds it to uint8, in one pass."""
    low, high = shared_constant(0, tf.float32), shared_constant(255, tf.float32)
    return tf.bitcast(
        tf.raw_ops.QuantizeV2(input=pixels, min_range=low, max_range=high, T=tf.quint8).output,
        tf.uint8,
    )
