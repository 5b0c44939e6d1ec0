/* The functions of UCX, found at run time. */
#include <dlfcn.h>
#include <string.h>

#include "ucp.h"

cc_ucp_functions cc_ucp;

const char *cc_ucp_load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct {
        const char *name;
        void *slot;
    } wanted[] = {
        {"ucp_get_version", &cc_ucp.get_version},
        {"ucs_status_string", &cc_ucp.status_string},
        {"ucp_init_version", &cc_ucp.init_version},
        {"ucp_cleanup", &cc_ucp.cleanup},
        {"ucp_worker_create", &cc_ucp.worker_create},
        {"ucp_worker_destroy", &cc_ucp.worker_destroy},
        {"ucp_worker_get_address", &cc_ucp.worker_get_address},
        {"ucp_worker_release_address", &cc_ucp.worker_release_address},
        {"ucp_worker_progress", &cc_ucp.worker_progress},
        {"ucp_worker_flush_nbx", &cc_ucp.worker_flush_nbx},
        {"ucp_worker_set_am_recv_handler", &cc_ucp.worker_set_am_recv_handler},
        {"ucp_ep_create", &cc_ucp.ep_create},
        {"ucp_ep_close_nbx", &cc_ucp.ep_close_nbx},
        {"ucp_am_send_nbx", &cc_ucp.am_send_nbx},
        {"ucp_am_recv_data_nbx", &cc_ucp.am_recv_data_nbx},
        {"ucp_am_data_release", &cc_ucp.am_data_release},
        {"ucp_request_check_status", &cc_ucp.request_check_status},
        {"ucp_request_free", &cc_ucp.request_free},
    };
    if (!library)
        return dlerror();
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; ++i) {
        void *symbol = dlsym(library, wanted[i].name);
        if (!symbol)
            return wanted[i].name;
        memcpy(wanted[i].slot, &symbol, sizeof symbol);
    }
    return NULL;
}
