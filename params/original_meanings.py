"""What flags meant in the original program, for the docs: those that are not among ours, and where ours differ."""

from collections.abc import Mapping

# Flags of the last version of the original, by name.
MEANINGS: Mapping[str, str] = {
    'allreduce_merge_scope': 'How many neighbouring gradients of a collective all-reduce may be merged into one.',
    'batch_group_size': 'How many batches the threads of the input prepare together.',
    'collect_eval_results_async': 'Collect the accuracies of evaluations while the next batches are computed.',
    'compute_lr_on_cpu': 'Compute the learning rate on the CPU.',
    'debugger': 'Run the steps in the debugger of TensorFlow: in a terminal, or in a TensorBoard at HOST:PORT.',
    'fuse_decode_and_crop': 'Decode only the part of a JPEG that a random crop keeps.',
    'mkl': 'Say that TensorFlow was built with MKL, so that the settings of OpenMP are passed on.',
    'sparse_to_dense_grads': 'Convert sparse gradients to dense ones.',
    'trt_max_workspace_size_bytes': 'Memory that TensorRT may use.',
    'trt_mode': 'Convert the frozen graph of --forward_only by TensorRT, to compute in this precision.',
    'use_datasets': 'Read images by tf.data instead of RecordInput.',
    'use_fp16': 'Compute in 16 bits: --use_fp16 is --precision=fp16.',
    'use_python32_barrier': 'Let threads that prepare batches wait for each other in Python.',
    'use_resource_vars': 'Make resource variables instead of reference variables.',
    'use_tf_layers': 'Make layers by tf.layers instead of own code.',
    'xla_compile': 'Compile the model by XLA: --xla_compile is --xla.',
}
# Flags of older versions, and of versions in other repositories.
OF_OTHER_VERSIONS: Mapping[str, str] = {
    'cache_data': 'Read one record, and repeat it from memory.',
    'datasets_prefetch_threadpool_size': 'Threads that prepare batches.',
    'enable_layout_optimizer': 'Let TensorFlow choose the order of the axes of images.',
    'flush_stdout': 'Write each line as soon as it is printed.',
    'gpu_pending_cap': 'How many kernels may be queued on a GPU at a time.',
    'iters_per_step': 'How many steps one call of the session takes.',
    'learning_rate': 'The learning rate: --learning_rate is --init_learning_rate.',
    'log_dir': 'Folder for logs.',
    'ml_perf_compliance_logging': 'Print the log lines that the rules of MLPerf ask for.',
    'pretrain_dir': 'Folder with the checkpoint from which training starts.',
    'result_storage': 'Where to store the result of the run.',
    'use_data_sets': 'Read images by tf.data.',
    'use_multi_device_iterator': 'Hand batches of tf.data to all devices by one iterator.',
    'use_nccl': 'Sum gradients by NCCL: --use_nccl is --all_reduce_spec=nccl.',
}
# What works although only other versions have it.
WORKING_OF_OTHER_VERSIONS = ('log_device_placement',)
# By the name of a flag that works: what it does otherwise in the original, besides its default.
DIFFERENCES: Mapping[str, str] = {
    'all_reduce_spec': 'workers that sum among themselves need collective there; here they do so without it, too',
    'eval': 'by default there it evaluates as many batches as training takes, here each validation image once',
    'gpu_indices': 'there it only orders the ring of --all_reduce_spec',
    'model': 'equal names mean equal cost; docs/models.md lists the differences between the networks',
    'resize_method': 'there resizing samples the corners of pixels, here their centres',
    'server_protocol': 'TensorFlow had grpc+verbs and others then',
    'variable_update': (
        'there, towers of one process that each have all variables take steps by the sum of their gradients, here by '
        'the mean in every mode; docs/training.md has the learning rate that takes the same steps'
    ),
    'weight_decay': 'there biases decay, too',
}
