"""`python -m tf_cnn_benchmarks`: the command."""

from tf_cnn_benchmarks import main

main()
