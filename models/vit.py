"""Vision Transformer (ViT): Dosovitskiy et al. 2021 (arXiv:2010.11929)."""

from models.catalog import model
from models.layers import LayerBuilder, Tensor, truncated_normal

# Training is that of DeiT: Touvron et al. 2021 (arXiv:2012.12877), which has the same network.
# Table 9: no dropout, stochastic depth, and a learning rate of 0.0005 for 512 images with AdamW,
# proportional to the batch size. As in its code, the rate of stochastic depth grows linearly from
# block to block.
_DROP_PATH = 0.1
_NUM_BLOCKS = 12
_LEARNING_RATE = 0.0005 * 32 / 512
_initializer = truncated_normal(0.02)  # of kernels and embeddings, as in its code


# ViT-S: DeiT, table 1. ViT-B: Dosovitskiy et al. 2021, table 1.
@model(
    'vit_s16',
    'imagenet',
    image_size=224,
    batch_size=32,
    learning_rate=_LEARNING_RATE,
    width=384,
    num_heads=6,
)
@model(
    'vit_b16',
    'imagenet',
    image_size=224,
    batch_size=32,
    learning_rate=_LEARNING_RATE,
    width=768,
    num_heads=12,
)
def vit(cnn: LayerBuilder, x: Tensor, num_classes: int, *, width: int, num_heads: int) -> Tensor:
    """The logits [N, num_classes] of images x, which are divided into patches of 16x16 pixels:
    section 3.1, figure 1.

    Weight decay excludes the embeddings, layer norms and biases, as in the code of DeiT's authors,
    since these variables are vectors.
    """
    x = cnn.conv(x, width, 16, 'patches', strides=16, padding='VALID', initializer=_initializer)
    x = cnn.class_token(cnn.tokens(x), 'class_token', initializer=_initializer)
    x = cnn.position_embedding(x, 'positions', initializer=_initializer)
    for index in range(_NUM_BLOCKS):
        with cnn.scope(f'block{index + 1}'):
            x = _block(cnn, x, num_heads, _DROP_PATH * index / (_NUM_BLOCKS - 1))
    # Only the class token enters the head, so the other tokens need no normalisation.
    x = cnn.layer_norm(x[:, 0], 'final_ln')
    return cnn.dense(x, num_classes, 'logits', initializer=_initializer)


def _block(cnn: LayerBuilder, x: Tensor, num_heads: int, drop_rate: float) -> Tensor:
    """Equations 2 and 3."""
    width = x.shape.as_list()[-1]
    y = cnn.layer_norm(x, 'ln1')
    y = cnn.self_attention(y, num_heads, 'attention', initializer=_initializer)
    x += cnn.drop_path(y, drop_rate)
    y = cnn.layer_norm(x, 'ln2')
    y = cnn.dense(y, 4 * width, 'expand', initializer=_initializer, activation=cnn.gelu)
    y = cnn.dense(y, width, 'project', initializer=_initializer)
    return x + cnn.drop_path(y, drop_rate)
