/* The binding to the MPI that is already in the process.
 *
 * mpi4py has chosen and loaded an MPI library. Its functions are found by name, first in the default
 * scope (so that tools that are preloaded keep working), then through mpi4py's own extension module,
 * which has libmpi in its scope. Constants are handed over from mpi4py objects. Handles are ints in
 * the MPICH family and pointers elsewhere; the calls are compiled for both and one table is chosen.
 */
#ifndef COLLECTIVES_MPI_BINDING_H
#define COLLECTIVES_MPI_BINDING_H

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#include "../executor/transport.h"

enum { CC_STATUS = 256 }; /* bytes: more than any MPI_Status has */

static struct {
    uint64_t byte;         /* MPI_BYTE */
    uint64_t request_null; /* MPI_REQUEST_NULL */
    int undefined;         /* MPI_UNDEFINED */
    int any_source;        /* MPI_ANY_SOURCE */
    int any_tag;           /* MPI_ANY_TAG */
    uint64_t world;        /* MPI_COMM_WORLD */
    int (*get_library_version)(char *, int *);
} cc_mpi;

typedef struct {
    const char *name;
    void *slot; /* where the function goes */
} cc_symbol;

/* Find functions by their names, up to an entry without a name. Return NULL, or the name of a missing
 * function. */
static const char *cc_find(void *library, const cc_symbol *wanted)
{
    for (; wanted->name; ++wanted) {
        void *symbol = dlsym(RTLD_DEFAULT, wanted->name);
        if (!symbol)
            symbol = dlsym(library, wanted->name);
        if (!symbol)
            return wanted->name;
        memcpy(wanted->slot, &symbol, sizeof symbol);
    }
    return NULL;
}

#define CC_HANDLE int
#define CC_NAME(x) cc_int_##x
#include "calls.h"
#undef CC_HANDLE
#undef CC_NAME

#define CC_HANDLE void *
#define CC_NAME(x) cc_pointer_##x
#include "calls.h"
#undef CC_HANDLE
#undef CC_NAME

/* Find the functions; `path` is the file of mpi4py's extension module, which is loaded. Return the
 * transport, or NULL with the missing function in *missing (NULL: the module is not loaded). */
static cc_transport *cc_mpi_bind(const char *path, int handle_size, const char **missing)
{
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    cc_transport *transport = handle_size == sizeof(int) ? &cc_int_transport : &cc_pointer_transport;
    const cc_symbol wanted[] = {
        {"MPI_Error_class", &transport->error_class},
        {"MPI_Error_string", &transport->error_string},
        {"MPI_Get_library_version", &cc_mpi.get_library_version},
        {NULL, NULL},
    };
    *missing = NULL;
    if (!library)
        return NULL;
    *missing = cc_find(library, wanted);
    if (!*missing)
        *missing = handle_size == sizeof(int) ? cc_int_lookup(library) : cc_pointer_lookup(library);
    return *missing ? NULL : transport;
}

#endif
