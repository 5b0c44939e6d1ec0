"""Submissions inside compiled programs: `tf.function`, `jax.jit`.

The inputs are tensors that a program computes, and `GradientOptions` for their reduction; the
outputs are the reduced tensors of all ranks. `tensorflow` and `jax` each have a function `reduced`
for this, which has two phases in a compiled program: tensors that are ready are submitted while
others are computed, and waited for later. `torch` has such a function for steps of Keras, which are
not compiled. `buckets` groups and packs the tensors that are submitted together. `phases` and
`calls` call back into Python, and raise the library's errors outside of programs that only pass a
text on. Nothing here imports a framework that the program has not imported.
"""
