"""The hosts of a cluster's processes, and --dry_run, which prints the commands for each host."""

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.outputs import refused
from tf_cnn.cli import cluster as cluster_command
from tf_cnn.launch.host_layout import lay_out_tasks, read_host_file, read_hosts_flag
from tf_cnn.plan.discovery import find_cluster
from tf_cnn.plan.parsing import parse_argv

pytestmark = pytest.mark.unit


def test_hosts_may_have_slots_users_and_ipv6_addresses():
    assert read_hosts_flag('a, b:4,me@c.example:2,[fd00::1]:3,10.0.0.1,me@[fe80::1%eth0]') == {
        'a': None,
        'b': 4,
        'me@c.example': 2,
        'fd00::1': 3,
        '10.0.0.1': None,
        'me@fe80::1%eth0': None,
    }


def test_host_files_of_other_launchers_are_read(tmp_path):
    path = tmp_path / 'hosts'
    for text, expected in (
        # Open MPI
        (
            '# ours\na slots=4\nb  slots=2 max_slots=8  # half of it\n\nc\r\n',
            {'a': 4, 'b': 2, 'c': None},
        ),
        (
            'n1 slots=2 max-slots=4\nn2 slots = 2\nn3 max_slots = 4 slots=1',
            {'n1': 2, 'n2': 2, 'n3': 1},
        ),
        ('[fd00::2] slots=1\n[fd00::a]', {'fd00::2': 1, 'fd00::a': None}),
        # MPICH and Intel MPI; PBS, `srun hostname`: a line for each slot
        ('a:4\n[fd00::1]:2', {'a': 4, 'fd00::1': 2}),
        ('a\na\nb', {'a': 2, 'b': None}),
        ('a:2\nb\na:2', {'a': 4, 'b': None}),
    ):
        path.write_text(text)
        assert read_host_file(str(path)) == expected, text


def test_wrong_lists_of_hosts_are_refused():
    for text, fact in (
        ('a,b,a', 'appears twice'),
        ('', "''"),
        ('a:0', '0 slots'),
        ('n[1-4,7]:2', 'scontrol show hostnames'),
        (__file__, f'--hostfile={__file__}'),
        ('fd00::1', '[fd00::1]:4'),
        ('[zz::1]:2', 'is not a host'),
        ('10.0.0.256', 'is not a host'),
        ('a,,b', "''"),
        ('-oProxyCommand=x', 'is not a host'),
        ('a;reboot', 'is not a host'),
    ):
        with refused('--hosts=', fact):
            pytest.fail(f'{text} is read as {read_hosts_flag(text)}')


def test_files_without_hosts_are_refused(tmp_path):
    path = tmp_path / 'hosts'
    with refused('--hostfile=', 'No such file'):
        read_host_file(str(path))
    for content, fact in (
        (b'# nobody\n', '0 slots'),
        (b'\xff\xd8', 'read'),
        (b'c slots=2\na slots=x\n', "'a slots=x'"),
        (b'a slots=2 most=4\n', "'a slots=2 most=4'"),
        (b'[gpu]\na ansible_host=10.0.0.1\n', f'ansible all -i {path}'),
        (b'all:\n  hosts:\n', f'ansible all -i {path}'),
    ):
        path.write_bytes(content)
        with refused('--hostfile=', fact):
            pytest.fail(f'{content!r} is read as {read_host_file(str(path))}')


def test_workers_fill_the_slots_and_servers_go_round():
    for hosts, workers, num_ps, controllers, expected in (
        ('a,b', None, 1, 0, 'ps0 worker0, worker1'),
        ('a,b', 5, 0, 0, 'worker0 worker1 worker2, worker3 worker4'),
        ('a:2,b:2', None, 3, 0, 'ps0 ps2 worker0 worker1, ps1 worker2 worker3'),
        ('a:4,b', None, 0, 0, 'worker0 worker1 worker2 worker3, worker4'),
        ('a,b', None, 0, 1, 'controller0 worker0, worker1'),
        ('a,b,c', 2, 3, 0, 'ps0 worker0, ps1 worker1, ps2'),
        # Parameter servers are on the hosts without workers, if there are such hosts.
        ('a:0,b', None, 1, 0, 'ps0, worker0'),
        ('a:0,b:2,c:0', None, 3, 0, 'ps0 ps2, worker0 worker1, ps1'),
        # Hosts without a process are left out.
        ('a:2,b:2,c:2', 3, 0, 0, 'worker0 worker1, worker2'),
    ):
        layout = lay_out_tasks(read_hosts_flag(hosts), '--hosts', workers, num_ps, controllers)
        here = [' '.join(f'{job}{index}' for job, index in tasks) for tasks in layout.values()]
        assert ', '.join(here) == expected, hosts


@pytest.mark.parametrize(
    ('hosts', 'workers', 'slots'), [('a:0,b', 2, '1 slot'), ('a:2,b:2', 5, '4 slots')]
)
def test_workers_without_a_slot_are_refused(hosts, workers, slots):
    with refused(f'--workers={workers}', slots):
        lay_out_tasks(read_hosts_flag(hosts), '--hosts', workers, 1, 0)


@pytest.mark.parametrize(
    ('hosts', 'mode', 'titles'),
    [
        ('me@a,b', 'parameter_server --ps=1', 'ps 0 on me@a, worker 0 on me@a, worker 1 on b'),
        # An address that is taken host by host is another process's.
        (
            'a,b',
            'parameter_server --ps=3',
            'ps 0 on a, ps 1 on b, ps 2 on a, worker 0 on a, worker 1 on b',
        ),
        (
            'a:0,b:2',
            'parameter_server --ps=2',
            'ps 0 on a, ps 1 on a, worker 0 on b, worker 1 on b',
        ),
        ('a,b', 'distributed_all_reduce', 'worker 0 on a, worker 1 on b, controller 0 on a'),
    ],
)
def test_printed_commands_make_the_same_cluster_with_each_process_on_its_host(
    hosts, mode, titles, tmp_path, capsys
):
    variable_update, *servers = mode.split()
    remote = '--remote_python=/opt/python --remote_dir=/opt/program --dry_run'
    # These folders are on the hosts, which look for them.
    folders = ['--data_dir=/no/such/folder', f'--train_dir={tmp_path / "training"}']
    run_flags = ['--model=lenet', '--device=cpu', '--graph_file=the graph', *folders]
    argv = [f'--hosts={hosts}', *servers, *remote.split(), '--', *run_flags]
    assert cluster_command.main([*argv, f'--variable_update={variable_update}']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == [f'# {title}' for title in titles.split(', ')]
    for title, line in zip(titles.split(', '), lines[1::2], strict=True):
        role, _, host = title.partition(' on ')
        ssh, name, words = shlex.split(line)
        assert (ssh, name) == ('ssh', host)
        cd, folder, _, *program, script = shlex.split(words)[:6]
        assert (cd, folder) == ('cd', str(Path.cwd()))
        assert [*program, script] == ['exec', '/opt/python', '/opt/program/tf_cnn_benchmarks.py']
        params = parse_argv(shlex.split(words)[6:]).params
        cluster = find_cluster(params, {})
        assert cluster
        assert f'{cluster.job} {cluster.index}' == role
        assert cluster.own_task.host.partition(':')[0] == host.rpartition('@')[2]
        assert params.instruments.graph_file == ('the graph' if cluster.is_chief else None)
    assert not list(tmp_path.iterdir())


def test_one_worker_alone_is_a_run_in_one_process_in_any_mode(capsys):
    for variable_update in ('parameter_server', 'replicated', 'collective_all_reduce'):
        flags = ['--model=lenet', '--result_file=x', f'--variable_update={variable_update}']
        options = ['--hosts=a:1,b:1', '--workers=1', '--ps=0', '--dry_run']
        assert cluster_command.main([*options, '--', *flags]) == 0
        title, line = capsys.readouterr().out.splitlines()
        assert title == '# worker 0 on a'
        assert shlex.split(shlex.split(line)[2])[6:] == flags


def test_commands_for_this_machine_run_as_they_are_printed(capsys):
    argv = '--dry_run -- --model=lenet --device=cpu --num_batches=3'
    assert cluster_command.main(argv.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == ['# ps 0', '# worker 0', '# worker 1']
    version = subprocess.run(f'{lines[1]} --version', shell=True, capture_output=True, text=True)
    assert version.stdout.startswith('tf_cnn_benchmarks ')
