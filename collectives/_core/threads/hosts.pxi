# Checks of other hosts, for Python.

cdef extern from "<sys/socket.h>" nogil:
    cdef struct sockaddr_storage:
        pass

cdef extern from "_core/threads/hosts.h" nogil:
    int cc_host_address(const char *, const char *, sockaddr_storage *, unsigned int *)
    int cc_host_answers(const sockaddr_storage *, unsigned int, double)
    int cc_watch_host(const char *, const char *, double, int, int, int, const char *)
    int cc_start_thread(unsigned long *, void *(*)(void *) noexcept nogil)
    void cc_watch_begin()
    void cc_watch_end()


def host_answers(address, int port, double seconds):
    """Return whether a host answers a request for a connection, also by refusing it. Local.

    Parameters
    ----------
    address : str
        A numeric address of IPv4 or IPv6.
    port : int
        A port of TCP.
    seconds : float
        The time to wait for an answer.

    Returns
    -------
    bool
    """
    cdef sockaddr_storage place
    cdef unsigned int nbytes
    cdef bytes host = address.encode(), number = str(port).encode()
    cdef const char *at = host
    cdef const char *with_port = number
    cdef bint answers
    if cc_host_address(at, with_port, &place, &nbytes):
        return False
    with nogil:
        answers = cc_host_answers(&place, nbytes, seconds)
    return answers


def watch_host(
    address, int port, double patience, text, bint ends, int launcher, int daemon
):
    """Set the host to watch in a thread, while MPI is finalised at the end of Python, or from
    `watch(True)` to `watch(False)`. When the host has not answered for `patience` seconds, a text
    is written to stderr, and this process ends if `ends`. Local.

    Parameters
    ----------
    address : str
        A numeric address of IPv4 or IPv6.
    port : int
        A port of TCP.
    patience : float
        Seconds.
    text : str
    ends : bool
        Whether this process ends then, with status 1.
    launcher : int
        The descriptor of MPICH's connection to its launcher, which is told of the end; or -1.
    daemon : int
        A process that also gets SIGTERM; or 0.
    """
    cdef bytes host = address.encode(), number = str(port).encode()
    cdef bytes said = text.encode(errors="backslashreplace")
    cc_watch_host(host, number, patience, ends, launcher, daemon, said)


def watch(bint begins):
    """Begin or end to watch the host of `watch_host`, if there is one. Local."""
    if begins:
        cc_watch_begin()
    else:
        cc_watch_end()
