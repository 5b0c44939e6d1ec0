"""Horovod's elastic interface for models of Keras: that of `collectives.keras.elastic`."""

from collectives.keras.elastic import *
