"""Before any test imports TensorFlow: it says nothing below an error."""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
