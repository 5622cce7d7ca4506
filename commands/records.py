"""`tf_cnn_benchmarks.py records`: its options and what it prints. Starts without TensorFlow and PIL."""

import importlib
import os
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from commands.options import Arguments, Declaration
from errors import RunError, UsageError, not_installed, plural
from inputs.data_sets import DATA_SETS, SUBSETS, Shards, find_shards
from params.spec import flag
from records.framing import Fault
from records.layout import (
    FACTS_FILE,
    LABELS_FILE,
    SHARD_NAME,
    ImageFolder,
    SubsetFacts,
    label_names,
    read_facts,
    read_labels,
    scan_folder,
    shard_name,
    subset_of,
)
from records.parallel import num_cores
from records.shard_check import check_shards

# As many images as in each of ImageNet's 1,024 shards of 1,281,167 images, but enough shards to read in parallel.
_IMAGES_PER_SHARD = 1250
_MIN_SHARDS = 8
_NAMED_PER_REASON = 20
_NAMED_FAULTS = 20
_CHECK_FLAGS = {'check', 'subset', 'num_processes'}


@dataclass(frozen=True)
class RecordsOptions:
    input: str | None = flag(None, 'Folder with one folder of images for each class.', is_path=True)
    output: str | None = flag(None, 'Folder for the shards and labels.txt; made if missing.', is_path=True)
    shards: int = flag(
        0,
        f'Number of shards; 0: one for every {_IMAGES_PER_SHARD} images, at least {_MIN_SHARDS}.',
        lower_bound=0,
        upper_bound=99999,
    )
    subset: str = flag('train', 'What the images are for; the shards are named after it.', choices=SUBSETS)
    seed: int = flag(1, 'Seed of the shuffle of all images across the shards.')
    first_label: int = flag(
        1,
        "Label of the first class. 1: as in ImageNet, where label 0 is 'background'. 0: no background.",
        lower_bound=0,
        upper_bound=1,
    )
    jpeg_quality: int = flag(
        95,
        'Quality of the images that have to be encoded again: PNG, grey, CMYK, rotated.',
        lower_bound=1,
        upper_bound=100,
    )
    num_processes: int = flag(
        0, 'Processes that decode images; with --check, threads. 0: one for each core.', lower_bound=0
    )
    overwrite: bool = flag(False, 'Replace the existing shards of the subset.')
    check: str | None = flag(
        None, 'Check the shards in this folder instead: all subsets, or the given --subset.', is_path=True
    )


DECLARATION = Declaration(
    'records',
    RecordsOptions,
    "Turns a folder of class folders of JPEG and PNG images into TFRecord shards in ImageNet's layout, or checks "
    'shards.',
    examples=(
        '--input=photos/train --output=shards --shards=128',
        '--input=photos/val --output=shards --shards=16 --subset=validation',
        '--check=shards',
    ),
    details="Classes are numbered in the order of their folders' names. Line i of labels.txt in the output, counted "
    'from 0, names label i; dataset.json contains the number of images, and their size if all have the same. A model '
    'that is trained on the folder gets as many classes as labels.txt has lines. Writing shards needs Pillow, '
    'which the extra [records] installs; --check does not.',
)


def main(argv: Sequence[str]) -> int:
    return DECLARATION.run(argv, _write_or_check)


def _write_or_check(arguments: Arguments[RecordsOptions]) -> int:
    options, given = arguments.options, arguments.given
    if options.check is None:
        return _write(options)
    if others := sorted(given - _CHECK_FLAGS):
        raise UsageError(f'--check={options.check}: --{others[0]} is only for writing shards; leave one of them out')
    return _check(options.check, [options.subset] if 'subset' in given else list(SUBSETS), options.num_processes)


def _write(options: RecordsOptions) -> int:
    if not options.input or not options.output:
        missing = 'output' if options.input else 'input'
        raise UsageError(
            f'--{missing} is missing: write --input=DIR and --output=DIR, or --check=DIR; see records --help'
        )
    try:
        importlib.import_module('PIL')
    except ModuleNotFoundError:
        raise UsageError(f'records reads images with Pillow: {not_installed("PIL")}') from None
    from records.output import check_output
    from records.progress import Monitor
    from records.write import WriteOptions, write_shards

    folder = scan_folder(options.input)
    labels = label_names(folder.classes, options.first_label)
    num_images = len(folder.images)
    num_shards = options.shards or min(num_images, max(_MIN_SHARDS, round(num_images / _IMAGES_PER_SHARD)))
    if num_shards > num_images:
        raise UsageError(
            f'--shards={num_shards}: --input={options.input} has only {plural(num_images, "image")}; '
            f'use {num_images} or less'
        )
    check_output(options.output, options.subset, labels, input_dir=options.input, overwrite=options.overwrite)
    for line in _passed_over_lines(folder):
        print(line, file=sys.stderr)
    how = WriteOptions(
        output=options.output,
        subset=options.subset,
        num_shards=num_shards,
        seed=options.seed,
        first_label=options.first_label,
        jpeg_quality=options.jpeg_quality,
        num_processes=options.num_processes or num_cores(),
    )
    with Monitor(f'{options.subset} images', num_images) as monitor:
        written = write_shards(folder, labels, how, monitor)
    passed_over = ', '.join(f'{len(paths)} {why}' for why, paths in sorted(folder.passed_over.items()))
    empty = [name for index, name in enumerate(folder.classes) if not written.records_of_class[index]]
    megabytes = written.num_bytes / num_shards / 1e6
    print(
        f'{options.subset}: {written.num_records:,} image{"s" * (written.num_records != 1)} '
        f'of {len(folder.classes)} class{"es" * (len(folder.classes) != 1)} '
        f'in {plural(num_shards, "shard")} of {megabytes:.1f} MB in {options.output}'
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
    facts = read_facts(data_dir)
    tallies = [_check_subset(data_dir, shards, facts.get(shards.subset), num_classes, num_threads) for shards in found]
    num_faults = sum(tally.kinds.total() for tally in tallies)
    if not num_faults:
        return 0
    named = [fault for tally in tallies for fault in tally.first_faults]
    for fault in named:
        print(fault)
    if num_faults > len(named):
        print(f'and {num_faults - len(named):,} more')
    raise RunError(f'--check={data_dir}: {num_faults:,} fault{"s" * (num_faults != 1)}, first {named[0]}')


def _find_subsets(data_dir: str, subsets: list[str]) -> list[Shards]:
    present = {subset_of(name) for name in os.listdir(data_dir)} if Path(data_dir).is_dir() else set()
    return [find_shards(data_dir, subset, '--check') for subset in subsets if subset in present] or [
        find_shards(data_dir, subsets[0], '--check')
    ]


def _check_subset(
    data_dir: str, shards: Shards, facts: SubsetFacts | None, num_classes: int, num_threads: int
) -> _Tally:
    from records.progress import Monitor

    total = len(shards.paths) + shards.num_missing
    tally = _Tally()
    matches = [SHARD_NAME.fullmatch(Path(path).name) for path in shards.paths]
    numbered = [match for match in matches if match and match['index']]
    present = {int(match['index']) for match in numbered}
    for index in sorted(set(range(len(numbered) + shards.num_missing)) - present):
        name = f'{shard_name(shards.subset, index, len(numbered) + shards.num_missing)}{numbered[0]["suffix"] or ""}'
        tally.add_fault(Fault(str(Path(data_dir) / name), None, '', 'missing shard', 'the shard is missing'))
    for name in shards.passed_over:
        print(f'passed over {Path(data_dir) / name}: it has the ending of another kind of file', file=sys.stderr)
    with Monitor(f'{shards.subset} bytes', sum(Path(path).stat().st_size for path in shards.paths)) as monitor:
        for checked in check_shards(shards.paths, num_classes, num_threads):
            monitor.count(checked.num_bytes)
            if checked.num_bytes:
                tally.image_bytes.append(checked.image_bytes)
            if checked.label is not None:
                tally.labels.add(checked.label)
            if checked.fault:
                tally.add_fault(checked.fault)
    # Faulty records do not count as images.
    if facts and not tally.kinds and (facts.images, facts.shards) != (len(tally.image_bytes), len(shards.paths)):
        reason = (
            f'it says {facts.images:,} {shards.subset} images in {plural(facts.shards, "shard")}, and there are '
            f'{len(tally.image_bytes):,} in {len(shards.paths)}; remove it, then the shards are counted'
        )
        tally.add_fault(Fault(str(Path(data_dir) / FACTS_FILE), None, '', 'wrong dataset.json', reason))
    in_range = sum(0 <= label < num_classes for label in tally.labels)
    print(f'{shards.subset}: {len(shards.paths)} of {plural(total, "shard")}, '
          f'{len(tally.image_bytes):,} record{"s" * (len(tally.image_bytes) != 1)}, '
          f'{in_range} of {plural(num_classes, "label")} seen')  # fmt: skip
    if tally.image_bytes:
        sizes = tally.image_bytes
        print(f'  image bytes: min {min(sizes):,}, median {statistics.median(sizes):,.0f}, max {max(sizes):,}')
    print('  faults: ' + (', '.join(f'{kind} {count:,}' for kind, count in tally.kinds.most_common()) or 'none'))
    return tally
