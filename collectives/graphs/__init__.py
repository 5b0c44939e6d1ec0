"""Submissions from inside of compiled programs: `tf.function`, `jax.jit`.

In come tensors that a program computes and `terms` that say how they are reduced; out go those of
all ranks. `tensorflow` and `jax` each have a function `reduced` for that, which takes two phases in
a compiled program: what is ready is submitted while the rest is computed, and waited for later.
`buckets` decides what is submitted together and packs it, and `kept` brings the errors of the
library out of programs that only pass a text on. Nothing here imports a framework that the program
has not imported.
"""
