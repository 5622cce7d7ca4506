"""Between hosts, a server's link is used in both directions at once: values return while gradients
are sent.
"""

import sys
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.cluster import MODES
from tests.support.hosts import NEEDED, Network, make_hosts
from tests.support.programs import cluster, launched

pytestmark = [pytest.mark.distributed, NEEDED]

# Prints the bytes received and sent by this host so far, 20 times a second.
SAMPLER = """
import time
while True:
    (line,) = [line for line in open('/proc/self/net/dev') if 'eth0:' in line]
    numbers = line.partition(':')[2].split()
    print(numbers[0], numbers[8], flush=True)
    time.sleep(0.05)
"""
# The parameters of LeNet, as `models` lists them.
NUM_PARAMETERS = 2_173_353


@pytest.fixture(scope='module')
def network() -> Iterator[Network]:
    with make_hosts(3, rate_mbit=100) as hosts:
        yield hosts


@pytest.mark.parametrize('mode', ['distributed_replicated', 'staged_vars'])
def test_gradients_and_values_cross_a_link_at_the_same_time(mode, network, tmp_path):
    flags = '--model=lenet --device=cpu --batch_size=2 --num_batches=4 --num_warmup_batches=1'
    # The server is the first host.
    places = [(f'{host.address}:2222', host.pid) for host in network.hosts]
    sampler = network.hosts[0].command(sys.executable, '-c', SAMPLER)
    flags = f'{flags} {" ".join(MODES[mode])}'
    with (
        launched(sampler, tmp_path) as samples,
        cluster(flags, tmp_path, ps=1, places=places) as tasks,
    ):
        tasks.start()
        tasks.assert_end(0)
    # The last line may be cut.
    lines = samples.out.splitlines()[:-1]
    moved = np.diff(np.array([line.split() for line in lines], np.int64), axis=0)
    in_all = moved.sum(0)
    # Five steps of two workers, four bytes for each parameter.
    assert in_all.min() > 5 * 2 * 4 * NUM_PARAMETERS
    # It is 0.8; for parameter_server, which sends in one direction at a time, it is 0.06.
    assert moved.min(1).sum() / in_all.min() > 0.5
