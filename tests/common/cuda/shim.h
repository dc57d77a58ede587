// What makes a kernel C++ for the host: its words mean nothing, and threads come one after the other.
#include <cstddef>
#include <utility>

struct fake_dim { unsigned x, y, z; };
static fake_dim threadIdx, blockIdx, blockDim, gridDim;
static int fake_sticky;
#define __global__
#define __device__
static inline void __trap() { fake_sticky = 719; }

template <class... A, std::size_t... I>
static void fake_call(void (*f)(A...), void **p, std::index_sequence<I...>) { f(*static_cast<A *>(p[I])...); }

template <class... A>
static int fake_grid(void (*f)(A...), void **p, unsigned grid, unsigned block) {
    gridDim = {grid, 1, 1}, blockDim = {block, 1, 1};
    for (blockIdx = {0, 0, 0}; blockIdx.x < grid; blockIdx.x++)
        for (threadIdx = {0, 0, 0}; threadIdx.x < block && !fake_sticky; threadIdx.x++)
            fake_call(f, p, std::index_sequence_for<A...>());
    return fake_sticky;
}
