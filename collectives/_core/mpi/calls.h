/* The MPI calls of the executor, for one width of MPI handles.
 *
 * Included once with CC_HANDLE an int (MPICH family) and once with CC_HANDLE a pointer (Open MPI
 * and the standard ABI of MPI 5). The functions are looked up at run time: nothing of MPI is needed
 * to compile this.
 */

static struct {
    int (*isend)(const void *, int, CC_HANDLE, int, int, CC_HANDLE, CC_HANDLE *);
    int (*irecv)(void *, int, CC_HANDLE, int, int, CC_HANDLE, CC_HANDLE *);
    int (*test)(CC_HANDLE *, int *, void *);
    int (*testsome)(int, CC_HANDLE *, int *, int *, void *);
    int (*iprobe)(int, int, CC_HANDLE, int *, void *);
    int (*cancel)(CC_HANDLE *);
    int (*request_free)(CC_HANDLE *);
    int (*get_count)(const void *, CC_HANDLE, int *);
    int (*comm_rank)(CC_HANDLE, int *);
    int (*comm_size)(CC_HANDLE, int *);
} CC_NAME(mpi);

static const char *CC_NAME(lookup)(void *library)
{
    const cc_symbol wanted[] = {
        {"MPI_Isend", &CC_NAME(mpi).isend},
        {"MPI_Irecv", &CC_NAME(mpi).irecv},
        {"MPI_Test", &CC_NAME(mpi).test},
        {"MPI_Testsome", &CC_NAME(mpi).testsome},
        {"MPI_Iprobe", &CC_NAME(mpi).iprobe},
        {"MPI_Cancel", &CC_NAME(mpi).cancel},
        {"MPI_Request_free", &CC_NAME(mpi).request_free},
        {"MPI_Get_count", &CC_NAME(mpi).get_count},
        {"MPI_Comm_rank", &CC_NAME(mpi).comm_rank},
        {"MPI_Comm_size", &CC_NAME(mpi).comm_size},
        {NULL, NULL},
    };
    return cc_find(library, wanted);
}

static inline CC_HANDLE CC_NAME(unpack)(uint64_t handle)
{
    CC_HANDLE result;
    memcpy(&result, &handle, sizeof result);
    return result;
}

static int CC_NAME(send)(uint64_t comm, const void *data, int nbytes, int peer, int tag, void *requests, int slot,
                         uint64_t what)
{
    (void)what; /* MPI's messages have no header of ours */
    return CC_NAME(mpi).isend(data, nbytes, CC_NAME(unpack)(cc_mpi.byte), peer, tag, CC_NAME(unpack)(comm),
                              (CC_HANDLE *)requests + slot);
}

/* An empty receive has room for a byte: without it, Intel MPI takes a longer message as an empty one,
 * and reports no error. */
static int CC_NAME(recv)(uint64_t comm, void *data, int nbytes, int peer, int tag, void *requests, int slot,
                         uint64_t what)
{
    static char spare;
    (void)what;
    if (nbytes == 0) {
        data = &spare;
        nbytes = 1;
    }
    return CC_NAME(mpi).irecv(data, nbytes, CC_NAME(unpack)(cc_mpi.byte), peer, tag, CC_NAME(unpack)(comm),
                              (CC_HANDLE *)requests + slot);
}

static void CC_NAME(clear)(void *requests, int n)
{
    for (int i = 0; i < n; ++i)
        ((CC_HANDLE *)requests)[i] = CC_NAME(unpack)(cc_mpi.request_null);
}

/* Test requests 0..n-1, except null ones; done[0..*count-1] are those that completed, with their
 * statuses. It is one call, and so one turn of MPI's progress engine, for any number of requests. */
static int CC_NAME(poll)(void *requests, int n, int *count, int *done, void *statuses)
{
    int error;
    if (n == 1) {
        done[0] = 0;
        return CC_NAME(mpi).test((CC_HANDLE *)requests, count, statuses);
    }
    error = CC_NAME(mpi).testsome(n, (CC_HANDLE *)requests, count, done, statuses);
    if (*count == cc_mpi.undefined)
        *count = 0;
    return error;
}

/* Give MPI a turn of its progress engine. */
static void CC_NAME(nudge)(uint64_t comm)
{
    _Alignas(16) char status[CC_STATUS];
    int found;
    CC_NAME(mpi).iprobe(cc_mpi.any_source, cc_mpi.any_tag, CC_NAME(unpack)(comm), &found, status);
}

static int CC_NAME(is_pending)(const void *requests, int slot)
{
    return ((const CC_HANDLE *)requests)[slot] != CC_NAME(unpack)(cc_mpi.request_null);
}

static int CC_NAME(length)(const void *status)
{
    int nbytes = -1;
    return CC_NAME(mpi).get_count(status, CC_NAME(unpack)(cc_mpi.byte), &nbytes) ? -1 : nbytes;
}

static int64_t CC_NAME(probe)(uint64_t comm, int peer, int tag)
{
    _Alignas(16) char status[CC_STATUS];
    int found = 0;
    int error = CC_NAME(mpi).iprobe(peer, tag, CC_NAME(unpack)(comm), &found, status);
    return error || !found ? -1 : CC_NAME(length)(status);
}

/* Drop a request that will not be waited for; a receive is cancelled first. */
static void CC_NAME(drop)(void *requests, int slot, int is_send)
{
    CC_HANDLE *request = (CC_HANDLE *)requests + slot;
    if (*request == CC_NAME(unpack)(cc_mpi.request_null))
        return;
    if (!is_send)
        CC_NAME(mpi).cancel(request);
    CC_NAME(mpi).request_free(request);
}

static int CC_NAME(rank)(uint64_t comm)
{
    int rank = -1;
    return CC_NAME(mpi).comm_rank(CC_NAME(unpack)(comm), &rank) ? -1 : rank;
}

static int CC_NAME(size)(uint64_t comm)
{
    int size = -1;
    return CC_NAME(mpi).comm_size(CC_NAME(unpack)(comm), &size) ? -1 : size;
}

/* The fields without a value here are set when MPI is known. */
static cc_transport CC_NAME(transport) = {
    .handle_size = sizeof(CC_HANDLE),
    .send = CC_NAME(send),
    .recv = CC_NAME(recv),
    .clear = CC_NAME(clear),
    .poll = CC_NAME(poll),
    .nudge = CC_NAME(nudge),
    .probe = CC_NAME(probe),
    .is_pending = CC_NAME(is_pending),
    .length = CC_NAME(length),
    .drop = CC_NAME(drop),
    .rank = CC_NAME(rank),
    .size = CC_NAME(size),
};
