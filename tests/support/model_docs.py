"""docs/models.md: its text, its example of a model file, and its commands."""

import re
import shlex
from pathlib import Path

import tf_cnn_benchmarks

REPOSITORY = Path(tf_cnn_benchmarks.__file__).parent
DOC = (REPOSITORY / 'docs' / 'models.md').read_text()
(EXAMPLE,) = re.findall(r'^```python\n(.*?)^```$', DOC, flags=re.MULTILINE | re.DOTALL)
DOC_COMMANDS = [
    shlex.split(line)[2:] for line in DOC.splitlines() if line.startswith('    python tf_cnn_benchmarks.py')
]
