"""Lists of nodes and of task counts are read as Slurm writes them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.environments import expand_counts, expand_nodes
from tests.support.outputs import refused

pytestmark = pytest.mark.unit


# As `scontrol show hostnames` of Slurm 22.05 writes them; it takes no text behind brackets, as in the last one.
@pytest.mark.parametrize(
    ('text', 'names'),
    [
        ('login1', 'login1'),
        ('gpu[01-03,07],login1', 'gpu01 gpu02 gpu03 gpu07 login1'),
        ('rack[0-1]node[0-1]', 'rack0node0 rack0node1 rack1node0 rack1node1'),
        ('tux[1-2][3-4]', 'tux13 tux14 tux23 tux24'),
        ('n[098-101]', 'n098 n099 n100 n101'),
        ('n[9-010]', 'n9 n10'),
        ('n[01-3]', 'n01 n02 n03'),
        ('a[1,1]', 'a1 a1'),
        ('gpu-a.lan,b', 'gpu-a.lan b'),
        ('a[1-2]-ib,b', 'a1-ib a2-ib b'),
    ],
)
def test_node_lists_are_read_as_slurm_reads_them(text: str, names: str) -> None:
    assert expand_nodes(text) == names.split()


@pytest.mark.parametrize('text', ['', 'a[', 'a[1-2', 'a]', 'a[]', 'a[x]', 'a[1-2-3]', 'a,,b', 'a,', 'a b', '(null)'])
def test_a_malformed_node_list_is_refused(text: str) -> None:
    with refused('Slurm', repr(text)):
        expand_nodes(text)


@pytest.mark.parametrize(
    'text',
    [f'a[1-{"9" * 18}]', f'a[1-{"9" * 5000}]', 'a[0-999][0-999][0-999]', 'a[1-99999],b[1-99999]', f'a{"[1-2]" * 40}'],
    ids=['long span', 'long number', 'three brackets', 'two nodes', 'many brackets'],
)
def test_a_node_list_that_no_cluster_has_is_refused_at_once(text: str) -> None:
    with refused('Slurm', repr(text)):
        expand_nodes(text)


@pytest.mark.parametrize('text', ['1(x999999999)', '999999999', '1(x99999),1(x99999)', '9' * 5000])
def test_task_counts_that_no_cluster_has_are_refused_at_once(text: str) -> None:
    with refused(f'SLURM_STEP_TASKS_PER_NODE={text}'):
        expand_counts(text)


@st.composite
def node_lists(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A compressed list, and its names written out one by one."""
    items, names = [], []
    for _ in range(draw(st.integers(1, 3))):
        text, choices = draw(st.from_regex('[a-z][a-z0-9.-]{0,4}', fullmatch=True)), []
        choices.append([text])
        for _ in range(draw(st.integers(0, 2))):
            spans, numbers = [], []
            for _ in range(draw(st.integers(1, 3))):
                first, width, more = draw(st.integers(0, 200)), draw(st.integers(1, 4)), draw(st.integers(0, 4))
                written = [str(first + i).rjust(max(width, len(str(first))), '0') for i in range(more + 1)]
                spans.append(f'{written[0]}-{written[-1]}' if more else written[0])
                numbers += written
            suffix = draw(st.sampled_from(['', '-ib', 'n']))
            text += f'[{",".join(spans)}]{suffix}'
            choices.append([number + suffix for number in numbers])
        items.append(text)
        names += [''.join(parts) for parts in itertools.product(*choices)]
    return ','.join(items), names


@given(node_lists())
def test_node_lists_expand_to_the_names_they_were_made_of(case: tuple[str, list[str]]) -> None:
    text, names = case
    assert expand_nodes(text) == names


@pytest.mark.parametrize(('text', 'counts'), [('4', [4]), ('2(x3),1', [2, 2, 2, 1]), ('1,12(x2)', [1, 12, 12])])
def test_task_counts_are_read_as_slurm_writes_them(text: str, counts: list[int]) -> None:
    assert expand_counts(text) == counts
