"""The layer builder, which hides TensorFlow, the data format and the precision from the
networks.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow.compat.v1 as tf

from models.model_spec import BatchNorm
from tf_cnn.graph.variables import Initializer

Tensor = Any  # TensorFlow ships no types
Padding = str | int  # 'SAME', 'VALID', or that many zeros on every side


class NameTakenError(ValueError):
    """Two layers of a network have one name, and would share their weights."""


class VariableSource(Protocol):
    """The source of a tower's variables, which variable managers implement."""

    def read(
        self, name: str, shape: Sequence[int], initializer: Initializer, *, trainable: bool = True
    ) -> Tensor:
        """Returns the variable's value, float32. The first call for a name creates the variable."""

    def declare(self, name: str, shape: Sequence[int], initializer: Initializer) -> None:
        """Reserves the creation order of a non-trainable variable that this tower does not use."""

    def assign(self, name: str, value: Tensor) -> None:
        """Makes each step assign a value to a non-trainable variable."""


def zeros(shape: Sequence[int], seed: int) -> Tensor:
    del seed
    return tf.zeros(shape)


def ones(shape: Sequence[int], seed: int) -> Tensor:
    del seed
    return tf.ones(shape)


def constant(value: float) -> Initializer:
    def initialize(shape: Sequence[int], seed: int) -> Tensor:
        del seed
        return tf.fill(list(shape), value)

    return initialize


def truncated_normal(stddev: float) -> Initializer:
    """A normal distribution truncated at two standard deviations; stddev is the deviation before
    truncation.
    """

    def initialize(shape: Sequence[int], seed: int) -> Tensor:
        return (
            tf.raw_ops.TruncatedNormal(shape=list(shape), dtype=tf.float32, seed=seed, seed2=1)
            * stddev
        )

    return initialize


def variance_scaling(scale: float, mode: str) -> Initializer:
    """A truncated normal distribution of variance scale / fan; mode, 'fan_in', 'fan_out' or
    'fan_avg', chooses the fan.

    scale=2, fan_in: He et al. 2015 (arXiv:1502.01852), eq. 10; fan_out: eq. 14. scale=1, fan_avg:
    Glorot & Bengio 2010, eq. 12. A depthwise kernel [H, W, C, 1] has a fan_out of H*W, which is
    also the number of inputs of each output.
    """
    # The standard deviation of a standard normal distribution truncated at +-2.
    cut_stddev = 0.87962566103423978

    def initialize(shape: Sequence[int], seed: int) -> Tensor:
        receptive_field = math.prod(shape[:-2])
        fan_in, fan_out = receptive_field * shape[-2], receptive_field * shape[-1]
        fan = {'fan_in': fan_in, 'fan_out': fan_out, 'fan_avg': (fan_in + fan_out) / 2}[mode]
        return truncated_normal(math.sqrt(scale / fan) / cut_stddev)(shape, seed)

    return initialize


he_normal = variance_scaling(2.0, 'fan_in')
he_normal_fan_out = variance_scaling(2.0, 'fan_out')
glorot_normal = variance_scaling(1.0, 'fan_avg')


class _Normalised(NamedTuple):
    y: Tensor
    batch_mean: Tensor
    batch_variance: Tensor


# The arguments of the kernel.
def _composite_batch_norm(
    *,
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    mean: Tensor,
    variance: Tensor,
    epsilon: float,
    data_format: str,
    is_training: bool,
    name: str,
    exponential_avg_factor: float = 1.0,
) -> _Normalised:
    """Computes the same as FusedBatchNormV3, by means, differences and products."""
    with tf.name_scope(name):
        exact, channel_axis = tf.cast(x, tf.float32), 1 if data_format == 'NCHW' else 3
        averages = mean, variance
        if is_training:
            axes = [axis for axis in range(4) if axis != channel_axis]
            mean, variance = tf.nn.moments(exact, axes)
            num_values = tf.cast(tf.size(x) // tf.size(mean), tf.float32)
            # The moving average is of the unbiased variance.
            values = mean, variance * num_values / tf.maximum(num_values - 1, 1)
            if exponential_avg_factor < 1:
                averages = tuple(
                    average + exponential_avg_factor * (value - average)
                    for average, value in zip(averages, values, strict=True)
                )
        shape = [-1 if axis == channel_axis else 1 for axis in range(4)]
        mean_4d, variance_4d, scale_4d, offset_4d = (
            tf.reshape(vector, shape) for vector in (mean, variance, scale, offset)
        )
        y = tf.nn.batch_normalization(exact, mean_4d, variance_4d, offset_4d, scale_4d, epsilon)
        return _Normalised(tf.cast(y, x.dtype), *averages)


class LayerBuilder:
    """Adds the layers of one tower to the current graph.

    Activations have the type dtype and the shape [N, H, W, C] or [N, C, H, W], depending on
    data_format. The T tokens of a transformer are [N, T, C] in both. In both data formats kernels
    are [H, W, in, out], and dense weights [in, out] in the order of a flattened [H, W, C], so that
    both formats share their weights. A variable is cast to dtype where it is read; its gradient has
    the variable's type.

    Args:
      data_format: 'NHWC' or 'NCHW'.
      is_training: whether batch norm uses the statistics of the batch, and dropout is active.
      keep_statistics: whether batch norm updates its moving averages while training. One tower of
        each model does so.
      fused_batch_norm: whether one kernel computes each batch norm, or several ops.
      seed: each dropout layer adds its number to this seed, so the seeds of two towers must differ
        by more than the number of dropout layers.
      dtype: the type that layers compute in, except batch norm, the statistics of layer norm and
        the softmax of attention, which are always float32.
    """

    # Each argument is a property of the whole network, so no layer takes it again.
    def __init__(
        self,
        variables: VariableSource,
        data_format: str,
        *,
        is_training: bool,
        keep_statistics: bool = True,
        batch_norm: BatchNorm | None = None,
        fused_batch_norm: bool = True,
        seed: int = 0,
        dtype: tf.DType = tf.float32,
    ) -> None:
        self.is_training = is_training
        self._variables = variables
        self._data_format = data_format
        self._channels_first = data_format == 'NCHW'
        self._keep_statistics = keep_statistics
        self._batch_norm = batch_norm or BatchNorm()
        self._fused_batch_norm = fused_batch_norm
        self.has_batch_norm = False
        self._seed = seed
        self._dtype = dtype
        self._scopes: list[str] = []
        self._names = set[str]()
        self._num_dropouts = 0
        self._empty_statistics: Tensor = None

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefixes the names of the variables that the block creates with name/."""
        self._scopes.append(name)
        yield
        self._scopes.pop()

    def images(self, images: Tensor) -> Tensor:
        """[N, H, W, C] -> the builder's data format and dtype."""
        return self._from_nhwc(tf.cast(images, self._dtype))

    # The usual arguments of a convolution, most of them with a default.
    def conv(
        self,
        x: Tensor,
        filters: int,
        kernel_size: int | tuple[int, int],
        name: str,
        *,
        strides: int = 1,
        padding: Padding = 'SAME',
        use_bias: bool = True,
        initializer: Initializer = glorot_normal,
    ) -> Tensor:
        """A 2-D convolution. kernel_size is (height, width), or one number for both."""
        height, width = (kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size
        kernel = self._read_variable(
            f'{name}/kernel', [height, width, self._num_channels(x), filters], initializer
        )
        x, padding = self._pad(x, height, strides, padding)
        x = tf.nn.conv2d(
            x,
            kernel,
            self._window(strides),
            padding,
            data_format=self._data_format,
            name=self._scoped_name(name),
        )
        # In NHWC, oneDNN sums the gradient of the bias in float32, with the gradient of the kernel.
        return self._add_bias(x, name, as_op=not self._channels_first) if use_bias else x

    def depthwise_conv(
        self,
        x: Tensor,
        kernel_size: int,
        name: str,
        *,
        strides: int = 1,
        padding: Padding = 'SAME',
        use_bias: bool = True,
        initializer: Initializer = he_normal_fan_out,
    ) -> Tensor:
        """A 2-D convolution of each channel separately. The kernel is [kernel_size, kernel_size,
        channels, 1].
        """
        kernel = self._read_variable(
            f'{name}/kernel', [kernel_size, kernel_size, self._num_channels(x), 1], initializer
        )
        x, padding = self._pad(x, kernel_size, strides, padding)
        x = tf.raw_ops.DepthwiseConv2dNative(
            input=x,
            filter=kernel,
            strides=self._window(strides),
            padding=padding,
            data_format=self._data_format,
            name=self._scoped_name(name),
        )
        return self._add_bias(x, name, as_op=False) if use_bias else x

    def batch_norm(self, x: Tensor, name: str, *, untrained_scale: float = 1.0) -> Tensor:
        """Batch normalisation of each channel. Factors, offsets and moving averages are float32.

        The initial factors are 1 for training and untrained_scale otherwise: the moving averages of
        an untrained network are 0 and 1, which normalises nothing.
        """
        config, shape = self._batch_norm, [self._num_channels(x)]
        initial_scale = ones if self.is_training else constant(untrained_scale)
        scale = (
            self._read_variable(f'{name}/gamma', shape, initial_scale, dtype=tf.float32)
            if config.scale
            else tf.ones(shape)
        )
        offset = self._read_variable(f'{name}/beta', shape, zeros, dtype=tf.float32)
        kernel_args: dict[str, Any] = {
            'scale': scale,
            'offset': offset,
            'epsilon': config.epsilon,
            'data_format': self._data_format,
            'is_training': self.is_training,
            'name': self._scoped_name(name),
        }
        compute = tf.raw_ops.FusedBatchNormV3 if self._fused_batch_norm else _composite_batch_norm
        self.has_batch_norm = True
        if self.is_training and not self._keep_statistics:
            self._variables.declare(self._scoped_name(f'{name}/moving_mean'), shape, zeros)
            self._variables.declare(self._scoped_name(f'{name}/moving_variance'), shape, ones)
            if self._empty_statistics is None:
                self._empty_statistics = tf.constant([], tf.float32)
            return compute(
                x=x, mean=self._empty_statistics, variance=self._empty_statistics, **kernel_args
            ).y
        mean = self._read_variable(
            f'{name}/moving_mean', shape, zeros, trainable=False, dtype=tf.float32
        )
        variance = self._read_variable(
            f'{name}/moving_variance', shape, ones, trainable=False, dtype=tf.float32
        )
        if not self.is_training:
            return compute(x=x, mean=mean, variance=variance, **kernel_args).y
        # With a factor below one, the kernel returns the updated moving averages.
        normalised = compute(
            x=x,
            mean=mean,
            variance=variance,
            exponential_avg_factor=1 - config.decay,
            **kernel_args,
        )
        self._variables.assign(self._scoped_name(f'{name}/moving_mean'), normalised.batch_mean)
        self._variables.assign(
            self._scoped_name(f'{name}/moving_variance'), normalised.batch_variance
        )
        return normalised.y

    def layer_norm(self, x: Tensor, name: str, epsilon: float = 1e-6) -> Tensor:
        """Normalises each pixel of activations, each token or each row of [N, C] over its channels,
        in float32: Ba et al. 2016 (arXiv:1607.06450).

        The default epsilon is taken from the code of the authors of ConvNeXt and of ViT.
        """
        axis = 1 if self._channels_first and x.shape.rank == 4 else x.shape.rank - 1
        exact = tf.cast(x, tf.float32)
        mean, variance = tf.nn.moments(exact, [axis], keepdims=True)
        normalised = tf.cast((exact - mean) * tf.math.rsqrt(variance + epsilon), x.dtype)
        shape = [x.shape.as_list()[axis]]
        scale, offset = (
            self._read_variable(f'{name}/gamma', shape, ones),
            self._read_variable(f'{name}/beta', shape, zeros),
        )
        if x.shape.rank == 4:
            scale, offset = self._per_channel(scale), self._per_channel(offset)
        return normalised * scale + offset

    def layer_scale(self, x: Tensor, name: str, initial: float) -> Tensor:
        """A learned factor for each channel, initially `initial`: Touvron et al. 2021
        (arXiv:2103.17239).
        """
        return x * self._per_channel(
            self._read_variable(f'{name}/gamma', [self._num_channels(x)], constant(initial))
        )

    def gate(self, x: Tensor, logits: Tensor) -> Tensor:
        """Multiplies each channel of each image by the sigmoid of its logit, [N, C]: Hu et al.
        2018, eqs. 3 and 4.
        """
        return x * self._per_channel(tf.sigmoid(logits))

    def relu(self, x: Tensor) -> Tensor:
        return tf.nn.relu(x)

    def relu6(self, x: Tensor) -> Tensor:
        """min(max(x, 0), 6): Howard et al. 2017 (arXiv:1704.04861)."""
        return tf.nn.relu6(x)

    def swish(self, x: Tensor) -> Tensor:
        """x * sigmoid(x), also called SiLU: Ramachandran et al. 2017 (arXiv:1710.05941)."""
        return tf.nn.swish(x)

    def gelu(self, x: Tensor) -> Tensor:
        """x * Phi(x), Phi being the normal distribution function: Hendrycks & Gimpel 2016
        (arXiv:1606.08415).
        """
        return 0.5 * x * (1 + tf.math.erf(x * math.sqrt(0.5)))

    def max_pool(self, x: Tensor, size: int, strides: int, padding: Padding = 'VALID') -> Tensor:
        """The maximum of each window. Padding is never the maximum, even if all values are
        negative.
        """
        explicit = padding if isinstance(padding, str) else self._symmetric_paddings(padding)
        # oneDNN does not take explicit padding, so pad in a separate op. Without a gradient, the
        # float32 copy costs more than oneDNN gains.
        pads_first = 'gpu' not in x.device.lower() and (self.is_training or x.dtype != tf.float32)
        if not isinstance(explicit, str) and pads_first:
            x, explicit = tf.pad(x, explicit, constant_values=-math.inf), 'VALID'
        return tf.nn.max_pool2d(
            x, self._window(size), self._window(strides), explicit, data_format=self._data_format
        )

    def avg_pool(self, x: Tensor, size: int, strides: int, padding: str = 'VALID') -> Tensor:
        """Average pooling; the averages exclude the padding of 'SAME'."""
        return tf.nn.avg_pool2d(
            x, self._window(size), self._window(strides), padding, data_format=self._data_format
        )

    def global_avg_pool(self, x: Tensor) -> Tensor:
        """[N, H, W, C] or [N, C, H, W] -> [N, C], the mean over height and width."""
        return tf.reduce_mean(x, [2, 3] if self._channels_first else [1, 2])

    def pad_same(self, x: Tensor, size: int, strides: int) -> Tensor:
        """Pads as 'SAME' does. The averages of a pooling layer that follows include these zeros."""
        pads = []
        for pixels in self.shape(x)[:2]:
            missing = max((-(-pixels // strides) - 1) * strides + size - pixels, 0)
            pads.append([missing // 2, missing - missing // 2])
        return tf.pad(x, self._paddings(*pads))

    def shift(self, x: Tensor) -> Tensor:
        """Shifts activations one pixel up and one to the left; the last row and column become
        zero.
        """
        begin = [0, 0, 1, 1] if self._channels_first else [0, 1, 1, 0]
        return tf.pad(tf.slice(x, begin, [-1] * 4), self._paddings([0, 1], [0, 1]))

    def shape(self, x: Tensor) -> tuple[int, int, int]:
        """The height, the width and the number of channels of activations."""
        _, *sizes = x.shape.as_list()
        channels, height, width = sizes if self._channels_first else (sizes[2], *sizes[:2])
        return height, width, channels

    def concat(self, branches: Sequence[Tensor]) -> Tensor:
        return tf.concat(branches, 1 if self._channels_first else 3)

    def pad_channels(self, x: Tensor, count: int) -> Tensor:
        no_padding, channel_padding = [0, 0], [0, count - self._num_channels(x)]
        return tf.pad(
            x,
            [no_padding, channel_padding, no_padding, no_padding]
            if self._channels_first
            else [no_padding, no_padding, no_padding, channel_padding],
        )

    def local_response_norm(
        self, x: Tensor, *, radius: int, bias: float, alpha: float, beta: float
    ) -> Tensor:
        """x / (bias + alpha * s) ** beta, s being the sum of squares of the channels at a distance
        of at most radius.

        Krizhevsky et al. 2012 (doi:10.1145/3065386), section 3.3.
        """
        # The kernels support only NHWC, and those for GPUs only float32.
        x = tf.cast(self._to_nhwc(x), tf.float32)
        x = tf.nn.local_response_normalization(x, radius, bias, alpha, beta)
        return self._from_nhwc(tf.cast(x, self._dtype))

    def flatten(self, x: Tensor) -> Tensor:
        """[N, H, W, C] or [N, C, H, W] -> [N, H*W*C]; both data formats give the order of [H, W,
        C].
        """
        x = self._to_nhwc(x)
        return tf.reshape(x, [-1, math.prod(x.shape.as_list()[1:])])

    def dense(
        self,
        x: Tensor,
        units: int,
        name: str,
        *,
        initializer: Initializer = glorot_normal,
        activation: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """A fully connected layer of each image or token: [N, in] -> [N, units], or [N, T, in] ->
        [N, T, units].
        """
        *_, num_tokens, inputs = x.shape.as_list()
        kernel = self._read_variable(f'{name}/kernel', [inputs, units], initializer)
        has_tokens = x.shape.rank == 3
        # One product of all tokens. TensorFlow fuses an activation with the product only if no
        # reshape is between them.
        rows = tf.reshape(x, [-1, inputs]) if has_tokens else x
        y = tf.matmul(rows, kernel, name=self._scoped_name(name))
        y = self._add_bias(y, name, as_op=not has_tokens)
        y = activation(y) if activation else y
        return tf.reshape(y, [-1, num_tokens, units]) if has_tokens else y

    def tokens(self, x: Tensor) -> Tensor:
        """[N, H, W, C] or [N, C, H, W] -> [N, H*W, C], a token of each pixel, row by row."""
        x = self._to_nhwc(x)
        _, height, width, channels = x.shape.as_list()
        return tf.reshape(x, [-1, height * width, channels])

    def class_token(self, x: Tensor, name: str, *, initializer: Initializer) -> Tensor:
        """Puts a learned token before the others: [N, T, C] -> [N, T+1, C]."""
        channels = x.shape.as_list()[-1]
        token = self._read_variable(f'{name}/embedding', [channels], initializer)
        return tf.concat([tf.broadcast_to(token, [tf.shape(x)[0], 1, channels]), x], 1)

    def position_embedding(self, x: Tensor, name: str, *, initializer: Initializer) -> Tensor:
        """Adds a learned token for each position to the tokens [N, T, C].

        The variable is a vector, [T*C], since vectors have no weight decay.
        """
        shape = x.shape.as_list()[1:]
        embedding = self._read_variable(f'{name}/embedding', [math.prod(shape)], initializer)
        return x + tf.reshape(embedding, shape)

    def self_attention(
        self, x: Tensor, num_heads: int, name: str, *, initializer: Initializer = glorot_normal
    ) -> Tensor:
        """Multi-head self-attention of tokens [N, T, C]: Vaswani et al. 2017 (arXiv:1706.03762),
        section 3.2, with biases.

        One product makes queries, keys and values; the columns of its kernel are ordered as [3,
        num_heads, C / num_heads].
        """
        num_tokens, channels = x.shape.as_list()[1:]
        head_channels = channels // num_heads
        x = self.dense(x, 3 * channels, f'{name}/qkv', initializer=initializer)
        x = tf.reshape(x, [-1, num_tokens, 3, num_heads, head_channels])
        query, key, value = tf.unstack(tf.transpose(x, [2, 0, 3, 1, 4]))
        # Scaling the queries takes fewer operations than scaling their products with the keys.
        logits = tf.matmul(query * head_channels**-0.5, key, transpose_b=True)
        weights = tf.cast(tf.nn.softmax(tf.cast(logits, tf.float32)), self._dtype)
        heads = tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3])
        x = tf.reshape(heads, [-1, num_tokens, channels])
        return self.dense(x, channels, f'{name}/output', initializer=initializer)

    def dropout(self, x: Tensor, rate: float) -> Tensor:
        """While training, sets a fraction of the values to zero and scales the others up:
        Srivastava et al. 2014.
        """
        if not self.is_training:
            return x
        if (
            self._channels_first
            and x.shape.rank == 4
            and tf.DeviceSpec.from_string(x.device).device_type == 'CPU'
        ):
            # TensorFlow's dropout selects between x and a scalar, and the pass that converts NCHW
            # for CPUs stops at the scalar. Without oneDNN, no kernel computes gradients of
            # convolutions in NCHW.
            return x * self._drop(tf.ones(tf.shape(x), x.dtype), rate)
        return self._drop(x, rate)

    def drop_path(self, x: Tensor, rate: float) -> Tensor:
        """While training, sets all values of a fraction of the images to zero and scales the other
        images up.

        On a branch beside a shortcut this is stochastic depth: Huang et al. 2016
        (arXiv:1603.09382).
        """
        if not self.is_training or not rate:
            return x
        # The factors of the images, since dropout would pass over all of x twice.
        return x * self._drop(tf.ones([tf.shape(x)[0], *[1] * (x.shape.rank - 1)], x.dtype), rate)

    def _drop(self, x: Tensor, rate: float) -> Tensor:
        self._num_dropouts += 1
        return tf.nn.dropout(x, rate=rate, seed=self._seed + self._num_dropouts)

    def _read_variable(
        self,
        name: str,
        shape: Sequence[int],
        initializer: Initializer,
        *,
        trainable: bool = True,
        dtype: tf.DType | None = None,
    ) -> Tensor:
        scoped_name = self._scoped_name(name)
        if scoped_name in self._names:
            raise NameTakenError(
                f'another layer has a variable {scoped_name}; give each layer a name of its own, '
                'or put it into a cnn.scope'
            )
        self._names.add(scoped_name)
        value = self._variables.read(scoped_name, shape, initializer, trainable=trainable)
        return tf.cast(value, dtype or self._dtype)

    def _add_bias(self, x: Tensor, name: str, *, as_op: bool) -> Tensor:
        """Adds a bias to each channel of activations, or each column of [rows, C].

        as_op: whether to use BiasAdd also while training in bfloat16. On CPUs, its gradient then
        sums in bfloat16, which loses most of the sum over the pixels or tokens of a batch.
        """
        is_image = x.shape.rank == 4
        channels = self._num_channels(x) if is_image else x.shape.as_list()[-1]
        bias = self._read_variable(f'{name}/bias', [channels], zeros)
        if self.is_training and x.dtype == tf.bfloat16 and not as_op:
            return x + (self._per_channel(bias) if is_image else bias)
        return tf.nn.bias_add(x, bias, data_format=self._data_format if is_image else None)

    def _scoped_name(self, name: str) -> str:
        return '/'.join((*self._scopes, name))

    def _to_nhwc(self, x: Tensor) -> Tensor:
        return tf.transpose(x, [0, 2, 3, 1]) if self._channels_first else x

    def _from_nhwc(self, x: Tensor) -> Tensor:
        return tf.transpose(x, [0, 3, 1, 2]) if self._channels_first else x

    def _num_channels(self, x: Tensor) -> int:
        return x.shape.as_list()[1 if self._channels_first else 3]

    def _per_channel(self, values: Tensor) -> Tensor:
        """Reshapes [C] or [N, C] so that it broadcasts against activations."""
        num_channels = values.shape.as_list()[-1]
        return tf.reshape(
            values, [-1, num_channels, 1, 1] if self._channels_first else [-1, 1, 1, num_channels]
        )

    def _window(self, size: int) -> list[int]:
        return [1, 1, size, size] if self._channels_first else [1, size, size, 1]

    def _pad(
        self, x: Tensor, kernel_size: int, strides: int, padding: Padding
    ) -> tuple[Tensor, str]:
        """Converts padding by a number of pixels to 'SAME' or 'VALID', after tf.pad if necessary.

        On a CPU, the gradient of a convolution with explicit padding takes 1.5 times as long.
        """
        if isinstance(padding, str):
            return x, padding
        if strides == 1 and kernel_size == 2 * padding + 1:
            return x, 'SAME'
        if padding == 0:
            return x, 'VALID'
        return tf.pad(x, self._symmetric_paddings(padding)), 'VALID'

    def _symmetric_paddings(self, padding: int) -> list[list[int]]:
        return self._paddings([padding, padding], [padding, padding])

    def _paddings(self, rows: list[int], columns: list[int]) -> list[list[int]]:
        """The paddings argument of tf.pad for [above, below] and [left, right]."""
        no_padding = [0, 0]
        return (
            [no_padding, no_padding, rows, columns]
            if self._channels_first
            else [no_padding, rows, columns, no_padding]
        )
