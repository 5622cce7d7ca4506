"""Makes the pictures of README.md and docs/lab.md anew, in docs/figures.

    make figures

Each shows results in data/. Those that are not there are measured first, by the commands of the
pages: about ten minutes on two cores. The numbers in the text of a page belong to its picture. The
drawings in docs/figures/modes are not measured; they are their own source.
"""

import argparse
import io
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops

from tf_cnn.lab.against import read_rows
from tf_cnn.lab.config import ReportOptions
from tf_cnn.lab.measure import COMMANDS_FILE
from tf_cnn.lab.page import make_page
from tf_cnn.system.atomic import write_atomically
from tf_cnn.system.errors import BenchmarkError, RunError, UsageError, format_error

ROOT = Path(__file__).resolve().parents[1]
# The first plot of each sweep, and the page with the command that measures it.
PLOTS = {
    'sweep.svg': ('data/sweep', 'README.md'),
    'lab_modes.svg': ('data/lab/modes', 'docs/lab.md'),
}
# The top of the page of `make bench`, which is what it writes last.
PICTURE, PAGE, RESULTS = 'bench.png', 'data/bench.html', ('data/resnet50', 'data/modes')
BROWSERS = ('chromium', 'chromium-browser', 'google-chrome')
_WIDTH, _HEIGHT, _MARGIN = 1220, 4000, 30
_TOP_ONLY = '<style>#plots ~ *, footer { display: none }</style></head>'


def missing_commands(root: Path) -> Iterator[list[str]]:
    """Yields the commands that measure what is missing; a sweep that was interrupted goes on."""
    if not (root / PAGE).exists():
        yield ['make', 'bench']
    for folder, page in PLOTS.values():
        if _is_complete(root / folder):
            continue
        lines = (ROOT / page).read_text(encoding='utf-8').replace('\\\n', '').splitlines()
        (line,) = (line for line in lines if f' --output={folder} ' in line)
        yield [sys.executable, *shlex.split(line)[1:]]


def _is_complete(sweep: Path) -> bool:
    """Whether each configuration of a sweep has as many results as the first one."""
    if not (sweep / COMMANDS_FILE).exists():
        return False
    names = [line.partition(':')[0] for line in (sweep / COMMANDS_FILE).read_text().splitlines()]
    counts = {len([*sweep.glob(f'results/{name}.*.json')]) for name in names}
    return len(counts) == 1 and counts != {0}


def make_figures(root: Path, output: Path) -> Iterator[Path]:
    """Writes the pictures of the results in a folder; yields their paths."""
    output.mkdir(parents=True, exist_ok=True)
    for name, (folder, _) in PLOTS.items():
        _, [plot, *_] = _page(root / folder)
        write_atomically(dict(plot.files())[f'{plot.name}.svg'], output / name)
        yield output / name
    html, _ = _page(*(root / name for name in RESULTS))
    picture = photograph(html)
    write_atomically(picture, output / PICTURE)
    yield output / PICTURE


def _page(*paths: Path) -> tuple[str, Sequence[Any]]:
    rows = read_rows([*map(str, paths)], ReportOptions())
    if problem := next((row for row in rows if row.is_missing), None):
        raise RunError(f'{problem.name}: {problem.remark}')
    return make_page(rows)


def photograph(html: str) -> bytes:
    """Returns the page up to its plots, as a browser shows it, as PNG."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise UsageError(f'{PICTURE} needs a browser; run: apt-get install chromium')
    with tempfile.TemporaryDirectory() as folder:
        page, picture = Path(folder, 'page.html'), Path(folder, 'page.png')
        page.write_text(html.replace('</head>', _TOP_ONLY), encoding='utf-8')
        arguments = ['--headless=new', '--no-sandbox', '--disable-gpu', '--hide-scrollbars']
        arguments += [f'--user-data-dir={folder}/profile', f'--screenshot={picture}']
        arguments += [f'--window-size={_WIDTH},{_HEIGHT}', page.as_uri()]
        subprocess.run([browser, *arguments], check=True, capture_output=True, timeout=120)
        image = Image.open(picture).convert('RGB')
    white = Image.new('RGB', image.size, 'white')
    box = ImageChops.difference(image, white).getbbox()
    if box is None:
        raise RunError(f'{PICTURE}: the browser shows an empty page')
    buffer = io.BytesIO()
    cropped = image.crop((0, 0, _WIDTH, min(box[3] + _MARGIN, _HEIGHT)))
    # 64 colours take a quarter of the bytes.
    cropped.quantize(64).save(buffer, 'PNG', optimize=True)
    return buffer.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--output', type=Path, default=ROOT / 'docs' / 'figures')
    arguments = parser.parse_args()
    try:
        for command in missing_commands(ROOT):
            print(f'figures: {shlex.join(command)}', flush=True)
            if code := subprocess.run(command, cwd=ROOT).returncode:
                raise RunError(f'{shlex.join(command)} ended with {code}')
        for path in make_figures(ROOT, arguments.output):
            print(path)
    except BenchmarkError as error:
        print(format_error(str(error)), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == '__main__':
    sys.exit(main())
