// Stores that go around the caches.
//
// A processor that stores into memory it has not cached reads that memory first, and what it wrote
// pushes other data out of the cache. For a result that is larger than the cache both are wasted.
#ifndef TFDIST_OPS_CORE_BASE_STREAMING_STORE_H_
#define TFDIST_OPS_CORE_BASE_STREAMING_STORE_H_

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cstddef>
#include <cstring>

namespace tfdist {

constexpr size_t kCacheLine = 64;

// Copies whole cache lines; both addresses are multiples of kCacheLine. Another thread may read
// them after EndStream.
inline void StreamLines(void* out, const void* in, size_t bytes) {
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

inline void EndStream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_STREAMING_STORE_H_
