// The arithmetic of reductions for every element type, without communication.
#include "core/math/combine.h"

#include <cstring>
#include <limits>

#include "testing.h"
#include "values.h"

namespace tfdist::testing::combine_test {
namespace {

const ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax,
                         ReduceOp::kProduct};

template <typename T>
std::vector<T> Combined(DType dtype, ReduceOp op, std::vector<T> a, const std::vector<T>& b) {
  std::vector<T> out(a.size());
  Combine(dtype, op, out.data(), a.data(), b.data(), a.size());
  Combine(dtype, op, a.data(), a.data(), b.data(), a.size());  // in place
  CHECK(std::memcmp(a.data(), out.data(), a.size() * sizeof(T)) == 0);
  return out;
}

// Enough elements for vector instructions and a remainder.
TEST_CASE("every type and operation") {
  for (const DType dtype : kReducible) {
    for (const ReduceOp op : kOps) {
      if (!CanReduce(dtype, op)) continue;
      const size_t count = 133, bytes = count * ByteSize(dtype);
      const auto operand = [&](int rank) {
        return Encoded(dtype, count, [&](size_t i) { return Operand(dtype, op, 2, rank, i); });
      };
      const std::string a = operand(0), b = operand(1);
      std::string out(bytes, '\0'), identity(bytes, '\x5a');
      Combine(dtype, op, out.data(), a.data(), b.data(), count);
      const std::string expected = Encoded(dtype, count, [&](size_t i) {
        return Reduced(dtype, op, 2, i) * (op == ReduceOp::kMean ? 2 : 1);
      });
      CHECK(out == expected);
      FillIdentity(dtype, op, identity.data(), count);
      Combine(dtype, op, out.data(), identity.data(), a.data(), count);
      CHECK(out == a);
      Combine(dtype, op, out.data(), a.data(), identity.data(), count);
      CHECK(out == a);
    }
  }
}

TEST_CASE("negative") {
  CHECK((Combined<int8_t>(DType::kInt8, ReduceOp::kMin, {-5, 7}, {3, -9}) ==
         std::vector<int8_t>{-5, -9}));
  CHECK((Combined<int16_t>(DType::kInt16, ReduceOp::kMax, {-5, -700}, {-3, -900}) ==
         std::vector<int16_t>{-3, -700}));
  CHECK((Combined<uint8_t>(DType::kUInt8, ReduceOp::kMax, {250, 1}, {3, 2}) ==
         std::vector<uint8_t>{250, 2}));
  CHECK((Combined<float>(DType::kFloat32, ReduceOp::kProduct, {-2, 3}, {4, -0.5f}) ==
         std::vector<float>{-8, -1.5f}));
  CHECK((Combined<uint16_t>(DType::kBFloat16, ReduceOp::kMin, {0xbf80}, {0x3f80}) ==
         std::vector<uint16_t>{0xbf80}));  // -1 and 1
}

// As in TensorFlow.
TEST_CASE("overflow wraps") {
  CHECK((Combined<int8_t>(DType::kInt8, ReduceOp::kSum, {100}, {100}) == std::vector<int8_t>{-56}));
  CHECK(
      (Combined<uint8_t>(DType::kUInt8, ReduceOp::kSum, {200}, {100}) == std::vector<uint8_t>{44}));
  CHECK((Combined<int16_t>(DType::kInt16, ReduceOp::kProduct, {-32768}, {-32768}) ==
         std::vector<int16_t>{0}));
  CHECK((Combined<int32_t>(DType::kInt32, ReduceOp::kProduct, {1 << 20}, {1 << 12}) ==
         std::vector<int32_t>{0}));
  const int64_t most = std::numeric_limits<int64_t>::max();
  CHECK((Combined<int64_t>(DType::kInt64, ReduceOp::kProduct, {most}, {2}) ==
         std::vector<int64_t>{-2}));
}

TEST_CASE("nan") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = 1 / 0.0f;
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    const auto result = Combined<float>(DType::kFloat32, op, {nan, 1, nan, nan, -inf, 1},
                                        {1, nan, nan, inf, nan, 2});
    for (int i = 0; i < 5; ++i) CHECK(result[i] != result[i]);
    CHECK(result[5] == (op == ReduceOp::kMin ? 1 : 2));
    // 0x7e00 is a NaN of float16 and 0x7fc0 one of bfloat16.
    for (const uint16_t half : Combined<uint16_t>(DType::kFloat16, op, {0x7e00, 0}, {0, 0x7e00})) {
      CHECK((half & 0x7fff) > 0x7c00);
    }
    for (const uint16_t half : Combined<uint16_t>(DType::kBFloat16, op, {0x7fc0, 0}, {0, 0x7fc0})) {
      CHECK((half & 0x7fff) > 0x7f80);
    }
  }
  // Equal zeros: the second.
  const auto zeros = Combined<float>(DType::kFloat32, ReduceOp::kMax, {0.0f, -0.0f}, {-0.0f, 0.0f});
  CHECK((1 / zeros[0] == -inf && 1 / zeros[1] == inf));
}

TEST_CASE("means of small types") {
  std::vector<int8_t> values = {-7, 7, 100};
  Divide(DType::kInt8, values.data(), 3, 2);
  CHECK((values == std::vector<int8_t>{-3, 3, 50}));
  Divide(DType::kInt8, values.data(), 3, 256);  // beyond the type's range
  CHECK((values == std::vector<int8_t>{0, 0, 0}));
}

TEST_CASE("types without an operation") {
  CHECK((!CanReduce(DType::kBytes, ReduceOp::kSum) && !CanReduce(DType::kBool, ReduceOp::kMean)));
}

}  // namespace
}  // namespace tfdist::testing::combine_test
