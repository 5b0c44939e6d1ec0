# Courses: the sequences of calls of each class. Some of the first calls try settings, and the
# fastest one stays.
#
# The number of a call in its class determines its setting, so that all ranks run the same without
# communication. Ranks make decisions on the board of the class (shared/board.h). Ranks without
# common memory `meet`: they wait for each other before each trial, and exchange times by an
# allreduce. Only blocking calls count then.

cdef enum:
    MOST_TRIED = 16  # settings
    FINALISTS = 4  # settings that have the long round
    WARM = 4  # calls that make plans and touch new memory, and are not counted
    SOON = 4  # calls from these to the first check, for long arrays
    LATER = 1024  # the same for others, because earlier trials would not pay
    LONG_CALL = 64 << 10  # bytes of long arrays
    SELDOM = 512  # most calls between two checks; the number doubles until then
    OFTEN = 64  # the same where calls are watched
    PAUSE = 4  # calls between a round and its first check
    VOID = 1 << 30  # the decision that a round tells nothing

# The readiness of a communicator for trials: it makes none, makes those that pay, or makes all.
cdef enum Attention:
    RESTING, ATTENTIVE, EAGER

cdef double HORIZON = 1000  # the least number of calls that a class is assumed to have
# Parts of the time since a class began, or since its last trials: for plans and the comparison of
# times; and for trials that are repeated because something has changed, or for no reason.
cdef double FOR_LESSON = 0.02
cdef double FOR_CHANGE = 1. / 64
cdef double FOR_LUCK = 1. / 256
cdef double LONG_AGO = 10  # seconds between trials for no reason


# A round of trials: the untimed and the timed calls in a burst of one setting, and the laps.
cdef struct Contest:
    int warm, timed, laps
    int first  # its first trial on the board

cdef Contest[2] contests
contests[0] = Contest(2, 2, 1, 0)
contests[1] = Contest(4, 4, 2, 2 * MOST_TRIED)


@cython.final
cdef class Course:
    """The settings of a class of calls, and the progress of their trials."""

    cdef object lesson  # choice/lessons.py
    cdef list settings  # each a Choice
    cdef Choice best  # the setting of calls that are no trials
    cdef Choice current  # the setting of the call under way
    cdef int64_t calls, due  # calls so far, and the number of the next call with a check
    cdef int64_t distance  # calls to the next check
    cdef int tried  # 0: nothing, 1: the settings that need no plan, 2: all
    cdef int trying  # the same for the trials under way, or 0
    cdef list kept  # the numbers of the settings in the round
    cdef int round, at, length  # the number of the round, of the call in it, and of its calls
    cdef uint32_t noters  # ranks that note a trial on the board
    cdef cc_board *board
    cdef bint meets
    cdef uint32_t check  # the number of the next one
    cdef uint32_t[<int>CC_TRIALS] noted  # the value on the board when all ranks have noted a trial
    cdef uint32_t[<int>CC_TRIALS] spoiled  # the value at the end of the round before
    cdef uint32_t[<int>CC_TRIALS] preempted  # the same
    cdef uint64_t[<int>CC_TRIALS] source_ended  # the same
    cdef cc_watch watched  # the calls of this rank
    cdef bint is_long  # whether arrays are
    cdef bint is_void  # whether the last trials told nothing
    cdef double began, ended, lasted  # seconds: when the class was warm, and of its last trials
    cdef bint is_far, is_lent  # at the last trials
    cdef bint is_past  # whether these were in an earlier program

    def __cinit__(self, lesson, Choice base):
        self.lesson = lesson
        self.best = self.current = base
        self.settings = []
        self.due = WARM
        self.meets = lesson.meets
        if lesson.past is not None:  # an earlier program has learned it
            self.tried = 2
            self.is_far = lesson.past.is_far
            self.is_past = True
            self.ended = now()

    def __dealloc__(self):
        if self.meets:
            free(self.board)

    cdef int renew(self, lesson, Choice base) except -1:
        """Make new settings, because the registry or a variable may have changed. If they are
        others, the class begins again.
        """
        cdef Choice best = self.best
        cdef list settings
        self.lesson = lesson
        self.best = base
        if self.settings:
            settings = lesson.settings(max(self.tried, self.trying))[:MOST_TRIED]
            keys = [key_of(each) for each in settings]
            if keys == [key_of(each) for each in self.settings]:
                self.settings = settings
                if self.tried and key_of(best) in keys:
                    self.best = settings[keys.index(key_of(best))]
            else:
                self.begin_again()
        self.current = self.best
        return 0

    cdef int begin_again(self) except -1:
        """Forget the settings. Trials of the round that no rank has made are not waited for."""
        cdef int at
        if self.trying:
            for at in range(self.at, self.length):
                if self.place(at) >= 0:
                    self.noted[self.trial(at)] -= self.noters
            self.end_round()
        self.settings = []
        self.tried = self.trying = 0
        self.is_past = self.is_void = False
        self.ended = now()
        self.lasted = 0
        if self.board != NULL:
            cc_begin_watch(self.board, &self.watched, 0, 0)
        self.wait(WARM)
        return 0

    cdef cc_trial *advance(self, Engine engine, const Arguments *call) except? NULL:
        """Set the setting of a call, after a check if one is due; return its trial, or NULL."""
        cdef int64_t value
        self.current = self.best
        if self.board == NULL:
            self.take_board(engine, call)
            return NULL
        if self.trying and self.at < self.length:
            return self.next_trial(engine, call)
        if self.trying and self.at == self.length and not self.meets:
            self.at += 1
            self.wait(PAUSE)
            return NULL
        value = cc_decided(self.board, self.check)
        if value < 0:
            value = self.after_round(engine, call) if self.trying else self.begins(engine, call)
            value = cc_decide(self.board, self.check, <uint32_t>value)
        self.check += 1
        if value == 0:
            # Ranks may have read different times on the board, so these must not matter.
            self.wait(min(2 * self.distance, OFTEN if self.is_long and self.tried == 2 else SELDOM))
        elif value == VOID:
            self.drop_round()
        elif not self.trying:
            self.begin(engine, call, <int>value)
        elif self.round == 0:
            self.end_round()
            self.begin_round(engine, 1, [k for k in self.kept if value >> <int>k & 1])
        else:
            self.settle(<int>value - 1)
        return NULL

    cdef bint is_settled(self) noexcept:
        return not self.trying and (self.tried == 2 and not self.is_past or self.board == NULL)

    cdef void wait(self, int64_t distance) noexcept:
        self.distance = distance
        self.due = self.calls + distance

    cdef int take_board(self, Engine engine, const Arguments *call) except -1:
        """Take the next board of the communicator, in the same order of classes on all ranks. There
        is a limited number of boards; later classes have none.
        """
        self.began = now()
        self.is_long = call.nbytes >= LONG_CALL
        self.wait(SOON if self.is_long or engine.attention == EAGER else LATER)
        if self.meets:
            self.board = <cc_board *>calloc(1, sizeof(cc_board))
        elif engine.segment is not None and engine.boards < CC_BOARDS:
            self.board = &engine.segment.c.boards[engine.boards]
            engine.boards += 1
            if self.is_past and self.is_long:
                past = self.lesson.past
                cc_begin_watch(
                    self.board, &self.watched, past.seconds, past.nbytes or call.nbytes
                )
        else:
            self.due = INT64_MAX
        return 0

    cdef int begins(self, Engine engine, const Arguments *call) except -1:
        """Propose trials: 2 of all settings, 1 of those that need no plan, 0 none."""
        cdef double ago = now() - self.ended
        cdef double passed = now() - self.began
        cdef bint has_changed
        if engine.attention == RESTING:
            return 0
        if self.meets:
            return 0 if self.tried else 2
        has_changed = self.is_far != engine.segment.c.distance.is_far
        has_changed |= self.is_lent != is_lent(engine, call)
        has_changed |= cc_all_doubt(self.board, engine.size)
        if engine.attention == EAGER:
            return 2
        if engine.spins >= BRIEF and cc_cores_are_taken():
            return 0
        if self.is_void and self.lasted > FOR_CHANGE * ago:
            return 0
        if self.tried < 2:
            # The estimated time of the class, if it has HORIZON calls.
            passed *= max(1, HORIZON / (self.calls - WARM))
            for which in range(2, self.tried, -1):
                if self.lesson.cost(which) <= FOR_LESSON * passed:
                    return which
        if self.tried == 0:
            return 0
        has_changed |= self.is_void
        if self.lasted <= (FOR_CHANGE if has_changed else FOR_LUCK) * ago:
            return self.tried if has_changed or ago > LONG_AGO else 0
        return 0

    cdef int begin(self, Engine engine, const Arguments *call, int which) except -1:
        """Begin trials."""
        self.settings = self.lesson.settings(which)[:MOST_TRIED]
        self.trying = which
        self.is_past = False
        cc_begin_watch(self.board, &self.watched, 0, 0)
        self.lasted = now()
        self.is_far = engine.segment is not None and engine.segment.c.distance.is_far
        self.is_lent = is_lent(engine, call)
        if engine.segment is not None and call.nbytes >= LENT:
            cc_segment_populate(&engine.segment.c)
        if len(self.settings) < 2:
            self.settle(0)
        else:
            self.begin_round(engine, len(self.settings) == 2, range(len(self.settings)))
        return 0

    cdef int begin_round(self, Engine engine, int number, kept) except -1:
        cdef const Contest *contest = &contests[number]
        cdef int k
        self.round = number
        self.noters = 1 if self.meets else engine.size
        self.kept = list(kept)
        self.at = 0
        self.length = <int>len(self.kept) * contest.laps * (contest.warm + contest.timed)
        for k in range(<int>len(self.kept) * contest.laps * contest.timed):
            self.noted[contest.first + k] += self.noters
        self.wait(1)
        return 0

    cdef cc_trial *next_trial(self, Engine engine, const Arguments *call) except? NULL:
        """Return the trial that a call is, or NULL at the beginning of a burst."""
        cdef int at = self.at
        self.current = self.settings[self.kept[self.burst(at) % <int>len(self.kept)]]
        self.at += 1
        self.wait(1)
        if self.place(at) < 0:
            return NULL
        if self.meets:
            meet(engine, self.lesson, None, call)
        # Ranks that meet agree on the times of all trials.
        engine.lost_cores = -1 if self.meets else cc_lost_cores()
        return &self.board.trials[self.trial(at)]

    cdef int burst(self, int at) noexcept:
        """Return the number of the burst of a call of the round."""
        return at // (contests[self.round].warm + contests[self.round].timed)

    cdef int place(self, int at) noexcept:
        """Return the place of a call among the timed ones of its burst, or less than 0."""
        cdef const Contest *contest = &contests[self.round]
        return at % (contest.warm + contest.timed) - contest.warm

    cdef int trial(self, int at) except -1:
        """Return the number on the board of a timed call of the round."""
        cdef const Contest *contest = &contests[self.round]
        cdef int burst = self.burst(at), n = <int>len(self.kept)
        return contest.first + (
            (burst % n * contest.laps + burst // n) * contest.timed + self.place(at)
        )

    cdef int64_t after_round(self, Engine engine, const Arguments *call) except -1:
        """Propose the continuation after a round: 0 if not all ranks have noted all trials; then
        the bits of the settings for the next round, or 1 + the number of the winner; or VOID if
        ranks lost their cores in many trials.
        """
        cdef list times = self.times()
        if times is None:
            return 0
        if not self.meets and self.is_disturbed():
            return VOID
        if self.meets:
            times = meet(engine, self.lesson, times, call)
        if self.round == 0:
            return sum([1 << <int>self.kept[k] for k in self.lesson.finalists(times, FINALISTS)])
        return 1 + self.kept[self.lesson.fastest(times)]

    cdef list times(self):
        """Return the seconds of all trials of each setting of the round, or None if some are
        missing.
        """
        cdef const Contest *contest = &contests[self.round]
        cdef const cc_trial *trial
        cdef int each = contest.laps * contest.timed
        cdef int64_t lasted
        cdef int i, k
        times = []
        for i in range(<int>len(self.kept)):
            times.append([])
            for k in range(contest.first + i * each, contest.first + (i + 1) * each):
                trial = &self.board.trials[k]
                if cc_noted(trial) != self.noted[k]:
                    return None
                lasted = <int64_t>(trial.ended - trial.began)
                if trial.source_ended != self.source_ended[k]:
                    lasted = max(lasted, <int64_t>(trial.source_ended - trial.source_began))
                if trial.spoiled == self.spoiled[k] and lasted > 0:
                    times[i].append(1e-9 * lasted)
        return times

    cdef bint is_disturbed(self) noexcept:
        """Return whether ranks lost their cores in a quarter of the trials of the round."""
        cdef int first = contests[self.round].first
        cdef int n = <int>len(self.kept) * contests[self.round].laps * contests[self.round].timed
        cdef int k
        cdef int lost = 0
        for k in range(first, first + n):
            lost += self.board.trials[k].preempted != self.preempted[k]
        return 4 * lost >= n

    cdef int drop_round(self) except -1:
        """End the trials without a result."""
        self.end_round()
        self.trying = 0
        self.is_void = True
        self.ended = now()
        self.lasted = self.ended - self.lasted
        self.wait(SELDOM)
        return 0

    cdef void watch(self, const Arguments *call, double seconds) noexcept:
        """Note the time of a call, unless other processes may have made it longer."""
        if not cc_cores_are_taken():
            cc_watch_call(self.board, &self.watched, call.nbytes, seconds)

    cdef void end_round(self) noexcept:
        cdef int k
        for k in range(CC_TRIALS):
            self.preempted[k] = self.board.trials[k].preempted
            self.spoiled[k] = self.board.trials[k].spoiled
            self.source_ended[k] = self.board.trials[k].source_ended

    cdef int settle(self, int winner) except -1:
        """Make a setting the winner."""
        self.best = self.settings[winner]
        self.tried = self.trying
        self.trying = 0
        self.is_void = False
        self.ended = now()
        self.lasted = self.ended - self.lasted
        if len(self.settings) > 1:
            times = self.times() or []
            found = {self.kept[k]: each for k, each in enumerate(times) if each}
            self.lesson.learn(self.tried, winner, found, self.is_far)
            self.end_round()
            if self.is_long and winner in found and not self.meets:
                nbytes = self.lesson.nbytes
                cc_begin_watch(
                    self.board, &self.watched, self.lesson.usual(found[winner]), nbytes
                )
        self.wait(OFTEN if self.is_long else SELDOM)
        return 0


cdef inline bint is_watched(Choice choice, const Arguments *call) noexcept:
    """Return whether the time of a call that is no trial is compared with that of its class."""
    return (
        choice.course is not None and choice.course.watched.usual > 0 and call.blocking
        and not call.announced and call.device == NULL and call.whole < 0
    )


cdef inline bint has_lost_core(Engine engine) noexcept:
    """Return whether this thread has lost its core since the last trial began, if that matters."""
    if engine.lost_cores < 0:
        return False
    return cc_cores_are_taken() or cc_lost_cores() != engine.lost_cores


cdef tuple key_of(Choice setting):
    """Return what tells a setting from the others of its class."""
    return setting.plan.source.algorithm.name, setting.segment, setting.ways


cdef bint is_lent(Engine engine, const Arguments *call) noexcept:
    """Return whether an array of a call is in memory that others may read."""
    return engine.segment is not None and (
        is_seen(&engine.segment.c, &call.x) or is_seen(&engine.segment.c, &call.out)
    )


cdef bint is_seen(const cc_segment *segment, const View *view) noexcept:
    cdef int64_t nbytes = view.count * view.itemsize
    return nbytes >= LENT and (
        reference_of(segment, view.data, nbytes) != 0 or cc_heap_reference(view.data, nbytes) != 0
    )


cdef list meet(Engine engine, lesson, list times, const Arguments *call):
    """Wait for the other ranks, or agree with them on times, inside a call."""
    engine.hold()  # they meet in calls inside this one
    try:
        return lesson.meet(times, None if call.timeout == COMMON else call.timeout)
    except (MismatchError, StallError) as error:
        raise type(error)(
            f"{name_of(call)}: before it, the ranks meet to try settings "
            f"(COLLECTIVES_TUNE=online), for which it has to be a blocking call on all of them: "
            f"{error}"
        ) from None
    finally:
        engine.held -= 1


cdef inline Choice setting_of(
    Engine engine, Choice choice, const Arguments *call, cc_trial **trial
):
    """Return the setting of a call, and set `trial` if it is timed.

    Calls are counted here, where only one thread is, and after all checks that can refuse a call.
    """
    if choice.course is None or call.announced or call.device != NULL or call.whole >= 0:
        return choice
    if not call.blocking and choice.course.meets:
        return choice.course.best
    choice.course.calls += 1
    if choice.course.calls < choice.course.due:
        return choice.course.best
    engine.eager = choice.course
    trial[0] = choice.course.advance(engine, call)
    return choice.course.current
