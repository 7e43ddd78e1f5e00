// Sums of rows, and the choice of the dense table.
#include "core/math/row_sums.h"

#include <cstdint>
#include <vector>

#include "testing.h"

namespace tfdist::testing::row_sums_test {
namespace {

template <typename T>
void TestAdd(DType dtype) {
  const std::vector<T> first = {T(1), T(2), T(3), T(4), T(5), T(6)}, second = {T(7), T(8)};
  const std::vector<uint32_t> indices = {0, 1, 0}, more = {2};
  std::vector<T> sums(6, T(-1));
  RowSums rows(dtype, 2, reinterpret_cast<char*>(sums.data()));
  rows.Add(reinterpret_cast<const char*>(first.data()), indices.data(), indices.size());
  rows.Add(nullptr, indices.data(), 0);  // a rank without rows
  rows.Add(reinterpret_cast<const char*>(second.data()), more.data(), more.size());
  rows.Add(reinterpret_cast<const char*>(second.data()), indices.data() + 1, 1);
  CHECK(sums == (std::vector<T>{T(6), T(8), T(10), T(12), T(7), T(8)}));
  T one = T(5);
  SetOne(dtype, &one);
  CHECK(one == T(1));
}

TEST_CASE("dense table where smaller") {
  // A table of 10 rows of 16 bytes plus 4 bytes each, sent twice: 400 bytes.
  const auto table = [](std::vector<RowCount> ranks) { return DenseTableRows(ranks, 16, 4, 4); };
  CHECK(table({{10, 10}, {10, 10}}) == -1);  // 20 rows of 20 bytes: equal
  CHECK(table({{10, 10}, {11, 10}}) == 10);
  CHECK(table({{10, 10}, {11, -1}}) == -1);  // a rank has an id outside the table
  CHECK(table({{10, 10}, {11, 9}}) == -1);
  CHECK(table({{21, 10}, {0, 10}}) == 10);
  CHECK(table({{0, 10}, {0, 10}}) == -1);
  // In 8 bits the count of ranks with a row must not wrap.
  const auto bytes = [](size_t ranks) {
    return DenseTableRows(std::vector<RowCount>(ranks, {10, 10}), 16, 4, 1);
  };
  CHECK(bytes(255) == 10);
  CHECK(bytes(256) == -1);
}

TEST_CASE("add") {
  TestAdd<float>(DType::kFloat32);
  TestAdd<double>(DType::kFloat64);
  TestAdd<int32_t>(DType::kInt32);
  TestAdd<int64_t>(DType::kInt64);
  TestAdd<int8_t>(DType::kInt8);
  TestAdd<int16_t>(DType::kInt16);
  TestAdd<uint8_t>(DType::kUInt8);
}

TEST_CASE("one in 16 bits") {
  uint16_t half = 0, brain = 0;
  SetOne(DType::kFloat16, &half);
  SetOne(DType::kBFloat16, &brain);
  CHECK((half == 0x3c00 && brain == 0x3f80));
}

}  // namespace
}  // namespace tfdist::testing::row_sums_test
