"""`tf_cnn_benchmarks.py records`: its flags and what it prints. Starts without TensorFlow and PIL."""

import importlib.util
import os
import statistics
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from absl import flags

from data_sets import DATA_SETS, SUBSETS, Shards, find_shards, shard_name, subset_of
from errors import RunError, UsageError
from flag_spec import read_flags
from records.check import Fault, check_shards
from records.layout import LABELS_FILE, ImageFolder, label_names, read_labels, scan_folder
from records.parallel import num_cores

_USAGE = """\
Turns a folder of class folders of JPEG and PNG images into TFRecord shards in ImageNet's layout, and checks shards.

  tf_cnn_benchmarks.py records --input=photos/train --output=shards --shards=128
  tf_cnn_benchmarks.py records --input=photos/val --output=shards --shards=16 --subset=validation
  tf_cnn_benchmarks.py records --check=shards

Classes are numbered in the order of their folders' names. labels.txt in the output names label i in line i, counted
from 0; dataset.json has the number of images, and their size if they have one. A model that is trained on the folder
gets as many classes as labels.txt has lines. Needs Pillow to write shards: pip install pillow. --check does without.
"""
# One shard for as many images as in ImageNet's 1,024 of 1,281,167, but enough to be read in parallel.
_IMAGES_PER_SHARD = 1250
_MIN_SHARDS = 8
_NAMED_PER_REASON = 20
_NAMED_FAULTS = 20
_CHECK_FLAGS = {'check', 'subset', 'num_processes'}


def _make_flags() -> flags.FlagValues:
    values = flags.FlagValues()
    flags.DEFINE_string('input', None, 'Folder that holds a folder of images for each class.', flag_values=values)
    flags.DEFINE_string('output', None, 'Folder for the shards and labels.txt; made if missing.', flag_values=values)
    flags.DEFINE_integer(
        'shards', 0, f'Number of shards. 0: one for {_IMAGES_PER_SHARD} images, at least {_MIN_SHARDS}.',
        lower_bound=0, upper_bound=99999, flag_values=values,
    )  # fmt: skip
    flags.DEFINE_enum(
        'subset', 'train', SUBSETS, 'What the images are; the shards are named after it.', flag_values=values
    )
    flags.DEFINE_integer('seed', 1, 'Seed of the shuffle of all images across the shards.', flag_values=values)
    flags.DEFINE_integer(
        'first_label', 1, "Label of the first class. 1: as in ImageNet, where 0 is 'background'. 0: no background.",
        lower_bound=0, upper_bound=1, flag_values=values,
    )  # fmt: skip
    flags.DEFINE_integer(
        'jpeg_quality', 95, 'Quality of images that cannot stay as they are: PNG, grey, CMYK, rotated.',
        lower_bound=1, upper_bound=100, flag_values=values,
    )  # fmt: skip
    flags.DEFINE_integer(
        'num_processes', 0, 'Processes that decode images; with --check, threads. 0: one for each core.',
        lower_bound=0, flag_values=values,
    )  # fmt: skip
    flags.DEFINE_boolean('overwrite', False, 'Replace the shards of the subset that are there.', flag_values=values)
    flags.DEFINE_string(
        'check', None, 'Check the shards in this folder instead (all subsets, or --subset).', flag_values=values
    )
    flags.DEFINE_boolean('help', False, 'Print this.', short_name='h', flag_values=values)
    return values


def _help_text(values: flags.FlagValues) -> str:
    lines = [_USAGE]
    for name in [name for name in values if name not in ('help', 'h')]:
        flag = values[name]
        default = '' if flag.default is None or flag.default is False else f' (default: {flag.default})'
        lines.append(f'  --{name}: {flag.help}{default}')
    return '\n'.join(lines)


def _parse(argv: list[str]) -> flags.FlagValues:
    values = _make_flags()
    rest = read_flags(values, 'records', argv)
    if rest and not values['help'].value:
        raise UsageError(f'{rest[0]}: records takes flags only, as in --input={rest[0]}; see records --help')
    return values


def main(argv: list[str]) -> int:
    """Runs `records` with the flags in argv; returns the exit code.

    Raises:
      UsageError: the flags, the input or the output folder do not fit.
      RunError: images or shards could not be read or written, or --check found faults.
    """
    values = _parse(argv)
    if values['help'].value:
        print(_help_text(values))
        return 0
    # TensorFlow tells about the machine on standard error when it is imported; that is of no use here.
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
    given = {name for name in values if values[name].present}
    if 'check' in given:
        if others := sorted(given - _CHECK_FLAGS):
            raise UsageError(f'--check={values.check}: --{others[0]} is for writing shards; leave it out to check some')
        return _check(values.check, [values.subset] if 'subset' in given else list(SUBSETS), values.num_processes)
    return _write(values)


def _write(values: flags.FlagValues) -> int:
    for name in ('input', 'output'):
        if not values[name].value:
            raise UsageError(
                f'--{name} is missing: give --input=DIR and --output=DIR, or --check=DIR; see records --help'
            )
    if importlib.util.find_spec('PIL') is None:
        raise UsageError('records needs Pillow to read images: pip install pillow')
    from records.output import check_output
    from records.progress import Monitor
    from records.write import WriteOptions, write_shards

    folder = scan_folder(values.input)
    labels = label_names(folder.classes, values.first_label)
    num_images = len(folder.images)
    num_shards = values.shards or min(num_images, max(_MIN_SHARDS, round(num_images / _IMAGES_PER_SHARD)))
    if num_shards > num_images:
        raise UsageError(
            f'--shards={num_shards}: --input={values.input} has only {num_images} images; use {num_images} or less'
        )
    check_output(values.output, values.subset, labels, input_dir=values.input, overwrite=values.overwrite)
    for line in _passed_over_lines(folder):
        print(line, file=sys.stderr)
    options = WriteOptions(
        output=values.output,
        subset=values.subset,
        num_shards=num_shards,
        seed=values.seed,
        first_label=values.first_label,
        jpeg_quality=values.jpeg_quality,
        num_processes=values.num_processes or num_cores(),
    )
    with Monitor(f'{values.subset} images', num_images) as monitor:
        written = write_shards(folder, labels, options, monitor)
    passed_over = ', '.join(f'{len(paths)} {why}' for why, paths in sorted(folder.passed_over.items()))
    empty = [name for index, name in enumerate(folder.classes) if not written.records_of_class[index]]
    megabytes = written.num_bytes / num_shards / 1e6
    print(
        f'{values.subset}: {written.num_records:,} images of {len(folder.classes)} classes '
        f'in {num_shards} shard{"s" * (num_shards > 1)} of {megabytes:.1f} MB in {values.output}'
    )
    print(f'  as they were: {written.num_passed_through:,}, encoded anew: {written.num_reencoded:,}')
    print(f'  left out, as they cannot be decoded: {written.num_left_out:,}')
    print(f'  passed over: {passed_over or 0}')
    if empty:
        print(f'  classes without an image: {", ".join(empty)}')
    return 0


def _passed_over_lines(folder: ImageFolder) -> list[str]:
    lines = []
    for why, paths in sorted(folder.passed_over.items()):
        lines += [f'passed over {path}: {why}' for path in paths[:_NAMED_PER_REASON]]
        if len(paths) > _NAMED_PER_REASON:
            lines.append(f'passed over {len(paths) - _NAMED_PER_REASON} more: {why}')
    return lines


@dataclass
class _Tally:
    """What a check found; of the faults, the first ones and the number of each kind."""

    image_bytes: list[int] = field(default_factory=list)
    labels: set[int] = field(default_factory=set)
    kinds: Counter[str] = field(default_factory=Counter)
    first_faults: list[Fault] = field(default_factory=list)

    def add_fault(self, fault: Fault) -> None:
        self.kinds[fault.kind] += 1
        if len(self.first_faults) < _NAMED_FAULTS:
            self.first_faults.append(fault)


def _check(data_dir: str, subsets: list[str], num_threads: int) -> int:
    found = _find_subsets(data_dir, subsets)
    names = read_labels(data_dir)
    num_classes = DATA_SETS['imagenet'].num_classes if names is None else len(names)
    source = f"ImageNet's, as there is no {LABELS_FILE}" if names is None else f'as in {LABELS_FILE}'
    print(f'{data_dir}: labels 0..{num_classes - 1}, {source}')
    tallies = [_check_subset(data_dir, shards, num_classes, num_threads) for shards in found]
    num_faults = sum(tally.kinds.total() for tally in tallies)
    if not num_faults:
        return 0
    named = [fault for tally in tallies for fault in tally.first_faults]
    for fault in named:
        print(fault)
    if num_faults > len(named):
        print(f'and {num_faults - len(named):,} more')
    raise RunError(f'--check={data_dir}: {num_faults:,} faults were found, the first is {named[0]}')


def _find_subsets(data_dir: str, subsets: list[str]) -> list[Shards]:
    """The shards of those of the subsets that are there; at least one has to be."""
    there = {subset_of(name) for name in os.listdir(data_dir)} if Path(data_dir).is_dir() else set()
    return [find_shards(data_dir, subset, '--check') for subset in subsets if subset in there] or [
        find_shards(data_dir, subsets[0], '--check')
    ]


def _check_subset(data_dir: str, shards: Shards, num_classes: int, num_threads: int) -> _Tally:
    from records.progress import Monitor

    total = len(shards.paths) + shards.num_missing
    tally = _Tally()
    present = {Path(path).name for path in shards.paths}
    for index in range(total):
        name = shard_name(shards.subset, index, total)
        if name not in present:
            tally.add_fault(Fault(str(Path(data_dir) / name), None, '', 'missing shard', 'the shard is missing'))
    with Monitor(f'{shards.subset} bytes', sum(Path(path).stat().st_size for path in shards.paths)) as monitor:
        for checked in check_shards(shards.paths, num_classes, num_threads):
            monitor.advance(checked.num_bytes)
            if checked.num_bytes:
                tally.image_bytes.append(checked.image_bytes)
            if checked.label is not None:
                tally.labels.add(checked.label)
            if checked.fault:
                tally.add_fault(checked.fault)
    in_range = sum(0 <= label < num_classes for label in tally.labels)
    print(f'{shards.subset}: {len(shards.paths)} of {total} shards, {len(tally.image_bytes):,} records, '
          f'{in_range} of {num_classes} labels seen')  # fmt: skip
    if tally.image_bytes:
        sizes = tally.image_bytes
        print(f'  image bytes: min {min(sizes):,}, median {statistics.median(sizes):,.0f}, max {max(sizes):,}')
    print('  faults: ' + (', '.join(f'{kind} {count:,}' for kind, count in tally.kinds.most_common()) or 'none'))
    return tally
