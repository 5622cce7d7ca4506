"""Settings of all tests: their surroundings; TensorFlow logs only errors; the option --all_modes;
which tests may be skipped; fixtures.
"""

import os
import re
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

from tests.support.surroundings import forget_output_variables, restore_signals, why_not
from tf_cnn.graph.tensorflow_import import import_tensorflow
from tf_cnn.machine.this_process import INTRA, THIS_PROCESS, ThisProcess

_IS_OF_XDIST = 'PYTEST_XDIST_WORKER' in os.environ
if _IS_OF_XDIST and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # A new session gets no SIGHUP when the user of nohup logs out.
    os.setsid()
restore_signals()
forget_output_variables()
# Each run of the tests draws the same examples; slow machines get no deadline.
# `--hypothesis-profile=default` draws others.
settings.register_profile(
    'same', derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile('same')
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
# The settings of Keras and the fonts of matplotlib stay out of the home directory.
os.environ.setdefault('KERAS_HOME', os.devnull)
_FONTS = tempfile.TemporaryDirectory(prefix='tf_cnn_benchmarks-')
os.environ.setdefault('MPLCONFIGDIR', _FONTS.name)
# Otherwise the first run decides, and later runs with fewer towers are refused.
THIS_PROCESS.record({INTRA: 0})
if _IS_OF_XDIST:
    # Each of these processes imports all tests, and with them TensorFlow. Keras can wait.
    import_tensorflow()


@pytest.fixture(scope='session')
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with shards of 16 training images and 23 validation images."""
    from tests.support.images import write_noise

    folder = tmp_path_factory.mktemp('noise')
    write_noise(folder, 23)
    return folder


@pytest.fixture(scope='session')
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with imagenet/ and cifar10/, of few images."""
    import numpy as np

    from tests.support.images import write_cifar, write_noise

    folder = tmp_path_factory.mktemp('data')
    (folder / 'imagenet').mkdir()
    write_noise(folder / 'imagenet', num_validation=12)
    for subset in ('train', 'validation'):
        write_cifar(folder / 'cifar10', np.zeros([20, 32, 32, 3]), np.arange(20) % 10, subset)
    return folder


@pytest.fixture
def forget_models() -> Iterator[None]:
    """Unregisters the models that a test registers."""
    from models.registry import MODELS

    before = {*MODELS.list_models()}
    yield
    MODELS.unregister(*{*MODELS.list_models()} - before)


@pytest.fixture
def forget_modes() -> Iterator[None]:
    """Forgets the modes that a test registers."""
    from tf_cnn.managers.modes import MODES

    with mock.patch.dict(MODES):
        yield


@pytest.fixture
def same_environment() -> Iterator[None]:
    """Restores the environment variables that plans of runs set in this process."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def fresh_process() -> Iterator[None]:
    """Makes this process look as if no run had changed its settings."""
    with mock.patch.dict(vars(THIS_PROCESS), vars(ThisProcess())):
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption('--all_modes', action='store_true', help='also run the tests marked all_modes')
    parser.addoption(
        '--combinations', type=int, default=2_000, help='how many combinations of flags are tried'
    )
    parser.addoption('--combinations_seed', type=int, default=1, help='the seed that draws them')


def pytest_configure(config: pytest.Config) -> None:
    if not _IS_OF_XDIST and (reason := why_not()):
        pytest.exit(f'no test can run here: {reason}', returncode=1)
    config.addinivalue_line(
        'markers', 'all_modes: takes minutes; a similar test always runs; --all_modes runs this one'
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption('--all_modes'):
        for item in items:
            if item.get_closest_marker('all_modes'):
                item.add_marker(pytest.mark.skip(reason='takes minutes; --all_modes runs it'))
    if _IS_OF_XDIST:
        # Long files first, so that at the end no process has a long one alone.
        long_files = {
            item.path
            for item in items
            if item.get_closest_marker('distributed') or item.get_closest_marker('long')
        }
        items.sort(key=lambda item: item.path not in long_files)


# Resources that a machine may lack. With CI=true, a test that is skipped for another reason fails.
_MAY_LACK = re.compile(
    '--all_modes|GPU|CUDA|driver|libraries|core|root|small disk|hosts are|links cannot|'
    'browser|namespace|network|lscpu|there is no ss|Slurm|Open MPI|no wheel|C compiler|optional|'
    'not every supported TensorFlow'
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # A skipped test has (file, line, reason).
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ''
    if reason and os.environ.get('CI') == 'true' and not _MAY_LACK.search(reason):
        report.outcome, report.longrepr = 'failed', f'it must not be skipped: {reason}'
    return report
