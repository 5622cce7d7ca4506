"""Takes the place of the program in tests of the engine: prints the document in FAKE_FOLDER as its
result at once.

FAKE_BEHAVIOURS is a JSON object: if a word of the command line is one of its keys, the value is the
behaviour of the process. A value that is an object has the behaviour for the number of this run,
from 1. Each run appends its process and batch size to a log. Imports only the standard library,
since it is started often.
"""

import ctypes
import json
import os
import signal
import sys
import uuid


def main() -> None:
    words, folder = sys.argv[1:], os.environ['FAKE_FOLDER']
    flags = dict(word.lstrip('-').partition('=')[::2] for word in words)
    size = int(flags.get('batch_size', 32))
    with open(f'{folder}/log.txt', 'a') as log:
        log.write(f'{os.getpid()} {size}\n')
    with open(f'{folder}/log.txt') as log:
        number = str(len(log.readlines()))
    behaviours = json.loads(os.environ.get('FAKE_BEHAVIOURS', '{}'))
    actions = [behaviours[word] for word in words if word in behaviours]
    actions = [does.get(number) if isinstance(does, dict) else does for does in actions]
    for action in actions:
        misbehave(action, folder)
    print(f'TensorFlow:  2.21\nBatch size:  {size} global\nMachine:     Example CPU 1\n{"=" * 10}')
    with open(f'{folder}/document.txt') as file:
        document = json.load(file)
    document['id'] = uuid.uuid4().hex
    document['run']['batch_size'] = document['command']['flags']['batch_size'] = size
    document['throughput']['images_per_second'] = 10.0 * size
    is_complete = not {'stop early', 'stop when told'} & {*actions}
    if not is_complete:
        status = {'exit_code': 1, 'reason': 'the loss is nan'}
        document |= {'complete': False, 'exit_status': status}
    text = json.dumps(document)
    print(text[: len(text) // 2] if 'half' in actions else text, flush=True)
    print(f'total images/sec: {10.0 * size:.2f}', file=sys.stderr)
    sys.exit(not is_complete)


def misbehave(action: str | None, folder: str) -> None:
    if action == 'fail':
        sys.exit('tf_cnn_benchmarks: error: the disk is on fire')
    if action == 'wait':
        # With a child in a session of its own that dies with its parent, like the processes of a
        # cluster.
        if os.fork() == 0:
            os.setsid()
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        with open(f'{folder}/waiting', 'a') as file:
            file.write(f'{os.getpid()}\n')
        while True:
            signal.pause()
    if action == 'stop when told':
        # Blocked first, so that an early signal is not lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        signal.sigwait({signal.SIGTERM})


if __name__ == '__main__':
    main()
