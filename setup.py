"""How tf_cnn_benchmarks is installed. It is an application: give it an environment of its own (venv, pipx)."""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
README = ROOT / 'README.md'

RECORDS = ['pillow>=10.1']
REPORT = ['jinja2>=3.1', 'matplotlib>=3.8']
# scikit-image and scikit-learn carry the photographs and digits that tests and `make bench` train on. Selenium drives
# the browser in which pages are tested, axe looks for what keeps people out of them.
DEV = [
    'axe-selenium-python>=2.1.6',
    'hypothesis>=6.100',
    'mypy>=1.11',
    'pytest>=8.0',
    'pytest-timeout>=2.3',
    'pytest-xdist>=3.5',
    'pyyaml>=6.0',
    'ruff>=0.6',
    'scikit-image>=0.22',
    'scikit-learn>=1.4',
    'scipy>=1.11',
    'selenium>=4.20',
]

setup(
    name='tf_cnn_benchmarks',
    version='0.1.0',
    description='Measures how fast machines train convolutional networks with TensorFlow',
    long_description=README.read_text(encoding='utf-8') if README.exists() else '',
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    license_files=['LICENSE'],
    python_requires='>=3.10,<3.14',
    py_modules=sorted(path.stem for path in ROOT.glob('*.py') if path.name != 'setup.py'),
    packages=find_packages(exclude=['tests', 'tests.*', 'benchmarks', 'benchmarks.*']),
    package_data={'models': ['costs.csv'], 'reporting': ['templates/*']},
    # rich comes with TensorFlow's keras.
    install_requires=['absl-py>=2.0', 'numpy>=1.26', 'tensorflow>=2.16,<2.22'],
    extras_require={
        'cuda': ['tensorflow[and-cuda]>=2.16,<2.22'],
        'records': RECORDS,
        'report': REPORT,
        'dev': [*DEV, *RECORDS, *REPORT],
    },
    entry_points={'console_scripts': ['tf_cnn_benchmarks=tf_cnn_benchmarks:main']},
)
