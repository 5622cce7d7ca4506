"""docs/reliability.md names tests that exist."""

import re
from pathlib import Path

import pytest

import tf_cnn_benchmarks

pytestmark = pytest.mark.unit

ROOT = Path(tf_cnn_benchmarks.__file__).parent


def test_the_tests_that_reliability_md_names_exist() -> None:
    text = (ROOT / 'docs' / 'reliability.md').read_text()
    named = set(re.findall(r'(?:\w+/)*test_\w+\.py', text))
    assert len(named) > 15
    missing = [name for name in named if not (ROOT / 'tests' / name.removeprefix('tests/')).is_file()]
    assert not missing
