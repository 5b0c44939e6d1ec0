/* Cores are taken after two long yields soon after each other, until there were none for a while. */
#define _GNU_SOURCE
#include "_core/shared/clock.h"
#include "check.h"
#include <sched.h>

static uint64_t clock_now = 1000000000, yield_takes;
static uint64_t invented_clock(void) { return clock_now; }
static int invented_yield(void) { return clock_now += yield_takes, 0; }
#define cc_nanoseconds invented_clock
#define sched_yield invented_yield
#include "_core/executor/cores.h"

static int yield_for(uint64_t nanoseconds)
{
    yield_takes = nanoseconds;
    return cc_yield();
}

int main(int argc, char **argv)
{
    const int rounds = begin(argc, argv);
    for (int i = 0; i < rounds; ++i) {
        clock_now += 10 * (uint64_t)CC_TAKEN_FOR;
        CHECK(!cc_cores_are_taken());
        for (int k = 0; k < 100; ++k)
            CHECK(!yield_for(CC_LONG_YIELD - 1));
        CHECK(!cc_cores_are_taken());
        CHECK(yield_for(CC_LONG_YIELD));
        CHECK(!cc_cores_are_taken());
        clock_now += CC_TAKEN_FOR;
        CHECK(yield_for(CC_LONG_YIELD)); /* long after the first one */
        CHECK(!cc_cores_are_taken());
        clock_now += CC_TAKEN_FOR - 1;
        CHECK(yield_for(CC_LONG_YIELD + 5000000));
        CHECK(cc_cores_are_taken());
        clock_now += CC_TAKEN_FOR - 1;
        CHECK(!yield_for(0));
        CHECK(cc_cores_are_taken());
        ++clock_now;
        CHECK(!cc_cores_are_taken());
        for (cc_assumed_taken = 1; cc_assumed_taken >= 0; --cc_assumed_taken)
            CHECK(cc_cores_are_taken() == cc_assumed_taken);
    }
    CHECK(cc_lost_cores() >= 0);
    return 0;
}
