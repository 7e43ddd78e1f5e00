// Lookups on the worker: each id is fetched once; caches; wire dtypes.
#include "ps/client/lookups.h"

#include <set>

#include "core/math/cast16.h"

namespace tfdist::testing::ps_client_lookups_test {
namespace {

// Long runs without a repeated id, which are received without a copy, and short ones.
void TestEqualIds(int servers, bool expose) {
  LookupJob job(servers, expose);
  const int table = job.Make(40);
  Ids ids;
  for (int64_t i = 0; i < 1500; ++i) ids.push_back(i % 700 == 699 ? 5 : i * 1000003);
  Ids many;
  for (int64_t i = 0; i < 900; ++i) many.push_back(i * i % 101);
  const ps::Memory rows = Hold(Floats(1500 * 40, -7)), more = Hold(Floats(900 * 40, -7));
  CHECK_OK(Call([&](ps::Done done) {
    job.client().tables().Lookup({{table, ids, rows}, {table, many, more}}, true, done);
  }));
  CHECK(LookupJob::Values(rows, 1500 * 40) == First(ids, 40));
  CHECK(LookupJob::Values(more, 900 * 40) == First(many, 40));
  const ps::LookupStats stats = job.client().tables().lookup_stats();
  const std::set<int64_t> all = [&] {
    std::set<int64_t> set(ids.begin(), ids.end());
    set.insert(many.begin(), many.end());
    return set;
  }();
  CHECK((stats.lookups == 1 && stats.ids == 2400 && stats.rows == all.size()));
  CHECK(stats.bytes == all.size() * 40 * sizeof(float));
  CHECK(job.Lookup(table, many, 40) == First(many, 40));
}

void TestGradientsOfEqualIds(int servers, bool expose) {
  LookupJob job(servers, expose);
  const int table = job.Make(40);
  Ids ids;
  Floats gradients;
  std::map<int64_t, float> sums;
  for (int64_t i = 0; i < 1500; ++i) {
    ids.push_back(i % 700 == 699 ? 5 : i * 1000003);
    sums[ids.back()] += static_cast<float>(i);
    gradients.insert(gradients.end(), 40, static_cast<float>(i));
  }
  job.client().parameters().StageRows({1, 1}, {table, ids, Hold(gradients)});
  job.client().parameters().StageRows({1, 1}, {table, {ids[3]}, Hold(Floats(40, 0.5f))});
  sums[ids[3]] += 0.5f;
  CHECK_OK(job.worker.PushStaged());
  const Floats first = First(ids, 40), rows = job.Lookup(table, ids, 40);
  for (size_t i = 0; i < rows.size(); ++i) CHECK(rows[i] == first[i] - sums[ids[i / 40]]);
}

TEST_CASE("short floats") {
  LookupJob job(2);
  const int table = job.Make(7);
  const Ids ids = {1, 2, 3, 2};
  for (const DType wire : {DType::kFloat16, DType::kBFloat16}) {
    const auto rounded = [wire](Floats values) {
      std::vector<uint16_t> narrow(values.size());
      CastFromFloat32(wire, values.data(), narrow.data(), values.size());
      CastToFloat32(wire, narrow.data(), values.data(), values.size());
      return values;
    };
    const Floats exact = job.Lookup(table, ids, 7), rows = job.Lookup(table, ids, 7, true, wire);
    CHECK(rows == rounded(exact));
    CHECK(rows != exact);
    const Floats gradients = First({11, 12, 13}, 7);
    job.client().parameters().StageRows({1, 1}, {table, {1, 2, 3}, Hold(gradients), wire});
    CHECK_OK(job.worker.PushStaged());
    const Floats sent = rounded(gradients), after = job.Lookup(table, {1, 2, 3}, 7);
    for (size_t i = 0; i < after.size(); ++i) CHECK(after[i] == exact[i] - sent[i]);
  }
  // Rounding to nearest even, and overflow of float16.
  const Floats odd = {1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f, 70000.0f, -0.0f};
  uint16_t half[4], brain[4];
  CastFromFloat32(DType::kFloat16, odd.data(), half, 4);
  CastFromFloat32(DType::kBFloat16, odd.data(), brain, 4);
  CHECK((half[0] == 0x3c00 && half[1] == 0x3c02 && half[2] == 0x7c00 && half[3] == 0x8000));
  CHECK((brain[0] == 0x3f80 && brain[2] == 0x4789 && brain[3] == 0x8000));
}

TEST_CASE("cache") {
  LookupJob job(2);
  const int table = job.Make(3);
  CHECK_OK(job.lookups().SetCache(table, 3, 2));
  CHECK_STATUS(job.lookups().SetCache(99, 3, 2), StatusCode::kInvalidArgument);
  const Ids ids = {1, 2, 1, 3};
  job.Lookup(table, ids, 3);
  for (int step = 0; step < 3; ++step) {
    CHECK(job.Lookup(table, ids, 3) == First(ids, 3));
    CHECK(job.Lookup(table, ids, 3, false) == First(ids, 3, step));
    job.Step(table, {1, 2, 3}, 3);
  }
  CHECK(job.Lookup(table, ids, 3) == First(ids, 3, 3));
  const ps::LookupStats stats = job.client().tables().lookup_stats();
  CHECK((stats.cache_lookups == 15 && stats.cache_hits == 9));
  // A full cache keeps frequently used rows.
  const int large = job.Make(2);
  CHECK_OK(job.lookups().SetCache(large, 64, 2));
  for (int i = 0; i < 20; ++i) job.Lookup(large, {1, 2}, 2);
  for (int64_t i = 100; i < 400; ++i) CHECK(job.Lookup(large, {i}, 2) == First({i}, 2));
  const uint64_t hits = job.client().tables().lookup_stats().cache_hits;
  job.Lookup(large, {1, 2}, 2);
  CHECK(job.client().tables().lookup_stats().cache_hits == hits + 2);
  CHECK_OK(job.lookups().SetCache(table, 0, 0));
  CHECK(job.Lookup(table, {1}, 3) == First({1}, 3, 3));
  CHECK(job.client().tables().lookup_stats().cache_hits == hits + 2);
}

TEST_CASE("equal ids") {
  for (const bool expose : {false, true}) {
    for (const int servers : {1, 3}) {
      TestEqualIds(servers, expose);
      TestGradientsOfEqualIds(servers, expose);
    }
  }
}

}  // namespace
}  // namespace tfdist::testing::ps_client_lookups_test
