"""A damaged document of this program gives one error in one line."""

import pytest

from tests.support.outputs import check_line
from tf_cnn.cluster.environments import read_tf_config
from tf_cnn.inputs.layout import read_dataset_info
from tf_cnn.lab.sweep_file import read_sweep_file
from tf_cnn.results.document import read_result
from tf_cnn.system.errors import UsageError
from tf_cnn.training.checkpoint_files import read_end_step

pytestmark = pytest.mark.unit

DAMAGES = {
    'infinity': b'{"end": Infinity}',
    'beyond float64': b'{"end": 1e999, "length": [1, 2, 3], "cluster": 1e999}',
    'not a number': b'{"end": NaN}',
    'deep lists': b'[' * 100_000,
    'deep objects': b'{"end": ' * 100_000,
    'deep values': b'end = ' + b'[' * 100_000,
    'no UTF-8': b'{"end": "\xff\xfe"}',
    'zeros': bytes(1000),
    'cut off': b'{"end": 3, "leng',
    'a list': b'[]',
    'a text': b'"end"',
    'a number': b'5',
    'several lines': b'{\n"a"\n:\n}\n',
}


@pytest.mark.parametrize('damage', DAMAGES)
@pytest.mark.parametrize(
    ('name', 'read'),
    [
        ('training-begun', lambda folder: read_end_step(str(folder), [1, 2, 3])),
        ('dataset.json', lambda folder: read_dataset_info(str(folder))),
        ('sweep.toml', lambda folder: read_sweep_file(folder / 'sweep.toml')),
        ('result.json', lambda folder: read_result(folder / 'result.json')),
    ],
)
def test_a_damaged_document_is_refused_in_one_line_that_names_its_file(
    name, read, damage, tmp_path
):
    (tmp_path / name).write_bytes(DAMAGES[damage])
    with pytest.raises(UsageError) as caught:
        read(tmp_path)
    check_line(caught.value, tmp_path / name)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize('damage', DAMAGES)
def test_a_damaged_tf_config_is_refused_in_one_line(damage):
    with pytest.raises(UsageError) as caught:
        read_tf_config({'TF_CONFIG': DAMAGES[damage].decode(errors='surrogateescape')})
    check_line(caught.value, 'TF_CONFIG')
