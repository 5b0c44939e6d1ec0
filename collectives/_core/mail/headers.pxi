# What transport.h offers: messages in shared memory, and a transport that sends them.

cdef extern from "_core/mail/transport.h" nogil:
    ctypedef struct cc_mail:
        int me, p

    ctypedef struct cc_context:
        uint64_t id
        int rank, size

    ctypedef struct cc_letter:
        pass

    ctypedef struct cc_mail_status:
        int error
        int64_t nbytes

    size_t cc_mail_bytes(int, int64_t)
    cc_mail *cc_mail_open(char *, int, int, int64_t)
    void cc_mail_close(cc_mail *)
    cc_context *cc_context_new(cc_mail *, uint64_t, int, const int *)
    cc_letter *cc_mail_send(const cc_context *, const void *, int64_t, int, int)
    cc_letter *cc_mail_recv(const cc_context *, void *, int64_t, int, int)
    int cc_mail_sender(const cc_context *, int)
    int cc_letter_test(cc_letter *, cc_mail_status *)
    void cc_letter_drop(cc_letter *)
    const cc_transport *cc_mail_bind()
