/* Doubts in a time that was learned, for calls with invented times. */
#include "_core/shared/board.h"
#include "check.h"

enum { RANKS = 3 };
static cc_board board;
static cc_watch watches[RANKS];

/* Let a rank make calls of `nbytes`, each of which takes `seconds`. */
static void call(int rank, int times, double nbytes, double seconds)
{
    for (int i = 0; i < times; ++i)
        cc_watch_call(&board, &watches[rank], nbytes, seconds);
}

static void begin_all(void)
{
    for (int rank = 0; rank < RANKS; ++rank)
        cc_begin_watch(&board, &watches[rank], 1.0, 1000);
    CHECK(board.doubts[0] == 0 && board.doubts[1] == 0);
}

int main(int argc, char **argv)
{
    const int rounds = begin(argc, argv);
    for (int i = 0; i < rounds; ++i) {
        const double far_off = i % 2 ? 1.6 : 0.6, other = i % 2 ? 0.6 : 1.6;
        begin_all();
        for (int rank = 0; rank < RANKS; ++rank)
            call(rank, CC_DOUBTS - 1, 1000, far_off);
        CHECK(!cc_all_doubt(&board, RANKS));
        call(0, 1, 1000, far_off);
        call(1, 1000, 1000, far_off);
        CHECK(!cc_all_doubt(&board, RANKS));
        call(2, 1, 1000, far_off);
        CHECK(cc_all_doubt(&board, RANKS));
        /* One call as it was is enough to believe again. */
        call(1, 1, 1000, 1.2);
        CHECK(!cc_all_doubt(&board, RANKS));
        call(1, CC_DOUBTS, 1000, far_off);
        CHECK(cc_all_doubt(&board, RANKS));
        /* Ranks that wait for others, and these, have no doubt in common. */
        call(1, CC_DOUBTS, 1000, other);
        CHECK(!cc_all_doubt(&board, RANKS));
        /* Longer arrays take longer. */
        begin_all();
        for (int rank = 0; rank < RANKS; ++rank)
            call(rank, 2 * CC_DOUBTS, 2000, 2.1);
        CHECK(!cc_all_doubt(&board, RANKS));
        for (int rank = 0; rank < RANKS; ++rank)
            call(rank, CC_DOUBTS, 2000, 1.0);
        CHECK(cc_all_doubt(&board, RANKS));
    }
    begin_all();
    return 0;
}
