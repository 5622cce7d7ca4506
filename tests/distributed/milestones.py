"""The lines by which tests know how far a process is, as regular expressions: who rewords a line
does so here, too.
"""

# A process that has a server waits until all tasks are there.
WAITING = r', waiting for '
# A worker has taken its first timed step, or enough of them that all workers have begun.
FIRST_STEP = r'^1\timages/sec'
UNDER_WAY = r'^20\timages/sec'
# Training has evaluated for the first time.
EVALUATED = r'^Accuracy'
# A worker evaluates; the global step.
EVALUATING = r'^Evaluating after .*\(global step (\d+)\)$'
# Training has reached its accuracy; the global step.
STOPPING = r'^Stopping after .*\(global step (\d+)\)'
# The chief goes on from a checkpoint; its path.
GOING_ON = r'^Continuing from (.*)$'
# A run that was interrupted has measured less than it should have; the number of timed steps.
INCOMPLETE = r'the run is incomplete: it timed (\d+) step'
# Steps were skipped because their gradients overflowed; their number.
SKIPPED = r'^tf_cnn_benchmarks: warning: (\d+) steps?, .* changed no variable'
