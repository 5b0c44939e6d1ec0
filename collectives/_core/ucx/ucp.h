/* The used part of UCX's binary interface, so that UCX is not needed to build. The names and numbers are
 * those of its headers, from version 1.12 on, and structures have the fields up to the last one that is
 * used. A test compiles this file beside the headers of an installed UCX.
 */
#ifndef COLLECTIVES_UCP_H
#define COLLECTIVES_UCP_H

#include <stddef.h>
#include <stdint.h>

#define CC_UCP_MAJOR 1
#define CC_UCP_MINOR 12

typedef int8_t cc_ucs_status; /* an enumeration that is packed into one byte */

enum { CC_UCS_OK = 0, CC_UCS_IN_PROGRESS = 1, CC_UCS_LAST = -100 };

typedef struct {
    uint64_t field_mask;
    uint64_t features;
    size_t request_size;
    void *request_init, *request_cleanup;
    uint64_t tag_sender_mask;
    int mt_workers_shared;
    size_t estimated_num_eps;
} cc_ucp_params;

typedef struct {
    uint64_t field_mask;
    int thread_mode;
    char unused[256]; /* fields that the mask leaves out */
} cc_ucp_worker_params;

typedef struct {
    uint64_t field_mask;
    unsigned id;
    uint32_t flags;
    cc_ucs_status (*cb)(void *arg, const void *header, size_t header_length, void *data, size_t length,
                        const void *param);
    void *arg;
} cc_ucp_am_handler_param;

typedef struct {
    uint64_t recv_attr;
    void *reply_ep;
} cc_ucp_am_recv_param;

typedef struct {
    uint64_t field_mask;
    const void *address;
    int err_mode;
    struct {
        void (*cb)(void *arg, void *ep, cc_ucs_status status);
        void *arg;
    } err_handler;
    char unused[256];
} cc_ucp_ep_params;

typedef struct {
    uint32_t op_attr_mask;
    uint32_t flags;
    void *request;
    union {
        void (*send)(void *request, cc_ucs_status status, void *user_data);
        void (*recv_am)(void *request, cc_ucs_status status, size_t length, void *user_data);
    } cb;
    uint64_t datatype;
    void *user_data;
    void *reply_buffer;
    int memory_type;
    char unused[128];
} cc_ucp_request_param;

enum {
    CC_UCP_FEATURE_AM = 1 << 6,
    CC_UCP_PARAM_FEATURES = 1 << 0,
    CC_UCP_PARAM_NUM_EPS = 1 << 6,
    CC_UCP_WORKER_THREAD_MODE = 1 << 0,
    CC_UCS_THREAD_SERIALIZED = 1,
    CC_UCP_HANDLER_ID = 1 << 0,
    CC_UCP_HANDLER_CB = 1 << 2,
    CC_UCP_HANDLER_ARG = 1 << 3,
    CC_UCP_EP_ADDRESS = 1 << 0,
    CC_UCP_EP_ERR_MODE = 1 << 1,
    CC_UCP_EP_ERR_HANDLER = 1 << 2,
    CC_UCP_ERR_PEER = 1,
    CC_UCP_CLOSE_FORCE = 1 << 0,
    CC_UCP_OP_CALLBACK = 1 << 1,
    CC_UCP_OP_USER_DATA = 1 << 2,
    CC_UCP_OP_FLAGS = 1 << 4,
    CC_UCP_OP_MEMORY_TYPE = 1 << 6,
    CC_UCP_RECV_DATA = 1 << 16,
    CC_UCP_RECV_RNDV = 1 << 17,
    CC_UCS_HOST = 0,
};

/* The functions, which are found at run time. */
typedef struct {
    void (*get_version)(unsigned *major, unsigned *minor, unsigned *release);
    const char *(*status_string)(cc_ucs_status);
    cc_ucs_status (*init_version)(unsigned major, unsigned minor, const cc_ucp_params *, const void *config,
                                  void **context);
    void (*cleanup)(void *context);
    cc_ucs_status (*worker_create)(void *context, const cc_ucp_worker_params *, void **worker);
    void (*worker_destroy)(void *worker);
    cc_ucs_status (*worker_get_address)(void *worker, void **address, size_t *nbytes);
    void (*worker_release_address)(void *worker, void *address);
    unsigned (*worker_progress)(void *worker);
    void *(*worker_flush_nbx)(void *worker, const cc_ucp_request_param *);
    cc_ucs_status (*worker_set_am_recv_handler)(void *worker, const cc_ucp_am_handler_param *);
    cc_ucs_status (*ep_create)(void *worker, const cc_ucp_ep_params *, void **ep);
    void *(*ep_close_nbx)(void *ep, const cc_ucp_request_param *);
    void *(*am_send_nbx)(void *ep, unsigned id, const void *header, size_t header_length, const void *buffer,
                         size_t count, const cc_ucp_request_param *);
    void *(*am_recv_data_nbx)(void *worker, void *data, void *buffer, size_t count, const cc_ucp_request_param *);
    void (*am_data_release)(void *worker, void *data);
    cc_ucs_status (*request_check_status)(void *request);
    void (*request_free)(void *request);
} cc_ucp_functions;

extern cc_ucp_functions cc_ucp;

/* Functions that may start something return NULL, a request, or an error. */
static inline int cc_ucp_is_error(const void *returned)
{
    return (uintptr_t)returned >= (uintptr_t)(intptr_t)CC_UCS_LAST;
}

/* Load a library and find the functions. Return NULL, or the text of an error. */
const char *cc_ucp_load(const char *path);

#endif
