"""Plans how much a run does: batch sizes and numbers of steps. Does not import TensorFlow."""

import math

from params import Params
from planning.found import Found
from planning.plan import Counts, Data, Processes, Subject
from training.schedules import steps_of

# The default number of timed steps.
NUM_BATCHES = 100
# With --target_seconds, more steps than there will be.
_MOST_BATCHES = 2**31 - 1


def count_steps(params: Params, processes: Processes, subject: Subject, data: Data) -> Found[Counts]:
    """The batch sizes and numbers of steps."""
    batch_size = params.batch_size or subject.model.batch_size
    own = batch_size * processes.num_hosts * params.num_gpus
    global_batch_size = own * processes.num_trainers
    # An epoch is one pass over the images that this run reads; for synthetic images, as many as training images.
    source = data.validation if params.eval else data.images
    validates = source is not None and source.subset == 'validation'
    num_examples = data.data_set.num_validation_examples if validates else data.data_set.num_train_examples
    if params.num_epochs is not None:
        num_timed = math.ceil(steps_of(params.num_epochs, num_examples, global_batch_size))
    elif params.target_seconds is not None and not params.eval:
        num_timed = _MOST_BATCHES
    else:
        num_timed = NUM_BATCHES if params.num_batches is None else params.num_batches
    counts = Counts(
        batch_size=batch_size,
        global_batch_size=global_batch_size,
        images_of_step=global_batch_size if processes.together else own,
        num_warmup=params.num_warmup_batches,
        num_timed=num_timed,
        num_epochs=num_timed * global_batch_size / (num_examples or math.inf),
        display_every=params.display_every,
        newest_weight=params.display_perf_ewma,
        target_secs=None if params.eval else params.target_seconds,
        steps_per_run=params.steps_per_run,
    )
    return Found(counts)
