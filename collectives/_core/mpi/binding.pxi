# The binding to the MPI that mpi4py has loaded: functions by name, constants from its objects.

# The transport of MPI, of which a process has one, or in a job without MPI that of its messages.
cdef const cc_transport *transport = NULL


cdef uint64_t handle_of(object MPI, object value) except? 0:
    """Return the handle inside an mpi4py object, in 64 bits."""
    cdef uint64_t handle = 0
    cdef uintptr_t address = MPI._addressof(value)
    memcpy(&handle, <void *>address, MPI._sizeof(value))
    return handle


cdef int error_offset(object MPI) except -1:
    """Find the offset of MPI_ERROR in MPI_Status by setting it through mpi4py."""
    cdef uintptr_t address
    cdef int value = 0x5EA12CED
    cdef int offset
    status = MPI.Status()
    status.Set_error(value)
    address = MPI._addressof(status)
    for offset in range(0, MPI._sizeof(status), sizeof(int)):
        if (<int *>(address + offset))[0] == value:
            return offset
    raise ImportError("MPI_Status of this MPI has no MPI_ERROR where mpi4py writes it")


def bind(MPI):
    """Bind to the library behind ``mpi4py.MPI``, which is initialised, and check its identity."""
    global transport
    cdef const char *missing = NULL
    cdef char version[8192]
    cdef int length = 0
    cdef cc_transport *found
    if transport != NULL:
        return
    path = MPI.__file__
    found = cc_mpi_bind(path.encode(), MPI._sizeof(MPI.Comm), &missing)
    if found == NULL:
        if missing == NULL:
            raise ImportError(f"{path} is not loaded in this process")
        raise ImportError(f"{missing.decode()} is in no library behind {path}")
    cc_mpi.byte = handle_of(MPI, MPI.BYTE)
    cc_mpi.request_null = handle_of(MPI, MPI.REQUEST_NULL)
    cc_mpi.undefined = MPI.UNDEFINED
    cc_mpi.any_source = MPI.ANY_SOURCE
    cc_mpi.any_tag = MPI.ANY_TAG
    cc_mpi.world = handle_of(MPI, MPI.COMM_WORLD)
    found.status_size = MPI._sizeof(MPI.Status)
    found.error_offset = error_offset(MPI)
    found.err_in_status = MPI.ERR_IN_STATUS
    found.err_truncate = MPI.ERR_TRUNCATE
    cc_mpi.get_library_version(version, &length)
    if found.status_size > CC_STATUS:
        raise ImportError(f"MPI_Status of this MPI has {found.status_size} bytes")
    ours = version[:length].decode(errors="replace").strip("\0 \n")
    theirs = MPI.Get_library_version().strip("\0 \n")
    found.overruns = theirs.startswith("Open MPI")
    if ours != theirs:
        raise ImportError(
            f"two MPI libraries are in this process: mpi4py uses {theirs!r}, and the first "
            f"MPI_Get_library_version to be found is that of {ours!r}"
        )
    found_rank, found_size = found.rank(cc_mpi.world), found.size(cc_mpi.world)
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    if (found_rank, found_size) != (rank, size):
        raise ImportError(
            f"the MPI functions found say rank {found_rank} of {found_size}, and mpi4py says rank "
            f"{rank} of {size}; the library is {theirs!r}"
        )
    note_threads(MPI)
    transport = found


cdef str error_text_of(const cc_transport *carrier, int code):
    """Return the own text of a transport for an error code."""
    cdef char text[8192]
    cdef int length = 0
    if carrier.error_string(code, text, &length):
        return f"error code {code}"
    return text[:length].decode(errors="replace").strip()
