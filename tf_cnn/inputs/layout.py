"""The files of a data set: class folders, shard names, labels.txt and dataset.json.

Imports neither PIL nor TensorFlow.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from tf_cnn.system.documents import DocumentError, read_json, read_text
from tf_cnn.system.errors import RunError, UsageError, join_with_or, plural

# The file name of a shard; the original program looks for train-*-of-*. Most names have numbers.
SHARD_NAME = re.compile(
    r'(?:[a-z]+-(?P<index>\d+)-of-(?P<total>\d+)|(?:train|validation)-.*?-of-\w+)'
    r'(?P<suffix>\W.*)?',
    re.DOTALL,
)
# What may follow the name of a shard. A file with any other suffix, such as .gz, .part or .md5, is
# no shard.
_SHARD_SUFFIXES = (None, '.tfrecord', '.tfrecords')
LABELS_FILE = 'labels.txt'
DATASET_INFO_FILE = 'dataset.json'
# The limits reject damaged numbers. A side of a JPEG has at most 65535 pixels.
_COUNT, _SIDE = msgspec.Meta(ge=1, le=10**12), msgspec.Meta(ge=1, le=65535)
# TensorFlow's decoder refuses 2^29 bytes or more, at three bytes per pixel
# (tensorflow/core/lib/jpeg/jpeg_mem.cc). Pillow has the same limit (twice Image.MAX_IMAGE_PIXELS).
MAX_PIXELS = (2**29 - 1) // 3
# The image files that `records` reads: the suffixes of each format, which has Pillow's name.
IMAGE_FORMATS = {
    'JPEG': ('.jpg', '.jpeg', '.jpe', '.jfif'),
    'PNG': ('.png',),
    'WEBP': ('.webp',),
    'GIF': ('.gif',),
    'BMP': ('.bmp',),
    'TIFF': ('.tif', '.tiff'),
}
_IMAGE_SUFFIXES = tuple(suffix for suffixes in IMAGE_FORMATS.values() for suffix in suffixes)
_NOT_NAMED_AS_AN_IMAGE = f'not named as a {join_with_or([*IMAGE_FORMATS])}'
# Files and folders that archives, operating systems and network storage make, in lower case. Hidden
# ones are skipped anyway.
_PROGRAM_MADE_NAMES = {
    '__macosx',
    'icon\r',
    '$recycle.bin',
    'system volume information',
    'thumbs.db',
    'desktop.ini',
    'lost+found',
    '__pycache__',
    '@eadir',
    '#recycle',
}
# Line breaks, and bytes that are not UTF-8 (surrogates in a Python string).
_FORBIDDEN_IN_LABELS = re.compile('[\n\r\ud800-\udfff]')
# Folders with these names, in lower case, are subsets and not classes. A name may also contain one
# of them, as seg_train or test2017.
_SUBSET_NAMES = {
    'train',
    'training',
    'val',
    'valid',
    'validation',
    'test',
    'testing',
    'dev',
    'eval',
    'evaluation',
    'holdout',
}
_NAME_WITH_SUBSET = re.compile(
    rf'(?:.*[^a-z])?(?:{"|".join(sorted(_SUBSET_NAMES))})(?:[^a-z].*)?', re.DOTALL
)


def shard_name(subset: str, index: int, num_shards: int) -> str:
    """The file name of a shard: train-00003-of-00128."""
    return f'{subset}-{index:05d}-of-{num_shards:05d}'


def subset_of(file_name: str) -> str | None:
    """Returns the subset in a shard's file name; None if it is not a shard's name."""
    match = SHARD_NAME.fullmatch(file_name)
    return file_name.partition('-')[0] if match and has_shard_suffix(match) else None


def has_shard_suffix(match: re.Match[str]) -> bool:
    """Whether a match of SHARD_NAME is a shard, unlike train-00000-of-00001.md5."""
    return match['suffix'] in _SHARD_SUFFIXES


def is_standard_shard_name(file_name: str) -> bool:
    """Whether the file is named as `records` names shards."""
    match = SHARD_NAME.fullmatch(file_name)
    return match is not None and match['index'] is not None and match['suffix'] is None


@dataclass(frozen=True)
class SourceImage:
    """An image file: its path relative to the root ('class/file.jpg'), and its class."""

    path: str
    class_index: int


@dataclass(frozen=True)
class ImageFolder:
    """A folder of class folders.

    classes and images are sorted. skipped_paths maps each reason to the paths skipped.
    """

    root: str
    classes: tuple[str, ...]
    images: tuple[SourceImage, ...]
    skipped_paths: dict[str, tuple[str, ...]]


def _list_entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise RunError(
            f'{folder}: it cannot be read ({error.strerror}); check its permissions'
        ) from error


def _skip_reason(name: str) -> str | None:
    """Returns the reason to skip a file or folder of this name, or None."""
    if name.startswith('.'):
        return 'hidden'
    return 'made by a program' if name.lower() in _PROGRAM_MADE_NAMES else None


def _has_image_suffix(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(_IMAGE_SUFFIXES)


def _broken_link_reason(entry: os.DirEntry[str]) -> str | None:
    """Returns why a link is broken; None if it works, or if the entry is not a link."""
    if entry.is_symlink():
        try:
            os.stat(entry.path)
        except OSError as error:
            return error.strerror
    return None


def _walk_files(folder: str, prefix: str) -> Iterator[tuple[str, str | None]]:
    """Yields prefix/path of each file at any depth, and the reason to skip it or None."""
    # No recursion: folders can be nested more deeply than Python calls.
    pending = [(f'{prefix}/{entry.name}', entry) for entry in reversed(_list_entries(folder))]
    while pending:
        path, entry = pending.pop()
        if skip_reason := _skip_reason(entry.name):
            yield path, skip_reason
        elif (link_error := _broken_link_reason(entry)) is None and entry.is_dir():
            if entry.is_symlink():
                yield path, 'a link to a folder'
            else:
                pending += [
                    (f'{path}/{child.name}', child) for child in reversed(_list_entries(entry.path))
                ]
        elif not _has_image_suffix(entry):
            yield path, 'a broken link' if link_error else _NOT_NAMED_AS_AN_IMAGE
        # A broken link counts as an image, so it is reported with the files that cannot be
        # decoded.
        elif link_error is None and not entry.is_file():
            yield path, 'not a file'
        else:
            yield path, None


def scan_folder(root: str) -> ImageFolder:
    """Lists the class folders of root, and the image files in them at any depth.

    Classes are sorted by folder name. A class folder may be a link. Inside it, links to files are
    followed, and links to folders are not. Images are not decoded.

    Raises:
      UsageError: root is not a folder of class folders, or a link in it is broken, which may be a
        class folder.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise UsageError(
            f'--input={root}: it is not a folder; use the folder that contains a folder of '
            'images for each class'
        )
    skipped_paths: defaultdict[str, list[str]] = defaultdict(list)
    classes: list[str] = []
    images: list[SourceImage] = []
    for entry in _list_entries(root):
        if skip_reason := _skip_reason(entry.name):
            skipped_paths[skip_reason].append(entry.name)
        elif (link_error := _broken_link_reason(entry)) and not _has_image_suffix(entry):
            raise UsageError(
                f'--input={root}: {entry.name} is a link to {os.readlink(entry.path)}, which '
                f'cannot be opened ({link_error}), so a class would be missing; repair '
                'the link, '
                f'or remove it'
            )
        elif link_error or not entry.is_dir():
            skipped_paths['in no class folder'].append(entry.name)
        else:
            if _FORBIDDEN_IN_LABELS.search(entry.name):
                raise UsageError(
                    f'--input={root}: labels.txt cannot hold {entry.name!r}; rename this class '
                    'folder'
                )
            for path, skip_reason in _walk_files(entry.path, entry.name):
                if skip_reason:
                    skipped_paths[skip_reason].append(path)
                else:
                    images.append(SourceImage(path, len(classes)))
            classes.append(entry.name)
    if not images:
        other_files = [path for paths in skipped_paths.values() for path in paths]
        contents = (
            f', but {plural(len(other_files), "other file")}, such as {other_files[0]}'
            if other_files
            else ''
        )
        raise UsageError(
            f'--input={root}: there is no {join_with_or([*IMAGE_FORMATS])} in a class folder'
            f'{contents}; use a folder that contains a folder of images for each class, as in '
            'train/cat/1.jpg, and convert images of other formats to JPEG'
        )
    _check_root_level(
        root, [folder.split('/') for folder in {image.path.rpartition('/')[0] for image in images}]
    )
    return ImageFolder(
        root,
        tuple(classes),
        tuple(images),
        {skip_reason: tuple(paths) for skip_reason, paths in skipped_paths.items()},
    )


def _check_root_level(root: str, folders: list[list[str]]) -> None:
    """Raises UsageError if the class folders are one level further down.

    folders are the folders with images, relative to root, as lists of names.
    """
    names = sorted(
        {folder[0] for folder in folders}, key=lambda name: ('train' not in name.lower(), name)
    )
    are_nested = all(len(folder) > 1 for folder in folders)
    are_subsets = {name.lower() for name in names} <= _SUBSET_NAMES or (
        are_nested
        # Subsets have the same classes.
        and set.intersection(
            *({folder[1] for folder in folders if folder[0] == name} for name in names)
        )
        and all(_NAME_WITH_SUBSET.fullmatch(name.lower()) for name in names)
    )
    if are_subsets or (are_nested and len(names) == 1):
        raise UsageError(
            f'--input={root}: {", ".join(names)}: these are subsets, or above the class folders, '
            f'and not classes; use --input={os.path.join(root, names[0])}'
        )


def read_labels(folder: str) -> tuple[str, ...] | None:
    """Reads the names of labels 0, 1, ... in the folder's labels.txt. None if there is no
    labels.txt.
    """
    path = Path(folder) / LABELS_FILE
    try:
        lines = read_text(path).replace('\r\n', '\n').split('\n')
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f'{path}: it cannot be read ({error}); write it again, with one class name per line'
        ) from error
    if lines[-1] == '':
        lines.pop()
    if not lines:
        raise UsageError(f'{path}: it is empty; write it again, with one class name per line')
    return tuple(lines)


@dataclass(frozen=True)
class SubsetInfo:
    """The facts in dataset.json about a subset; height and width, in pixels, are None if images
    differ.
    """

    images: Annotated[int, _COUNT]
    shards: Annotated[int, _COUNT]
    height: Annotated[int, _SIDE] | None
    width: Annotated[int, _SIDE] | None


def read_dataset_info(folder: str) -> dict[str, SubsetInfo]:
    """Reads the facts of each subset in dataset.json; empty if the file is missing, as in older
    folders.
    """
    path = Path(folder) / DATASET_INFO_FILE
    try:
        return read_json(path, dict[str, SubsetInfo])
    except FileNotFoundError:
        return {}
    except DocumentError as error:
        raise UsageError(
            f'{path}: it cannot be used ({error}); remove it, and the program counts the records'
        ) from None
