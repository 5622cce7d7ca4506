"""Every flag once: the table of them, and the frozen Params made of it. Does not import TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass

from data_sets import DATA_NAMES
from flag_spec import FlagSpec, flag, specs_of

_RUN = 'Model and run'
_DEVICES = 'Devices'
_DATA = 'Data'
_VARIABLES = 'Variables and gradients'
_OPTIMIZER = 'Optimizer'
_PRECISION = 'Precision'
_CLUSTER = 'Cluster'
_EVALUATION = 'Evaluation'
_FILES = 'Files'

# So that steps and examples can be counted, whatever the data set's size.
_MOST_EPOCHS = 1e9
# Each says in its own way when training waits for an evaluation.
EVAL_DURING_TRAINING = (
    'eval_during_training_every_n_steps',
    'eval_during_training_every_n_epochs',
    'eval_during_training_at_specified_steps',
    'eval_during_training_at_specified_epochs',
)


@dataclass(frozen=True)
class Params:
    """The settings of one run. Made by parse_argv or make_params, which check them; None leaves a choice to the run."""

    model: str = flag('trivial', _RUN, 'The network.')
    model_file: str | None = flag(
        None, _RUN, 'Python file that adds models of yours with register_model, see docs/models.md.'
    )
    batch_size: int = flag(
        0, _RUN, "Images of a step on each device; 0 is the model's default.", lower_bound=0, unit='images'
    )
    num_batches: int | None = flag(
        None, _RUN, 'Timed steps; by default 100, or as --num_epochs says.', lower_bound=1, unit='steps'
    )
    num_epochs: float | None = flag(
        None,
        _RUN,
        'Instead of --num_batches: how often the run sees each training image, on all devices of all workers.',
        lower_bound=0,
        upper_bound=_MOST_EPOCHS,
        unit='epochs',
    )
    num_warmup_batches: int = flag(
        10, _RUN, 'Steps before the timed ones, which count in no rate.', lower_bound=0, unit='steps'
    )
    display_every: int = flag(10, _RUN, 'Steps from one line to the next.', lower_bound=1, unit='steps')
    forward_only: bool = flag(False, _RUN, 'Only compute the loss and the accuracy, without gradients and updates.')
    print_training_accuracy: bool = flag(False, _RUN, 'Compute top-1 and top-5 accuracy in training, and print them.')
    loss_type_to_report: str = flag(
        'total_loss', _RUN, 'The loss without weight decay, or with it.', choices=('base_loss', 'total_loss')
    )
    tf_random_seed: int = flag(
        1234,
        _RUN,
        'Seed of the initial weights, of dropout, and of images: their order, which of records it does not decide '
        'alone, and what is random about them.',
    )
    verbose: bool = flag(False, _RUN, 'Add the traceback to errors.')

    num_gpus: int = flag(1, _DEVICES, 'Devices to train on, of the kind --device names.', lower_bound=1)
    device: str | None = flag(
        None, _DEVICES, 'Where to compute; by default on GPUs if there are any.', choices=('cpu', 'gpu'), original='gpu'
    )
    local_parameter_device: str | None = flag(
        None,
        _DEVICES,
        'Where shared variables live, or replicated ones have their gradients summed; by default as --device.',
        choices=('cpu', 'gpu'),
        original='gpu',
    )
    data_format: str | None = flag(
        None,
        _DEVICES,
        'Order of the axes of a batch of images; by default NCHW on GPUs, else NHWC.',
        choices=('NHWC', 'NCHW'),
        original='NCHW',
    )
    num_intra_threads: int | None = flag(
        None, _DEVICES, 'Threads within one operation; by default TensorFlow decides.', lower_bound=0, unit='threads'
    )
    num_inter_threads: int = flag(
        0, _DEVICES, 'Operations that run at once; with 0 TensorFlow decides.', lower_bound=0, unit='threads'
    )
    allow_growth: bool | None = flag(None, _DEVICES, 'Take the memory of a GPU as needed, not all at once.')
    gpu_memory_frac_for_testing: float = flag(
        0.0, _DEVICES, 'Fraction of the memory of each GPU to take; 0 sets no limit.', lower_bound=0, upper_bound=1
    )
    xla: bool = flag(False, _DEVICES, 'Let XLA compile what it can of the graph.')

    data_dir: str | None = flag(
        None, _DATA, 'Folder of TFRecord shards, or of the files of CIFAR-10 or MNIST; without it images are synthetic.'
    )
    data_name: str | None = flag(
        None,
        _DATA,
        "The data set; by default what --data_dir holds, else the model's first one. records is a folder made by the "
        'word records, with its own classes.',
        choices=DATA_NAMES,
    )
    augmentation: str | None = flag(
        None,
        _DATA,
        'What training images undergo: a random part of random shape, resized, and flips (resized_crop); a shift by '
        'up to 4 pixels, and flips (padded_crop); or nothing. Only with resized_crop are images that are not trained '
        'on cut to their middle. By default padded_crop for cifar10, none for mnist, else resized_crop.',
        choices=('resized_crop', 'padded_crop', 'none'),
    )
    distortions: bool = flag(False, _DATA, 'Change the colours of training images at random.')
    resize_method: str = flag(
        'bilinear',
        _DATA,
        'How images become as large as the model needs; round_robin takes all in turn.',
        choices=('nearest', 'bilinear', 'bicubic', 'area', 'round_robin'),
    )

    variable_update: str = flag(
        'parameter_server',
        _VARIABLES,
        'Where variables live and how gradients meet, see README.md and, for clusters, docs/distributed.md.',
        choices=(
            'parameter_server',
            'replicated',
            'independent',
            'distributed_replicated',
            'collective_all_reduce',
            'distributed_all_reduce',
            'horovod',
        ),
    )
    cross_replica_sync: bool = flag(
        True, _VARIABLES, 'Workers take each step together; without it each updates the parameter servers by itself.'
    )
    staged_vars: bool = flag(
        False, _VARIABLES, "Compute with the parameter servers' variables of one step before, read meanwhile."
    )
    compact_gradient_transfer: bool | None = flag(
        None,
        _VARIABLES,
        'Round gradients to 16 bits on their way between replicas and processes, and variables between processes; '
        'by default if --precision has 16 bits, with horovod if it is fp16.',
        original='true',
    )
    horovod_device: str | None = flag(
        None, _VARIABLES, 'Where Horovod sums gradients; by default where they are.', choices=('cpu', 'gpu')
    )
    all_reduce_spec: str | None = flag(
        None,
        _VARIABLES,
        'How replicated variables sum their gradients: pscpu, psgpu, xring or nccl, or several by bytes, as in '
        'pscpu:32k:xring; by default psgpu or pscpu, as --local_parameter_device, with distributed_all_reduce xring.',
    )
    hierarchical_copy: bool = flag(False, _VARIABLES, 'Sum gradients in groups of devices that are close, then across.')
    network_topology: str = flag(
        'dgx1', _VARIABLES, 'Which devices are close, for --hierarchical_copy.', choices=('dgx1', 'gcp_v100')
    )
    gradient_repacking: int = flag(
        0, _VARIABLES, 'Sum gradients as this many equal packets; 0 does not repack.', lower_bound=0, unit='packets'
    )
    agg_small_grads_max_bytes: int = flag(
        0, _VARIABLES, 'Sum gradients up to this size together; 0 does not.', lower_bound=0, unit='bytes'
    )
    agg_small_grads_max_group: int = flag(
        10, _VARIABLES, 'Most small gradients to sum together.', lower_bound=1, unit='gradients'
    )

    optimizer: str = flag('sgd', _OPTIMIZER, 'The update rule.', choices=('sgd', 'momentum', 'rmsprop', 'adam', 'lars'))
    init_learning_rate: float | None = flag(
        None, _OPTIMIZER, "Learning rate; by default the model's. --learning_rate is the same.", lower_bound=0
    )
    piecewise_learning_rate_schedule: str | None = flag(
        None,
        _OPTIMIZER,
        "The learning rate as 'RATE;EPOCH;RATE;...': the first one, and from which epoch on which other one.",
    )
    num_epochs_per_decay: float = flag(
        0.0,
        _OPTIMIZER,
        'Epochs after which the learning rate is multiplied by --learning_rate_decay_factor, again and again; '
        '0 leaves it.',
        lower_bound=0,
        upper_bound=_MOST_EPOCHS,
        unit='epochs',
    )
    learning_rate_decay_factor: float = flag(
        0.0, _OPTIMIZER, 'Factor of the learning rate, for --num_epochs_per_decay.', lower_bound=0
    )
    minimum_learning_rate: float = flag(
        0.0, _OPTIMIZER, 'Lowest learning rate, for --num_epochs_per_decay.', lower_bound=0
    )
    num_learning_rate_warmup_epochs: float = flag(
        0.0,
        _OPTIMIZER,
        'Epochs in which the learning rate rises from 0 to its first value.',
        lower_bound=0,
        upper_bound=_MOST_EPOCHS,
        unit='epochs',
    )
    resnet_base_lr: float | None = flag(
        None,
        _OPTIMIZER,
        'Learning rate of residual networks for 256 images in a step; it grows with the images, and falls after '
        'the customary epochs.',
        lower_bound=0,
    )
    momentum: float = flag(0.9, _OPTIMIZER, 'Momentum, for momentum and lars.', lower_bound=0, upper_bound=1)
    rmsprop_decay: float = flag(0.9, _OPTIMIZER, 'Decay of squares, for rmsprop.', lower_bound=0, upper_bound=1)
    rmsprop_momentum: float = flag(0.9, _OPTIMIZER, 'Momentum, for rmsprop.', lower_bound=0, upper_bound=1)
    rmsprop_epsilon: float = flag(1.0, _OPTIMIZER, 'Term of the denominator, for rmsprop.', lower_bound=0)
    adam_beta1: float = flag(0.9, _OPTIMIZER, 'Decay of means, for adam.', lower_bound=0, upper_bound=1)
    adam_beta2: float = flag(0.999, _OPTIMIZER, 'Decay of squares, for adam.', lower_bound=0, upper_bound=1)
    adam_epsilon: float = flag(1e-8, _OPTIMIZER, 'Term of the denominator, for adam.', lower_bound=0)
    lars_eta: float = flag(
        1e-3, _OPTIMIZER, 'How far to trust a layer: its trust coefficient, for lars.', lower_bound=0
    )
    weight_decay: float = flag(4e-5, _OPTIMIZER, 'Factor of the L2 loss of the weights.', lower_bound=0)
    single_l2_loss_op: bool = flag(False, _OPTIMIZER, 'Compute the L2 loss of all weights by one operation.')
    label_smoothing: float = flag(
        0.0, _OPTIMIZER, 'Part of each label that is spread evenly over all classes.', lower_bound=0, upper_bound=1
    )
    gradient_clip: float | None = flag(
        None, _OPTIMIZER, 'Clip each element of a gradient to this magnitude.', lower_bound=0
    )

    precision: str = flag(
        'fp32',
        _PRECISION,
        'What networks compute in; --use_fp16 is fp16. Variables (without --fp16_vars), loss and update keep 32 bits.',
        choices=('fp32', 'fp16', 'bf16'),
    )
    fp16_vars: bool = flag(False, _PRECISION, 'Keep what is trained in the 16 bits of --precision, too.')
    fp16_loss_scale: float | None = flag(
        None,
        _PRECISION,
        'Factor of the loss in fp16, or the first one of an automatic scale; by default 128.',
        lower_bound=1,
    )
    fp16_enable_auto_loss_scale: bool = flag(
        False, _PRECISION, 'Skip steps with gradients that overflow and halve the scale; double it after good ones.'
    )
    fp16_inc_loss_scale_every_n: int = flag(
        1000, _PRECISION, 'Good steps after which an automatic scale doubles.', lower_bound=1, unit='steps'
    )
    continue_on_nan: bool = flag(False, _PRECISION, 'Go on when the loss is not finite.')

    job_name: str | None = flag(
        None, _CLUSTER, 'The role of this process in a cluster.', choices=('ps', 'worker', 'controller')
    )
    task_index: int | None = flag(
        None, _CLUSTER, 'Which of the hosts of its role this process is, from 0.', lower_bound=0, original='0'
    )
    ps_hosts: str | None = flag(None, _CLUSTER, 'HOST:PORT of each parameter server, with commas between.')
    worker_hosts: str | None = flag(None, _CLUSTER, 'HOST:PORT of each worker, with commas between.')
    controller_host: str | None = flag(None, _CLUSTER, 'HOST:PORT of the controller, for distributed_all_reduce.')
    num_ps: int = flag(
        1,
        _CLUSTER,
        'Tasks of a Slurm or MPI job that become parameter servers, in modes that have them.',
        lower_bound=1,
        unit='tasks',
    )
    cluster_port: int = flag(
        0,
        _CLUSTER,
        'First port of the tasks of a Slurm or MPI job; 0 derives it from the number of the job.',
        lower_bound=0,
        upper_bound=65535,
    )
    server_protocol: str = flag('grpc', _CLUSTER, 'How tasks talk to each other.', choices=('grpc',))
    connect_timeout_secs: float = flag(
        300.0, _CLUSTER, 'How long to wait for the other tasks to start.', lower_bound=0, unit='seconds'
    )
    peer_timeout_secs: float = flag(
        120.0, _CLUSTER, 'How long to wait for a lost task to come back.', lower_bound=0, unit='seconds'
    )
    ps_linger_secs: float = flag(
        0.0, _CLUSTER, 'How long a parameter server stays when all workers are done.', lower_bound=0, unit='seconds'
    )

    distinct_worker_data: bool = flag(
        True, _CLUSTER, 'Every worker has other synthetic images, or reads the shards from another one on.'
    )

    eval: bool = flag(
        False,
        _EVALUATION,
        'Train nothing: tell the accuracy of the last checkpoint of --train_dir on validation images.',
    )
    eval_interval_secs: float = flag(
        0.0,
        _EVALUATION,
        'With --eval, look this often for new checkpoints, until the training there ends; 0 evaluates the last once.',
        lower_bound=0,
        unit='seconds',
    )
    eval_batch_size: int = flag(
        0, _EVALUATION, 'Images evaluated at a time on each device; 0 is --batch_size.', lower_bound=0, unit='images'
    )
    num_eval_batches: int | None = flag(
        None,
        _EVALUATION,
        'Batches to evaluate, all devices together taking one; by default each validation image once, and as many '
        'synthetic batches as --num_batches says.',
        lower_bound=1,
        unit='batches',
    )
    num_eval_epochs: float | None = flag(
        None,
        _EVALUATION,
        'How many times to go through the validation images.',
        lower_bound=0,
        upper_bound=_MOST_EPOCHS,
        unit='epochs',
    )
    eval_during_training_every_n_steps: int | None = flag(
        None, _EVALUATION, 'Steps of the model from one evaluation to the next.', lower_bound=1, unit='steps'
    )
    eval_during_training_every_n_epochs: float | None = flag(
        None,
        _EVALUATION,
        'Epochs of training from one evaluation to the next.',
        lower_bound=0,
        upper_bound=_MOST_EPOCHS,
        unit='epochs',
    )
    eval_during_training_at_specified_steps: str | None = flag(
        None, _EVALUATION, 'Steps of the model after which to evaluate, with commas between.'
    )
    eval_during_training_at_specified_epochs: str | None = flag(
        None, _EVALUATION, 'Epochs of training after which to evaluate, with commas between.'
    )
    stop_at_top_1_accuracy: float | None = flag(
        None, _EVALUATION, 'Stop training once an evaluation finds this accuracy.', lower_bound=0, upper_bound=1
    )
    eval_dir: str | None = flag(
        None,
        _EVALUATION,
        'Folder for summaries of evaluations; made if missing.',
        original='a folder in the temporary one',
    )

    train_dir: str | None = flag(
        None,
        _FILES,
        'Folder for checkpoints and summaries; made if missing. Training goes on from the newest checkpoint there.',
    )
    save_model_secs: float = flag(
        0.0,
        _FILES,
        'Seconds from one checkpoint to the next; 0 saves the start and the last step only.',
        lower_bound=0,
        unit='seconds',
    )
    save_model_steps: int | None = flag(
        None, _FILES, 'Steps from one checkpoint to the next.', lower_bound=1, unit='steps'
    )
    max_ckpts_to_keep: int = flag(5, _FILES, 'The last checkpoints that are kept.', lower_bound=1, unit='checkpoints')
    backbone_model_path: str | None = flag(None, _FILES, 'Checkpoint, or folder of some, that training starts from.')
    export_saved_model: str | None = flag(None, _FILES, 'New folder for a SavedModel of what was trained or evaluated.')
    save_summaries_steps: int = flag(
        0, _FILES, 'Steps from one summary to the next; 0 writes none.', lower_bound=0, unit='steps'
    )
    summary_verbosity: int = flag(
        0,
        _FILES,
        '1 writes scalars, 2 also histograms of variables, 3 of gradients too; 0 writes none.',
        lower_bound=0,
        upper_bound=3,
    )
    trace_file: str | None = flag(None, _FILES, 'File for the trace of the last warm-up step.')
    use_chrome_trace_format: bool = flag(True, _FILES, 'Write --trace_file for chrome://tracing, else as text.')
    graph_file: str | None = flag(None, _FILES, 'File for the graph; text if its name ends with txt.')
    partitioned_graph_file_prefix: str | None = flag(
        None, _FILES, 'Start of the file names for the graph of each device as it was run.'
    )
    tfprof_file: str | None = flag(None, _FILES, 'File for the profile of the last warm-up step.')
    profile_steps: str | None = flag(None, _FILES, 'FIRST,LAST: the timed steps to profile for TensorBoard.')
    profile_dir: str | None = flag(None, _FILES, 'Folder for the profile of --profile_steps; made if missing.')

    @property
    def evaluates_in_training(self) -> bool:
        """Whether training waits for evaluations."""
        return not self.forward_only and any(getattr(self, name) is not None for name in EVAL_DURING_TRAINING)

    @property
    def evaluates(self) -> bool:
        """Whether validation images are looked at."""
        return self.eval or self.evaluates_in_training


SPECS: Mapping[str, FlagSpec] = specs_of(Params)
