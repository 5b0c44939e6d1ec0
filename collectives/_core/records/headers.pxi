# Declarations of timeline.h: the file in which a process records its calls.

cdef extern from "_core/records/timeline.h" nogil:
    enum:
        CC_T_CALL, CC_T_FAILED, CC_T_QUEUE, CC_T_WAIT, CC_T_AWAIT, CC_T_COPY, CC_T_FOLD
        CC_T_PUBLISH, CC_T_TAKE, CC_T_POST, CC_T_SENT, CC_T_RECEIVED
        CC_T_NEGOTIATE, CC_T_TURN, CC_T_COPY_IN, CC_T_COMMUNICATE, CC_T_COPY_OUT
        CC_T_KIND
    ctypedef struct cc_record:
        uint64_t start
        uint64_t size
        uint32_t call
        uint64_t span
    ctypedef struct cc_tape_head:
        uint64_t full
    ctypedef struct cc_tape:
        cc_tape_head *head
        uint32_t calls
    uint64_t cc_ticks()
    cc_tape *cc_tape_open(int, uint64_t, int)
    void cc_tape_close(cc_tape *, int)
    void cc_tape_clock(cc_tape *)
    cc_record *cc_next_record(cc_tape *, cc_record **, int *)
    void cc_fill(
        cc_record *, int, uint64_t, uint64_t, uint32_t, uint64_t, uint64_t, uint32_t
    )
