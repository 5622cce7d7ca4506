"""Which process of a cluster runs on which host, and what prints the same cluster."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from cluster.discovery import find_cluster
from cluster.roster import lay_out, read_host_file, read_hosts_flag
from commands import cluster as cluster_command
from params import parse_argv
from tests.support.outputs import refused

pytestmark = pytest.mark.unit


def test_hosts_may_have_slots_users_and_ipv6_addresses() -> None:
    assert read_hosts_flag('a, b:4,me@c.example:2,[FD00:0::1]:3,10.0.0.1,me@[fe80::1%eth0]') == {
        'a': None,
        'b': 4,
        'me@c.example': 2,
        'fd00::1': 3,
        '10.0.0.1': None,
        'me@fe80::1%eth0': None,
    }


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        # Open MPI
        ('# ours\na slots=4\nb slots=2 max_slots=8  # half of it\n\nc\n', {'a': 4, 'b': 2, 'c': None}),
        ('[fd00::2] slots=1\n[fd00::a]', {'fd00::2': 1, 'fd00::a': None}),
        # MPICH and Intel MPI, LAM
        ('a:4\n[fd00::1]:2', {'a': 4, 'fd00::1': 2}),
        # PBS, LSF, `srun hostname`: a line for each slot; or LSF's one line for all
        ('a\na\nb', {'a': 2, 'b': None}),
        ('a:2\nb\na:2', {'a': 4, 'b': None}),
        ('a 4 b 2', {'a': 4, 'b': 2}),
        # SGE
        ('a 4 all.q@a UNDEFINED\nb 2 all.q@b <NULL>', {'a': 4, 'b': 2}),
        ('a slots=2\r\nb\r\n', {'a': 2, 'b': None}),
    ],
)
def test_host_files_of_other_launchers_are_read(text: str, expected: dict[str, int | None], tmp_path: Path) -> None:
    path = tmp_path / 'hosts'
    path.write_text(text)
    assert read_host_file(str(path)) == expected


@pytest.mark.parametrize('line', ['a b', 'a slots=x', 'a slots=2 rank=0', 'a,b', 'a:4 slots=4', 'n[1-4]', 'fd00::1:4'])
def test_a_line_of_another_form_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / 'hosts'
    path.write_text(f'c slots=2\n{line}\n')
    with refused(f'--hostfile={path}', 'line 2', repr(line), '[fd00::1]:4'):
        read_host_file(str(path))


@pytest.mark.parametrize(
    ('text', 'fact'),
    [
        ('a,b,a', 'a is listed twice'),
        ('[fd00::1],[fd00:0::1]', '[fd00::1]:2'),
        ('', "''"),
        ('a:0', '0 slots'),
        ('-oProxyCommand=x', 'is no host'),
        ('a;reboot', 'is no host'),
        ('fd00::1', '[ADDRESS] with IPv6'),
        (','.join(f'n{i}' for i in range(5000)), '5000 hosts'),
    ],
)
def test_wrong_lists_of_hosts_are_refused(text: str, fact: str) -> None:
    with refused('--hosts=', fact):
        read_hosts_flag(text)


def test_files_without_hosts_are_refused(tmp_path: Path) -> None:
    with refused('--hostfile=', 'No such file'):
        read_host_file(str(tmp_path / 'none'))
    (tmp_path / 'empty').write_text('# nobody\n')
    with refused('--hostfile=', '0 hosts'):
        read_host_file(str(tmp_path / 'empty'))
    (tmp_path / 'image').write_bytes(b'\xff\xd8')
    with refused('--hostfile=', 'no text'):
        read_host_file(str(tmp_path / 'image'))


@pytest.mark.parametrize(
    ('hosts', 'workers', 'num_ps', 'controllers', 'expected'),
    [
        ('a,b', None, 1, 0, ['ps0 worker0', 'worker1']),
        ('a,b', 5, 0, 0, ['worker0 worker1 worker2', 'worker3 worker4']),
        ('a:2,b:2', None, 3, 0, ['ps0 ps2 worker0 worker1', 'ps1 worker2 worker3']),
        ('a:4,b', None, 0, 0, ['worker0 worker1 worker2 worker3', 'worker4']),
        ('a,b', None, 0, 1, ['controller0 worker0', 'worker1']),
        ('a,b,c', 2, 3, 0, ['ps0 worker0', 'ps1 worker1', 'ps2']),
        # Parameter servers are on the hosts without workers, if there are such hosts.
        ('a:0,b', None, 1, 0, ['ps0', 'worker0']),
        ('a:0,b:2,c:0', None, 3, 0, ['ps0 ps2', 'worker0 worker1', 'ps1']),
    ],
)
def test_workers_fill_the_slots_and_servers_go_round(
    hosts: str, workers: int | None, num_ps: int, controllers: int, expected: list[str]
) -> None:
    layout = lay_out(read_hosts_flag(hosts), '--hosts', workers, num_ps, controllers)
    assert [' '.join(f'{job}{index}' for job, index in here) for here in layout.values()] == expected


@pytest.mark.parametrize(
    ('hosts', 'workers', 'num_ps', 'facts'),
    [
        ('a:2,b:2,c:2', 3, 0, ['--hosts', 'c would have no process']),
        ('a:0,b,c', None, 0, ['--hosts', 'a would have no process']),
        ('a:0,b', 2, 1, ['--workers=2', '1 slot']),
        ('a:2,b:2', 5, 0, ['--workers=5', '4 slots']),
    ],
)
def test_hosts_without_a_process_and_workers_without_a_slot_are_refused(
    hosts: str, workers: int | None, num_ps: int, facts: list[str]
) -> None:
    with refused(*facts):
        lay_out(read_hosts_flag(hosts), '--hosts', workers, num_ps, 0)


@pytest.mark.parametrize(
    ('argv', 'facts'),
    [
        (['--launcher=slurm'], ['--launcher', 'docs/launchers.md']),
        (['--hosts=a,b', '--hostfile=hosts'], ['--hostfile=hosts', '--hosts']),
        (['--interface=10.0.0.0/8'], ['--interface=10.0.0.0/8', '--hosts']),
        (['--remote_python=python3'], ['--remote_python=python3', '--hosts']),
        (['--hosts=a,b', '--ssh=no_such_ssh -v'], ['--ssh=no_such_ssh -v', 'no such program']),
        (['--hosts=a,b', '--', '--variable_update=horovod'], ['--variable_update=horovod']),
    ],
)
def test_options_that_do_not_fit_are_refused(argv: list[str], facts: list[str]) -> None:
    with refused(*facts):
        cluster_command.main(argv)


def test_printed_commands_make_the_same_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_flags = ['--model=lenet', '--device=cpu', '--graph_file=the graph', '--variable_update=parameter_server']
    # These folders are on the hosts, which look for them.
    run_flags += ['--data_dir=/no/such/folder', f'--train_dir={tmp_path / "training"}']
    options = ['--hosts=me@a,b', '--ps=1', '--remote_python=/opt/python', '--remote_dir=/opt/program']
    assert cluster_command.main([*options, '--dry_run', '--', *run_flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == ['# ps 0 on me@a', '# worker 0 on me@a', '# worker 1 on b']
    roles = []
    for line, host in zip(lines[1::2], ['me@a', 'me@a', 'b'], strict=True):
        ssh, name, remote = shlex.split(line)
        assert (ssh, name) == ('ssh', host)
        words = shlex.split(remote)
        assert words[:2] == ['cd', str(Path.cwd())]
        assert words[3:6] == ['exec', '/opt/python', '/opt/program/tf_cnn_benchmarks.py']
        params = parse_argv(words[6:]).params
        cluster = find_cluster(params, {})
        assert cluster is not None
        assert [task.host.partition(':')[0] for task in cluster.tasks] == ['a', 'a', 'b']
        roles.append((cluster.own.job, cluster.own.index, params.graph_file))
    assert roles == [('ps', 0, None), ('worker', 0, 'the graph'), ('worker', 1, None)]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    'argv',
    [
        # An address that is taken host by host is another process's.
        *(['--hosts=a,b', '--ps=3'], ['--hosts=a:2,b:2', '--ps=4'], ['--hosts=a:0,b:2', '--ps=2']),
        ['--hosts=a:2,b:2', '--', '--variable_update=distributed_all_reduce'],
    ],
)
def test_the_address_of_each_printed_process_is_on_its_host(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    own_flags = ['--model=lenet', '--device=cpu']
    assert cluster_command.main(['--dry_run', *argv, *([] if '--' in argv else ['--']), *own_flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    for title, line in zip(lines[::2], lines[1::2], strict=True):
        words = shlex.split(shlex.split(line)[2])
        cluster = find_cluster(parse_argv(words[words.index('exec') + 3 :]).params, {})
        assert cluster is not None
        assert cluster.own.host.partition(':')[0] == title.rpartition(' on ')[2]


def test_a_printed_command_runs_at_home_on_a_host_without_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, folder, program = tmp_path / 'home', tmp_path / 'only here', tmp_path / 'python'
    home.mkdir()
    folder.mkdir()
    program.write_text('#!/bin/sh\npwd\n')
    program.chmod(0o755)
    monkeypatch.chdir(folder)
    options = ['--hosts=a', f'--remote_python={program}', '--dry_run']
    assert cluster_command.main([*options, '--', '--model=lenet', '--device=cpu']) == 0
    remote = shlex.split(capsys.readouterr().out.splitlines()[1])[2]
    for where in (folder, home):
        # As sshd does: from the home directory.
        ran = subprocess.run(['sh', '-c', remote], cwd=home, capture_output=True, text=True)
        assert (ran.stdout, ran.stderr) == (f'{where}\n', '')
        monkeypatch.chdir(home)
        shutil.rmtree(folder, ignore_errors=True)


def test_commands_for_this_machine_run_as_they_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster_command.main(['--dry_run', '--', '--model=lenet', '--device=cpu', '--num_batches=3']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == ['# ps 0', '# worker 0', '# worker 1']
    version = subprocess.run(f'{lines[1]} --version', shell=True, capture_output=True, text=True)
    assert version.stdout.startswith('tf_cnn_benchmarks ')
