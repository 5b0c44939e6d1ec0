# Errors: the causes of failures, the ranks that a call waits for, and checks of these ranks.

import warnings
from threading import active_count

from collectives.text.origin import levels
from collectives.text.words import plural

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
                f"{situation(engine, op, plan)}"
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
            why = segment.why()
            if why and not goes_on(op):  # the others gave up in a later call
                return None
            # A rank that will soon have waited for as long raises its own error.
            if not (why == GAVE_UP_WAITING and waited + NEARLY > deadline):
                segment.check_end()
    except CollectivesError as error:
        return error
    if op.state.has_warned or waited <= min(engine.warning, NEARLY):
        return None
    if waited > engine.warning or deadlock(engine, op, plan, waited_for(op, segment)):
        op.state.has_warned = 1
        text = (
            f"{title_of(op, plan)}: rank {engine.rank} has waited {waited:.{int(waited < 1)}f} s: "
            f"{situation(engine, op, plan)}"
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
            if engine.has_mail() and not in_order:
                cc_mail_lose(<const cc_context *><uintptr_t>op.comm, rank)
            how = ended_how(
                engine, op, in_order,
                op.shared.call != NO_CALL and rank in segment.yet_to_begin(op.shared.call),
            )
            raise PeerLostError(
                f"{title_of(op, plan)}: rank {rank} (process {pid}) {how}: {waiting(engine, op)}"
            )
    return 0


cdef str ended_how(Engine engine, const Operation *op, bint in_order, bint never_came):
    """Return the end of a rank, in words, for a rank that waits for it in an operation."""
    if not in_order or not never_came:
        return f"has {'left' if in_order else 'died'} while rank {engine.rank} waits"
    return (
        f"has left and never called this {call_name(op.shared.what[0])}: is the call under an if? "
        f"Rank {engine.rank} waits"
    )


cdef bint goes_on(Operation *op):
    """Advance an operation as far as it goes, since data of ranks that have ended or given up may
    be enough. Return whether it still waits.
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
    where = f" on {engine.hosts[rank]}" if engine.hosts is not None else ""
    # A rank that has made a blocking call does not leave before its messages have come.
    in_order = cc_mail_state(context, rank) == CC_LEFT
    how = ended_how(engine, op, in_order, not is_exchange(op.what))
    return PeerLostError(
        f"{title_of(op, plan)}: rank {rank}{where} {how}: {waits}{unreached(context, rank)}"
    )


cdef str situation(Engine engine, Operation *op, Plan plan):
    """Return the state of a wait: its round and ranks, and the calls of the ranks of this host."""
    cdef Segment segment = engine.segment
    awaited = waited_for(op, segment)
    circle = deadlock(engine, op, plan, awaited)
    text = waiting(engine, op)
    if segment is not None and op.shared.call != NO_CALL:
        text = f"{text} (call {op.shared.call + 1}; {'; '.join(segment.doing())})"
    elif segment is not None and is_exchange(op.what) and circle is None:
        said = segment.doing(awaited)
        text += f" ({'; '.join(said)})" if said else ""
    if circle is not None:
        return f"{circle}; {text}"
    return f"{text}{missing_calls(engine, op)}{advice(engine, op, awaited)}"


cdef str missing_calls(Engine engine, const Operation *op):
    """Return the ranks of this host that run and have not made the call, with a question."""
    cdef Segment segment = engine.segment
    if segment is None or op.shared.call == NO_CALL:
        return ""
    late = segment.yet_to_begin(op.shared.call) - {rank for rank, _ in segment.stopped()}
    return f"; {not_called(op, late)}" if late else ""


cdef str not_called(const Operation *op, set ranks):
    return (
        f"{rank_names(sum([1 << rank for rank in ranks]))} {plural(len(ranks), 'has', 'have')} not "
        f"called this {call_name(op.shared.what[0])} yet: is the call under an if?"
    )


cdef str advice(Engine engine, Operation *op, set awaited):
    """Return advice for ranks that may have made the call: a link may be cut, and a rank that has
    started it may be outside the library.
    """
    cdef Segment segment = engine.segment
    here = set() if segment is None else set(segment.ranks)
    if op.shared.call != NO_CALL and segment is not None:
        awaited = awaited - segment.yet_to_begin(op.shared.call)
    unknown = awaited - here  # of other hosts, or without shared memory
    parts = []
    if any([engine.is_elsewhere(rank) for rank in unknown]):
        parts = ["a link between the hosts is cut", "a firewall drops messages"]
    started = set() if segment is None else awaited & segment.starters()
    if engine.starts:
        started |= unknown
    if progress.wanted or op.announced:  # calls that announce themselves block
        started = set()
    if unknown and not started and not is_exchange(op.what):
        parts.append(not_called(op, unknown))
    text = f". Perhaps {', or '.join(parts)}" if parts else ""
    if not started:
        return text
    when = "in time" if mailed else "before MPI's own calls"
    return (
        f"{text}. If {rank_names(sum([1 << rank for rank in started]))} started this with a "
        f"nonblocking call, it moves on only inside the library: call wait() {when}, or set "
        f"COLLECTIVES_PROGRESS=thread"
    )


cdef inline int count_start(Engine engine, int change) except -1:
    """Count the nonblocking calls of the program, and show the other ranks of the host the number.
    """
    engine.starts += change
    if engine.segment is not None:
        cc_write(&engine.segment.c.ranks[engine.segment.c.me].starts, engine.starts)
    return 0


cdef int show_wait(
    Engine engine, Operation *op, Plan plan, double waited, double timeout
) except -1:
    """Show the other ranks of the host the message that this one has waited long for, until
    hide_wait(): its call, above 1 + the number of its peer.
    """
    cdef Segment segment = engine.segment
    cdef uint64_t number
    tell_wait(engine, op, waited)
    if segment is None or not is_exchange(op.what):
        return 0
    if waited < min(NEARLY, engine.deadline(timeout) / 2):
        return 0
    peers = [rank for rank in waited_for(op, segment) if rank in segment.ranks]
    if len(peers) != 1 or not is_alone(op):
        return hide_wait(engine)
    number = EXCHANGES.index(plan.source.algorithm.collective.name)
    cc_write(
        &segment.c.ranks[segment.c.me].waits, number << 32 | 1 + segment.ranks.index(peers[0])
    )
    return 0


cdef int hide_wait(Engine engine) except -1:
    """Show no wait any more. Waits that end with an error stay, so that the others see them."""
    if engine.segment is not None:
        cc_write(&engine.segment.c.ranks[engine.segment.c.me].waits, 0)
    return 0


cdef bint is_alone(const Operation *op) except -1:
    """Return whether this process sends nothing before an operation has ended: it has no other
    thread, and nothing else is in flight.
    """
    cdef const Operation *other = in_flight
    if staged or active_count() > 1:
        return False
    while other != NULL:
        if other != op and cc_status(other) == RUNNING:
            return False
        other = other.next
    return True


cdef str deadlock(Engine engine, const Operation *op, Plan plan, set awaited):
    """Return the waits in a circle, if an operation waits for a rank of this host that waits for a
    message of this one; otherwise None.
    """
    cdef Segment segment = engine.segment
    if not is_alone(op):
        return None
    for rank in sorted(awaited):
        # A collective waits for its own earlier steps, too.
        way = [] if rank == engine.rank and is_exchange(op.what) else None
        if way is None and segment is not None:
            way = segment.way_from(rank)
        if way is not None:
            name = plan.source.algorithm.collective.name
            waits = [f"rank {engine.rank} waits in {name} for rank {rank}", *way]
            return f"deadlock: {', and '.join(waits)}"
    return None


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
            if cursor.pending and is_awaited(op, slot):
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


cdef inline bint is_awaited(const Operation *op, int slot) noexcept:
    """Return whether an operation waits for a message."""
    if op.state.unseen and op.slots.expected[slot] == UNSEEN:
        return not op.slots.arrived[slot]
    return op.transport.is_pending(op.slots.requests, slot)


cdef set waited_for(Operation *op, Segment segment):
    """Return the ranks that an operation waits for."""
    cdef bint held = hold_still()
    cdef int k
    ranks = set()
    try:
        if op.state.live == 0 and op.shared.lent:
            ranks.update(behind(op, segment))
        for k in range(op.slots.in_use if op.state.pending else 0):
            if is_awaited(op, k):
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
    if failure.cause == OTHER_COUNTS:
        return other_marks(engine, op)
    where = f"{title_of(op, plan)}: rank {engine.rank}, round {failure.round + 1}"
    if failure.cause == UNREADABLE:
        return unreadable(engine.segment, failure, where)
    if failure.cause == OTHER_MESSAGE:
        return MismatchError(f"{where}: {other_message(op)}")
    if failure.cause == WRONG_LENGTH and is_exchange(op.what):
        return MismatchError(f"{where}: {wrong_length(failure, engine.rank)}")
    if failure.cause == WRONG_LENGTH:
        got = "more" if failure.got < 0 else f"{failure.got}"
        said = f"got {got} bytes from rank {failure.peer} where {failure.wanted} were due"
        if failure.wanted < 0:
            said = f"rank {failure.peer} has no room for the whole message of this rank"
        return MismatchError(
            f"{where}: {said}; the ranks did not call the same collective with the same count and "
            f"dtype (COLLECTIVES_VALIDATE=1 says who)"
        )
    if engine.has_mail() and failure.error == CC_MAIL_LOST:
        return lost_rank(engine, op, plan, failure.peer, f"round {failure.round + 1}")
    peer = f", peer {failure.peer}" if failure.peer >= 0 else ""
    if engine.is_elsewhere(failure.peer):
        peer += f" on {engine.hosts[failure.peer]}"
    said = error_text_of(engine.transport, failure.error)
    return MPIError(f"{where}{peer}: {'' if engine.has_mail() else 'MPI says: '}{said}")


cdef object other_marks(Engine engine, const Operation *op):
    """Return the error of a call in which a rank passes counts, and the root none or others."""
    cdef bint told = op.shared.told
    root, other = op.failure.peer, engine.rank
    if not told:
        root, other = other, root
    given = "is not the same on rank" if op.failure.got and op.shared.mark else "is given on rank"
    than = "as" if op.failure.got and op.shared.mark else "and not"
    return MismatchError(
        f"the ranks do not agree: counts {given} {other} {than} on rank {root}, the root; "
        f"{SAME_COUNTS}"
    )


cdef str wrong_length(const Failure *failure, int rank):
    """Return the difference between a message of a program and its place, in words."""
    if failure.wanted < 0:
        sizes = (
            f"short: rank {rank} sends {failure.got} bytes, and rank {failure.peer} receives fewer"
        )
    elif failure.got < 0:
        sizes = (
            f"short: rank {failure.peer} sends more than the {failure.wanted} bytes that rank "
            f"{rank} receives"
        )
    else:
        sizes = (
            f"{'short' if failure.got > failure.wanted else 'long'}: rank {failure.peer} sends "
            f"{failure.got} bytes, and rank {rank} receives {failure.wanted}"
        )
    return f"out is too {sizes}; both must pass arrays of one count and dtype"


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
        f"{differing([call_name(theirs), call_name(op.what)])}"
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
