"""The location of the program: a checkout, or the packages of an installation."""

import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# The folder that Python imports the program from.
FOLDER = PACKAGE.parent
_SCRIPT = FOLDER / 'tf_cnn_benchmarks.py'
# The file that Python runs for the command. An installation has a package with this name.
COMMAND = _SCRIPT if _SCRIPT.exists() else FOLDER / 'tf_cnn_benchmarks' / '__main__.py'
# The words that start the program.
PROGRAM = (sys.executable, str(COMMAND))
