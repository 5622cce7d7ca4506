"""The flags of the subcommand cluster."""

from dataclasses import dataclass

from tf_cnn.flags.spec import flag

# The flags about the program on other hosts.
REMOTE_FLAGS = ('ssh', 'remote_python', 'remote_dir')
# With --pairs a link is slow below this part of the others, unless --fail_below is given.
SLOW_LINK = 0.8


@dataclass(frozen=True)
class ClusterOptions:
    """The flags of the subcommand. ps=None: the mode decides. workers=None: the hosts decide."""

    ps: int | None = flag(
        None, 'Parameter servers; by default 1 in modes that need them.', lower_bound=0
    )
    workers: int | None = flag(
        None,
        'Workers; by default 2 on this machine, and with --hosts one for each slot.',
        lower_bound=1,
    )
    hosts: str | None = flag(
        None,
        'Start the cluster on these hosts over ssh: a,b or, with the number of workers on each, '
        'a:4,b:4. Each host needs the same version of this program. Parameter servers are '
        'distributed over the hosts without workers, as in a:0,b,c, or else over all hosts; a '
        'controller runs on the first host. Put an IPv6 address in brackets: [fd00::1]:4.',
    )
    hostfile: str | None = flag(
        None,
        'A file with the hosts instead, one in each line, such as "a slots=4".',
        is_path=True,
        may_be_stdio=True,
    )
    dry_run: bool = flag(False, 'Only print the command of each process.')
    ssh: str | None = flag(
        None,
        'The ssh program with its options; by default ssh. It must not ask for a password. Within '
        'a job of Slurm, srun starts a step on each host instead.',
    )
    remote_python: str | None = flag(
        None, 'The Python on the hosts; by default the path of the Python that runs here.'
    )
    remote_dir: str | None = flag(
        None, 'The folder of this program on the hosts; by default the same path as here.'
    )
    restart: int = flag(
        0,
        'How often to start all processes again after one has failed; with --train_dir they '
        'continue from its checkpoint.',
        lower_bound=0,
    )
    private_network: bool | None = flag(
        None,
        'Give the processes on this machine a network (a namespace of Linux) that no other '
        'program can reach; by default where the system allows it. Use --noprivate_network for a '
        '--model_file that uses the network.',
    )
    verbose: bool = flag(
        False,
        'Show all output of all processes, and their process ids; each process gets --verbose.',
    )
