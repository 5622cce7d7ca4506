"""Peers: scripts that do the same work with other software, and print images/sec for `compare`.

The scripts for ResNet-50 take the same step as `--model=resnet50 --device=cpu`:

- the network of He et al. 2015 with the strides in the first convolution of a block (3.86 billion
  multiply-adds, as in keras.applications; torchvision has v1.5 with 4.09), and 1001 classes;
- random images that are in memory before the first step;
- fp32 variables, and bf16 activations with --precision=bf16;
- weight decay of kernels, and gradient descent without momentum.

pytorch.py has ViT too, with the layers, the parameters and the stochastic depth of this program's.
With --data_dir, plain_tensorflow.py trains `trivial` on records.
"""
