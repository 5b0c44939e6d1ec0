# Messages without MPI, and a transport that sends them: the declarations of mail.h and wire.h.

cdef extern from "_core/ucx/ucp.h" nogil:
    ctypedef signed char cc_ucs_status

    ctypedef struct cc_ucp_functions:
        void (*get_version)(unsigned *, unsigned *, unsigned *)
        const char *(*status_string)(cc_ucs_status)
        cc_ucs_status (*worker_get_address)(void *, void **, size_t *)
        void (*worker_release_address)(void *, void *)

    cc_ucp_functions cc_ucp
    const char *cc_ucp_load(const char *)

cdef extern from "_core/mail/mail.h" nogil:
    enum:
        CC_PRESENT
        CC_LEFT
        CC_MAIL_LOST

    ctypedef struct cc_peer:
        int state
        char *address
        void *endpoint
        uint64_t come

    ctypedef struct cc_mail:
        int me, p
        cc_context *contexts
        void *worker
        int token
        cc_peer *peers

    ctypedef struct cc_context:
        cc_context *next
        cc_mail *mail
        uint64_t id
        int rank, size
        int *ranks

    ctypedef struct cc_letter:
        pass

    ctypedef struct cc_mail_status:
        int error
        int64_t nbytes

    size_t cc_mail_bytes(int, int64_t)
    cc_mail *cc_mail_open(char *, int, int, int64_t, const int *)
    void cc_mail_close(cc_mail *)
    cc_context *cc_context_new(cc_mail *, uint64_t, int, const int *)
    cc_letter *cc_mail_send(const cc_context *, const void *, int64_t, int, int, uint64_t)
    cc_letter *cc_mail_recv(const cc_context *, void *, int64_t, int, int, uint64_t)
    int cc_mail_sender(const cc_context *, int, int, int)
    int cc_mail_state(const cc_context *, int)
    int cc_mail_is_unreached(const cc_context *, int)
    void cc_mail_give_up(const cc_context *, const char *, int64_t)
    int cc_mail_words(const cc_context *, char *, int64_t, int64_t *)
    void cc_mail_turn(cc_mail *)
    void cc_mail_lose(const cc_context *, int)
    int cc_letter_test(cc_letter *, cc_mail_status *)
    int cc_letter_drop(cc_letter *)
    const cc_transport cc_mail_transport

cdef extern from "_core/ucx/wire.h" nogil:
    const char *cc_wire_open(cc_mail *, cc_ucs_status *)
    unsigned char *cc_wire_ports
    void cc_wire_watch()
    void cc_wire_leave(cc_mail *, double)
