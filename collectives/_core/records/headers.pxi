# Declarations of timeline.h, the file in which a process records its calls, and flight.h.

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
    int cc_counter_is_even()
    uint64_t cc_counter(int)
    uint64_t cc_ticks()
    cc_tape *cc_tape_open(int, uint64_t, int)
    void cc_tape_close(cc_tape *, int)
    void cc_tape_clock(cc_tape *)
    cc_record *cc_next_record(cc_tape *, cc_record **, int *)
    void cc_fill(
        cc_record *, int, uint64_t, uint64_t, uint32_t, uint64_t, uint64_t, uint32_t
    )

cdef extern from "_core/records/flight.h" nogil:
    enum:
        CC_F_LAYOUT, CC_F_CALLS, CC_F_PLACES, CC_F_NAME, CC_F_TEXT, CC_F_ABOUT
        CC_F_BLOCKS, CC_F_STARTED, CC_F_ENDED, CC_F_FAILED
    ctypedef struct cc_flight_call:
        uint64_t order
        uint64_t start
        uint64_t end
        uint64_t[3] what
        uint64_t number
        int64_t nbytes
        uint32_t place
        uint32_t state
        char *name
    ctypedef struct cc_flight_place:
        uint64_t turn
        uint64_t first
        uint64_t calls
        uint64_t awaited
        char *wait
        char *about
    ctypedef struct cc_flight:
        uint64_t layout
        uint64_t counts
        uint64_t ticks
        uint64_t ns
        uint64_t made
        uint64_t has_left
        cc_flight_call *calls
        cc_flight_place *places
    uint64_t cc_flight_note(
        cc_flight *, uint32_t, uint64_t, int, const uint64_t *, int64_t, uint32_t, const char *
    )
    void cc_flight_end(cc_flight *, uint64_t, uint32_t, int)
    void cc_flight_say(cc_flight_place *, char *, size_t, const char *)
