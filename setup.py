"""Builds and installs tf_cnn_benchmarks as two packages, tf_cnn_benchmarks and tf_cnn."""

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

ROOT = Path(__file__).parent
# The version of a tree without a tag. It is read and not imported, since the program's dependencies
# may not be installed yet.
VERSION = re.findall(
    r"VERSION = '(.+)'", (ROOT / 'tf_cnn' / 'results' / '__init__.py').read_text(encoding='utf-8')
)[0]
README = ROOT / 'README.md'
# The commit, with '-dirty' if files were changed.
DESCRIBE = ('describe', '--always', '--dirty', '--abbrev=40', '--exclude=*')


def output_of_git(*words: str) -> str:
    """Returns what git tells of this clone; nothing without git or a clone."""
    if not ((ROOT / '.git').exists() and shutil.which('git')):
        return ''
    process = subprocess.run(['git', *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return process.stdout.strip()


def find_repository() -> str:
    """Returns the address on GitHub of the origin of this clone or source distribution; without
    one, a placeholder.
    """
    distribution = ROOT / 'PKG-INFO'
    text = distribution.read_text(encoding='utf-8') if distribution.exists() else ''
    text = text or output_of_git('config', '--get', 'remote.origin.url')
    match = re.search(r'github\.com[:/]([^/\s]+/[^/\s]+?)(\.git)?$', text, re.MULTILINE)
    return f'https://github.com/{match[1] if match else "OWNER/tf_cnn_benchmarks"}'


REPOSITORY = find_repository()
# TensorFlow in the extra `dev`. For machines without a GPU, TENSORFLOW_PACKAGE=tensorflow-cpu
# selects a smaller package.
TENSORFLOW = os.environ.get('TENSORFLOW_PACKAGE', 'tensorflow')
if TENSORFLOW not in ('tensorflow', 'tensorflow-cpu'):
    raise SystemExit(f'TENSORFLOW_PACKAGE={TENSORFLOW}: it must be tensorflow or tensorflow-cpu')
CORE = [
    'absl-py>=2.0',
    # Older ones end without a message of their own at a file that was cut.
    'msgspec>=0.21',
    'numpy>=1.26',
    'psutil>=5.9.4',
    'rich>=13.0',
]


def tensorflow(*packages: str) -> list[str]:
    """Returns TensorFlow, which only runs need, and the packages of it that this program imports,
    too.
    """
    # The program uses private modules of TensorFlow, so each version is tried before it is allowed.
    # Of 2.22, the first for Python 3.14, there is only a release candidate: rc0 passes `doctor`.
    versioned = [
        f'{name}>=2.16,<2.22{semicolon}{where}'
        for name, semicolon, where in (p.partition(';') for p in packages)
    ]
    # TensorFlow itself restricts both versions. Older ones of grpcio have no wheel for Python 3.11.
    return [*versioned, 'grpcio>=1.49.1', 'protobuf']


# The smaller package exists only for x86-64.
CPU = tensorflow(
    'tensorflow-cpu; platform_machine == "x86_64"', 'tensorflow; platform_machine != "x86_64"'
)
NVML = ['nvidia-ml-py>=12.535']
# 13.0 closed holes in the decoding of JPEG and TIFF files (GHSA-8g5g-8vmr-9782 and others).
RECORDS = ['pillow>=13.0']
REPORT = ['jinja2>=3.1', 'markupsafe>=2.1.1', 'matplotlib>=3.10']
# TensorFlow 2.21 no longer installs it. Only viewing summaries needs it, not writing them.
TENSORBOARD = ['tensorboard>=2.16']
# Without the libraries of CUDA, which take gigabytes.
ALL = [*RECORDS, *REPORT, *TENSORBOARD]
# scikit-image and scikit-learn carry the photographs and digits that tests and `make bench` train
# on. Selenium drives the browser that tests the pages; axe checks that people with disabilities can
# use them.
DEV = [
    'axe-selenium-python>=2.1.6',
    'codespell>=2.3',
    'hypothesis>=6.100',
    'jsonschema>=4.18',
    'keras>=3.0',
    # Models of Kubernetes, which check the pods of deploy/.
    'kubeflow-trainer-api>=2.0',
    'markdown-it-py>=2.2',
    'mypy>=1.11',
    'packaging>=24.2',
    'pyte>=0.8',
    'pytest>=8.0',
    'pytest-timeout>=2.3',
    'pytest-xdist>=3.5',
    'pyyaml>=6.0',
    'ruff>=0.6',
    'scikit-image>=0.22',
    'scikit-learn>=1.4',
    'scipy>=1.11',
    'selenium>=4.20',
    # Build the wheel that a test installs.
    'setuptools>=77',
    'setuptools-scm>=8.1',
    # Writes the lock files, and tests other versions.
    'uv>=0.5',
]

PACKAGES = find_packages(exclude=['benchmarks*', 'tests*'])
# The modules and packages at the top of a checkout besides the command. In a wheel they are in
# tf_cnn.
TOP_MODULES = ['benchmark_cnn', 'cnn_util', 'preprocessing', 'variable_mgr']
TOP_PACKAGES = ['models']
_AT_TOP = re.compile(rf'({"|".join([*TOP_MODULES, *TOP_PACKAGES])})\b')

MAIN = '''"""`python -m tf_cnn_benchmarks`: the command."""

import sys

from tf_cnn_benchmarks import main

sys.exit(main())
'''


class BuildWheel(build_py):
    """Makes the packages of a wheel from the files of a checkout: tf_cnn_benchmarks, the command,
    and tf_cnn, the rest.

    Among the packages of others, names such as `models` would do harm. So what stands at the top
    moves into tf_cnn, and imports and class names ('module:Class') of all files follow it.
    """

    def run(self) -> None:
        super().run()
        # An editable installation uses the files of the checkout.
        if self.editable_mode:
            return
        folder = Path(self.build_lib)
        package, command = folder / 'tf_cnn', folder / 'tf_cnn_benchmarks'
        for name in (*TOP_PACKAGES, *(f'{module}.py' for module in TOP_MODULES)):
            shutil.rmtree(package / name, ignore_errors=True)
            os.replace(folder / name, package / name)
        command.mkdir(exist_ok=True)
        os.replace(folder / 'tf_cnn_benchmarks.py', command / '__init__.py')
        (command / '__main__.py').write_text(MAIN, encoding='utf-8')
        (command / 'py.typed').touch()
        for path in (*package.rglob('*.py'), *command.glob('*.py')):
            path.write_text(move_imports(path.read_text(encoding='utf-8')), encoding='utf-8')
        self._write_version(package)

    def _write_version(self, package: Path) -> None:
        """Writes the version, and the commit if it is known, into the package; runs read both."""
        if commit := os.environ.get('GIT_COMMIT') or output_of_git(*DESCRIBE):
            (package / 'commit.txt').write_text(f'{commit}\n', encoding='utf-8')
        results = package / 'results' / '__init__.py'
        results.write_text(
            results.read_text().replace(f"'{VERSION}'", f"'{self.distribution.get_version()}'")
        )


class WheelInfo(egg_info):
    """Writes the packages of a wheel into top_level.txt, instead of the modules of a checkout."""

    def run(self) -> None:
        super().run()
        Path(self.egg_info, 'top_level.txt').write_text('tf_cnn\ntf_cnn_benchmarks\n')


def complete_links(readme: str) -> str:
    """Returns the text with the addresses of its pictures and pages, for the page of a package."""
    raw = REPOSITORY.replace('github.com', 'raw.githubusercontent.com')
    readme = re.sub(r'(!\[.*?\]\()(?!http)', rf'\1{raw}/main/', readme)
    return re.sub(r'\]\((?!http|#)', f']({REPOSITORY}/blob/main/', readme)


def move_imports(source: str) -> str:
    """Returns the source of a module with the names in tf_cnn of all modules that stand at the top
    of a checkout.
    """
    lines = source.encode().splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(name), level=0) if _AT_TOP.match(name):
                old, new = f'from {name}', f'from tf_cnn.{name}'
            case ast.Import(names=[ast.alias(name=name)]) if _AT_TOP.fullmatch(name):
                old, new = f'import {name}', f'from tf_cnn import {name}'
            case ast.Constant(value=str(name)) if ':' in name and _AT_TOP.match(name):
                old, new = name, f'tf_cnn.{name}'
            case _:
                continue
        line, column = lines[node.lineno - 1], node.col_offset
        lines[node.lineno - 1] = line[:column] + line[column:].replace(
            old.encode(), new.encode(), 1
        )
    return b''.join(lines).decode()


setup(
    name='tf_cnn_benchmarks',
    # The newest tag: --version adds the commit.
    use_scm_version={
        'version_scheme': 'only-version',
        'local_scheme': 'no-local-version',
        'fallback_version': VERSION,
    },
    description='Measures how fast machines train image classifiers with TensorFlow',
    long_description=complete_links(README.read_text(encoding='utf-8')) if README.exists() else '',
    long_description_content_type='text/markdown',
    author='The authors of tf_cnn_benchmarks',
    keywords=['benchmark', 'TensorFlow', 'image classification', 'GPU', 'distributed training'],
    project_urls={
        'Source': REPOSITORY,
        'Issues': f'{REPOSITORY}/issues',
        'Changelog': f'{REPOSITORY}/blob/main/CHANGELOG.md',
    },
    license_expression='Apache-2.0',
    license_files=['LICENSE'],
    classifiers=[
        'Development Status :: 4 - Beta',
        'Environment :: Console',
        'Environment :: GPU :: NVIDIA CUDA',
        'Intended Audience :: Science/Research',
        'Operating System :: POSIX :: Linux',
        *(f'Programming Language :: Python :: 3.{minor}' for minor in (11, 12, 13)),
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
        'Topic :: System :: Benchmark',
        'Typing :: Typed',
    ],
    python_requires='>=3.11,<3.14',
    py_modules=['tf_cnn_benchmarks', *TOP_MODULES],
    packages=PACKAGES,
    package_data={
        'models': ['catalog.json'],
        'tf_cnn': ['py.typed'],
        'tf_cnn.plan': ['original_flags.csv'],
        'tf_cnn.results': ['result.schema.json'],
        'tf_cnn.lab': ['*.csv', '*.toml', 'templates/*'],
    },
    cmdclass={'build_py': BuildWheel, 'egg_info': WheelInfo},
    install_requires=CORE,
    extras_require={
        'cpu': CPU,
        'cuda': [*NVML, *tensorflow('tensorflow[and-cuda]')],
        'records': RECORDS,
        'report': REPORT,
        'tensorboard': TENSORBOARD,
        'all': ALL,
        'dev': [*DEV, *NVML, *RECORDS, *REPORT, *tensorflow(TENSORFLOW)],
    },
    entry_points={'console_scripts': ['tf_cnn_benchmarks=tf_cnn_benchmarks:main']},
)
