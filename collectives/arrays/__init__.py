"""Arrays of all kinds that callers may pass: `buffers`, `frameworks`.

The functions turn the argument of a caller into a NumPy view, a DLPack capsule, or a new array of
the same kind, or raise an error that names the accepted kinds. No framework is imported, no element
is read, and nothing is sent.
"""
