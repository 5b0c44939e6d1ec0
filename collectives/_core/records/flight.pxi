# The flight recorder: calls of this process go on record, and those of any process are read.

import json

from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap

from collectives.text.origin import place as place_of_caller

cdef enum:
    SHOWN = 100  # calls

cdef cc_flight unseen  # until start_flight()
cdef cc_flight *flight = &unseen
cdef cc_own_file flight_file
flight_file.file = -1

cdef object flight_writer = None  # see write_flights()

# The texts of calls, by their fingerprints and peers.
cdef dict call_texts = {}


def start_flight(int file):
    """Record calls from now on in an empty file, or with -1 in memory that only this process has.
    Local.

    The file belongs to the core afterwards.
    """
    global flight
    cdef int kind = MAP_SHARED if file >= 0 else MAP_SHARED | MAP_ANONYMOUS
    cdef cc_flight *made = <cc_flight *>mmap(
        NULL, sizeof(cc_flight), PROT_READ | PROT_WRITE, kind, file, 0
    )
    if made == MAP_FAILED or file >= 0 and cc_own(&flight_file, file):
        raise MemoryError
    made.counts = cc_counter_is_even()
    made.ticks, made.ns = cc_counter(<int>made.counts), cc_nanoseconds()
    cc_write(&made.layout, CC_F_LAYOUT)
    flight = made


def flight_bytes():
    """Return the size of the file for `start_flight`. Local."""
    return sizeof(cc_flight)


def has_even_counter():
    """Return whether the processor's counter has a constant rate, equal on all cores. Local."""
    return bool(cc_counter_is_even())


cdef inline int note_start(Engine engine, Call call) except -1:
    """Record the start of a call, before other ranks of the host see it."""
    cdef Operation *op = call.op
    cdef bint counted = not is_exchange(op.what)
    cdef bytes text = None
    cdef const char *name = NULL
    if call.name is not None:
        text, call.name = call.name.encode(errors="replace"), None
        name = text
    op.order = cc_flight_note(
        flight, engine.place, engine.sequence + 1 if counted else peers_of(op), counted,
        op.shared.what, op.nbytes, CC_F_BLOCKS if call.given.blocking else CC_F_STARTED, name,
    )
    return 0


cdef uint64_t peers_of(const Operation *op) noexcept:
    """Return 1 + the rank that gets a message, and above 1 + the one that sends one; 0 is none."""
    cdef const Message *message
    cdef uint64_t peers = 0
    cdef int k
    for k in range(op.plan.rounds[0].messages_end if op.plan.nrounds else 0):
        message = &op.plan.messages[k]
        peers |= <uint64_t>(message.peer + 1) << (0 if message.send else 32)
    return peers


cdef int tell(Engine engine, dict words) except -1:
    """Write the state of a wait for readers of the record; nothing if it has ended."""
    cdef cc_flight_place *place
    cdef bytes text = json.dumps(words, ensure_ascii=False).encode(errors="replace")
    if engine.place and not forked and len(text) < CC_F_TEXT:
        place = &flight.places[engine.place]
        cc_flight_say(place, place.wait, CC_F_TEXT, text)
    return 0


cdef int tell_wait(Engine engine, Operation *op, double waited) except -1:
    """Record once a second what an operation has waited for."""
    if waited < NEARLY:
        engine.told = 0
        return 0
    if waited < engine.told + NEARLY:
        return 0
    engine.told = waited
    return tell(engine, {
        "since": cc_nanoseconds() - <uint64_t>(1e9 * waited),
        "waits": waiting(engine, op)[:300],
        "for": sorted(waited_for(op, engine.segment))[:48],
        "line": line_of_caller(),
    })


cdef str line_of_caller():
    cdef str line
    try:
        line = place_of_caller()
    except ValueError:  # no Python code has called
        return ""
    return line[max(0, len(line) - 100):]


cdef int end_long_wait(Engine engine, uint64_t order) except -1:
    """Note the end of a wait that others have seen."""
    hide_wait(engine)
    cc_flight_end(flight, order, CC_F_ENDED, True)
    return tell(engine, {})


def write_flights(write):
    """Set the function that writes the last calls to a file when a call has failed. Local.

    It gets the processes of the ranks of this host and the text of the error, and returns the path.
    With None, none are written.
    """
    global flight_writer
    flight_writer = write


cdef int await_file(Segment segment) noexcept:
    """Wait until another rank has read the last calls of this one, which may end now."""
    cdef double end = now() + NEARLY
    with nogil:
        while not cc_are_written(&segment.c) and now() < end:
            nanosleep(&NAP_TIME, NULL)
    return 0


cdef str name_file(Engine engine, error, str why):
    """Write the last calls of the ranks of this host, if this is the first one to fail, and name
    the file in the error. Return the error's text for other ranks.
    """
    cdef Segment segment = engine.segment
    cdef int i
    if flight_writer is None:
        return why
    if segment is not None and not cc_is_to_write(&segment.c):
        await_file(segment)
        return why
    found = [os.getpid()]
    if segment is not None:
        found = [segment.c.ranks[i].pid for i in range(segment.c.p)]
    try:
        path = flight_writer(found, why)
    except Exception as problem:
        logs.note("WARNING", f"the last calls could not be written: {error_text(problem)}")
        return why
    finally:
        if segment is not None:
            cc_have_written(&segment.c)
    named = f" (the last calls of each rank: collectives status {path})"
    if isinstance(error, CollectivesError):
        error.args = (f"{error}{named}",)
    elif hasattr(error, "add_note"):  # an interrupt, from Python 3.11 on
        error.add_note(named.strip(" ()"))
    return why + named


# ---- the records of any process ------------------------------------------------------------------


cdef str flight_text(const cc_flight_place *place, const char *text):
    """Return a text of a place; nothing if it is written all the time."""
    cdef uint64_t turn
    cdef bytes copied
    for _ in range(10):
        turn = cc_read(&place.turn)
        copied = text
        cc_fence()
        if turn % 2 == 0 and place.turn == turn:
            return copied.decode(errors="replace")
    return ""


cdef str call_said(const uint64_t *what, uint64_t number):
    """Return a call on record in words."""
    cdef tuple key = (what[0], what[1], what[2], number if is_exchange(what[0]) else 0)
    if key in call_texts:
        return call_texts[key]
    if is_exchange(what[0]):
        ends = ("dest", number & 0xFFFFFFFF), ("source", number >> 32)
        ways = [f"{name}={rank - 1}" for name, rank in ends if rank]
        kind = "sendrecv" if len(ways) == 2 else "send" if number & 0xFFFFFFFF else "recv"
        size = f"count={what[1]}", f"dtype={dtype_said(what[0])}"
        call_texts[key] = f"{kind}({', '.join([*size, *ways])})"
    else:
        call_texts[key] = called(what)
    return call_texts[key]


def read_flight(memory, uint64_t now):
    """Return the record of a process as a dict. Local.

    Parameters
    ----------
    memory : buffer
        The file that another process has passed to `start_flight`, mapped.
    now : int
        ``time.monotonic_ns()``.

    Returns
    -------
    dict
        ``layout``; if it is that of this library, also ``has_left``, ``places`` and ``calls``, the
        latest ones, the last one last. Times are seconds before `now`.
    """
    cdef Py_buffer view
    cdef const cc_flight *f
    cdef cc_flight_call call
    cdef uint64_t ticks, ns, order, made, layout
    cdef double rate, lag
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    try:
        f = <const cc_flight *>view.buf
        layout = cc_read(&f.layout) if view.len >= <Py_ssize_t>sizeof(uint64_t) else 0
        if layout != CC_F_LAYOUT or view.len < <Py_ssize_t>sizeof(cc_flight):
            return {"layout": layout}
        made = cc_read(&f.made)
        ticks, ns = cc_counter(<int>f.counts), cc_nanoseconds()
        rate = 1e-9 * <double>(ns - f.ns) / max(<double>(ticks - f.ticks), 1)
        lag = 1e-9 * <double>(<int64_t>(ns - now))
        calls = []
        for order in range(max(made, <uint64_t>SHOWN) - SHOWN + 1, made + 1):
            call = f.calls[order % CC_F_CALLS]
            cc_fence()
            if call.order != order or cc_read(&f.calls[order % CC_F_CALLS].order) != order:
                continue  # it is being written
            calls.append({
                "order": order, "place": call.place, "number": call.number, "bytes": call.nbytes,
                "state": ("blocks", "started", "ended", "failed")[<int>call.state - 1],
                "name": (<const char *>call.name).decode(errors="replace"),
                "kind": call_said(call.what, call.number).partition("(")[0],
                "call": call_said(call.what, call.number),
                "words": [f"{call.what[i]:x}" for i in range(3)],
                "began": rate * <double>(<int64_t>(ticks - call.start)) - lag,
                "ended": rate * <double>(<int64_t>(ticks - call.end)) - lag if call.end else None,
            })
        return {
            "layout": layout, "has_left": bool(f.has_left), "calls": calls,
            "places": [flight_place(&f.places[i], i, now) for i in range(CC_F_PLACES)
                       if f.places[i].about[0]],
        }
    finally:
        PyBuffer_Release(&view)


cdef dict flight_place(const cc_flight_place *place, int number, uint64_t now):
    """Return the state of a communicator on record."""
    wait = json.loads(flight_text(place, place.wait) or "{}")
    if "since" in wait:
        wait["since"] = 1e-9 * <double>(<int64_t>(now - <uint64_t>wait["since"]))
    return {
        "place": number, "about": flight_text(place, place.about), "first": place.first,
        "calls": cc_read(&place.calls), "awaited": cc_read(&place.awaited), "wait": wait,
    }
