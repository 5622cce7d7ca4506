"""The causes of TensorFlow's errors. Does not import TensorFlow."""

import re
from typing import Any

_MAX_CAUSE_CHARS = 400
_LINE_WITHOUT_CAUSE = re.compile(
    r'=*|Graph execution error:|([A-Z_]+: )?From /job:\S+|\d+ root error\(s\) found\.'
)
# What TensorFlow writes before a cause: the number and code of a root error, the function.
_BEFORE_CAUSE = re.compile(r'^\(\d+\) [A-Z_]+: |\{\{function_node \S+\}\} ?')


def error_cause(error: Any) -> str:
    """Returns the line of a tf.errors.OpError that names the cause, shortened.

    It is the line below the last node's name, or else the first line.
    """
    lines = [
        line.strip()
        for line in error.message.splitlines()
        if not _LINE_WITHOUT_CAUSE.fullmatch(line.strip())
    ]
    nodes = [number for number, line in enumerate(lines[:-1]) if line.startswith('Node: ')]
    line = lines[nodes[-1] + 1] if nodes else lines[0] if lines else 'no reason given'
    line = _BEFORE_CAUSE.sub('', line)
    # TensorFlow may quote a whole record with its image.
    printable = ''.join(
        letter if letter.isprintable() else ascii(letter)[1:-1]
        for letter in line[:_MAX_CAUSE_CHARS]
    )
    return printable + '...' * (len(line) > _MAX_CAUSE_CHARS)
