/* The memory for the payloads of a rank: a ring, of which every page takes the next part.
 *
 * Writing a line is slow if another core still has it in a private cache. So memory is used again only
 * after `width` bytes, when the readers' caches have lost it.
 *
 * The memory of a page begins at `start` in a lap of the ring; if the rest of the ring is too short, a
 * new lap begins. Laps and pages grow together. So a page may write as soon as all ranks have finished
 *   - all pages of the laps before the last one, and
 *   - all pages of the last lap that begin below the end of its own memory.
 * Other pages of the last lap lie above it, and those of its own lap below. All of these are earlier
 * pages: the first that is not finished waits for none, so one page can always proceed.
 *
 * No rank is more than CC_LANES pages ahead (segment.h), so only these are kept. Pages are numbered from
 * 0, and positions and lengths are in bytes.
 */
#ifndef COLLECTIVES_RING_H
#define COLLECTIVES_RING_H

#include <stdint.h>

enum {
    CC_LANES = 8,  /* pages that a rank may be ahead of the slowest; a power of two up to 64 */
    CC_APART = 4   /* pages that the ring has room for at the same time, if possible, also long ones */
};

typedef struct {
    uint64_t after; /* 1 + the page; 0 if there is none */
    uint64_t lap;
    int64_t start;
} cc_place;

typedef struct {
    int64_t nbytes; /* of the memory */
    int64_t width;  /* after which it is used again, if pages are not long */
    uint64_t lap;
    int64_t head;   /* the beginning of the next page in this lap */
    cc_place recent[CC_LANES]; /* those of the latest pages that have memory */
    unsigned count; /* of the pages that had memory */
} cc_ring;

/* The memory of the pages of one operation: page `i` of it begins at first + i % slots * room. */
typedef struct {
    int64_t first, room;
    int64_t slots;
    uint64_t needs[CC_LANES]; /* the pages below which all must be finished before page `i` */
} cc_run;

static void cc_ring_open(cc_ring *ring, int64_t nbytes, int64_t width)
{
    memset(ring, 0, sizeof *ring);
    ring->nbytes = nbytes;
    ring->width = width < nbytes ? width : nbytes;
}

/* Return the pages below which all must be finished before memory of this lap that ends at `end` is
 * written. */
static inline uint64_t cc_ring_needs(const cc_ring *ring, int64_t end)
{
    uint64_t needs = 0;
    for (int i = 0; i < CC_LANES; ++i) {
        const cc_place *place = &ring->recent[i];
        const int meets = place->lap + 1 < ring->lap || (place->lap + 1 == ring->lap && place->start < end);
        if (meets && place->after > needs)
            needs = place->after;
    }
    return needs;
}

static inline void cc_ring_note(cc_ring *ring, uint64_t page, uint64_t lap, int64_t start)
{
    cc_place *place = &ring->recent[ring->count++ % CC_LANES];
    place->after = page + 1;
    place->lap = lap;
    place->start = start;
}

/* Give memory to `pages` pages from `page` on, of `room` bytes each, up to the whole ring. */
static inline void cc_ring_take(cc_ring *ring, uint64_t page, int64_t pages, int64_t room, cc_run *run)
{
    int64_t end = ring->width, slots;
    int64_t i, last;
    run->room = room;
    if (room == 0)
        return;
    if (end < CC_APART * room)
        end = CC_APART * room < ring->nbytes ? CC_APART * room : ring->nbytes;
    slots = end / room;
    if (ring->head + (pages < slots ? pages : slots) * room > end) {
        ++ring->lap;
        ring->head = 0;
    }
    run->first = ring->head;
    run->slots = slots = pages < slots ? pages : slots;
    for (i = 0; i < slots && i < CC_LANES; ++i)
        run->needs[i] = cc_ring_needs(ring, ring->head + (i + 1) * room);
    for (i = pages < CC_LANES ? 0 : pages - CC_LANES; i < pages; ++i)
        cc_ring_note(ring, page + i, ring->lap + i / slots, run->first + i % slots * room);
    last = pages - 1;
    ring->lap += last / slots;
    ring->head = run->first + (last % slots + 1) * room;
}

/* Return the pages below which all must be finished before page `i` of an operation with the first page
 * `page` writes. */
static inline uint64_t cc_run_needs(const cc_run *run, uint64_t page, int64_t i)
{
    if (run->room == 0)
        return 0;
    if (i >= run->slots)
        return page + i - run->slots + 1;
    return i < CC_LANES ? run->needs[i] : 0;
}

#endif
