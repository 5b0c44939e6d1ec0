# Errors: the causes of failures, the ranks that a call waits for, and checks of these ranks.

import warnings

from collectives.text.origin import levels

cdef double NEARLY = 1.0  # seconds
cdef enum:
    WORDS = 512  # bytes

cdef double STOPPED = 1.0  # seconds between two checks: less may be due to a shared core

cdef str how(error):
    return "stalled in" if isinstance(error, StallError) else "failed in"


cdef str title(Plan plan):
    return plan.source.algorithm.title(plan.source.p, plan.source.root)


cdef str title_of(const Operation *op, Plan plan):
    return f"{announcement(op.announced)}(): {title(plan)}" if op.announced else title(plan)


cpdef double stopped(double looked) noexcept nogil:
    """Return the seconds since `looked` for which this process was stopped: from its shell, by a
    debugger, with its whole job. They do not count as waiting.
    Local.

    Parameters
    ----------
    looked : float
        The time of the last check of the wait, by ``time.monotonic``.
    """
    cdef double since = now() - looked
    return since if since > STOPPED else 0


cdef object trouble(Engine engine, Operation *op, Plan plan, double waited, double timeout):
    """Return the error of an operation that cannot complete, or has waited too long; otherwise
    None. Warn once of a long wait. Between hosts with MPI's messages, only the clock shows a lost
    rank.
    """
    cdef double deadline = engine.deadline(timeout)
    cdef Segment segment = engine.segment
    if is_too_late():
        return too_late()
    try:
        if segment is not None and op.shared.call != NO_CALL:
            segment.check_calls(op.shared.call, op.shared.what)
        if waited > deadline:
            return StallError(
                f"{title_of(op, plan)}: rank {engine.rank} timed out after {deadline:g} s: "
                f"{situation(engine, op)}"
            )
        if segment is not None:
            check_peers(engine, op, plan)
            if op.state.status != RUNNING:
                return None
        if engine.has_mail():
            check_hosts(engine, op, plan)
            if op.state.status != RUNNING:
                return None
            check_words(engine, waited + NEARLY > deadline)
        if segment is not None:
            # A rank that will soon have waited for as long raises its own error.
            why = segment.why()
            if not (why == GAVE_UP_WAITING and waited + NEARLY > deadline):
                segment.check_end()
    except CollectivesError as error:
        return error
    if waited > engine.warning and not op.state.has_warned:
        op.state.has_warned = 1
        text = (
            f"{title_of(op, plan)}: rank {engine.rank} has waited {waited:.{int(waited < 1)}f} s: "
            f"{situation(engine, op)}"
        )
        logs.note("WARNING", text)
        warnings.warn(text, StallWarning, stacklevel=levels())
    return None


cdef int check_peers(Engine engine, Operation *op, Plan plan) except -1:
    """Raise PeerLostError if a rank of this host has died, or has left and is waited for."""
    cdef Segment segment = engine.segment
    gone = segment.lost()
    if not gone or not goes_on(op):
        return 0
    awaited = waited_for(op, segment)
    for rank, pid, in_order in gone:
        if not in_order or rank in awaited:
            # An earlier text of a rank is more precise, and names the first of several dead ranks.
            if segment.why() != LOST or len(gone) > 1:
                segment.check_end()
            how = "has left" if in_order else "has died"
            if engine.has_mail() and not in_order:
                cc_mail_lose(<const cc_context *><uintptr_t>op.comm, rank)
            raise PeerLostError(
                f"{title_of(op, plan)}: rank {rank} (process {pid}) {how} while rank {engine.rank} "
                f"waits: {waiting(engine, op)}"
            )
    return 0


cdef bint goes_on(Operation *op):
    """Advance an operation as far as it goes, since data of ended ranks may be enough. Return
    whether it still waits.
    """
    with nogil:
        lock_in_flight()
        op.state.moved = 1
        while op.state.status == RUNNING and op.state.moved:
            advance(op)
        unlock_in_flight()
    return op.state.status == RUNNING


cdef int check_hosts(Engine engine, Operation *op, Plan plan) except -1:
    """Raise PeerLostError if a rank of another host has died, or has left and is waited for. Only
    messages of a `Mail` show this.
    """
    cdef const cc_context *context = <const cc_context *><uintptr_t>op.comm
    cdef int rank
    if engine.hosts is not None:
        watch_connections()
    gone = [rank for rank in range(context.size) if cc_mail_state(context, rank) != CC_PRESENT]
    if not gone or not goes_on(op):
        return 0
    awaited = waited_for(op, engine.segment)
    for rank in gone:
        in_order = cc_mail_state(context, rank) == CC_LEFT
        if not in_order or rank in awaited:
            raise lost_rank(engine, op, plan, rank, waiting(engine, op))
    return 0


cdef int reason(error) noexcept:
    """Return the code of the reason why a rank gives up with an error, or with None."""
    if isinstance(error, StallError):
        return GAVE_UP_WAITING
    return LOST if isinstance(error, PeerLostError) else GAVE_UP


cdef bytes words_of(str text, error):
    """Return the message of a rank that gives up to those of other hosts: its reason and a text."""
    return bytes([reason(error)]) + text.encode(errors="backslashreplace")[: WORDS - 1]


cdef int check_words(Engine engine, bint is_nearly_late) except -1:
    """Raise if a rank of another host has given up, unless it has only waited for too long and this
    one has waited nearly as long.
    """
    cdef char text[WORDS]
    cdef const cc_context *context = <const cc_context *><uintptr_t>engine.comm
    cdef int64_t nbytes = 0
    cdef int rank = cc_mail_words(context, text, WORDS, &nbytes)
    if engine.hosts is None or rank < 0 or nbytes == 0:
        return 0
    if is_nearly_late and text[0] == GAVE_UP_WAITING:
        return 0
    who = f"rank {rank} on {engine.hosts[rank]}"
    said = text[1:nbytes].decode(errors="replace")
    if text[0] == LOST:
        raise PeerLostError(f"{who} says: {said}")
    raise PeerAbortedError(f"{who} gave up: {said}")


cdef object lost_rank(Engine engine, Operation *op, Plan plan, int rank, str waits):
    """Return the exception for a rank of another host that has ended and is waited for."""
    cdef const cc_context *context
    try:
        check_words(engine, False)  # an earlier text is more precise
    except CollectivesError as error:
        return error
    context = <const cc_context *><uintptr_t>op.comm
    ended = "has left" if cc_mail_state(context, rank) == CC_LEFT else "has died"
    where = f" on {engine.hosts[rank]}" if engine.hosts is not None else ""
    return PeerLostError(
        f"{title_of(op, plan)}: rank {rank}{where} {ended} while rank {engine.rank} waits: "
        f"{waits}{unreached(context, rank)}"
    )


cdef str situation(Engine engine, Operation *op):
    """Return the state of a wait: its round and ranks, and the calls of the ranks of this host."""
    cdef Segment segment = engine.segment
    text = waiting(engine, op)
    if segment is not None and op.shared.call != NO_CALL:
        text = f"{text} (call {op.shared.call + 1}; {'; '.join(segment.doing())})"
    return text + elsewhere(engine, op, segment)


cdef str elsewhere(Engine engine, Operation *op, Segment segment):
    """Return advice for ranks that have started the operation and are outside the library."""
    if progress.wanted or op.announced:  # calls that announce themselves block
        return ""
    awaited = waited_for(op, segment)
    if segment is not None and op.shared.call != NO_CALL:
        awaited -= segment.yet_to_begin(op.shared.call)
    if not awaited:
        return ""
    them = rank_names(sum([1 << rank for rank in awaited]))
    when = "in time" if mailed else "before MPI's own calls"
    cut = ""
    if any([engine.is_elsewhere(rank) for rank in awaited]):
        cut = ". Perhaps a link between the hosts is cut, or a firewall drops messages"
    return (
        f"{cut}. If {them} started this with a nonblocking call, it moves on only inside the "
        f"library: call wait() {when}, or set COLLECTIVES_PROGRESS=thread"
    )


cdef bint hold_still() noexcept:
    """Keep other threads from advancing operations; return whether the lock must be released."""
    if forked or in_flight_owner == pthread_self():
        return False
    with nogil:
        lock_in_flight()
    return True


cdef str waiting(Engine engine, Operation *op):
    """Return the round in which an operation waits, and the ranks that it waits for, as text."""
    cdef bint held = hold_still()
    try:
        return round_and_ranks(engine, op)
    finally:
        if held:
            unlock_in_flight()


cdef str round_and_ranks(Engine engine, Operation *op):
    cdef Segment segment = engine.segment
    cdef const Cursor *cursor
    cdef const Message *message
    cdef int k, slot
    cdef str idle = "nothing was posted"
    if op.state.live == 0 and op.shared.lent:
        readers = [rank for rank in behind(op, segment) if rank != engine.rank]
        parts = [f"for rank {rank} to read its array" for rank in readers]
        return f"it waits {', '.join(parts) or 'for earlier steps'}"
    for k in range(op.window):
        cursor = &op.state.cursors[k]
        if cursor.segment < 0:
            continue
        where = f"round {cursor.round + 1}, segment {cursor.segment + 1} of {op.layout.segments}"
        parts = []
        for slot in range(k * op.plan.slots, (k + 1) * op.plan.slots):
            if cursor.pending and op.transport.is_pending(op.slots.requests, slot):
                message = message_of(op, slot)
                parts.append(pair(engine, message.peer, message.send))
        if op.device != NULL and cursor.round < op.plan.nrounds and not cursor.posted:
            parts.append("for the device to come to the end of the work before")
        silent, late = missing(op, cursor, segment)
        parts += [f"for rank {rank} to send" for rank in silent]
        parts += [f"for rank {rank} to finish earlier steps" for rank in late]
        if parts:
            return f"{where} waits {', '.join(parts)}"
        idle = f"{where} waits for nothing: its data has arrived, and it continues in the next call"
    return idle


cdef str pair(Engine engine, int peer, bint sends):
    """Return the text of a missing message; between hosts, with the names of both."""
    verb = "receive" if sends else "send"
    if not engine.is_elsewhere(peer):
        return f"for rank {peer} to {verb}"
    there, here = engine.hosts[peer], engine.hosts[engine.rank]
    way = "from" if sends else "to"
    return f"for rank {peer} on {there} to {verb} {way} rank {engine.rank} on {here}"


cdef set waited_for(Operation *op, Segment segment):
    """Return the ranks that an operation waits for."""
    cdef bint held = hold_still()
    cdef int k
    ranks = set()
    try:
        if op.state.live == 0 and op.shared.lent:
            ranks.update(behind(op, segment))
        for k in range(op.slots.in_use if op.state.pending else 0):
            if op.transport.is_pending(op.slots.requests, k):
                ranks.add(message_of(op, k).peer)
        for k in range(op.window):
            if op.state.cursors[k].segment >= 0:
                for some in missing(op, &op.state.cursors[k], segment):
                    ranks.update(some)
    finally:
        if held:
            unlock_in_flight()
    return ranks


cdef list behind(const Operation *op, Segment segment):
    """Return the ranks that have not finished the pages of an operation."""
    cdef const cc_segment *pages = op.shared.segment
    cdef uint64_t end = op.shared.page + op.layout.segments
    cdef int i
    return [segment.ranks[i] for i in range(pages.p) if cc_read(&pages.ranks[i].progress) < end]


cdef tuple missing(Operation *op, const Cursor *cursor, Segment segment):
    """Return the ranks that have not published the next operand, and those that still need the
    lane.
    """
    cdef int i
    if op.shared.segment == NULL:
        return [], []
    ranks = [segment.ranks[i] for i in range(segment.c.p) if awaits(op, cursor, i)]
    return (ranks, []) if cursor.started else ([], ranks)


cdef object failure_of(Engine engine, Operation *op, Plan plan):
    """Return the exception for an operation that failed."""
    cdef const Failure *failure = &op.failure
    if failure.cause == MISMATCHED:
        try:
            engine.segment.disagree(op.shared.call)
        except CollectivesError as error:
            return error
    if failure.cause == WRONG_LENGTH or failure.cause == OTHER_MESSAGE:
        error = unlike(engine, op) if op.shared.call != NO_CALL else None
        if error is not None:
            return error
    if failure.cause == DEVICE_FAILED:
        return (<object>op.device).error
    if failure.cause == FOLD_RAISED:
        return (<UserFold>op.fold.user).error
    where = f"{title_of(op, plan)}: rank {engine.rank}, round {failure.round + 1}"
    if failure.cause == UNREADABLE:
        return unreadable(engine.segment, failure, where)
    if failure.cause == OTHER_MESSAGE:
        return MismatchError(f"{where}: {other_message(op)}")
    if failure.cause == WRONG_LENGTH:
        got = "more" if failure.got < 0 else f"{failure.got}"
        said = f"got {got} bytes from rank {failure.peer} where {failure.wanted} were due"
        if failure.wanted < 0:
            said = f"rank {failure.peer} has no room for the whole message of this rank"
        advice = (
            "the ranks did not call the same collective with the same count and dtype "
            "(COLLECTIVES_VALIDATE=1 says who)"
        )
        if is_exchange(op.what):
            advice = "both must pass arrays of one count and dtype"
        return MismatchError(f"{where}: {said}; {advice}")
    if engine.has_mail() and failure.error == CC_MAIL_LOST:
        return lost_rank(engine, op, plan, failure.peer, f"round {failure.round + 1}")
    peer = f", peer {failure.peer}" if failure.peer >= 0 else ""
    if engine.is_elsewhere(failure.peer):
        peer += f" on {engine.hosts[failure.peer]}"
    said = error_text_of(engine.transport, failure.error)
    return MPIError(f"{where}{peer}: {'' if engine.has_mail() else 'MPI says: '}{said}")


cdef str other_message(const Operation *op):
    """Return the difference between a message and the one that was due, in words."""
    cdef const Failure *failure = &op.failure
    cdef uint64_t theirs = failure.heard
    cdef str mine = message_said(op.what)
    cdef str heard = message_said(theirs)
    if is_exchange(theirs) and is_exchange(op.what):
        verbs = ("receives", "sends") if failure.wanted < 0 else ("sends", "receives")
        sizes = ("", "") if failure.wanted < 0 else (
            f" ({failure.got} bytes)", f" ({failure.wanted} bytes)"
        )
        return (
            f"rank {failure.peer} {verbs[0]} {heard}{sizes[0]}, and this rank {verbs[1]} "
            f"{mine}{sizes[1]}; pass arrays of one dtype, or views of their bytes"
        )
    if heard == mine:
        heard += " with other options"
    return (
        f"got a message of {heard} from rank {failure.peer} where one of {mine} was due; the ranks "
        f"did not call the same (COLLECTIVES_VALIDATE=1 says who)"
    )


cdef object unreadable(Segment segment, const Failure *failure, str where):
    """Return the exception for an array in another process that cannot be read or written."""
    cdef int64_t pid = segment.c.ranks[failure.peer].pid
    cdef double limit = now() + 1
    peer = segment.ranks[failure.peer]
    # The memory of an ending process goes a moment before its lock.
    while failure.error != EPERM and segment.is_there(failure.peer) and now() < limit:
        with nogil:
            nanosleep(&NAP_TIME, NULL)
    if not segment.is_there(failure.peer):
        return PeerLostError(
            f"{where}: rank {peer} (process {pid}) has died while its array is in use"
        )
    return CommunicatorError(
        f"{where}: the kernel does not let this rank use the array of rank {peer} (process "
        f"{pid}): {os.strerror(failure.error)}; with COLLECTIVES_SHM_READS=0, arrays are copied"
    )
