# Declarations of segment.h, the memory that the ranks of a host share, and process.h.

cdef extern from "_core/shared/process.h" nogil:
    ctypedef struct cc_own_file:
        int file
    int cc_process_stat(const char *, int64_t *, char *, uint64_t *)
    uint64_t cc_process_space(uint64_t *)
    int cc_process_runs(int64_t, uint64_t, uint64_t, uint64_t)
    int cc_own(cc_own_file *, int)
    void cc_disown(cc_own_file *)

cdef extern from "_core/shared/distance.h" nogil:
    ctypedef struct cc_distance:
        int is_far

cdef extern from "_core/shared/board.h" nogil:
    enum:
        CC_BOARDS, CC_TRIALS
    ctypedef struct cc_trial:
        uint64_t began
        uint64_t ended
        uint64_t source_began
        uint64_t source_ended
        uint32_t spoiled
        uint32_t preempted
    ctypedef struct cc_watch:
        double usual
    ctypedef struct cc_board:
        cc_trial *trials
    void cc_note_preempted(cc_trial *)
    void cc_begin_watch(cc_board *, cc_watch *, double, double)
    void cc_watch_call(cc_board *, cc_watch *, double, double)
    int cc_all_doubt(const cc_board *, int)
    void cc_note_trial(cc_trial *, uint64_t, uint64_t, int)
    uint32_t cc_noted(const cc_trial *)
    int64_t cc_decided(const cc_board *, uint32_t)
    uint32_t cc_decide(cc_board *, uint32_t, uint32_t)

cdef extern from "_core/shared/reading.h" nogil:
    int cc_read_process(int64_t, void *, uint64_t, size_t)
    int cc_write_process(int64_t, uint64_t, const void *, size_t)
    int cc_is_readable(int64_t, const char *, size_t)
    void cc_allow_reads()

cdef extern from "_core/shared/ring.h" nogil:
    ctypedef struct cc_ring:
        pass
    ctypedef struct cc_run:
        int64_t first
        int64_t room
        int64_t slots
    void cc_ring_open(cc_ring *, int64_t, int64_t)
    void cc_ring_take(cc_ring *, uint64_t, int64_t, int64_t, cc_run *)
    uint64_t cc_run_needs(const cc_run *, uint64_t, int64_t)

cdef extern from "_core/shared/heap.h" nogil:
    enum:
        CC_LEAST
    ctypedef struct cc_heap:
        size_t nbytes
        size_t all_kept
        size_t used
        size_t limit
    size_t cc_heap_limit
    int cc_heap_error
    cc_heap *cc_heap_now()
    cc_heap *cc_heap_open(size_t)
    cc_heap *cc_heap_of(const void *)
    void *cc_heap_malloc(size_t, int)
    void cc_free_block(cc_heap *, void *)
    size_t cc_room_of(const cc_heap *, const void *)
    size_t cc_room_for(size_t)
    int cc_heap_lends(const char *, size_t)

cdef extern from "_core/shared/segment.h" nogil:
    enum:
        CC_INLINE, CC_LANES, CC_CALLS, CC_TEXT, CC_TO, CC_WINDOWS, CC_PAYLOADS, CC_RESULTS
        CC_LENDS, CC_BY_LIBRARY, CC_OFFSET_BITS
    uint64_t CC_OFFSET, CC_KERNEL_REFERENCE, CC_HAS_ASIDE
    ctypedef struct cc_window:
        char *base
        char *mine
        size_t nbytes
    ctypedef struct cc_publication:
        uint64_t[3] what
        uint64_t where
        uint64_t nbytes
        char *payload
    ctypedef struct cc_aside:
        uint64_t output
        uint64_t way
        uint64_t pushed
        uint64_t event
    ctypedef struct cc_rank_area:
        uint64_t progress
        uint64_t started
        uint64_t ended
        int64_t core
        int64_t pid
        uint64_t space
        uint64_t began
        int64_t gone
        uint64_t starts
        uint64_t waits
        uint64_t heap_bytes
        uint64_t heap_file
        uint64_t heap_inode
        uint64_t maps
        int64_t reads
        uint64_t ping
        uint64_t pong
    ctypedef struct cc_shared:
        uint64_t why
        uint64_t given_up
        uint64_t heaps
        uint64_t call
        char *text
    ctypedef struct cc_segment:
        cc_shared *shared
        cc_rank_area *ranks
        size_t nbytes
        int p
        int me
        int nlines
        int reads
        int64_t lane_bytes
        uint64_t next
        char *memory
        cc_ring ring
        cc_distance distance
        cc_board *boards
        uint64_t calls
        cc_window *windows
        int nwindows
        char **heaps
        uint64_t heaps_seen
        int heap_is_mapped
    uint64_t cc_read(const uint64_t *)
    void cc_write(uint64_t *, uint64_t)
    void cc_fence()
    void cc_pause()
    void cc_fence_streams()
    size_t cc_segment_bytes(int, int, int64_t)
    int cc_segment_open(cc_segment *, void *, int, int, int, int64_t)
    void cc_segment_populate(cc_segment *)
    int cc_ring_window(int)
    void cc_segment_move_rings(cc_segment *, char *const *, int64_t)
    void cc_segment_close(cc_segment *)
    int cc_window_of(const cc_segment *, const char *, size_t)
    cc_publication *cc_line_of(const cc_segment *, int, uint64_t, int)
    int cc_all_finished(cc_segment *, uint64_t)
    void cc_finish(cc_segment *, uint64_t)
    const cc_publication *cc_published(const cc_segment *, int, uint64_t, int)
    uint64_t cc_reference(const cc_segment *, int, const char *)
    char *cc_address(const cc_segment *, int, uint64_t)
    int64_t cc_length(const cc_publication *)
    const char *cc_payload(const cc_segment *, int, const cc_publication *)
    const cc_aside *cc_aside_of(const cc_publication *)
    void cc_publish(
        cc_segment *, cc_publication *, uint64_t, const uint64_t *, uint64_t, uint64_t,
        const cc_aside *,
    )
    int cc_same(const uint64_t *, const uint64_t *)
    int cc_history_differs(const cc_segment *, int, uint64_t)
    uint64_t cc_mixed(uint64_t, uint64_t)
    uint64_t cc_bits(double)
    void cc_begin_call(cc_segment *, const uint64_t *, uint64_t *)
    void cc_end_call(cc_segment *, uint64_t)
    void cc_leave_call(cc_segment *, uint64_t)
    int cc_call_of(const cc_segment *, int, uint64_t, uint64_t *)
    uint64_t cc_flag(int, uint64_t)
    int cc_flag_comes(const uint64_t *, uint64_t, int, int, int)
    int cc_heap_is_mapped(cc_segment *, const cc_heap *)
    uint64_t cc_heap_reference(const char *, size_t)
    int cc_is_to_write(cc_segment *)
    void cc_have_written(cc_segment *)
    int cc_are_written(const cc_segment *)
    void cc_give_up(cc_segment *, uint64_t, uint64_t, const char *)
