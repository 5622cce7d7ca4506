"""The file of links, and what a data sheet says."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from errors import UsageError
from scaling.links import MOST_ROWS, LinkRow, read_links, read_network, write_links
from scaling.terms import bytes_of_links

pytestmark = pytest.mark.unit

ROW = LinkRow('collective', 'float32', 2, 2, 1, 0, 1 << 20, 1, 1 << 20, 0.01)
WHOLE = LinkRow('parameter_servers', 'float16', 2, 2, 1, 2, 1 << 23, 1, 1 << 23, 0.02, slices=False)
APART = LinkRow('parameter_servers', 'float32', 2, 1, 1, 1, 1 << 20, 1, 1 << 20, 0.02, server_hosts=1)
SERVERS = LinkRow('parameter_servers', 'float32', 2, 2, 1, 1, 1 << 20, 1, 1 << 20, 0.02, 'lenet')


def written(folder: Path, **changes: Any) -> str:
    path = folder / 'links.json'
    write_links([ROW], path)
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, **changes}))
    return str(path)


def row(**changes: Any) -> dict[str, Any]:
    return {'exchange': 'ring', 'dtype': 'float32', 'workers': 2, 'bytes': 4096, 'seconds': 0.1, **changes}


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = str(tmp_path / 'links.json')
    write_links([ROW, SERVERS, WHOLE, APART], path)
    assert list(read_links(path).rows) == [ROW, SERVERS, WHOLE, APART]


def test_rows_that_say_nothing_of_slices_have_them(tmp_path: Path) -> None:
    path = written(tmp_path, rows=[row(exchange='parameter_servers', servers=2)])
    (found,) = read_links(path).rows
    assert found.slices
    assert found.measured.work.slices


def test_one_worker_on_another_host_than_its_server_is_an_exchange() -> None:
    assert APART.is_exchange
    assert not replace(APART, hosts=1, server_hosts=0).is_exchange
    measured = APART.measured
    assert bytes_of_links(measured.work, measured.cluster) == 2 << 20


def test_whole_variables_have_a_name_and_bytes_of_their_own() -> None:
    assert (ROW.name, SERVERS.name, WHOLE.name) == ('collective', 'parameter_servers', 'parameter_servers_whole')
    # A tensor of 8 MiB on one of two servers, each on the host of a worker; cut, each has half of it.
    assert WHOLE.is_cut
    assert bytes_of_links(WHOLE.measured.work, WHOLE.measured.cluster) == 2 * (1 << 23)
    cut = replace(WHOLE, slices=True).measured
    assert bytes_of_links(cut.work, cut.cluster) == 2 * (1 << 22)
    # 4 MiB in 32 bits are not cut, and 2 MiB in 16 bits are the same values.
    for dtype, largest in (('float32', 1 << 22), ('float16', 1 << 21)):
        same = replace(WHOLE, dtype=dtype, bytes=largest, largest=largest)
        assert not same.is_cut
        assert replace(same, bytes=largest + 4, largest=largest + 4).is_cut
    assert not replace(WHOLE, servers=1).is_cut


def test_rows_of_any_model_and_of_this_one_count(tmp_path: Path) -> None:
    path = str(tmp_path / 'links.json')
    write_links([ROW, SERVERS], path)
    links = read_links(path)
    assert links.of('float32', 'lenet') == [ROW, SERVERS]
    assert links.of('float32', 'vgg16') == [ROW]


def test_links_of_another_type_or_model_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / 'links.json')
    write_links([SERVERS], path)
    links = read_links(path)
    for dtype, model, named in (('float16', 'lenet', 'float32'), ('float32', 'vgg16', '--model=vgg16')):
        with pytest.raises(UsageError) as error:
            links.of(dtype, model)
        assert path in str(error.value)
        assert named in str(error.value)


@pytest.mark.parametrize(
    ('changes', 'named'),
    [
        ({'rows': []}, 'no rows'),
        ({'rows': [row()] * 5000}, '5000 rows'),
        ({'rows': None}, 'no rows'),
        ({'schema': 'x'}, 'no links'),
        ({'schema_version': 2}, '2'),
        ({'rows': [3]}, 'row 1'),
        ({'rows': [row(), row(seconds=0)]}, 'row 2: seconds'),
        ({'rows': [row(seconds=True)]}, 'seconds'),
        ({'rows': [row(bytes='many')]}, 'bytes'),
        ({'rows': [row(bytes=0)]}, 'bytes'),
        ({'rows': [row(workers=1)]}, 'row 1'),
        ({'rows': [row(hosts=3)]}, 'workers'),
        ({'rows': [row(exchange='pigeons')]}, 'exchange'),
        ({'rows': [row(exchange='parameter_servers')]}, 'servers'),
        ({'rows': [row(dtype='int8')]}, 'dtype'),
        ({'rows': [row(model=3)]}, 'model'),
        ({'rows': [row(slices=0)]}, 'slices'),
        ({'rows': [row(server_hosts=-1)]}, 'server_hosts'),
        ({'rows': [row(hosts=2, server_hosts=1)]}, 'server_hosts'),
        ({'rows': [row(exchange='parameter_servers', hosts=2, servers=2, server_hosts=2)]}, 'server_hosts'),
        ({'rows': [row(exchange='parameter_servers', hosts=3, servers=1, server_hosts=2)]}, 'servers'),
        ({'rows': [row(exchange='parameter_servers', hosts=4, servers=1, server_hosts=1)]}, 'workers'),
        ({'rows': [row(exchange='parameter_servers', workers=1, servers=1)]}, 'one device'),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(UsageError) as error:
        read_links(path)
    assert path in str(error.value)
    assert named in str(error.value)
    assert len(error.value.lines) == 1


@pytest.mark.parametrize('content', [b'', b'{', b'[]', b'\xff\xfe', b'[' * 100_000])
def test_a_file_that_is_no_document_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / 'links.json'
    path.write_bytes(content)
    with pytest.raises(UsageError):
        read_links(str(path))
    with pytest.raises(UsageError):
        read_links(str(tmp_path / 'none.json'))


def test_the_most_rows_are_read(tmp_path: Path) -> None:
    assert len(read_links(written(tmp_path, rows=[row()] * MOST_ROWS)).rows) == MOST_ROWS


@pytest.mark.parametrize(
    ('text', 'bits'),
    [('25Gbit', 25e9), ('100 Mbit/s', 1e8), ('1gbit', 1e9), ('1.5Gbps', 1.5e9), ('9600bit', 9600), ('1Tbit', 1e12)],
)
def test_a_data_sheet_is_in_bits(text: str, bits: float) -> None:
    assert read_network(text) == pytest.approx(bits / 8)


@pytest.mark.parametrize('text', ['0Gbit', '0', '25', '25GB', '25GB/s', 'Gbit', '-1Gbit', '5 parsec', 'nan Gbit', ''])
def test_a_network_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match='--network='):
        read_network(text)
