// The arithmetic of compression: casts in place, top-k, one bit, orthonormal columns.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/math/cast16.h"
#include "core/math/low_rank.h"
#include "core/math/one_bit.h"
#include "core/math/top_k.h"
#include "testing.h"

namespace tfdist::testing::compression_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Exact in 16 bits: only their positions can be wrong.
template <typename T>
std::vector<T> Exact(size_t count) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(i % 251) - 125;
  return values;
}

template <typename T>
void TestCastInPlace(DType wire, DType wide) {
  for (const size_t count : {0, 1, 7, 2047, 2048, 2049, 10000}) {
    const std::vector<T> expected = Exact<T>(count);
    std::vector<T> values = expected;
    CastTo16(wire, wide, values.data(), values.data(), count);
    std::vector<float> travelling(count);
    CastToFloat32(wire, values.data(), travelling.data(), count);
    for (size_t i = 0; i < count; ++i) CHECK(travelling[i] == static_cast<float>(expected[i]));
    CastFrom16InPlace(wire, wide, values.data(), count, 1);
    CHECK(values == expected);

    std::vector<T> elsewhere(count, T{-1});
    CastTo16(wire, wide, expected.data(), elsewhere.data(), count);
    CastFrom16InPlace(wire, wide, elsewhere.data(), count, 4);
    for (size_t i = 0; i < count; ++i) CHECK(elsewhere[i] == expected[i] / 4);
  }
}

TEST_CASE("cast rounds") {
  std::vector<float> values = {1.0f + 1e-4f, 65504.0f, 65520.0f, -1e30f, 1e-9f, 3.0f};
  CastTo16(DType::kFloat16, DType::kFloat32, values.data(), values.data(), values.size());
  CastFrom16InPlace(DType::kFloat16, DType::kFloat32, values.data(), values.size(), 1);
  CHECK((values == std::vector<float>{1.0f, 65504.0f, kInfinity, -kInfinity, 0.0f, 3.0f}));
  // bfloat16 has the range of float32, and 8 bits of precision. A mean is divided after the cast
  // back.
  values = {1.0f + 1e-3f, 3e38f, 1.0f};
  CastTo16(DType::kBFloat16, DType::kFloat32, values.data(), values.data(), values.size());
  CastFrom16InPlace(DType::kBFloat16, DType::kFloat32, values.data(), values.size(), 3);
  CHECK((values[0] == 1.0f / 3 && std::isfinite(values[1]) && values[2] == 1.0f / 3));
}

TEST_CASE("top k") {
  const std::vector<float> all = {1.0f, -5.0f, 0.0f, 5.0f, 1e-40f, -2.0f, 5.0f, -kInfinity};
  // By magnitude; among equal magnitudes the lower position.
  const std::vector<int32_t> order = {7, 1, 3, 6, 5, 0, 4, 2};
  for (size_t k = 1; k <= all.size(); ++k) {
    std::vector<float> values = all, taken(k);
    std::vector<int32_t> positions(k);
    TopK(values.data(), values.size(), k, positions.data(), taken.data());
    std::vector<int32_t> expected(order.begin(), order.begin() + k);
    std::sort(expected.begin(), expected.end());
    CHECK(positions == expected);
    for (size_t j = 0; j < k; ++j) CHECK(taken[j] == all[expected[j]]);
    for (size_t i = 0; i < all.size(); ++i) {
      const bool was_taken = std::count(expected.begin(), expected.end(), i) > 0;
      CHECK(values[i] == (was_taken ? 0.0f : all[i]));
    }
  }
  std::vector<float> values = {1.0f, std::nanf(""), kInfinity};
  int32_t position = -1;
  float taken = 0;
  TopK(values.data(), values.size(), 1, &position, &taken);
  CHECK((position == 1 && std::isnan(taken)));
}

TEST_CASE("one bit") {
  // Three columns; the encoded ones are the last two. The header's example is the first of these.
  const std::vector<float> all = {9, 3, 0, 9, -1, -4, 9, 1, 0, 9, -5, -2, 9, 2, 3};
  const ColumnRange range{5, 3, 1, 3};
  CHECK(range.words() == 5);
  std::vector<float> rests = all, sums(all.size(), 0.5f);
  std::vector<uint32_t> words(range.words(), ~0u);
  EncodeOneBit(range, rests.data(), words.data());
  const float levels[] = {-3, -3, 2, 1};
  CHECK(std::memcmp(words.data(), levels, sizeof(levels)) == 0);
  CHECK(words[4] == 0b0011001100u);
  CHECK((rests == std::vector<float>{9, 1, -1, 9, 2, -1, 9, -1, -1, 9, -2, 1, 9, 0, 2}));
  AddOneBit(range, words.data(), sums.data());
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK(sums[i] == (i % 3 == 0 ? 0.5f : 0.5f + all[i] - rests[i]));
  }
  // Values of one sign, zeros, and sizes around a word.
  for (const size_t rows : {1, 2, 31, 32, 33, 1000}) {
    for (const float value : {0.0f, -3.0f, 7.0f}) {
      const ColumnRange whole{rows, 2, 0, 2};
      std::vector<float> values(2 * rows, value), restored(2 * rows, 0.0f);
      words.assign(whole.words(), 0);
      EncodeOneBit(whole, values.data(), words.data());
      AddOneBit(whole, words.data(), restored.data());
      CHECK(values == std::vector<float>(2 * rows, 0.0f));
      CHECK(restored == std::vector<float>(2 * rows, value));
    }
  }
  // A value that is not finite becomes visible in its column alone.
  std::vector<float> broken = {1, 1, std::nanf(""), 1}, restored(4, 0.0f);
  const ColumnRange both{2, 2, 0, 2};
  EncodeOneBit(both, broken.data(), words.data());
  AddOneBit(both, words.data(), restored.data());
  CHECK((std::isnan(restored[0]) && restored[1] == 1 && restored[3] == 1));
}

TEST_CASE("parts of columns") {
  for (const size_t parts : {1, 2, 3, 7}) {
    for (const size_t columns : {0, 1, 3, 20}) {
      size_t next = 0;
      for (size_t part = 0; part < parts; ++part) {
        const ColumnRange range = PartOfColumns(4, columns, part, parts);
        CHECK((range.begin == next && range.rows == 4 && range.stride == columns));
        CHECK(range.width() == columns / parts + (part < columns % parts ? 1 : 0));
        next = range.end;
      }
      CHECK(next == columns);
    }
  }
}

float Length(const std::vector<float>& matrix, size_t columns, size_t a, size_t b) {
  double sum = 0;
  for (size_t i = 0; i < matrix.size() / columns; ++i) {
    sum += static_cast<double>(matrix[i * columns + a]) * matrix[i * columns + b];
  }
  return static_cast<float>(sum);
}

void ExpectOrthonormal(const std::vector<float>& matrix, size_t columns) {
  for (size_t a = 0; a < columns; ++a) {
    for (size_t b = 0; b <= a; ++b) {
      CHECK(std::abs(Length(matrix, columns, a, b) - (a == b ? 1.0f : 0.0f)) < 1e-5f);
    }
  }
}

TEST_CASE("orthonormalize") {
  // The first column keeps its direction; the second keeps its component orthogonal to the first.
  std::vector<float> matrix = {3, 1, 4, 1, 0, 2};
  Orthonormalize(matrix.data(), 3, 2);
  ExpectOrthonormal(matrix, 2);
  CHECK((std::abs(matrix[0] - 0.6f) < 1e-6f && std::abs(matrix[2] - 0.8f) < 1e-6f));
  // Nearly dependent and dependent columns, zeros, and a square matrix.
  for (const size_t rows : {1, 2, 3, 4, 100}) {
    const size_t columns = rows < 4 ? rows : 4;
    for (const float scale : {0.0f, 1e-3f, 1e-20f, 1e20f}) {
      std::vector<float> values(rows * columns);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = scale * (1 + static_cast<float>(i / columns) + (i == 1 ? 1e-3f : 0));
      }
      std::vector<float> again = values;
      Orthonormalize(values.data(), rows, columns);
      ExpectOrthonormal(values, columns);
      Orthonormalize(again.data(), rows, columns);
      CHECK(again == values);
    }
  }
  std::vector<float> broken = {1, std::nanf(""), 2, 3};
  Orthonormalize(broken.data(), 2, 2);
  CHECK((std::isnan(broken[1]) && std::isnan(broken[3]) && std::isfinite(broken[0])));
}

TEST_CASE("multiply transposed") {
  const std::vector<float> left = {1, 2, 3, 4, 5, 6};           // 3 x 2
  const std::vector<float> right = {1, 0, 0, 1, 1, 1, 10, -1};  // 4 x 2
  std::vector<float> out(12, -1);
  MultiplyTransposed(left.data(), right.data(), 0, 1, 4, 2, out.data());
  MultiplyTransposed(left.data(), right.data(), 1, 3, 4, 2, out.data());
  CHECK((out == std::vector<float>{1, 2, 3, 8, 3, 4, 7, 26, 5, 6, 11, 44}));
}

TEST_CASE("cast in place") {
  for (const DType wire : {DType::kFloat16, DType::kBFloat16}) {
    TestCastInPlace<float>(wire, DType::kFloat32);
    TestCastInPlace<double>(wire, DType::kFloat64);
  }
}

}  // namespace
}  // namespace tfdist::testing::compression_test
