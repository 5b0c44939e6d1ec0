"""Words in shared memory."""

import mmap

import pytest

from collectives import _core


def test_words_are_where_they_shall_be():
    memory = mmap.mmap(-1, 64)
    words = _core.Words(memory, 16, 3)
    words[0], words[2] = 1, 2**64 - 1
    assert (len(words), [words[i] for i in range(3)]) == (3, [1, 0, 2**64 - 1])
    assert memory[16:24] == (1).to_bytes(8, "little")
    assert memory[:16] == bytes(16)


def test_words_elsewhere_are_refused():
    memory = mmap.mmap(-1, 64)
    for start, count in ((4, 1), (64, 1), (-8, 1), (0, 9)):
        with pytest.raises(ValueError, match="not in the memory"):
            _core.Words(memory, start, count)
    with pytest.raises(IndexError):
        _core.Words(memory, 0, 8)[8]
    with pytest.raises(BufferError):
        _core.Words(bytes(64), 0, 8)
