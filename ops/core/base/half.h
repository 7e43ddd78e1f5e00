// 16-bit floats, and a macro that compiles loops over them for several instruction sets.
#ifndef TFDIST_OPS_CORE_BASE_HALF_H_
#define TFDIST_OPS_CORE_BASE_HALF_H_

#include <cstdint>
#include <cstring>

// Fast half precision needs AVX2 and F16C, which a distributed binary cannot assume: both versions
// are compiled, and the loader chooses one. Not under the sanitizers, which intercept calls before
// the loader has chosen.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TFDIST_MULTIVERSION __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define TFDIST_MULTIVERSION
#endif

namespace tfdist {

struct BFloat16 {
  uint16_t bits;
};

inline float ToFloat(BFloat16 value) {
  const uint32_t wide = static_cast<uint32_t>(value.bits) << 16;
  float out;
  std::memcpy(&out, &wide, sizeof(out));
  return out;
}

inline BFloat16 FromFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  // Rounding could turn a NaN into an infinity: set the quiet bit instead, and keep the sign.
  return BFloat16{static_cast<uint16_t>((is_nan ? bits | 0x400000u : rounded) >> 16)};
}

using Half = _Float16;

inline float ToFloat(Half value) { return static_cast<float>(value); }
inline float ToFloat(float value) { return value; }

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_HALF_H_
