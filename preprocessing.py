"""One encoded record -> one image tensor: parse, decode and crop, resize, distort, flip. All of it runs on the CPU."""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from errors import UsageError


def _rounded(pixels: tf.Tensor) -> tf.Tensor:
    """float32 in [0, 255] -> the nearest uint8. A plain cast would truncate and darken every image by half a level."""
    return tf.cast(pixels + 0.5, tf.uint8)


# Each takes images [1, h, w, C] uint8 and size [H, W] and returns [1, H, W, C], uint8 (nearest) or float32. Pixel
# centres are at halves, as in PIL; only area looks at every pixel when it makes an image smaller.
_RESIZE: dict[str, Callable[[tf.Tensor, list[int]], tf.Tensor]] = {
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

    training: random crop and flip; else the central crop. distortions: random colours as well, when training.
    resize_method: one of RESIZE_METHODS; round_robin takes another one for each position in the batch.
    seed: of every random draw, which also depends on the position in the batch.

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
        return self.training


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
    features: dict[str, object] = {
        'image/encoded': tf.FixedLenFeature([], tf.string),
        'image/class/label': tf.FixedLenFeature([], tf.int64),
    }
    sides = [f'image/object/bbox/{side}' for side in ('ymin', 'xmin', 'ymax', 'xmax')] if with_boxes else []
    features.update({side: tf.FixedLenSequenceFeature([], tf.float32, allow_missing=True) for side in sides})
    parsed = tf.parse_single_example(serialized, features)
    boxes = tf.stack([parsed[side] for side in sides], axis=-1)[tf.newaxis] if sides else tf.zeros([1, 0, 4])
    # One op that casts and checks: looking up a label that is not in the list of labels fails (on the CPU). With an
    # assert for each record it would be five ops.
    labels = tf.range(num_classes, dtype=tf.int32)
    label = tf.gather(labels, parsed['image/class/label'], name=f'label_below_{num_classes}')
    return parsed['image/encoded'], label, boxes


def preprocess(encoded: tf.Tensor, boxes: tf.Tensor, options: ImageOptions, position: int) -> tf.Tensor:
    """Makes an image of a JPEG file.

    Args:
      encoded: scalar string, a JPEG file. Grey and CMYK files become [.., .., options.channels], too.
      boxes: [1, K, 4] float32 of parse_example; only used when training.
      options: size, crop, distortions.
      position: in the batch. Each position draws its own random numbers and has its order of distortions.

    Returns:
      [H, W, C] uint8. The step fails with InvalidArgumentError when the file is not a JPEG, or a damaged one.
    """
    shape = tf.raw_ops.ExtractJpegShape(contents=encoded)
    window = random_window(shape, boxes, options.seed, position) if options.training else central_window(shape, options)
    # Only the window is decoded. The fast DCT would spare 3 % of the decoding and darken every image by 0.8 of 255
    # levels; smoothing the colour planes would cost 6 % and is lost in the resize.
    cropped = tf.raw_ops.DecodeAndCropJpeg(
        contents=encoded,
        crop_window=window,
        channels=options.channels,
        fancy_upscaling=False,
        dct_method='INTEGER_ACCURATE',
    )
    image = resize(cropped, options, position)
    if not options.training:
        return image if image.dtype == tf.uint8 else _rounded(image)
    draws = tf.raw_ops.RandomUniform(
        shape=[1 + len(_COLOR_RANGES)], dtype=tf.float32, seed=options.seed, seed2=position + 1
    )
    flip, *colors = tf.unstack(draws)
    if options.distortions:
        image = distort_colors(tf.cast(image, tf.float32), colors, position)
    return _flip_if(flip < 0.5, image if image.dtype == tf.uint8 else _rounded(image))


def random_window(shape: tf.Tensor, boxes: tf.Tensor, seed: int, position: int) -> tf.Tensor:
    """The window y, x, height, width ([4] int32) of a random crop of an image of shape [3] int32 (h, w, channels)."""
    begin, size, _ = tf.raw_ops.SampleDistortedBoundingBoxV2(
        image_size=shape,
        bounding_boxes=boxes,
        min_object_covered=MIN_OBJECT_COVERED,
        aspect_ratio_range=ASPECT_RANGE,
        area_range=AREA_RANGE,
        use_image_if_no_bounding_boxes=True,
        seed=seed,
        seed2=position + 1,  # a pair of zeros would ask for a seed from the clock
    )
    return tf.concat([begin[:2], size[:2]], axis=0)


def central_window(shape: tf.Tensor, options: ImageOptions) -> tf.Tensor:
    """The window y, x, height, width ([4] int32) in the middle of an image of shape [3] int32 (h, w, channels).

    It has the aspect of the output (a square for a square) and 87.5 % of the largest such window.
    """
    target = tf.constant([options.height, options.width], tf.float32)
    scale = CENTRAL_FRACTION * tf.reduce_min(tf.cast(shape[:2], tf.float32) / target)
    size = tf.maximum(tf.cast(tf.round(scale * target), tf.int32), 1)
    return tf.concat([(shape[:2] - size) // 2, size], axis=0)


def resize(image: tf.Tensor, options: ImageOptions, position: int) -> tf.Tensor:
    """[h, w, C] uint8 -> [H, W, C], uint8 or float32 in [0, 255]."""
    method = options.resize_method
    if method == 'round_robin':
        method = list(_RESIZE)[position % len(_RESIZE)]
    size = [options.height, options.width]
    resized = tf.reshape(_RESIZE[method](image[tf.newaxis], size), [*size, options.channels])
    # Bicubic overshoots at edges, and what a cast makes of that is undefined.
    return tf.clip_by_value(resized, 0, 255) if method == 'bicubic' else resized


def normalize(images: tf.Tensor) -> tf.Tensor:
    """uint8 of any shape -> float32 in [-1, 1] of the same shape."""
    return tf.cast(images, tf.float32) * (1 / 127.5) - 1.0


def distort_colors(image: tf.Tensor, draws: list[tf.Tensor], position: int) -> tf.Tensor:
    """[H, W, 3] float32 in [0, 255] -> the same with other colours. draws: one scalar in [0, 1) for each change."""
    for name, draw in zip(_COLOR_ORDERS[position % len(_COLOR_ORDERS)], draws, strict=True):
        low, high = _COLOR_RANGES[name]
        image = _COLOR_OPS[name](image, low + draw * (high - low))
    return tf.clip_by_value(image, 0, 255)


def _flip_if(mirrored: tf.Tensor, image: tf.Tensor) -> tf.Tensor:
    """[H, W, C], left and right swapped if the scalar bool says so."""
    # Switch and Merge are what tf.cond becomes; used as they are, they spare two functions for each image of a batch.
    kept, flipped = tf.raw_ops.Switch(data=image, pred=mirrored)
    return tf.raw_ops.Merge(inputs=[kept, tf.reverse(flipped, [1])])[0]
