"""Decides which steps this process takes, and where its variables come from.

Pure functions only. Does not import TensorFlow.
"""

import enum
from dataclasses import dataclass

from errors import RunError


@dataclass(frozen=True)
class Schedule:
    """The steps of this process.

    Attributes:
      start, end: the steps of all workers when this process starts, and when training ends.
      own_start: how many of the steps before `start` this process counts as its own; all of them in synchronous modes.
      num_warmup, num_timed: the steps that this process takes.
      is_fresh: True if training starts now, False if it continues after an interruption.
    """

    start: int
    end: int
    own_start: int
    num_warmup: int
    num_timed: int
    is_fresh: bool

    def is_over(self, steps_taken: int) -> bool:
        """Whether training has ended; steps_taken are the steps of all workers."""
        return steps_taken >= self.end


def make_schedule(start: int, end: int | None, num_warmup: int, num_timed: int, num_counting: int = 1) -> Schedule:
    """The remaining steps of this process.

    Args:
      start: the steps that all workers have taken so far.
      end: the step at which training ends, if it has begun before; None if it begins now.
      num_warmup, num_timed: the steps per worker in the settings.
      num_counting: how many workers increment the global step separately: 1 if they take their steps together.
    """
    num_steps = num_counting * (num_warmup + num_timed)
    end = start + num_steps if end is None else end
    first = end - num_steps
    own_warmup = (first + num_counting * num_warmup - start) // num_counting
    if start > first:
        # After an interruption each worker takes one warm-up step, if that leaves a step to time.
        own_warmup = max(own_warmup, min(1, end - start - num_counting), 0)
    return Schedule(start, end, start // num_counting, own_warmup, end - start - own_warmup, start == first)


class Origin(enum.Enum):
    """The source of the variables' first values."""

    SERVERS = 'the parameter servers, which still hold them'
    INHERITED = 'the process that this one replaced'
    CHECKPOINT = 'the newest checkpoint of --train_dir'
    WARM_START = '--backbone_model_path'
    INITIAL = 'the initial values of the model'


@dataclass(frozen=True)
class StartFacts:
    """The facts that determine the origin, for the process that gives the variables their first values.

    Attributes:
      on_servers: whether the parameter servers hold variables of an earlier generation of workers.
      is_whole: whether those variables contain whole steps only; False if the update of a step was interrupted.
      had_controller: whether a controller counted their steps; the count was lost with it.
      has_inherited: whether the process that this one replaced handed on its variables.
      has_checkpoint: whether --train_dir holds a checkpoint.
      has_warm_start: whether --backbone_model_path names one.
      has_begun: whether training has begun before.
    """

    on_servers: bool = False
    is_whole: bool = True
    had_controller: bool = False
    has_inherited: bool = False
    has_checkpoint: bool = False
    has_warm_start: bool = False
    has_begun: bool = False


def choose_origin(facts: StartFacts, *, needs_state: bool) -> Origin:
    """Chooses where the variables come from.

    Args:
      needs_state: whether training that has begun can only continue from saved variables, because parameter servers
        held the only copy.

    Raises:
      RunError: the variables were lost with a process, and there is no checkpoint.
    """
    if facts.on_servers and facts.is_whole and not facts.had_controller:
        return Origin.SERVERS
    if facts.has_inherited:
        return Origin.INHERITED
    if facts.has_checkpoint:
        return Origin.CHECKPOINT
    if needs_state and facts.has_begun:
        if not facts.on_servers:
            lost = 'the variables were lost with a server'
        elif facts.had_controller:
            lost = 'the controller was lost'
        else:
            lost = 'a worker was lost while it applied a step'
        raise RunError(f'{lost}, and there is no checkpoint to go on from; --train_dir=DIR keeps checkpoints')
    return Origin.WARM_START if facts.has_warm_start else Origin.INITIAL
