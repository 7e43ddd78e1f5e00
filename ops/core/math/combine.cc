#include "core/math/combine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/base/half.h"

namespace tfdist {
namespace {

template <typename T>
bool IsNan(T value) {
  if constexpr (std::is_integral_v<T>) {
    return false;
  } else {
    return value != value;
  }
}

// `|` instead of `||`: without a branch the compiler vectorizes the loops.
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    return (a < b) | IsNan(a) ? a : b;
  }
};

struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return (a > b) | IsNan(a) ? a : b;
  }
};

struct Product {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      // Unsigned, so that overflow wraps, and wide enough not to be promoted to a signed type.
      using Wide = std::conditional_t<sizeof(T) < 8, uint32_t, uint64_t>;
      return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
    } else {
      return a * b;
    }
  }
};

struct And {
  uint8_t operator()(uint8_t a, uint8_t b) const { return a & b; }
};

template <typename T, typename Op>
void Loop(void* out, const void* a, const void* b, size_t count, Op op) {
  auto* o = static_cast<T*>(out);
  const auto* x = static_cast<const T*>(a);
  const auto* y = static_cast<const T*>(b);
  for (size_t i = 0; i < count; ++i) o[i] = op(x[i], y[i]);
}

// TFDIST_MULTIVERSION does not work on templates, so a macro defines each function.
#define TFDIST_16_BIT_LOOP(name, T, to, Op)                          \
  TFDIST_MULTIVERSION                                                \
  void name(void* out, const void* a, const void* b, size_t count) { \
    auto* o = static_cast<T*>(out);                                  \
    const auto* x = static_cast<const T*>(a);                        \
    const auto* y = static_cast<const T*>(b);                        \
    for (size_t i = 0; i < count; ++i) {                             \
      o[i] = to(Op()(ToFloat(x[i]), ToFloat(y[i])));                 \
    }                                                                \
  }

TFDIST_16_BIT_LOOP(MinHalf, Half, static_cast<Half>, Min)
TFDIST_16_BIT_LOOP(MaxHalf, Half, static_cast<Half>, Max)
TFDIST_16_BIT_LOOP(MultiplyHalf, Half, static_cast<Half>, Product)
TFDIST_16_BIT_LOOP(MinBFloat16, BFloat16, FromFloat, Min)
TFDIST_16_BIT_LOOP(MaxBFloat16, BFloat16, FromFloat, Max)
TFDIST_16_BIT_LOOP(MultiplyBFloat16, BFloat16, FromFloat, Product)
#undef TFDIST_16_BIT_LOOP

using Loop16 = void (*)(void*, const void*, const void*, size_t);

template <typename Op>
void CombineWith(DType dtype, void* out, const void* a, const void* b, size_t count, Op op,
                 Loop16 half, Loop16 bfloat16) {
  switch (dtype) {
    case DType::kFloat16:
      return half(out, a, b, count);
    case DType::kBFloat16:
      return bfloat16(out, a, b, count);
    case DType::kFloat32:
      return Loop<float>(out, a, b, count, op);
    case DType::kFloat64:
      return Loop<double>(out, a, b, count, op);
    case DType::kInt32:
      return Loop<int32_t>(out, a, b, count, op);
    case DType::kInt64:
      return Loop<int64_t>(out, a, b, count, op);
    case DType::kInt8:
      return Loop<int8_t>(out, a, b, count, op);
    case DType::kInt16:
      return Loop<int16_t>(out, a, b, count, op);
    case DType::kUInt8:
      return Loop<uint8_t>(out, a, b, count, op);
    case DType::kBool:
    case DType::kBytes:
      break;
  }
  std::abort();  // bools are handled by the caller, opaque bytes are refused earlier
}

template <typename T>
void Fill(void* out, size_t count, T value) {
  std::fill_n(static_cast<T*>(out), count, value);
}

template <typename T>
void FillIdentity(ReduceOp op, void* out, size_t count) {
  using Limits = std::numeric_limits<T>;
  const T highest = Limits::has_infinity ? Limits::infinity() : Limits::max();
  const T lowest = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  Fill<T>(out, count, op == ReduceOp::kMin ? highest : op == ReduceOp::kMax ? lowest : T(1));
}

}  // namespace

const char* Name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMean:
      return "mean";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kProduct:
      return "product";
  }
  return "an unknown operation";
}

bool CanReduce(DType dtype, ReduceOp op) {
  return dtype != DType::kBytes && (dtype != DType::kBool || op != ReduceOp::kMean);
}

void Combine(DType dtype, ReduceOp op, void* out, const void* a, const void* b, size_t count) {
  const bool conjunction = op == ReduceOp::kMin || op == ReduceOp::kProduct;
  if (dtype == DType::kBool && conjunction) return Loop<uint8_t>(out, a, b, count, And());
  if (dtype == DType::kBool) return Add(dtype, out, a, b, count);
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      return Add(dtype, out, a, b, count);
    case ReduceOp::kMin:
      return CombineWith(dtype, out, a, b, count, Min(), MinHalf, MinBFloat16);
    case ReduceOp::kMax:
      return CombineWith(dtype, out, a, b, count, Max(), MaxHalf, MaxBFloat16);
    case ReduceOp::kProduct:
      return CombineWith(dtype, out, a, b, count, Product(), MultiplyHalf, MultiplyBFloat16);
  }
}

void FillIdentity(DType dtype, ReduceOp op, void* out, size_t count) {
  const bool zero = op == ReduceOp::kSum || op == ReduceOp::kMean ||
                    (dtype == DType::kBool && op == ReduceOp::kMax);
  if (zero) {
    std::memset(out, 0, count * ByteSize(dtype));
    return;
  }
  switch (dtype) {
    case DType::kFloat16:
      // The infinities, and 1.
      return Fill<uint16_t>(out, count,
                            op == ReduceOp::kMin   ? 0x7c00
                            : op == ReduceOp::kMax ? 0xfc00
                                                   : 0x3c00);
    case DType::kBFloat16:
      return Fill<uint16_t>(out, count,
                            op == ReduceOp::kMin   ? 0x7f80
                            : op == ReduceOp::kMax ? 0xff80
                                                   : 0x3f80);
    case DType::kFloat32:
      return FillIdentity<float>(op, out, count);
    case DType::kFloat64:
      return FillIdentity<double>(op, out, count);
    case DType::kInt32:
      return FillIdentity<int32_t>(op, out, count);
    case DType::kInt64:
      return FillIdentity<int64_t>(op, out, count);
    case DType::kInt8:
      return FillIdentity<int8_t>(op, out, count);
    case DType::kInt16:
      return FillIdentity<int16_t>(op, out, count);
    case DType::kUInt8:
      return FillIdentity<uint8_t>(op, out, count);
    case DType::kBool:
      return Fill<uint8_t>(out, count, 1);
    case DType::kBytes:
      break;
  }
  std::abort();
}

}  // namespace tfdist
