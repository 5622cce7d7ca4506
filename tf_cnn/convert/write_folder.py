"""Writes the shards of a folder of images, with a progress bar and a summary."""

import functools
import hashlib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tf_cnn.convert.check import MAX_LISTED, format_count, show_progress
from tf_cnn.convert.config import IMAGES_PER_SHARD, MIN_SHARDS, RecordsOptions
from tf_cnn.inputs.data_sets import SUBSETS
from tf_cnn.inputs.layout import ImageFolder, SourceImage, scan_folder
from tf_cnn.machine.processors import process_cores
from tf_cnn.system.errors import UsageError, format_scaled, missing_package_message, plural
from tf_cnn.system.signals import SIGNALS

if TYPE_CHECKING:
    from tf_cnn.convert.write import WriteSummary


def split_images(
    folder: ImageFolder, validation_share: float, seed: int
) -> tuple[tuple[SourceImage, ...], tuple[SourceImage, ...]]:
    """Returns the training images and the validation images, each in the order of the folder.

    Each class gives the share of its images to validation, rounded, but at least one image and not
    all of them. The only image of a class is a training image. A hash of the seed and the path
    chooses the images, so that a folder that grows keeps most validation images.
    """
    images_of_class: dict[int, list[SourceImage]] = {}
    for image in folder.images:
        images_of_class.setdefault(image.class_index, []).append(image)
    validation_images = {
        image
        for images in images_of_class.values()
        for image in _choose_images(images, validation_share, seed)
    }
    return (
        tuple(image for image in folder.images if image not in validation_images),
        tuple(image for image in folder.images if image in validation_images),
    )


def _choose_images(images: Sequence[SourceImage], share: float, seed: int) -> list[SourceImage]:
    count = min(max(1, round(share * len(images))), len(images) - 1)
    salt = f'{seed}/'.encode()
    hashes = {image: hashlib.sha256(salt + os.fsencode(image.path)).digest() for image in images}
    return sorted(images, key=hashes.__getitem__)[:count]


# The most classes without an image that the summary names.
_MAX_CLASSES = 5


def write_folder(options: RecordsOptions) -> int:
    if not options.input or not options.output:
        missing = 'output' if options.input else 'input'
        raise UsageError(
            f'--{missing} is missing: use --input=DIR and --output=DIR, or --check=DIR; see '
            'records --help'
        )
    if options.validation is not None and options.subset == 'validation':
        raise UsageError(
            f'--validation={options.validation:g} conflicts with --subset=validation: it writes '
            'training and validation shards; remove one'
        )
    try:
        importlib.import_module('PIL')
    except ModuleNotFoundError:
        raise UsageError(
            f'records reads images with Pillow: {missing_package_message("PIL")}'
        ) from None
    from tf_cnn.convert.output import check_output
    from tf_cnn.convert.write import write_shards

    folder = scan_folder(options.input)
    labels = ('background',) * options.first_label + folder.classes
    images_by_subset = _images_by_subset(options, folder)
    num_shards = _num_shards(options, images_by_subset)
    check_output(
        options.output,
        images_by_subset,
        labels,
        input_dir=options.input,
        overwrite=options.overwrite,
    )
    for reason, paths in sorted(folder.skipped_paths.items()):
        for path in paths[:MAX_LISTED]:
            print(f'passed over {path}: {reason}', file=sys.stderr)
        if len(paths) > MAX_LISTED:
            print(f'passed over {len(paths) - MAX_LISTED:,} more: {reason}', file=sys.stderr)
    options = replace(options, num_processes=options.num_processes or len(process_cores()))
    with SIGNALS.storing(), show_progress() as progress:
        names = ' and '.join(images_by_subset)
        task = progress.add_task(f'{names} images', total=len(folder.images))
        report = functools.partial(progress.console.out, highlight=False)

        def count() -> None:
            SIGNALS.check()
            progress.advance(task)

        summaries = write_shards(
            folder, images_by_subset, num_shards, labels, options, count, report
        )
    _print_summary(options, folder, num_shards, summaries)
    return 0


def _images_by_subset(
    options: RecordsOptions, folder: ImageFolder
) -> dict[str, tuple[SourceImage, ...]]:
    if options.validation is None:
        return {options.subset: folder.images}
    train_images, validation_images = split_images(folder, options.validation, options.seed)
    if not validation_images:
        raise UsageError(
            f'--validation={options.validation:g}: no class of --input={options.input} has two '
            'images, one for training and one for validation; add images, or remove --validation'
        )
    return dict(zip(SUBSETS, (train_images, validation_images), strict=True))


def _num_shards(
    options: RecordsOptions, images_by_subset: Mapping[str, Sequence[SourceImage]]
) -> dict[str, int]:
    """Returns the number of shards of each subset; all shards have about as many images."""
    subset, images = next(iter(images_by_subset.items()))
    if options.shards > len(images):
        raise UsageError(
            f'--shards={options.shards}: --input={options.input} has only '
            f'{plural(len(images), f"{subset} image")}; use {len(images)} or fewer'
        )
    num_shards = options.shards or min(
        len(images), max(MIN_SHARDS, round(len(images) / IMAGES_PER_SHARD))
    )
    return {
        name: max(1, round(num_shards * len(subset_images) / len(images)))
        for name, subset_images in images_by_subset.items()
    }


def _print_summary(
    options: RecordsOptions,
    folder: ImageFolder,
    num_shards: Mapping[str, int],
    summaries: Mapping[str, 'WriteSummary'],
) -> None:
    for subset, summary in summaries.items():
        images = format_count(summary.num_records, 'image')
        classes = plural(len(summary.records_of_class), 'class', 'es')
        shard_bytes = format_scaled(summary.num_bytes / num_shards[subset])
        size = f'{plural(num_shards[subset], "shard")} of {shard_bytes}'
        print(f'{subset}: {images} of {classes} in {size} in {options.output}')
        print(
            f'  as they were: {summary.num_passed_through:,}, '
            f'encoded anew: {summary.num_reencoded:,}'
        )
        if summary.num_first_of_several:
            print(f'  only the first of several frames or pages: {summary.num_first_of_several:,}')
        print(f'  left out, as they cannot be decoded: {summary.num_left_out:,}')
        if empty_classes := [
            name for index, name in enumerate(folder.classes) if not summary.records_of_class[index]
        ]:
            names = ', '.join(empty_classes[:_MAX_CLASSES])
            num_more = len(empty_classes) - _MAX_CLASSES
            print(
                f'  classes without an image, which keep their labels: {len(empty_classes):,} '
                f'({names}{f" and {num_more:,} more" if num_more > 0 else ""})'
            )
    skipped = '; '.join(
        f'{len(paths):,} {reason}' for reason, paths in sorted(folder.skipped_paths.items())
    )
    print(f'passed over: {skipped or 0}')
