/* Messages between the ranks of different hosts, by active messages of UCX.
 *
 * A message is one active message, whose header has its number among those of its sender.
 * UCX brings it whole, or asks for memory if it is long. An endpoint is made for a peer when the first
 * message to it or from it is started, and sends a greeting, so that both ranks have one: by its
 * endpoint a rank learns that a peer is lost. A rank that ends tells all ranks that it has endpoints
 * for, and a rank that learns of an end tells all others, which may wait for a waiting rank.
 *
 * UCX runs callbacks inside calls that advance or start messages; the lock of the mail is held in all
 * of them.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <time.h>

#include "../mail/letter.h"
#include "../shared/clock.h"
#include "wire.h"

/* -- endings ------------------------------------------------------------------------------------- */

void cc_wire_ends(cc_peer *peer)
{
    while (peer->asked.first) {
        cc_letter *letter = peer->asked.first;
        cc_letters_take(&peer->asked, letter);
        cc_letter_ends(letter, CC_MAIL_LOST);
    }
}

/* Handle a failed connection; others may have told of the end of the peer before. */
static void cc_wire_lost(cc_peer *peer)
{
    if (peer->state == CC_PRESENT)
        peer->is_unreached = !peer->come;
    cc_peer_dies(peer);
}

/* Handle an error of an endpoint, called by UCX. */
static void cc_wire_broke(void *arg, void *endpoint, cc_ucs_status status)
{
    cc_peer *peer = arg;
    (void)endpoint;
    (void)status;
    cc_wire_lost(peer);
    cc_wire_ends(peer);
}

/* Seconds of silence until the kernel probes a host, between such probes, and until a connection ends
 * on which nothing is acknowledged. */
enum { CC_KEEP_IDLE = 4, CC_KEEP_INTERVAL = 2, CC_SILENCE = 10 };

uint8_t cc_wire_ports[1 << 16];

static int cc_port_of(int (*name)(int, struct sockaddr *, socklen_t *), int file)
{
    struct sockaddr_storage place;
    socklen_t nbytes = sizeof place;
    if (name(file, (struct sockaddr *)&place, &nbytes) || (place.ss_family != AF_INET && place.ss_family != AF_INET6))
        return 0;
    return ntohs(((struct sockaddr_in *)&place)->sin_port); /* at the same place in both families */
}

static void cc_set(int file, int level, int option, int value)
{
    (void)setsockopt(file, level, option, &value, sizeof value);
}

void cc_wire_watch(void)
{
    struct dirent *each;
    DIR *files = opendir("/proc/self/fd");
    if (!files)
        return;
    while ((each = readdir(files))) {
        int file = atoi(each->d_name);
        int peer = cc_port_of(getpeername, file);
        if (peer && (cc_wire_ports[peer] || cc_wire_ports[cc_port_of(getsockname, file)])) {
            cc_set(file, IPPROTO_TCP, TCP_USER_TIMEOUT, CC_SILENCE * 1000);
            cc_set(file, IPPROTO_TCP, TCP_KEEPIDLE, CC_KEEP_IDLE);
            cc_set(file, IPPROTO_TCP, TCP_KEEPINTVL, CC_KEEP_INTERVAL);
            cc_set(file, SOL_SOCKET, SO_KEEPALIVE, 1);
        }
    }
    closedir(files);
}

/* -- sending ------------------------------------------------------------------------------------- */

int cc_wire_connect(cc_peer *peer)
{
    cc_ucp_ep_params params = {
        .field_mask = CC_UCP_EP_ADDRESS | CC_UCP_EP_ERR_MODE | CC_UCP_EP_ERR_HANDLER,
        .address = peer->address,
        .err_mode = CC_UCP_ERR_PEER,
        .err_handler = {cc_wire_broke, peer},
    };
    if (peer->endpoint || peer->state != CC_PRESENT)
        return peer->state == CC_PRESENT;
    if (cc_ucp.ep_create(peer->mail->worker, &params, &peer->endpoint)) {
        peer->endpoint = NULL;
        cc_wire_lost(peer);
        return 0;
    }
    cc_mail_tell(peer->mail, peer, CC_GREETING);
    return 1;
}

static void cc_wire_sent(void *request, cc_ucs_status status, void *letter)
{
    cc_ucp.request_free(request);
    cc_letter_ends(letter, status ? CC_MAIL_LOST : 0);
}

void cc_wire_send(cc_letter *letter)
{
    cc_mail *mail = letter->mail;
    cc_peer *peer = &mail->peers[letter->peer];
    const cc_ucp_request_param param = {
        .op_attr_mask = CC_UCP_OP_CALLBACK | CC_UCP_OP_USER_DATA | CC_UCP_OP_MEMORY_TYPE,
        .cb.send = cc_wire_sent,
        .user_data = letter,
        .memory_type = CC_UCS_HOST,
    };
    void *request;
    if (!cc_wire_connect(peer)) {
        cc_letter_ends(letter, CC_MAIL_LOST);
        return;
    }
    letter->header = (cc_wire_header){
        .token = mail->token,
        .tag = letter->tag,
        .context = letter->context,
        .nbytes = letter->nbytes,
        .total = letter->nbytes,
        .what = letter->what,
        .number = peer->sent++,
        .sender = (uint64_t)mail->me,
    };
    letter->is_flying = 1;
    request = cc_ucp.am_send_nbx(peer->endpoint, 0, &letter->header, sizeof letter->header, letter->data,
                                 letter->nbytes, &param);
    if (cc_ucp_is_error(request)) {
        cc_letter_ends(letter, CC_MAIL_LOST);
        cc_wire_broke(peer, NULL, 0); /* which waits for a message with this number */
    } else if (!request) {
        cc_letter_ends(letter, 0);
    }
}

/* -- receiving ----------------------------------------------------------------------------------- */

static void cc_wire_fetched(void *request, cc_ucs_status status, size_t nbytes, void *letter)
{
    (void)nbytes;
    cc_ucp.request_free(request);
    cc_letter_ends(letter, status ? CC_MAIL_LOST : 0);
}

/* Give a receive its message: the data, or UCX's descriptor of them. Return whether UCX must keep the
 * descriptor. */
static int cc_wire_give(cc_letter *letter, const cc_wire_header *header, const void *data, void *remote)
{
    const cc_ucp_request_param param = {
        .op_attr_mask = CC_UCP_OP_CALLBACK | CC_UCP_OP_USER_DATA | CC_UCP_OP_MEMORY_TYPE,
        .cb.recv_am = cc_wire_fetched,
        .user_data = letter,
        .memory_type = CC_UCS_HOST,
    };
    void *request;
    if (!cc_letter_fits(letter, header)) {
        cc_letter_ends(letter, letter->error);
        return 0;
    }
    if (!remote) {
        if (header->nbytes)
            memcpy(letter->data, data, header->nbytes);
        cc_letter_ends(letter, 0);
        return 0;
    }
    letter->is_flying = 1;
    request = cc_ucp.am_recv_data_nbx(letter->mail->worker, remote, letter->data, header->nbytes, &param);
    if (!request || cc_ucp_is_error(request))
        cc_letter_ends(letter, request ? CC_MAIL_LOST : 0);
    return 1;
}

void cc_wire_give_early(cc_letter *letter, cc_early *early)
{
    if (!cc_wire_give(letter, &early->header, early->data, early->remote) && early->remote)
        cc_ucp.am_data_release(letter->mail->worker, early->remote);
}

/* Return a copy of a message, or NULL without memory. */
static cc_early *cc_wire_keep(const cc_wire_header *header, const void *data, void *remote)
{
    cc_early *early = malloc(sizeof *early + (remote ? 0 : header->nbytes));
    if (!early)
        return NULL;
    early->next = NULL;
    early->header = *header;
    early->remote = remote;
    if (!remote && header->nbytes)
        memcpy(early->data, data, header->nbytes);
    return early;
}

/* Take the next message of a peer. Return whether UCX must keep its descriptor. */
static int cc_wire_take(cc_peer *peer, const cc_wire_header *header, const void *data, void *remote)
{
    cc_letter *letter;
    cc_early *early;
    ++peer->come;
    if (header->context == CC_NOTICES) {
        cc_mail_hears(peer, header->tag);
        return 0;
    }
    letter = cc_peer_asks(peer, header);
    if (letter)
        return cc_wire_give(letter, header, data, remote);
    early = cc_wire_keep(header, data, remote);
    if (!early) { /* a missing message cannot be replaced */
        cc_wire_broke(peer, NULL, 0);
        return 0;
    }
    *peer->early_end = early;
    peer->early_end = &early->next;
    return remote != NULL;
}

/* Take the held messages that are next. */
static void cc_wire_catch_up(cc_peer *peer)
{
    cc_early **at = &peer->held;
    while (*at) {
        cc_early *early = *at;
        if (early->header.number != peer->come) {
            at = &early->next;
            continue;
        }
        *at = early->next;
        if (!cc_wire_take(peer, &early->header, early->data, early->remote) && early->remote)
            cc_ucp.am_data_release(peer->mail->worker, early->remote);
        free(early);
        at = &peer->held;
    }
}

/* Handle a message, called by UCX. */
static cc_ucs_status cc_wire_came(void *arg, const void *come, size_t header_length, void *data, size_t length,
                                  const void *param)
{
    cc_mail *mail = arg;
    void *remote = ((const cc_ucp_am_recv_param *)param)->recv_attr & CC_UCP_RECV_RNDV ? data : NULL;
    cc_wire_header header;
    cc_peer *peer;
    int keeps;
    if (header_length != sizeof header)
        return CC_UCS_OK;
    memcpy(&header, come, sizeof header);
    if (header.token != mail->token || header.sender >= (uint64_t)mail->p || header.nbytes != (int64_t)length)
        return CC_UCS_OK; /* of another job */
    peer = &mail->peers[header.sender];
    if (header.number == peer->come) {
        keeps = cc_wire_take(peer, &header, data, remote);
        cc_wire_catch_up(peer);
    } else {
        cc_early *early = cc_wire_keep(&header, data, remote);
        if (!early) {
            cc_wire_broke(peer, NULL, 0);
            return CC_UCS_OK;
        }
        early->next = peer->held;
        peer->held = early;
        keeps = remote != NULL;
    }
    return keeps ? CC_UCS_IN_PROGRESS : CC_UCS_OK;
}

/* -- the worker ---------------------------------------------------------------------------------- */

const char *cc_wire_open(cc_mail *mail, cc_ucs_status *status)
{
    const cc_ucp_params params = {
        .field_mask = CC_UCP_PARAM_FEATURES | CC_UCP_PARAM_NUM_EPS,
        .features = CC_UCP_FEATURE_AM,
        .estimated_num_eps = mail->p,
    };
    const cc_ucp_worker_params worker_params = {
        .field_mask = CC_UCP_WORKER_THREAD_MODE,
        .thread_mode = CC_UCS_THREAD_SERIALIZED,
    };
    const cc_ucp_am_handler_param handler = {
        .field_mask = CC_UCP_HANDLER_ID | CC_UCP_HANDLER_CB | CC_UCP_HANDLER_ARG,
        .cb = cc_wire_came,
        .arg = mail,
    };
    *status = cc_ucp.init_version(CC_UCP_MAJOR, CC_UCP_MINOR, &params, NULL, &mail->library);
    if (*status)
        return "ucp_init";
    *status = cc_ucp.worker_create(mail->library, &worker_params, &mail->worker);
    if (*status)
        return "ucp_worker_create";
    *status = cc_ucp.worker_set_am_recv_handler(mail->worker, &handler);
    return *status ? "ucp_worker_set_am_recv_handler" : NULL;
}

void cc_wire_leave(cc_mail *mail, double seconds)
{
    const cc_ucp_request_param param = {.op_attr_mask = 0};
    const struct timespec nap = {0, 20000};
    const uint64_t limit = cc_nanoseconds() + (uint64_t)(seconds * 1e9);
    void *request;
    pthread_mutex_lock(&mail->lock);
    for (int i = 0; i < mail->p; ++i) {
        cc_peer *peer = &mail->peers[i];
        if (peer->endpoint && peer->state == CC_PRESENT)
            cc_mail_tell(mail, peer, mail->me);
    }
    request = cc_ucp.worker_flush_nbx(mail->worker, &param);
    if (request && !cc_ucp_is_error(request)) {
        while (cc_ucp.request_check_status(request) == CC_UCS_IN_PROGRESS && cc_nanoseconds() < limit)
            if (!cc_ucp.worker_progress(mail->worker))
                nanosleep(&nap, NULL);
        cc_ucp.request_free(request);
    }
    pthread_mutex_unlock(&mail->lock);
}

void cc_wire_close(cc_mail *mail)
{
    const cc_ucp_request_param param = {.op_attr_mask = CC_UCP_OP_FLAGS, .flags = CC_UCP_CLOSE_FORCE};
    for (int i = 0; i < mail->p; ++i) {
        cc_peer *peer = &mail->peers[i];
        if (peer->endpoint) {
            void *request = cc_ucp.ep_close_nbx(peer->endpoint, &param);
            if (request && !cc_ucp_is_error(request)) {
                while (cc_ucp.request_check_status(request) == CC_UCS_IN_PROGRESS)
                    cc_ucp.worker_progress(mail->worker);
                cc_ucp.request_free(request);
            }
        }
        peer->endpoint = NULL;
        free(peer->address);
    }
    if (mail->worker)
        cc_ucp.worker_destroy(mail->worker);
    if (mail->library)
        cc_ucp.cleanup(mail->library);
}
