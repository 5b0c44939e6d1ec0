# Declarations of binding.h: MPI's functions as a table, and its constants.

cdef extern from "_core/mpi/binding.h" nogil:
    ctypedef struct cc_transport:
        int handle_size
        int (*send)(uint64_t, const void *, int, int, int, void *, int, uint64_t) noexcept nogil
        int (*recv)(uint64_t, void *, int, int, int, void *, int, uint64_t) noexcept nogil
        void (*clear)(void *, int) noexcept nogil
        int (*poll)(void *, int, int *, int *, void *) noexcept nogil
        void (*nudge)(uint64_t) noexcept nogil
        int64_t (*probe)(uint64_t, int, int) noexcept nogil
        int (*is_pending)(const void *, int) noexcept nogil
        int (*length)(const void *) noexcept nogil
        void (*drop)(void *, int, int) noexcept nogil
        int (*rank)(uint64_t) noexcept nogil
        int (*size)(uint64_t) noexcept nogil
        int status_size
        int error_offset
        int err_in_status
        int overruns
        int err_truncate
        int err_other
        uint64_t (*heard)(const void *) noexcept nogil
        int (*error_class)(int, int *) noexcept nogil
        int (*error_string)(int, char *, int *) noexcept nogil

    struct cc_mpi_t "cc_mpi":
        uint64_t byte
        uint64_t request_null
        int undefined
        int any_source
        int any_tag
        uint64_t world
        int (*get_library_version)(char *, int *) noexcept nogil

    enum:
        CC_STATUS
    cc_mpi_t cc_mpi
    cc_transport *cc_mpi_bind(const char *, int, const char **)
