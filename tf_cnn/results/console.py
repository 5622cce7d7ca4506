"""The console output of a run. format_* functions return text without a final newline; Console
prints it.
"""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import TextIO

from tf_cnn.results.live import LiveLine
from tf_cnn.results.sections import TransferSection
from tf_cnn.results.statistics import Rate
from tf_cnn.results.steps import Accuracy, StepValues
from tf_cnn.system.errors import OutputError, format_scaled, format_warning, plural

_RULE = '-' * 64
# The beginnings of the first and the last line of a run's banner.
BANNER_START, BANNER_END = 'TensorFlow:', '=' * 10
_LABEL_WIDTH = 13
# Follows the precision; scripts read the first word of that line.
IN_TF32 = ' (computed in TF32)'
PERHAPS_IN_TF32 = ' (computed in TF32 if the GPUs of the workers have it)'


def format_banner(lines: Sequence[tuple[str, object]]) -> str:
    """Formats the lines before a run from (label, value) pairs, without pairs that have the value
    ''; ends with ten equal signs.
    """
    rows = [(f'{label}:' if label else '', value) for label, value in lines if value != '']
    return '\n'.join([*(f'{label:<{_LABEL_WIDTH}}{value}' for label, value in rows), BANNER_END])


def transfer_lines(transfer: TransferSection, num_workers: int) -> list[tuple[str, object]]:
    """Returns the banner lines about what the processes of a cluster store and send; none for a
    single process.
    """
    # A cluster may consist of one worker and parameter servers.
    if num_workers == 1 and not transfer.bytes_per_ps:
        return []
    return [
        ('Workers', num_workers),
        *(
            (f'On ps {index}', format_scaled(num_bytes))
            for index, num_bytes in enumerate(transfer.bytes_per_ps)
        ),
        ('Step moves', format_scaled(transfer.bytes_per_step or 0)),
    ]


def format_step_header(
    loss_name: str | None = 'total_loss', *, with_accuracy: bool = False, with_images: bool = True
) -> str:
    """Formats the header of the step lines; loss_name is the --loss_type_to_report, None if steps
    have no loss.
    """
    accuracies = ['top_1_accuracy', 'top_5_accuracy'] if with_accuracy else []
    return '\t'.join(
        [
            'Step',
            'Img/sec' if with_images else 'Time',
            *([loss_name] if loss_name else []),
            *accuracies,
        ]
    )


def format_step(index: int, rate: Rate, values: StepValues, *, with_loss: bool = True) -> str:
    """Formats a step: its index from 1, the rate over the timed steps so far, its loss, its
    accuracies if any.
    """
    speed = (
        f'images/sec: {rate.images_per_second:.1f} +/- {rate.standard_error:.1f} (jitter = '
        f'{rate.jitter:.1f})'
    )
    loss = values.loss if with_loss else None
    numbers = [number for number in (loss, values.top_1, values.top_5) if number is not None]
    return '\t'.join([str(index), speed, *(f'{number:.3f}' for number in numbers)])


def format_exchange(index: int, rate: Rate, images_of_step: int) -> str:
    """Formats a step of --exchange_only: its index from 1, and the mean time of the timed steps so
    far.
    """
    milliseconds = 1e3 * images_of_step / rate.images_per_second
    return (
        f'{index}\tms/step: {milliseconds:.3f} +/- '
        f'{milliseconds * rate.standard_error / rate.images_per_second:.3f}'
    )


def format_exchange_total(seconds: float) -> str:
    """Formats the last three lines of a run of --exchange_only: the wall seconds for each step."""
    return f'{_RULE}\ntotal ms/step: {1e3 * seconds:.3f}\n{_RULE}'


def format_total(images_per_second: float) -> str:
    """Formats the last three lines of a run: its throughput between two lines of 64 dashes."""
    return f'{_RULE}\ntotal images/sec: {images_per_second:.2f}\n{_RULE}'


def format_accuracy(accuracy: Accuracy) -> str:
    """Formats the result of --eval in one line, then its throughput like format_total."""
    return f'{format_accuracies(accuracy)}\n{format_total(accuracy.images_per_second)}'


def format_interim_accuracy(accuracy: Accuracy) -> str:
    """Formats the result of an evaluation during training, in two lines; its rate is not the run's
    total.
    """
    return f'{format_accuracies(accuracy)}\nevaluation images/sec: {accuracy.images_per_second:.2f}'


def format_accuracies(accuracy: Accuracy) -> str:
    """Formats the accuracies and the number of images in one line."""
    return (
        f'Accuracy @ 1 = {accuracy.top_1:.4f} Accuracy @ 5 = {accuracy.top_5:.4f} '
        f'[{accuracy.num_images} examples]'
    )


def format_incomplete(
    num_timed: int, planned: str, images_per_second: float, global_step: int | None
) -> str:
    """Formats the warning about a run that ended early.

    Args:
      planned: the planned length of the run: 'of 100', 'in 7.3 of 60 seconds'.
      global_step: the global step of the last step, as checkpoints count it; None if no step was
        taken.
    """
    reached = (
        ''
        if global_step is None
        else f'; training reached global step {global_step}, warm-up included'
    )
    rate = f' at {images_per_second:.2f} images/sec' if num_timed else ''
    return f'the run is incomplete: it timed {plural(num_timed, "step")} {planned}{rate}{reached}'


def format_skipped(num_skipped: int) -> str:
    """Formats the warning about steps that an automatic loss scale skipped."""
    return (
        f'{plural(num_skipped, "step")}, warm-up included, changed no variable: gradients '
        'overflowed, and each time the loss scale was halved'
    )


class Console:
    """Prints results to one stream and messages to another, and flushes each.

    Without a stream they are discarded, but warnings become Python warnings (UserWarning). On a
    terminal, progress is shown in one live line; elsewhere each message gets a line.
    """

    def __init__(
        self, out: TextIO | None = None, err: TextIO | None = None, *, documents_only: bool = False
    ) -> None:
        """Makes a console.

        Args:
          out: the stream of results, which gets nothing else: standard output.
          err: the stream of progress and warnings: standard error.
          documents_only: whether out gets documents only, so that the lines of results go to err.
        """
        self._out = err if documents_only else out
        self._err = err
        self._documents = out
        self._live = LiveLine(err or io.StringIO())
        # Without a live line, steps() and phase() do nothing.
        self.is_live = self._live.can_redraw
        self.steps, self.phase, self.close = self._live.steps, self._live.phase, self._live.close

    def result(self, text: str) -> None:
        """Prints lines of the result.

        Raises:
          OutputError: the stream cannot be written.
          BrokenPipeError: its reader has closed the pipe.
        """
        self._print(text, self._out)

    def document(self, text: str) -> None:
        """Prints a document for another program. Raises the same errors as result()."""
        self._print(text, self._documents)

    def _print(self, text: str, stream: TextIO | None) -> None:
        if stream:
            try:
                with self._live.hidden():
                    print(text, file=stream, flush=True)
            except BrokenPipeError:
                raise
            except OSError as error:
                raise OutputError(
                    f'standard output cannot be written: {error.strerror}; redirect it elsewhere'
                ) from error

    def progress(self, message: str) -> None:
        """Shows the current activity in the live line, or prints it as a line."""
        (self.phase if self.is_live else self.note)(message)

    def note(self, message: str) -> None:
        """Prints a line that stays, such as the checkpoint that a run continues from."""
        if self._err:
            # A full disk must not end the run.
            with self._live.hidden(), contextlib.suppress(OSError):
                print(message, file=self._err, flush=True)

    def advice(self, message: str) -> None:
        """Prints a warning that is in the result, too; without a stream it is discarded."""
        self.note(format_warning(message))

    def warning(self, message: str) -> None:
        """Prints a warning."""
        if self._err:
            self.note(format_warning(message))
        else:
            warnings.warn(' '.join(message.split()), stacklevel=3)


@contextlib.contextmanager
def reserve_stdout() -> Iterator[TextIO]:
    """Reserves standard output for results.

    All other output to it, also from native code, goes to standard error during the block.
    """
    sys.stdout.flush()
    try:
        descriptor = sys.stdout.fileno()
    except io.UnsupportedOperation:
        # sys.stdout has no file descriptor, for example because a Python program captures it.
        out = sys.stdout
        with contextlib.redirect_stdout(sys.stderr):
            yield out
        return
    out = os.fdopen(os.dup(descriptor), 'w', encoding=sys.stdout.encoding)
    os.dup2(sys.stderr.fileno(), descriptor)
    try:
        yield out
    finally:
        os.dup2(out.fileno(), descriptor)
        # All lines were flushed. If close() fails, an earlier write failed too and was reported.
        with contextlib.suppress(OSError):
            out.close()
