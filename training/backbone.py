"""Training that starts from the variables of another checkpoint, as far as they fit."""

from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from errors import RunError
from training.checkpoints import Checkpointer, Slice
from training.contents import MODEL, STATISTICS, group_of, read_contents, some

# What one line names of the variables that it tells about.
_NAMED = 20


class Backbone:
    """The variables of a checkpoint that a model has under the same name with the same shape. Adds its ops to the
    current graph.

    Args:
      prefix: the checkpoint.
      written: the flag that names it, for what is told.
      variables: where the variables of the model are, by name: moving averages too, but nothing of the optimizer.
      device: the CPU of this process.

    Attributes:
      taken: which variables training starts from, in one line.
      left: a line about the variables of the model that start anew and one about those of the checkpoint that are not
        used, where there are such.

    Raises:
      RunError: the checkpoint is gone or cannot be read, or nothing fits.
    """

    def __init__(self, prefix: str, written: str, variables: Mapping[str, Sequence[Slice]], device: str) -> None:
        self._prefix = prefix
        found = read_contents(prefix)
        fitting, anew = {}, []
        for name, slices in variables.items():
            dtype, shape = found.get(name, ('', []))
            # What has 16 bits in a run has 32 in its checkpoints.
            if (dtype, list(shape)) == ('float32', list(slices[0].full)):
                fitting[name] = slices
            else:
                known = f'{dtype} {list(shape)}' if dtype else 'nothing'
                anew.append(f'{name} ({known} there, float32 {list(slices[0].full)} here)')
        if not fitting:
            raise RunError(
                f'{written}: none of its variables has the name and the shape of one of this model, '
                f'such as {some(variables)}; give a checkpoint of a model like it'
            )
        self.taken = (
            f'{written}: training starts from {len(fitting)} of the {len(variables)} variables of this model in '
            f'{prefix}: {some(fitting, _NAMED)}'
        )
        there = [name for name in found if group_of(name, found) in (MODEL, STATISTICS)]
        unused = [name for name in there if name not in variables]
        self.left = []
        if anew:
            self.left.append(
                f'{written}: {len(anew)} of the {len(variables)} variables of this model do not fit what is there and '
                f'start anew: {some(anew, _NAMED)}'
            )
        if unused:
            self.left.append(
                f'{written}: {len(unused)} of the {len(there)} variables that are there are not used: '
                f'{some(unused, _NAMED)}'
            )
        self._checkpointer = Checkpointer('', fitting, device, 1)

    def restore(self, session: tf.Session) -> None:
        """Gives the variables that fit their values.

        Raises:
          RunError: the checkpoint is damaged. No variable is changed then.
        """
        self._checkpointer.restore(session, self._prefix, partly=True)
