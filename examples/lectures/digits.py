"""Handwritten digits for the programs beside it: 1797 pictures of 8 by 8, from scikit-learn.

Without scikit-learn, they are made up: ten random pictures with noise.
"""

import numpy as np

TESTED = 297  # pictures


def load():
    """Return the pictures and labels for training, and those for the test."""
    try:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        images = images / 16
    except ImportError:
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 10, 1797)
        images = rng.random((10, 64))[labels] + rng.normal(0, 0.3, (1797, 64))
    images = images.reshape(-1, 8, 8, 1).astype(np.float32)
    labels = labels.astype(np.int64)
    return (images[:-TESTED], labels[:-TESTED]), (images[-TESTED:], labels[-TESTED:])
