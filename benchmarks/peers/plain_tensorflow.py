"""A minimal TensorFlow graph loop, for ResNet-50 on random images or `trivial` on records.

    python -m benchmarks.peers.plain_tensorflow --batch_size=32 --precision=bf16
    python -m benchmarks.peers.plain_tensorflow --data_dir=data/records --batch_size=64

The graph uses no code of this program. The pipeline of records follows TensorFlow's guides with the
default options. So libjpeg-turbo also smooths the colours between pixels (fancy upscaling), which
this program turns off.
"""

import os
from collections.abc import Callable

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import tensorflow.compat.v1 as tf

from benchmarks.peers.measuring import LEARNING_RATE, WEIGHT_DECAY, make_parser, run_steps
from benchmarks.peers.plain_networks import NETWORKS, Layers, PlainNetwork


def make_step(
    model: str,
    batch_size: int,
    precision: str,
    *,
    forward_only: bool,
    pipeline: Callable[[], tuple[tf.Tensor, tf.Tensor]] | None = None,
) -> Callable[[], float]:
    """Returns a function that takes a step in a new session, and returns the loss.

    Args:
      model: a key of NETWORKS.
      pipeline: adds the images and labels to the graph; None: random ones in variables.
    """
    network, layers = NETWORKS[model], Layers(is_training=not forward_only)
    with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
        images, labels = pipeline() if pipeline else _random_images(batch_size, network)
        inputs = tf.cast(images, tf.bfloat16 if precision == 'bf16' else tf.float32)
        logits = tf.cast(network.build(layers, inputs, network.num_classes), tf.float32)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels)
        )
        ops = layers.updates
        if forward_only:
            # A forward step of this program, as of the original, also computes the accuracy.
            ops = [
                tf.reduce_mean(tf.cast(tf.nn.in_top_k(logits, labels, k), tf.float32))
                for k in (1, 5)
            ]
        else:
            # The returned loss includes weight decay, as in this program.
            loss += WEIGHT_DECAY * tf.add_n([tf.nn.l2_loss(kernel) for kernel in layers.kernels])
            variables = [*layers.kernels, *layers.vectors]
            gradients = tf.gradients(loss, variables)
            optimizer = tf.train.GradientDescentOptimizer(LEARNING_RATE)
            ops = [*ops, optimizer.apply_gradients(zip(gradients, variables, strict=True))]
        initialize = tf.global_variables_initializer()
    session = tf.Session(graph=graph)
    session.run(initialize)
    run = session.make_callable([loss, *ops])
    return lambda: float(run()[0])


def _random_images(batch_size: int, network: PlainNetwork) -> tuple[tf.Tensor, tf.Tensor]:
    images = tf.random.uniform([batch_size, network.image_size, network.image_size, 3], -1, 1)
    labels = tf.random.uniform([batch_size], 0, network.num_classes, tf.int32)
    variables = [
        tf.Variable(values, trainable=False, use_resource=True) for values in (images, labels)
    ]
    return variables[0].read_value(), variables[1].read_value()


def make_pipeline(data_dir: str, batch_size: int) -> Callable[[], tuple[tf.Tensor, tf.Tensor]]:
    """Returns a function that adds the pipeline to the graph.

    It returns images [N, 227, 227, 3] float32 in [-1, 1], and labels [N] int32.
    """
    image_size = NETWORKS['trivial'].image_size
    # The features that all records have.
    types = {'image/encoded': tf.string, 'image/class/label': tf.int64}
    features = {name: tf.io.FixedLenFeature([], kind) for name, kind in types.items()}

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        example = tf.io.parse_single_example(record, features)
        file = example['image/encoded']
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(file),
            tf.zeros([1, 0, 4]),
            min_object_covered=0.1,
            aspect_ratio_range=(0.75, 1.33),
            area_range=(0.05, 1.0),
            max_attempts=100,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.concat([begin[:2], size[:2]], 0)
        image = tf.io.decode_and_crop_jpeg(file, window, channels=3)
        image.set_shape([None, None, 3])
        image = tf.image.resize(tf.image.random_flip_left_right(image), [image_size, image_size])
        return image / 127.5 - 1, tf.cast(example['image/class/label'], tf.int32)

    def pipeline() -> tuple[tf.Tensor, tf.Tensor]:
        files = tf.data.Dataset.list_files(f'{data_dir}/train-*')
        records = files.interleave(
            tf.data.TFRecordDataset, cycle_length=10, num_parallel_calls=tf.data.AUTOTUNE
        )
        records = records.shuffle(10_000).repeat()
        batches = records.map(parse, num_parallel_calls=tf.data.AUTOTUNE).batch(
            batch_size, drop_remainder=True
        )
        return tf.data.make_one_shot_iterator(batches.prefetch(tf.data.AUTOTUNE)).get_next()

    return pipeline


def main() -> None:
    parser = make_parser(
        'ResNet-50, or the trivial model on records, in a plain TensorFlow graph loop.'
    )
    parser.add_argument(
        '--data_dir', help='train --model=trivial on the train-*-of-* shards in this folder'
    )
    args = parser.parse_args()
    model, pipeline = 'resnet50', None
    if args.data_dir:
        model = 'trivial'
        pipeline = make_pipeline(args.data_dir, args.batch_size)
    step = make_step(
        model, args.batch_size, args.precision, forward_only=args.forward_only, pipeline=pipeline
    )
    run_steps(args, f'TensorFlow {tf.version.VERSION}', step)


if __name__ == '__main__':
    main()
