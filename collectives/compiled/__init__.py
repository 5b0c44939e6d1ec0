"""Submissions from inside of compiled programs: `tf.function`, `jax.jit`.

In come tensors that a program computes and `GradientOptions` that say how they are reduced; out go
those of all ranks. `tensorflow` and `jax` each have a function `reduced` for that, which takes two
phases in a compiled program: tensors that are ready are submitted while others are computed, and
waited for later; `torch` has one for steps of Keras, which are not compiled. `buckets` decides
which tensors are submitted together and packs them, `phases` and `calls` call back, and bring the
errors of the library out of programs that only pass a text on. Nothing here imports a framework
that the program has not imported.
"""
