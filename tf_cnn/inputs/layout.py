"""Reads a data set's files: folders of classes, labels.txt and dataset.json. Imports neither PIL
nor TensorFlow.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from tf_cnn.system.documents import DocumentError, read_json
from tf_cnn.system.errors import RunError, UsageError, plural, read_regular

# The file name of a shard, for which the original program looks by train-*-of-*; most are numbered.
SHARD_NAME = re.compile(
    r'[a-z]+-(?P<index>\d+)-of-(?P<total>\d+)(?P<suffix>\D.*)?|(?:train|validation)-.*-of-.*',
    re.DOTALL,
)
# The endings of files beside shards, or of unfinished and packed ones.
_NOT_A_SHARD = re.compile(
    r'(?i).*(~|_\.gstmp|:zone\.identifier|\.(gz|bz2|xz|zst|lz4|zip|7z|tar|tgz|part|partial|filepart|tmp|temp|crdownload|download|aria2|'
    r'incomplete|crc|crc32c?|md5|sha\d+|asc|sig|idx|index|tfindex|json|txt|csv|log|lock|bak|old|orig|swp|torrent|'
    r'lnk|html?|xml|parquet|arrow|npy|npz))',
    re.DOTALL,
)
LABELS_FILE = 'labels.txt'
FACTS_FILE = 'dataset.json'
# A damaged number of images may be larger than any number of steps. The longest side of a JPEG has
# 65535 pixels.
_COUNT, _SIDE = msgspec.Meta(ge=1, le=10**12), msgspec.Meta(ge=1, le=65535)
# TensorFlow's decoder refuses 2^29 bytes or more, at three bytes per pixel
# (tensorflow/core/lib/jpeg/jpeg_mem.cc). Pillow has the same limit (twice Image.MAX_IMAGE_PIXELS).
MOST_PIXELS = (2**29 - 1) // 3
IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.jpe', '.jfif', '.png')
# Files and folders that archives, operating systems and network storage make, in lower case. Most
# others are hidden.
_MADE_BY_PROGRAMS = {
    *(
        '__macosx',
        'icon\r',
        '$recycle.bin',
        'system volume information',
        'thumbs.db',
        'desktop.ini',
    ),
    *('lost+found', '__pycache__', '@eadir', '#recycle'),
}
# Line breaks, and bytes that are no UTF-8.
_NOT_IN_LABELS = re.compile('[\n\r\ud800-\udfff]')
# Names of subsets, in lower case, which are not classes; and names that contain one, as seg_train
# or test2017.
_SUBSETS = {
    *('train', 'training', 'val', 'valid', 'validation', 'test', 'testing'),
    *('dev', 'eval', 'evaluation', 'holdout'),
}
_WITH_SUBSET = re.compile(rf'(?:.*[^a-z])?(?:{"|".join(sorted(_SUBSETS))})(?:[^a-z].*)?', re.DOTALL)


def shard_name(subset: str, index: int, num_shards: int) -> str:
    """The file name of a shard: train-00003-of-00128."""
    return f'{subset}-{index:05d}-of-{num_shards:05d}'


def subset_of(file_name: str) -> str | None:
    """The subset in the file name of a shard; None if the file is not named like a shard."""
    if not SHARD_NAME.fullmatch(file_name) or ends_like_no_shard(file_name):
        return None
    return file_name.partition('-')[0]


def ends_like_no_shard(file_name: str) -> bool:
    """Whether a name, perhaps of a shard, has the ending of a file of another kind, as
    train-00000-of-00001.md5.
    """
    return _NOT_A_SHARD.fullmatch(file_name) is not None


def is_named_by_records(file_name: str) -> bool:
    """Whether a shard has a name as shard_name makes it."""
    match = SHARD_NAME.fullmatch(file_name)
    return match is not None and match['index'] is not None and match['suffix'] is None


@dataclass(frozen=True)
class SourceImage:
    """An image file: its path relative to the folder ('class/file.jpg'), and the index of its
    class.
    """

    path: str
    class_index: int


@dataclass(frozen=True)
class ImageFolder:
    """A folder of class folders. classes and images are sorted; passed_over maps each reason to the
    paths skipped.
    """

    root: str
    classes: tuple[str, ...]
    images: tuple[SourceImage, ...]
    passed_over: dict[str, tuple[str, ...]]


def _listing(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise RunError(
            f'{folder}: it cannot be read ({error.strerror}); check its permissions'
        ) from error


def _not_made_by_hand(name: str) -> str | None:
    """The reason to pass over a file or folder of this name, or None."""
    if name.startswith('.'):
        return 'hidden'
    return 'made by a program' if name.lower() in _MADE_BY_PROGRAMS else None


def _is_named_as_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(IMAGE_SUFFIXES)


def _why_broken(entry: os.DirEntry[str]) -> str | None:
    """Returns why a link leads to nothing; None if it is no link, or leads to something."""
    if entry.is_symlink():
        try:
            os.stat(entry.path)
        except OSError as error:
            return error.strerror
    return None


def _files(folder: str, prefix: str) -> Iterator[tuple[str, str | None]]:
    """Yields the path of each file at any depth, after the prefix, and the reason to skip it or
    None.
    """
    # Not by recursion: folders may be nested more deeply than calls of Python.
    waiting = [(f'{prefix}/{entry.name}', entry) for entry in reversed(_listing(folder))]
    while waiting:
        path, entry = waiting.pop()
        if why := _not_made_by_hand(entry.name):
            yield path, why
        elif (reason := _why_broken(entry)) is None and entry.is_dir():
            if entry.is_symlink():
                yield path, 'a link to a folder'
            else:
                waiting += [
                    (f'{path}/{inner.name}', inner) for inner in reversed(_listing(entry.path))
                ]
        elif not _is_named_as_image(entry):
            yield path, 'a broken link' if reason else 'not named as a JPEG or PNG'
        # A broken link counts as an image, so that it is reported with the files that cannot be
        # decoded.
        elif reason is None and not entry.is_file():
            yield path, 'not a file'
        else:
            yield path, None


def scan_folder(root: str) -> ImageFolder:
    """Lists the class folders of root and the JPEG and PNG files in each, at any depth, without
    decoding them.

    Classes are sorted by folder name. A class folder may be a link. Inside it, links to files are
    followed, and links to folders are not.

    Raises:
      UsageError: root is no folder of class folders, or a link beside them is broken: it may be one
        of them.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise UsageError(
            f'--input={root}: it is not a folder; write the folder that contains a folder of '
            'images for each class'
        )
    passed_over: defaultdict[str, list[str]] = defaultdict(list)
    classes: list[str] = []
    images: list[SourceImage] = []
    for entry in _listing(root):
        if why := _not_made_by_hand(entry.name):
            passed_over[why].append(entry.name)
        elif (reason := _why_broken(entry)) and not _is_named_as_image(entry):
            raise UsageError(
                f'--input={root}: {entry.name} is a link to {os.readlink(entry.path)}, which '
                f'cannot be opened ({reason}), so that a class would be missing; mend the link, '
                f'or remove it'
            )
        elif reason or not entry.is_dir():
            passed_over['in no class folder'].append(entry.name)
        else:
            if _NOT_IN_LABELS.search(entry.name):
                raise UsageError(
                    f'--input={root}: labels.txt cannot hold {entry.name!r}; rename this class '
                    'folder'
                )
            for path, why in _files(entry.path, entry.name):
                if why:
                    passed_over[why].append(path)
                else:
                    images.append(SourceImage(path, len(classes)))
            classes.append(entry.name)
    if not images:
        others = [path for paths in passed_over.values() for path in paths]
        contents = (
            f', but {plural(len(others), "other file")}, such as {others[0]}' if others else ''
        )
        raise UsageError(
            f'--input={root}: there is no JPEG or PNG in a class folder{contents}; write a folder '
            'that contains a folder of images for each class, as in train/cat/1.jpg'
        )
    _check_level(
        root, [folder.split('/') for folder in {image.path.rpartition('/')[0] for image in images}]
    )
    return ImageFolder(
        root,
        tuple(classes),
        tuple(images),
        {why: tuple(paths) for why, paths in passed_over.items()},
    )


def _check_level(root: str, folders: list[list[str]]) -> None:
    """Raises UsageError if root is above the folder of class folders; `folders`, relative to it,
    contain images.
    """
    names = sorted(
        {folder[0] for folder in folders}, key=lambda name: ('train' not in name.lower(), name)
    )
    if {name.lower() for name in names} <= _SUBSETS:
        what = f'{", ".join(names)}: these are names of subsets, not of classes'
    elif shared := _shared_folders(names, folders):
        what = (
            f'{", ".join(names)}: each contains {shared[0]}, so these are subsets of the same '
            'classes'
        )
    elif len(names) == 1 and all(len(folder) > 1 for folder in folders):
        what = f'all images are in folders of {names[0]}, so that there is one class'
    else:
        return
    raise UsageError(f'--input={root}: {what}; write --input={os.path.join(root, names[0])}')


def _shared_folders(names: list[str], folders: list[list[str]]) -> list[str]:
    """Returns the folders of images that all of several folders with names of subsets contain."""
    is_above = all(len(folder) > 1 for folder in folders)
    if (
        len(names) < 2
        or not is_above
        or not all(_WITH_SUBSET.fullmatch(name.lower()) for name in names)
    ):
        return []
    inner = [{folder[1] for folder in folders if folder[0] == name} for name in names]
    return sorted(set.intersection(*inner))


def read_labels(folder: str) -> tuple[str, ...] | None:
    """Reads the names of labels 0, 1, ... in the folder's labels.txt. None if there is no
    labels.txt.
    """
    path = Path(folder) / LABELS_FILE
    try:
        lines = read_regular(path).decode().replace('\r\n', '\n').split('\n')
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f'{path}: it cannot be read ({error}); write it again, with one class name a line'
        ) from error
    if lines[-1] == '':
        lines.pop()
    if not lines:
        raise UsageError(f'{path}: it is empty; write it again, with one class name a line')
    return tuple(lines)


@dataclass(frozen=True)
class SubsetFacts:
    """The facts in dataset.json about a subset; height and width, in pixels, are None if images
    differ.
    """

    images: Annotated[int, _COUNT]
    shards: Annotated[int, _COUNT]
    height: Annotated[int, _SIDE] | None
    width: Annotated[int, _SIDE] | None


def read_facts(folder: str) -> dict[str, SubsetFacts]:
    """Reads the facts of each subset in dataset.json; empty if the file is missing, as in older
    folders.
    """
    path = Path(folder) / FACTS_FILE
    try:
        return read_json(path, dict[str, SubsetFacts])
    except FileNotFoundError:
        return {}
    except DocumentError as error:
        raise UsageError(
            f'{path}: it cannot be used ({error}); remove it, then the shards are counted'
        ) from None
