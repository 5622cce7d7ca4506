"""Replaces the program in tests of sweeps: writes the document in FAKE_DOCUMENT as its result at
once.

FAKE_BEHAVIOURS is a JSON object: if a word of the command line is one of its keys, the value is the
behaviour of the process. A value that is an object has the behaviour for the number of this run,
from 1. Each run appends its words to FAKE_LOG. Imports only the standard library, since it is
started often.
"""

import ctypes
import json
import os
import signal
import sys
import uuid


def main() -> None:
    words = sys.argv[1:]
    flags = dict(word.lstrip('-').partition('=')[::2] for word in words)
    size = int(flags.get('batch_size', 32))
    with open(os.environ['FAKE_LOG'], 'a') as log:
        log.write(json.dumps([os.getpid(), *words]) + '\n')
    behaviours = json.loads(os.environ.get('FAKE_BEHAVIOURS', '{}'))
    with open(os.environ['FAKE_LOG']) as log:
        number = str(len(log.readlines()))
    actions = [behaviours[word] for word in words if word in behaviours]
    actions = [does.get(number) if isinstance(does, dict) else does for does in actions]
    for does in actions:
        misbehave(does, size)
    with open(os.environ['FAKE_DOCUMENT']) as file:
        document = json.load(file)
    document['id'] = uuid.uuid4().hex
    document['run']['batch_size'] = size
    document['throughput']['images_per_second'] = 10.0 * size
    if 'stop early' in actions or 'stop when told' in actions:
        document |= {
            'complete': False,
            'exit_status': {'exit_code': 1, 'reason': 'the loss is nan'},
        }
    text = json.dumps(document)
    if 'half' in behaviours.values():
        text = text[: len(text) // 2]
    with open(flags['result_file'], 'w') as file:
        file.write(text)
    if not document['complete']:
        sys.exit(1)
    print(f'TensorFlow:  2.21\nBatch size:  {size} global\nMachine:     Example CPU 1\n{"=" * 10}')
    print(f'total images/sec: {10.0 * size:.2f}')


def misbehave(does: object, size: int) -> None:
    if does == 'fail':
        print('tf_cnn_benchmarks: error: the disk is on fire', file=sys.stderr)
        sys.exit(1)
    if does == 'fail as a cluster':
        print(
            'worker 1 | tf_cnn_benchmarks: error: no room here\nworker 0 | tf_cnn_benchmarks: '
            'error: lost worker 1'
        )
        print('tf_cnn_benchmarks: error: worker 1 ended with exit code 3; stopping worker 0')
        sys.exit(3)
    if does == 'die':
        os.kill(os.getpid(), signal.SIGSEGV)
    if does == 'wait':
        # With a child in a session of its own that dies with its parent, like the processes of a
        # cluster.
        if os.fork() == 0:
            os.setsid()
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        with open(os.environ['FAKE_LOG'] + '.waiting', 'a') as file:
            file.write(f'{os.getpid()}\n')
        while True:
            signal.pause()
    if does == 'stop when told':
        # Blocked first, so that an early signal is not lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        signal.sigwait({signal.SIGTERM})
    if isinstance(does, int) and size > does:
        print('ResourceExhaustedError: OOM when allocating tensor')
        sys.exit(1)


if __name__ == '__main__':
    main()
