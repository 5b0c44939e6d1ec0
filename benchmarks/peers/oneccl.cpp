// The allreduce of oneCCL, for measure_peers.py, which calls it by ctypes.

#include <cstring>
#include <memory>
#include <oneapi/ccl.hpp>

namespace {
ccl::shared_ptr_class<ccl::kvs> store;
std::unique_ptr<ccl::communicator> ranks;
}  // namespace

extern "C" {

// The address of rank 0 has so many bytes.
std::size_t address_bytes() { return ccl::kvs::address_max_size; }

// Rank 0 calls this first, and hands the address to all others.
void open_store(char *address)
{
    ccl::init();
    store = ccl::create_main_kvs();
    std::memcpy(address, store->get_address().data(), ccl::kvs::address_max_size);
}

void join(int size, int rank, const char *address)
{
    ccl::init();
    if (!store) {
        ccl::kvs::address_type other;
        std::memcpy(other.data(), address, other.size());
        store = ccl::create_kvs(other);
    }
    ranks = std::make_unique<ccl::communicator>(ccl::create_communicator(size, rank, store));
}

void allreduce(const float *x, float *out, std::size_t count)
{
    ccl::allreduce(x, out, count, ccl::reduction::sum, *ranks).wait();
}
}
