// The map of rows: each row is found with its content, after any other insertions and erasures.
#include "core/ps/table/row_map.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <unordered_map>

#include "core/ps/table/row_initializer.h"
#include "testing.h"

namespace tfdist::testing::ps_table_row_map_test {
namespace {

using namespace tfdist::ps;

int32_t& Number(RowMap& rows, RowMap::Row row) {
  return *reinterpret_cast<int32_t*>(rows.content(row));
}

void ExpectSame(RowMap& rows, const std::unordered_map<int64_t, int32_t>& expected) {
  CHECK(rows.size() == expected.size());
  for (const auto& [id, number] : expected) {
    const RowMap::Row row = rows.Find(id, MixId(id));
    CHECK((row != RowMap::kNone && rows.in_use(row)));
    CHECK((rows.header(row).id == id && Number(rows, row) == number));
  }
  size_t in_use = 0;
  for (RowMap::Row row = 0; row < rows.end(); ++row) in_use += rows.in_use(row) ? 1 : 0;
  CHECK(in_use == expected.size());
}

TEST_CASE("coming and going") {
  std::mt19937_64 random(1);
  RowMap rows(3 * sizeof(int32_t));
  std::unordered_map<int64_t, int32_t> expected;
  CHECK(rows.Find(0, MixId(0)) == RowMap::kNone);
  for (int i = 0; i < 400000; ++i) {
    // Grows to thousands, shrinks, and grows again, with adjacent and extreme ids.
    const bool shrinks = i / 50000 % 2 == 1;
    int64_t id = static_cast<int64_t>(random() % 20000);
    if (id == 7) id = INT64_MIN;
    if (id == 8) id = INT64_MAX;
    const uint64_t hash = MixId(id);
    const RowMap::Row row = rows.Find(id, hash);
    CHECK((row != RowMap::kNone) == (expected.count(id) == 1));
    if (row == RowMap::kNone && (!shrinks || random() % 4 == 0)) {
      Number(rows, rows.Insert(id, hash)) = i;
      expected[id] = i;
    } else if (row != RowMap::kNone && (shrinks || random() % 4 == 0)) {
      rows.Erase(row);
      expected.erase(id);
    }
    if (i % 40000 == 0) ExpectSame(rows, expected);
  }
  ExpectSame(rows, expected);
  CHECK(!expected.empty());
}

TEST_CASE("rows stay where they are") {
  RowMap rows(64);
  const char* const first = rows.content(rows.Insert(-5, MixId(-5)));
  for (int64_t id = 0; id < 100000; ++id) rows.Insert(id, MixId(id));
  CHECK(rows.content(rows.Find(-5, MixId(-5))) == first);
}

// Rows of 16 floats and a slot of 16: 128 bytes. The overhead is checked at every size, also just
// after the map has grown.
TEST_CASE("memory") {
  RowMap rows(128);
  double worst = 0;
  for (int64_t id = 0; id < 1000000; ++id) {
    rows.Insert(id, MixId(id));
    if (id > 100000) worst = std::max(worst, double(rows.bytes()) / double(rows.size()));
  }
  CHECK(worst <= 1.3 * 128);
}

TEST_CASE("initializers") {
  constexpr size_t kWidth = 16, kRows = 20000;
  for (const InitializerKind kind :
       {InitializerKind::kUniform, InitializerKind::kNormal, InitializerKind::kTruncatedNormal}) {
    const bool uniform = kind == InitializerKind::kUniform;
    const RowInitializer initializer{kind, uniform ? -1.0 : 0.5, uniform ? 2.0 : 0.1, 7};
    double sum = 0, squares = 0;
    float least = 1e9, most = -1e9;
    for (size_t id = 0; id < kRows; ++id) {
      float row[kWidth], again[kWidth];
      initializer.Fill(static_cast<int64_t>(id), kWidth, row);
      initializer.Fill(static_cast<int64_t>(id), kWidth, again);
      for (size_t i = 0; i < kWidth; ++i) {
        CHECK(row[i] == again[i]);
        sum += row[i];
        squares += row[i] * row[i];
        least = std::min(least, row[i]);
        most = std::max(most, row[i]);
      }
    }
    const double mean = sum / (kRows * kWidth);
    const double deviation = std::sqrt(squares / (kRows * kWidth) - mean * mean);
    CHECK(std::abs(mean - 0.5) < 0.005);
    if (uniform) {
      CHECK((least >= -1 && least < -0.999 && most <= 2 && most > 1.999));
      CHECK(std::abs(deviation - 3 / std::sqrt(12.0)) < 0.005);
    } else if (kind == InitializerKind::kNormal) {
      CHECK((std::abs(deviation - 0.1) < 0.0005 && most > 0.9));
    } else {
      CHECK((std::abs(deviation - 0.088) < 0.0005 && least >= 0.3f && most <= 0.7f));
    }
  }
  float row[2];
  RowInitializer{InitializerKind::kConstant, 0.25, 0, 1}.Fill(3, 2, row);
  CHECK((row[0] == 0.25f && row[1] == 0.25f));
  float other[2];
  RowInitializer{InitializerKind::kUniform, 0, 1, 1}.Fill(3, 2, row);
  RowInitializer{InitializerKind::kUniform, 0, 1, 2}.Fill(3, 2, other);
  CHECK(row[0] != other[0]);
}

}  // namespace
}  // namespace tfdist::testing::ps_table_row_map_test
