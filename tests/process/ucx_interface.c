/* The declarations of _core/ucx/ucp.h beside the headers of UCX: it compiles if they agree. */
#include <ucp/api/ucp.h>

#include "ucp.h"

#define SAME(ours, field, theirs, name)                               \
    _Static_assert(offsetof(ours, field) == offsetof(theirs, name) && \
                       sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->name), #field)
#define HOLDS(ours, theirs) _Static_assert(sizeof(ours) >= sizeof(theirs), #theirs)
#define EQUAL(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)

SAME(cc_ucp_params, features, ucp_params_t, features);
SAME(cc_ucp_params, estimated_num_eps, ucp_params_t, estimated_num_eps);
SAME(cc_ucp_worker_params, thread_mode, ucp_worker_params_t, thread_mode);
SAME(cc_ucp_am_handler_param, id, ucp_am_handler_param_t, id);
SAME(cc_ucp_am_handler_param, cb, ucp_am_handler_param_t, cb);
SAME(cc_ucp_am_handler_param, arg, ucp_am_handler_param_t, arg);
SAME(cc_ucp_am_recv_param, recv_attr, ucp_am_recv_param_t, recv_attr);
SAME(cc_ucp_ep_params, address, ucp_ep_params_t, address);
SAME(cc_ucp_ep_params, err_mode, ucp_ep_params_t, err_mode);
SAME(cc_ucp_ep_params, err_handler.cb, ucp_ep_params_t, err_handler.cb);
SAME(cc_ucp_ep_params, err_handler.arg, ucp_ep_params_t, err_handler.arg);
SAME(cc_ucp_request_param, op_attr_mask, ucp_request_param_t, op_attr_mask);
SAME(cc_ucp_request_param, flags, ucp_request_param_t, flags);
SAME(cc_ucp_request_param, cb.send, ucp_request_param_t, cb.send);
SAME(cc_ucp_request_param, user_data, ucp_request_param_t, user_data);
SAME(cc_ucp_request_param, memory_type, ucp_request_param_t, memory_type);

/* Fields behind those are left out by masks, but UCX may copy the whole structure. */
HOLDS(cc_ucp_worker_params, ucp_worker_params_t);
HOLDS(cc_ucp_ep_params, ucp_ep_params_t);
HOLDS(cc_ucp_request_param, ucp_request_param_t);

EQUAL(sizeof(cc_ucs_status), sizeof(ucs_status_t));
EQUAL(CC_UCS_IN_PROGRESS, UCS_INPROGRESS);
EQUAL(CC_UCS_LAST, UCS_ERR_LAST);
EQUAL(CC_UCP_FEATURE_AM, UCP_FEATURE_AM);
EQUAL(CC_UCP_PARAM_FEATURES, UCP_PARAM_FIELD_FEATURES);
EQUAL(CC_UCP_PARAM_NUM_EPS, UCP_PARAM_FIELD_ESTIMATED_NUM_EPS);
EQUAL(CC_UCP_WORKER_THREAD_MODE, UCP_WORKER_PARAM_FIELD_THREAD_MODE);
EQUAL(CC_UCS_THREAD_SERIALIZED, UCS_THREAD_MODE_SERIALIZED);
EQUAL(CC_UCP_HANDLER_ID, UCP_AM_HANDLER_PARAM_FIELD_ID);
EQUAL(CC_UCP_HANDLER_CB, UCP_AM_HANDLER_PARAM_FIELD_CB);
EQUAL(CC_UCP_HANDLER_ARG, UCP_AM_HANDLER_PARAM_FIELD_ARG);
EQUAL(CC_UCP_EP_ADDRESS, UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
EQUAL(CC_UCP_EP_ERR_MODE, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
EQUAL(CC_UCP_EP_ERR_HANDLER, UCP_EP_PARAM_FIELD_ERR_HANDLER);
EQUAL(CC_UCP_ERR_PEER, UCP_ERR_HANDLING_MODE_PEER);
EQUAL(CC_UCP_CLOSE_FORCE, UCP_EP_CLOSE_FLAG_FORCE);
EQUAL(CC_UCP_OP_CALLBACK, UCP_OP_ATTR_FIELD_CALLBACK);
EQUAL(CC_UCP_OP_USER_DATA, UCP_OP_ATTR_FIELD_USER_DATA);
EQUAL(CC_UCP_OP_FLAGS, UCP_OP_ATTR_FIELD_FLAGS);
EQUAL(CC_UCP_OP_MEMORY_TYPE, UCP_OP_ATTR_FIELD_MEMORY_TYPE);
EQUAL(CC_UCP_RECV_DATA, UCP_AM_RECV_ATTR_FLAG_DATA);
EQUAL(CC_UCP_RECV_RNDV, UCP_AM_RECV_ATTR_FLAG_RNDV);
EQUAL(CC_UCS_HOST, UCS_MEMORY_TYPE_HOST);
