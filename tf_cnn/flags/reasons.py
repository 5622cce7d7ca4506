"""Common reasons why a flag has no effect. Each completes '--flag=value has no effect: '."""

IN_EVAL = '--eval trains nothing'
TRAINS_NOTHING = '--forward_only trains nothing'
NO_MODEL = '--input_only runs no model'
NO_COMPUTING = '--exchange_only computes nothing'
SINGLE_PROCESS = 'it is for clusters, and this run has one process'
SYNTHETIC = 'images are synthetic without --data_dir'
ON_CPU = 'the run is on the CPU'
NO_FOLDER = 'checkpoints and summaries need --train_dir'
