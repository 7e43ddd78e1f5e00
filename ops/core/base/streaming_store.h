// Non-temporal stores, which bypass the caches.
//
// An ordinary store to memory that is not cached reads that memory first, and its data evicts other
// data from the cache. For a result that is larger than the cache both costs are wasted.
#ifndef TFDIST_OPS_CORE_BASE_STREAMING_STORE_H_
#define TFDIST_OPS_CORE_BASE_STREAMING_STORE_H_

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cstddef>
#include <cstring>

namespace tfdist {

constexpr size_t kCacheLine = 64;

// Copies whole cache lines; both addresses are multiples of kCacheLine. Other threads may read the
// result after FenceStreamingStores.
inline void StreamingCopy(void* out, const void* in, size_t bytes) {
#if defined(__SSE2__)
  auto* to = static_cast<__m128i*>(out);
  const auto* from = static_cast<const __m128i*>(in);
  for (size_t i = 0; i < bytes / sizeof(__m128i); ++i) {
    _mm_stream_si128(to + i, _mm_load_si128(from + i));
  }
#else
  std::memcpy(out, in, bytes);
#endif
}

inline void FenceStreamingStores() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_STREAMING_STORE_H_
