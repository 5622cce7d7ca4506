"""A step that waits too long for other tasks ends and names them; a slow step does not end."""

import contextlib
import fcntl
import os
import re
import shutil

import pytest

from tests.distributed.clusters import ENDLESS, UNDER_WAY, assert_each_names, training
from tests.distributed.test_launched_clusters import needs_namespace
from tests.support.files import quoted
from tests.support.programs import run_process
from tf_cnn.cluster.private_network import PrivateNetwork
from tf_cnn.system.tether import die_with_parent

pytestmark = pytest.mark.distributed
LIMIT = '--step_timeout_secs=5'


def reset_connections(network: int, pid: int) -> int:
    """Resets all connections of a process in a private network; returns their number."""

    def ss(*words: str) -> str:
        return run_process(die_with_parent(['ss', *words], network=network), None, 60.0).out

    lines = ss('-HtnpO', 'state', 'established').splitlines()
    ends = [re.findall(r':(\d+)(?=\s)', line)[:2] for line in lines if f'pid={pid},' in line]
    for a, b in ends:
        ss('-K', f'( sport = :{a} and dport = :{b} ) or ( sport = :{b} and dport = :{a} )')
    return len(ends)


@needs_namespace
@pytest.mark.skipif(not shutil.which('ss'), reason='there is no ss')
@pytest.mark.skipif(os.geteuid() != 0, reason='only root can reset connections')
def test_when_a_workers_connections_are_cut_all_end_and_name_a_task_or_all_go_on(tmp_path):
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(contextlib.closing(PrivateNetwork()))
        places = [(f'127.0.0.1:{port}', network.pid) for port in (2222, 2223, 2224)]
        flags = f'{ENDLESS} {LIMIT}'
        cluster = training('parameter_server', flags, tmp_path, places=places)
        tasks = stack.enter_context(cluster)
        tasks.start(UNDER_WAY)
        assert reset_connections(network.pid, tasks['worker 1'].pid) > 0
        if tasks.still_running(5 + 60):
            # TensorFlow did not use the connections at this moment, and connects again.
            lines = tasks.trainers[0].out
            tasks.still_running(30)
            assert tasks.trainers[0].out != lines, 'some neither end nor go on'
            return
        for task in tasks.values():
            assert any('127.0.0.1:' in line for line in task.errors), task.name


def test_a_step_that_waits_for_a_stopped_worker_ends_and_names_it(tmp_path):
    """The worker's server still answers, so the worker does not count as lost."""
    flags = f'{ENDLESS} {LIMIT} --display_every=1'
    with training('parameter_server', flags, tmp_path) as tasks:
        chief, stuck = tasks['worker 0'], tasks['worker 1']
        # The worker stops when the pipe is full, since nobody reads its standard output.
        os.mkfifo(stuck.out_file)
        reader = os.open(stuck.out_file, os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        # The pipe is removed: to read the logs from a pipe without a writer would block.
        try:
            tasks.start()
            chief.await_line(UNDER_WAY)
            assert chief.has_ended()
            assert chief.exit_code == 1
            assert_each_names([chief], 'a step has waited', stuck.title, LIMIT)
        finally:
            stuck.kill()
            os.close(reader)
            stuck.out_file.unlink()
        assert not tasks.still_running(30)


# A network with an operation that takes longer than the limit for silent tasks.
SLOW_MODEL = """
import time
import tensorflow.compat.v1 as tf
from tf_cnn_benchmarks import register_model

def network(cnn, x, num_classes):
    with tf.control_dependencies([tf.numpy_function(lambda: time.sleep(9), [], [])]):
        x = tf.identity(x)
    return cnn.dense(cnn.flatten(x), num_classes, 'logits')

register_model('slow', network, data_set='cifar10', image_size=32, learning_rate=0.05)
"""


def test_a_step_that_occupies_the_only_thread_does_not_count_as_a_lost_worker(tmp_path):
    (tmp_path / 'slow.py').write_text(SLOW_MODEL)
    flags = f'--model=slow --model_file={quoted(tmp_path)}/slow.py --num_inter_threads=1'
    flags += ' --num_warmup_batches=0 --num_batches=1'
    with training('collective_all_reduce', flags, tmp_path) as tasks:
        tasks.start()
        tasks.assert_end(0)
