"""Writes the shards of a folder of images, with a progress bar and a summary."""

import functools
import importlib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from tf_cnn.convert.check import MAX_LISTED, format_count, show_progress
from tf_cnn.convert.config import IMAGES_PER_SHARD, MIN_SHARDS, RecordsOptions
from tf_cnn.inputs.layout import ImageFolder, scan_folder
from tf_cnn.system.errors import UsageError, missing_package_message, plural
from tf_cnn.system.parallel import num_cores
from tf_cnn.system.signals import SIGNALS

if TYPE_CHECKING:
    from tf_cnn.convert.write import WriteSummary


def write_folder(options: RecordsOptions) -> int:
    if not options.input or not options.output:
        missing = 'output' if options.input else 'input'
        raise UsageError(
            f'--{missing} is missing: use --input=DIR and --output=DIR, or --check=DIR; see '
            'records --help'
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
    num_images = len(folder.images)
    num_shards = options.shards or min(
        num_images, max(MIN_SHARDS, round(num_images / IMAGES_PER_SHARD))
    )
    if num_shards > num_images:
        raise UsageError(
            f'--shards={num_shards}: --input={options.input} has only '
            f'{plural(num_images, "image")}; use {num_images} or fewer'
        )
    check_output(
        options.output, options.subset, labels, input_dir=options.input, overwrite=options.overwrite
    )
    for reason, paths in sorted(folder.skipped_paths.items()):
        for path in paths[:MAX_LISTED]:
            print(f'passed over {path}: {reason}', file=sys.stderr)
    num_processes = options.num_processes or num_cores()
    options = replace(options, shards=num_shards, num_processes=num_processes)
    with SIGNALS.storing(), show_progress() as progress:
        task = progress.add_task(f'{options.subset} images', total=num_images)
        report = functools.partial(progress.console.out, highlight=False)

        def count() -> None:
            SIGNALS.check()
            progress.advance(task)

        summary = write_shards(folder, labels, options, count, report)
    _print_summary(options, folder, summary)
    return 0


def _print_summary(options: RecordsOptions, folder: ImageFolder, summary: 'WriteSummary') -> None:
    images = format_count(summary.num_records, 'image')
    classes = plural(len(folder.classes), 'class', 'es')
    size = f'{plural(options.shards, "shard")} of {summary.num_bytes / options.shards / 1e6:.1f} MB'
    print(f'{options.subset}: {images} of {classes} in {size} in {options.output}')
    print(
        f'  as they were: {summary.num_passed_through:,}, encoded anew: {summary.num_reencoded:,}'
    )
    print(f'  left out, as they cannot be decoded: {summary.num_left_out:,}')
    skipped = ', '.join(
        f'{len(paths)} {reason}' for reason, paths in sorted(folder.skipped_paths.items())
    )
    print(f'  passed over: {skipped or 0}')
    if empty := [
        name for index, name in enumerate(folder.classes) if not summary.records_of_class[index]
    ]:
        print(f'  classes without an image: {", ".join(empty)}')
