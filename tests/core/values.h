// Small integers in any element type: every result is exact and has a closed form.
#ifndef TFDIST_TESTS_CORE_VALUES_H_
#define TFDIST_TESTS_CORE_VALUES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/math/dtype.h"

namespace tfdist::testing {

inline const std::vector<DType> kReducible = {
    DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64, DType::kInt32,
    DType::kInt64,   DType::kInt8,     DType::kInt16,   DType::kUInt8,   DType::kBool};

inline void Store(DType dtype, char* at, int value) {
  const auto copy = [at](auto number) { std::memcpy(at, &number, sizeof(number)); };
  switch (dtype) {
    case DType::kFloat16:
      return copy(static_cast<_Float16>(value));
    case DType::kBFloat16: {
      const float wide = static_cast<float>(value);
      uint32_t bits;
      std::memcpy(&bits, &wide, sizeof(bits));
      return copy(static_cast<uint16_t>(bits >> 16));
    }
    case DType::kFloat32:
      return copy(static_cast<float>(value));
    case DType::kFloat64:
      return copy(static_cast<double>(value));
    case DType::kInt32:
      return copy(static_cast<int32_t>(value));
    case DType::kInt64:
      return copy(static_cast<int64_t>(value));
    case DType::kInt8:
      return copy(static_cast<int8_t>(value));
    case DType::kInt16:
      return copy(static_cast<int16_t>(value));
    case DType::kBytes:
    case DType::kUInt8:
      return copy(static_cast<uint8_t>(value));
    case DType::kBool:
      return copy(static_cast<uint8_t>(value != 0));
  }
}

// The period of all values here: 4 * 3 * 7 * 11 elements.
inline constexpr size_t kPeriod = 924;

// The bytes of `count` elements with the values value(i).
inline std::string Encoded(DType dtype, size_t count, const std::function<int(size_t)>& value) {
  const size_t width = ByteSize(dtype);
  std::string bytes(std::min(count, kPeriod) * width, '\0');
  for (size_t i = 0; i * width < bytes.size(); ++i) {
    Store(dtype, bytes.data() + i * width, value(i));
  }
  const std::string period = bytes;
  bytes.reserve(count * width);
  while (bytes.size() < count * width) {
    bytes.append(period, 0, std::min(period.size(), count * width - bytes.size()));
  }
  return bytes;
}

// Element i of rank `rank`'s operand in a reduction over `size` ranks. Sums and products of up to
// eight ranks are exact in every type, and means are integers. A bool is true on some of the ranks.
inline int Operand(DType dtype, ReduceOp op, int size, int rank, size_t i, size_t salt = 0) {
  const size_t mixed = i + salt + 5 * static_cast<size_t>(rank);
  if (dtype == DType::kBool) return mixed % 7 < 3 + (i + salt) % 4;
  if (op == ReduceOp::kMean) return size * static_cast<int>(mixed % 2);
  if (op == ReduceOp::kProduct) return mixed % 3 == 0 ? 2 : 1;
  return static_cast<int>(mixed % 11);
}

inline int Reduced(DType dtype, ReduceOp op, int size, size_t i, size_t salt = 0) {
  int result = Operand(dtype, op, size, 0, i, salt);
  for (int rank = 1; rank < size; ++rank) {
    const int value = Operand(dtype, op, size, rank, i, salt);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kMean:
        result += value;
        break;
      case ReduceOp::kMin:
        result = std::min(result, value);
        break;
      case ReduceOp::kMax:
        result = std::max(result, value);
        break;
      case ReduceOp::kProduct:
        result *= value;
    }
  }
  return op == ReduceOp::kMean ? result / size : result;
}

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_VALUES_H_
