"""Training that starts from the variables of another checkpoint, as far as they fit."""

from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from errors import RunError
from flag_spec import spelled
from training.checkpoints import Checkpointer, Slice, find_checkpoint
from training.contents import read_contents, some

# What one line names of the variables that do not fit.
_NAMED = 20


class Backbone:
    """The variables of a checkpoint that a model has under the same name with the same shape. Adds its ops to the
    current graph.

    Args:
      path: the checkpoint, or a folder, whose newest is taken.
      variables: where the variables of the model are, by name: moving averages too, but nothing of the optimizer.
      device: the CPU of this process.

    Attributes:
      left_out: what does not fit, in one line; None if everything does.

    Raises:
      RunError: the checkpoint is gone or cannot be read, or nothing fits.
    """

    def __init__(self, path: str, variables: Mapping[str, Sequence[Slice]], device: str) -> None:
        written = spelled('backbone_model_path', path)
        self._prefix = find_checkpoint(path, written)
        found = read_contents(self._prefix)
        fitting, left_out = {}, []
        for name, slices in variables.items():
            dtype, shape = found.get(name, ('', []))
            if (dtype, list(shape)) == ('float32', list(slices[0].full)):
                fitting[name] = slices
            else:
                there = f'{dtype} {list(shape)}' if dtype else 'nothing'
                left_out.append(f'{name} ({there} there, float32 {list(slices[0].full)} here)')
        if not fitting:
            raise RunError(
                f'{written}: none of its variables has the name and the shape of one of this model, '
                f'such as {some(variables)}; give a checkpoint of a model like it'
            )
        self.left_out = None
        if left_out:
            self.left_out = (
                f'{written}: {len(left_out)} of {len(variables)} variables of this model do not fit what is there and '
                f'start anew: {some(left_out, _NAMED)}'
            )
        self._checkpointer = Checkpointer('', fitting, device, 1)

    def restore(self, session: tf.Session) -> None:
        """Gives the variables that fit their values.

        Raises:
          RunError: the checkpoint is damaged. No variable is changed then.
        """
        self._checkpointer.restore(session, self._prefix, partly=True)
