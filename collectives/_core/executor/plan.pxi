# Plans: programs as arrays of C, and the class that owns their memory.

from array import array
from itertools import chain

# Memory spaces of a program; the numbers are schedule.IN, OUT, WORK, TMP, and program.SLOT.
cdef enum:
    NOWHERE = -1
    IN = 0
    OUT = 1
    WORK = 2
    TMP = 3
    SLOT = 4

# One row of each table of a program: the fields of program.RoundRow and its neighbours, in order.
cdef struct Round:
    int32_t message, messages_end, step, steps_end

cdef struct Message:
    int32_t send, peer, space, first, blocks, home_space, home
    int32_t is_late  # whether a step posts it, if it is needed

cdef struct Step:
    int32_t dst_space, dst, publication, blocks, home_space, home, after_sends, is_final
    int32_t lends  # bits: 1 if it may when the caller's arrays are apart, 2 if when they are one
    int32_t push, pushes_end
    int32_t operand, operands_end
    int32_t message  # -1, or the late one for a block for which no page has room

cdef struct Push:
    int32_t peer  # the rank whose output the result of the step goes to, too
    int32_t after  # the publication of the peer after which it may
    int32_t when  # bits, as of Step.lends: the conditions on the peer's arrays

cdef struct Operand:
    int32_t space, first, peer, need
    int32_t folds  # number of folds after it, of the last two values; -1: one, with it on the left

cdef Round a_round
cdef Message a_message
cdef Step a_step
cdef Operand an_operand
cdef Push a_push

cdef struct Packed:
    Round *rounds
    Message *messages
    Step *steps
    Operand *operands
    Push *pushes
    int nrounds
    int slots  # most messages in one round
    int sends  # whether rounds post messages
    int scaled  # whether final steps write the whole output


@cython.final
cdef class Plan:
    """A plan in C: one program for whole buffers and one for segmented ones."""

    cdef Packed whole
    cdef Packed split
    cdef int cut, tmp
    cdef int lines  # most publications of a rank; 0: nothing goes through shared memory
    cdef int64_t room  # bytes that a publication may have on every host; 0: any number
    cdef int width  # most operands, or pushes, of a step
    cdef int span  # most blocks of intermediate results of a step
    # The number of the block for each place in a space: IN, OUT, WORK.
    cdef int32_t *blocks[3]
    cdef int places[3]
    cdef bint has_parcels
    cdef bint is_source  # whether the rank reads nothing of others
    cdef readonly object source

    def __cinit__(self, source, whole, split, int64_t room=0):
        cdef int space
        self.source = source
        self.cut = source.cut
        self.tmp = source.tmp
        self.lines = split.lines
        self.room = room
        self.width = max(whole.width, split.width, whole.reach, split.reach)
        self.span = max(whole.span, split.span)
        self.has_parcels = len(source.parcels) > 0
        self.is_source = all(each.send for part in source.rounds for each in part.messages)
        for space, blocks in enumerate((source.held(), source.wanted(), source.workspace())):
            self.places[space] = len(blocks)
            self.blocks[space] = <int32_t *>copied(array("i", blocks))
        pack(&self.whole, whole)
        pack(&self.split, split)

    def __dealloc__(self):
        cdef int space
        for space in range(3):
            PyMem_Free(self.blocks[space])
        unpack(&self.whole)
        unpack(&self.split)


cdef void *copied(object rows) except NULL:
    """Return a new copy of an array of C ints."""
    cdef const int[::1] view = rows
    cdef size_t nbytes = view.shape[0] * sizeof(int)
    cdef void *memory = PyMem_Malloc(nbytes if nbytes else 1)
    if memory == NULL:
        raise MemoryError
    if nbytes:
        memcpy(memory, &view[0], nbytes)
    return memory


cdef void *table_of(object rows, size_t row_bytes) except NULL:
    """Return the rows of a table of a program as C structs."""
    flat = array("i", chain.from_iterable(rows))
    if len(flat) * sizeof(int32_t) != len(rows) * row_bytes:
        raise ValueError(f"rows of {row_bytes} bytes cannot be made of {type(rows[0]).__name__}")
    return copied(flat)


def program_fields():
    """Return the names of the fields of each table of a program, as the core has them. Local."""
    return {
        "rounds": tuple(a_round), "messages": tuple(a_message), "steps": tuple(a_step),
        "operands": tuple(an_operand), "pushes": tuple(a_push),
    }


cdef int pack(Packed *packed, object program) except -1:
    cdef int i, k
    packed.rounds = <Round *>table_of(program.rounds, sizeof(Round))
    packed.messages = <Message *>table_of(program.messages, sizeof(Message))
    packed.steps = <Step *>table_of(program.steps, sizeof(Step))
    packed.operands = <Operand *>table_of(program.operands, sizeof(Operand))
    packed.pushes = <Push *>table_of(program.pushes, sizeof(Push))
    packed.nrounds = len(program.rounds)
    packed.scaled = program.scaled
    packed.slots = packed.sends = 0
    for i in range(packed.nrounds):
        packed.slots = max(packed.slots, packed.rounds[i].messages_end - packed.rounds[i].message)
        for k in range(packed.rounds[i].message, packed.rounds[i].messages_end):
            packed.sends |= not packed.messages[k].is_late
    return 0


cdef void unpack(Packed *packed) noexcept:
    PyMem_Free(packed.rounds)
    PyMem_Free(packed.messages)
    PyMem_Free(packed.steps)
    PyMem_Free(packed.operands)
    PyMem_Free(packed.pushes)
