"""Callbacks for ``fit``: those of `collectives.keras.callbacks`, which ``tf_keras`` takes, too."""

from collectives.keras.callbacks import *
