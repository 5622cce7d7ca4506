"""Before any test imports TensorFlow: it says nothing below an error. And what --all_modes adds to the tests."""

import os

import pytest

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption('--all_modes', action='store_true', help='also run the tests marked all_modes')


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line('markers', 'all_modes: takes minutes, and a test like it always runs; --all_modes runs it')


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption('--all_modes'):
        for item in items:
            if item.get_closest_marker('all_modes'):
                item.add_marker(pytest.mark.skip(reason='takes minutes; --all_modes runs it'))
