"""Arrays of every kind, as the core asks about them: `buffers`, `frameworks`.

In comes what a caller passed as an array; out goes a NumPy view, a DLPack capsule, a new array of
the caller's kind, or an error that says what to pass. No framework is imported, no element is
read, and nothing is sent.
"""
