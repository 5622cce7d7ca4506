"""Runs tasks in child processes, with results in order and bounded memory."""

import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tf_cnn.system.signals import STOP_SIGNALS
from tf_cnn.system.tether import end_with_parent

Item = TypeVar('Item')
Result = TypeVar('Result')

# Enough that processes do not wait for the consumer of results, few enough for very large images.
_TASKS_PER_WORKER = 4


def ordered_map(
    executor: concurrent.futures.Executor,
    num_workers: int,
    function: Callable[[Item], Result],
    items: Iterable[Item],
) -> Iterator[Result]:
    """Yields function(item) for each item, in order.

    Starts at once, and keeps a few tasks per worker submitted.
    """
    remaining = iter(items)
    futures: deque[concurrent.futures.Future[Result]] = deque()

    def start_next() -> None:
        for item in remaining:
            # This may start a worker. Only this process should react to signals.
            with delay_signals():
                futures.append(executor.submit(function, item))
            break

    for _ in range(num_workers * _TASKS_PER_WORKER):
        start_next()

    def results() -> Iterator[Result]:
        while futures:
            result = futures.popleft().result()
            start_next()
            yield result

    return results()


@contextlib.contextmanager
def delay_signals() -> Iterator[None]:
    """Delays signals to this thread until the block ends. Processes started in it receive none."""
    # A signal may reach the children too, which must leave the reaction to this process.
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


@contextlib.contextmanager
def process_pool(num_processes: int) -> Iterator[concurrent.futures.Executor]:
    """Spawns worker processes, which exit after the block, on Ctrl-C, and if this process dies."""
    executor = concurrent.futures.ProcessPoolExecutor(
        num_processes,
        mp_context=multiprocessing.get_context('spawn'),
        # Otherwise a worker would wait forever for the queue, which its siblings keep open.
        initializer=functools.partial(end_with_parent, os.getpid())
        if sys.platform == 'linux'
        else None,
    )
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)
