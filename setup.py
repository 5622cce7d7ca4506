"""How tf_cnn_benchmarks is installed: everything below the one package `tf_cnn_benchmarks`.

In a checkout the modules have plain names and stand at the top. Among the packages of others such names would do harm,
so the tree of the checkout becomes the folder `program` in the package, whose own modules are those of `installed/`.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
# That of a tree without a tag. Read, not imported: the program's dependencies may not be installed yet.
VERSION = re.findall(r"VERSION = '(.+)'", (ROOT / 'results' / '__init__.py').read_text(encoding='utf-8'))[0]
README = ROOT / 'README.md'

# Of the extra `dev`. Where there is no GPU, TENSORFLOW_PACKAGE=tensorflow-cpu installs a smaller one.
TENSORFLOW = os.environ.get('TENSORFLOW_PACKAGE', 'tensorflow')
if TENSORFLOW not in ('tensorflow', 'tensorflow-cpu'):
    raise SystemExit(f'TENSORFLOW_PACKAGE={TENSORFLOW}: it must be tensorflow or tensorflow-cpu')
CORE = [
    'absl-py>=2.0',
    'msgspec>=0.22',
    'numpy>=1.26',
    'psutil>=5.9.4',
    'rich>=13.0',
]


def tensorflow(*packages: str) -> list[str]:
    """Returns TensorFlow, without which only runs do not work, and the packages of it that this program imports too."""
    versioned = [
        f'{name}>=2.16,<2.22{semicolon}{where}' for name, semicolon, where in (p.partition(';') for p in packages)
    ]
    # TensorFlow knows the versions that it works with. Older ones have no wheel for Python 3.11.
    return [*versioned, 'grpcio>=1.49.1', 'protobuf']


# Only x86-64 has the smaller package.
CPU = tensorflow('tensorflow-cpu; platform_machine == "x86_64"', 'tensorflow; platform_machine != "x86_64"')
NVML = ['nvidia-ml-py>=12.535']
RECORDS = ['pillow>=10.1']
REPORT = ['jinja2>=3.1', 'markupsafe>=2.1.1', 'matplotlib>=3.10']
# TensorFlow 2.21 no longer installs it; what it shows is written without it.
TENSORBOARD = ['tensorboard>=2.16']
# Without the libraries of CUDA, which take gigabytes.
ALL = [*RECORDS, *REPORT, *TENSORBOARD]
# scikit-image and scikit-learn carry the photographs and digits that tests and `make bench` train on. Selenium drives
# the browser in which pages are tested, axe looks for what keeps people out of them.
DEV = [
    'axe-selenium-python>=2.1.6',
    'codespell>=2.3',
    'hypothesis>=6.100',
    'jsonschema>=4.18',
    'keras>=3.0',
    # Models of JobSet and Kubernetes, and of TFJob: the jobs of deploy/ are checked against them.
    'kubeflow-trainer-api>=2.0',
    'kubeflow-training>=1.9',
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

ROOMS = find_packages(exclude=['benchmarks*', 'installed*', 'tests*'])
AT_THE_TOP = sorted(path.stem for path in ROOT.glob('*.py') if path.name != 'setup.py')
PROGRAM = 'tf_cnn_benchmarks.program'


class BuildWithCommit(build_py):
    """Writes into the package its version, and which commit its source is, if that is known; a run reads them there."""

    def run(self) -> None:
        super().run()
        # An editable installation asks git.
        if self.editable_mode:
            return
        program = Path(self.build_lib, *PROGRAM.split('.'))
        commit = os.environ.get('GIT_COMMIT', '')
        if not commit and (ROOT / '.git').exists() and shutil.which('git'):
            asked = subprocess.run(['git', 'rev-parse', 'HEAD'], cwd=ROOT, capture_output=True, text=True, check=False)
            commit = asked.stdout
        if commit.strip():
            (program / 'commit.txt').write_text(f'{commit.strip()}\n', encoding='utf-8')
        results = program / 'results' / '__init__.py'
        results.write_text(results.read_text().replace(f"'{VERSION}'", f"'{self.distribution.get_version()}'"))


setup(
    name='tf_cnn_benchmarks',
    # The newest tag: --version adds the commit.
    use_scm_version={'version_scheme': 'only-version', 'local_scheme': 'no-local-version', 'fallback_version': VERSION},
    description='Measures how fast machines train convolutional networks with TensorFlow',
    long_description=README.read_text(encoding='utf-8') if README.exists() else '',
    long_description_content_type='text/markdown',
    license_expression='Apache-2.0',
    license_files=['LICENSE'],
    classifiers=[
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
    py_modules=[f'{PROGRAM}.{module}' for module in AT_THE_TOP],
    packages=['tf_cnn_benchmarks', *(f'{PROGRAM}.{room}' for room in ROOMS)],
    package_dir={
        'tf_cnn_benchmarks': 'installed',
        PROGRAM: '.',
        **{f'{PROGRAM}.{room}': room.replace('.', '/') for room in ROOMS},
    },
    package_data={
        'tf_cnn_benchmarks': ['py.typed'],
        f'{PROGRAM}.models': ['costs.csv'],
        f'{PROGRAM}.comparison': ['templates/*'],
        f'{PROGRAM}.results': ['result.schema.json'],
        f'{PROGRAM}.sweeps': ['*.toml'],
    },
    cmdclass={'build_py': BuildWithCommit},
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
