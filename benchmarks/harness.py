"""BenchmarkCNN as a contestant within one process: a turn is one step, or --steps_per_run steps."""

import argparse
import contextlib
import sys
from types import TracebackType
from typing import Any

from benchmark_cnn import BenchmarkCNN
from params import make_params


class Harness:
    """A run with the warm-up steps done. What it prints goes to standard error, where it does not mix with tables."""

    def __init__(self, args: argparse.Namespace, **flags: Any) -> None:
        """args: rounds, max_repeats and num_warmup_batches of the script. flags: those of the run, by name."""
        self.params = make_params(
            # Enough for every turn that is repeated.
            num_batches=args.rounds * (1 + args.max_repeats),
            num_warmup_batches=args.num_warmup_batches,
            **flags,
        )
        self._num_warmup = args.num_warmup_batches

    def __enter__(self) -> 'Harness':
        with contextlib.redirect_stdout(sys.stderr):
            self._steps = BenchmarkCNN(self.params).steps()
            for _ in range(self._num_warmup):
                next(self._steps)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self._steps.close()

    def take_step(self, number: int) -> float:
        """Takes a step; returns its seconds."""
        del number
        with contextlib.redirect_stdout(sys.stderr):
            return next(self._steps).seconds
