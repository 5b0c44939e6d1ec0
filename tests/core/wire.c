/* Messages between hosts, on a UCX of this file: it delays and reorders messages, brings long ones as
 * descriptors, cuts and forges headers, and loses connections.
 */
#define _GNU_SOURCE
#include <string.h>

#include "_core/mail/letter.h"
#include "_core/ucx/wire.h"
#include "check.h"

enum { RANKS = 3, ROOM = 1024, LONGEST = 500, AT_A_TIME = 8, TOKEN = 77, MOST = 256 };

/* The text of a rank that gives up stays, since UCX may read it at any time. */
const char *__lsan_default_suppressions(void) { return "leak:cc_mail_give_up"; }

/* -- UCX ----------------------------------------------------------------------------------------- */

/* A message on its way; a long one is its own descriptor. */
typedef struct {
    int to;
    cc_ucp_request_param param;
    void *request;
    size_t length;
    char header[sizeof(cc_wire_header)];
    char data[];
} parcel;

/* A descriptor that is being fetched. */
typedef struct {
    cc_ucp_request_param param;
    void *request, *place;
    parcel *from;
} fetch;

typedef struct {
    int from, to;
    cc_ucp_ep_params params;
} endpoint;

static unsigned dice = 1;
static int rounds;
static cc_mail *mails[RANKS];
static cc_context *contexts[RANKS];
static char *memory[RANKS];
static cc_ucp_am_handler_param handlers[RANKS];
static endpoint *endpoints[RANKS][RANKS];
static parcel *way[MOST];
static fetch *fetches[MOST];
static int parcels, fetching, kept, requests; /* kept: descriptors that the wire has */
static int opening;                           /* the rank whose wire is opened */
static int refuses;                           /* calls that return errors from now on */

static void *new_request(void) { return ++requests, malloc(1); }
static void request_free(void *request) { --requests, free(request); }
static int rank_of(void *worker) { return (int)((char *)worker - (char *)mails); }
static void destroy(void *any) { (void)any; }

static cc_ucs_status init_version(unsigned major, unsigned minor, const cc_ucp_params *params, const void *config,
                                  void **library)
{
    CHECK(major == 1 && minor == 12 && params->features == CC_UCP_FEATURE_AM && !config);
    *library = mails;
    return refuses && refuses-- ? -1 : CC_UCS_OK;
}

static cc_ucs_status worker_create(void *library, const cc_ucp_worker_params *params, void **worker)
{
    CHECK(params->thread_mode == CC_UCS_THREAD_SERIALIZED);
    *worker = (char *)library + opening;
    return CC_UCS_OK;
}

static cc_ucs_status set_handler(void *worker, const cc_ucp_am_handler_param *handler)
{
    handlers[rank_of(worker)] = *handler;
    return CC_UCS_OK;
}

static cc_ucs_status ep_create(void *worker, const cc_ucp_ep_params *params, void **made)
{
    endpoint *e = malloc(sizeof *e);
    *e = (endpoint){rank_of(worker), *(const char *)params->address, *params};
    if (refuses && refuses--)
        return free(e), -1;
    endpoints[e->from][e->to] = *made = e;
    return CC_UCS_OK;
}

static void *ep_close(void *e, const cc_ucp_request_param *param)
{
    CHECK(param->flags == CC_UCP_CLOSE_FORCE);
    return free(e), roll(&dice) % 2 ? NULL : new_request();
}

static void *am_send(void *to, unsigned id, const void *header, size_t header_length, const void *data, size_t length,
                     const cc_ucp_request_param *param)
{
    parcel *p = malloc(sizeof *p + length);
    CHECK(id == 0 && header_length == sizeof p->header && parcels < MOST);
    if (refuses && refuses--)
        return free(p), (void *)(intptr_t)-3;
    p->to = ((endpoint *)to)->to;
    p->param = *param;
    p->request = roll(&dice) % 2 ? new_request() : NULL;
    p->length = length;
    memcpy(p->header, header, header_length);
    if (length)
        memcpy(p->data, data, length);
    way[parcels++] = p;
    return p->request;
}

static void *am_recv_data(void *worker, void *data, void *place, size_t length, const cc_ucp_request_param *param)
{
    parcel *p = data;
    (void)worker;
    CHECK(length == p->length && fetching < MOST);
    if (roll(&dice) % 3 == 0) {
        memcpy(place, p->data, length);
        return --kept, free(p), NULL;
    }
    fetches[fetching] = malloc(sizeof(fetch));
    *fetches[fetching] = (fetch){*param, new_request(), place, p};
    return fetches[fetching++]->request;
}

static void am_data_release(void *worker, void *data) { (void)worker, --kept, free(data); }

/* End the latest fetch. */
static void end_fetch(cc_ucs_status status)
{
    fetch *f = fetches[--fetching];
    if (!status)
        memcpy(f->place, f->from->data, f->from->length);
    --kept;
    free(f->from);
    f->param.cb.recv_am(f->request, status, 0, f->param.user_data);
    free(f);
}

/* Bring a message to its handler, with so many bytes of its header. */
static void bring(parcel *p, size_t header_length)
{
    const int is_long = p->length > LONGEST / 2;
    const cc_ucp_am_recv_param param = {.recv_attr = is_long ? CC_UCP_RECV_RNDV : CC_UCP_RECV_DATA};
    const cc_ucp_am_handler_param *handler = &handlers[p->to];
    char *header = malloc(header_length); /* the sanitizer knows its end */
    cc_ucs_status status;
    memset(header, 0, header_length);
    memcpy(header, p->header, header_length < sizeof p->header ? header_length : sizeof p->header);
    kept += is_long;
    status = handler->cb(handler->arg, header, header_length, is_long ? (void *)p : p->data, p->length, &param);
    free(header);
    CHECK(status == CC_UCS_OK || (is_long && status == CC_UCS_IN_PROGRESS));
    if (status == CC_UCS_OK) {
        kept -= is_long;
        free(p);
    }
}

/* Take a message from its way, and end its send. */
static parcel *taken(int at, cc_ucs_status status)
{
    parcel *p = way[at];
    way[at] = way[--parcels];
    if (p->request)
        p->param.cb.send(p->request, status, p->param.user_data);
    return p;
}

static unsigned progress(void *worker)
{
    for (int i = 0; i < 4 && parcels; ++i) {
        const int at = (int)(roll(&dice) % (unsigned)parcels);
        if (way[at]->to == rank_of(worker))
            bring(taken(at, 0), sizeof(cc_wire_header));
    }
    if (fetching && roll(&dice) % 2)
        end_fetch(0);
    return 0;
}

static void *flush(void *worker, const cc_ucp_request_param *param) { return (void)worker, (void)param, new_request(); }

static cc_ucs_status check_status(void *request) { return (void)request, (cc_ucs_status)(roll(&dice) % 2); }

/* -- ranks --------------------------------------------------------------------------------------- */

static void open_all(void)
{
    cc_ucs_status status;
    for (int me = 0; me < RANKS; ++me) {
        int places[RANKS] = {-1, -1, -1}, ranks[RANKS] = {0, 1, 2};
        places[me] = 0;
        memory[me] = aligned_alloc(128, cc_mail_bytes(1, ROOM));
        memset(memory[me], 0, cc_mail_bytes(1, ROOM));
        mails[me] = cc_mail_open(memory[me], me, RANKS, ROOM, places);
        opening = me;
        CHECK(!cc_wire_open(mails[me], &status) && !status);
        contexts[me] = cc_context_new(mails[me], 9, RANKS, ranks);
        mails[me]->token = TOKEN;
        for (int i = 0; i < RANKS; ++i) {
            mails[me]->peers[i].address = malloc(1);
            *mails[me]->peers[i].address = (char)i;
        }
    }
}

static void turn_all(void)
{
    for (int i = 0; i < RANKS; ++i)
        cc_mail_turn(mails[i]);
}

static void settle(void)
{
    while (parcels || fetching)
        turn_all();
}

/* Close all; nothing is left. */
static void close_all(void)
{
    settle();
    CHECK(kept == 0);
    for (int i = 0; i < RANKS; ++i) {
        cc_mail_close(mails[i]);
        free(memory[i]);
    }
    CHECK(requests == 0);
}

static cc_mail_status ended(cc_letter *letter)
{
    cc_mail_status status;
    while (!cc_letter_test(letter, &status))
        turn_all();
    return status;
}

/* -- tests --------------------------------------------------------------------------------------- */

/* Messages of one tag keep their order, of whatever length, and whichever arrive first. */
static void messages_keep_their_order(void)
{
    struct {
        int from, to, tag, nbytes;
        cc_letter *out, *in;
        char sent[LONGEST], got[LONGEST];
    } all[AT_A_TIME], *m;
    int sends = 0, receives = 0;
    for (int i = 0; i < AT_A_TIME; ++i) {
        m = &all[i];
        m->from = (int)(roll(&dice) % RANKS);
        m->to = (int)(roll(&dice) % RANKS);
        m->tag = (int)(roll(&dice) % 2);
        m->nbytes = roll(&dice) % 4 ? (int)(roll(&dice) % LONGEST) : 0;
        memset(m->sent, (int)roll(&dice), LONGEST);
    }
    while (sends < AT_A_TIME || receives < AT_A_TIME) {
        const unsigned next = roll(&dice) % 3;
        if (next == 0 && sends < AT_A_TIME) {
            m = &all[sends++];
            m->out = cc_mail_send(contexts[m->from], m->nbytes ? m->sent : NULL, m->nbytes, m->to, m->tag, 4);
        } else if (next == 1 && receives < AT_A_TIME) {
            m = &all[receives++];
            m->in = cc_mail_recv(contexts[m->to], m->got, LONGEST, m->from, m->tag, 4);
        } else {
            cc_mail_turn(mails[roll(&dice) % RANKS]);
        }
    }
    for (m = all; m < all + AT_A_TIME; ++m) {
        cc_mail_status status = ended(m->in);
        CHECK(status.error == 0 && status.nbytes == m->nbytes && status.heard == 4);
        CHECK(memcmp(m->sent, m->got, (size_t)m->nbytes) == 0);
        CHECK(ended(m->out).error == 0);
    }
}

/* Return the only message that is on its way, from rank 0 to rank 1. */
static parcel *only(int nbytes, cc_letter **out)
{
    static char data[LONGEST];
    settle();
    *out = cc_mail_send(contexts[0], data, nbytes, 1, 3, 0);
    CHECK(parcels == 1);
    return taken(0, 0);
}

static void bring_copy(const parcel *p, size_t header_length, const cc_wire_header *header)
{
    parcel *copy = malloc(sizeof *copy + p->length);
    memcpy(copy, p, sizeof *copy + p->length);
    if (header)
        memcpy(copy->header, header, sizeof *header);
    bring(copy, header_length);
}

/* Headers that are cut, longer, or of another job change nothing; the right one comes afterwards. */
static void other_headers_are_ignored(int nbytes)
{
    cc_letter *out, *in;
    char got[LONGEST];
    parcel *p = only(nbytes, &out);
    const uint64_t come = mails[1]->peers[0].come;
    cc_wire_header right, wrong[7];
    for (size_t length = 0; length <= 2 * sizeof right; ++length)
        if (length != sizeof right)
            bring_copy(p, length, NULL);
    memcpy(&right, p->header, sizeof right);
    for (int i = 0; i < 7; ++i)
        wrong[i] = right;
    wrong[0].token ^= 1;
    wrong[1].sender = RANKS;
    wrong[2].sender = UINT64_MAX;
    wrong[3].nbytes += 1;
    wrong[4].nbytes -= 1;
    wrong[5].nbytes = -nbytes - 1;
    wrong[6].nbytes = INT64_MIN;
    for (int i = 0; i < 7; ++i)
        bring_copy(p, sizeof right, &wrong[i]);
    CHECK(mails[1]->peers[0].come == come && cc_mail_sender(contexts[1], 0, RANKS, 3) == -1 && kept == 0);
    bring(p, sizeof right);
    CHECK(cc_mail_sender(contexts[1], 0, RANKS, 3) == 0);
    in = cc_mail_recv(contexts[1], got, LONGEST, 0, 3, 0);
    CHECK(ended(in).nbytes == nbytes && ended(out).error == 0);
}

static void errors_are_told(void)
{
    char data[LONGEST] = {0};
    for (int early = 0; early < 2; ++early)
        for (int nbytes = 10; nbytes <= LONGEST; nbytes += LONGEST - 10)
            for (int differs = 0; differs < 2; ++differs) {
                cc_letter *in = early ? NULL : cc_mail_recv(contexts[1], data, nbytes - !differs, 0, 5, 6);
                cc_letter *out = cc_mail_send(contexts[0], data, nbytes, 1, 5, 6 + (uint64_t)differs);
                settle();
                in = in ? in : cc_mail_recv(contexts[1], data, nbytes - !differs, 0, 5, 6);
                CHECK(ended(in).error == (differs ? CC_MAIL_OTHER : CC_MAIL_TRUNCATED));
                CHECK(ended(out).error == 0);
            }
}

static void reasons_are_told(void)
{
    char text[4];
    int64_t nbytes = 0;
    CHECK(cc_mail_words(contexts[0], text, sizeof text, &nbytes) == -1);
    cc_mail_give_up(contexts[1], "reason", 6);
    settle();
    CHECK(cc_mail_words(contexts[0], text, sizeof text, &nbytes) == 1);
    CHECK(nbytes == 4 && memcmp(text, "reas", 4) == 0);
}

/* One broken connection ends the letters of its peer, also those that UCX has, and all others hear. */
static void losses_are_told(void)
{
    char *data = malloc(LONGEST);
    cc_letter *in, *out, *flying;
    const endpoint *e;
    settle();
    in = cc_mail_recv(contexts[0], data, LONGEST, 2, 7, 0);
    do { /* until UCX has a request for one */
        flying = cc_mail_send(contexts[0], data, 10, 2, 7, 0);
    } while (!flying->is_flying && ended(flying).error == 0);
    e = endpoints[0][2];
    pthread_mutex_lock(&mails[0]->lock);
    e->params.err_handler.cb(e->params.err_handler.arg, endpoints[0][2], -80);
    pthread_mutex_unlock(&mails[0]->lock);
    CHECK(cc_mail_state(contexts[0], 2) == CC_DIED && !cc_mail_is_unreached(contexts[0], 2));
    CHECK(ended(in).error == CC_MAIL_LOST && ended(flying).error == CC_MAIL_LOST);
    out = cc_mail_send(contexts[0], data, 1, 2, 7, 0);
    in = cc_mail_recv(contexts[0], data, 1, 2, 7, 0);
    CHECK(ended(out).error == CC_MAIL_LOST && ended(in).error == CC_MAIL_LOST);
    settle();
    CHECK(cc_mail_state(contexts[1], 2) == CC_DIED && cc_mail_state(contexts[1], 0) == CC_PRESENT);
    free(data);
}

/* A fetch that fails, and a drop while it is under way: then its memory is in use until its end. */
static void fetches_fail(void)
{
    for (int drops = 0; drops < 2; ++drops) {
        char *data = malloc(LONGEST);
        cc_letter *in, *out;
        parcel *p;
        do {
            p = only(LONGEST, &out);
            CHECK(ended(out).error == 0);
            in = cc_mail_recv(contexts[1], data, LONGEST, 0, 3, 0);
            bring(p, sizeof p->header);
        } while (!in->is_flying && ended(in).error == 0);
        CHECK(fetching == 1 && (!drops || cc_letter_drop(in)));
        end_fetch(drops ? 0 : -1);
        CHECK(drops || ended(in).error == CC_MAIL_LOST);
        free(data);
    }
}

/* A message that UCX refuses is missing among those of its sender: nothing after it would arrive. */
static void refusals_are_losses(void)
{
    cc_ucs_status status;
    char data[1];
    open_all();
    CHECK(ended(cc_mail_send(contexts[1], data, 1, 0, 2, 0)).error == 0);
    refuses = 1;
    CHECK(strcmp(cc_wire_open(mails[1], &status), "ucp_init") == 0 && status == -1);
    refuses = 1;
    CHECK(ended(cc_mail_send(contexts[1], data, 1, 0, 1, 0)).error == CC_MAIL_LOST);
    CHECK(refuses == 0 && cc_mail_state(contexts[1], 0) == CC_DIED);
    settle();
    CHECK(cc_mail_state(contexts[2], 0) == CC_DIED);
    close_all();
}

static void ends_are_told(void)
{
    char data[1];
    cc_letter *in = cc_mail_recv(contexts[0], data, 1, 1, 1, 0);
    cc_wire_leave(mails[1], 1);
    CHECK(ended(in).error == CC_MAIL_LOST && cc_mail_state(contexts[0], 1) == CC_LEFT);
}

/* A rank that was never reached is known as such. */
static void first_contact_fails(void)
{
    char data[1];
    open_all();
    refuses = 1;
    CHECK(ended(cc_mail_send(contexts[0], data, 1, 1, 1, 0)).error == CC_MAIL_LOST);
    CHECK(cc_mail_is_unreached(contexts[0], 1) && cc_mail_state(contexts[0], 1) == CC_DIED);
    close_all();
}

static void libraries_are_found(void)
{
    CHECK(strstr(cc_ucp_load("/nowhere/libucp.so"), "/nowhere/libucp.so"));
    CHECK(strcmp(cc_ucp_load("libc.so.6"), "ucp_get_version") == 0);
}

int main(int argc, char **argv)
{
    rounds = begin(argc, argv);
    libraries_are_found();
    cc_ucp = (cc_ucp_functions){
        .init_version = init_version,
        .cleanup = destroy,
        .worker_create = worker_create,
        .worker_destroy = destroy,
        .worker_progress = progress,
        .worker_flush_nbx = flush,
        .worker_set_am_recv_handler = set_handler,
        .ep_create = ep_create,
        .ep_close_nbx = ep_close,
        .am_send_nbx = am_send,
        .am_recv_data_nbx = am_recv_data,
        .am_data_release = am_data_release,
        .request_check_status = check_status,
        .request_free = request_free,
    };
    first_contact_fails();
    open_all();
    for (int i = 0; i < rounds; ++i)
        messages_keep_their_order();
    other_headers_are_ignored(20);
    other_headers_are_ignored(LONGEST);
    errors_are_told();
    fetches_fail();
    losses_are_told();
    reasons_are_told();
    ends_are_told();
    close_all();
    refusals_are_losses();
    return 0;
}
