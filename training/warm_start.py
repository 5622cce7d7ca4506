"""Warm start: training starts from those variables of another checkpoint whose names and shapes match."""

from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from errors import RunError, counted
from training.checkpoints import Checkpointer, Slice
from training.contents import MODEL, STATISTICS, first_names, group_of, read_contents

# The number of variables that a message names.
_MAX_NAMES = 20


class WarmStart:
    """Restores the variables of a checkpoint that match variables of the model by name and shape.

    The constructor adds the ops to the current graph.

    Args:
      prefix: the checkpoint.
      flag: the flag and its value as the user wrote them, for messages.
      variables: the slices of the model's variables by name, including moving averages but not optimizer slots.
      device: the CPU of this process.

    Attributes:
      summary: one line that names the restored variables.
      warnings: a line about variables of the model that keep their initial values, if any, and a line about unused
        variables of the checkpoint, if any.

    Raises:
      RunError: the checkpoint is missing or cannot be read, or no variable matches.
    """

    def __init__(self, prefix: str, flag: str, variables: Mapping[str, Sequence[Slice]], device: str) -> None:
        self._prefix = prefix
        found = read_contents(prefix)
        matching, unmatched = {}, []
        for name, slices in variables.items():
            dtype, shape = found.get(name, ('', []))
            # Checkpoints store 16-bit variables as float32.
            if (dtype, list(shape)) == ('float32', list(slices[0].full)):
                matching[name] = slices
            else:
                known = f'{dtype} {list(shape)}' if dtype else 'absent'
                unmatched.append(f'{name} ({known} there, float32 {list(slices[0].full)} here)')
        if not matching:
            raise RunError(
                f'{flag}: no variable of the checkpoint has the name and the shape of a variable of this model, '
                f'such as {first_names(variables)}; give a checkpoint of a similar model'
            )
        self.summary = (
            f'{flag}: training starts from {len(matching)} of the {counted(len(variables), "variable")} of this model '
            f'in {prefix}: {first_names(matching, _MAX_NAMES)}'
        )
        of_model = [name for name in found if group_of(name, found) in (MODEL, STATISTICS)]
        unused = [name for name in of_model if name not in variables]
        self.warnings = []
        if unmatched:
            self.warnings.append(
                f'{flag}: {len(unmatched)} of the {counted(len(variables), "variable")} of this model will start from '
                f'initial values (absent there, or different): {first_names(unmatched, _MAX_NAMES)}'
            )
        if unused:
            self.warnings.append(
                f'{flag}: {len(unused)} of the {counted(len(of_model), "variable")} of the checkpoint will not be '
                f'used: {first_names(unused, _MAX_NAMES)}'
            )
        self._checkpointer = Checkpointer('', matching, device, 1)

    def restore(self, session: tf.Session) -> None:
        """Restores the matching variables.

        Raises:
          RunError: the checkpoint is damaged. Then no variable is changed.
        """
        self._checkpointer.restore(session, self._prefix, partly=True)
