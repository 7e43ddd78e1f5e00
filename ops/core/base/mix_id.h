// A hash function for ids.
#ifndef TFDIST_OPS_CORE_BASE_MIX_ID_H_
#define TFDIST_OPS_CORE_BASE_MIX_ID_H_

#include <cstdint>

namespace tfdist {

// Spreads ids evenly over 64 bits; one to one (the finalizer of Steele et al. 2014, SplitMix64).
inline uint64_t MixId(int64_t id) {
  uint64_t x = static_cast<uint64_t>(id) + 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_MIX_ID_H_
