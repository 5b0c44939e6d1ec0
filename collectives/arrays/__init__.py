"""Arrays of all kinds that callers may pass: `buffers`, `frameworks`.

The functions turn the argument of a caller into a NumPy view, a DLPack capsule, or a new array of
the same kind, or into an error that says what to pass instead. No framework is imported, no element
is read, and nothing is sent.
"""
