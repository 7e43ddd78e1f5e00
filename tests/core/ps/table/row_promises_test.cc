// Promises of spare rows: a request that has one never lacks a row that it creates.
#include "core/ps/table/row_promises.h"

#include <array>
#include <cstddef>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "testing.h"

namespace tfdist::testing::ps_table_row_promises_test {
namespace {

using ps::kStripes;
using ps::RowPromises;

RowPromises::Counts Each(size_t count) {
  RowPromises::Counts counts;
  counts.fill(count);
  return counts;
}

TEST_CASE("all or none") {
  RowPromises promises;
  CHECK(!promises.Promise(Each(1)));
  for (size_t i = 0; i < kStripes; ++i) promises.SetSpare(i, 10 + i);
  CHECK(promises.Promise(Each(10)));
  // Stripe i has i rows left: stripe 0 has none.
  CHECK(!promises.Promise(Each(1)));
  RowPromises::Counts but_first = Each(1);
  but_first[0] = 0;
  CHECK(promises.Promise(but_first));
  for (size_t i = 0; i < kStripes; ++i) CHECK(promises.promised(i) == (i == 0 ? 10 : 11));
  CHECK((!promises.Promise(5, 5) && promises.Promise(5, 4) && promises.promised(5) == 15));
  promises.Unpromise(Each(10));
  CHECK((promises.promised(0) == 0 && promises.promised(5) == 5 && promises.promised(6) == 1));
}

// A created row counts twice until its request ends, which takes nothing from stripes that are not
// asked.
TEST_CASE("created rows") {
  RowPromises promises;
  for (size_t i = 0; i < kStripes; ++i) promises.SetSpare(i, 8);
  const RowPromises::Counts first = Each(6);
  CHECK(promises.Promise(first));
  promises.SetSpare(3, 2);
  CHECK(!promises.Promise(3, 1));
  RowPromises::Counts others = Each(2);
  others[3] = 0;
  CHECK(promises.Promise(others));
  promises.Unpromise(first);
  CHECK((promises.Promise(3, 2) && !promises.Promise(3, 1)));
}

// Requests on several threads create as many rows as they were promised, and remove them later.
TEST_CASE("threads") {
  constexpr size_t kThreads = 4, kSpare = 40;
  RowPromises promises;
  std::array<std::mutex, kStripes> locks;
  std::array<size_t, kStripes> spare;
  spare.fill(kSpare);
  for (size_t i = 0; i < kStripes; ++i) promises.SetSpare(i, kSpare);
  std::array<size_t, kThreads> served{};
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(static_cast<unsigned>(thread));
      // On a busy machine the others may hold the rows that this thread needs for all of its
      // rounds.
      for (int request = 0; request < Rounds(20000) || served[thread] == 0; ++request) {
        RowPromises::Counts counts{};
        for (size_t& count : counts) count = random() % 16;
        if (!promises.Promise(counts)) {
          std::this_thread::yield();
          continue;
        }
        ++served[thread];
        for (size_t i = 0; i < kStripes; ++i) {
          const std::lock_guard<std::mutex> lock(locks[i]);
          CHECK(spare[i] >= counts[i]);
          promises.SetSpare(i, spare[i] -= counts[i]);
        }
        promises.Unpromise(counts);
        for (size_t i = 0; i < kStripes; ++i) {
          const std::lock_guard<std::mutex> lock(locks[i]);
          promises.SetSpare(i, spare[i] += counts[i]);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < kStripes; ++i) CHECK((promises.promised(i) == 0 && spare[i] == kSpare));
  CHECK(promises.Promise(Each(kSpare)));
}

}  // namespace
}  // namespace tfdist::testing::ps_table_row_promises_test
